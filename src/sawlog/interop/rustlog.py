"""RustLog: records with their offset, and a sparse index that is not needed. Big endian.

```
topics/<topic>/partition-<n>/            (newer documents: topics/<topic>/partitions/<n>/)
  00000000000000000000.log     [length u32][offset u64][payload]        length counts the payload only, at most 10 MiB
  00000000000000000000.index   [offset u64][position u64]               for record 0 and every 100th after it
```

There is no checksum. A record's offset is the previous one plus one, so the neighbours show which bytes are wrong.
Known defects, and how they are handled:

* the last record is incomplete: it is cut off, as RustLog's documents say;
* a write that failed half-way left a fragment of a record, followed by the same record again, or by others that were
  written after a restart: the fragment is left out, and its length ignored (see frames.py);
* twelve zeros at the end are an empty record at offset 0 if the index points at them, and unused space otherwise;
* a reopened RustLog starts again at the segment's first offset: the records get new offsets, and the header
  `rustlog.offset` has the original one;
* the index is missing (RustLog never writes one), of an odd size, or wrong: reported, not needed.

An export writes segments of `segment_bytes` (default 256 MiB) with an index.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from ..errors import ExportRefused
from ..storage import Directory
from .detection import Sniffed, detect_topics, read_start
from .exporting import ExportRows, SegmentWriter, write_segments
from .foreign import Format, Kind
from .frames import Frames, Head, HeadLayout, Range, RestartingLog, contains, numbers_in
from .records import MAX_OFFSET, Numbers, Trust, Values, numbers_at
from .walking import Cursor, SegmentFile, segment_files

NAME = "rustlog"
HEAD_BYTES = 12
MAX_RECORD_BYTES = 10 << 20
#: Records per index entry.
INDEX_INTERVAL = 100
_ENTRY_BYTES = 16
_INDEX = np.dtype([("offset", ">u8"), ("position", ">u8")])


class RustLogLog(RestartingLog):
    """A partition of RustLog, read only."""

    format = NAME
    suffixes = (".log", ".index")
    digits = "[0-9]{20}"
    head = HeadLayout(HEAD_BYTES, 0, 4, True, MAX_RECORD_BYTES, offset_at=4)
    trust = Trust.BARE

    def list_segments(self, found: list[SegmentFile]) -> list[SegmentFile]:
        segments = super().list_segments(found)
        for segment in segments:
            if odd := segment.index_size % _ENTRY_BYTES:
                detail = f"{odd} bytes are not a complete entry; the index is not needed"
                self.note(Kind.TORN_INDEX, segment.index or "", segment.index_size - odd, detail)
        return segments

    def parse(self, segment: SegmentFile, cursor: Cursor, frames: Frames) -> Values:
        """Every frame is a record; only its offset can be wrong."""
        stored = numbers_at(frames.data, frames.starts, -8, 8, big_endian=True)
        return Values(frames.data, stored, frames.starts, frames.lengths)

    # --- the index

    def is_record_of_zeros(self, segment: SegmentFile, position: int) -> bool:
        """An empty record with offset 0 is all zeros; the index must point at it."""
        entries = self.read_entries(segment, _INDEX)
        return bool(((entries["position"] == position) & (entries["offset"] == 0)).any())

    def check_entries(self, segment: SegmentFile, cursor: Cursor, positions: Numbers, stored: Numbers) -> int:
        """Report index entries that do not point at these records."""
        first = cursor.entry // _ENTRY_BYTES
        entries = self.read_entries(segment, _INDEX, first, first + len(positions) + 1)
        at, offsets = entries["position"].astype(np.int64), entries["offset"].astype(np.int64)
        # After damage, skip the entries of records that could not be read.
        passed = int(np.argmax(np.append(at >= positions[0], True))) if cursor.loose else 0
        at, offsets = at[passed:], offsets[passed:]
        beyond = np.flatnonzero((at > positions[-1]) | (at < positions[0]))
        here = int(beyond[0]) if len(beyond) else len(at)
        found = np.searchsorted(positions, at[:here])
        odd = (positions[found] != at[:here]) | (stored[found] != offsets[:here])
        odd[1:] |= np.diff(at[:here]) <= 0
        wrong = np.flatnonzero(odd)
        if len(wrong):
            entry = cursor.entry + _ENTRY_BYTES * (passed + int(wrong[0]))
            detail = "an entry does not point at a record; it is not needed"
            self.note(Kind.BAD_INDEX, segment.index or "", entry, detail)
        return cursor.entry + _ENTRY_BYTES * (passed + here)

    def check_index_end(self, segment: SegmentFile, cursor: Cursor) -> None:
        """Report index entries that do not point at any record."""
        if segment.index is None or cursor.loose or cursor.entry + _ENTRY_BYTES > segment.index_size:
            return
        entry = self.read_index(segment, cursor.entry, _ENTRY_BYTES)
        if int.from_bytes(entry[8:], "big") < segment.size:
            self.note(Kind.BAD_INDEX, segment.index, cursor.entry, "an entry is out of order; it is not needed")
        else:
            offset = int.from_bytes(entry[:8], "big")
            detail = f"an entry for offset {offset}, which is no longer in the log"
            self.note(Kind.INDEX_AHEAD, segment.index, cursor.entry, detail, "cut", offset=cursor.count.next_offset)

    # --- resynchronising

    def head_at(self, segment: SegmentFile, position: int) -> Head | None:
        if position + HEAD_BYTES > segment.size:
            return None
        head = self.peek(segment, position, HEAD_BYTES)
        length, offset = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
        if length > MAX_RECORD_BYTES or offset >= MAX_OFFSET:
            return None
        return Head(offset, position, position + HEAD_BYTES + length)

    def restart_mark(self, segment: SegmentFile) -> bytes:
        """Return the segment's first offset."""
        return segment.base.to_bytes(8, "big")

    def likely_heads(self, window: bytes, count: int, ranges: tuple[Range, ...]) -> Numbers:
        """Select by the offset and a valid length."""
        found: set[int] = set()
        for low, high in ranges:
            if high - low > 1 or contains(window, low.to_bytes(8, "big"), 4):
                offsets = numbers_in(window, count, 4, ">u8")
                found.update(np.flatnonzero((offsets >= low) & (offsets < high)).tolist())
        at = np.array(sorted(found), np.int64)
        at = at[numbers_in(window, count, 0, ">u4")[at] <= MAX_RECORD_BYTES]
        return at[~_cannot_be_records(window, at, ranges[0][0])]

    def indexed_after(self, segment: SegmentFile, cursor: Cursor) -> int | None:
        """Return the first entry after the cursor that points at a record."""
        entries = self.read_entries(segment, _INDEX)
        behind = entries[(entries["position"] > cursor.position) & (entries["position"] < segment.size)]
        for offset, position in behind.tolist():
            if self._is_record(segment, position, ((offset, offset + 1),)):
                return int(position)
        return None


