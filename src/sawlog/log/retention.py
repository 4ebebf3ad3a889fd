"""Trimming and retention: dropping the beginning of a log.

Trimming records the new log start durably, then deletes the segments that are entirely below it. Everything below it is
synced first, whatever the policy: a log that ends before it starts could not be opened. Offsets never decrease: if
nothing is left, the log continues in an empty segment at the next offset.

On a full disk there may be no room for the new checkpoint before segments are deleted. Each deleted segment then leaves
a file name, `<base>.log.deleted`, until the new start is recorded; otherwise the missing beginning would look like data
loss.

If the beginning exists only in the replica, only the recorded start moves. The replica keeps its segments unless it
mirrors retention.

Retention trims segments that are expired or exceed the size limit, oldest first. The age of a segment is the age of its
newest record, by timestamp, so a restart does not change it. The active segment expires as well if all its records are
old; the log then continues in an empty segment at the next offset.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from datetime import timedelta

from ..clock import now_ms
from ..display import counted
from ..errors import InvalidConfig, OffsetOutOfRange, RemoteUnavailable, StorageFull
from .appender import Appender
from .files import DELETED, INDEX, TIME_INDEX, file_name
from .remote import RemoteRun, RemoteSegments
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
        appender.lineage.set_remote(None)  # first: the tiered part no longer belongs to the log
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
            f"the start of {segments.directory.path} cannot be moved to offset {offset}: its list of the segments "
            "that only the replica has is missing or damaged; `sawlog maintenance` restores it from the replica",
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


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """Segments that retention removed, and the new start of the log."""

    removed_segments: int
    removed_records: int
    removed_bytes: int
    lowest_offset: int

    def __str__(self) -> str:
        return (
            f"retention removed {counted(self.removed_records, 'record')} and {self.removed_bytes:,} bytes; "
            f"the log starts at {self.lowest_offset:,}"
        )


def milliseconds(age: timedelta | float) -> float:
    """Convert a timedelta or a number of milliseconds to milliseconds; raise `InvalidConfig` for anything else."""
    ms = age / timedelta(milliseconds=1) if isinstance(age, timedelta) else age
    if isinstance(ms, bool) or not isinstance(ms, (int, float)) or not ms >= 0:
        raise InvalidConfig(f"an age must be a timedelta or milliseconds, at least 0, not {age!r}")
    return ms


def remove_expired(appender: Appender, max_age: timedelta | float) -> int:
    """Delete the leading segments whose newest record is at least `max_age` old; return their number of records."""
    return _trim(appender, _expired_end(appender.segments, milliseconds(max_age))).removed_records


def apply_retention(appender: Appender) -> RetentionReport:
    """Apply `retention_ms` and `retention_bytes` of the log's configuration."""
    with appender.hold():
        return _trim(appender, _wanted_start(appender.segments))


def is_due(segments: SegmentSet) -> bool:
    """Return True if the log's configuration requires a deletion."""
    return _wanted_start(segments) > segments.log_start


def _wanted_start(segments: SegmentSet) -> int:
    """Return where the log starts after applying its configuration."""
    end, config = segments.log_start, segments.config
    if config.retention_ms is not None:
        end = _expired_end(segments, config.retention_ms)
    if config.retention_bytes is not None:
        end = max(end, _surplus_end(segments, config.retention_bytes))
    return end


def _expired_end(segments: SegmentSet, age_ms: float) -> int:
    """Return the offset after the leading expired segments, local or in the replica."""
    oldest = now_ms() - age_ms
    end = segments.log_start
    for run in _remote(segments):
        if not 0 <= run.max_timestamp <= oldest:
            return end
        end = max(end, run.next_offset)
    local = expired_local(segments, age_ms)
    return local if local > segments.lowest_offset else end


def expired_local(segments: SegmentSet, age_ms: float) -> int:
    """Return the offset after the leading expired local segments."""
    oldest = now_ms() - age_ms
    end = segments.lowest_offset
    for segment in segments.all:
        if not segment.size:
            continue  # a placeholder for lost records; it is deleted with the segments after it
        # The index quickly rules out recent segments. Before a deletion, the batches themselves are read.
        if segment.timestamps()[1] > oldest or not 0 <= segment.newest_timestamp() <= oldest:
            break
        end = max(end, segment.next_offset)
    return end


def _surplus_end(segments: SegmentSet, keep_bytes: int) -> int:
    """Return the offset after the oldest segments, local or in the replica, that `keep_bytes` does not need."""
    end, runs = segments.log_start, _remote(segments)
    total = segments.size_bytes + sum(run.size_bytes for run in runs)
    for run in runs:
        if total - run.size_bytes < keep_bytes:
            return end
        total -= run.size_bytes
        end = max(end, run.next_offset)
    local = surplus_local(segments, keep_bytes)
    return local if local > segments.lowest_offset else end


def surplus_local(segments: SegmentSet, keep_bytes: int) -> int:
    """Return the offset after the oldest local segments that `keep_bytes` does not need; never the active one."""
    end = segments.lowest_offset
    total = segments.size_bytes
    for segment in segments.all[:-1]:
        if not segment.size:
            continue
        if total - segment.size < keep_bytes:
            break
        total -= segment.size
        end = max(end, segment.next_offset)
    return end


def _remote(segments: SegmentSet) -> tuple[RemoteRun, ...]:
    """Return the runs of segments that are only in the replica."""
    remote = segments.remote
    return () if remote is None else remote.below(segments.lowest_offset)


def _trim(appender: Appender, offset: int) -> RetentionReport:
    with appender.hold():
        before = appender.segments
        segments, size = len(before.all), before.size_bytes
        rotated = offset == before.next_offset and before.active.size > 0
        removed = trim(appender, offset) if offset > before.log_start else 0
        gone = segments + rotated - len(before.all)
        return RetentionReport(gone, removed, size - before.size_bytes, before.log_start)
