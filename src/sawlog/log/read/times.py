"""Records of a log by their time: the first one since a time, and the newest."""

from __future__ import annotations

from functools import partial

from ..segment.lookup import Decisions
from ..segment.segment import Segment
from ..segment.segments import SegmentSet


def offset_at(segments: SegmentSet, timestamp: int, max_bytes: int) -> int:
    """The first offset whose record is not older than `timestamp`; the end if all are. The records of aborted
    transactions are none. A batch may have up to `max_bytes` when it is decompressed."""
    segments.refresh()
    return segments.steadily(lambda: _offset_at(segments, timestamp, max_bytes, segments.outlook))


def _offset_at(segments: SegmentSet, timestamp: int, max_bytes: int, outcomes: Decisions | None) -> int:
    lowest = segments.lowest_offset
    for segment in segments.all:
        if segment.next_offset <= lowest or not segment.size:
            continue
        segments.use(segment)
        try:
            if segment.timestamps()[1] >= timestamp:
                found = segment.first_at(timestamp, lowest, max_bytes, outcomes)
                if found is not None:
                    return min(found, segments.visible_offset)
        finally:
            segments.done(segment)
    return segments.visible_offset


def newest(segments: SegmentSet, max_bytes: int) -> tuple[int, int] | None:
    """Offset and timestamp of the first record with the largest timestamp, aborted or not, as in Kafka; None if there
    is no record."""
    segments.refresh()
    end = segments.visible_offset
    for timestamp in sorted({_largest(segments, each) for each in segments.all}, reverse=True):
        offset = segments.steadily(partial(_offset_at, segments, timestamp, max_bytes, None))
        if timestamp >= 0 and offset < end:  # else it is a record that nobody can read yet
            return offset, timestamp
    return None


def _largest(segments: SegmentSet, segment: Segment) -> int:
    segments.use(segment)
    try:
        return segment.timestamps()[1] if segment.size else -1
    finally:
        segments.done(segment)
