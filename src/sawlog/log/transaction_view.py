"""Readers' view of transactions: the last stable offset, and which batches were aborted.

`TransactionView` belongs to the writing process, which keeps the state at the end of the log up to date
(`Transactions`). `FollowedTransactionView` belongs to a reader in another process. It starts from the file `producers`,
or from the start of the log, and replays the batches after that. Readers do not consult it while no transaction can be
open (`SegmentSet.maybe_undecided`).

Both look up aborted transactions in the `.txnindex` of sealed segments. If one is missing or wrong, they rebuild the
indexes from the headers of all batches.

Threads: any.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..batch.header import Rows
from ..errors import CorruptBatch, CorruptFile, StorageError
from ..storage.forking import forkable
from .files import PRODUCERS
from .producers import ProducersFile
from .segment import Segment
from .transactions import (
    AbortedTransaction,
    OpenTransaction,
    TransactionIndex,
    Transactions,
    aborted_rows,
    overlapping,
    replay_segment,
)

if TYPE_CHECKING:
    from .followed_segments import FollowedSegmentSet
    from .segments import SegmentSet


class TransactionView:
    """The transactions of a log, as its writer knows them."""

    def __init__(self, segments: SegmentSet) -> None:
        #: The owning set. A weak reference, so that files close with the last user of the set rather than when the
        #: garbage collector finds a cycle.
        self._segments: SegmentSet = weakref.proxy(segments)
        self._lock = forkable(threading.RLock())
        #: The state at the end of the log; replaced after a truncation.
        self.state = Transactions()

    def current(self) -> Transactions:
        """Return the state at the end of the log."""
        return self.state

    def replace(self, state: Transactions) -> None:
        """Replace the state, because the end of the log moved back."""
        self.state = state

    def stable(self, visible: int) -> int:
        """Return the last stable offset of a log that is visible up to `visible`."""
        return max(self.current().stable(visible), self._segments.lowest_offset)

    @property
    def open(self) -> tuple[OpenTransaction, ...]:
        """The open transactions, in the order in which they began."""
        return tuple(self.current().open.copy().values())

    # --- aborted transactions

    def committed(self, rows: Rows) -> Rows:
        """Drop the batches of aborted transactions. All batches must be below the last stable offset."""
        gone = self.aborted_rows(rows)
        return rows[~gone] if gone.any() else rows

    def aborted_rows(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return a mask of the batches that belong to aborted transactions."""
        return aborted_rows(rows, self.aborted)

    def index_of(self, segment: Segment, *, special: bool) -> TransactionIndex | None:
        """Return the index of a sealed segment; None if it has none. `special`: the segment has transactional
        batches."""
        found = segment.transaction_index or segment.load_transaction_index()
        if found is None and special:
            self._rebuild()
            found = segment.transaction_index
        return found

    def is_aborted(self, producer_id: int, base: int) -> bool:
        """Return True if the transactional batch of this producer at offset `base` was aborted."""
        return any(each.producer_id == producer_id for each in self.aborted(base, base))

    def aborted(self, first: int, last: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that may have batches from offset `first` to `last`, ordered by first offset.
        The offsets must be below the last stable offset."""
        found = self._look_up(first, last)
        if found is None:
            self._rebuild()
            found = self._look_up(first, last)
        return sorted(found or (), key=lambda each: (each.first_offset, each.last_offset))

    def _look_up(self, first: int, last: int) -> set[AbortedTransaction] | None:
        """Look up aborted transactions; None if a required index is missing or wrong."""
        since, recent = self.current().recent  # read before the list: a segment gets its index before it is sealed
        found: set[AbortedTransaction] = set()
        for segment in _from(self._segments.all, first):
            if segment.base_offset >= since:
                break
            index = segment.transaction_index or segment.load_transaction_index()
            if index is None:
                return None
            found.update(overlapping(index.aborted, first, last))
            if index.stable_end > last:
                return found
        return found.union(overlapping(recent, first, last))

    def _rebuild(self) -> None:
        """Rebuild and store the transaction index of every sealed segment."""
        with self._lock:
            since = self.state.since
            self._replay([segment for segment in self._segments.all if segment.base_offset < since])

    def _replay(self, segments: Sequence[Segment]) -> Transactions:
        """Rebuild the index of these segments from their batches; return the state at the end."""
        state = Transactions(lowest=self._segments.lowest_offset)
        for segment in segments:
            state.begin_segment(segment.base_offset)
            replay_segment(segment, segment.base_offset, segment.next_offset, state)
            found = state.index_for(segment.next_offset)
            segment.set_transaction_index(found or TransactionIndex((), segment.next_offset))
            if found is not None and segment.repairs:
                segment.write_transaction_index()
        return state


def _from(segments: Sequence[Segment], offset: int) -> Iterator[Segment]:
    """Iterate over the segments, starting with the one that contains `offset`."""
    at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    return iter(segments[max(at, 0) :])


class FollowedTransactionView(TransactionView):
    """The transactions of a log, as a reader in another process sees them."""

    _segments: FollowedSegmentSet

    def __init__(self, segments: FollowedSegmentSet) -> None:
        super().__init__(segments)
        #: The offset of the state and its leader epoch; -1 if there is none yet.
        self._reached, self._epoch = -1, -1

    def current(self) -> Transactions:
        """Return the state at the known end of the log, after replaying new batches."""
        with self._lock:
            return self._segments.retry_if_changed(self._catch_up)

    def _catch_up(self) -> Transactions:
        segments = self._segments
        try:
            listed = segments.all
            # Batches beyond the visible end may be truncated, or cannot be read yet.
            end = min(listed[-1].next_offset if listed else 0, segments.visible_offset)
            if (self._reached, self._epoch) == (end, segments.epochs.current) and self.state.open:
                self.state.trim(segments.lowest_offset)
                return self.state
            if self._reached < 0 or self._is_outdated(end):
                self._begin(end)
            elif listed[-1].base_offset > self._reached:
                self._skip_ahead(end)
            self.state.trim(segments.lowest_offset)  # first: new batches do not continue trimmed transactions
            self._replay_new(listed, end)
            if not self.state.open:
                segments.mark_decided(end)
            return self.state
        except (CorruptBatch, StorageError):
            self._reached = -1  # the state may be half updated
            raise

    def _is_outdated(self, end: int) -> bool:
        """Return True if the log was truncated below the offset of the state."""
        known = self._segments.epochs.end_of(self._epoch, end) if self._segments.epochs_known else end
        return known < self._reached

    def _begin(self, end: int) -> None:
        """Start from the file `producers`, else from the start of the log."""
        found = self._producers_file(end)
        if found is None:
            self._from_the_start()
        else:
            self._load(found)

    def _load(self, found: ProducersFile) -> None:
        """Start from the file. Segments sealed since then have their own index."""
        state = Transactions(found.segment)
        state.load(found.open, found.aborted, found.offset - 1)
        self.state, self._reached = state, found.offset

    def _from_the_start(self) -> None:
        start = self._segments.all[0].base_offset if self._segments.all else 0
        self.state, self._reached = Transactions(start), start

    def _producers_file(self, end: int) -> ProducersFile | None:
        try:
            found = ProducersFile.decode(self._segments.directory.read(PRODUCERS))
        except (CorruptFile, StorageError):
            return None
        if self._segments.epochs_known:
            end = self._segments.epochs.end_of(found.leader_epoch, end)
        # A segment that lost its indexes counts as active.
        sealed = all(segment.sealed for segment in self._segments.all if segment.base_offset < found.segment)
        return found if found.offset <= end and sealed else None

    def _skip_ahead(self, end: int) -> None:
        """Load the newer `producers` file that the writer stored when it sealed segments, instead of reading them."""
        found = self._producers_file(end)
        if found is not None and found.offset > self._reached:
            self._load(found)

    def _replay_new(self, listed: Sequence[Segment], end: int) -> None:
        sealed = True
        for segment in listed:
            if sealed and self.state.since < segment.base_offset <= self._reached:
                self.state.begin_segment(segment.base_offset)
            sealed = sealed and segment.sealed
            start = max(self._reached, segment.base_offset)
            stop = min(segment.next_offset, end)
            # An active segment was scanned as it grew, and `transactions_until` tells whether it has any.
            if start < stop and (segment.sealed or segment.transactions_until > start):
                replay_segment(segment, start, stop, self.state)
            self._reached = max(self._reached, stop)
        self._epoch = self._segments.epochs.current

    def _rebuild(self) -> None:
        with self._lock:
            self._segments.retry_if_changed(self._rebuild_sealed)

    def _rebuild_sealed(self) -> None:
        self._segments.mark_undecided()  # a transaction may be open after all
        segments = list(takewhile(lambda segment: segment.sealed, self._segments.all))
        self.state = self._replay(segments)
        if segments:
            self._reached, self._epoch = segments[-1].next_offset, self._segments.epochs.current
            self.state.begin_segment(self._reached)
