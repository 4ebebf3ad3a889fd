"""GUMLOG: length-prefixed protobuf records, and an index preallocated at its maximum size. Big endian.

```
<base>.store    [length u64][record]        record: protobuf {bytes value = 1; uint64 offset = 2; uint64 term = 3;
                                                              uint32 type = 4}, fields that are 0 are omitted
<base>.index    [relative offset u32][position u64]     one entry per record, padded with zeros while it is open
```

Names are decimal, without leading zeros. There is no checksum, but a record must parse. The store is authoritative; the
index only helps to resynchronise after records that cannot be read. Known defects, and how they are handled:

* an index that was not closed cleanly ends in zeros, up to its full size: reported, not needed. GUMLOG itself reads the
  zeros as records, continues at the wrong offset and gets stuck;
* an append that the full index refused remains in the store, and the next record gets the same offset: both are kept,
  with new offsets, and the header `gumlog.offset` has the original one;
* entries for records that never reached the store (it is buffered, the index is not): reported;
* the last record is incomplete: it is cut off. If GUMLOG was restarted, other records follow the fragment, from the
  second offset of the segment on: the fragment is left out and its length ignored (see frames.py);
* a running GUMLOG keeps the end of every store in memory: see importing.py.

`term` and `type`, which GUMLOG's Raft log uses, become the headers `gumlog.term` and `gumlog.type` (u64, big endian)
where they are not 0, and are written back from there.

An export writes segments of `segment_bytes` (default 256 MiB), with indexes as GUMLOG leaves them when it is closed.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..batch import kernel
from ..storage import Directory
from .detection import Sniffed, detect_below, read_start
from .exporting import NO_TIMES, ExportRows, SegmentWriter, write_segments
from .foreign import Format, Kind
from .frames import Frames, Head, HeadLayout, Range, RestartingLog, contains, numbers_in
from .records import MAX_OFFSET, MAX_VALUE_BYTES, Numbers, Trust, Values, number_header
from .walking import CHUNK_BYTES, Cursor, SegmentFile, segment_files

NAME = "gumlog"
HEAD_BYTES = 8
_ENTRY_BYTES = 12
_INDEX = np.dtype([("relative", ">u4"), ("position", ">u8")])
#: Number of bytes of a store that detection reads.
_SNIFF_BYTES = 1 << 16
_TERM, _TYPE = f"{NAME}.term", f"{NAME}.type"
#: The tags of a record's fields.
_TAGS = (0x0A, 0x10, 0x18, 0x20)
#: Maximum size of the value's tag and length, and of the three numbers after it.
_VALUE_HEAD_BYTES, _NUMBERS_BYTES = 11, 33


class GumlogLog(RestartingLog):
    """A log of GUMLOG, read only. `read(-1)` is the last record."""

    format = NAME
    head = HeadLayout(HEAD_BYTES, 0, 8, True, MAX_VALUE_BYTES)
    trust = Trust.PARSED
    #: The second offset if the index ends in zeros, the first if it is empty.
    restart_choices = 2
    #: A stuck GUMLOG gives the same offset to every record.
    repeats_offsets = True
    gap_hint = (
        "; a running GUMLOG keeps the end of each segment in memory: if it is running, close it and import "
        "again to add these records"
    )

    def parse(self, segment: SegmentFile, cursor: Cursor, frames: Frames) -> Values:
        return _parse(frames)

    # --- the index

    def check_entries(self, segment: SegmentFile, cursor: Cursor, positions: Numbers, stored: Numbers) -> int:
        """Report index entries that point elsewhere. The returned position counts records, not entries."""
        first = cursor.entry // _ENTRY_BYTES
        if cursor.loose:  # only the offsets tell how many records were skipped
            first = max(first, int(stored[0]) - segment.base)
        last = min(first + len(positions), segment.index_size // _ENTRY_BYTES)
        if last > first:
            entries = self.read_entries(segment, _INDEX, first, last)
            real = (entries["relative"] != 0) | (entries["position"] != 0)
            wrong = entries["position"].astype(np.int64) != positions[: last - first]
            wrong |= entries["relative"] != np.arange(first, last)
            found = np.flatnonzero(real & wrong)
            if len(found):
                at = _ENTRY_BYTES * (first + int(found[0]))
                detail = "an entry does not point at a record; it is not needed"
                self.note(Kind.BAD_INDEX, segment.index or "", at, detail)
        return _ENTRY_BYTES * (first + len(positions))

    def check_index_end(self, segment: SegmentFile, cursor: Cursor) -> None:
        """Compare the number of entries with the number of records."""
        records = cursor.entry // _ENTRY_BYTES
        if segment.index is None or cursor.loose:  # after damage the number of records is unknown
            return
        entries = -(-self._used_bytes(segment) // _ENTRY_BYTES)
        if entries == 0 and records and segment.index_size >= _ENTRY_BYTES:
            entries = 1  # the entry of the first record is all zeros
        end = entries * _ENTRY_BYTES
        if segment.index_size < end:
            at = segment.index_size // _ENTRY_BYTES * _ENTRY_BYTES
            self.note(Kind.TORN_INDEX, segment.index, at, "not a complete entry")
        elif segment.index_size > max(end, _ENTRY_BYTES if records else 0):
            size = segment.index_size - end
            self.note(Kind.PADDED_INDEX, segment.index, end, f"{size} zeros after the last entry", size_bytes=size)
        if entries < records:
            detail = f"{records - entries} records have no entry in the index; they are kept"
            self.note(Kind.INDEX_BEHIND, segment.index, end, detail)
        elif entries > records:
            detail = f"{entries - records} entries for records that are not in the store"
            offset = cursor.count.next_offset
            self.note(Kind.INDEX_AHEAD, segment.index, records * _ENTRY_BYTES, detail, "cut", offset=offset)

    def _used_bytes(self, segment: SegmentFile) -> int:
        """Return the end of the last non-zero byte of the index."""
        end = segment.index_size
        while end > 0:
            start = max(end - CHUNK_BYTES, 0)
            found = np.flatnonzero(np.frombuffer(self.read_index(segment, start, end - start), np.uint8))
            if len(found):
                return start + int(found[-1]) + 1
            end = start
        return 0

    # --- resynchronising

    def head_at(self, segment: SegmentFile, position: int) -> Head | None:
        """Return a message that parses, or the beginning of one whose lengths are consistent."""
        if position + HEAD_BYTES > segment.size:
            return None
        head = self.peek(segment, position, min(HEAD_BYTES + _VALUE_HEAD_BYTES, segment.size - position))
        length = int.from_bytes(head[:HEAD_BYTES], "big")
        if length > MAX_VALUE_BYTES:
            return None
        end = position + HEAD_BYTES + length
        skipped = _value_size(head[HEAD_BYTES : HEAD_BYTES + length])
        if length and (skipped is None or not 0 <= length - skipped <= _NUMBERS_BYTES):
            return None
        if end > segment.size:
            return Head(None, position, end)
        numbers = self.peek(segment, end - length + (skipped or 0), length - (skipped or 0))
        return Head(_offset_in(numbers), position, end)

    def restart_mark(self, segment: SegmentFile) -> bytes:
        """Return the upper half of a length."""
        return bytes(4)

    def likely_heads(self, window: bytes, count: int, ranges: tuple[Range, ...]) -> Numbers:
        """Select by a length below 4 GiB and a known first field."""
        if not contains(window, bytes(4)):
            return np.empty(0, np.int64)
        lengths = numbers_in(window, count, 0, ">u8")
        found = np.flatnonzero((lengths > 0) & (lengths <= MAX_VALUE_BYTES))
        return found[np.isin(numbers_in(window, count, HEAD_BYTES, "u1")[found], _TAGS)]

    def indexed_after(self, segment: SegmentFile, cursor: Cursor) -> int | None:
        """Return the nearest record that one of the next entries points at."""
        first = cursor.entry // _ENTRY_BYTES + 1
        whole = segment.index_size // _ENTRY_BYTES
        while first < whole:
            last = min(first + CHUNK_BYTES // _ENTRY_BYTES, whole)
            entries = self.read_entries(segment, _INDEX, first, last)
            at = entries["position"]
            for relative, position in entries[(at > cursor.position) & (at < segment.size)].tolist():
                head = self.head_at(segment, position)
                if head is not None and head.offset == segment.base + relative:
                    return position  # type: ignore[no-any-return]
            first = last
        return None


def _value_size(message: bytes) -> int | None:
    """Return the size of the value with its tag and length; None if no message begins like this."""
    if message[:1] != b"\x0a":
        return 0 if not message or message[0] in _TAGS else None
    length = shift = 0
    for i, byte in enumerate(message[1:]):
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return 2 + i + length
    return None


def _offset_in(numbers: bytes) -> int | None:
    """Return the offset in the part of a message after its value; None if that does not parse."""
    data = memoryview(numbers)
    parsed = _parse(Frames(data, np.zeros(1, np.int64), np.array([len(data)], np.int64)))
    return int(parsed.offsets[0]) if len(parsed) else None


def _parse(frames: Frames) -> Values:
    """Decode messages, up to the first that does not parse."""
    count = len(frames)
    starts, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
    numbers = np.empty((count, 3), np.int64)
    good = kernel.parse_messages(
        frames.data,
        memoryview(frames.starts),
        memoryview(frames.lengths),
        memoryview(starts),
        memoryview(lengths),
        memoryview(numbers),
    )
    stored, terms, types = numbers[:good].T
    headers = {_TERM: number_header(terms, terms != 0), _TYPE: number_header(types, types != 0)}
    return Values(frames.data, stored, starts[:good], lengths[:good], headers)


# --- export


class GumlogWriter(SegmentWriter):
    format = NAME
    names = (".store", ".index")
    kept_headers = (_TERM, _TYPE, f"{NAME}.offset")

    def remarks(self) -> tuple[str, ...]:
        """GUMLOG truncates an index to its configured size."""
        return NO_TIMES, f"open GUMLOG with MaxIndexBytes of at least {self.largest_index_bytes}"

    def sizes(self, rows: ExportRows) -> Numbers:
        lengths = rows.lengths
        total = HEAD_BYTES + np.where(lengths > 0, 1 + _varint_sizes(lengths) + lengths, 0)
        for numbers in (rows.offsets, rows.numbers[_TERM], rows.numbers[_TYPE]):
            total += np.where(numbers != 0, 1 + _varint_sizes(numbers), 0)
        return total

    def encode(self, rows: ExportRows, sizes: Numbers, position: int) -> tuple[memoryview, bytes]:
        numbers = np.stack((rows.offsets, rows.numbers[_TERM], rows.numbers[_TYPE]), axis=1)
        positions = np.empty(len(rows), np.int64)
        out = memoryview(bytearray(int(sizes.sum())))
        written = kernel.put_messages(
            out, rows.ends, rows.values.offset, rows.content, memoryview(numbers), memoryview(positions)
        )
        assert written == len(out), f"{written} bytes, not {len(out)}"
        entries = np.empty(len(rows), _INDEX)
        entries["relative"], entries["position"] = rows.offsets - self.base, position + positions
        return out, entries.tobytes()


def _varint_sizes(numbers: Numbers) -> Numbers:
    """Return the encoded size of each number; negative ones represent numbers above 63 bits."""
    sizes = np.ones(len(numbers), np.int64)
    for bits in range(7, 63, 7):
        sizes += numbers >= 1 << bits
    return np.where(numbers < 0, 10, sizes)


# --- format


def _sniff(directory: Directory) -> Sniffed | None:
    """Recognise protobuf records with the right offsets, or empty stores with indexes."""
    found, _ = segment_files(directory)
    if not any(segment.size for segment in found):
        indexed = any(segment.data is not None and segment.index is not None for segment in found)
        return Sniffed("empty stores with indexes", False) if indexed else None
    for segment in [each for each in found if each.size and each.base < MAX_OFFSET][:4]:
        head = memoryview(read_start(directory, segment.data or "", _SNIFF_BYTES))
        count, certain = _count_records(head, segment.base)
        if count:
            return Sniffed(f"{segment.data} begins with protobuf records from offset {segment.base} on", certain)
    return None


def _count_records(data: memoryview, base: int) -> tuple[int, bool]:
    """Return the number of records with the right offsets at the beginning, and True if they are not all zeros."""
    starts, lengths = np.empty(64, np.int64), np.empty(64, np.int64)
    views = memoryview(starts), memoryview(lengths)
    count, end, _ = kernel.walk_frames(data, 0, len(data), HEAD_BYTES, 0, 8, True, MAX_VALUE_BYTES, *views)
    stored = _parse(Frames(data, starts[:count], lengths[:count])).offsets
    if not len(stored):
        length = int.from_bytes(data[:HEAD_BYTES], "big")
        started = _SNIFF_BYTES < length <= MAX_VALUE_BYTES and bytes(data[8:9]) == b"\x0a"
        return int(started), False  # one record that is longer than the bytes that were read
    right = stored == np.arange(base, base + len(stored))
    return (len(right) if right.all() else int(np.argmin(right))), any(data[:end])


FORMAT = Format(
    NAME,
    "GUMLOG: <base>.store with protobuf records, <base>.index",
    GumlogLog,
    partial(detect_below, NAME, _sniff),
    partial(write_segments, GumlogWriter),
)
