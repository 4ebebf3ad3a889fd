"""Transactions of a partition: open ones, aborted ones, and the last stable offset.

A batch with the transactional bit and a producer id belongs to that producer's transaction, which is *open* until a
*marker*: a control batch of the same producer that commits or aborts it. Other producers' batches may be in between.

    offset   0  1  2  3  4  5  6          P and Q are producers, . a batch without a transaction
    batch    .  P  Q  P  .  P! Q          P! is a marker: P's transaction (1 to 5) has ended, Q's is open
                   ^ last stable offset   the first offset of the earliest open transaction, else the visible end

Below the *last stable offset* every transaction is decided. A marker takes effect for readers when it is visible; until
then its transaction counts as open, because a power cut may still lose the marker. A transaction whose records are all
trimmed no longer exists, and the next batch of its producer begins another one: a replay of the remaining batches must
arrive at the same state.

The batches contain all of this. `Transactions` is the state at the end of a log, updated batch by batch; the aborted
transactions of sealed segments are in their `.txnindex` (`TransactionIndex`). `TransactionView` combines both for
readers, and rebuilds a missing index from the headers of all batches. Readers do not consult it while no transaction
can be open (`SegmentSet.maybe_undecided`). `FollowedTransactionView` (followed_segments.py) belongs to a reader in
another process.

A `.txnindex` has Kafka's layout, big endian:

```
entries of 34 bytes:  [version i16 = 0][producer id i64][first offset i64][last offset i64][last stable offset i64]
```

There is one entry per transaction that a marker in the segment aborted, in marker order. Its first offset may be in an
earlier segment, its last offset is that of the marker, and the last stable offset is the first offset of the earliest
transaction that was still open then (or the offset after the marker). The file ends with an entry of producer -1, which
proves that the file is complete and belongs to this segment:

```
[0][-1][size of the segment in bytes << 32 | CRC-32C of the entries and the rest][last offset of the segment]
[the first offset of the earliest transaction that is open at the end of the segment, or the offset after it]
```

A segment has this file if it contains a transactional batch, or if a transaction is open at its end. It is a cache: a
file that is missing, short, padded, or that belongs to another segment is rebuilt from the batches.

A marker is the control batch that Kafka's coordinators write:

```
attributes    transactional and control
producer      id and epoch of the transaction; the sequence is -1
one record    key [version i16 = 0][type i16: 0 abort, 1 commit], value [version i16 = 0][coordinator epoch i32]
```

Threads: one updates the state, under the log's lock; any number read it. Shared values are replaced as a whole, or only
grow.
"""

from __future__ import annotations

import struct
import threading
import weakref
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..batch import kernel
from ..batch.checksum import crc32c
from ..batch.header import (
    ABORT_MARKER,
    ATTRIBUTES,
    BASE,
    COMMIT_MARKER,
    CONTROL_BIT,
    HEADER_BYTES,
    LAST,
    MARKER,
    MARKER_MASK,
    MAX_TIME,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL_BIT,
    Rows,
)
from ..errors import InvalidRecord
from ..storage.forking import forkable

if TYPE_CHECKING:
    from .segment import Segment
    from .segments import SegmentSet

#: Value of `first_open` if no transaction is open.
NONE_OPEN = 2**63 - 1
#: A visible end above every offset.
ALL_VISIBLE = 2**63 - 1


#: An entry of a `.txnindex`.
ENTRY = struct.Struct(">hqqqq")
_ENDS = struct.Struct(">qq")
_NO_PRODUCER = -1


class AbortedTransaction(NamedTuple):
    """An aborted transaction, within one partition."""

    producer_id: int
    #: Offset of its first record.
    first_offset: int
    #: Offset of its marker.
    last_offset: int
    #: The last stable offset after the abort.
    last_stable_offset: int

    def encode(self) -> bytes:
        """Encode the entry of the file."""
        return ENTRY.pack(0, *self)


@dataclass(frozen=True, slots=True)
class TransactionIndex:
    """The transaction index of a segment."""

    #: In marker order.
    aborted: tuple[AbortedTransaction, ...]
    #: The last stable offset at the end of the segment.
    stable_end: int

    def encode(self, next_offset: int, size_bytes: int) -> bytes:
        """Encode the file for a segment with this end and size."""
        entries = encode_kafka_index(self.aborted)
        end = next_offset - 1, self.stable_end
        return entries + ENTRY.pack(0, _NO_PRODUCER, _trailer_checksum(entries, size_bytes, *end), *end)

    @classmethod
    def decode(cls, data: bytes, base_offset: int, next_offset: int, size_bytes: int) -> TransactionIndex | None:
        """Decode the file; None unless it certainly belongs to this segment."""
        if not data or len(data) % ENTRY.size:
            return None
        entries, last = data[: -ENTRY.size], ENTRY.unpack(data[-ENTRY.size :])
        stable_end = last[4]
        if last[:4] != (0, _NO_PRODUCER, _trailer_checksum(entries, size_bytes, *last[3:]), next_offset - 1):
            return None
        found = tuple(_entries(entries))
        if any(not base_offset <= each.last_offset < next_offset for each in found):
            return None
        return cls(found, stable_end)


