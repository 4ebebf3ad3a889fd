"""Compaction: of all records with the same key, only the last is kept. Offsets do not change.

Two passes over the sealed segments. The first records the last offset of every key that was written since the last
compaction (the *dirty* part); its table has a fixed size: when it is full, this round ends there and the next begins.
The second rewrites everything from the log's start to there without the superseded records (see rewrite.py), into as
few segments as possible. The active segment is not changed.

Nothing from the last stable offset on is compacted: what is not decided supersedes nothing. Records of aborted
transactions supersede nothing either, and are removed. The marker at the end of a transaction is removed after its last
batch.

A *tombstone* (a key whose value is None) deletes a key. It is kept for `delete_retention_ms` after it was first
compacted, so that current readers have time to see it, and is then removed as well. Records without a key are kept. A
damaged segment is never rewritten, and from then on no tombstone is removed, because the records that it deletes might
be in that segment, until a compaction from the log's start on has met no damage.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from ..batch.header import LAST
from ..batch.kernel import KeyMap
from ..batch.read import MALFORMED, unpack
from ..clock import Stopwatch, now_ms
from ..display import counted
from ..errors import CorruptBatch, InvalidConfig, StorageError
from ..storage.counters import count
from . import rewrite
from .appender import Appender
from .maintenance_state import UpkeepState, load_state, store_state
from .rebatch import Counts, Markers, Wanted
from .replacement import TooLarge
from .rewrite import Gone, Rewritten, locked, unless_gone
from .segment import Segment
from .segments import SegmentSet

#: The maximum size of the table of keys, as in Kafka: enough for three and a half million keys per round.
KEY_BYTES = 128 << 20
_SLOT_BYTES = 24
_LEAST_SLOTS = 1 << 10


@dataclass(slots=True)
class CompactionReport:
    """What compaction did."""

    segments_before: int = 0
    segments_after: int = 0
    records_removed: int = 0
    bytes_removed: int = 0
    tombstones_removed: int = 0
    #: Bytes that were examined.
    bytes_read: int = 0
    #: Every key below this offset occurs once.
    clean_offset: int = 0
    #: Segments that are damaged and were not changed.
    damaged: list[str] = field(default_factory=list)
    duration_ms: float = 0.0

    def __bool__(self) -> bool:
        return self.records_removed > 0 or self.segments_after < self.segments_before

    def __str__(self) -> str:
        said = (
            f"compaction removed {counted(self.records_removed, 'record')} and {self.bytes_removed:,} bytes; "
            f"{counted(self.segments_before, 'segment')} became {self.segments_after}"
        )
        return said + "".join(f"; {path} is damaged and was not changed" for path in self.damaged)


def is_due(segments: SegmentSet, *, min_dirty_ratio: float, delete_retention_ms: int, min_lag_ms: int = 0) -> bool:
    """Whether enough was written since the last time, or tombstones have become old enough to be removed."""
    state = load_state(segments.directory)
    eligible = _eligible(segments, min_lag_ms)
    total = sum(segment.size for segment in eligible)
    dirty = sum(segment.size for segment in eligible if segment.next_offset > state.clean_offset)
    return bool(dirty and dirty >= total * min_dirty_ratio) or _tombstones_due(state, delete_retention_ms) > 0


def _tombstones_due(state: UpkeepState, retention_ms: int) -> int:
    """Below which offset tombstones may be removed; 0 if there are none."""
    if state.damaged or not state.tombstones:
        return 0
    return state.forget_below(now_ms() - retention_ms)


def compact(
    appender: Appender, *, delete_retention_ms: int, min_lag_ms: int = 0, key_bytes: int = KEY_BYTES
) -> CompactionReport:
    """Remove superseded records from the sealed segments. One at a time per log; appends and reads continue."""
    watch = Stopwatch()
    report = CompactionReport()
    if appender.segments.remote is not None:
        raise InvalidConfig(
            f"{appender.directory.path} cannot be compacted: its first records are only in the replica, where records "
            "of the same keys would stay"
        )
    with appender.maintenance_lock.hold():
        cuts, state = rewrite.begin(appender)
        if state.damaged:
            state.forget_compactions()
        while _round(appender, state, report, cuts, delete_retention_ms, min_lag_ms, key_bytes):
            pass
        report.clean_offset = state.clean_offset
        report.duration_ms = watch.elapsed_ms
    return report


def _eligible(segments: SegmentSet, min_lag_ms: int) -> list[Segment]:
    """The sealed segments that are old enough."""
    newest, stable = now_ms() - min_lag_ms, segments.end(committed=True)
    found: list[Segment] = []
    for segment in segments.all[:-1]:
        if segment.next_offset > stable:
            break  # what would supersede the rest is not visible yet, or not decided
        if min_lag_ms and times_of(segments, segment)[1] > newest:
            break
        found.append(segment)
    return found


def times_of(segments: SegmentSet, segment: Segment) -> tuple[int, int]:
    """The timestamps of a segment; those of an empty one if it was deleted since it was listed."""
    try:
        return segment.timestamps()
    except StorageError:
        segments.refresh()
        if segment in segments.all:
            raise
        return -1, -1


def _round(
    appender: Appender,
    state: UpkeepState,
    report: CompactionReport,
    cuts: int,
    retention_ms: int,
    min_lag_ms: int,
    key_bytes: int,
) -> bool:
    """One round; returns whether there is more to do. `cuts` as in `swap`: the state is from then."""
    segments = _eligible(appender.segments, min_lag_ms)
    clean = min(state.clean_offset, segments[-1].next_offset) if segments else state.clean_offset
    forget = _tombstones_due(state, retention_ms)
    dirty = [segment for segment in segments if segment.next_offset > clean]
    if not dirty and (not forget or report.segments_before):
        return False
    keys, end, damaged = _note_keys(appender, dirty, clean, key_bytes)
    taken = [segment for segment in segments if segment.base_offset < max(end, clean)]
    last = dirty[-1].next_offset if dirty else 0
    # What is replaced stays open while it is in use, and the number of open files is limited: do not hold it here.
    segments.clear()
    dirty.clear()
    wanted = Wanted(
        keys=keys,
        floor=appender.segments.lowest_offset,
        forget_below=0 if damaged else forget,
        remembered=appender.producers.remembers,
        aborted=appender.segments.outlook.aborted_rows,
        markers=Markers(),
    )
    tombstones = _rewrite_all(appender, taken, wanted, report, damaged, cuts)
    state.note_round(tombstones, damaged=bool(damaged))
    if end <= clean and last:
        return False  # only damage, or a batch with more keys than the table can hold
    with locked(appender):  # a truncation either has happened, or will see what is noted here
        if appender.truncations != cuts:
            return False
        state.note_clean(end, now_ms())
        store_state(appender.directory, state)
    return end < last


class _Malformed(CorruptBatch):
    """The records of a batch do not parse, and some of their keys have already been recorded."""


def _note_keys(
    appender: Appender,
    dirty: Sequence[Segment],
    start: int,
    key_bytes: int,
    malformed: Mapping[Segment, CorruptBatch] = MappingProxyType({}),
) -> tuple[KeyMap, int, dict[Segment, CorruptBatch]]:
    """The last offset of every key from `start` on: up to which offset, and which segments are damaged. Nothing is
    recorded of those that are known to be `malformed`: a record that cannot be decoded supersedes none."""
    records = sum(segment.next_offset - segment.base_offset for segment in dirty)
    keys = KeyMap(_table(records, key_bytes), secrets.token_bytes(16))
    damaged = dict(malformed)
    end = start
    for segment in dirty:
        if segment in malformed:
            end = segment.next_offset
            continue
        try:
            with unless_gone(appender, [segment]):
                end, full = _note_segment(appender, segment, start, keys, end)
            if full:
                return keys, end, damaged
        except Gone:
            pass
        except _Malformed as error:
            return _note_keys(appender, dirty, start, key_bytes, {**malformed, segment: error})
        except CorruptBatch as error:
            damaged[segment] = error
        end = segment.next_offset
    return keys, end, damaged


def _note_segment(appender: Appender, segment: Segment, start: int, keys: KeyMap, end: int) -> tuple[int, bool]:
    """The keys of one segment: up to which offset (`end`, if all), and whether the table is full."""
    for chunk in rewrite.chunks_of(segment, segment.next_offset):
        appender.maintenance_lock.check()
        # Keys below `start` are already unique. Recorded again they would fill the table in each round.
        dirty_rows = chunk.rows[chunk.rows[:, LAST] >= start]
        if chunk.special:
            dirty_rows = appender.segments.outlook.committed(dirty_rows)
        for body, rows, error in unpack(chunk.view, dirty_rows, appender.config.max_decompressed_bytes):
            if error is not None:
                raise error
            taken, bad = keys.note(body, memoryview(rows))
            if taken:
                end = int(rows[taken - 1, LAST]) + 1
            if bad:
                raise _Malformed(MALFORMED)
            if taken < len(rows):
                return end, True
    return end, False


def _table(records: int, key_bytes: int) -> np.ndarray:
    """A table for that many keys, or for as many as are allowed."""
    slots = _LEAST_SLOTS
    while slots * 7 // 8 < records and 2 * slots * _SLOT_BYTES <= key_bytes:
        slots *= 2
    return np.zeros((slots, 3), np.uint64)


def _rewrite_all(
    appender: Appender,
    left: list[Segment],
    wanted: Wanted,
    report: CompactionReport,
    damaged: dict[Segment, CorruptBatch],
    cuts: int,
) -> int:
    """Replace neighbouring segments by as few as possible and return how many tombstones are left. Empties the list."""
    report.segments_before += len(left)
    tombstones = 0
    markers = wanted.markers or Markers()
    while left:
        before = markers.copy()
        made, taken = _replace_some(appender, left, wanted, damaged, markers)
        run = left[:taken]
        del left[:taken]
        report.damaged += [each.path for each in run if each in damaged and each.path not in report.damaged]
        if made is not None and _is_worth_it(made):
            if rewrite.swap(appender, made, cuts):
                _add(report, made.counts)
                report.segments_after += 1
            elif appender.truncations == cuts:
                # The beginning of the run was trimmed meanwhile; the rest of it still has to be rewritten.
                listed = appender.segments.all
                left[:0] = [each for each in run if each in listed]
                markers.become(before)
                continue
        else:
            if made is not None:
                report.bytes_read += made.counts.bytes_before
                rewrite.discard(appender, made)
            report.segments_after += taken
        tombstones += made.counts.tombstones_kept if made is not None else 1  # unknown is not none
    return tombstones


def _replace_some(
    appender: Appender,
    segments: Sequence[Segment],
    wanted: Wanted,
    damaged: dict[Segment, CorruptBatch],
    markers: Markers,
) -> tuple[Rewritten | None, int]:
    """The replacement of the first of these segments, and as many more as fit; None for one that is damaged."""
    made, count = _try_to_replace(appender, segments, wanted, damaged, markers)
    if made is None:
        markers.go_blind()  # which transactions have batches in there is not known
    return made, count


def _try_to_replace(
    appender: Appender,
    segments: Sequence[Segment],
    wanted: Wanted,
    damaged: dict[Segment, CorruptBatch],
    markers: Markers,
) -> tuple[Rewritten | None, int]:
    most, limit = 1, min(len(segments), rewrite.most_segments())
    while most < limit and segments[most] not in damaged and segments[most - 1] not in damaged:
        most += 1
    if segments[0] in damaged:
        return None, 1
    count = most
    while True:
        tried = markers.copy()
        try:
            made = rewrite.replace_run(appender, segments[:count], replace(wanted, markers=tried))
            markers.become(tried)
            return made, count
        except Gone:
            return None, 1
        except TooLarge as full:
            if count == 1:  # treated as damaged: what later tombstones delete stays in there
                damaged[segments[0]] = CorruptBatch("its replacement would be too large", path=segments[0].path)
            count = max(full.fitted, 1) if count > 1 else 0
        except CorruptBatch as error:
            bad = next((each for each in segments[:count] if each.path == error.path), segments[0])
            damaged[bad] = error
            count = segments.index(bad)
        if count == 0:
            return None, 1


def _is_worth_it(made: Rewritten) -> bool:
    return made.counts.records_after < made.counts.records_before or len(made.run) > 1


def _add(report: CompactionReport, counts: Counts) -> None:
    report.records_removed += counts.records_before - counts.records_after
    report.bytes_removed += counts.bytes_before - counts.bytes_after
    count("compaction_removed_bytes", max(counts.bytes_before - counts.bytes_after, 0))
    report.tombstones_removed += counts.tombstones_dropped
    report.bytes_read += counts.bytes_before
