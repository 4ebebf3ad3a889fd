"""What readers need to know about transactions: where everything is decided, and which batches were aborted.

`Outlook` is that of the writing process, which keeps the state at the end of the log up to date (`Transactions`).
`FollowedOutlook` is that of a reader in another process. It begins with the state in the file `producers`, or at the
log's start, and continues with the batches after that. As long as no transaction is met and no segment is sealed
(`unsettled`), nobody asks it.

Both look up aborted transactions in the `.txnindex` of sealed segments. If one is missing or wrong, the headers of all
batches are read once: the log is the truth.

Threads: any.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..batch.header import Rows
from ..errors import CorruptBatch, CorruptFile, StorageError
from ..storage import Directory
from ..storage.forking import forkable
from .epochs import Epochs
from .files import PRODUCERS
from .segment import Segment
from .transaction_index import Aborted, OpenTransaction, Outcomes, ProducersFile
from .transactions import Transactions, aborted_rows, between, note_segment

T = TypeVar("T")


class Segments(Protocol):
    """What this needs of a list of segments."""

    directory: Directory
    epochs: Epochs
    epochs_known: bool
    #: The log start, and the first offset that may not be read yet.
    lowest_offset: int
    visible_offset: int
    #: Whether the last stable offset may be below the visible end.
    unsettled: bool

    def unsettle(self) -> None:
        """There is a transaction."""

    @property
    def all(self) -> tuple[Segment, ...]:
        """Oldest first."""

    def steadily(self, attempt: Callable[[], T]) -> T:
        """The result of a read that is repeated if segments were replaced or deleted meanwhile."""


class FollowedSegments(Segments, Protocol):
    """What this needs of the list of a reader."""

    def settle(self, end: int) -> None:
        """No transaction is open up to there."""


class Outlook:
    """The writer's view of the transactions of its log."""

    def __init__(self, segments: Segments) -> None:
        #: The list that has this: not kept by it, so that files are closed with the last user of the list, and not when
        #: the garbage collector finds a circle.
        self._segments: Segments = weakref.proxy(segments)
        self._lock = forkable(threading.RLock())
        #: The state at the end of the log; replaced after a truncation.
        self.state = Transactions()

    def current(self) -> Transactions:
        """The state at the end of the log."""
        return self.state

    def replace(self, state: Transactions) -> None:
        """The log ends elsewhere now: this is the state there."""
        self.state = state

    def stable(self, visible: int) -> int:
        """The last stable offset, if the log can be read up to `visible`."""
        return max(self.current().stable(visible), self._segments.lowest_offset)

    @property
    def open(self) -> tuple[OpenTransaction, ...]:
        """The open transactions, in the order in which they began."""
        return tuple(self.current().open.copy().values())

    # --- what was aborted

    def committed(self, rows: Rows) -> Rows:
        """These batches without those of aborted transactions; all of them must be below the last stable offset."""
        gone = self.aborted_rows(rows)
        return rows[~gone] if gone.any() else rows

    def aborted_rows(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which of these batches belong to aborted transactions."""
        return aborted_rows(rows, self.aborted)

    def outcomes_of(self, segment: Segment, *, special: bool) -> Outcomes | None:
        """What a sealed segment says about transactions; None if nothing. `special`: it contains batches of some."""
        found = segment.outcomes or segment.stored_outcomes()
        if found is None and special:
            self._rebuild()
            found = segment.outcomes
        return found

    def is_aborted(self, producer_id: int, base: int) -> bool:
        """Whether the batch of a transaction of this producer that begins there was aborted."""
        return any(each.producer_id == producer_id for each in self.aborted(base, base))

    def aborted(self, first: int, last: int) -> list[Aborted]:
        """The aborted transactions that may have batches from offset `first` to `last`, by their first offset; only for
        offsets below the last stable one."""
        found = self._look_up(first, last)
        if found is None:
            self._rebuild()
            found = self._look_up(first, last)
        return sorted(found or (), key=lambda each: (each.first_offset, each.last_offset))

    def _look_up(self, first: int, last: int) -> set[Aborted] | None:
        """None if a file is missing or wrong that should be there."""
        since, recent = self.current().recent  # before the list: a segment knows what it says before it is sealed
        found: set[Aborted] = set()
        for segment in _from(self._segments.all, first):
            if segment.base_offset >= since:
                break
            outcomes = segment.outcomes or segment.stored_outcomes()
            if outcomes is None:
                return None
            found.update(between(outcomes.aborted, first, last))
            if outcomes.stable_end > last:
                return found
        return found.union(between(recent, first, last))

    def _rebuild(self) -> None:
        """Let every sealed segment know what it says, and store it."""
        with self._lock:
            since = self.state.since
            self._replay([segment for segment in self._segments.all if segment.base_offset < since])

    def _replay(self, segments: Sequence[Segment]) -> Transactions:
        """Let these segments know what they say, from their batches; returns the state at the end."""
        state = Transactions(lowest=self._segments.lowest_offset)
        for segment in segments:
            state.begin_segment(segment.base_offset)
            note_segment(segment, segment.base_offset, segment.next_offset, state)
            found = state.outcomes(segment.next_offset)
            segment.learn(found or Outcomes((), segment.next_offset))
            if found is not None and segment.repairs:
                segment.store_outcomes()
        return state


def _from(segments: Sequence[Segment], offset: int) -> Iterator[Segment]:
    """The segments from the one that contains `offset` on."""
    at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    return iter(segments[max(at, 0) :])


class FollowedOutlook(Outlook):
    """The view of a reader in another process."""

    _segments: FollowedSegments

    def __init__(self, segments: FollowedSegments) -> None:
        super().__init__(segments)
        #: Up to where the state is valid, and the leader epoch of that; -1: there is none yet.
        self._reached, self._epoch = -1, -1

    def current(self) -> Transactions:
        """The state at the end of what is known of the log."""
        with self._lock:
            return self._segments.steadily(self._catch_up)

    def _catch_up(self) -> Transactions:
        segments = self._segments
        try:
            listed = segments.all
            # What is beyond the visible end is about to be cut off, or cannot be read yet.
            end = min(listed[-1].next_offset if listed else 0, segments.visible_offset)
            if (self._reached, self._epoch) == (end, segments.epochs.current) and self.state.open:
                self.state.trim(segments.lowest_offset)
                return self.state
            if self._reached < 0 or self._is_outdated(end):
                self._begin(end)
            elif listed[-1].base_offset > self._reached:
                self._skip_ahead(end)
            self.state.trim(segments.lowest_offset)  # first: what follows is not part of what is gone
            self._go_on(listed, end)
            if not self.state.open:
                segments.settle(end)
            return self.state
        except (CorruptBatch, StorageError):
            self._reached = -1  # a part of it may have been noted
            raise

    def _is_outdated(self, end: int) -> bool:
        """Whether the log was truncated below what the state describes."""
        known = self._segments.epochs.end_of(self._epoch, end) if self._segments.epochs_known else end
        return known < self._reached

    def _begin(self, end: int) -> None:
        """With the file `producers`, else at the log's start. A file of an earlier version does not know transactions:
        then there are none open where it ends, unless batches of one are met."""
        found = self._file(end)
        if found is None:
            self._from_the_start()
        else:
            self._load(found)

    def _load(self, found: ProducersFile) -> None:
        """Continue where the file ends; what it says about a segment that is sealed by now, that says itself."""
        state = Transactions(found.segment if found.knows_transactions else found.offset)
        state.load(found.open, found.aborted, found.offset - 1)
        self.state, self._reached = state, found.offset

    def _from_the_start(self) -> None:
        start = self._segments.all[0].base_offset if self._segments.all else 0
        self.state, self._reached = Transactions(start), start

    def _file(self, end: int) -> ProducersFile | None:
        try:
            found = ProducersFile.decode(self._segments.directory.read(PRODUCERS))
        except (CorruptFile, StorageError):
            return None
        if self._segments.epochs_known and found.leader_epoch >= 0:
            end = self._segments.epochs.end_of(found.leader_epoch, end)
        # A segment that has lost its indexes is like an active one here.
        sealed = all(segment.sealed for segment in self._segments.all if segment.base_offset < found.segment)
        return found if found.offset <= end and sealed else None

    def _skip_ahead(self, end: int) -> None:
        """Segments have been sealed meanwhile: what the writer has stored then saves reading them."""
        found = self._file(end)
        if found is not None and found.knows_transactions and found.offset > self._reached:
            self._load(found)

    def _go_on(self, listed: Sequence[Segment], end: int) -> None:
        sealed = True
        for segment in listed:
            if sealed and self.state.since < segment.base_offset <= self._reached:
                self.state.begin_segment(segment.base_offset)
            sealed = sealed and segment.sealed
            start = max(self._reached, segment.base_offset)
            stop = min(segment.next_offset, end)
            # An active segment was read batch by batch, and has noted if there was a transaction.
            if start < stop and (segment.sealed or segment.met_until > start):
                note_segment(segment, start, stop, self.state)
            self._reached = max(self._reached, stop)
        self._epoch = self._segments.epochs.current

    def _rebuild(self) -> None:
        with self._lock:
            self._segments.steadily(self._rebuild_sealed)

    def _rebuild_sealed(self) -> None:
        self._segments.unsettle()  # there may be an open one after all
        segments = list(takewhile(lambda segment: segment.sealed, self._segments.all))
        self.state = self._replay(segments)
        if segments:
            self._reached, self._epoch = segments[-1].next_offset, self._segments.epochs.current
            self.state.begin_segment(self._reached)
