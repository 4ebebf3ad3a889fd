"""The plain segmented log of the Kafka paper: no index; a record is addressed by the byte where it begins.

The paper and laminarmq's page `segmented_log` say how records are addressed but not what their bytes are. This is the
layout of the one implementation that existed: laminarmq's, before it had an index. Little endian.

```
<base>.store    [CRC-32 u32][length u32][offset u64][value]     length and checksum cover offset and value
```

`base` and `offset` count bytes through all segments: a record's offset is `base` plus its position in the file, the
next record's is that plus its length, and the next segment is named after the end of this one. A head of zeros is the
end. Later, laminarmq's book has `[checksum u64][length u64][value]` instead; such files are read too (and written with
`head="u64"`); the checksum tells which one it is.

In sawlog, records are counted from 0. The byte offset is kept in the header `plain.byte-offset` (u64, big endian) of
each record; `offset_of(log, byte_offset)` finds a record by it in an imported log, and `ForeignLog.offset_of` in the
source. An export takes the first byte offset from there.

Known defects: a torn tail, and zeros after the last record (files were written in blocks), are left out and reported. A
record whose checksum does not match is lost; the next record is found by the offsets that records contain.
"""

from __future__ import annotations

from functools import partial
from typing import Unpack
from zlib import crc32

import numpy as np

from ..errors import ExportRefused, InvalidConfig, OffsetOutOfRange
from ..log.log import Log
from ..storage import Directory
from .detection import Sniffed, detect_below, read_start
from .exporting import NO_TIMES, ExportRows, SegmentWriter, write_segments
from .foreign import ExportJob, Format, Kind, OpenOptions
from .frames import SEARCH_BYTES, FrameLog, Frames, HeadLayout, ResyncPoint
from .records import MAX_VALUE_BYTES, Count, Numbers, Trust, Values, checksums, number_header, numbers_at
from .walking import Cursor, SegmentFile, segment_files

NAME = "plain"
BYTE_OFFSET = f"{NAME}.byte-offset"
#: The two layouts: 8 bytes followed by an offset, or 16 bytes.
_SHORT, _LONG = HeadLayout(8, 4, 4, False, MAX_VALUE_BYTES), HeadLayout(16, 8, 8, False, MAX_VALUE_BYTES)
_META_BYTES = 8
#: Number of bytes to search for the next record after damage: nearby first.
_RESYNC_BYTES = (256 << 10, SEARCH_BYTES)


