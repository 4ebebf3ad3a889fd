"""Drops the beginning of a log.

Trimming records the new log start durably, then deletes the segments that are completely below it. Everything below it
is made durable first, whatever the policy: a log that ends before it starts could not be opened. Offsets never go back:
if nothing is left, the log continues in an empty segment at the next offset.
"""

from __future__ import annotations

from ...errors import OffsetOutOfRange, StorageFull
from ..segment.segment import Segment
from ..write.appender import Appender


def trim(appender: Appender, offset: int) -> int:
    """Drop the records below `offset` and return how many were dropped."""
    with appender.exclusive():
        segments = appender.segments
        lowest, following = segments.lowest_offset, segments.next_offset
        if offset < lowest:
            return 0
        if offset > following:
            raise OffsetOutOfRange(offset, lowest, following, appender.directory.path)
        if offset == following and segments.active.size:
            appender.active.rotate()
        kept = list(segments.all)
        gone: list[Segment] = []
        while len(kept) > 1 and kept[0].next_offset <= offset:
            gone.append(kept.pop(0))
        if offset > appender.commit.durable_offset:
            appender.active.sync_now()
        try:
            appender.history.move_start(offset)
        except StorageFull:
            if not gone:
                raise
            _make_room(appender, kept, gone)
            appender.history.move_start(offset)
        else:
            _drop(appender, kept, gone)
    segments.wake()
    return offset - lowest


def _drop(appender: Appender, kept: list[Segment], gone: list[Segment]) -> None:
    """Delete segments that are below the start."""
    if gone:
        appender.segments.set(kept)
        for segment in gone:
            segment.delete()
        appender.directory.sync()


def _make_room(appender: Appender, kept: list[Segment], gone: list[Segment]) -> None:
    """Delete segments before the new start can be recorded: if the log ends here, the file names alone say where it
    starts. One by one, each durably: a power cut that loses names in another order would leave a gap after one that
    still exists. What cannot be deleted is kept."""
    segments = appender.segments
    for number, segment in enumerate(gone, 1):
        lowest, left = segments.lowest_offset, [*gone[number:], *kept]
        segments.start_at(max(lowest, left[0].base_offset))
        segments.set(left)
        try:
            segment.delete()
        except BaseException:
            if appender.directory.exists(segment.name):
                segments.set([segment, *left])
                segments.start_at(lowest)
            raise
        appender.directory.sync()
