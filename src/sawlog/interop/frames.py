"""Logs whose records contain their length: a head of fixed size with the length, then that many bytes.

Such a log can be read without an index, from one head to the next, but one wrong length breaks the chain. Then the
format is asked where the next record certainly begins (`resync`): by an index, or by something in the records that is
very unlikely to be there by chance. If there is such a place, the bytes before it are lost; if not, the rest of the
file is a torn tail.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..batch import kernel
from .columns import Extra, Values
from .damage import Kind
from .numbering import Numbered, Numbers, Trust, assign
from .walking import CHUNK_BYTES, Cursor, SegmentFile, WalkedLog, WalkStep

#: The largest number of records per step.
_MAX_ROWS = 1 << 17
#: How far after a damaged record to search for the next complete one: nearby first.
RESYNC_BYTES = (256 << 10, 64 << 20)


@dataclass(frozen=True, slots=True)
class Way:
    """Where records continue after something that is not a complete record."""

    position: int
    #: Whether the bytes before it were torn and this was written after a restart: they were never acknowledged.
    torn: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """The layout of a head."""

    head_size: int
    length_at: int
    length_size: int
    big: bool
    #: The maximum length of a record.
    most: int


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """Complete frames in a buffer that begins at a byte of a file: where the bytes after each head are."""

    data: memoryview
    starts: Numbers
    lengths: Numbers
    #: Whether the last frame is known to end correctly: at the end of the file, or only the buffer ends.
    clear: bool
    #: Whether the last frame ends at the end of the file.
    final: bool

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """Frames as decoded by a format: the values of the first `len(starts)` of them; the next one, if any, is bad."""

    starts: Numbers
    lengths: Numbers
    #: The offset stored in each record; None if records do not store it.
    stored: Numbers | None
    extras: tuple[Extra, ...] = ()
    #: What is wrong with the next frame.
    kind: Kind = Kind.UNREADABLE
    detail: str = "a record that does not parse"
    #: Which frames are all zeros, and so may not be records.
    blank: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))


class FrameLog(WalkedLog):
    """A log of such records. A format implements `frame`, `trust`, `parse` and `resync`."""

    frame: Frame
    trust = Trust.BARE

    @abstractmethod
    def parse(self, segment: SegmentFile, cursor: Cursor, frames: Frames) -> Parsed:
        """Decode the frames."""

    @abstractmethod
    def resync(self, segment: SegmentFile, cursor: Cursor) -> Way | None:
        """Where the first complete record after the cursor begins, if that is certain."""

    def joined(
        self, segment: SegmentFile, start: int, end: int, offset: int, *, broken: bool, exact: bool
    ) -> int | None:
        """Where, within the record from `start` to `end`, other records begin that were written after it was torn; see
        restarts.py. Systems with checksums do not need this."""
        return None

    def may_hold_records(self, segment: SegmentFile, data: bytes, start: int, end: int) -> bool:
        """Whether these bytes of a record may be other records: a quick check that avoids most searches."""
        return False

    def is_record_of_zeros(self, segment: SegmentFile, position: int) -> bool:
        """Whether a record is known to be there even if all bytes are zeros."""
        return False

    def seen(self, segment: SegmentFile, cursor: Cursor, positions: Numbers, stored: Numbers | None) -> int:
        """These records were read, from `cursor` on: a format may compare them with the index. Returns the position in
        the index after them."""
        return cursor.entry

    def leave(self, segment: SegmentFile, cursor: Cursor) -> None:
        """The end of a segment was reached: a format may compare it with the index."""

    # --- steps

    def step(self, cursor: Cursor) -> WalkStep:
        """Over as many good records as there are."""
        segment = self.segments[cursor.segment]
        if cursor.position >= segment.size:
            self.leave(segment, cursor)
            return WalkStep(self.enter(cursor.segment + 1, cursor))
        if self._is_blank(segment, cursor):
            return self._cut(segment, cursor, Kind.ZERO_TAIL, "zeros up to the end of the file; left out")
        frames = self.frames(segment, cursor.position)
        if not len(frames):
            return self._no_frame(segment, cursor)
        parsed = self.parse(segment, cursor, frames)
        numbered = self._number(segment, cursor, frames, parsed)
        taken = len(numbered.offsets)
        if taken:
            torn = self._torn_among(segment, cursor, frames, parsed, numbered)
            return self._take(segment, cursor, frames, parsed, numbered) if torn is None else torn
        kind, detail = parsed.kind, parsed.detail
        if numbered.bad:
            assert parsed.stored is not None
            said = int(parsed.stored[0]) % 2**64
            detail = f"a record has offset {said}, expected {cursor.count.stored + 1}; no neighbour confirms it"
        return self._bad_frame(segment, cursor, frames, kind, detail)

    def frames(self, segment: SegmentFile, position: int) -> Frames:
        """The complete frames from a byte on, a few megabytes of them, or one that is larger."""
        shape = self.frame
        rest = segment.size - position
        size = min(CHUNK_BYTES, rest)
        while True:
            data = self.read_data(segment, position, size)
            room = min(size // shape.head_size + 1, _MAX_ROWS)
            starts, lengths = np.empty(room, np.int64), np.empty(room, np.int64)
            count, end, why = kernel.walk_frames(
                data,
                0,
                size,
                shape.head_size,
                shape.length_at,
                shape.length_size,
                shape.big,
                shape.most,
                memoryview(starts),
                memoryview(lengths),
            )
            if count or why != kernel.WALK_SHORT or size == rest:
                break
            size = self._size_of_first(data)  # one record that is larger than what was read
            if size > rest:
                break
        broken = why == kernel.WALK_BAD or (why == kernel.WALK_SHORT and size == rest)
        return Frames(data, starts[:count], lengths[:count], not broken, end == rest)

    def _size_of_first(self, data: memoryview) -> int:
        shape = self.frame
        field_ = data[shape.length_at : shape.length_at + shape.length_size]
        return shape.head_size + int.from_bytes(field_, "big" if shape.big else "little")

    def _number(self, segment: SegmentFile, cursor: Cursor, frames: Frames, parsed: Parsed) -> Numbered:
        good = len(parsed.starts)
        blank = np.flatnonzero(parsed.blank[1:good])
        if len(blank):
            good = int(blank[0]) + 1  # the next step checks whether anything but zeros follows
        if parsed.stored is None:
            following = cursor.count.next_offset
            return Numbered(np.arange(following, following + good, dtype=np.int64), cursor.count.skip(good))
        return assign(
            parsed.stored[:good],
            cursor.count,
            base=segment.base,
            trust=self.trust,
            final=frames.final and good == len(frames),
            loose=cursor.loose,
        )

    def _take(
        self, segment: SegmentFile, cursor: Cursor, frames: Frames, parsed: Parsed, numbered: Numbered
    ) -> WalkStep:
        taken = len(numbered.offsets)
        head = self.frame.head_size
        for odd in numbered.oddities:
            at = cursor.position + int(frames.starts[odd.index]) - head
            self.note(odd.kind, segment, at, odd.detail, odd.outcome, offset=odd.offset)
        extras = [each.slice(0, taken) for each in parsed.extras]
        if numbered.oddities or cursor.count.next_offset != cursor.count.stored + 1:
            extras.extend(self._renumbered(parsed, numbered))
        values = Values(frames.data, numbered.offsets, parsed.starts[:taken], parsed.lengths[:taken], tuple(extras))
        end = int(frames.starts[taken - 1] + frames.lengths[taken - 1])
        positions = cursor.position + frames.starts[:taken] - head
        entry = self.seen(segment, cursor, positions, None if parsed.stored is None else parsed.stored[:taken])
        return WalkStep(cursor.to(cursor.position + end, numbered.count, entry=entry), values)

    def _renumbered(self, parsed: Parsed, numbered: Numbered) -> list[Extra]:
        """Records that could not keep their offset store the original one in a header."""
        if parsed.stored is None:
            return []
        stored = parsed.stored[: len(numbered.offsets)]
        return [Extra(f"{self.format}.offset", stored, stored != numbered.offsets)]

    # --- errors

    def _is_blank(self, segment: SegmentFile, cursor: Cursor) -> bool:
        """Whether only zeros follow; a single head of zeros may be a record without content."""
        head = self.frame.head_size
        position, rest = cursor.position, segment.size - cursor.position
        if rest < head or (rest == head and cursor.count.stored == -1 and self.trust != Trust.CHECKED):
            return False
        if self.is_record_of_zeros(segment, position):
            return False
        size = head
        while position < segment.size:
            if np.frombuffer(self.read_data(segment, position, size), np.uint8).any():
                return False
            position += size
            size = min(CHUNK_BYTES, segment.size - position)
        return True

    def _cut(self, segment: SegmentFile, cursor: Cursor, kind: Kind, detail: str) -> WalkStep:
        rest = segment.size - cursor.position
        self.note(kind, segment, cursor.position, detail, "cut", size_bytes=rest, offset=cursor.count.next_offset)
        return WalkStep(cursor.to(segment.size))

    def _no_frame(self, segment: SegmentFile, cursor: Cursor) -> WalkStep:
        way = self.resync(segment, cursor)
        if way is not None and way.torn:
            return self._left_out(segment, cursor, way.position)
        if way is not None:
            return self._lost(segment, cursor, way.position, Kind.UNREADABLE, "an invalid length")
        rest = segment.size - cursor.position
        return self._cut(segment, cursor, Kind.TORN_TAIL, f"the last {rest} bytes are not a complete record; left out")

    def _bad_frame(self, segment: SegmentFile, cursor: Cursor, frames: Frames, kind: Kind, detail: str) -> WalkStep:
        end = int(frames.starts[0] + frames.lengths[0])
        regular = self._goes_on(segment, cursor, frames)
        torn = self.joined(
            segment, cursor.position, cursor.position + end, cursor.count.stored + 1, broken=not regular, exact=regular
        )
        if torn is not None:
            return self._left_out(segment, cursor, torn)
        if cursor.position + end == segment.size or regular:
            after = cursor.to(cursor.position + end, cursor.count.skip(), loose=True)
            lost = self.note(
                kind, segment, cursor.position, detail, "lost", size_bytes=end, offset=cursor.count.next_offset
            )
            return WalkStep(after, lost=lost)
        way = self.resync(segment, cursor)
        if way is not None and way.torn:
            return self._left_out(segment, cursor, way.position)
        return self._lost(segment, cursor, segment.size if way is None else way.position, kind, detail)

    def _goes_on(self, segment: SegmentFile, cursor: Cursor, frames: Frames) -> bool:
        """Whether the frame after a bad one is good, so that only the content of this one is bad."""
        if len(frames) < 2:
            return False
        end = int(frames.starts[0] + frames.lengths[0])
        second = Frames(frames.data, frames.starts[1:2], frames.lengths[1:2], frames.clear, False)
        parsed = self.parse(segment, cursor.to(cursor.position + end, cursor.count.skip()), second)
        if not len(parsed.starts):
            return False
        return parsed.stored is None or int(parsed.stored[0]) == cursor.count.stored + 2

    def _lost(self, segment: SegmentFile, cursor: Cursor, found: int, kind: Kind, detail: str) -> WalkStep:
        size = found - cursor.position
        lost = self.note(
            kind,
            segment,
            cursor.position,
            f"{detail}; {size} bytes cannot be read",
            "lost",
            size_bytes=size,
            offset=cursor.count.next_offset,
        )
        return WalkStep(cursor.to(found, loose=True), lost=lost)

    # --- incomplete records

    def _torn_among(
        self, segment: SegmentFile, cursor: Cursor, frames: Frames, parsed: Parsed, numbered: Numbered
    ) -> WalkStep | None:
        """Up to the first incomplete record, or over it; None if all are complete."""
        stored, head = parsed.stored, self.frame.head_size
        if stored is None or self.trust == Trust.CHECKED:
            return None
        taken = len(numbered.offsets)
        ended = taken == len(parsed.starts) and (taken < len(frames) or not frames.clear)
        broken = numbered.bad or ended or self._is_followed_by_zeros(segment, cursor, frames, parsed, taken)
        last, odd = taken - 1, {each.index for each in numbered.oddities}
        odd |= {number - 1 for number in odd}
        for number in self._doubtful(segment, frames, stored, last, odd):
            start = int(frames.starts[number]) - head
            found = self.joined(
                segment,
                cursor.position + start,
                cursor.position + start + head + int(frames.lengths[number]),
                int(stored[number]),
                broken=broken and number == last,
                exact=number not in odd and number != last,
            )
            if found is not None and number:
                return self._take(segment, cursor, frames, parsed, numbered.first(number, stored, cursor.count))
            if found is not None:
                return self._left_out(segment, cursor, found)
        return None

    def _is_followed_by_zeros(
        self, segment: SegmentFile, cursor: Cursor, frames: Frames, parsed: Parsed, taken: int
    ) -> bool:
        """Whether only zeros follow the accepted records."""
        if taken >= len(parsed.blank) or not parsed.blank[taken]:
            return False
        end = int(frames.starts[taken - 1] + frames.lengths[taken - 1])
        return self._is_blank(segment, cursor.to(cursor.position + end))

    def _doubtful(self, segment: SegmentFile, frames: Frames, stored: Numbers, last: int, odd: set[int]) -> list[int]:
        """Records whose length may include bytes of others: where offsets do not follow each other, the last one, and
        those that are so long that records from the segment's first offset up to their own would fit into them."""
        head = self.frame.head_size
        before = stored[:last] - segment.base
        long = np.flatnonzero((before >= 0) & (frames.lengths[:last] + head > head * before))
        data = bytes(frames.data) if len(long) else b""
        starts, ends = frames.starts, frames.starts + frames.lengths
        held = (n for n in long.tolist() if self.may_hold_records(segment, data, int(starts[n]), int(ends[n])))
        return sorted({*held, *(number for number in odd if 0 <= number <= last), last})

    def _left_out(self, segment: SegmentFile, cursor: Cursor, found: int) -> WalkStep:
        size = found - cursor.position
        self.note(
            Kind.TORN_TAIL,
            segment,
            cursor.position,
            f"{size} bytes of an incomplete record; left out; other records were written after them",
            "cut",
            size_bytes=size,
            offset=cursor.count.next_offset,
        )
        return WalkStep(cursor.to(found))
