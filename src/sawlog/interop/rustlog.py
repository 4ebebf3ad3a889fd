"""RustLog: records with their offset, and a sparse index that is not needed. Big endian.

```
topics/<topic>/partition-<n>/            (newer documents: topics/<topic>/partitions/<n>/)
  00000000000000000000.log     [length u32][offset u64][payload]        length counts the payload only, at most 10 MiB
  00000000000000000000.index   [offset u64][position u64]               for record 0 and every 100th after it
```

There is no checksum. What cannot be determined from the bytes follows from the neighbours: a record's offset is the
previous one plus one. What is known to go wrong, and what is done:

* the last record is incomplete: it is cut off, as RustLog's documents say;
* a write that failed half-way left a fragment of a record, followed by the same record again, or by others that were
  written after a restart: the fragment is left out, and its length ignored (see restarts.py);
* twelve zeros at the end are an empty record at offset 0 if the index points at them, else unused space;
* RustLog starts again at the segment's first offset when it is reopened, so that offsets restart: the records get
  new offsets, and the header `rustlog.offset` has the original one;
* the index is missing (RustLog never writes one), of an odd size, or wrong: it is not needed, and reported.

Export writes segments of `segment_bytes` (default 256 MiB) with an index.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..batch import kernel
from ..errors import ExportRefused
from ..log.log import Log
from ..storage import Directory
from .damage import Kind
from .foreign import Detection, ExportJob, ExportReport
from .frames import Frame, Frames, Parsed
from .layout import Sniffed, beginning, detect_topics
from .numbering import MAX_OFFSET, Numbers, Trust
from .restarts import Head, Range, RestartingLog, views
from .walked_format import WalkedFormat
from .walking import Cursor, SegmentFile, segment_files
from .writing import Rows, SegmentWriter, woven, write_segments

NAME = "rustlog"
HEAD_BYTES = 12
MAX_RECORD_BYTES = 10 << 20
#: One record in this many has an entry in the index.
INDEX_INTERVAL = 100
_ENTRY_BYTES = 16
_INDEX = np.dtype([("offset", ">u8"), ("position", ">u8")])


class RustLogLog(RestartingLog):
    """A partition of RustLog, read only."""

    format = NAME
    frame = Frame(HEAD_BYTES, 0, 4, True, MAX_RECORD_BYTES)
    trust = Trust.BARE

    def _segments_of(self) -> list[SegmentFile]:
        found = self._listed(".log", ".index", digits="[0-9]{20}")
        for segment in found:
            self._check_index(segment)
        return [segment for segment in found if segment.data is not None]

    def _check_index(self, segment: SegmentFile) -> None:
        if segment.data is None:
            self.note(Kind.MISSING_FILE, segment, 0, "an index without a log; ignored")
        elif segment.index is None:
            if segment.size:
                self.note(Kind.MISSING_FILE, segment, 0, "the index is missing; it is not needed")
        elif segment.index_size % _ENTRY_BYTES:
            odd = segment.index_size % _ENTRY_BYTES
            at = segment.index_size - odd
            self.note(
                Kind.TORN_INDEX, segment.index, at, f"{odd} bytes are not a complete entry; the index is not needed"
            )

    def parse(self, segment: SegmentFile, cursor: Cursor, frames: Frames) -> Parsed:
        """A frame is a record; only its offset can be wrong."""
        stored = np.empty(len(frames), np.int64)
        kernel.numbers_at(frames.data, memoryview(frames.starts), -8, 8, True, memoryview(stored))
        blank = (frames.lengths == 0) & (stored == 0)
        return Parsed(frames.starts, frames.lengths, stored, blank=blank)

    # --- resynchronising

    def begins(self, segment: SegmentFile) -> Range:
        """At the segment's first offset, always."""
        return segment.base, segment.base + 1

    def head_at(self, segment: SegmentFile, position: int) -> Head | None:
        """Length and offset."""
        if position + HEAD_BYTES > segment.size:
            return None
        head = self.peek(segment, position, HEAD_BYTES)
        length, offset = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
        if length > MAX_RECORD_BYTES or offset >= MAX_OFFSET:
            return None
        return Head(offset, position, position + HEAD_BYTES + length, not any(head))

    def likely(self, window: bytes, count: int, ranges: tuple[Range, ...]) -> Numbers:
        """By the offset, and a valid length."""
        found: set[int] = set()
        for low, high in ranges:
            if high - low > 1 or window.find(low.to_bytes(8, "big"), 4) >= 0:
                offsets = views(window, count, 4, ">u8")
                found.update(np.flatnonzero((offsets >= low) & (offsets < high)).tolist())
        at = np.array(sorted(found), np.int64)
        at = at[views(window, count, 0, ">u4")[at] <= MAX_RECORD_BYTES]
        return at[~_are_hopeless(window, at, ranges[0][0])]

    def may_hold_records(self, segment: SegmentFile, data: bytes, start: int, end: int) -> bool:
        """By the offset that they would have at a restart."""
        first = segment.base.to_bytes(8, "big")
        at = data.find(first[0], start, end)  # finding one byte is much faster than finding eight
        return at >= 0 and data.find(first, at, end) >= 0

    def goes_on(self, segment: SegmentFile, head: Head, following: Head) -> bool:
        """With the next offset, or after another restart."""
        assert head.offset is not None
        return following.offset in (head.offset + 1, segment.base)

    def follows(self, segment: SegmentFile, head: Head, rest: bytes) -> bool:
        """A valid length, and the first bytes of such an offset."""
        assert head.offset is not None
        heads = (offset.to_bytes(8, "big") for offset in (head.offset + 1, segment.base))
        return rest[0] == 0 and any(each.startswith(rest[4:]) for each in heads)

    def indexed_after(self, segment: SegmentFile, cursor: Cursor) -> int | None:
        """By the first entry after it that points at a record."""
        entries = self._entries(segment)
        behind = entries[(entries["position"] > cursor.position) & (entries["position"] < segment.size)]
        for offset, position in behind.tolist():
            if self._believable(segment, position, ((offset, offset + 1),)):
                return int(position)
        return None

    def _entries(self, segment: SegmentFile) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        count = segment.index_size // _ENTRY_BYTES
        return np.frombuffer(self.read_index(segment, 0, count * _ENTRY_BYTES), _INDEX)

    def is_record_of_zeros(self, segment: SegmentFile, position: int) -> bool:
        """If the index points at it, it is an empty record with offset 0."""
        entries = self._entries(segment)
        return bool(((entries["position"] == position) & (entries["offset"] == 0)).any())

    def seen(self, segment: SegmentFile, cursor: Cursor, positions: Numbers, stored: Numbers | None) -> int:
        """Report entries of the index that do not point at these records."""
        assert stored is not None
        last = min(
            cursor.entry + _ENTRY_BYTES * (len(positions) + 1), segment.index_size // _ENTRY_BYTES * _ENTRY_BYTES
        )
        entries = np.frombuffer(self.read_index(segment, cursor.entry, last - cursor.entry), _INDEX)
        at, offsets = entries["position"].astype(np.int64), entries["offset"].astype(np.int64)
        passed = (
            int(np.argmax(np.append(at >= positions[0], True))) if cursor.loose else 0
        )  # for records that could not be read
        at, offsets = at[passed:], offsets[passed:]
        beyond = np.flatnonzero((at > positions[-1]) | (at < positions[0]))
        here = int(beyond[0]) if len(beyond) else len(at)
        found = np.searchsorted(positions, at[:here])
        odd = (positions[found] != at[:here]) | (stored[found] != offsets[:here])
        odd[1:] |= np.diff(at[:here]) <= 0
        wrong = np.flatnonzero(odd)
        if len(wrong):
            entry = cursor.entry + _ENTRY_BYTES * (passed + int(wrong[0]))
            self.note(
                Kind.BAD_INDEX, segment.index or "", entry, "an entry does not point at a record; it is not needed"
            )
        return cursor.entry + _ENTRY_BYTES * (passed + here)

    def leave(self, segment: SegmentFile, cursor: Cursor) -> None:
        """Report entries of the index that do not point at any record."""
        if segment.index is None or cursor.loose or cursor.entry + _ENTRY_BYTES > segment.index_size:
            return
        entry = self.read_index(segment, cursor.entry, _ENTRY_BYTES)
        if int.from_bytes(entry[8:], "big") < segment.size:
            self.note(Kind.BAD_INDEX, segment.index, cursor.entry, "an entry is out of order; it is not needed")
        else:
            offset = int.from_bytes(entry[:8], "big")
            detail = f"an entry for offset {offset}, which is no longer in the log"
            self.note(Kind.INDEX_AHEAD, segment.index, cursor.entry, detail, "cut", offset=cursor.count.next_offset)


