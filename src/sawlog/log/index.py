"""The sparse indexes of a segment, and the lookup of single records by offset and by time.

`SegmentIndex` maps offsets to positions and times to offsets. Its files have Kafka's bytes, big endian:

```
.index      entries of 8 bytes:  [last offset of a batch - segment base u32][position of that batch u32]
.timeindex  entries of 12 bytes: [largest timestamp so far i64][last offset of the batch that has it - base u32]
```

Batches that end 2**31 or more offsets after the segment's first do not fit into an entry and are left out. Only batches
without records, which represent a gap, extend that far. Entries increase strictly. Both indexes are caches: built while
the segment grows, written when it is sealed or the log closes, and rebuilt from the batches whenever a file is missing,
short, padded, out of order or contradicts the log.

`Lookup` finds records in the open file of a segment. `kernel.FastReader` reads by offset in the common case;
`Lookup.read` is for everything else. Neighbouring records are often read in sequence. So a segment remembers which
batches had the right CRC, where every 32nd record of a batch begins (*landmarks*), and the batch that it decompressed
last.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..batch import kernel
from ..batch.checksum import crc32c
from ..batch.compression import decompress
from ..batch.header import (
    ATTRIBUTES,
    BASE,
    BASE_TIME,
    BODY,
    BODY_END,
    COMPRESSION_MASK,
    CONTROL_BIT,
    COUNT,
    HEADER_BYTES,
    LAST,
    MAX_TIME,
    POSITION,
    PRODUCER_ID,
    SIZE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Rows,
)
from ..batch.kernel import Record
from ..batch.read import MALFORMED, records
from ..errors import CorruptBatch
from ..storage import Storage
from .batches import BAD_CRC, CHUNK_BYTES, MAX_SPAN, Batches, Chunk, corrupt, names_batch, unreadable

if TYPE_CHECKING:
    from .transactions import TransactionView

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12


class SegmentIndex(kernel.SparseIndex):
    """Both indexes of one segment, extended batch by batch (`add`, `add_rows`). One thread adds, any number look up
    (`bounds`). The operations of the hot paths are in the kernel."""

    __slots__ = ()
    offsets: array[int]
    positions: array[int]
    times: array[int]
    time_offsets: array[int]
    first_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    base_offset: int
    interval_bytes: int
    since_bytes: int

    # --- growing

    def add_rows(self, rows: Rows, origin: int) -> None:
        """Add many batches; `origin` is added to their positions."""
        if len(rows) and rows[-1, LAST] - self.base_offset > MAX_SPAN:
            rows = rows[rows[:, LAST] - self.base_offset <= MAX_SPAN]
        if not len(rows):
            return
        chosen = np.empty(len(rows), np.int64)
        count, self.since_bytes = kernel.select_entries(
            memoryview(rows), len(rows), self.interval_bytes, self.since_bytes, memoryview(chosen)
        )
        times = rows[:, MAX_TIME]
        if self.first_timestamp < 0:
            self.first_timestamp = int(times[0])
        # The largest timestamp before each batch, and the batch that has it: -1 if it precedes these rows.
        largest = np.maximum.accumulate(np.concatenate(([self.max_timestamp], times)))
        having = np.maximum.accumulate(np.where(times > largest[:-1], np.arange(len(rows)), -1))
        if count:
            self._enter_rows(rows, origin, chosen[:count], largest, having)
        if having[-1] >= 0:
            self.max_timestamp, self.max_timestamp_offset = int(largest[-1]), int(rows[having[-1], LAST])

    def _enter_rows(self, rows: Rows, origin: int, chosen: Rows, largest: Rows, having: Rows) -> None:
        """Add entries in the opposite order in which readers access the arrays: see `kernel.SparseIndex`."""
        del self.positions[len(self.offsets) :]
        self.positions.frombytes((rows[chosen, POSITION] + origin).astype(np.uint32).tobytes())
        self.offsets.frombytes((rows[chosen, LAST] - self.base_offset).astype(np.uint32).tobytes())
        times = largest[chosen]
        latest = np.concatenate(([self.times[-1] if self.times else -1], times[:-1]))
        new = times > latest
        before = having[chosen[new] - 1]  # the first row is chosen only if the file has batches before it
        before[chosen[new] == 0] = -1
        offsets = np.where(before >= 0, rows[before, LAST], self.max_timestamp_offset) - self.base_offset
        del self.time_offsets[len(self.times) :]
        self.time_offsets.frombytes(offsets.astype(np.uint32).tobytes())
        self.times.frombytes(times[new].astype(np.int64).tobytes())

    def note_first(self, timestamp: int) -> None:
        """Set the timestamp of the first batch, which the index files do not contain."""
        self.first_timestamp = timestamp

    @property
    def size_bytes(self) -> int:
        """Size of the larger of the two files, including the time entry that sealing adds."""
        offsets, times = len(self.offsets) * OFFSET_ENTRY_BYTES, (len(self.times) + 1) * TIME_ENTRY_BYTES
        return offsets if offsets > times else times  # noqa: FURB136 - at every append, and max() is a call

    # --- files

    def encode(self) -> tuple[bytes, bytes]:
        """Return the bytes of the two files. The time index ends with the segment's largest timestamp."""
        self.enter_time()
        entries = np.empty((len(self.offsets), 2), ">u4")
        entries[:, 0], entries[:, 1] = self.offsets, self.positions[: len(self.offsets)]
        times = np.empty(len(self.times), np.dtype([("time", ">i8"), ("offset", ">u4")]))
        times["time"], times["offset"] = self.times, self.time_offsets[: len(self.times)]
        return entries.tobytes(), times.tobytes()

    @classmethod
    def decode(
        cls, base_offset: int, interval_bytes: int, index: bytes, times: bytes, *, span: int, size_bytes: int
    ) -> SegmentIndex | None:
        """Decode the two files; None unless they are plausible for a segment of `span` offsets and `size_bytes` bytes.

        Lookups verify individual entries when they use them.
        """
        if len(index) % OFFSET_ENTRY_BYTES or len(times) % TIME_ENTRY_BYTES:
            return None
        entries = np.frombuffer(index, ">u4").reshape(-1, 2)
        stamps = np.frombuffer(times, np.dtype([("time", ">i8"), ("offset", ">u4")]))
        for numbers, below in (
            (entries[:, 0], span),
            (entries[:, 1], size_bytes),
            (stamps["time"], 2**63 - 1),
        ):
            wide = numbers.astype(np.int64)
            if len(wide) and (wide[-1] >= below or (np.diff(wide) <= 0).any()):
                return None
        if len(stamps) and (int(stamps["offset"].max()) >= span or int(stamps["time"][0]) < 0):
            return None
        made = cls(base_offset, interval_bytes)
        made.offsets = _native("I", entries[:, 0])
        made.positions = _native("I", entries[:, 1])
        made.times = _native("q", stamps["time"])
        made.time_offsets = _native("I", stamps["offset"])
        if len(stamps):
            made.max_timestamp = int(stamps["time"][-1])
            made.max_timestamp_offset = base_offset + int(stamps["offset"][-1])
        return made