def _cannot_be_records(window: bytes, at: Numbers, base: int) -> npt.NDArray[np.bool_]:
    """Return which of these heads are certainly not complete records, judging by the next head, nor the first record
    after a restart. Vectorised, because a value may contain many of them."""
    count = len(window) - HEAD_BYTES + 1
    lengths, offsets = numbers_in(window, count, 0, ">u4"), numbers_in(window, count, 4, ">u8")
    following = at + HEAD_BYTES + lengths[at].astype(np.int64)
    seen = following < count
    stored, after = offsets[at[seen]].astype(np.int64), offsets[following[seen]]
    blank = (lengths[at[seen]] == 0) & (stored == 0)
    rejected = np.zeros(len(at), np.bool_)
    rejected[seen] = np.where(blank, after != 1, (stored != base) & (after != stored + 1) & (after != base))
    return rejected


# --- export


class RustLogWriter(SegmentWriter):
    format = NAME
    names = (".log", ".index")
    digits = 20
    kept_headers = (f"{NAME}.offset",)

    def sizes(self, rows: ExportRows) -> Numbers:
        lengths = rows.lengths
        if len(lengths) and int(lengths.max()) > MAX_RECORD_BYTES:
            raise ExportRefused(
                f"RustLog accepts records up to 10 MiB, but there is one of {int(lengths.max()):,} bytes"
            )
        return lengths + HEAD_BYTES

    def encode(self, rows: ExportRows, sizes: Numbers, position: int) -> tuple[memoryview, bytes]:
        heads = np.empty(len(rows), np.dtype([("length", ">u4"), ("offset", ">u8")]))
        heads["length"], heads["offset"] = sizes - HEAD_BYTES, rows.offsets
        indexed = (rows.offsets - self.base) % INDEX_INTERVAL == 0
        entries = np.empty(int(indexed.sum()), _INDEX)
        entries["offset"] = rows.offsets[indexed]
        entries["position"] = (position + np.cumsum(sizes) - sizes)[indexed]
        return rows.after(heads), entries.tobytes()


# --- format


def _sniff(directory: Directory) -> Sniffed | None:
    """Recognise a record with the offset in the file's name, or empty segments."""
    found, _ = segment_files(directory, *RustLogLog.suffixes, digits=RustLogLog.digits)
    if not any(segment.size for segment in found):
        empty = any(segment.data is not None for segment in found)
        return Sniffed("segment files of 20 digits, all empty", False) if empty else None
    for segment in found:
        if segment.size >= HEAD_BYTES:
            head = read_start(directory, segment.data or "", HEAD_BYTES)
            length, offset = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
            if offset == segment.base and length <= MAX_RECORD_BYTES and head[:1] == b"\0":
                return Sniffed(f"{segment.data} begins with a record of {length} bytes and offset {offset}", True)
    return None


FORMAT = Format(
    NAME,
    "RustLog: topics/<topic>/partition-<n>/, records with their offset, sparse index",
    RustLogLog,
    partial(detect_topics, NAME, _sniff),
    partial(write_segments, RustLogWriter),
    layout="topics/{topic}/partition-{partition}",
)
