"""Compaction: keep only the last record of every key. Offsets do not change.

Compaction makes two passes over the sealed segments. The first records the last offset of every key written since the
last compaction (the *dirty* part). Its table has a fixed size; when it is full, the round ends there and another one
follows. The second pass rewrites everything from the start of the log to that offset without superseded records (see
rewrite.py), into as few segments as possible. The active segment does not change.

Nothing at or above the last stable offset is compacted: undecided records supersede nothing. Records of aborted
transactions supersede nothing either, and are removed. The marker that ends a transaction is removed after the last of
its batches.

A *tombstone* (a key whose value is None) deletes a key. It is kept for `delete_retention_ms` after its first
compaction, so that current readers have time to see it, and is then removed as well. Records without a key are kept. A
damaged segment is never rewritten. After damage, no tombstone is removed, because the records that it deletes may be in
the damaged segment, until a compaction from the start of the log finds no damage.
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
from .maintenance_state import MaintenanceState, load_state, store_state
from .rebatch import MarkerTracker, RewriteCounts, RewriteOptions
from .rewrite import Rewritten, SegmentsRemoved, TooLarge, detect_removal, locked
from .segment import Segment
from .segments import SegmentSet

#: Maximum size of the key table, the same as Kafka's: enough for three and a half million keys per round.
KEY_BYTES = 128 << 20
_SLOT_BYTES = 24
_MIN_SLOTS = 1 << 10


@dataclass(slots=True)
class CompactionReport:
    """Result of one compaction."""

    segments_before: int = 0
    segments_after: int = 0
    records_removed: int = 0
    bytes_removed: int = 0
    tombstones_removed: int = 0
    #: Bytes read.
    bytes_read: int = 0
    #: Every key occurs only once below this offset.
    clean_offset: int = 0
    #: Paths of damaged segments, which were not changed.
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
    """Return True if enough was written since the last compaction, or tombstones are old enough to be removed."""
    state = load_state(segments.directory)
    eligible = _eligible(segments, min_lag_ms)
    total = sum(segment.size for segment in eligible)
    dirty = sum(segment.size for segment in eligible if segment.next_offset > state.clean_offset)
    return bool(dirty and dirty >= total * min_dirty_ratio) or _tombstones_due(state, delete_retention_ms) > 0


def _tombstones_due(state: MaintenanceState, retention_ms: int) -> int:
    """Return the offset below which tombstones may be removed; 0 if there are none."""
    if state.damaged or not state.tombstones:
        return 0
    return state.forget_below(now_ms() - retention_ms)


def compact(
    appender: Appender, *, delete_retention_ms: int, min_lag_ms: int = 0, key_bytes: int = KEY_BYTES
) -> CompactionReport:
    """Remove superseded records from the sealed segments. One compaction at a time; appends and reads continue."""
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
    """Return the sealed segments that are decided and old enough."""
    newest, stable = now_ms() - min_lag_ms, segments.end(committed=True)
    found: list[Segment] = []
    for segment in segments.all[:-1]:
        if segment.next_offset > stable:
            break  # later records are not visible or not decided yet
        if min_lag_ms and times_of(segments, segment)[1] > newest:
            break
        found.append(segment)
    return found


def times_of(segments: SegmentSet, segment: Segment) -> tuple[int, int]:
    """Return the timestamps of a segment; (-1, -1) if it was deleted since it was listed."""
    try:
        return segment.timestamps()
    except StorageError:
        segments.refresh()
        if segment in segments.all:
            raise
        return -1, -1


def _round(
    appender: Appender,
    state: MaintenanceState,
    report: CompactionReport,
    cuts: int,
    retention_ms: int,
    min_lag_ms: int,
    key_bytes: int,
) -> bool:
    """Run one round; return True if more remains. `cuts` as in `rewrite.swap`, as of when `state` was loaded."""
    segments = _eligible(appender.segments, min_lag_ms)
    clean = min(state.clean_offset, segments[-1].next_offset) if segments else state.clean_offset
    forget = _tombstones_due(state, retention_ms)
    dirty = [segment for segment in segments if segment.next_offset > clean]
    if not dirty and (not forget or report.segments_before):
        return False
    keys, end, damaged = _note_keys(appender, dirty, clean, key_bytes)
    taken = [segment for segment in segments if segment.base_offset < max(end, clean)]
    last = dirty[-1].next_offset if dirty else 0
    # Replaced segments stay open while referenced, and file descriptors are limited: drop the references.
    segments.clear()
    dirty.clear()
    wanted = RewriteOptions(
        keys=keys,
        floor=appender.segments.lowest_offset,
        forget_below=0 if damaged else forget,
        remembered=appender.producers.remembers,
        aborted=appender.segments.transaction_view.aborted_rows,
        markers=MarkerTracker(),
    )
    tombstones = _rewrite_all(appender, taken, wanted, report, damaged, cuts)
    state.note_round(tombstones, damaged=bool(damaged))
    if end <= clean and last:
        return False  # only damage, or a batch with more keys than the table can hold
    with locked(appender):  # a truncation has either happened, or will see the new state
        if appender.truncations != cuts:
            return False
        state.note_clean(end, now_ms())
        store_state(appender.directory, state)
    return end < last


class _Malformed(CorruptBatch):
    """The records of a batch do not parse, and some of their keys were already recorded."""


def _note_keys(
    appender: Appender,
    dirty: Sequence[Segment],
    start: int,
    key_bytes: int,
    malformed: Mapping[Segment, CorruptBatch] = MappingProxyType({}),
) -> tuple[KeyMap, int, dict[Segment, CorruptBatch]]:
    """Record the last offset of every key from `start`; return the table, its end offset, and the damaged segments.
    Skips segments known to be `malformed`: a record that cannot be decoded supersedes nothing."""
    records = sum(segment.next_offset - segment.base_offset for segment in dirty)
    keys = KeyMap(_table(records, key_bytes), secrets.token_bytes(16))
    damaged = dict(malformed)
    end = start
    for segment in dirty:
        if segment in malformed:
            end = segment.next_offset
            continue
        try:
            with detect_removal(appender, [segment]):
                end, full = _note_segment(appender, segment, start, keys, end)
            if full:
                return keys, end, damaged
        except SegmentsRemoved:
            pass
        except _Malformed as error:
            return _note_keys(appender, dirty, start, key_bytes, {**malformed, segment: error})
        except CorruptBatch as error:
            damaged[segment] = error
        end = segment.next_offset
    return keys, end, damaged


def _note_segment(appender: Appender, segment: Segment, start: int, keys: KeyMap, end: int) -> tuple[int, bool]:
    """Record the keys of one segment; return the end offset, and True if the table is full."""
    for chunk in rewrite.chunks_of(segment, segment.next_offset):
        appender.maintenance_lock.check()
        # Keys below `start` are already unique. Recording them again would fill the table in every round.
        dirty_rows = chunk.rows[chunk.rows[:, LAST] >= start]
        if chunk.special:
            dirty_rows = appender.segments.transaction_view.committed(dirty_rows)
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
    """Allocate a table for `records` keys, or for as many as `key_bytes` allows."""
    slots = _MIN_SLOTS
    while slots * 7 // 8 < records and 2 * slots * _SLOT_BYTES <= key_bytes:
        slots *= 2
    return np.zeros((slots, 3), np.uint64)


def _rewrite_all(
    appender: Appender,
    left: list[Segment],
    wanted: RewriteOptions,
    report: CompactionReport,
    damaged: dict[Segment, CorruptBatch],
    cuts: int,
) -> int:
    """Replace neighbouring segments by as few as possible; return the number of tombstones left. Empties `left`."""
    report.segments_before += len(left)
    tombstones = 0
    markers = wanted.markers or MarkerTracker()
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
                markers.restore(before)
                continue
        else:
            if made is not None:
                report.bytes_read += made.counts.bytes_before
                rewrite.discard(appender, made)
            report.segments_after += taken
        tombstones += made.counts.tombstones_kept if made is not None else 1  # unknown: assume one
    return tombstones


def _replace_some(
    appender: Appender,
    segments: Sequence[Segment],
    wanted: RewriteOptions,
    damaged: dict[Segment, CorruptBatch],
    markers: MarkerTracker,
) -> tuple[Rewritten | None, int]:
    """Write the replacement of the first segment and as many more as fit; None if the first is damaged."""
    made, count = _try_to_replace(appender, segments, wanted, damaged, markers)
    if made is None:
        markers.mark_incomplete()  # it is unknown which transactions have batches there
    return made, count


def _try_to_replace(
    appender: Appender,
    segments: Sequence[Segment],
    wanted: RewriteOptions,
    damaged: dict[Segment, CorruptBatch],
    markers: MarkerTracker,
) -> tuple[Rewritten | None, int]:
    most, limit = 1, min(len(segments), rewrite.max_segments())
    while most < limit and segments[most] not in damaged and segments[most - 1] not in damaged:
        most += 1
    if segments[0] in damaged:
        return None, 1
    count = most
    while True:
        tried = markers.copy()
        try:
            made = rewrite.replace_run(appender, segments[:count], replace(wanted, markers=tried))
            markers.restore(tried)
            return made, count
        except SegmentsRemoved:
            return None, 1
        except TooLarge as full:
            if count == 1:  # treated as damaged: records that later tombstones delete remain in it
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


def _add(report: CompactionReport, counts: RewriteCounts) -> None:
    report.records_removed += counts.records_before - counts.records_after
    report.bytes_removed += counts.bytes_before - counts.bytes_after
    count("compaction_removed_bytes", max(counts.bytes_before - counts.bytes_after, 0))
    report.tombstones_removed += counts.tombstones_dropped
    report.bytes_read += counts.bytes_before
