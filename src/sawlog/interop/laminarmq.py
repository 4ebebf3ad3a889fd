"""laminarmq: records without a frame, and an index with the position and checksum of each. Little endian.

```
<base>.index    [base index u64][zeros, 8 bytes]                      once, before the first entry
                [checksum u64][length u32][position u32]              one per record
<base>.store    [metadata length u32][metadata][value]                no head, no separator
                metadata as bincode writes MetaWithIdx<(), u32 or u64>: [01][index u32 or u64]; [00] without one
```

Names are decimal, without leading zeros. The checksum is CRC-32 (IEEE, as in zlib) of all three parts, in the low half
of the field; the length counts all three. It is verified for every record that is read.

Without an entry there is no checksum, so the index is needed, and everything that laminarmq checks is checked: the base
in the name and in the file (`BaseMismatch`, `NoBase`), the size of the index (`IndexSizeMismatch`), entries that skip
bytes or point elsewhere (`IndexGap`), checksum and length (`ChecksumMismatch`), metadata (`UnreadableRecord`). With
`strict` each of them raises. Without it, this is what is done about what is known to go wrong:

* a second base marker (after truncating to the first record) is skipped; laminarmq itself reads it as a record;
* a torn entry at the end of the index is skipped; if the rest of it proves the record, the record is read;
* a torn entry in the middle, after which all entries are misaligned, is found by their checksums;
* entries for bytes that are not in the store are left out; so are zeros at the end of the index;
* an entry whose length or position is damaged is corrected if the checksum proves it.

Records without entries in the index (it is written later than the store) are found by their metadata, see
laminarmq_store.py. After a kill laminarmq continues to append after them, and reuses their indices: the records of all
runs are read, in the order of the file, with new offsets where indices are reused (`RESTART`). The last record of a run
is left out and reported, because its end is unknown: it may be torn, or belong to an append that failed.

A record whose checksum does not match is lost. Metadata other than `()` needs a decoder (`open_decoding`); it is kept
in the header `laminarmq.metadata`.

Export writes segments of `segment_bytes` (default 256 MiB) with `index_bits` 32 or 64 (default: 32 if sufficient).
"""

from __future__ import annotations

import numpy as np

from ..batch import kernel
from ..errors import ExportRefused, InvalidConfig
from ..log.log import Log
from ..storage import Directory
from .columns import MAX_VALUE_BYTES, Extra, HeaderBytes, Values
from .damage import Finding, Kind
from .foreign import Damage, ExportJob, ExportReport
from .laminarmq_evidence import (
    ENTRY,
    ENTRY_BYTES,
    LEAST_BYTES,
    holds_records,
    is_zero_from,
    marked,
    misaligned_by,
    other_lengths,
    proves,
)
from .laminarmq_export import OFFSET, LaminarmqWriter
from .laminarmq_store import Decoder, Stretch, decoded, head_index, heads_after, heads_at, stretch
from .layout import Sniffed, beginning
from .numbering import MAX_OFFSET, Numbers, Trust, assign
from .walked_format import WalkedFormat
from .walking import CHUNK_BYTES, Cursor, SegmentFile, WalkedLog, WalkStep, segment_files
from .writing import write_segments

NAME = "laminarmq"
_MAX_ROWS = 1 << 16
#: How many bytes to search for the first record of a run after a record whose head was torn.
_SEARCH_BYTES = 64 << 20
#: How many entries to go back for one that is proven by its checksum.
_MOST_UNPROVEN = 64
#: How many bytes of a record to read for the index in its metadata.
_HEAD_BYTES = 1 << 16
#: The header with the metadata of records, if a decoder was given.
_METADATA = f"{NAME}.metadata"


