"""Trimming: drops the beginning of a log.

Trimming records the new log start durably, then deletes the segments that are entirely below it. Everything below it is
synced first, whatever the policy: a log that ends before it starts could not be opened. Offsets never decrease: if
nothing is left, the log continues in an empty segment at the next offset.

On a full disk there may be no room for the new checkpoint before segments are deleted. Each deleted segment then leaves
a file name, `<base>.log.deleted`, until the new start is recorded; otherwise the missing beginning would look like data
loss.

If the beginning exists only in the replica, only the recorded start moves. The replica keeps its segments unless it
mirrors retention.
"""

from __future__ import annotations

import errno

from ..errors import OffsetOutOfRange, RemoteUnavailable, StorageFull
from .appender import Appender
from .files import DELETED, INDEX, TIME_INDEX, file_name
from .remote import RemoteSegments
from .segment import Segment
from .segments import SegmentSet


def trim(appender: Appender, offset: int) -> int:
    """Drop the records below `offset` and return the number of offsets dropped."""
    with appender.exclusive():
        segments = appender.segments
        lowest, following = segments.log_start, segments.next_offset
        if offset < lowest:
            return 0
        if segments.remote is not None and offset < segments.lowest_offset:
            appender.lineage.set_remote(_shortened(segments, offset))
            return offset - lowest
        if offset > following:
            raise OffsetOutOfRange(offset, lowest, following, appender.directory.path)
        if offset == following and segments.active.size:
            appender.active.rotate()
        kept = list(segments.all)
        gone: list[Segment] = []
        while len(kept) > 1 and kept[0].next_offset <= offset:
            gone.append(kept.pop(0))
        if offset > appender.durability.durable_offset:
            appender.active.sync_now()
        appender.lineage.set_remote(None)  # first: what is in the replica is no longer part of the log
        try:
            appender.lineage.move_start(offset)
        except StorageFull:
            if not gone:
                raise
            _make_room(appender, kept, gone)
            appender.lineage.move_start(offset)
            for segment in gone:
                appender.directory.remove(segment.name + DELETED)
        else:
            drop(appender, kept, gone)
    segments.wake()
    return offset - lowest


def _shortened(segments: SegmentSet, offset: int) -> RemoteSegments | None:
    """Return the part that exists only in the replica, from `offset` on."""
    remote = segments.remote
    assert remote is not None
    if not remote.is_known:
        raise RemoteUnavailable(
            errno.EAGAIN,
            f"the start of {segments.directory.path} cannot be moved to offset {offset}: its list of what is only in "
            "the replica is missing or damaged; `sawlog maintenance` restores it from there",
        )
    return remote.trimmed(offset) if offset < remote.end else None


def drop(appender: Appender, kept: list[Segment], gone: list[Segment]) -> None:
    """Delete segments below the start."""
    if gone:
        appender.segments.set(kept)
        for segment in gone:
            segment.delete()
        appender.directory.sync()


def _make_room(appender: Appender, kept: list[Segment], gone: list[Segment]) -> None:
    """Delete segments before the new start is recorded. If the process dies here, the file names alone tell where the
    log starts and that this was intended. Each deletion is synced before the next: a power cut that reorders them would
    leave a gap. Segments that cannot be deleted are kept."""
    segments = appender.segments
    for number, segment in enumerate(gone, 1):
        lowest, left = segments.lowest_offset, [*gone[number:], *kept]
        segments.set_start(max(lowest, left[0].base_offset))
        segments.set(left)
        try:
            _leave_name(appender, segment)
            segment.delete()
        except BaseException:
            if appender.directory.exists(segment.name):
                segments.set([segment, *left])
                segments.set_start(lowest)
            raise
        appender.directory.sync()


def _leave_name(appender: Appender, segment: Segment) -> None:
    """Mark a segment as deleted by renaming one of its indexes, which needs no space. Readers may have the segment
    itself mapped."""
    directory, name = appender.directory, segment.name + DELETED
    segment.unload()
    for suffix in (INDEX, TIME_INDEX):
        if directory.exists(file_name(segment.base_offset, suffix)):
            directory.rename(file_name(segment.base_offset, suffix), name)
            return
    directory.create(name).close()