def _are_hopeless(window: bytes, at: Numbers, base: int) -> npt.NDArray[np.bool_]:
    """Which of these heads certainly do not begin a complete record, by what follows, and are not the first that was
    written after a restart: all at once, because a value may contain many of them."""
    count = len(window) - HEAD_BYTES + 1
    lengths, offsets = views(window, count, 0, ">u4"), views(window, count, 4, ">u8")
    following = at + HEAD_BYTES + lengths[at].astype(np.int64)
    seen = following < count
    said, then = offsets[at[seen]].astype(np.int64), offsets[following[seen]]
    blank = (lengths[at[seen]] == 0) & (said == 0)
    hopeless = np.zeros(len(at), np.bool_)
    hopeless[seen] = np.where(blank, then != 1, (said != base) & (then != said + 1) & (then != base))
    return hopeless


class RustLogFormat(WalkedFormat):
    """How its logs are found, read and written."""

    def detect(self, directory: Directory) -> Detection | None:
        """By the names, and by a first record with the offset in the file name."""
        return detect_topics(NAME, directory, self._sniff)

    def place(self, topic: str, partition: int) -> str:
        """As in its documents."""
        return f"topics/{topic}/partition-{partition}"

    def write(self, log: Log, directory: Directory, job: ExportJob) -> ExportReport:
        return write_segments(NAME, log, directory, job, RustLogWriter(directory))