def _trailer_checksum(entries: bytes, size_bytes: int, last_offset: int, stable_end: int) -> int:
    return size_bytes << 32 | crc32c(entries + _ENDS.pack(last_offset, stable_end))


def _entries(data: bytes) -> Iterator[AbortedTransaction]:
    for _, *fields in ENTRY.iter_unpack(data):
        yield AbortedTransaction(*fields)


def encode_kafka_index(aborted: Iterable[AbortedTransaction]) -> bytes:
    """Encode the file as Kafka does, without the last entry."""
    return b"".join(each.encode() for each in aborted)


class OpenTransaction(NamedTuple):
    """A transaction without a marker so far."""

    producer_id: int
    epoch: int
    #: Offsets of its first record, and of its last one so far.
    first_offset: int
    last_offset: int
    #: Timestamp of its first batch, ms since 1970.
    started_ms: int


class Transactions:
    """The state of a log's transactions at some offset."""

    def __init__(self, since: int = 0, visible: int = ALL_VISIBLE, lowest: int = 0) -> None:
        self.open: dict[int, OpenTransaction] = {}
        #: The start of the active segment, and the aborted transactions whose markers are in it, in marker order. The
        #: indexes of sealed segments have the others.
        self.recent: tuple[int, list[AbortedTransaction]] = since, []
        #: First offset of the earliest open transaction.
        self.first_open = NONE_OPEN
        #: Last offset of the last transactional batch; -1 if there was none.
        self.reached = -1
        #: (first offset, offset of the marker) of ended transactions whose markers may not be visible yet.
        self._ended: list[tuple[int, int]] = []
        #: The visible end, as last reported by `see`.
        self._visible = visible
        #: The log start. Batches that end below it are ignored.
        self._lowest = lowest

    @property
    def since(self) -> int:
        """First offset of the active segment."""
        return self.recent[0]

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """The transactions that markers in the active segment aborted."""
        return self.recent[1]

    def stable(self, visible: int) -> int:
        """Return the last stable offset of a log that is visible up to `visible`, which must have been read before."""
        first = self.first_open  # read before `_ended`: a transaction that is just ending is in both
        for begun, marker in self._ended:
            if marker >= visible and begun < first:
                first = begun
        return min(first, visible)

    def see(self, visible: int) -> None:
        """Advance the visible end."""
        self._visible = visible
        if self._ended:
            self._ended = [each for each in self._ended if each[1] >= visible]

    def note(self, row: list[int]) -> None:
        """Apply the next transactional batch or marker, given as a row."""
        producer = row[PRODUCER_ID]
        self.reached = row[LAST]  # first: `reaches` must hold if an interrupt comes below
        if row[ATTRIBUTES] & CONTROL_BIT:
            if row[MARKER] & MARKER_MASK in (ABORT_MARKER, COMMIT_MARKER):
                self._end(producer, row[LAST], aborted=row[MARKER] & MARKER_MASK == ABORT_MARKER)
        elif row[LAST] >= self._lowest:
            self._continue(producer, row)

    def _continue(self, producer: int, row: list[int]) -> None:
        begun = self.open.get(producer)
        if begun is not None:
            self.open[producer] = begun._replace(epoch=row[PRODUCER_EPOCH], last_offset=row[LAST])
        else:
            self.open[producer] = OpenTransaction(producer, row[PRODUCER_EPOCH], row[BASE], row[LAST], row[MAX_TIME])
            self.first_open = min(self.first_open, row[BASE])

    def _end(self, producer: int, marker: int, *, aborted: bool) -> None:
        begun = self.open.get(producer)
        if begun is None:
            return  # the transaction has no record here
        # `open` is in the order in which transactions began.
        earliest = self._earliest(but=begun)
        if aborted:
            self.aborted.append(AbortedTransaction(producer, begun.first_offset, marker, min(earliest, marker + 1)))
        if marker >= self._visible:
            self._ended.append((begun.first_offset, marker))
        del self.open[producer]
        self.first_open = earliest

    def _earliest(self, but: OpenTransaction | None = None) -> int:
        return next((each.first_offset for each in self.open.values() if each is not but), NONE_OPEN)

    def trim(self, lowest: int) -> None:
        """Move the log start. Forgets transactions without remaining records."""
        self._lowest = lowest
        gone = [each.producer_id for each in self.open.values() if each.last_offset < lowest]
        for producer in gone:
            del self.open[producer]
        if gone:
            self.first_open = self._earliest()

    def note_rows(self, rows: Rows) -> None:
        """Apply the transactional batches and markers among these."""
        for row in transactional_rows(rows).tolist():
            self.note(row)

    def load(
        self, opened: Iterable[OpenTransaction], aborted: Iterable[AbortedTransaction], reached: int
    ) -> None:  # before anything is noted
        """Restore a saved state."""
        left = (each for each in opened if each.last_offset >= self._lowest)
        self.open = {each.producer_id: each for each in sorted(left, key=attrgetter("first_offset"))}
        self.recent = self.since, list(aborted)
        self.first_open = self._earliest()
        self.reached = reached if self.open or self.aborted else -1

    # --- segments

    def index_for(self, next_offset: int) -> TransactionIndex | None:
        """Return the index of the active segment, which ends at `next_offset`; None if it has no transactions."""
        if self.reached < self.since and not self.open:
            return None
        return TransactionIndex(tuple(self.aborted), min(self.first_open, next_offset))

    def begin_segment(self, base_offset: int) -> None:
        """Start a new active segment. The index of the one before it has been created."""
        self.recent = base_offset, [each for each in self.aborted if each.last_offset >= base_offset]