class LaminarmqLog(WalkedLog):
    """A log of laminarmq, read only."""

    format = NAME
    first_entry = ENTRY_BYTES
    #: The size of the index in a record's metadata in bytes, as far as it is known.
    index_bytes: int | None = None

    def __init__(
        self,
        directory: Directory,
        *,
        damage: Damage = "stop",
        strict: bool = False,
        metadata: Decoder | None = None,
    ) -> None:
        self._decoder = metadata
        super().__init__(directory, damage=damage, strict=strict)

    def _segments_of(self) -> list[SegmentFile]:
        found = self._listed(".store", ".index")
        for segment in found:
            if segment.data is None and segment.index_size > ENTRY_BYTES:
                count = segment.index_size // ENTRY_BYTES - 1
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
        marker = self.read_index(segment, 0, min(ENTRY_BYTES, segment.index_size))
        if not marker:
            return
        index = segment.index or ""
        if len(marker) < ENTRY_BYTES:
            self.note(Kind.NO_BASE, index, 0, f"the base marker has only {len(marker)} bytes; the name is used")
            return
        base = int.from_bytes(marker[:8], "little")
        if base != segment.base:
            self.note(Kind.BASE_MISMATCH, index, 0, f"the name has {segment.base}, the marker {base}; the name is used")
        if any(marker[8:]):
            self.note(Kind.BAD_INDEX, index, 8, "the base marker is not padded with zeros")

    # --- steps

    def step(self, cursor: Cursor) -> WalkStep:
        """Over as many consecutive entries as have good records."""
        segment = self.segments[cursor.segment]
        if segment.index is None:
            return self._no_index(segment, cursor)
        if segment.index_size - cursor.entry < ENTRY_BYTES:
            return self._end_of_index(segment, cursor)
        count = min((segment.index_size - cursor.entry) // ENTRY_BYTES, _MAX_ROWS)
        entries = np.frombuffer(self.read_index(segment, cursor.entry, count * ENTRY_BYTES), ENTRY)
        starts, lengths = entries["position"].astype(np.int64), entries["length"].astype(np.int64)
        ends = starts + lengths
        regular = (starts == np.concatenate(([cursor.position], ends[:-1]))) & (ends <= segment.size)
        regular &= (lengths >= LEAST_BYTES) & (lengths <= MAX_VALUE_BYTES)
        count = _leading(regular)
        if count:
            count = max(int(np.searchsorted(ends[:count] - cursor.position, CHUNK_BYTES, "right")), 1)
            data = self.read_data(segment, cursor.position, int(ends[count - 1]) - cursor.position)
            checksums = np.empty(count, np.int64)
            inside = starts[:count] - cursor.position
            kernel.crc32_of(data, memoryview(inside), memoryview(lengths[:count].copy()), memoryview(checksums))
            right = _leading(checksums.astype(np.uint64) == entries["checksum"][:count])
            if right:
                return self._records(segment, cursor, data, inside[:right], lengths[:right])
        return self._odd_entry(segment, cursor, entries)

    def _records(
        self, segment: SegmentFile, cursor: Cursor, data: memoryview, starts: Numbers, lengths: Numbers
    ) -> WalkStep:
        """Records whose checksums match; ends before one whose metadata differs from the first."""
        if self._decoder is not None:
            return self._decoded_records(segment, cursor, data, starts, lengths, self._decoder)
        sizes = np.empty(len(starts), np.int64)
        kernel.numbers_at(data, memoryview(starts), 0, 4, False, memoryview(sizes))
        size = int(sizes[0])
        tags = np.frombuffer(data, np.uint8)[starts + 4]
        same = _leading((sizes == size) & (tags == (size > 1)) & (lengths >= 4 + size))
        if size not in (1, 5, 9) or not same:
            after = cursor.to(cursor.position + int(lengths[0]), cursor.count.skip(), entry=cursor.entry + ENTRY_BYTES)
            detail = f"{size} bytes of metadata are not MetaWithIdx<(), u32> or <(), u64>; the checksum is right"
            return self._lost(segment, cursor, after, Kind.UNREADABLE, detail, int(lengths[0]))
        starts, lengths = starts[:same], lengths[:same]
        stored = self._indices(cursor, data, starts, size)
        return self._numbered(segment, cursor, Values(data, stored, starts + 4 + size, lengths - 4 - size), starts)

    def _numbered(self, segment: SegmentFile, cursor: Cursor, found: Values, starts: Numbers) -> WalkStep:
        """Records with the index in their metadata; `starts` is where they begin, before their metadata."""
        stored, count = found.offsets, len(found)
        numbered = assign(stored, cursor.count, base=segment.base, trust=Trust.CHECKED, final=True, loose=cursor.loose)
        assert len(numbered.offsets) == count, "checked numbers are always taken"
        for odd in numbered.oddities:
            at = cursor.position + int(starts[odd.index])
            self.note(odd.kind, segment, at, odd.detail, odd.outcome, offset=odd.offset)
        moved = stored != numbered.offsets
        extras = (Extra(OFFSET, stored, moved),) if moved.any() else ()
        end = cursor.position + int(found.starts[-1] + found.lengths[-1])
        values = Values(found.data, numbered.offsets, found.starts, found.lengths, extras, found.parts)
        return WalkStep(cursor.to(end, numbered.count, entry=cursor.entry + ENTRY_BYTES * count), values)

    def _decoded_records(
        self,
        segment: SegmentFile,
        cursor: Cursor,
        data: memoryview,
        starts: Numbers,
        lengths: Numbers,
        decoder: Decoder,
    ) -> WalkStep:
        """Records with metadata that the decoder understands; ends before one that it does not."""
        sizes, stored = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
        good, following = 0, cursor.count.stored + 1
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            size = int.from_bytes(data[start : start + 4], "little")
            index = decoded(decoder, bytes(data[start + 4 : start + 4 + size])) if size <= length - 4 else -1
            if index is not None and not 0 <= index < MAX_OFFSET:
                break
            sizes[good], stored[good] = size, following if index is None else index
            good, following = good + 1, int(stored[good]) + 1
        if not good:
            after = cursor.to(cursor.position + int(lengths[0]), cursor.count.skip(), entry=cursor.entry + ENTRY_BYTES)
            detail = f"the decoder rejects {size} bytes of metadata; the checksum is right"
            return self._lost(segment, cursor, after, Kind.UNREADABLE, detail, int(lengths[0]))
        sizes = sizes[:good]
        inside, rest = starts[:good] + 4, lengths[:good] - 4
        kept = (HeaderBytes(_METADATA, inside, sizes),)
        found = Values(data, stored[:good], inside + sizes, rest - sizes, parts=kept)
        return self._numbered(segment, cursor, found, starts)

    def _indices(self, cursor: Cursor, data: memoryview, starts: Numbers, size: int) -> Numbers:
        """The index stored in each record; without one, the next index."""
        first = cursor.count.stored + 1
        if size == 1:
            return np.arange(first, first + len(starts), dtype=np.int64)
        self.index_bytes = size - 1
        stored = np.empty(len(starts), np.int64)
        kernel.numbers_at(data, memoryview(starts), 5, size - 1, False, memoryview(stored))
        return stored

    # --- errors

    def _odd_entry(
        self, segment: SegmentFile, cursor: Cursor, entries: np.ndarray[tuple[int], np.dtype[np.void]]
    ) -> WalkStep:
        """Handle an entry that does not follow the previous one, or whose record is bad."""
        checksum, length, position = (int(number) for number in entries[0])
        index = segment.index or ""
        if is_zero_from(self, segment, cursor.entry):
            size = segment.index_size - cursor.entry
            self.note(Kind.PADDED_INDEX, index, cursor.entry, f"{size} zeros at the end", size_bytes=size)
            return WalkStep(cursor.to(cursor.position, entry=segment.index_size))
        if length == 0 and position == 0 and checksum in (segment.base, marked(self, segment)):
            self.note(Kind.SECOND_MARKER, index, cursor.entry, "the base marker is repeated here; skipped")
            return WalkStep(cursor.to(cursor.position, entry=cursor.entry + ENTRY_BYTES))
        if proves(self, segment, position, length, checksum):
            return self._elsewhere(segment, cursor, position)
        torn_bytes = misaligned_by(self, segment, cursor)
        if torn_bytes:
            detail = f"{torn_bytes} bytes of a torn entry; the entries after it are read"
            self.note(Kind.TORN_INDEX, index, cursor.entry, detail, size_bytes=torn_bytes)
            return WalkStep(cursor.to(cursor.position, entry=cursor.entry + torn_bytes))
        for size in other_lengths(segment, cursor, entries):
            if proves(self, segment, cursor.position, size, checksum):
                detail = f"an entry has {length} bytes at {position}; the checksum proves {size} at {cursor.position}"
                self.note(Kind.BAD_INDEX, index, cursor.entry, detail, offset=cursor.count.next_offset)
                data = self.read_data(segment, cursor.position, size)
                return self._records(segment, cursor, data, np.zeros(1, np.int64), np.array([size], np.int64))
        return self._unproven(segment, cursor, entries)

    def _elsewhere(self, segment: SegmentFile, cursor: Cursor, position: int) -> WalkStep:
        """The entry is right, but does not point at the end of the previous record."""
        if position > cursor.position:
            found = self._unindexed(segment, cursor, position)
            if found is not None:
                return found
            self._leave_out(segment, cursor, cursor.position, position, cursor.count.next_offset)
        else:
            detail = f"an entry points at byte {position}, before the end of the previous record; its checksum is right"
            self.note(Kind.BAD_INDEX, segment.index or "", cursor.entry, detail)
        return WalkStep(cursor.to(position, loose=cursor.loose))

    def _unproven(
        self, segment: SegmentFile, cursor: Cursor, entries: np.ndarray[tuple[int], np.dtype[np.void]]
    ) -> WalkStep:
        """An entry that nothing confirms: the record is lost, or was never in the store."""
        ends = entries["position"].astype(np.int64) + entries["length"].astype(np.int64)
        last = cursor.entry + len(entries) * ENTRY_BYTES
        if bool((ends > segment.size).all()) and segment.index_size - last < ENTRY_BYTES:
            detail = f"{len(entries)} entries for records that are not in the store; left out"
            following = cursor.count.next_offset
            self.note(Kind.INDEX_AHEAD, segment.index or "", cursor.entry, detail, "cut", offset=following)
            return WalkStep(cursor.to(cursor.position, entry=last))
        length, position = int(entries["length"][0]), int(entries["position"][0])
        after = cursor.position + length if position == cursor.position and ends[0] <= segment.size else cursor.position
        step = cursor.to(after, cursor.count.skip(), entry=cursor.entry + ENTRY_BYTES)
        detail = f"the entry at byte {cursor.entry} of the index has {length} bytes; their checksum does not match"
        if int(entries["checksum"][0]) >> 32:
            detail += " (it has more than 32 bits: another hasher than crc32fast?)"
        return self._lost(segment, cursor, step, Kind.CHECKSUM, detail, length)

    def _end_of_index(self, segment: SegmentFile, cursor: Cursor) -> WalkStep:
        """No more entries; examine the rest of both files."""
        rest = self.read_index(segment, cursor.entry, max(segment.index_size - cursor.entry, 0))
        left = segment.size - cursor.position
        if any(rest):
            self.note(Kind.TORN_INDEX, segment.index or "", cursor.entry, f"{len(rest)} bytes are not a complete entry")
            checksum = int.from_bytes(rest[:8], "little")
            if len(rest) >= 8 and proves(self, segment, cursor.position, left, checksum):
                data = self.read_data(segment, cursor.position, left)
                ahead = cursor.to(cursor.position, entry=segment.index_size - ENTRY_BYTES)
                return self._records(segment, ahead, data, np.zeros(1, np.int64), np.array([left], np.int64))
        elif rest:
            self.note(Kind.PADDED_INDEX, segment.index or "", cursor.entry, f"{len(rest)} zeros at the end")
        if left > 0 and (found := self._unindexed(segment, cursor, segment.size)) is not None:
            return found
        after = self.enter(cursor.segment + 1, cursor)
        if left <= 0:
            return WalkStep(after)
        if holds_records(self, segment, cursor):
            detail = f"{left} bytes of records without entries in the index"
            return self._lost(segment, cursor, after, Kind.INDEX_BEHIND, detail, left)
        self._leave_out(segment, cursor, cursor.position, segment.size, cursor.count.next_offset)
        return WalkStep(after)

    def _leave_out(self, segment: SegmentFile, cursor: Cursor, start: int, end: int, offset: int) -> None:
        """Report the last record of a run: nothing tells where it ends."""
        head = self.read_data(segment, start, min(end - start, _HEAD_BYTES))
        index = head_index(bytes(head), self._decoder)
        what = "that begin no record" if index is None else f"of the record with index {index}"
        detail = f"{end - start} bytes {what} have no entry in the index, as after a kill or a failed append"
        detail += ": its end is unknown, so it may be torn; left out" if index is not None else "; left out"
        self.note(Kind.ORPHAN_BYTES, segment, start, detail, "cut", size_bytes=end - start, offset=offset)

    def _unindexed(self, segment: SegmentFile, cursor: Cursor, end: int) -> WalkStep | None:
        """Records without an entry up to `end`, found by their metadata; None if none is known to be complete."""
        restarts = self._restarts(segment, cursor)
        expected = {*restarts, cursor.count.stored + 1}
        size = CHUNK_BYTES
        while True:
            size = min(size, end - cursor.position)
            data = bytes(self.read_data(segment, cursor.position, size))
            heads = heads_at(data, expected, self._decoder)
            if heads is None and self._decoder is None and (found := heads_after(data, restarts)) is not None:
                at = cursor.position + found[0]  # the head of the record before it was torn
                self._leave_out(segment, cursor, cursor.position, at, cursor.count.next_offset)
                return WalkStep(cursor.to(at, loose=cursor.loose))
            final = cursor.position + size == end
            if heads is not None and (run := stretch(data, heads, restarts, final=final)) is not None:
                return self._stretch(segment, cursor, data, run)
            if final or (heads is None and size >= _SEARCH_BYTES):
                return None
            size *= 2

    def _restarts(self, segment: SegmentFile, cursor: Cursor) -> range:
        """The indices with which laminarmq may have continued after a restart: from the one after the last record with
        an entry up to the number of entries, which is higher if the index has torn entries or is ahead of the store."""
        entry = cursor.entry
        at_end = segment.index_size - entry < ENTRY_BYTES
        high = segment.base + max((segment.index_size if at_end else entry) - ENTRY_BYTES, 0) // ENTRY_BYTES
        low = min(high, segment.base + (entry - ENTRY_BYTES) // ENTRY_BYTES)
        for _ in range(min(_MOST_UNPROVEN, entry // ENTRY_BYTES - 1)):
            entry -= ENTRY_BYTES
            raw = self.read_index(segment, entry, ENTRY_BYTES)
            checksum, length, position = (int(number) for number in np.frombuffer(raw, ENTRY)[0])
            if proves(self, segment, position, length, checksum):
                index = head_index(bytes(self.read_data(segment, position, min(length, _HEAD_BYTES))), self._decoder)
                return range(low if index is None else min(low, index + 1), high + 1)
        return range(min(low, segment.base + (entry - ENTRY_BYTES) // ENTRY_BYTES), high + 1)

    def _stretch(self, segment: SegmentFile, cursor: Cursor, data: bytes, found: Stretch) -> WalkStep:
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
            self._leave_out(segment, cursor, cursor.position + start, cursor.position + end, offset)
        if found.unclear is None:
            return step
        count = step.after.count
        skipped = 1 if found.resumes is None else max(found.resumes - count.stored - 1, 0)
        beyond = cursor.to(cursor.position + found.unclear, count.skip(skipped), loose=True)
        detail = "records without entries in the index, with no clear boundary between them"
        lost = self._lost(segment, step.after, beyond, Kind.INDEX_BEHIND, detail, found.unclear - found.end)
        return WalkStep(beyond, step.values, lost.lost)

    def _no_index(self, segment: SegmentFile, cursor: Cursor) -> WalkStep:
        left = segment.size - cursor.position
        if left > 0 and (found := self._unindexed(segment, cursor, segment.size)) is not None:
            return found
        detail = f"a store of {segment.size} bytes without an index: the end of its last record is unknown"
        after = self.enter(cursor.segment + 1, cursor)
        if left <= 0:
            return WalkStep(after)
        return self._lost(segment, cursor, after, Kind.MISSING_FILE, detail, left)

    def _lost(
        self, segment: SegmentFile, cursor: Cursor, after: Cursor, kind: Kind, detail: str, size_bytes: int
    ) -> WalkStep:
        finding: Finding = self.note(
            kind, segment, cursor.position, detail, "lost", size_bytes=size_bytes, offset=cursor.count.next_offset
        )
        return WalkStep(after, lost=finding)


def _leading(good: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """How many are right, counted from the first."""
    return len(good) if bool(good.all()) else int(np.argmin(good))


class LaminarmqFormat(WalkedFormat):
    """How its logs are found, read and written."""

    def open_decoding(
        self, directory: Directory, metadata: Decoder, *, damage: Damage = "stop", strict: bool = False
    ) -> LaminarmqLog:
        return LaminarmqLog(directory, damage=damage, strict=strict, metadata=metadata)

    def place(self, topic: str, partition: int) -> str:
        """laminarmq has no topics: a directory for each log."""
        return f"{topic}-{partition}"

    def write(self, log: Log, directory: Directory, job: ExportJob) -> ExportReport:
        bits = job.options.get("index_bits", 32 if job.end <= 2**32 else 64)
        if bits not in (32, 64):
            raise InvalidConfig(f"index_bits must be 32 or 64, not {bits!r}")
        if bits == 32 and job.end > 2**32:
            raise ExportRefused(f"offsets up to {job.end - 1} do not fit into 32 bits: export with index_bits=64")
        writer = LaminarmqWriter(directory, 4 if bits == 32 else 8)
        return write_segments(NAME, log, directory, job, writer, "index_bits")


def _sniff(directory: Directory) -> Sniffed | None:
    found, _ = segment_files(directory, ".store", ".index")
    if not any(segment.size for segment in found):
        return _sniff_empty(directory, found)
    if any(segment.index is not None for segment in found):
        log = LaminarmqLog(directory, damage="skip")
        try:
            for _, step in zip(range(8), log.walk(), strict=False):
                if step.values is not None:
                    return Sniffed(f"records whose checksums in {log.segments[0].index} match", True)
        finally:
            log.let_go()
    for segment in found:
        if (
            segment.size
            and heads_at(beginning(directory, segment.data or "", ENTRY_BYTES), {segment.base}, None) is not None
        ):
            return Sniffed(f"{segment.data} begins with a record whose metadata says {segment.base}", True)
    return None


def _sniff_empty(directory: Directory, found: list[SegmentFile]) -> Sniffed | None:
    """Stores without a record: their indexes are empty, or hold nothing but the marker."""
    if not all(segment.index_size in (0, ENTRY_BYTES) for segment in found):
        return None
    if not any(segment.data is not None and segment.index is not None for segment in found):
        return None
    for segment in found:
        if segment.index_size and beginning(directory, segment.index or "", ENTRY_BYTES) != segment.base.to_bytes(
            16, "little"
        ):
            return None
    has_marker = any(segment.index_size for segment in found)
    return Sniffed(f"empty stores with {'the marker in their' if has_marker else 'empty'} indexes", has_marker)


FORMAT = LaminarmqFormat(NAME, "laminarmq: <base>.store and a dense, checksummed <base>.index", LaminarmqLog, _sniff)
