"""`ByteReader`: all visible batches of a log as one file, for a copy or an export."""

from __future__ import annotations

import io
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from ..batch.header import POSITION
from ..storage import Storage
from .segment import Segment
from .segments import SegmentSet

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: A file, and the range of its bytes that belongs to the log.
_Part = tuple[Storage, int, int]


class ByteReader(io.RawIOBase):
    """The bytes of the batches that are visible now, as a seekable file.

    It holds the files of the segments, so it can be read to its end whatever happens to the log: retention, truncation,
    compaction, closing. The bytes are not checked.
    """

    def __init__(self, segments: SegmentSet) -> None:
        super().__init__()
        self._parts = segments.retry_if_changed(lambda: _visible_parts(segments))
        #: Positions after each part, as in the concatenation of all parts.
        self._ends = list(accumulate(stop - start for _, start, stop in self._parts))
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position and return it. A position beyond the end is allowed: reading there returns nothing."""
        self._check_open()
        size = self._ends[-1] if self._ends else 0
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: size}[whence]
        if position < 0:
            raise ValueError(f"negative seek position {position}")
        self._position = position
        return position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read into a buffer and return the number of bytes; 0 at the end."""
        self._check_open()
        target, position = memoryview(buffer).cast("B"), self._position
        number = bisect_right(self._ends, position)
        if number == len(self._ends):
            return 0
        storage, _, stop = self._parts[number]
        left = self._ends[number] - position
        size = min(len(target), left)
        target[:size] = storage.view(stop - left, size)
        self._position += size
        return size

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the reader is closed")

    def close(self) -> None:
        """Release the files."""
        self._parts, self._ends = [], []
        super().close()


def _visible_parts(segments: SegmentSet) -> list[_Part]:
    segments.refresh()
    lowest, end = segments.lowest_offset, segments.visible_offset
    parts: list[_Part] = []
    for segment in segments.all:
        following, stop = segment.tail
        if following <= lowest or segment.base_offset >= end:
            continue
        with segments.using(segment):
            start = _position_of(segment, lowest) if segment.base_offset < lowest else 0
            stop = stop if following <= end else _position_of(segment, end)
            parts.append((segment.storage, start, stop))
    return parts


def _position_of(segment: Segment, offset: int) -> int:
    """Return the position of the first batch that ends at or above an offset."""
    for chunk in segment.chunks(offset, offset + 1, check=False):
        return chunk.origin + int(chunk.rows[0, POSITION])
    return segment.size
