"""Drops what is expired or exceeds the size limit: whole segments, oldest first, in order.

A segment's age is that of its newest record's timestamp, which a restart does not change. The active segment also
expires if all of it is old; the log then continues in an empty one at the next offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ..clock import now_ms
from ..display import counted
from ..errors import InvalidConfig
from .appender import Appender
from .remote import Run
from .segments import SegmentSet
from .trimming import trim


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What retention removed, and where the log starts now."""

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
    """A duration as milliseconds: a timedelta, or a number of milliseconds."""
    ms = age / timedelta(milliseconds=1) if isinstance(age, timedelta) else age
    if isinstance(ms, bool) or not isinstance(ms, (int, float)) or not ms >= 0:
        raise InvalidConfig(f"an age must be a timedelta or milliseconds, at least 0, not {age!r}")
    return ms


def remove_expired(appender: Appender, max_age: timedelta | float) -> int:
    """Drop the leading segments whose newest record is at least `max_age` old and return how many records they had."""
    return _trim(appender, _expired_end(appender.segments, milliseconds(max_age))).removed_records


def apply_retention(appender: Appender) -> RetentionReport:
    """Drop what the log's own settings say, by age, then by size."""
    with appender.lock:
        appender.check_open()
        return _trim(appender, _wanted_start(appender.segments))


def is_due(segments: SegmentSet) -> bool:
    """Whether something should be dropped according to the log's own settings."""
    return _wanted_start(segments) > segments.log_start


def _wanted_start(segments: SegmentSet) -> int:
    """Where the log would start after that."""
    end, config = segments.log_start, segments.config
    if config.retention_ms is not None:
        end = _expired_end(segments, config.retention_ms)
    if config.retention_bytes is not None:
        end = max(end, _surplus_end(segments, config.retention_bytes))
    return end


def _expired_end(segments: SegmentSet, age_ms: float) -> int:
    """The offset after the leading run of expired segments, wherever they are."""
    oldest = now_ms() - age_ms
    end = segments.log_start
    for run in _remote(segments):
        if not 0 <= run.max_timestamp <= oldest:
            return end
        end = max(end, run.next_offset)
    local = expired_here(segments, age_ms)
    return local if local > segments.lowest_offset else end


def expired_here(segments: SegmentSet, age_ms: float) -> int:
    """The offset after the leading run of expired segments that are here."""
    oldest = now_ms() - age_ms
    end = segments.lowest_offset
    for segment in segments.all:
        if not segment.size:
            continue  # it stands in for lost records, and goes with those after it
        # The index tells quickly what is recent; before anything is deleted, the batches themselves are read.
        if segment.timestamps()[1] > oldest or not 0 <= segment.newest_timestamp() <= oldest:
            break
        end = max(end, segment.next_offset)
    return end


def _surplus_end(segments: SegmentSet, keep_bytes: int) -> int:
    """The offset after the oldest segments that are not needed for `keep_bytes`, wherever they are."""
    end, runs = segments.log_start, _remote(segments)
    total = segments.size_bytes + sum(run.size_bytes for run in runs)
    for run in runs:
        if total - run.size_bytes < keep_bytes:
            return end
        total -= run.size_bytes
        end = max(end, run.next_offset)
    local = surplus_here(segments, keep_bytes)
    return local if local > segments.lowest_offset else end


def surplus_here(segments: SegmentSet, keep_bytes: int) -> int:
    """The same for those that are here. Never the active one."""
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


def _remote(segments: SegmentSet) -> tuple[Run, ...]:
    """What is only in the replica."""
    remote = segments.remote
    return () if remote is None else remote.below(segments.lowest_offset)


def _trim(appender: Appender, offset: int) -> RetentionReport:
    with appender.lock:
        before = appender.segments
        segments, size = len(before.all), before.size_bytes
        rotated = offset == before.next_offset and before.active.size > 0
        removed = trim(appender, offset) if offset > before.log_start else 0
        gone = segments + rotated - len(before.all)
        return RetentionReport(gone, removed, size - before.size_bytes, before.log_start)