class PlainLog(FrameLog):
    """A plain segmented log, read only: records are counted from 0, and `offset_of` finds them by byte offset."""

    format = NAME
    trust = Trust.CHECKED
    parse_defect = Kind.CHECKSUM, "the checksum does not match"
    named_by_offset = False

    def __init__(self, directory: Directory, **options: Unpack[OpenOptions]) -> None:
        found = _first_record(directory)
        self.head = _SHORT if found is None else found[0]
        super().__init__(directory, **options)

    def list_segments(self, found: list[SegmentFile]) -> list[SegmentFile]:
        for segment in found:
            if segment.index is not None:
                self.note(Kind.UNKNOWN_FILE, segment.index, 0, "an index, which a plain log does not have; ignored")
        return super().list_segments(found)

    @property
    def lowest_offset(self) -> int:
        return 0

    def enter(self, number: int, before: Cursor | None) -> Cursor:
        """Segments are contiguous if one begins at the byte where the previous one ends."""
        following = 0 if before is None else before.count.next_offset
        if number < len(self.segments) and before is not None:
            last, segment = self.segments[number - 1], self.segments[number]
            end = last.base + last.size
            if segment.base > end:
                detail = f"bytes {end} to {segment.base - 1} are in no file"
                self.note(Kind.GAP, segment, 0, detail, "missing", offset=following)
            elif segment.base < end and segment.base != last.base + before.entry:  # `entry`: the end before zeros
                detail = f"the segment begins at byte {segment.base}, the previous one ends at {end}"
                self.note(Kind.RESTART, segment, 0, detail, offset=following)
        return Cursor(number, 0, 0, Count(following - 1, following))

    def parse(self, segment: SegmentFile, cursor: Cursor, frames: Frames) -> Values:
        """Verify the checksums, and the offset stored in each record."""
        head, meta = self.head.size, _META_BYTES if self.head is _SHORT else 0
        right = numbers_at(frames.data, frames.starts, -head, head - self.head.length_size) == checksums(
            frames.data, frames.starts, frames.lengths
        )
        right &= frames.lengths >= max(meta, 1)
        good = len(frames) if right.all() else int(np.argmin(right))
        positions = segment.base + cursor.position + frames.starts[:good] - head
        if meta:
            self._check_offsets(segment, frames, positions)
        headers = {BYTE_OFFSET: number_header(positions)}
        offsets = np.arange(cursor.count.next_offset, cursor.count.next_offset + good, dtype=np.int64)
        return Values(frames.data, offsets, frames.starts[:good] + meta, frames.lengths[:good] - meta, headers)

    def _check_offsets(self, segment: SegmentFile, frames: Frames, positions: Numbers) -> None:
        stored = numbers_at(frames.data, frames.starts[: len(positions)], 0, _META_BYTES)
        wrong = np.flatnonzero(stored != positions)
        if len(wrong):
            i = int(wrong[0])
            detail = f"a record has byte offset {int(stored[i]) % 2**64}, but is at {int(positions[i])}"
            self.note(Kind.BAD_OFFSET, segment, int(positions[i]) - segment.base, detail)

    def check_entries(self, segment: SegmentFile, cursor: Cursor, positions: Numbers, stored: Numbers) -> int:
        """There is no index: return the end of the records instead, for `enter`."""
        last = int(positions[-1])
        return last + self.head.size + self.head.length_in(self.read_data(segment, last, self.head.size))

    def resync(self, segment: SegmentFile, cursor: Cursor) -> ResyncPoint | None:
        """Search for a record that contains its own position, and whose checksum matches."""
        for size in _RESYNC_BYTES:
            found = self._search(segment, cursor.position + 1, size)
            if found is not None:
                return ResyncPoint(found)
        return None

    def _search(self, segment: SegmentFile, start: int, max_bytes: int) -> int | None:
        size = min(segment.size - start, max_bytes)
        count = size - _SHORT.size - _META_BYTES + 1
        if self.head is not _SHORT or count <= 0:
            return None
        window = np.frombuffer(self.read_data(segment, start, size), np.uint8)
        likely = np.ones(count, np.bool_)
        wanted = np.arange(segment.base + start, segment.base + start + count, dtype=np.int64)
        for i in range(_META_BYTES):
            likely &= window[8 + i : 8 + i + count] == ((wanted >> (8 * i)) & 255)
        for at in np.flatnonzero(likely).tolist():
            length = int.from_bytes(window[at + 4 : at + 8].tobytes(), "little")
            checksum = int.from_bytes(window[at : at + 4].tobytes(), "little")
            first = start + at + _SHORT.size
            if length <= segment.size - first and crc32(self.read_data(segment, first, length)) == checksum:
                return start + at
        return None

    def offset_of(self, byte_offset: int) -> int:
        """Return the offset of the record that begins at that byte of the log; `OffsetOutOfRange` if none does."""
        self.check_open()
        for number, segment in enumerate(self.segments):
            if segment.base <= byte_offset < segment.base + segment.size:
                for step in self.walk(self._first_of(number)):
                    if step.values is not None:
                        positions = np.frombuffer(step.values.headers[BYTE_OFFSET].buffers()[2], ">i8")
                        at = int(np.searchsorted(positions, byte_offset))
                        if at < len(positions) and int(positions[at]) == byte_offset:
                            return int(step.values.offsets[at])
                        if at < len(positions):
                            break
        first, last = self.segments[0], self.segments[-1]
        where = f"{self.path} (in bytes; no record begins there)"
        raise OffsetOutOfRange(byte_offset, first.base, last.base + last.size, where)

    def _first_of(self, number: int) -> int:
        """Return the highest known offset that is not after the beginning of a segment."""
        marks = [mark for mark in self._marks if mark.segment <= number]
        return min(marks[-1].count.next_offset, *[m.count.next_offset for m in marks if m.segment == number] or [2**63])


