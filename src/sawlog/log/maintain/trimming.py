"""Dropping the beginning of a log.

Trimming notes the new log start durably, then deletes the segments that lie wholly below it. What lies below it is
durable by then, whatever the policy: a log that ends before it starts is nothing that anybody could open. Offsets never
go back: if nothing is left, the log goes on in an empty segment at the offset that was next.
"""

from __future__ import annotations

from ...errors import OffsetOutOfRange, StorageFull
from ..segment.segment import Segment
from ..write.appender import Appender


def trim(appender: Appender, offset: int) -> int:
    """Drop the records below `offset`; how many were dropped."""
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
            appender.move_start(offset)
        except StorageFull:
            if not gone:
                raise
            _make_room(appender, kept, gone)
            appender.move_start(offset)
        else:
            _drop(appender, kept, gone)
    segments.wake()
    return offset - lowest


def _drop(appender: Appender, kept: list[Segment], gone: list[Segment]) -> None:
    """Delete segments that lie below the start."""
    if gone:
        appender.segments.set(kept)
        for segment in gone:
            segment.delete()
        appender.directory.sync()


def _make_room(appender: Appender, kept: list[Segment], gone: list[Segment]) -> None:
    """Delete segments before the new start can be written down: the names of the files alone say where the log starts,
    if this is where it ends. One by one, each durably: a power cut that takes the names in another order would leave a
    gap behind one that is still there. What cannot be deleted stays."""
    segments = appender.segments
    for number, segment in enumerate(gone, 1):
        lowest, left = segments.lowest_offset, [*gone[number:], *kept]
        segments.lowest_offset = max(lowest, left[0].base_offset)
        segments.set(left)
        try:
            segment.delete()
        except BaseException:
            if appender.directory.exists(segment.name):
                segments.set([segment, *left])
                segments.lowest_offset = lowest
            raise
        appender.directory.sync()