class RustLogWriter(SegmentWriter):
    names = (".log", ".index")
    digits = 20
    kept_headers = (f"{NAME}.offset",)

    def sizes(self, rows: Rows) -> Numbers:
        lengths = rows.lengths
        if len(lengths) and int(lengths.max()) > MAX_RECORD_BYTES:
            raise ExportRefused(
                f"RustLog accepts records up to 10 MiB, but there is one of {int(lengths.max()):,} bytes"
            )
        return lengths + HEAD_BYTES

    def encode(self, rows: Rows, sizes: Numbers, position: int) -> tuple[memoryview, bytes]:
        """Every hundredth record gets an entry."""
        heads = np.empty(len(rows), np.dtype([("length", ">u4"), ("offset", ">u8")]))
        heads["length"], heads["offset"] = sizes - HEAD_BYTES, rows.offsets
        chosen = (rows.offsets - self.base) % INDEX_INTERVAL == 0
        entries = np.empty(int(chosen.sum()), _INDEX)
        entries["offset"] = rows.offsets[chosen]
        entries["position"] = (position + np.cumsum(sizes) - sizes)[chosen]
        return woven(heads, rows), entries.tobytes()


def _sniff(directory: Directory) -> Sniffed | None:
    found, _ = segment_files(directory, ".log", ".index", digits="[0-9]{20}")
    logs = [segment for segment in found if segment.data is not None]
    if not logs:
        return None
    for segment in logs:
        if segment.size >= HEAD_BYTES:
            head = beginning(directory, segment.data or "", HEAD_BYTES)
            length, offset = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
            if offset == segment.base and length <= MAX_RECORD_BYTES and head[:1] == b"\0":
                return Sniffed(f"{segment.data} begins with a record of {length} bytes and offset {offset}", True)
    if any(segment.size for segment in logs):
        return None
    return Sniffed("segment files of 20 digits, all empty", False)


FORMAT = RustLogFormat(
    NAME, "RustLog: topics/<topic>/partition-<n>/, records with their offset, sparse index", RustLogLog, _sniff
)
