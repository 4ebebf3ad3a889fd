"""The last record of a log, where the offset before the end has none: a marker, a gap, an aborted record."""

from __future__ import annotations

from collections import deque

from ..batch.kernel import Record
from .reader import Reader

#: How many offsets before the end are looked at first; then so many times as many.
_FIRST, _TIMES = 16, 8


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
