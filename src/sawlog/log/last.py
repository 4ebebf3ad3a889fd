"""The last record of a log, if the offset before the end is a marker, a gap or an aborted record."""

from __future__ import annotations

from collections import deque

from ..batch.kernel import Record
from .reader import Reader

#: Number of offsets before the end to search first, and the factor for each further step.
_FIRST, _TIMES = 16, 8


def last_record(reader: Reader) -> Record | None:
    """Return the last committed record; None if there is none."""
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