def offset_of(log: Log, byte_offset: int) -> int:
    """Return the offset, in a log imported from a plain one, of the record that began at that byte."""
    low, high = log.lowest_offset, log.next_offset
    while low < high:
        middle = (low + high) // 2
        record = next(log.scan(middle, high), None)
        if record is None:
            high = middle
            continue
        headers = dict(record.headers)
        if BYTE_OFFSET not in headers:
            raise InvalidConfig(
                f"{log.path} was not imported from a plain log: offset {record.offset} has no byte offset"
            )
        stored = int.from_bytes(headers[BYTE_OFFSET] or b"", "big")
        if stored == byte_offset:
            return int(record.offset)
        if stored < byte_offset:
            low = record.offset + 1
        else:
            high = middle
    where = f"{log.path} (no record began at that byte)"
    raise OffsetOutOfRange(byte_offset, log.lowest_offset, log.next_offset, where)


# --- export


class PlainWriter(SegmentWriter):
    format = NAME
    own_options = ("head",)
    names = (".store", "")
    dense = False
    kept_headers = (BYTE_OFFSET,)

    def __init__(self, log: Log, directory: Directory, job: ExportJob) -> None:
        super().__init__(log, directory, job)
        head = job.options.get("head", "u32")
        if head not in ("u32", "u64"):
            raise InvalidConfig(f'head must be "u32" or "u64", not {head!r}')
        self._layout = layout = _SHORT if head == "u32" else _LONG
        first = next((dict(record.headers).get(BYTE_OFFSET) for record in log.scan(job.start, job.end)), None)
        self._next_byte = int.from_bytes(first, "big") if first is not None and len(first) == 8 else 0
        meta = [("offset", "<u8")] if layout is _SHORT else []
        self._head = np.dtype([("checksum", f"<u{layout.length_at}"), ("length", f"<u{layout.length_size}"), *meta])

    def remarks(self) -> tuple[str, ...]:
        return NO_TIMES, "records are addressed by byte offset; readers count offsets from 0"

    def name_of(self, offset: int) -> int:
        """Segments are named after their first byte."""
        return self._next_byte

    def sizes(self, rows: ExportRows) -> Numbers:
        lengths = rows.lengths
        if self._layout is _LONG and not lengths.all():
            raise ExportRefused('a record without a value would look like the end of the log: export with head="u32"')
        return lengths + self._head.itemsize

    def encode(self, rows: ExportRows, sizes: Numbers, position: int) -> tuple[memoryview, bytes]:
        head = self._layout.size
        heads = np.zeros(len(rows), self._head)
        ends = np.cumsum(sizes)
        heads["length"] = sizes - head
        if self._layout is _SHORT:
            heads["offset"] = self._next_byte + ends - sizes
        data = rows.after(heads)
        found = checksums(data, ends - sizes + head, sizes - head).astype("<u4")
        where = (ends - sizes)[:, None] + np.arange(4)
        np.frombuffer(data, np.uint8)[where] = found.view(np.uint8).reshape(-1, 4)
        self._next_byte += int(ends[-1])
        return data, b""


# --- format


def _sniff(directory: Directory) -> Sniffed | None:
    """Recognise a record whose checksum matches, or empty stores without an index."""
    found, _ = segment_files(directory)
    if any(segment.size for segment in found):
        seen = _first_record(directory)
        return None if seen is None else Sniffed(f"{seen[1]} begins with a record whose checksum matches", True)
    indexed = any(segment.index is not None for segment in found)
    return Sniffed("empty stores without an index", False) if found and not indexed else None


def _first_record(directory: Directory) -> tuple[HeadLayout, str] | None:
    """Return the layout of the first segment that begins with a record, and the name of its file."""
    for segment in segment_files(directory)[0][:8]:
        if segment.data is not None and segment.size > _SHORT.size:
            data = read_start(directory, segment.data, 1 << 20)
            for layout in (_SHORT, _LONG):
                if _is_record(layout, data, segment.base):
                    return layout, segment.data
    return None


def _is_record(layout: HeadLayout, data: bytes, base: int) -> bool:
    """Return True if the first record has this layout: its checksum matches, as far as it has been read."""
    head = layout.size
    length = layout.length_in(data)
    if length == 0:
        return False
    if length > len(data) - head:  # too long to verify
        return layout is _SHORT and int.from_bytes(data[head : head + 8], "little") == base
    return crc32(data[head : head + length]) == int.from_bytes(data[: layout.length_at], "little")


FORMAT = Format(
    NAME,
    "the Kafka paper's plain segmented log: <byte offset>.store, no index",
    PlainLog,
    partial(detect_below, NAME, _sniff),
    partial(write_segments, PlainWriter),
)
