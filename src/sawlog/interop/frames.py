"""Logs of length-prefixed records: a head of fixed size with the length, then that many bytes.

Such a log can be read without an index, from one head to the next, but one wrong length breaks the chain. `resync` then
looks for the next position that certainly begins a record: by an index, or by something in the records that is very
unlikely to occur by chance. If there is one, the bytes before it are lost; otherwise the rest of the file is a torn
tail.

**Restarts.** Some systems do not examine the end of their files when they start: they append after whatever is there.
If that is a fragment of a record (the process was killed, the disk was full), the file reads

    [whole records][head and a part of record 57][record 7][record 8] ...
                   ^ torn                        ^ written after the restart, from the segment's first offset on

and the length in the head of the torn record covers bytes that were never written: it extends over the records after
it, possibly exactly to the beginning of one of them. `RestartingLog` does not trust a length if the bytes after it are
suspicious (no record follows, offsets are not consecutive, the file ends), or if the record is so long that consecutive
offsets could be an accident. It then searches the record for a *run*: complete records, the first of which has an
offset that the system starts with, and that lead to the bytes after the record. If there is one, the record ends where
the run begins, and the fragment is left out: it was never acknowledged.

A value that ends with such a run is treated as a torn record: without a checksum the two cannot be distinguished.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..batch import kernel
from .foreign import Kind
from .records import MAX_OFFSET, Numbered, Numbers, Trust, Values, assign_offsets
from .walking import CHUNK_BYTES, Cursor, SegmentFile, WalkedLog, WalkStep, only_zeros

#: Maximum number of records per step.
_MAX_ROWS = 1 << 17
#: Number of bytes after damage to search for the next complete record.
SEARCH_BYTES = 64 << 20
#: Number of bytes to search at once.
_WINDOW_BYTES = 1 << 20
#: Number of bytes to read for examining single heads.
_PEEK_BYTES = 64 << 10
#: Maximum number of records that may be missing where the chain continues.
_MAX_MISSING = 1 << 16

#: Offsets, from the first up to but not including the second.
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ResyncPoint:
    """The position where records continue after an incomplete one."""

    position: int
    #: True if the bytes before it are a torn record that was followed by a restart: it was never acknowledged.
    torn: bool = False


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """The layout of a head."""

    size: int
    length_at: int
    length_size: int
    big_endian: bool
    #: Maximum length of a record.
    max_length: int
    #: Position of the record's offset (eight bytes), if the head contains it.
    offset_at: int | None = None

    def length_in(self, head: bytes | memoryview) -> int:
        """Return the length that a head contains."""
        raw = head[self.length_at : self.length_at + self.length_size]
        return int.from_bytes(raw, "big" if self.big_endian else "little")


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """Complete frames in a buffer: the positions and lengths of the bytes after each head."""

    data: memoryview
    starts: Numbers
    lengths: Numbers
    #: True if the chain is intact after the last frame: the file ends there, or only the buffer does.
    clear: bool = True
    #: True if the last frame ends at the end of the file.
    final: bool = False

    def __len__(self) -> int:
        return len(self.starts)

    def end(self, number: int) -> int:
        """Return the position after a frame."""
        return int(self.starts[number] + self.lengths[number])


class FrameLog(WalkedLog):
    """A log of length-prefixed records. A format defines `head` and `trust`, and implements `parse` and `resync`."""

    head: HeadLayout
    trust = Trust.BARE
    #: The defect of a frame that `parse` rejects.
    parse_defect = Kind.UNREADABLE, "a record that does not parse"

    @abstractmethod
    def parse(self, segment: SegmentFile, cursor: Cursor, frames: Frames) -> Values:
        """Decode the frames up to the first bad one, with the offsets that are stored in them. If the system stores
        none, the offsets continue those before the cursor."""

    @abstractmethod
    def resync(self, segment: SegmentFile, cursor: Cursor) -> ResyncPoint | None:
        """Return where records continue: the first complete record after the cursor. None if its position is not
        certain."""

    def find_tear(
        self, segment: SegmentFile, start: int, end: int, offset: int, *, broken: bool, exact: bool
    ) -> int | None:
        """Return the position, within the record from `start` to `end`, of records written after it was torn. Only for
        formats without checksums."""
        return None

    def torn_among(
        self, segment: SegmentFile, cursor: Cursor, frames: Frames, parsed: Values, numbered: Numbered
    ) -> WalkStep | None:
        """Step up to the first torn record, or over it; None if no record is torn. Only for formats without
        checksums."""
        return None

    def is_record_of_zeros(self, segment: SegmentFile, position: int) -> bool:
        """Return True if a record is known to be at this position even if all its bytes are zeros."""
        return False

    def check_entries(self, segment: SegmentFile, cursor: Cursor, positions: Numbers, stored: Numbers) -> int:
        """Compare the records just read, from `cursor` on, with the index; return the index position after them."""
        return cursor.entry

    def check_index_end(self, segment: SegmentFile, cursor: Cursor) -> None:
        """Compare the end of a segment with the end of its index."""

    # --- steps

    def step(self, cursor: Cursor) -> WalkStep:
        """Read as many good records as possible, or skip one defect."""
        segment = self.segments[cursor.segment]
        if cursor.position >= segment.size:
            self.check_index_end(segment, cursor)
            return WalkStep(self.enter(cursor.segment + 1, cursor))
        if self._is_blank(segment, cursor):
            detail = "zeros up to the end of the file; left out"
            return self.cut(segment, cursor, segment.size, Kind.ZERO_TAIL, detail)
        frames = self._frames(segment, cursor.position)
        if not len(frames):
            return self._no_frame(segment, cursor)
        parsed = self.parse(segment, cursor, frames)
        numbered = self._number(segment, cursor, frames, parsed)
        if len(numbered.offsets):
            torn = self.torn_among(segment, cursor, frames, parsed, numbered)
            return self._take(segment, cursor, frames, parsed, numbered) if torn is None else torn
        kind, detail = self.parse_defect
        if numbered.bad:
            stored = int(parsed.offsets[0]) % 2**64
            detail = f"a record has offset {stored}, expected {cursor.count.stored + 1}; no neighbour confirms it"
        return self._bad_frame(segment, cursor, frames, kind, detail)

    def _frames(self, segment: SegmentFile, position: int) -> Frames:
        """Return the complete frames from a position on: a few megabytes, or one frame that is larger."""
        head = self.head
        rest = segment.size - position
        size = min(CHUNK_BYTES, rest)
        while True:
            data = self.read_data(segment, position, size)
            room = min(size // head.size + 1, _MAX_ROWS)
            starts, lengths = np.empty(room, np.int64), np.empty(room, np.int64)
            layout = head.size, head.length_at, head.length_size, head.big_endian, head.max_length
            count, end, why = kernel.walk_frames(data, 0, size, *layout, memoryview(starts), memoryview(lengths))
            if count or why != kernel.WALK_SHORT or size == rest:
                break
            size = head.size + head.length_in(data)  # one record that is larger than the buffer
            if size > rest:
                break
        broken = why == kernel.WALK_BAD or (why == kernel.WALK_SHORT and size == rest)
        return Frames(data, starts[:count], lengths[:count], not broken, end == rest)

    def _number(self, segment: SegmentFile, cursor: Cursor, frames: Frames, parsed: Values) -> Numbered:
        good = len(parsed)
        blank = np.flatnonzero(_are_blank(frames, parsed)[1:])
        if len(blank):
            good = int(blank[0]) + 1  # the next step checks for anything but zeros
        return assign_offsets(
            parsed.offsets[:good],
            cursor.count,
            base=segment.base,
            trust=self.trust,
            final=frames.final and good == len(frames),
            loose=cursor.loose,
        )

    def _take(
        self, segment: SegmentFile, cursor: Cursor, frames: Frames, parsed: Values, numbered: Numbered
    ) -> WalkStep:
        """Accept the numbered records."""
        taken = len(numbered.offsets)
        positions = cursor.position + frames.starts[:taken] - self.head.size
        values = self.renumber(cursor, parsed, numbered, positions)
        entry = self.check_entries(segment, cursor, positions, parsed.offsets[:taken])
        return WalkStep(cursor.to(cursor.position + frames.end(taken - 1), numbered.count, entry=entry), values)

    # --- damage

    def _is_blank(self, segment: SegmentFile, cursor: Cursor) -> bool:
        """Return True if only zeros follow, except for a single head of zeros that may be an empty record."""
        head = self.head.size
        position, rest = cursor.position, segment.size - cursor.position
        if rest < head or (rest == head and cursor.count.stored == -1 and self.trust != Trust.CHECKED):
            return False
        if self.is_record_of_zeros(segment, position):
            return False
        return only_zeros(lambda start, size: self.read_data(segment, start, size), position, segment.size)

    def _no_frame(self, segment: SegmentFile, cursor: Cursor) -> WalkStep:
        """Skip bytes that do not begin with a complete frame."""
        point = self.resync(segment, cursor)
        if point is None:
            rest = segment.size - cursor.position
            detail = f"the last {rest} bytes are not a complete record; left out"
            return self.cut(segment, cursor, segment.size, Kind.TORN_TAIL, detail)
        if point.torn:
            return self._cut_torn(segment, cursor, point.position)
        return self._lose_up_to(point.position, segment, cursor, Kind.UNREADABLE, "an invalid length")

    def _bad_frame(self, segment: SegmentFile, cursor: Cursor, frames: Frames, kind: Kind, detail: str) -> WalkStep:
        """Skip a frame whose content is bad."""
        end = cursor.position + frames.end(0)
        regular = self._next_is_good(segment, cursor, frames)
        expected = cursor.count.stored + 1
        torn = self.find_tear(segment, cursor.position, end, expected, broken=not regular, exact=regular)
        if torn is not None:
            return self._cut_torn(segment, cursor, torn)
        if end == segment.size or regular:
            after = cursor.to(end, cursor.count.skip(), loose=True)
            return self.lose(segment, cursor, after, kind, detail, end - cursor.position)
        point = self.resync(segment, cursor)
        if point is not None and point.torn:
            return self._cut_torn(segment, cursor, point.position)
        return self._lose_up_to(segment.size if point is None else point.position, segment, cursor, kind, detail)

    def _next_is_good(self, segment: SegmentFile, cursor: Cursor, frames: Frames) -> bool:
        """Return True if the frame after a bad one is good, so that only the content of the first is bad."""
        if len(frames) < 2:
            return False
        second = Frames(frames.data, frames.starts[1:2], frames.lengths[1:2], frames.clear)
        parsed = self.parse(segment, cursor.to(cursor.position + frames.end(0), cursor.count.skip()), second)
        return len(parsed) > 0 and int(parsed.offsets[0]) == cursor.count.stored + 2

    def _lose_up_to(self, end: int, segment: SegmentFile, cursor: Cursor, kind: Kind, detail: str) -> WalkStep:
        """Skip bytes that held an unknown number of records."""
        size = end - cursor.position
        return self.lose(
            segment, cursor, cursor.to(end, loose=True), kind, f"{detail}; {size} bytes cannot be read", size
        )

    def _cut_torn(self, segment: SegmentFile, cursor: Cursor, until: int) -> WalkStep:
        """Leave out a torn record that is followed by others."""
        size = until - cursor.position
        detail = f"{size} bytes of an incomplete record; left out; other records were written after them"
        return self.cut(segment, cursor, until, Kind.TORN_TAIL, detail)


# --- systems that append after torn records


@dataclass(frozen=True, slots=True)
class Head:
    """Bytes that look like the head of a record."""

    #: None if the record is incomplete, so that its offset is unknown.
    offset: int | None
    start: int
    #: End of the record if its length is right; may be beyond the end of the file.
    end: int


class RestartingLog(FrameLog):
    """A log of a system that appends after torn records, with an index that is not needed to read it."""

    #: After a restart, the system continues with one of this many offsets, from the segment's first one on.
    restart_choices = 1
    #: True if the system may write several records with the same offset.
    repeats_offsets = False
    #: The bytes last read for examining heads: the segment, the first byte, and the bytes.
    _peeked: tuple[SegmentFile | None, int, bytes] = (None, 0, b"")

    def list_segments(self, found: list[SegmentFile]) -> list[SegmentFile]:
        """Return the segments with data; report missing files."""
        for segment in found:
            if segment.data is None:
                self.note(Kind.MISSING_FILE, segment, 0, f"an index without a {self.suffixes[0][1:]}; ignored")
            elif segment.index is None and segment.size:
                self.note(Kind.MISSING_FILE, segment, 0, "the index is missing; it is not needed")
        return super().list_segments(found)

    @abstractmethod
    def head_at(self, segment: SegmentFile, position: int) -> Head | None:
        """Return the head of a possible record; None if no record can begin at this position."""

    @abstractmethod
    def restart_mark(self, segment: SegmentFile) -> bytes:
        """Return bytes that are in the head of every record written after a restart."""

    @abstractmethod
    def likely_heads(self, window: bytes, count: int, ranges: tuple[Range, ...]) -> Numbers:
        """Return which of the first `count` bytes may begin a record with an offset in these ranges."""

    @abstractmethod
    def indexed_after(self, segment: SegmentFile, cursor: Cursor) -> int | None:
        """Return the position of the nearest record after the cursor that is in the index."""

    def restart_offsets(self, segment: SegmentFile) -> Range:
        """Return the offsets with which the system may continue after a restart."""
        return segment.base, segment.base + self.restart_choices

    def peek(self, segment: SegmentFile, position: int, size: int) -> bytes:
        """Read a few bytes, with a cache for many small reads close together."""
        held, start, data = self._peeked
        if held is not segment or not start <= position <= position + size <= start + len(data):
            start = max(position - _PEEK_BYTES // 4, 0)  # some reads go back a little
            end = min(max(position + size, start + _PEEK_BYTES), segment.size)
            data = bytes(self.read_data(segment, start, end - start))
            self._peeked = segment, start, data
        return data[position - start : position - start + size]

    # --- a record whose length is in doubt

    def find_tear(
        self, segment: SegmentFile, start: int, end: int, offset: int, *, broken: bool, exact: bool
    ) -> int | None:
        """Return the position in the record from `start` to `end` where it was torn and others begin.

        If the chain after it is `broken`, one complete record with a possible successor is enough. Otherwise the
        records have to lead to the end of the record, or beyond; if the bytes there are a good record, `exact`ly to it.
        """
        ranges: tuple[Range, ...] = (self.restart_offsets(segment),)
        if not exact and 0 <= offset < MAX_OFFSET:
            ranges = (*ranges, (offset, offset + 1))  # the same record, written again
        if broken and ((head := self.head_at(segment, start)) is None or not self._is_followed(segment, head)):
            return self._find_tear_in_broken(segment, start, end, offset, ranges)
        first: int | None = None
        visited: set[int] = set()
        for position in self._candidates(segment, start + 1, end, ranges):
            if self._is_record(segment, position, ranges):
                first = position if first is None else first
                if self._leads_to(segment, position, end, visited, exact=exact):
                    return first
        return None

    def _find_tear_in_broken(
        self, segment: SegmentFile, start: int, end: int, offset: int, ranges: tuple[Range, ...]
    ) -> int | None:
        """Return the position of the first complete record written after a torn one: within it, or within another torn
        record that begins there. If no complete record was written, return the position of that other one."""
        reach, other = end, None
        for position in self._candidates(segment, start + 1, segment.size, ranges):
            if position >= reach:
                break
            if self._is_record(segment, position, ranges):
                return position
            extended = self._extended_reach(segment, position, reach)
            if other is None and extended > segment.size:
                other = position
            reach = extended
        if other is None:
            return None
        successors = ((offset + 1, offset + _MAX_MISSING),)
        found = self._candidates(segment, end, min(segment.size, end + SEARCH_BYTES), successors)
        return None if any(self._is_record(segment, position, successors) for position in found) else other

    def _leads_to(self, segment: SegmentFile, position: int, end: int, visited: set[int], *, exact: bool) -> bool:
        """Return True if complete records lead from one position to another. `visited` positions are known not to."""
        while position < end and position not in visited:
            visited.add(position)
            head = self.head_at(segment, position)
            if head is None or not self._is_followed(segment, head):
                return False
            position = head.end
        return position == end or (position > end and not exact)

    def _is_record(self, segment: SegmentFile, position: int, ranges: tuple[Range, ...]) -> bool:
        """Return True if a complete record with such an offset and a possible successor begins there."""
        head = self.head_at(segment, position)
        if head is None or head.offset is None or not any(low <= head.offset < high for low, high in ranges):
            return False
        return self._is_followed(segment, head)

    def _is_followed(self, segment: SegmentFile, head: Head) -> bool:
        """Return True if a record is complete and has a possible successor, or ends the file."""
        if head.offset is None or head.end > segment.size:
            return False
        rest = segment.size - head.end
        following = self.head_at(segment, head.end)
        if self._is_zeros(segment, head):  # zeros are a record only if the next one confirms it
            return following is not None and following.offset == head.offset + 1
        if rest < self.head.size:
            return self._may_begin_head(segment, head.offset, self.peek(segment, head.end, rest))
        if following is None:
            return False
        if following.offset == 0 and following.end == following.start + self.head.size:  # may be zeros
            return self._is_followed(segment, following)
        stored, (low, high) = following.offset, self.restart_offsets(segment)
        if stored is None or low <= stored < high:  # a torn record, or one written after a restart
            return True
        return stored == head.offset + 1 or (self.repeats_offsets and stored == head.offset)

    def _may_begin_head(self, segment: SegmentFile, offset: int, rest: bytes) -> bool:
        """Return True if the last bytes of the file may be the beginning of the head that follows this offset."""
        if self.head.length_in(rest.ljust(self.head.size, b"\0")) > self.head.max_length:
            return False
        if self.head.offset_at is None:
            return True
        prefix = rest[self.head.offset_at :]
        return any(each.to_bytes(8, "big").startswith(prefix) for each in (offset + 1, segment.base))

    def _is_zeros(self, segment: SegmentFile, head: Head) -> bool:
        """Return True if only zeros follow the length of a record."""
        start = head.start + self.head.length_at + self.head.length_size
        return only_zeros(lambda at, size: self.peek(segment, at, size), start, min(head.end, segment.size))

    def _candidates(self, segment: SegmentFile, start: int, end: int, ranges: tuple[Range, ...]) -> Iterator[int]:
        """Yield the positions from `start` to before `end` where a record with an offset in one of `ranges` may
        begin."""
        margin = self.head.size + 1
        while start < end:
            count = min(_WINDOW_BYTES, end - start)
            window = bytes(self.read_data(segment, start, min(count + margin, segment.size - start)))
            count = min(count, len(window) - margin + 1)
            if count > 0:
                for at in self.likely_heads(window, count, ranges).tolist():
                    yield start + at
            start += _WINDOW_BYTES

    def torn_among(
        self, segment: SegmentFile, cursor: Cursor, frames: Frames, parsed: Values, numbered: Numbered
    ) -> WalkStep | None:
        stored, head, taken = parsed.offsets, self.head.size, len(numbered.offsets)
        ended = taken == len(parsed) and (taken < len(frames) or not frames.clear)
        broken = numbered.bad or ended
        if not broken and _are_blank(frames, parsed)[taken : taken + 1].any():  # only zeros may follow
            broken = self._is_blank(segment, cursor.to(cursor.position + frames.end(taken - 1)))
        last, odd = taken - 1, {each.index for each in numbered.anomalies}
        odd |= {number - 1 for number in odd}
        for number in self._suspects(segment, frames, stored, last, odd):
            found = self.find_tear(
                segment,
                cursor.position + int(frames.starts[number]) - head,
                cursor.position + frames.end(number),
                int(stored[number]),
                broken=broken and number == last,
                exact=number not in odd and number != last,
            )
            if found is not None and number:
                return self._take(segment, cursor, frames, parsed, numbered.first(number, stored, cursor.count))
            if found is not None:
                return self._cut_torn(segment, cursor, found)
        return None

    def _suspects(self, segment: SegmentFile, frames: Frames, stored: Numbers, last: int, odd: set[int]) -> list[int]:
        """Return the records whose length may cover others: those next to an anomaly, the last one, and those so long
        that all records from the segment's first offset up to their own would fit."""
        head = self.head.size
        before = stored[:last] - segment.base
        long = np.flatnonzero((before >= 0) & (frames.lengths[:last] + head > head * before))
        data = bytes(frames.data) if len(long) else b""
        mark, starts, ends = self.restart_mark(segment), frames.starts, frames.starts + frames.lengths
        held = (number for number in long.tolist() if contains(data, mark, int(starts[number]), int(ends[number])))
        return sorted({*held, *(number for number in odd if 0 <= number <= last), last})

    # --- a broken chain

    def resync(self, segment: SegmentFile, cursor: Cursor) -> ResyncPoint | None:
        """Return the nearest record that is confirmed by the index, or by its offset and its successor."""
        wanted = cursor.count.stored + 1
        indexed = self.indexed_after(segment, cursor)
        end = min(indexed or segment.size, cursor.position + 1 + SEARCH_BYTES)
        ranges = (self.restart_offsets(segment), (wanted, wanted + _MAX_MISSING))
        reach = self._reach(segment, cursor)
        for position in self._candidates(segment, cursor.position + 1, end, ranges):
            if self._is_record(segment, position, ranges):
                return self._resync_point(segment, position, wanted, reach)
            reach = self._extended_reach(segment, position, reach)  # this one may have been torn as well
        return None if indexed is None else self._resync_point(segment, indexed, wanted, reach)

    def _resync_point(self, segment: SegmentFile, position: int, wanted: int, reach: int) -> ResyncPoint:
        head = self.head_at(segment, position)
        limit = max(wanted + 1, self.restart_offsets(segment)[1])
        restarted = head is not None and head.offset is not None and head.offset < limit
        return ResyncPoint(position, restarted and position <= reach)

    def _reach(self, segment: SegmentFile, cursor: Cursor) -> int:
        """Return the end of the record at the cursor by its length, or of its head if the length is invalid."""
        least = cursor.position + self.head.size
        head = self.head_at(segment, cursor.position)
        if least > segment.size or (head is not None and head.offset not in (None, cursor.count.stored + 1)):
            return least
        length = self.head.length_in(self.read_data(segment, cursor.position, self.head.size))
        return least + length if length <= self.head.max_length else least

    def _extended_reach(self, segment: SegmentFile, position: int, reach: int) -> int:
        """Return the end of a possible torn record at `position`, if that is after `reach`."""
        low, high = self.restart_offsets(segment)
        head = self.head_at(segment, position)
        if head is None or position > reach or (head.offset is not None and not low <= head.offset < high):
            return reach
        if self._is_zeros(segment, head):
            return reach
        return max(reach, head.end)


def _are_blank(frames: Frames, parsed: Values) -> npt.NDArray[np.bool_]:
    """Return which of the decoded frames are all zeros, and so may not be records."""
    blank: npt.NDArray[np.bool_] = (frames.lengths[: len(parsed)] == 0) & (parsed.offsets == 0)
    return blank


def numbers_in(window: bytes, count: int, at: int, type_: str) -> np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]:
    """Return the numbers `at` bytes after each of the first `count` bytes, as a view."""
    return np.ndarray((count,), type_, window, at, (1,))


def contains(data: bytes, pattern: bytes, start: int = 0, end: int | None = None) -> bool:
    """Search for a pattern whose first byte is rare: finding one byte is much faster than finding several."""
    at = data.find(pattern[:1], start, end)
    return at >= 0 and data.find(pattern, at, end) >= 0
