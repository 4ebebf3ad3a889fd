"""The last records of a log: one, where the offset before the end may have none: a marker, a gap, what was aborted or
compacted; and some to look at."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from ...batch.kernel import Record
from .pages import Fetched
from .reader import Reader

#: How many offsets before the end are looked at first; then so many times as many.
_FIRST, _TIMES = 16, 8
#: A prompt or notebook shows that many, unless they are larger than this.
MOST_SHOWN, _SHOWN_BYTES = 5, 1 << 20


class Readable(Protocol):
    """A log."""

    @property
    def lowest_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    def fetch(self, start: int, max_bytes: int = ...) -> Fetched:
        """Complete batches."""

    def scan(self, start: int | None = None, end: int | None = None, max_bytes: int | None = None) -> Iterator[Record]:
        """Records in order."""


def to_show(log: Readable) -> list[Record]:
    """The records at the last offsets; none if they are too large to be shown."""
    end = log.last_stable_offset
    start = max(end - MOST_SHOWN, log.lowest_offset)
    if start >= end or sum(len(each) for each in log.fetch(start, 1).buffers) > _SHOWN_BYTES:
        return []
    return list(log.scan(start, end, _SHOWN_BYTES))


def last_record(reader: Reader) -> Record | None:
    """The last record that is committed; None if there is none."""
    segments = reader.segments
    lowest, end = reader.span(None, None)
    for segment in reversed(segments.all):
        found = _before(reader, max(segment.base_offset, lowest), min(segment.next_offset, end))
        if found is not None:
            return found
    if lowest < segments.lowest_offset:  # the rest is only in the replica
        return _before(reader, lowest, segments.lowest_offset)
    return None


def _before(reader: Reader, first: int, stop: int) -> Record | None:
    step = _FIRST
    while first < stop:
        start = max(stop - step, first)
        if found := deque(reader.scan(start, stop, None), maxlen=1):
            return found[0]
        stop, step = start, step * _TIMES
    return None