def overlapping(aborted: Sequence[AbortedTransaction], first: int, last: int) -> Iterator[AbortedTransaction]:
    """Yield the transactions that may have batches from offset `first` to `last`. `aborted` is in marker order."""
    for at in range(bisect_left(aborted, first, key=attrgetter("last_offset")), len(aborted)):
        found = aborted[at]
        if found.first_offset <= last:
            yield found
        if found.last_stable_offset > last:
            return


def aborted_rows(rows: Rows, aborted: Callable[[int, int], Iterable[AbortedTransaction]]) -> npt.NDArray[np.bool_]:
    """Return a mask of the batches that belong to aborted transactions. `aborted` returns the transactions with batches
    between two offsets."""
    gone = np.zeros(len(rows), bool)
    is_part = (rows[:, ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT
    at = np.flatnonzero(is_part & (rows[:, PRODUCER_ID] >= 0))
    if not len(at):
        return gone
    found: defaultdict[int, list[AbortedTransaction]] = defaultdict(list)
    for each in aborted(int(rows[at[0], BASE]), int(rows[at[-1], LAST])):
        found[each.producer_id].append(each)
    for number, producer, base in zip(
        at.tolist(), rows[at, PRODUCER_ID].tolist(), rows[at, BASE].tolist(), strict=True
    ):
        of_this = found.get(producer, ())
        gone[number] = any(each.first_offset <= base <= each.last_offset for each in of_this)
    return gone


def transactional_rows(rows: Rows) -> Rows:
    """Return the transactional batches and markers, all of which have a producer id."""
    found: Rows = rows[((rows[:, ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT)) != 0) & (rows[:, PRODUCER_ID] >= 0)]
    return found


def replay_segment(segment: Segment, start: int, end: int, state: Transactions) -> None:
    """Apply the transactional batches of a segment from `start` to `end` to `state`. Skips damage, which reads
    report."""
    loaded = segment.is_loaded
    # A damaged header would begin or end a transaction.
    for rows in segment.selected_rows(start, end, transactional_rows):
        for row in rows[rows[:, BASE] < end].tolist():
            state.note(row)
    if not loaded:
        segment.unload()


# --- the view of readers


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


# --- markers

_ABORT, _COMMIT = 0, 1
#: The record after its length: attributes, deltas of time and offset, key length 4, key, value length 6, value, no
#: headers. All varints are zig-zag and of one byte.
_RECORD = struct.Struct(">bbbbbhhbhib")


def marker(producer_id: int, epoch: int, coordinator_epoch: int, timestamp: int, *, commit: bool) -> bytearray:
    """Return the control batch, without offsets and leader epoch."""
    for name, value, most in (
        ("producer id", producer_id, 2**63 - 1),
        ("producer epoch", epoch, 2**15 - 1),
        ("coordinator epoch", coordinator_epoch, 2**31 - 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise InvalidRecord(f"a marker's {name} must be an integer from 0 to {most}, not {value!r}")
    body = _RECORD.pack(
        2 * (_RECORD.size - 1), 0, 0, 0, 2 * 4, 0, _COMMIT if commit else _ABORT, 2 * 6, 0, coordinator_epoch, 0
    )
    made = bytearray(HEADER_BYTES + len(body))
    made[HEADER_BYTES:] = body
    view = memoryview(made)
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    kernel.write_header(view, 0, 0, len(made), 0, attributes, 0, timestamp, timestamp, producer_id, epoch, -1, 1)
    kernel.patch_crc(view, 0, crc32c(view[21:]))
    return made
