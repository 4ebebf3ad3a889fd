"""laminarmq: records without a frame, and an index with the position and checksum of each. Little endian.

```
<base>.index    [base index u64][zeros, 8 bytes]                      once, before the first entry
                [checksum u64][length u32][position u32]              one per record
<base>.store    [metadata length u32][metadata][value]                no head, no separator
                metadata as bincode writes MetaWithIdx<(), u32 or u64>: [01][index u32 or u64]; [00] without one
```

Names are decimal, without leading zeros. The checksum is CRC-32 (IEEE, as in zlib) of all three parts, in the low half
of the field; the length counts all three. It is verified for every record that is read.

Only the index has checksums, so everything that laminarmq checks is checked: the base in the name and in the file
(`BaseMismatch`, `NoBase`), the size of the index (`IndexSizeMismatch`), entries that skip bytes or point elsewhere
(`IndexGap`), checksum and length (`ChecksumMismatch`), metadata (`UnreadableRecord`). With `strict` each one raises.
Otherwise known defects are handled as follows:

* a second base marker (after truncating to the first record) is skipped; laminarmq itself reads it as a record;
* a torn entry at the end of the index is skipped; if the rest of it proves the record, the record is read;
* a torn entry in the middle misaligns all entries after it; the right alignment is found by their checksums;
* entries for bytes that are not in the store are left out; so are zeros at the end of the index;
* an entry whose length or position is damaged is corrected if the checksum proves it.

Records without entries in the index (it is written later than the store) are found by their metadata, see
laminarmq_unindexed.py. After a kill laminarmq continues to append after them, and reuses their indices: the records of
all runs are read, in the order of the file, with new offsets where indices are reused (`RESTART`). The last record of a
run is left out and reported, because its end is unknown: it may be torn, or belong to an append that failed.

A record whose checksum does not match is lost. Metadata other than `()` needs a decoder (`open(metadata=...)`); it is
kept in the header `laminarmq.metadata`.

An export writes segments of `segment_bytes` (default 256 MiB) with `index_bits` 32 or 64 (default: 32 if sufficient).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from zlib import crc32

import numpy as np

from ..errors import ExportRefused, InvalidConfig
from ..log.log import Log
from ..storage import Directory
from .detection import Sniffed, detect_below, read_start
from .exporting import ExportRows, SegmentWriter, write_segments
from .foreign import ExportJob, Format, Kind
from .laminarmq_unindexed import Unindexed, decode, find_unindexed, first_head, heads_at, index_in_head
from .records import (
    MAX_OFFSET,
    MAX_VALUE_BYTES,
    Numbers,
    Trust,
    Values,
    assign_offsets,
    checksums,
    gathered,
    numbers_at,
)
from .walking import CHUNK_BYTES, Cursor, Entries, SegmentFile, WalkedLog, WalkStep, only_zeros, segment_files

NAME = "laminarmq"
_ENTRY_BYTES = 16
_ENTRY = np.dtype([("checksum", "<u8"), ("length", "<u4"), ("position", "<u4")])
#: Minimum size of a record: the length of its metadata and one byte of it.
_MIN_BYTES = 5
_MAX_ROWS = 1 << 16
#: Number of bytes to search for the first record of a run after a record whose head was torn.
_SEARCH_BYTES = 64 << 20
#: Maximum number of entries to go back to one that is proven by its checksum.
_MAX_UNPROVEN = 64
#: Number of bytes of a record to read for the index in its metadata.
_HEAD_BYTES = 1 << 16
#: The header with the metadata of records, if a decoder was given.
_METADATA = f"{NAME}.metadata"


class LaminarmqLog(WalkedLog):
    """A log of laminarmq, read only."""

    format = NAME
    first_entry = _ENTRY_BYTES
    #: Size of the index in a record's metadata in bytes, once known.
    index_bytes: int | None = None

    def list_segments(self, found: list[SegmentFile]) -> list[SegmentFile]:
        for segment in found:
            if segment.data is None and segment.index_size > _ENTRY_BYTES:
                count = segment.index_size // _ENTRY_BYTES - 1
                detail = f"the store of the {count} records in this index is missing"
                self.note(Kind.MISSING_FILE, segment, 0, detail, "missing", offset=segment.base)
        return [segment for segment in found if segment.index is not None or segment.size]

    def enter(self, number: int, before: Cursor | None) -> Cursor:
        """Also check the marker at the beginning of the index."""
        cursor = super().enter(number, before)
        if number < len(self.segments):
            self._check_marker(self.segments[number])
        return cursor

    def _check_marker(self, segment: SegmentFile) -> None:
        marker = self.read_index(segment, 0, min(_ENTRY_BYTES, segment.index_size))
        if not marker:
            return
        index = segment.index or ""
        if len(marker) < _ENTRY_BYTES:
            self.note(Kind.NO_BASE, index, 0, f"the base marker has only {len(marker)} bytes; the name is used")
            return
        base = int.from_bytes(marker[:8], "little")
        if base != segment.base:
            self.note(Kind.BASE_MISMATCH, index, 0, f"the name has {segment.base}, the marker {base}; the name is used")
        if any(marker[8:]):
            self.note(Kind.BAD_INDEX, index, 8, "the base marker is not padded with zeros")

    # --- steps

    def step(self, cursor: Cursor) -> WalkStep:
        """Read as many consecutive entries with good records as possible, or handle one defect."""
        segment = self.segments[cursor.segment]
        if segment.index_size - cursor.entry < _ENTRY_BYTES:
            return self._end_of_index(segment, cursor)
        count = min((segment.index_size - cursor.entry) // _ENTRY_BYTES, _MAX_ROWS)
        entries = np.frombuffer(self.read_index(segment, cursor.entry, count * _ENTRY_BYTES), _ENTRY)
        starts, lengths = entries["position"].astype(np.int64), entries["length"].astype(np.int64)
        ends = starts + lengths
        regular = (starts == np.concatenate(([cursor.position], ends[:-1]))) & (ends <= segment.size)
        regular &= (lengths >= _MIN_BYTES) & (lengths <= MAX_VALUE_BYTES)
        count = _leading(regular)
        if count:
            count = max(int(np.searchsorted(ends[:count] - cursor.position, CHUNK_BYTES, "right")), 1)
            data = self.read_data(segment, cursor.position, int(ends[count - 1]) - cursor.position)
            inside = starts[:count] - cursor.position
            found = checksums(data, inside, lengths[:count]).astype(np.uint64)
            right = _leading(found == entries["checksum"][:count])
            if right:
                return self._records(segment, cursor, data, inside[:right], lengths[:right])
        return self._bad_entry(segment, cursor, entries)

    def _records(
        self, segment: SegmentFile, cursor: Cursor, data: memoryview, starts: Numbers, lengths: Numbers
    ) -> WalkStep:
        """Take records whose checksums match, up to the first with invalid metadata or, without a decoder, with
        metadata of another size."""
        known = self._known_metadata if self.decoder is None else self._decoded_metadata
        sizes, stored, detail = known(cursor.count.stored + 1, data, starts, lengths)
        good = len(stored)
        if not good:
            after = cursor.to(cursor.position + int(lengths[0]), cursor.count.skip(), entry=cursor.entry + _ENTRY_BYTES)
            detail += "; the checksum is right"
            return self.lose(segment, cursor, after, Kind.UNREADABLE, detail, int(lengths[0]))
        inside, rest = starts[:good] + 4, lengths[:good] - 4
        headers = {} if self.decoder is None else {_METADATA: gathered(data, inside, sizes)}
        found = Values(data, stored, inside + sizes, rest - sizes, headers)
        return self._numbered(segment, cursor, found, starts)

    def _known_metadata(
        self, following: int, data: memoryview, starts: Numbers, lengths: Numbers
    ) -> tuple[Numbers, Numbers, str]:
        """Return the sizes of the first records' metadata, their indices, and the error for a record without any."""
        sizes = numbers_at(data, starts, 0, 4)
        size = int(sizes[0])
        tags = np.frombuffer(data, np.uint8)[starts + 4]
        same = _leading((sizes == size) & (tags == (size > 1)) & (lengths >= 4 + size)) if size in (1, 5, 9) else 0
        stored = np.arange(following, following + same, dtype=np.int64)
        if same and size > 1:
            self.index_bytes = size - 1
            stored = numbers_at(data, starts[:same], 5, size - 1)
        return sizes[:same], stored, f"{size} bytes of metadata are not MetaWithIdx<(), u32> or <(), u64>"

    def _decoded_metadata(
        self, following: int, data: memoryview, starts: Numbers, lengths: Numbers
    ) -> tuple[Numbers, Numbers, str]:
        """Return the same with the caller's decoder, up to the first record that it rejects."""
        assert self.decoder is not None
        sizes, stored, size = [], [], 0
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            size = int.from_bytes(data[start : start + 4], "little")
            index = decode(self.decoder, bytes(data[start + 4 : start + 4 + size])) if size <= length - 4 else -1
            if index is not None and not 0 <= index < MAX_OFFSET:
                break
            sizes.append(size)
            stored.append(following if index is None else index)
            following = stored[-1] + 1
        detail = f"the decoder rejects {size} bytes of metadata"
        return np.array(sizes, np.int64), np.array(stored, np.int64), detail

    def _numbered(self, segment: SegmentFile, cursor: Cursor, found: Values, starts: Numbers) -> WalkStep:
        """Assign offsets to records with these indices; `starts` are the positions before their metadata."""
        count = len(found)
        numbered = assign_offsets(
            found.offsets, cursor.count, base=segment.base, trust=Trust.CHECKED, final=True, loose=cursor.loose
        )
        assert len(numbered.offsets) == count, "checked numbers are always taken"
        end = cursor.position + int(found.starts[-1] + found.lengths[-1])
        after = cursor.to(end, numbered.count, entry=cursor.entry + _ENTRY_BYTES * count)
        return WalkStep(after, self.renumber(cursor, found, numbered, cursor.position + starts))

    # --- damage

    def _bad_entry(self, segment: SegmentFile, cursor: Cursor, entries: Entries) -> WalkStep:
        """Handle an entry that does not follow the previous one, or whose record is bad."""
        checksum, length, position = (int(number) for number in entries[0])
        index = segment.index or ""
        if only_zeros(lambda at, size: self.read_index(segment, at, size), cursor.entry, segment.index_size):
            size = segment.index_size - cursor.entry
            self.note(Kind.PADDED_INDEX, index, cursor.entry, f"{size} zeros at the end", size_bytes=size)
            return WalkStep(cursor.to(cursor.position, entry=segment.index_size))
        marker = int.from_bytes(self.read_index(segment, 0, 8), "little")
        if length == 0 and position == 0 and checksum in (segment.base, marker):
            self.note(Kind.SECOND_MARKER, index, cursor.entry, "the base marker is repeated here; skipped")
            return WalkStep(cursor.to(cursor.position, entry=cursor.entry + _ENTRY_BYTES))
        if self._proves(segment, position, length, checksum):
            return self._entry_elsewhere(segment, cursor, position)
        torn_bytes = self._misaligned_by(segment, cursor)
        if torn_bytes:
            detail = f"{torn_bytes} bytes of a torn entry; the entries after it are read"
            self.note(Kind.TORN_INDEX, index, cursor.entry, detail, size_bytes=torn_bytes)
            return WalkStep(cursor.to(cursor.position, entry=cursor.entry + torn_bytes))
        for size in _other_lengths(segment, cursor, entries):
            if self._proves(segment, cursor.position, size, checksum):
                detail = f"an entry has {length} bytes at {position}; the checksum proves {size} at {cursor.position}"
                self.note(Kind.BAD_INDEX, index, cursor.entry, detail, offset=cursor.count.next_offset)
                data = self.read_data(segment, cursor.position, size)
                return self._records(segment, cursor, data, np.zeros(1, np.int64), np.array([size], np.int64))
        return self._unproven(segment, cursor, entries)

    def _proves(self, segment: SegmentFile, position: int, length: int, checksum: int) -> bool:
        """Return True if these bytes of the store have that checksum."""
        if not _MIN_BYTES <= length <= MAX_VALUE_BYTES or position + length > segment.size or checksum >> 32:
            return False
        found, end = 0, position + length
        while position < end:
            size = min(CHUNK_BYTES, end - position)
            found = crc32(self.read_data(segment, position, size), found)
            position += size
        return found == checksum

    def _misaligned_by(self, segment: SegmentFile, cursor: Cursor) -> int:
        """Return by how many bytes a torn entry misaligns the entries; 0 if it does not."""
        raw = self.read_index(segment, cursor.entry, min(2 * _ENTRY_BYTES, segment.index_size - cursor.entry))
        for shift in range(1, min(len(raw) - _ENTRY_BYTES + 1, _ENTRY_BYTES)):
            checksum, length, position = (int(n) for n in np.frombuffer(raw, _ENTRY, 1, shift)[0])
            if position >= cursor.position and self._proves(segment, position, length, checksum):
                return shift
        return 0

    def _entry_elsewhere(self, segment: SegmentFile, cursor: Cursor, position: int) -> WalkStep:
        """Follow an entry that is right, but does not point at the end of the previous record."""
        if position > cursor.position:
            found = self._unindexed(segment, cursor, position)
            if found is not None:
                return found
            self._cut_last_of_run(segment, cursor.position, position, cursor.count.next_offset)
        else:
            detail = f"an entry points at byte {position}, before the end of the previous record; its checksum is right"
            self.note(Kind.BAD_INDEX, segment.index or "", cursor.entry, detail)
        return WalkStep(cursor.to(position, loose=cursor.loose))

    def _unproven(self, segment: SegmentFile, cursor: Cursor, entries: Entries) -> WalkStep:
        """Skip an entry that nothing confirms: the record is lost, or was never in the store."""
        ends = entries["position"].astype(np.int64) + entries["length"].astype(np.int64)
        last = cursor.entry + len(entries) * _ENTRY_BYTES
        if bool((ends > segment.size).all()) and segment.index_size - last < _ENTRY_BYTES:
            detail = f"{len(entries)} entries for records that are not in the store; left out"
            following = cursor.count.next_offset
            self.note(Kind.INDEX_AHEAD, segment.index or "", cursor.entry, detail, "cut", offset=following)
            return WalkStep(cursor.to(cursor.position, entry=last))
        length, position = int(entries["length"][0]), int(entries["position"][0])
        after = cursor.position + length if position == cursor.position and ends[0] <= segment.size else cursor.position
        step = cursor.to(after, cursor.count.skip(), entry=cursor.entry + _ENTRY_BYTES)
        detail = f"the entry at byte {cursor.entry} of the index has {length} bytes; their checksum does not match"
        if int(entries["checksum"][0]) >> 32:
            detail += " (it has more than 32 bits: another hasher than crc32fast?)"
        return self.lose(segment, cursor, step, Kind.CHECKSUM, detail, length)

    def _end_of_index(self, segment: SegmentFile, cursor: Cursor) -> WalkStep:
        """Examine the rest of both files after the last complete entry, or the store if there is no index."""
        rest = self.read_index(segment, cursor.entry, max(segment.index_size - cursor.entry, 0))
        left = segment.size - cursor.position
        if any(rest):
            self.note(Kind.TORN_INDEX, segment.index or "", cursor.entry, f"{len(rest)} bytes are not a complete entry")
            checksum = int.from_bytes(rest[:8], "little")
            if len(rest) >= 8 and self._proves(segment, cursor.position, left, checksum):
                data = self.read_data(segment, cursor.position, left)
                ahead = cursor.to(cursor.position, entry=segment.index_size - _ENTRY_BYTES)
                return self._records(segment, ahead, data, np.zeros(1, np.int64), np.array([left], np.int64))
        elif rest:
            self.note(Kind.PADDED_INDEX, segment.index or "", cursor.entry, f"{len(rest)} zeros at the end")
        if left > 0 and (found := self._unindexed(segment, cursor, segment.size)) is not None:
            return found
        after = self.enter(cursor.segment + 1, cursor)
        if left <= 0:
            return WalkStep(after)
        if segment.index is None:
            detail = f"a store of {segment.size} bytes without an index: the end of its last record is unknown"
            return self.lose(segment, cursor, after, Kind.MISSING_FILE, detail, left)
        if self._holds_records(segment, cursor):
            detail = f"{left} bytes of records without entries in the index"
            return self.lose(segment, cursor, after, Kind.INDEX_BEHIND, detail, left)
        self._cut_last_of_run(segment, cursor.position, segment.size, cursor.count.next_offset)
        return WalkStep(after)

    def _holds_records(self, segment: SegmentFile, cursor: Cursor) -> bool:
        """Return True if the store has the metadata of the next record but one: more than one record follows."""
        index = cursor.count.stored + 2
        size = min(segment.size - cursor.position, CHUNK_BYTES)
        rest = bytes(self.read_data(segment, cursor.position, size))
        for width in (4, 8):
            if 0 <= index < 1 << (8 * width):
                pattern = (1 + width).to_bytes(4, "little") + b"\1" + index.to_bytes(width, "little")
                if pattern in rest[_MIN_BYTES:]:
                    return True
        return False

    def _cut_last_of_run(self, segment: SegmentFile, start: int, end: int, offset: int) -> None:
        """Report the last record of a run, whose end is unknown."""
        head = self.read_data(segment, start, min(end - start, _HEAD_BYTES))
        index = index_in_head(bytes(head), self.decoder)
        what = "that begin no record" if index is None else f"of the record with index {index}"
        detail = f"{end - start} bytes {what} have no entry in the index, as after a kill or a failed append"
        detail += ": its end is unknown, so it may be torn; left out" if index is not None else "; left out"
        self.note(Kind.ORPHAN_BYTES, segment, start, detail, "cut", size_bytes=end - start, offset=offset)

    # --- records without an entry

    def _unindexed(self, segment: SegmentFile, cursor: Cursor, end: int) -> WalkStep | None:
        """Step over records without an entry up to `end`; None if none is known to be complete."""
        restarts = self._restarts(segment, cursor)
        expected = {*restarts, cursor.count.stored + 1}
        size = CHUNK_BYTES
        while True:
            size = min(size, end - cursor.position)
            data = bytes(self.read_data(segment, cursor.position, size))
            heads = heads_at(data, expected, self.decoder)
            if heads is None and self.decoder is None and (found := first_head(data, restarts)) is not None:
                at = cursor.position + found  # the head of the record before it was torn
                self._cut_last_of_run(segment, cursor.position, at, cursor.count.next_offset)
                return WalkStep(cursor.to(at, loose=cursor.loose))
            final = cursor.position + size == end
            if heads is not None and (run := find_unindexed(data, heads, restarts, final=final)) is not None:
                return self._take_unindexed(segment, cursor, data, run)
            if final or (heads is None and size >= _SEARCH_BYTES):
                return None
            size *= 2

    def _restarts(self, segment: SegmentFile, cursor: Cursor) -> range:
        """Return the indices with which laminarmq may have continued after a restart: from the one after the last
        record with an entry up to the number of entries, which is higher if the index has torn entries or is ahead of
        the store."""
        entry = cursor.entry
        at_end = segment.index_size - entry < _ENTRY_BYTES
        high = segment.base + max((segment.index_size if at_end else entry) - _ENTRY_BYTES, 0) // _ENTRY_BYTES
        low = min(high, segment.base + (entry - _ENTRY_BYTES) // _ENTRY_BYTES)
        for _ in range(min(_MAX_UNPROVEN, entry // _ENTRY_BYTES - 1)):
            entry -= _ENTRY_BYTES
            raw = self.read_index(segment, entry, _ENTRY_BYTES)
            checksum, length, position = (int(number) for number in np.frombuffer(raw, _ENTRY)[0])
            if self._proves(segment, position, length, checksum):
                head = bytes(self.read_data(segment, position, min(length, _HEAD_BYTES)))
                index = index_in_head(head, self.decoder)
                return range(low if index is None else min(low, index + 1), high + 1)
        return range(min(low, segment.base + (entry - _ENTRY_BYTES) // _ENTRY_BYTES), high + 1)

    def _take_unindexed(self, segment: SegmentFile, cursor: Cursor, data: bytes, found: Unindexed) -> WalkStep:
        step = WalkStep(cursor.to(cursor.position + found.end, loose=cursor.loose))
        total, offsets = len(found.starts), np.empty(0, np.int64)
        if total:
            detail = (
                f"{total} records without entries in the index, and so without checksums, were found by their metadata"
            )
            size, at = int(found.lengths.sum()), cursor.position + int(found.starts[0])
            self.note(Kind.INDEX_BEHIND, segment, at, detail, size_bytes=size, offset=cursor.count.next_offset)
            read = self._records(segment, cursor, memoryview(data), found.starts, found.lengths)
            assert read.values is not None
            assert len(read.values) == total, "all have metadata of one size"
            offsets = read.values.offsets
            step = WalkStep(cursor.to(step.after.position, read.after.count), read.values)
        following = step.after.count.next_offset
        for start, end in found.last:
            at = int(np.searchsorted(found.starts, start))
            offset = int(offsets[at]) if at < total else following
            self._cut_last_of_run(segment, cursor.position + start, cursor.position + end, offset)
        if found.unclear is None:
            return step
        count = step.after.count
        skipped = 1 if found.resumes is None else max(found.resumes - count.stored - 1, 0)
        beyond = cursor.to(cursor.position + found.unclear, count.skip(skipped), loose=True)
        detail = "records without entries in the index, with no clear boundary between them"
        lost = self.lose(segment, step.after, beyond, Kind.INDEX_BEHIND, detail, found.unclear - found.end)
        return WalkStep(beyond, step.values, lost.lost)


def _leading(good: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """Return how many values are true before the first false one."""
    return len(good) if bool(good.all()) else int(np.argmin(good))


def _other_lengths(segment: SegmentFile, cursor: Cursor, entries: Entries) -> Iterator[int]:
    """Yield the possible lengths of a record whose entry is wrong: up to the next record, or to the end."""
    if len(entries) > 1:
        yield int(entries["position"][1]) - cursor.position
    if segment.index_size - cursor.entry < 2 * _ENTRY_BYTES:
        yield segment.size - cursor.position


# --- export


class LaminarmqWriter(SegmentWriter):
    format = NAME
    own_options = ("index_bits",)
    names = (".store", ".index")
    kept_headers = (f"{NAME}.offset",)

    def __init__(self, log: Log, directory: Directory, job: ExportJob) -> None:
        super().__init__(log, directory, job)
        bits = job.options.get("index_bits", 32 if job.end <= 2**32 else 64)
        if bits not in (32, 64):
            raise InvalidConfig(f"index_bits must be 32 or 64, not {bits!r}")
        if bits == 32 and job.end > 2**32:
            raise ExportRefused(f"offsets up to {job.end - 1} do not fit into 32 bits: export with index_bits=64")
        self._head = np.dtype([("size", "<u4"), ("tag", "u1"), ("index", "<u4" if bits == 32 else "<u8")])

    def sizes(self, rows: ExportRows) -> Numbers:
        return rows.lengths + self._head.itemsize

    def index_head(self) -> bytes:
        """Return the base marker."""
        return self.base.to_bytes(8, "little") + bytes(8)

    def encode(self, rows: ExportRows, sizes: Numbers, position: int) -> tuple[memoryview, bytes]:
        heads = np.empty(len(rows), self._head)
        heads["size"], heads["tag"], heads["index"] = self._head.itemsize - 4, 1, rows.offsets
        data = rows.after(heads)
        starts = np.cumsum(sizes) - sizes
        entries = np.empty(len(rows), _ENTRY)
        entries["checksum"], entries["length"] = checksums(data, starts, sizes), sizes
        entries["position"] = position + starts
        return data, entries.tobytes()


# --- format


def _sniff(directory: Directory) -> Sniffed | None:
    """Recognise records by their checksums in the index, or by the metadata of the first one."""
    found, _ = segment_files(directory)
    if not any(segment.size for segment in found):
        return _sniff_empty(directory, found)
    if any(segment.index is not None for segment in found):
        log = LaminarmqLog(directory, damage="skip")
        try:
            for _, step in zip(range(8), log.walk(), strict=False):
                if step.values is not None:
                    return Sniffed(f"records whose checksums in {log.segments[0].index} match", True)
        finally:
            log.close_file()
    for segment in found:
        if segment.size:
            head = read_start(directory, segment.data or "", _ENTRY_BYTES)
            if heads_at(head, {segment.base}, None) is not None:
                return Sniffed(f"{segment.data} begins with a record with index {segment.base}", True)
    return None


def _sniff_empty(directory: Directory, found: list[SegmentFile]) -> Sniffed | None:
    """Recognise indexes that are empty, or hold only the marker."""
    if not all(segment.index_size in (0, _ENTRY_BYTES) for segment in found):
        return None
    if not any(segment.data is not None and segment.index is not None for segment in found):
        return None
    for segment in found:
        marker = segment.base.to_bytes(_ENTRY_BYTES, "little")
        if segment.index_size and read_start(directory, segment.index or "", _ENTRY_BYTES) != marker:
            return None
    has_marker = any(segment.index_size for segment in found)
    return Sniffed(f"empty stores with {'the marker in their' if has_marker else 'empty'} indexes", has_marker)


FORMAT = Format(
    NAME,
    "laminarmq: <base>.store and a dense, checksummed <base>.index",
    LaminarmqLog,
    partial(detect_below, NAME, _sniff),
    partial(write_segments, LaminarmqWriter),
    has_metadata=True,
)
