"""Read a log sequentially, a few megabytes at a time: the base of all formats but Kafka's.

A format implements one step: from a `Cursor`, which is the complete state, over some records to the next cursor. A scan
is a walk, a survey is a walk that ignores the records, and a read at an offset is a walk from the nearest remembered
cursor before it. One cursor is remembered every megabyte.

Offsets may depend on everything before them (see records.py), so the first walk starts at the beginning.
"""

from __future__ import annotations

import errno
import re
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Unpack

import numpy as np

from ..errors import LogNotFound, OffsetOutOfRange
from ..log.log import Log
from ..storage import Directory, Storage
from .foreign import Finding, ForeignLog, ForeignReport, Kind, OpenOptions, Outcome, Progress
from .importing import copy_records
from .records import MAX_JUMP, MAX_OFFSET, Count, Numbered, Numbers, Values, number_header

if TYPE_CHECKING:
    import pyarrow as pa

#: Entries of an index.
Entries = np.ndarray[tuple[int], np.dtype[np.void]]

#: Number of bytes per read.
CHUNK_BYTES = 4 << 20
#: One cursor is remembered per this many bytes.
MARK_BYTES = 1 << 20
#: Number of bytes to examine for zeros at once.
_ZERO_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One segment: the file with its records, and its index if there is one."""

    base: int
    data: str | None
    index: str | None
    size: int
    index_size: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """The state of a walk: the segment, the positions in its data and its index, and the state of the numbering."""

    segment: int
    position: int
    entry: int
    count: Count
    #: True if the bytes before could not be read, so that offsets may jump.
    loose: bool = False

    def to(self, position: int, count: Count | None = None, *, entry: int | None = None, loose: bool = False) -> Cursor:
        """Return a cursor further on in the same segment."""
        return Cursor(self.segment, position, self.entry if entry is None else entry, count or self.count, loose)


def _next_offset(cursor: Cursor) -> int:
    return cursor.count.next_offset


@dataclass(frozen=True, slots=True, eq=False)
class WalkStep:
    """The result of one step: records, then possibly unreadable bytes, then the cursor after them."""

    after: Cursor
    values: Values | None = None
    lost: Finding | None = None


class WalkedLog(ForeignLog):
    """A log that is read sequentially. A format implements `step`, and overrides `list_segments` and `enter` if needed.

    With `strict` every finding except a foreign file raises.
    """

    #: Suffixes of data and index, and the pattern of the number before them.
    suffixes = (".store", ".index")
    digits = "[0-9]{1,20}"
    #: Start of the data and of the index of a segment.
    first_position = 0
    first_entry = 0
    #: True if the name of a segment is its first offset.
    named_by_offset = True
    #: Advice appended to findings about offsets that are in no file.
    gap_hint = ""

    def __init__(self, directory: Directory, **options: Unpack[OpenOptions]) -> None:
        super().__init__(directory, **options)
        self._open: tuple[str, Storage] | None = None
        found, others = segment_files(directory, *self.suffixes, digits=self.digits)
        for name in others:
            self.note(Kind.UNKNOWN_FILE, name, 0, "ignored")
        self.segments = self.list_segments(found)
        if not self.segments:
            raise LogNotFound(
                errno.ENOENT, f"no log of {self.format} in {directory.path}: the directory holds no segment"
            )
        if self.segments[0].base >= MAX_OFFSET:
            first = self.segments[0]
            detail = f"the log begins at offset {first.base}; sawlog supports offsets below 2**62 only"
            raise Finding(Kind.BAD_OFFSET, first.data or first.index or "", 0, detail).error(self.path)
        #: Number of bytes before each segment, and in total.
        self._before = [0, *accumulate(segment.size for segment in self.segments)]
        #: First offset of each segment, and the offset after its last, as far as they are known.
        self._firsts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._marks: list[Cursor] = [self.enter(0, None)]
        self._ended: Cursor | None = None

    # --- implemented by each format

    def list_segments(self, found: list[SegmentFile]) -> list[SegmentFile]:
        """Return the segments of the log, in order, out of the files found."""
        return [segment for segment in found if segment.data is not None]

    @abstractmethod
    def step(self, cursor: Cursor) -> WalkStep:
        """Read on from a cursor that is in a segment, possibly at its end."""

    @property
    def lowest_offset(self) -> int:
        return self.segments[0].base

    # --- walking

    def enter(self, number: int, before: Cursor | None) -> Cursor:
        """Return the cursor at the beginning of a segment; report it if the previous one ends elsewhere."""
        if before is not None:
            self._ends[number - 1] = before.count.next_offset
        if number >= len(self.segments):
            assert before is not None
            return Cursor(number, 0, 0, before.count)
        segment = self.segments[number]
        following = segment.base if before is None else before.count.next_offset
        if not self._is_too_far(segment, following):
            if segment.base > following:
                detail = f"offsets {following} to {segment.base - 1} are in no file{self.gap_hint}"
                self.note(Kind.GAP, segment, 0, detail, "missing", offset=following)
                following = segment.base
            elif segment.base < following and segment.size:
                detail = f"the segment begins at offset {segment.base}, the previous one ends at {following - 1}"
                self.note(Kind.RESTART, segment, 0, f"{detail}; its records get offsets from {following} on")
            self._firsts[number] = following
        return Cursor(number, self.first_position, self.first_entry, Count(segment.base - 1, following))

    def _is_too_far(self, segment: SegmentFile, next_offset: int) -> bool:
        """Return True if a segment begins at an impossible offset."""
        return self.named_by_offset and (segment.base - next_offset > MAX_JUMP or segment.base >= MAX_OFFSET)

    def _skip_too_far(self, cursor: Cursor) -> WalkStep | None:
        """Skip a segment that begins too far after the previous one: its name is damaged, or it belongs to another
        log."""
        segment, following = self.segments[cursor.segment], cursor.count.next_offset
        if not self._is_too_far(segment, following):
            return None
        detail = f"a segment begins at offset {segment.base}, expected {following}: the gap is too large for a log"
        outcome: Outcome = "lost" if segment.size else "repaired"
        found = self.note(Kind.BAD_OFFSET, segment, 0, detail, outcome, size_bytes=segment.size, offset=following)
        after = self.enter(cursor.segment + 1, cursor.to(segment.size, Count(following - 1, following)))
        return WalkStep(after, lost=found if segment.size else None)

    def _end_at_limit(self, cursor: Cursor, step: WalkStep) -> WalkStep:
        """End the walk at the largest offset that sawlog supports."""
        values = step.values
        if values is None or int(values.offsets[-1]) < MAX_OFFSET:
            return step
        segment, kept = self.segments[cursor.segment], values.between(0, MAX_OFFSET)
        detail = (
            f"at least {len(values) - len(kept)} records at or above offset {MAX_OFFSET}, which sawlog does not support"
        )
        lost = self.note(Kind.BAD_OFFSET, segment, cursor.position, detail, "lost", offset=MAX_OFFSET)
        after = Cursor(len(self.segments), 0, 0, Count(MAX_OFFSET - 1, MAX_OFFSET))
        return WalkStep(after, kept if len(kept) else None, lost)

    def segments_below(self, end: int) -> Iterator[tuple[str, int, int]]:
        """Yield the non-empty segments that end at or below an offset up to which this log has been read."""
        for number, first in sorted(self._firsts.items()):
            last = self._ends.get(number, end + 1)
            if first < last <= end:
                yield self.segments[number].data or "", first, last

    def walk(self, start: int | None = None) -> Iterator[WalkStep]:
        """Walk to the end from the nearest cursor before offset `start` (None: from the last remembered cursor)."""
        cursor = self._marks[-1] if start is None else self._mark_before(start)
        while cursor.segment < len(self.segments):
            self.check_open()
            step = self._skip_too_far(cursor) or self._end_at_limit(cursor, self.step(cursor))
            assert step.after != cursor, f"no way on from {cursor}"
            cursor = step.after
            if self._passed(cursor) - self._passed(self._marks[-1]) >= MARK_BYTES:
                self._marks.append(cursor)
            yield step
        self._ended = cursor

    def _mark_before(self, start: int) -> Cursor:
        """Return the first of the cursors with the highest offset up to `start`: the walk must meet the findings
        between them again."""
        last = max(bisect_right(self._marks, start, key=_next_offset) - 1, 0)
        return self._marks[bisect_left(self._marks, _next_offset(self._marks[last]), key=_next_offset)]

    def _survey(self) -> Cursor:
        if self._ended is None:
            for _ in self.walk():
                pass
        assert self._ended is not None
        return self._ended

    @property
    def next_offset(self) -> int:
        return self._survey().count.next_offset

    @property
    def report(self) -> ForeignReport:
        self._survey()
        return self._report

    @property
    def size_bytes(self) -> int:
        return self._before[-1]

    def tables(
        self,
        start: int,
        end: int | None,
        columns: Sequence[str],
        *,
        progress: Progress | None = None,
        committed: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        self.check_open()
        total = self.size_bytes
        reach = None if end is None else max(start, end)  # a start beyond the end of the log is an error
        for step in self.walk(start):
            if step.values is not None:
                values = step.values.between(start, end)
                if len(values):
                    yield values.to_arrow(columns)
            lost = step.lost if self.damage == "stop" else None
            if lost is not None and (
                lost.offset is None or (lost.offset >= start and (end is None or lost.offset < end))
            ):
                raise lost.error(self.path)
            if progress is not None:
                progress(self._passed(step.after), total)
            if reach is not None and step.after.count.next_offset >= reach:
                return
        if progress is not None and total == 0:
            progress(0, 0)
        if start > self.next_offset:
            raise OffsetOutOfRange(start, self.lowest_offset, self.next_offset, self.path)

    def copy_to(self, log: Log, *, progress: Progress | None = None, timestamp: int | None = None) -> int:
        return copy_records(self, log, progress=progress, timestamp=timestamp)

    def _passed(self, cursor: Cursor) -> int:
        return self._before[cursor.segment] + cursor.position

    # --- findings

    def note(
        self,
        kind: Kind,
        segment: SegmentFile | str,
        position: int,
        detail: str,
        outcome: Outcome = "repaired",
        *,
        size_bytes: int = 0,
        offset: int | None = None,
    ) -> Finding:
        """Add a finding to the report, and raise it if the log is `strict`."""
        file = segment if isinstance(segment, str) else segment.data or segment.index or ""
        finding = Finding(kind, file, position, detail, outcome, size_bytes, offset)
        return self.add(finding, raising=self.strict and kind is not Kind.UNKNOWN_FILE)

    def renumber(self, cursor: Cursor, read: Values, numbered: Numbered, positions: Numbers) -> Values:
        """Return the numbered ones among records that were read from these positions of the file, and report the
        anomalies. Records that could not keep their offset have the original one in a header."""
        taken = len(numbered.offsets)
        for each in numbered.anomalies:
            where = int(positions[each.index])
            self.note(each.kind, self.segments[cursor.segment], where, each.detail, each.outcome, offset=each.offset)
        values = read.slice(0, taken)
        headers, moved = dict(values.headers), values.offsets != numbered.offsets
        if moved.any():
            headers[f"{self.format}.offset"] = number_header(values.offsets, moved)
        return replace(values, offsets=numbered.offsets, headers=headers)

    def lose(
        self, segment: SegmentFile, cursor: Cursor, after: Cursor, kind: Kind, detail: str, size_bytes: int
    ) -> WalkStep:
        """Report bytes that held records, and continue after them."""
        offset = cursor.count.next_offset
        lost = self.note(kind, segment, cursor.position, detail, "lost", size_bytes=size_bytes, offset=offset)
        return WalkStep(after, lost=lost)

    def cut(self, segment: SegmentFile, cursor: Cursor, until: int, kind: Kind, detail: str) -> WalkStep:
        """Leave out bytes that are not a complete record."""
        size, offset = until - cursor.position, cursor.count.next_offset
        self.note(kind, segment, cursor.position, detail, "cut", size_bytes=size, offset=offset)
        return WalkStep(cursor.to(until))

    # --- files

    def read_data(self, segment: SegmentFile, position: int, size: int) -> memoryview:
        """Read bytes of a segment's data."""
        name = segment.data or ""
        if self._open is None or self._open[0] != name:
            self.close_file()
            self._open = name, self.directory.open_shared(name)
        return memoryview(self._open[1].read(position, size))

    def read_index(self, segment: SegmentFile, position: int, size: int) -> bytes:
        """Read bytes of a segment's index."""
        if segment.index is None or size <= 0:
            return b""
        with closing(self.directory.open_shared(segment.index)) as storage:
            return storage.read(position, size)

    def read_entries(
        self, segment: SegmentFile, layout: np.dtype[np.void], first: int = 0, last: int | None = None
    ) -> Entries:
        """Read the complete entries of a segment's index from one number to another; by default all of them."""
        size = layout.itemsize
        last = segment.index_size // size if last is None else min(last, segment.index_size // size)
        return np.frombuffer(self.read_index(segment, first * size, (last - first) * size), layout)

    def close_file(self) -> None:
        """Close the data file that is open, but not the directory."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def close(self) -> None:
        """Close the files and the directory."""
        self.close_file()
        super().close()


def segment_files(
    directory: Directory,
    data_suffix: str = WalkedLog.suffixes[0],
    index_suffix: str = WalkedLog.suffixes[1],
    *,
    digits: str = WalkedLog.digits,
) -> tuple[list[SegmentFile], list[str]]:
    """Return the numbered files as segments, sorted by number, and the names of all other files."""
    pattern = re.compile(rf"({digits})({re.escape(data_suffix)}|{re.escape(index_suffix)})")
    found: dict[int, dict[str, str]] = {}
    others: list[str] = []
    for name in directory.names():
        match = pattern.fullmatch(name)
        if match is None or match[2] in found.get(int(match[1]), {}) or not directory.exists(name):
            others.append(name)
        else:
            found.setdefault(int(match[1]), {})[match[2]] = name
    segments = []
    for base, names in sorted(found.items()):
        data, index = names.get(data_suffix), names.get(index_suffix)
        sizes = [0 if name is None else directory.size(name) for name in (data, index)]
        segments.append(SegmentFile(base, data, index, *sizes))
    return segments, others


def only_zeros(read: Callable[[int, int], bytes | memoryview], start: int, end: int) -> bool:
    """Return True if only zeros are between two positions. `read` returns the bytes at a position."""
    size = 64
    while start < end:
        size = min(size, end - start)
        if np.frombuffer(read(start, size), np.uint8).any():
            return False
        start, size = start + size, _ZERO_BYTES
    return True
