"""One segment: a file of contiguous batches, and its indexes.

A segment is *active* (the last one, growing) or *sealed* (immutable, mapped on demand). `size` and `next_offset` are
what has been committed to it: bytes after `size` concern only the writer. Reading checks every batch: header, bounds,
CRC, records, and that its offsets follow those before it. A batch larger than 4 KiB is remembered once its CRC was
right, so that reading single records from large batches does not compute it again and again.

Threads: one writer under the log's lock; any number of readers without one. `tail` is set last.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ...batch import kernel
from ...batch.checksum import PartialSums, crc32c
from ...batch.compression import decompress
from ...batch.header import (
    ATTRIBUTES,
    BASE,
    BASE_TIME,
    BODY,
    BODY_END,
    COMPRESSION_MASK,
    COUNT,
    HEADER_BYTES,
    LAST,
    MAX_TIME,
    POSITION,
    SIZE,
    TIMESTAMP_TYPE_BIT,
    Rows,
    new_rows,
)
from ...batch.kernel import Record
from ...batch.read import MALFORMED, first_bad_crc, records
from ...errors import CorruptBatch, StorageError, SyncFailed
from ...storage import Directory, Storage
from ..files.names import INDEX, LOG, TIME_INDEX, file_name
from .index import MAX_SPAN, SegmentIndex

#: How many bytes one step of a scan covers: large enough to amortise a call, small enough for the caches.
CHUNK_BYTES = 1 << 21
#: The same for a search by time, which the index has brought close to the result.
_TIME_CHUNK_BYTES = 1 << 16
#: Maximum number of headers in one step.
CHUNK_ROWS = 1024
#: Batches of at least this size are remembered when their CRC was right: no two of them start in the same 4 KiB.
_REMEMBER_SHIFT = 12
_REMEMBER_BYTES = 1 << _REMEMBER_SHIFT

#: For reading single records: one position per this many records is remembered, for this many batches of a segment.
_LANDMARK_STEP = 32
_LANDMARK_BATCHES = 1024

_NO_BATCH = "no complete batch that follows the previous one"
_BAD_CRC = "the checksum of a batch does not match"

_PLACE = struct.Struct(">qii")
_HEADER = struct.Struct(">qiibIhiqqqhii")


@dataclass(slots=True)
class Chunk:
    """Complete batches in a buffer. Positions in `rows` are relative to the buffer, which begins at `origin` in the
    file."""

    view: memoryview
    rows: Rows
    origin: int
    #: Records below this offset have already been returned: the segment may have been replaced during a scan by one
    #: in which they share a batch with the next records.
    start: int = 0


@dataclass(frozen=True, slots=True)
class Walk:
    """How far a segment is complete: the offset and position after its last good batch; then the damage, if any, and
    the position where good batches begin again (the limit, if none do)."""

    next_offset: int
    position: int
    damage: CorruptBatch | None
    resume_position: int


@dataclass(slots=True)
class _Open:
    """The open files and indexes of a segment."""

    storage: Storage
    index: SegmentIndex
    proven: bytearray = field(default_factory=bytearray)


class Segment:
    """One segment of a log."""

    def __init__(
        self, directory: Directory, base_offset: int, next_offset: int, size: int, interval_bytes: int
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        #: (next offset, size): what has been committed, as one value, so that readers never see halves of two.
        self.tail = (next_offset, size)
        self.sealed = True
        #: Where it should end, if recovery knows it; see `known_end`.
        self.expected_end: int | None = None
        #: Whether it must stay open: its file is being replaced, and its name already refers to another file.
        self.pinned = False
        #: Whether a bad index found while reading is replaced on disk: only the writer may do this.
        self.repairs = False
        #: Whether each batch begins where the previous one ended; not so after compaction.
        self.dense = True
        self.identity: object = None
        #: The file: under a different name while it is about to replace others.
        self.name = file_name(base_offset)
        self.path = f"{directory.path}/{self.name}"
        self._interval_bytes = interval_bytes
        self._open: _Open | None = None
        self._unpacked: tuple[int, memoryview] | None = None
        self._landmarks: dict[int, array[int]] = {}
        self._times: tuple[int, int] | None = None

    def __repr__(self) -> str:
        state = "sealed" if self.sealed else "active"
        return f"Segment({self.base_offset}..{self.next_offset}, {self.size:,} bytes, {state})"

    # --- opening and closing

    @classmethod
    def create(cls, directory: Directory, base_offset: int, interval_bytes: int) -> Segment:
        """Create an empty, active segment; its name is durable when this returns."""
        storage = directory.create(file_name(base_offset))
        return cls.active(directory, base_offset, storage, SegmentIndex(base_offset, interval_bytes), base_offset, 0)

    @classmethod
    def active(
        cls,
        directory: Directory,
        base_offset: int,
        storage: Storage,
        index: SegmentIndex,
        next_offset: int,
        size: int,
    ) -> Segment:
        """Open a segment that stays open because it still grows."""
        made = cls(directory, base_offset, next_offset, size, index._interval_bytes)
        made.sealed = False
        made._open = _Open(storage, index)
        return made

    @property
    def _data(self) -> _Open:
        return self._open or self._load()

    def _load(self) -> _Open:
        storage = self.directory.open_sealed(self.name)
        index = self.sound_index(storage)
        self._open = loaded = _Open(storage, index or self.rebuild_index(storage))
        if index is None and self.repairs:
            try:
                self.write_index()
            except StorageError:
                pass  # it is a cache, and the next open tries again
        return loaded

    def _read_index(self) -> SegmentIndex | None:
        try:
            offsets = self.directory.read(file_name(self.base_offset, INDEX))
            times = self.directory.read(file_name(self.base_offset, TIME_INDEX))
        except StorageError:
            return None  # missing, being deleted, or unreadable: it is a cache in any case
        return SegmentIndex.decode(
            self.base_offset,
            self._interval_bytes,
            offsets,
            times,
            span=self.next_offset - self.base_offset,
            size_bytes=self.size,
        )

    def sound_index(self, storage: Storage) -> SegmentIndex | None:
        """The indexes from their files, if they exist and the log does not contradict them."""
        index = self._read_index()
        return index if index is not None and self._times_are_right(storage, index) else None

    def _times_are_right(self, storage: Storage, index: SegmentIndex) -> bool:
        """Whether the time index ends as it must: its last entry names a batch, and no later batch is newer. Otherwise
        a file that lost its end would make recent data look expired."""
        start = 0
        if index.times:
            last_offset = self.base_offset + index.time_offsets[-1]
            start = self._batch_ending_at(storage, index, last_offset, index.times[-1])
            if start < 0:
                return False
        try:
            for chunk in self.batches(storage, start, self.size, -1 if start else self.base_offset, check=False):
                if int(chunk.rows[:, MAX_TIME].max()) > index.max_timestamp:
                    return False
        except CorruptBatch:
            return False
        return True

    def _batch_ending_at(self, storage: Storage, index: SegmentIndex, last_offset: int, max_timestamp: int) -> int:
        """The position of the batch with that last offset and largest timestamp; -1 if there is none."""
        start, _, wanted = index.bounds(last_offset, self.size)
        if wanted >= 0 and not self.names_batch(storage, start, wanted):
            return -1
        view = storage.view(start, self.size - start)
        at: int = kernel.find_batch(view, 0, len(view), last_offset, -1 if start else self.base_offset, self.dense)
        if at < 0:
            return -1
        header = _HEADER.unpack_from(view, at)
        return start + at if (header[0] + header[6], header[8]) == (last_offset, max_timestamp) else -1

    def rebuild_index(self, storage: Storage) -> SegmentIndex:
        """Rebuild the indexes from the batches, also after damage, which reading will report."""
        index = SegmentIndex(self.base_offset, self._interval_bytes)
        walk = self.walk(storage, 0, self.size, index)
        while walk.damage is not None and walk.resume_position < self.size:
            walk = self.walk(storage, walk.resume_position, self.size, index, resumed=True)
        return index

    def use_index(self, index: SegmentIndex) -> None:
        """Replace the index of an open segment."""
        self._open = _Open(self._data.storage, index)

    def walk(self, storage: Storage, position: int, limit: int, index: SegmentIndex, *, resumed: bool = False) -> Walk:
        """Check every batch from `position` on and add it to `index`, until the end or the first bad one.

        `resumed`: `resume` has found the batch at `position`, so its offset need not follow another.
        """
        following = -1 if resumed else self.base_offset
        end = position
        try:
            for chunk in self.batches(storage, position, limit, following):
                index.add_rows(chunk.rows, chunk.origin)
                last = chunk.rows[-1]
                following, end = int(last[LAST]) + 1, chunk.origin + int(last[POSITION] + last[SIZE])
        except CorruptBatch as damage:
            at, _ = self.resume(storage, end, limit, max(following, self.base_offset))
            return Walk(following, end, damage, at)
        return Walk(following, end, None, limit)

    def write_index(self, *, durable: bool = True) -> None:
        """Write both index files, each replaced atomically."""
        offsets, times = self._data.index.encode()
        self.directory.replace(file_name(self.base_offset, INDEX), offsets, durable=durable)
        self.directory.replace(file_name(self.base_offset, TIME_INDEX), times, durable=durable)

    def remove_index(self) -> None:
        """Delete the index files before a segment grows again: a stale one must not survive a crash."""
        self.directory.remove(file_name(self.base_offset, INDEX))
        self.directory.remove(file_name(self.base_offset, TIME_INDEX))

    def unload(self) -> None:
        """Close the file and the indexes. A reader that uses them keeps them alive until it is done; then they are
        closed."""
        if self.pinned:
            return
        self._unpacked = None
        self._landmarks = {}
        self._open = None

    def seal(self) -> None:
        """Seal the segment: the indexes are written, and the file is mapped when it is read."""
        self.timestamps()
        try:
            self.write_index()
        except SyncFailed:
            raise
        except StorageError:
            self.remove_index()  # a cache: it is rebuilt when needed
        self.sealed = True
        self.unload()

    def delete(self) -> None:
        """Remove all files. Readers that have it open keep what they have."""
        self.unload()
        for suffix in (LOG, INDEX, TIME_INDEX):
            self.directory.remove(file_name(self.base_offset, suffix))

    # --- writing (the active segment, under the log's lock)

    @property
    def storage(self) -> Storage:
        """The bytes."""
        return (self._open or self._load()).storage

    @property
    def index(self) -> SegmentIndex:
        """The indexes in memory."""
        return (self._open or self._load()).index

    @property
    def is_loaded(self) -> bool:
        """Whether it is currently open or mapped."""
        return self._open is not None

    @property
    def next_offset(self) -> int:
        """The first offset after the segment."""
        return self.tail[0]

    @property
    def size(self) -> int:
        """Committed bytes."""
        return self.tail[1]

    # --- known without reading

    def timestamps(self) -> tuple[int, int]:
        """(of the first batch, largest): ms, -1 if there is none. From the index, so good enough for searching, but not
        for deciding what to delete: see `newest_timestamp`."""
        if self.sealed and self._times is not None:
            return self._times
        if self.sealed and self._open is None:
            times = self._open_times()
            self.unload()
            return times
        return self._open_times()

    def _open_times(self) -> tuple[int, int]:
        index = self._data.index
        if index.first_timestamp < 0 and self.size >= HEADER_BYTES:
            index.first_timestamp = struct.unpack(">q", self.storage.read(35, 8))[0]
        self._times = index.first_timestamp, index.max_timestamp
        return self._times

    def newest_timestamp(self) -> int:
        """The largest timestamp according to the batches themselves; damaged parts are left out."""
        newest = self.timestamps()[1]
        storage = self._data.storage
        position, least = 0, self.base_offset
        while position < self.size:
            try:
                for chunk in self.batches(storage, position, self.size, least, check=False):
                    newest = max(newest, int(chunk.rows[:, MAX_TIME].max()))
                break
            except CorruptBatch as damage:
                position, _ = self.resume(storage, damage.position or 0, self.size, self.base_offset)
                least = -1
        if self.sealed:
            self.unload()
        return newest

    # --- reading

    def chunks(
        self, offset: int, end: int, *, check: bool = True, chunk_bytes: int = CHUNK_BYTES, behind: int = -1
    ) -> Iterator[Chunk]:
        """The batches that contain offsets from `offset` to `end`, in order, checked; raises at the first bad one.

        The first may start below `offset` and the last may end after `end`. `behind` is the position of a batch that is
        known to be bad: it is skipped.
        """
        opened = self._data
        end = min(end, self.next_offset)  # what follows is not committed, or belongs to the next segment
        limit = self.size
        start, _, wanted = opened.index.bounds(offset, limit)
        if behind >= 0:
            start, wanted = self.resume(opened.storage, behind, limit, self.base_offset)[0], -1
        if wanted >= 0 and not self.names_batch(opened.storage, start, wanted):
            start = 0
        least = -1 if start else self.base_offset
        hops = True
        while True:
            try:
                skip_below = offset if hops else 0
                for chunk in self._from(
                    opened.storage, start, limit, least, offset, end, check or not hops, skip_below, chunk_bytes
                ):
                    if hops and not check and self._first_bad(chunk.view, chunk.rows[-1:], 0) >= 0:
                        break  # each is confirmed by the next one, except for the last
                    yield chunk
                    offset = int(chunk.rows[-1, LAST]) + 1
                if offset >= end or not hops:
                    return
                hops = False
            except CorruptBatch as damage:
                if hops:
                    # One that was skipped may be the damaged one, and its length wrong: now check each.
                    hops = False
                    continue
                # Damage completely below what comes next is not our concern, or cost no record: continue after it.
                if damage.position is None or damage.next_offset is None or damage.next_offset > offset:
                    raise
                at, base = self.resume(opened.storage, damage.position, limit, max(least, self.base_offset))
                if base is None or base > offset or (at, base) == (start, least):
                    raise
                start, least = at, base

    def _from(
        self,
        storage: Storage,
        start: int,
        limit: int,
        least: int,
        offset: int,
        end: int,
        check: bool,
        skip_below: int,
        chunk_bytes: int,
    ) -> Iterator[Chunk]:
        steps = self.batches(storage, start, limit, least, check=check, skip_below=skip_below, chunk_bytes=chunk_bytes)
        for chunk in steps:
            rows = chunk.rows
            if rows[0, LAST] < offset:
                first = int((rows[:, LAST] < offset).sum())
                if first == len(rows):
                    continue
                rows = rows[first:]
            if rows[-1, BASE] >= end:
                rows = rows[: int((rows[:, BASE] < end).sum())]
                if len(rows):
                    chunk.rows = rows
                    yield chunk
                return
            chunk.rows = rows
            yield chunk
            if rows[-1, LAST] + 1 >= end:
                return  # what follows may be damaged, and was not requested

    def batches(
        self,
        storage: Storage,
        position: int,
        limit: int,
        least: int,
        *,
        check: bool = True,
        skip_below: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Iterator[Chunk]:
        """All complete batches from `position` to `limit`; `CorruptBatch` where there is anything else.

        Batches completely below `skip_below` are skipped without checking their content.
        """
        want = chunk_bytes
        room = new_rows(CHUNK_ROWS)
        while position < limit:
            view = storage.view(position, min(want, limit - position))
            end = len(view)
            n, stopped, why = kernel.scan_batches(view, 0, end, end, least, memoryview(room), self.dense)
            rows = room[:n].copy()
            if n == 0:
                if why == kernel.SCAN_SHORT and position + len(view) < limit:
                    want = self._batch_size(view) if len(view) >= HEADER_BYTES else chunk_bytes
                    if want <= limit - position:
                        continue
                raise self._corrupt(storage, position, limit, max(least, self.base_offset), _NO_BATCH)
            if check:
                bad = self._first_bad(view, rows, skip_below)
                if bad >= 0:
                    if bad:
                        yield Chunk(view, rows[:bad], position)
                        least = int(rows[bad - 1, LAST]) + 1
                    at = position + int(rows[bad, POSITION])
                    raise self._corrupt(storage, at, limit, int(rows[bad, BASE]), _BAD_CRC)
            yield Chunk(view, rows, position)
            least = int(rows[-1, LAST]) + 1
            position += stopped
            want = chunk_bytes

    @staticmethod
    def _first_bad(view: memoryview, rows: Rows, skip_below: int) -> int:
        if skip_below <= rows[0, LAST]:
            return first_bad_crc(view, rows)
        skipped = int((rows[:, LAST] < skip_below).sum())
        bad = first_bad_crc(view, rows[skipped:])
        return bad if bad < 0 else bad + skipped

    @staticmethod
    def _batch_size(view: memoryview) -> int:
        size: int = 12 + struct.unpack_from(">i", view, 8)[0]
        return size

    @staticmethod
    def names_batch(storage: Storage, position: int, last_offset: int) -> bool:
        """Whether the batch at an indexed position is the one in the index."""
        try:
            header = storage.view(position, HEADER_BYTES)
        except OSError:
            return False
        base, _, _ = _PLACE.unpack_from(header)
        return bool(header[16] == 2 and base + struct.unpack_from(">i", header, 23)[0] == last_offset)

    def read(self, offset: int, max_bytes: int) -> Record | None:
        """The record at `offset`, or the first one after it; None if the segment has none."""
        opened = self._data
        start, stop, wanted = opened.index.bounds(offset, self.size)
        if self.sealed:
            stop = self.size
        if wanted >= 0 and not self.names_batch(opened.storage, start, wanted):
            start, stop = 0, self.size
        least = -1 if start else self.base_offset
        view = opened.storage.view(start, stop - start)
        while True:
            at = kernel.find_batch(view, 0, len(view), offset, least, self.dense)
            if at >= 0:
                break
            if stop >= self.size:  # it is after damage, or is damaged itself
                return self._first_from(offset, max_bytes)
            stop = self.size
            view = opened.storage.view(start, stop - start)
        header = _HEADER.unpack_from(view, at)
        batch = view[at : at + 12 + header[1]]
        try:
            self._prove(opened, start + at, batch, header)
        except CorruptBatch as damage:
            # Its header may be wrong about its end: the requested record may be after it.
            if damage.next_offset is None or damage.next_offset > offset or damage.next_offset <= header[0]:
                raise
            return self._read_behind(opened, start + at, offset, max_bytes)
        found = self._record_in(start + at, batch, header, offset, max_bytes)
        if found is None and start + at + len(batch) < self.size:
            return self._first_from(header[0] + header[6] + 1, max_bytes)
        return found

    def _first_from(self, offset: int, max_bytes: int) -> Record | None:
        """The first record from `offset` on, batch by batch, however many of them compaction has emptied."""
        for chunk in self.chunks(offset, self.next_offset):
            for number in np.flatnonzero(chunk.rows[:, COUNT]).tolist():
                found: list[Record] = []
                row = chunk.rows[number : number + 1]
                if records(chunk.view, row, offset, 2**63 - 1, found, max_bytes) >= 0:
                    raise self._unreadable(chunk.origin + int(row[0, POSITION]), int(row[0, LAST]), MALFORMED)
                if found:
                    return found[0]
        return None

    def _read_behind(self, opened: _Open, position: int, offset: int, max_bytes: int) -> Record | None:
        """As `read`, batch by batch from after a damaged one."""
        for chunk in self.chunks(offset, offset + 1, behind=position):
            found: list[Record] = []
            bad = records(chunk.view, chunk.rows[:1], offset, 2**63 - 1, found, max_bytes)
            if bad >= 0:
                raise self._unreadable(chunk.origin + int(chunk.rows[0, POSITION]), int(chunk.rows[0, LAST]), MALFORMED)
            return found[0] if found else None
        return None

    def _prove(self, opened: _Open, position: int, batch: memoryview, header: tuple[int, ...]) -> None:
        """Whether the batch's CRC is right, now or, if it is a large one, earlier."""
        size = len(batch)
        if size >= _REMEMBER_BYTES:
            cell = position >> _REMEMBER_SHIFT
            proven = opened.proven
            if cell >> 3 < len(proven) and proven[cell >> 3] & (1 << (cell & 7)):
                return
        if crc32c(batch[21:]) != header[4]:
            raise self._corrupt(opened.storage, position, self.size, header[0], _BAD_CRC)
        if size >= _REMEMBER_BYTES:
            if cell >> 3 >= len(opened.proven):
                opened.proven.extend(bytes((self.size >> (_REMEMBER_SHIFT + 3)) + 64 - len(opened.proven)))
            opened.proven[cell >> 3] |= 1 << (cell & 7)

    def _record_in(
        self, position: int, batch: memoryview, header: tuple[int, ...], offset: int, max_bytes: int
    ) -> Record | None:
        base, _, _, _, _, attributes, last_delta, base_time, max_time, _, _, _, count = header
        body, start, end = batch, HEADER_BYTES, len(batch)
        if attributes & COMPRESSION_MASK:
            body = self._unpack(position, batch, attributes, max_bytes)
            start, end = 0, len(body)
        skipped = 0
        if offset - base > 2 * _LANDMARK_STEP and last_delta == count - 1:
            marks = self._landmarks.get(position) or self._survey(position, body, start, end, count, base)
            skipped = (offset - base) // _LANDMARK_STEP * _LANDMARK_STEP
            start = marks[skipped // _LANDMARK_STEP]
        found = kernel.record_at(
            body, start, end, count, base, base + last_delta, attributes, base_time, max_time, offset, skipped
        )
        if found is False:
            raise self._unreadable(position, base + last_delta, MALFORMED)
        return found  # type: ignore[no-any-return]

    def _survey(self, position: int, body: memoryview, start: int, end: int, count: int, base: int) -> array[int]:
        """Remember where every n-th record of a batch starts, which shortens the next read of it."""
        marks = array("i", bytes(4 * (count // _LANDMARK_STEP + 1)))
        if not kernel.landmarks(body, start, end, count, _LANDMARK_STEP, memoryview(marks)):
            raise self._unreadable(position, base + count - 1, MALFORMED)
        if len(self._landmarks) >= _LANDMARK_BATCHES:
            self._landmarks.clear()
        self._landmarks[position] = marks
        return marks

    def _unpack(self, position: int, batch: memoryview, attributes: int, max_bytes: int) -> memoryview:
        """The records of a compressed batch; the last batch is kept, because neighbours are often read next."""
        kept = self._unpacked
        if kept is not None and kept[0] == position:
            return kept[1]
        try:
            body = decompress(attributes & COMPRESSION_MASK, batch[HEADER_BYTES:], max_bytes=max_bytes)
        except CorruptBatch as error:
            header = _HEADER.unpack_from(batch)
            raise self._unreadable(position, header[0] + header[6], error.reason, type(error)) from None
        if len(body) <= 4 * CHUNK_BYTES:
            self._unpacked = position, body
        return body

    def first_at(self, timestamp: int, start: int, max_bytes: int) -> int | None:
        """The first offset from `start` on whose record is not older than `timestamp`."""
        offset = max(start, self._entry_before(timestamp))
        for chunk in self.chunks(offset, self.next_offset, chunk_bytes=_TIME_CHUNK_BYTES):
            for row in chunk.rows[chunk.rows[:, MAX_TIME] >= timestamp]:
                stamped = bool(row[ATTRIBUTES] & TIMESTAMP_TYPE_BIT)
                if stamped and row[COUNT] == row[LAST] - row[BASE] + 1:
                    if row[LAST] >= start:
                        return max(int(row[BASE]), start)
                    continue
                batch = chunk.view[row[POSITION] : row[POSITION] + row[SIZE]]
                position = chunk.origin + int(row[POSITION])
                body, first, end = chunk.view, int(row[BODY]), int(row[BODY_END])
                if row[ATTRIBUTES] & COMPRESSION_MASK:
                    body = self._unpack(position, batch, int(row[ATTRIBUTES]), max_bytes)
                    first, end = 0, len(body)
                least = -(2**63) if stamped else timestamp  # all records of a stamped batch have its timestamp
                found: int = kernel.record_after(
                    body, first, end, int(row[COUNT]), int(row[BASE]), int(row[BASE_TIME]), start, least
                )
                if found == -2:
                    raise self._unreadable(position, int(row[LAST]), MALFORMED)
                if found >= 0:
                    return found
        return None

    def _entry_before(self, timestamp: int) -> int:
        """Below this offset everything is older than `timestamp`, by an index entry that its batch confirms."""
        opened = self._data
        at = bisect_left(opened.index.times, timestamp) - 1
        if at < 0:
            return self.base_offset
        last_offset = self.base_offset + opened.index.time_offsets[at]
        found = self._batch_ending_at(opened.storage, opened.index, last_offset, opened.index.times[at])
        return self.base_offset if found < 0 else last_offset + 1

    def has_hole_at(self, offset: int) -> bool:
        """Whether the batch that covers `offset` contains fewer records than offsets according to its header."""
        for chunk in self.chunks(offset, offset + 1):
            row = chunk.rows[0]
            return bool(row[BASE] <= offset and row[COUNT] < row[LAST] - row[BASE] + 1)
        return False

    # --- damage

    def _corrupt(
        self,
        storage: Storage,
        position: int,
        limit: int,
        least: int,
        reason: str,
    ) -> CorruptBatch:
        """The error for a bad batch, with the next offset that can be read after it."""
        _, following = self.resume(storage, position, limit, least)
        if following is None and self.sealed:
            following = self.next_offset
        return CorruptBatch(reason, path=self.path, position=position, next_offset=following)

    def _unreadable(
        self, position: int, last_offset: int, reason: str, kind: type[CorruptBatch] = CorruptBatch
    ) -> CorruptBatch:
        """The error for a batch whose checksum is right but whose records cannot be decoded."""
        return kind(reason, path=self.path, position=position, next_offset=last_offset + 1)

    def resume(self, storage: Storage, position: int, limit: int, least: int) -> tuple[int, int | None]:
        """At or after damage at `position`: where the next good batch starts, and its first offset.

        Its checksum does not cover its offset, so something else must confirm it: the batch after it, the known end of
        the segment, or the rest of the damaged batch before it. The candidates, in this order: `position` itself
        (batches may be missing before it), the end of the damaged batch according to its header, then every other
        place; these come last, because a record may itself contain what looks like a batch.
        """
        view = storage.view(position, limit - position)
        sums = PartialSums(view)
        if len(view) >= HEADER_BYTES:
            end = self._batch_size(view)
            for at, before in ((0, -1), (end, _PLACE.unpack_from(view)[0] + _span(view, 0))):
                base = self._good_batch(sums, view, at, least, before)
                if base is not None:
                    return position + at, base
        at = kernel.find_header(view, 1, len(view), least)
        while at >= 0:
            base = self._good_batch(sums, view, at, least, -1)
            if base is not None:
                return position + at, base
            at = kernel.find_header(view, at + 1, len(view), least)
        return limit, None

    def _good_batch(self, sums: PartialSums, view: memoryview, at: int, least: int, before: int) -> int | None:
        """The base offset of the batch that starts there, if there is one that is complete and confirmed. `before` is
        where the previous batch ended according to its own header. The checksum is computed last, and each byte is
        summed once, however many places look like a batch: a value may be full of them."""
        most = self.next_offset if self.sealed else self.base_offset + MAX_SPAN
        base = _batch_at(view, at, least, most)
        if base is None:
            return None
        following, end = base + _span(view, at), at + self._batch_size(view[at:])
        if base == before:
            return base if _is_good(sums, view, at) else None
        if end == len(view):
            return base if following == self.known_end and _is_good(sums, view, at) else None
        if _batch_at(view, end, following, most) != following:
            return None
        return base if _is_good(sums, view, at) and _is_good(sums, view, end) else None

    @property
    def known_end(self) -> int | None:
        """The first offset after the segment, if it is known."""
        if self.expected_end is not None:
            return self.expected_end
        return self.next_offset if self.next_offset > self.base_offset else None


def _span(view: memoryview, at: int) -> int:
    """How many offsets the batch that starts there covers."""
    return 1 + int(struct.unpack_from(">i", view, at + 23)[0])


def _batch_at(view: memoryview, at: int, least: int, most: int) -> int | None:
    """The base offset of the batch whose header is there, if there is one that fits and belongs between these
    offsets."""
    if not 0 <= at <= len(view) - HEADER_BYTES or kernel.find_header(view, at, len(view), least) != at:
        return None
    base: int = _PLACE.unpack_from(view, at)[0]
    return base if base < most else None


def _is_good(sums: PartialSums, view: memoryview, position: int) -> bool:
    """Whether the batch whose header is there, and fits, has the right CRC."""
    size = Segment._batch_size(view[position:])
    crc: int = struct.unpack_from(">I", view, position + 17)[0]
    return sums.of(position + 21, position + size) == crc
