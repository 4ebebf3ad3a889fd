"""Lookup of records by timestamp: the first one since a given time, and the newest."""

from __future__ import annotations

from ..batch.header import ATTRIBUTES, BASE, CONTROL_BIT, COUNT, LAST, MAX_TIME
from .segment import Segment
from .segments import SegmentSet
from .transaction_view import TransactionView


def offset_at(segments: SegmentSet, timestamp: int, max_bytes: int) -> int:
    """Return the first offset whose record is not older than `timestamp`, or the end. Skips records of aborted
    transactions. A batch may have up to `max_bytes` when it is decompressed."""
    segments.refresh()
    return segments.retry_if_changed(lambda: _offset_at(segments, timestamp, max_bytes, segments.transaction_view))


def _offset_at(segments: SegmentSet, timestamp: int, max_bytes: int, transactions: TransactionView | None) -> int:
    lowest = segments.lowest_offset
    for segment in segments.all:
        if segment.next_offset <= lowest or not segment.size:
            continue
        segments.use(segment)
        try:
            if segment.timestamps()[1] >= timestamp:
                found = segment.first_at(timestamp, lowest, max_bytes, transactions)
                if found is not None:
                    return min(found, segments.visible_offset)
        finally:
            segments.done(segment)
    return segments.visible_offset


def newest(segments: SegmentSet, max_bytes: int) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record with the largest timestamp, aborted or not, as in Kafka; None if
    there is no record."""
    segments.refresh()
    return segments.retry_if_changed(lambda: _newest(segments, max_bytes))


def _newest(segments: SegmentSet, max_bytes: int) -> tuple[int, int] | None:
    """Search only segments whose index allows for a newer record than the ones found so far."""
    found: tuple[int, int] | None = None
    claims = [(_largest(segments, each), each) for each in segments.all if each.next_offset > segments.lowest_offset]
    for most, segment in sorted(claims, key=lambda claim: -claim[0]):
        if most < 0 or (found is not None and most < found[1]):
            break
        segments.use(segment)
        try:
            here = _newest_in(segments, segment, most, max_bytes)
        finally:
            segments.done(segment)
        if here is not None and (found is None or (here[1], -here[0]) > (found[1], -found[0])):
            found = here
    return found


def _newest_in(segments: SegmentSet, segment: Segment, most: int, max_bytes: int) -> tuple[int, int] | None:
    """Return offset and timestamp of the record that the index names if it is readable and visible; otherwise search
    the batches."""
    offset = segment.first_at(most, segments.lowest_offset, max_bytes)
    if offset is None or offset >= segments.visible_offset:
        most = _largest_there(segments, segment, max_bytes)
        offset = segment.first_at(most, segments.lowest_offset, max_bytes) if most >= 0 else None
    return None if offset is None or offset >= segments.visible_offset else (offset, most)


def _largest_there(segments: SegmentSet, segment: Segment, max_bytes: int) -> int:
    """Return the largest timestamp of a readable record; -1 if there is none."""
    lowest, end, most = max(segments.lowest_offset, segment.base_offset), segments.visible_offset, -1
    for chunk in segment.chunks(lowest, min(segment.next_offset, end), check=False):
        rows = chunk.rows
        rows = rows[(rows[:, ATTRIBUTES] & CONTROL_BIT == 0) & (rows[:, COUNT] > 0) & (rows[:, LAST] < end)]
        whole = rows[rows[:, BASE] >= lowest]
        if len(whole):
            most = max(most, int(whole[:, MAX_TIME].max()))
        for last in rows[rows[:, BASE] < lowest][:, LAST].tolist():  # some of its records are trimmed
            while lowest <= last and (record := segment.read(lowest, max_bytes)) is not None and record.offset <= last:
                most, lowest = max(most, record.timestamp), record.offset + 1
            lowest = last + 1
    return most


def _largest(segments: SegmentSet, segment: Segment) -> int:
    segments.use(segment)
    try:
        return segment.timestamps()[1] if segment.size else -1
    finally:
        segments.done(segment)
