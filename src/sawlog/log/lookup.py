"""Lookup of single records in a segment, by offset and by time.

`kernel.FastReader` reads by offset in the common case; `Lookup.read` is for everything else.
Neighbouring records are often read in sequence. So a segment remembers which batches had the right CRC, where every
32nd record of a batch begins (*landmarks*), and the batch that it decompressed last.
"""

from __future__ import annotations

import struct
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
)
from ..batch.kernel import Record
from ..batch.read import MALFORMED, records
from ..errors import CorruptBatch
from ..storage import Storage
from .batches import BAD_CRC, CHUNK_BYTES, Batches, Chunk, corrupt, names_batch, unreadable
from .index import SegmentIndex

if TYPE_CHECKING:
    from .transaction_view import TransactionView

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