def _native(code: str, numbers: np.ndarray) -> array[int]:
    made: array[int] = array(code)
    kind = np.dtype(f"{'<' if sys.byteorder == 'little' else '>'}{'u4' if code == 'I' else 'i8'}")
    made.frombytes(np.ascontiguousarray(numbers, kind).tobytes())
    return made


# --- lookup

#: Like `CHUNK_BYTES`, for a search by time, which the index starts close to the result.
_TIME_CHUNK_BYTES = 1 << 16
#: Checksum results are stored per cell of the file. No two batches of at least this size start in the same cell.
_CELL_BYTES = 1 << kernel.CELL_SHIFT
#: One landmark per this many records, for at most this many batches of a segment.
_LANDMARK_STEP = 32
_LANDMARK_BATCHES = 1024

_HEADER = struct.Struct(">qiibIhiqqqhii")
#: Indexes of some of its fields.
_BASE, _LENGTH, _CRC, _ATTRIBUTES, _LAST_DELTA, _LARGEST_TIME, _PRODUCER = 0, 1, 4, 5, 6, 8, 9


class Lookup(kernel.LookupFields):
    """Finds records in the open file of a segment. Callers pass the segment to each method: without a reference cycle,
    an unused segment closes at once."""

    __slots__ = ("_unpacked", "views_are_free")
    storage: Storage
    index: SegmentIndex
    #: Bitmaps of verified CRCs, one bit per cell: of the large batch in it, and of all small batches in it.
    _large: bytearray
    _small: bytearray
    #: 1 + where the first batch of a cell starts in it; 0 if unknown; combined with PLAIN_CELL.
    _firsts: array[int]
    #: The positions of every `_step`-th record of a batch, by the position of the batch.
    _landmarks: dict[int, array[int]]
    _step: int

    def __init__(self, storage: Storage, index: SegmentIndex) -> None:
        self.storage = storage
        self.index = index
        self.views_are_free = bool(getattr(storage, "views_are_free", False))
        self._large = bytearray()
        self._small = bytearray()
        self._firsts = array("H")
        self._unpacked: tuple[int, memoryview] | None = None
        self._landmarks = {}
        self._step = _LANDMARK_STEP

    def _chunks(self, segment: Batches, offset: int, end: int, **how: Any) -> Iterator[Chunk]:
        return segment.chunks_in(self.storage, self.index, offset, end, **how)

    def read(
        self,
        segment: Batches,
        offset: int,
        max_bytes: int,
        transactions: TransactionView | None = None,
        view: memoryview | None = None,
    ) -> Record | None:
        """Return the record at `offset`, or the first one after it; None if the segment has none. `view` has the bytes
        to which the index leads, if they were read."""
        start, stop, wanted = self.index.bounds(offset, segment.tail[1])
        size, free = segment.size, segment.sealed and self.views_are_free
        if free:
            stop, view = size, None
        if wanted >= 0 and not names_batch(self.storage, start, wanted):
            start, stop, view = 0, size if free else min(size, CHUNK_BYTES), None
        least = -1 if start else segment.base_offset
        while True:
            if view is None:
                view = self.storage.view(start, stop - start)
            at = kernel.find_batch(view, 0, len(view), offset, least, segment.dense)
            if at >= 0:
                break
            if stop >= size:  # the batch is after damage, or is damaged itself
                return self._first_from(segment, offset, max_bytes)
            stop, view = min(size, start + 2 * max(stop - start, CHUNK_BYTES)), None
        header = _HEADER.unpack_from(view, at)
        batch = view[at : at + 12 + header[_LENGTH]]
        try:
            self._check_crc(segment, start + at, batch, header)
        except CorruptBatch as damage:
            # Its header may claim a wrong end: the requested record may follow it.
            if damage.next_offset is None or damage.next_offset > offset or damage.next_offset <= header[_BASE]:
                raise
            return self._read_behind(segment, start + at, offset, max_bytes)
        found = None
        if not _is_hidden(header, transactions):
            found = self._record_in(segment, start + at, batch, header, offset, max_bytes)
        if found is None and start + at + len(batch) < segment.size:
            return self._first_from(segment, header[_BASE] + header[_LAST_DELTA] + 1, max_bytes)
        return found

    def grow_memory(self, size: int) -> None:
        """Grow the bitmaps for a file of that size. Replaces them: other threads may be using the old ones."""
        needed = (size >> (kernel.CELL_SHIFT + 3)) + 1
        self._large = self._large + bytes(max(needed - len(self._large), 0))
        self._small = self._small + bytes(max(needed - len(self._small), 0))
        self._firsts = self._firsts + array("H", bytes(2 * max(8 * needed - len(self._firsts), 0)))

    def _first_from(self, segment: Batches, offset: int, max_bytes: int) -> Record | None:
        """Return the first record from `offset`, batch by batch, past any that compaction emptied."""
        for chunk in self._chunks(segment, offset, segment.next_offset):
            for number in np.flatnonzero(chunk.rows[:, COUNT]).tolist():
                found: list[Record] = []
                row = chunk.rows[number : number + 1]
                if records(chunk.view, row, offset, 2**63 - 1, found, max_bytes) >= 0:
                    raise unreadable(segment, chunk.origin + int(row[0, POSITION]), int(row[0, LAST]), MALFORMED)
                if found:
                    return found[0]
        return None

    def _read_behind(self, segment: Batches, position: int, offset: int, max_bytes: int) -> Record | None:
        """Like `read`, batch by batch, starting after the damaged batch at `position`."""
        for chunk in self._chunks(segment, offset, offset + 1, behind=position):
            found: list[Record] = []
            bad = records(chunk.view, chunk.rows[:1], offset, 2**63 - 1, found, max_bytes)
            if bad >= 0:
                raise unreadable(
                    segment, chunk.origin + int(chunk.rows[0, POSITION]), int(chunk.rows[0, LAST]), MALFORMED
                )
            return found[0] if found else None
        return None

    def _check_crc(self, segment: Batches, position: int, batch: memoryview, header: tuple[int, ...]) -> None:
        """Raise `CorruptBatch` unless the CRC of the batch is right. Results for large batches are remembered."""
        size = len(batch)
        if size >= _CELL_BYTES:
            cell, bits = position >> kernel.CELL_SHIFT, self._large
            if cell >> 3 < len(bits) and bits[cell >> 3] & (1 << (cell & 7)):
                return
        if crc32c(batch[21:]) != header[_CRC]:
            raise corrupt(segment, self.storage, position, segment.size, header[_BASE], BAD_CRC)
        if size >= _CELL_BYTES:
            if cell >> 3 >= len(self._large):
                self.grow_memory(2 * segment.size)  # the segment may be growing
            self._large[cell >> 3] |= 1 << (cell & 7)

    def _record_in(
        self, segment: Batches, position: int, batch: memoryview, header: tuple[int, ...], offset: int, max_bytes: int
    ) -> Record | None:
        base, _, _, _, _, attributes, last_delta, base_time, max_time, _, _, _, count = header
        body, start, end = batch, HEADER_BYTES, len(batch)
        if attributes & COMPRESSION_MASK:
            body = self._decompressed(segment, position, batch, attributes, max_bytes)
            start, end = 0, len(body)
        skipped = 0
        if offset - base > 2 * self._step and last_delta == count - 1:
            marks = self._landmarks.get(position) or self._build_landmarks(
                segment, position, body, start, end, count, base
            )
            skipped = (offset - base) // self._step * self._step
            start = marks[skipped // self._step]
        found = kernel.record_at(
            body, start, end, count, base, base + last_delta, attributes, base_time, max_time, offset, skipped
        )
        if found is False:
            raise unreadable(segment, position, base + last_delta, MALFORMED)
        return found  # type: ignore[no-any-return]

    def _build_landmarks(
        self, segment: Batches, position: int, body: memoryview, start: int, end: int, count: int, base: int
    ) -> array[int]:
        """Record the position of every `_step`-th record of a batch, which speeds up later reads of it."""
        marks = array("i", bytes(4 * (count // self._step + 1)))
        if not kernel.landmarks(body, start, end, count, self._step, memoryview(marks)):
            raise unreadable(segment, position, base + count - 1, MALFORMED)
        if len(self._landmarks) >= _LANDMARK_BATCHES:
            self._landmarks.clear()
        self._landmarks[position] = marks
        return marks

    def _decompressed(
        self, segment: Batches, position: int, batch: memoryview, attributes: int, max_bytes: int
    ) -> memoryview:
        """Return the records of a compressed batch. Caches the last batch: neighbours are often read next."""
        kept = self._unpacked
        if kept is not None and kept[0] == position:
            return kept[1]
        try:
            body = decompress(attributes & COMPRESSION_MASK, batch[HEADER_BYTES:], max_bytes=max_bytes)
        except CorruptBatch as error:
            header = _HEADER.unpack_from(batch)
            raise unreadable(
                segment, position, header[_BASE] + header[_LAST_DELTA], error.reason, type(error)
            ) from None
        if len(body) <= 4 * CHUNK_BYTES:
            self._unpacked = position, body
        return body

    def first_at(
        self, segment: Batches, timestamp: int, start: int, max_bytes: int, transactions: TransactionView | None = None
    ) -> int | None:
        """Return the first offset from `start` whose record is not older than `timestamp`; None if there is none.
        `transactions` tells which batches were aborted."""
        offset = max(start, self._entry_before(segment, timestamp))
        for chunk in self._chunks(segment, offset, segment.next_offset, chunk_bytes=_TIME_CHUNK_BYTES):
            recent = (chunk.rows[:, MAX_TIME] >= timestamp) & (chunk.rows[:, ATTRIBUTES] & CONTROL_BIT == 0)
            for row in chunk.rows[recent]:  # markers are no records
                is_part = row[ATTRIBUTES] & TRANSACTIONAL_BIT and row[PRODUCER_ID] >= 0
                if (
                    is_part
                    and transactions is not None
                    and transactions.is_aborted(int(row[PRODUCER_ID]), int(row[BASE]))
                ):
                    continue
                stamped = bool(row[ATTRIBUTES] & TIMESTAMP_TYPE_BIT)
                if stamped and row[COUNT] == row[LAST] - row[BASE] + 1:
                    if row[LAST] >= start:
                        return max(int(row[BASE]), start)
                    continue
                batch = chunk.view[row[POSITION] : row[POSITION] + row[SIZE]]
                position = chunk.origin + int(row[POSITION])
                body, first, end = chunk.view, int(row[BODY]), int(row[BODY_END])
                if row[ATTRIBUTES] & COMPRESSION_MASK:
                    body = self._decompressed(segment, position, batch, int(row[ATTRIBUTES]), max_bytes)
                    first, end = 0, len(body)
                least = -(2**63) if stamped else timestamp  # all records of a stamped batch have its timestamp
                found: int = kernel.record_after(
                    body, first, end, int(row[COUNT]), int(row[BASE]), int(row[BASE_TIME]), start, least
                )
                if found == -2:
                    raise unreadable(segment, position, int(row[LAST]), MALFORMED)
                if found >= 0:
                    return found
        return None

    def _entry_before(self, segment: Batches, timestamp: int) -> int:
        """Return an offset below which every record is older than `timestamp`. The batch confirms the index entry."""
        at = bisect_left(self.index.times, timestamp) - 1
        if at < 0:
            return segment.base_offset
        last_offset = segment.base_offset + self.index.time_offsets[at]
        found = self.batch_ending_at(segment, last_offset, self.index.times[at])
        return segment.base_offset if found < 0 else last_offset + 1

    def has_hole_at(self, segment: Batches, offset: int) -> bool:
        """Return True if the batch that covers `offset` has fewer records than offsets, by its header."""
        for chunk in self._chunks(segment, offset, offset + 1):
            row = chunk.rows[0]
            return bool(row[BASE] <= offset and row[COUNT] < row[LAST] - row[BASE] + 1)
        return False

    def batch_ending_at(self, segment: Batches, last_offset: int, max_timestamp: int) -> int:
        """Return the position of the batch with that last offset and largest timestamp; -1 if there is none."""
        start, stop, wanted = self.index.bounds(last_offset, segment.size)
        if start >= stop or (wanted >= 0 and not names_batch(self.storage, start, wanted)):
            return -1
        view = self.storage.view(start, stop - start)
        at: int = kernel.find_batch(
            view, 0, len(view), last_offset, -1 if start else segment.base_offset, segment.dense
        )
        if at < 0:
            return -1
        header = _HEADER.unpack_from(view, at)
        ends = header[_BASE] + header[_LAST_DELTA], header[_LARGEST_TIME]
        return start + at if ends == (last_offset, max_timestamp) else -1


def _is_hidden(header: tuple[int, ...], transactions: TransactionView | None) -> bool:
    """Return True for a control batch, and for a batch of an aborted transaction."""
    attributes, producer_id = header[_ATTRIBUTES], header[_PRODUCER]
    if attributes & CONTROL_BIT:
        return True
    is_part = attributes & TRANSACTIONAL_BIT and producer_id >= 0
    return bool(is_part and transactions is not None and transactions.is_aborted(producer_id, header[_BASE]))
