"""Torn records, and what their system wrote after a restart.

Some systems do not examine the end of their files when they start: they append after whatever is there. If that is a
fragment of a record (the process was killed, the disk was full), the file reads

    [whole records][head and a part of record 57][record 7][record 8] ...
                   ^ torn                        ^ written after the restart, from the segment's first offset on

and the length in the head of the torn record counts bytes that were never written: it extends over the records after
it, perhaps exactly to the beginning of one of them. So a length is not trusted if what follows is suspicious (no record
follows, offsets are not consecutive, the file ends), or if it is so large that consecutive offsets could be an
accident. Then the record is searched for a *run*: complete records, the first of which has an offset that the system
starts with, and that lead to what follows. If there is one, the record ends where the run begins, and that fragment is
left out: it was never acknowledged.

A value that ends with such a run is treated as a torn record: without a checksum the two cannot be distinguished.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .frames import FrameLog, Way
from .numbering import MAX_OFFSET, Numbers
from .walking import Cursor, SegmentFile

#: How many bytes after damage to search for the next complete record.
_SEARCH_BYTES = 64 << 20
#: How many of them to examine at once.
_PIECE_BYTES = 1 << 20
#: How many bytes to read for examining single heads.
_NEAR_BYTES = 64 << 10
#: This many records may be missing between two that are found again.
_MOST_MISSING = 1 << 16

#: Offsets, from the first up to but not including the second.
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Head:
    """What looks like the beginning of a record."""

    #: None if it is unknown because the record is incomplete.
    offset: int | None
    #: Where it is.
    start: int
    #: Where the record ends if its length is right; may be after the end of the file.
    end: int
    #: Whether it is all zeros.
    blank: bool = False


class RestartingLog(FrameLog):
    """A log of a system that appends after torn records. A format implements `head_at`, `likely`, `begins`, `follows`
    and `indexed_after`."""

    #: The bytes that were last read for examining heads: the segment, and the first byte.
    _near: tuple[SegmentFile | None, int, bytes] = (None, 0, b"")

    def peek(self, segment: SegmentFile, position: int, size: int) -> bytes:
        """As `read_data`, for many reads of a few bytes each."""
        held, start, data = self._near
        if held is not segment or not start <= position <= position + size <= start + len(data):
            start = max(position - _NEAR_BYTES // 4, 0)  # reads also go back a little
            end = min(max(position + size, start + _NEAR_BYTES), segment.size)
            data = bytes(self.read_data(segment, start, end - start))
            self._near = segment, start, data
        return data[position - start : position - start + size]

    @abstractmethod
    def head_at(self, segment: SegmentFile, position: int) -> Head | None:
        """What may be a record there; None if it cannot be one."""

    @abstractmethod
    def likely(self, window: bytes, count: int, ranges: tuple[Range, ...]) -> Numbers:
        """Which of the first `count` bytes may begin a record with an offset in these ranges."""

    @abstractmethod
    def begins(self, segment: SegmentFile) -> Range:
        """The offsets with which the system may start after a restart."""

    @abstractmethod
    def follows(self, segment: SegmentFile, head: Head, rest: bytes) -> bool:
        """Whether the first bytes after a record may begin another one whose head is incomplete."""

    @abstractmethod
    def goes_on(self, segment: SegmentFile, head: Head, following: Head) -> bool:
        """Whether a record may follow another, by their offsets."""

    @abstractmethod
    def indexed_after(self, segment: SegmentFile, cursor: Cursor) -> int | None:
        """Where the nearest record after the cursor begins that is in the index."""

    # --- if the length of a record is in doubt

    def joined(
        self, segment: SegmentFile, start: int, end: int, offset: int, *, broken: bool, exact: bool
    ) -> int | None:
        """Where, in the record from `start` to `end`, others begin: it was torn there.

        If the chain after it is `broken`, one complete record with a possible successor is enough. Otherwise the
        records have to lead to the end of the record, or beyond; `exact`ly to it if the bytes there are a good record.
        """
        ranges: tuple[Range, ...] = (self.begins(segment),)
        if not exact and 0 <= offset < MAX_OFFSET:
            ranges = (*ranges, (offset, offset + 1))  # the same record, written again
        head = self.head_at(segment, start)
        if broken and (head is None or not self._is_followed(segment, head)):
            return self._tear(segment, start, end, offset, ranges)
        first: int | None = None
        passed: set[int] = set()
        for position in self._candidates(segment, start + 1, end, ranges):
            if self._believable(segment, position, ranges):
                first = position if first is None else first
                if self._leads_to(segment, position, end, passed, exact=exact):
                    return first
        return None

    def _tear(self, segment: SegmentFile, start: int, end: int, offset: int, ranges: tuple[Range, ...]) -> int | None:
        """Where the first complete record begins that was written after a torn one: within that, or within another that
        begins there and was torn as well. If nothing complete was written, where that other one begins."""
        reach, other = end, None
        for position in self._candidates(segment, start + 1, segment.size, ranges):
            if position >= reach:
                break
            if self._believable(segment, position, ranges):
                return position
            further = self._further(segment, position, reach)
            if other is None and further > segment.size:
                other = position
            reach = further
        if other is None or self._next_believable(segment, end, ((offset + 1, offset + _MOST_MISSING),)) is not None:
            return None
        return other

    def _next_believable(self, segment: SegmentFile, start: int, ranges: tuple[Range, ...]) -> int | None:
        end = min(segment.size, start + _SEARCH_BYTES)
        found = self._candidates(segment, start, end, ranges)
        return next((position for position in found if self._believable(segment, position, ranges)), None)

    def _leads_to(self, segment: SegmentFile, position: int, end: int, passed: set[int], *, exact: bool) -> bool:
        """Whether complete records lead from one byte to another; `passed` are those that are known not to."""
        while position < end and position not in passed:
            passed.add(position)
            head = self.head_at(segment, position)
            if head is None or not self._is_followed(segment, head):
                return False
            position = head.end
        return position == end or (position > end and not exact)

    def _believable(self, segment: SegmentFile, position: int, ranges: tuple[Range, ...]) -> bool:
        """Whether a complete record with such an offset is there, with a possible successor."""
        head = self.head_at(segment, position)
        if head is None or head.offset is None or not any(low <= head.offset < high for low, high in ranges):
            return False
        return self._is_followed(segment, head)

    def _is_followed(self, segment: SegmentFile, head: Head) -> bool:
        if head.offset is None or head.end > segment.size:
            return False
        rest = segment.size - head.end
        following = self.head_at(segment, head.end)
        if self._is_zeros(segment, head):  # zeros are a record only if the next one confirms it
            return following is not None and following.offset == head.offset + 1
        if rest < self.frame.head_size:
            return rest == 0 or self.follows(segment, head, self.peek(segment, head.end, rest))
        if following is not None and following.blank:
            return self._is_followed(segment, following)
        return following is not None and self.goes_on(segment, head, following)

    def _is_zeros(self, segment: SegmentFile, head: Head) -> bool:
        """Whether only zeros follow the length of a record."""
        position, size = head.start + self.frame.length_at + self.frame.length_size, 64
        end = min(head.end, segment.size)
        while position < end:
            size = min(size, end - position)
            if any(self.peek(segment, position, size)):
                return False
            position, size = position + size, _NEAR_BYTES
        return True

    def _candidates(self, segment: SegmentFile, start: int, end: int, ranges: tuple[Range, ...]) -> Iterator[int]:
        """The bytes from `start` to `end` where such a record may begin."""
        margin = self.frame.head_size + 1
        while start < end:
            count = min(_PIECE_BYTES, end - start)
            window = bytes(self.read_data(segment, start, min(count + margin, segment.size - start)))
            count = min(count, len(window) - margin + 1)
            if count > 0:
                for at in self.likely(window, count, ranges).tolist():
                    yield start + at
            start += _PIECE_BYTES

    # --- if the chain is broken

    def resync(self, segment: SegmentFile, cursor: Cursor) -> Way | None:
        """The nearest record that is known by the index, or by its offset and what follows it."""
        wanted = cursor.count.stored + 1
        indexed = self.indexed_after(segment, cursor)
        end = min(indexed or segment.size, cursor.position + 1 + _SEARCH_BYTES)
        ranges = (self.begins(segment), (wanted, wanted + _MOST_MISSING))
        reach = self._reach(segment, cursor)
        for position in self._candidates(segment, cursor.position + 1, end, ranges):
            if self._believable(segment, position, ranges):
                return self._way(segment, position, wanted, reach)
            reach = self._further(segment, position, reach)  # it may have been torn as well
        return None if indexed is None else self._way(segment, indexed, wanted, reach)

    def _way(self, segment: SegmentFile, position: int, wanted: int, reach: int) -> Way:
        head = self.head_at(segment, position)
        again = head is not None and head.offset is not None and head.offset < max(wanted + 1, self.begins(segment)[1])
        return Way(position, again and position <= reach)

    def _reach(self, segment: SegmentFile, cursor: Cursor) -> int:
        """Where the record at the cursor ends by its length; where its head ends, if there is no length."""
        least = cursor.position + self.frame.head_size
        head = self.head_at(segment, cursor.position)
        if least > segment.size or (head is not None and head.offset not in (None, cursor.count.stored + 1)):
            return least
        size = self._size_of_first(self.read_data(segment, cursor.position, self.frame.head_size))
        return cursor.position + size if size <= self.frame.head_size + self.frame.most else least

    def _further(self, segment: SegmentFile, position: int, reach: int) -> int:
        low, high = self.begins(segment)
        head = self.head_at(segment, position)
        if head is None or position > reach or (head.offset is not None and not low <= head.offset < high):
            return reach
        if self._is_zeros(segment, head):
            return reach
        return max(reach, head.end)


def views(window: bytes, count: int, at: int, shape: str) -> np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]:
    """The numbers `at` bytes after each of the first bytes."""
    return np.ndarray((count,), shape, window, at, (1,))
