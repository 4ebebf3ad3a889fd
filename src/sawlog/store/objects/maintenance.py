"""`Maintainer`: the periodic maintenance of an open store. Any number of processes may run it at once.

1. Check that the store was not deleted, replaced or rolled back since it was opened.
2. Drop expired records (`retention.ms`, `retention.bytes`) by moving the start of the partition.
3. Consolidate small extents into segments, and compact compacted topics.
4. Store a checkpoint, if the process that should have stored it did not.
5. Collect objects that are no longer needed (collect.py).

Each step is a self-contained commit, or needs none. None of them waits for another process, holds a lock on the store,
or leaves work that must be completed.

*Consolidation* turns many small extents of a partition into one segment, as Kafka batches with their final offsets.

```
segments/<topic id>/<partition>/<commits known>-<base offset>-<uuid>.log
```

Batches arrive in commits and staged objects, a few at a time and mixed with those of other partitions. A segment holds
contiguous batches of one partition, so that a scan reads few objects, and commits and staged objects can be collected.
The extents in the state are its index: about one per MiB.

The new segment is uploaded first. Then a commit replaces exactly the extents that were read, or is rejected if one of
them has changed.

*Compaction* keeps only the last of all records with the same key. It works as in a directory and shares the rewriting
of batches with `sawlog.log.compaction`: offsets do not change, every offset stays covered by a batch, and tombstones
are kept for a while. Only consolidated segments are compacted. Progress is part of the state, so any process can
continue.
"""

from __future__ import annotations

import logging
import secrets
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ...batch.header import BASE, LAST, Rows
from ...batch.kernel import KeyMap
from ...batch.read import MALFORMED, unpack
from ...clock import Stopwatch, now_ms
from ...config import LogConfig, MaintenanceConfig
from ...errors import CorruptBatch, LogClosed, StorageError
from ...log.batches import Chunk
from ...log.compaction import CompactionReport
from ...log.ingest import checked_rows
from ...log.maintenance import MaintenanceReport, MergeReport
from ...log.rebatch import Rebatcher, RewriteCounts, RewriteOptions
from ...log.retention import RetentionReport
from ...log.rewrite import ReplacementFile
from ...log.segment import Segment
from ...log.transactions import AbortedTransaction, aborted_rows
from .. import settings as topic_settings
from . import checkpoints
from .collect import CollectionReport, Collector
from .extent_reader import place_batches
from .session import StoreSession
from .state import State
from .state.commit import COPY_OF, SEGMENTS, STAGED, Extent, described, in_runs
from .state.entries import CompactionState
from .transaction import ObjectStaging

#: Settings that limit age and size; -1 is no limit.
_LIMITS = "retention.ms", "retention.bytes"
#: Number of collections per `readers_s`.
_COLLECTIONS = 24
#: Minimum interval between checks that the store still exists.
_CHECK_S = 50.0
#: Maximum size of a segment, approximately; a topic's `segment.bytes` may reduce it.
SEGMENT_BYTES = 64 << 20
#: Maximum number of extents that one commit replaces, since it lists each of them.
_MOST_EXTENTS = 4096
#: Number of extents outside of segments that are worth a segment.
_LEAST_EXTENTS = 16
#: Maximum size of the key table. More keys are compacted in several rounds.
_KEY_BYTES = 128 << 20
_SLOT_BYTES, _LEAST_SLOTS = 24, 1 << 10

#: Called between requests. Raises if the store is being closed, so that closing does not wait for long work.
Check = Callable[[], None]
_T = TypeVar("_T")
_logger = logging.getLogger("sawlog.maintenance")


@dataclass(frozen=True, slots=True)
class PartitionId:
    """One partition of a topic."""

    topic: str
    topic_id: str
    partition: int

    def action(self, do: str, **fields: object) -> dict[str, object]:
        return {"do": do, "topic": self.topic_id, "partition": self.partition, **fields}


class _Partition(NamedTuple):
    """The state of one partition."""

    place: PartitionId
    settings: Mapping[str, Any]
    start: int
    #: The last stable offset.
    stable: int
    extents: Sequence[Extent]
    clean: CompactionState
    #: The aborted transactions: their records are dropped and supersede nothing.
    aborted: Sequence[AbortedTransaction]

    @property
    def log(self) -> LogConfig:
        return topic_settings.log_config(self.settings)

    @property
    def maintain(self) -> MaintenanceConfig:
        return topic_settings.maintenance_config(self.settings)

    @property
    def segment_bytes(self) -> int:
        return min(SEGMENT_BYTES, self.log.segment_bytes)

    def is_aborted(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return a mask of the batches that belong to aborted transactions."""
        return aborted_rows(rows, lambda first, last: self.aborted)


class Maintainer:
    """Runs maintenance of one open store. Thread-safe: one call runs at a time."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session
        self._turn = threading.Lock()
        self._stopped = False
        self._since_collection: Stopwatch | None = None
        self._since_check = Stopwatch()
        #: The report of the last collection.
        self.collected = CollectionReport()

    @cached_property
    def _collector(self) -> Collector:
        return Collector(self._session, check=self._check_stopped)

    def stop(self) -> None:
        self._stopped = True

    def run(self, topic: str | None = None) -> list[MaintenanceReport]:
        """Run the work that is due, for one topic or for the whole store, and return a report per partition."""
        with self._turn:
            if self._since_check.elapsed_s >= _CHECK_S:
                self._since_check.restart()
                self._session.check_store()
            places = self._session.look(lambda state: list(state.partitions()), fresh=True)
            reports = [self._tend(PartitionId(*place)) for place in places if topic in (None, place[0])]
            self._check_stopped()
            ObjectStaging(self._session).forget_names()
            self._checkpoint()
            since = self._since_collection
            if since is None or since.elapsed_s >= self._session.parameters.readers_s / _COLLECTIONS:
                self.collect()
        return [each for each in reports if each]

    def collect(self) -> CollectionReport:
        self._since_collection = Stopwatch()
        self.collected = self._collector.run()
        return self.collected

    def _check_stopped(self) -> None:
        if self._stopped:
            raise LogClosed(f"the store {self._session.bucket.url} is being closed")

    def _checkpoint(self) -> None:
        every, number = self._session.parameters.checkpoint_every, self._session.known()
        if number < every:
            return
        last = max((each.number for each in checkpoints.listed(self._session.bucket)), default=0)
        if number - last >= every:
            self._session.checkpoint()

    # --- one partition

    def _tend(self, place: PartitionId) -> MaintenanceReport:
        watch = Stopwatch()
        report = MaintenanceReport(f"{self._session.bucket.url}/{place.topic}/{place.partition}")
        for work in (self._expire, self._consolidate, self._compact):
            self._check_stopped()
            found = self._session.look(_partition_of(place))
            if found is None:
                break  # the topic was deleted meanwhile
            if work != self._consolidate and self._session.look(is_copy):
                continue  # retention and compaction are up to the source
            try:
                work(found, report)
            except CorruptBatch as error:  # damaged data is left as it is
                _logger.error("%s is damaged and was not changed: %s", report.path, error)
        report.duration_ms = watch.elapsed_ms
        return report

    def expire(self, place: PartitionId) -> RetentionReport | None:
        """Apply the age and size limits of one partition. Without limits, its extents are not read: there may be many,
        and Spark calls this after each commit."""
        found = self._session.look(lambda state: _partition_of(place)(state) if _is_limited(state, place) else None)
        report = MaintenanceReport("")
        if found is not None:
            self._expire(found, report)
        return report.retention

    def _expire(self, found: _Partition, report: MaintenanceReport) -> None:
        start = _wanted_start(found) if found.maintain.delete else found.start
        if start <= found.start:
            return
        removed = int(str(self._session.commit([found.place.action("move start", offset=start)])[0]))
        gone = [each for each in found.extents if each.next_offset <= start]
        if removed:
            size = sum(each.size_bytes for each in gone)
            report.retention = RetentionReport(len({each.key for each in gone}), removed, size, start)

    def _consolidate(self, found: _Partition, report: MaintenanceReport) -> None:
        # Commits that are behind two checkpoints, but stay because of the batches in them.
        old = self._session.known() - 2 * self._session.parameters.checkpoint_every
        merged = MergeReport()
        for run in small_runs(found.place, found.extents, segment_bytes=found.segment_bytes, old_commits=old):
            self._check_stopped()
            done = self._unless_changed(found, partial(consolidate, self._session, run, self._check_stopped))
            if done is None:
                break  # another process is working on it
            merged.segments_before += done.segments_before
            merged.segments_after += done.segments_after
            merged.bytes_copied += done.bytes_copied
        report.merge = merged if merged.segments_after else None

    def _compact(self, found: _Partition, report: MaintenanceReport) -> None:
        """Run rounds while there are more keys than one round can hold."""
        before, now = -1, self._session.look(_partition_of(found.place))
        while now is not None and now.maintain.compact and now.clean.offset > before:
            before, what = now.clean.offset, _settled(now)
            if not what.extents or not _is_due(what):
                return
            self._check_stopped()
            done = self._unless_changed(now, partial(_compact, self._session, what, self._check_stopped))
            if done is None:
                return  # another process is working on it
            report.compaction = done or report.compaction
            now = self._session.look(_partition_of(found.place))

    def _unless_changed(self, found: _Partition, work: Callable[[], _T | None]) -> _T | None:
        """Run `work`. Return None if another process has replaced and deleted its input meanwhile."""
        try:
            return work()
        except StorageError:
            now = self._session.look(_partition_of(found.place), fresh=True)
            if now is not None and set(found.extents) <= set(now.extents):
                raise
            return None


def is_copy(state: State) -> bool:
    """Return whether the store is a copy of another one, kept up to date by `sawlog replicate`."""
    return "source" in state.document(COPY_OF)[1]


def _is_limited(state: State, place: PartitionId) -> bool:
    entry = state.topic(place.topic)
    return entry is not None and any(entry["settings"].get(name, -1) != -1 for name in _LIMITS)


def _partition_of(place: PartitionId) -> Callable[[State], _Partition | None]:
    def look(state: State) -> _Partition | None:
        entry, where = state.topic(place.topic), (place.topic_id, place.partition)
        if entry is None or entry["id"] != place.topic_id:
            return None
        start, end = state.ends(*where)
        aborted = [AbortedTransaction(*each, each[2] + 1) for each in state.aborted(*where, start, end)]
        extents, clean = list(state.extents(*where, start)), state.clean(*where)
        return _Partition(place, dict(entry["settings"]), start, state.stable(*where), extents, clean, aborted)

    return look


# --- retention


def _wanted_start(found: _Partition) -> int:
    start = found.start
    if found.log.retention_ms is not None:
        start = max(start, max(_expired(found.extents, now_ms() - found.log.retention_ms), default=start))
    if found.log.retention_bytes is not None:
        start = max(start, max(_surplus(found.extents, found.log.retention_bytes), default=start))
    return start


def _expired(extents: Sequence[Extent], oldest_ms: int) -> Iterator[int]:
    for each in extents:
        if not 0 <= each.max_timestamp <= oldest_ms:
            return
        yield each.next_offset


def _surplus(extents: Sequence[Extent], keep_bytes: int) -> Iterator[int]:
    total = _size(extents)
    for each in extents[:-1]:
        total -= each.size_bytes
        if total < keep_bytes:
            return
        yield each.next_offset


# --- consolidation


@dataclass(frozen=True, slots=True)
class ExtentRun:
    """Adjacent extents that are replaced together."""

    place: PartitionId
    extents: tuple[Extent, ...]

    def action(self, new: Sequence[Sequence[object]]) -> dict[str, object]:
        old = [[each.base_offset, each.key, each.position] for each in self.extents]
        base, end = self.extents[0].base_offset, self.extents[-1].next_offset
        return self.place.action("replace", base=base, end=end, old=old, new=new)


def small_runs(
    place: PartitionId, extents: Iterable[Extent], *, segment_bytes: int = SEGMENT_BYTES, old_commits: int = 0
) -> Iterator[ExtentRun]:
    """Yield runs of extents that are worth a segment: many that are in none, or some in commits below `old_commits`,
    which can be collected afterwards. Preceding segments that are not larger are included, so that few remain."""
    objects = [tuple(group) for _, group in groupby(extents, key=lambda each: each.key)]
    at = 0
    while at < len(objects):
        if _is_settled(objects[at], segment_bytes):
            at += 1
            continue
        end, size, count = at, 0, 0
        while end < len(objects) and not _is_settled(objects[end], segment_bytes) and count < _MOST_EXTENTS:
            if size and size + _size(objects[end]) > segment_bytes:
                break
            size += _size(objects[end])
            count += len(objects[end])
            end += 1
        is_full = end < len(objects) and size > segment_bytes // 2
        if count >= _LEAST_EXTENTS or is_full or _is_old(objects[at], old_commits):
            while at and _is_segment(objects[at - 1]) and _size(objects[at - 1]) <= min(size, segment_bytes - size):
                at -= 1
                size += _size(objects[at])
            yield ExtentRun(place, tuple(each for group in objects[at:end] for each in group))
        at = end


def _is_settled(extents: Sequence[Extent], segment_bytes: int) -> bool:
    """Return whether the batches of a partition in one object stay there: a segment, or a staged object large enough to
    serve as one. Commits are never settled, because they are collected."""
    return _is_segment(extents) or (extents[0].key.startswith(STAGED) and _size(extents) > segment_bytes // 2)


def _is_segment(extents: Sequence[Extent]) -> bool:
    return extents[0].key.startswith(SEGMENTS)


def _size(extents: Iterable[Extent]) -> int:
    return sum(each.size_bytes for each in extents)


def _is_old(extents: Sequence[Extent], commits: int) -> bool:
    """Return whether an object was created when fewer commits were known."""
    number = extents[0].key.rpartition("/")[2].partition("-")[0]
    return number.isdigit() and int(number) < commits


def consolidate(session: StoreSession, run: ExtentRun, check: Check = lambda: None) -> MergeReport | None:
    """Merge a run into one segment. Return None if another process was faster. Raises `CorruptBatch`, and changes
    nothing, if a batch is damaged."""
    known = session.known()
    data = bytearray()
    for _, batches in read(session, run.extents, check):
        data += batches
    if not replace(session, run, known, data):
        return None
    return MergeReport(len({each.key for each in run.extents}), 1, len(data))


def read(session: StoreSession, extents: Iterable[Extent], check: Check) -> Iterator[tuple[Extent, memoryview]]:
    """Yield the batches of extents with their offsets. Raises `CorruptBatch` unless all of them are valid. Bypasses the
    cache, because the result is written to the bucket."""
    check()
    for extent, data in session.maintenance.read_all(extents):
        place_batches(data, extent.base_offset, extent.leader_epoch)
        _check(checked_rows(data), extent.base_offset, extent.next_offset, extent.key)
        yield extent, data
        check()


def _check(rows: Rows, base: int, end: int, key: str) -> None:
    if int(rows[0, BASE]) != base or int(rows[-1, LAST]) + 1 != end:
        raise CorruptBatch(f"{key} has other offsets than {base} to {end}")


def replace(session: StoreSession, run: ExtentRun, known: int, data: bytes | bytearray) -> bool:
    """Upload batches and replace a run by them; return whether that succeeded."""
    base = run.extents[0].base_offset
    rows = checked_rows(memoryview(data))
    _check(rows, base, run.extents[-1].next_offset, "what replaces it")
    key = f"{SEGMENTS}{run.place.topic_id}/{run.place.partition}/{known:020}-{base:020}-{uuid.uuid4().hex}.log"
    session.bucket.put(key, bytes(data))
    outcome = session.submit([run.action([[key, *each] for each in described(rows).extents])]).result()
    return "ok" in outcome


# --- compaction


def _settled(found: _Partition) -> _Partition:
    """Return a partition with the extents that can be compacted: the leading ones that are consolidated, old enough
    (`min.compaction.lag.ms`), and below the last stable offset, since records of an open transaction supersede
    nothing."""
    lag_ms = found.maintain.min_compaction_lag_ms
    newest_ms = now_ms() - lag_ms if lag_ms else None
    settled: list[Extent] = []
    for _, each in groupby(found.extents, key=lambda extent: extent.key):
        group = tuple(each)
        is_new = newest_ms is not None and max(extent.max_timestamp for extent in group) > newest_ms
        if is_new or not _is_settled(group, found.segment_bytes) or group[-1].next_offset > found.stable:
            break
        settled += group
    return found._replace(extents=settled)


def _is_due(what: _Partition) -> bool:
    """Return whether enough was written since the last round, or tombstones are old enough to be dropped."""
    dirty = _size(each for each in what.extents if each.next_offset > what.clean.offset)
    return bool(dirty and dirty >= _size(what.extents) * what.maintain.min_dirty_ratio) or _droppable(what) > 0


def _droppable(what: _Partition) -> int:
    """Return the offset below which tombstones may be dropped now; 0 if there are none to drop."""
    clean = what.clean
    below = clean.below(now_ms() - what.maintain.delete_retention_ms) if clean.tombstones else 0
    return below if below > clean.dropped_below else 0


def _compact(session: StoreSession, what: _Partition, check: Check) -> CompactionReport | None:
    """Run one round. Return None if another process has changed the partition meanwhile; replaced segments are kept."""
    known, max_bytes = session.known(), what.log.max_decompressed_bytes
    keys, end = _keys(session, what, max_bytes, check)
    dropped_below = max(_droppable(what), what.clean.dropped_below)
    is_aborted = what.is_aborted if what.aborted else None
    wanted = RewriteOptions(keys=keys, floor=what.start, forget_below=dropped_below, aborted=is_aborted)
    report = CompactionReport(clean_offset=end)
    tombstones = 0
    clean_below = max(end, what.clean.offset)
    extents = [each for each in what.extents if each.base_offset < clean_below]
    for run in (ExtentRun(what.place, tuple(each)) for each in in_runs(extents, what.segment_bytes)):
        data, counts = _rewritten(session, run, wanted, max_bytes, check)
        report.segments_before += len({each.key for each in run.extents})
        report.segments_after += 1
        report.bytes_read += counts.bytes_before
        tombstones += counts.tombstones_kept
        if counts.records_after == counts.records_before:
            continue
        if not replace(session, run, known, data):
            return None
        report.records_removed += counts.records_before - counts.records_after
        report.bytes_removed += counts.bytes_before - counts.bytes_after
        report.tombstones_removed += counts.tombstones_dropped
    done = {"offset": end, "time_ms": now_ms(), "tombstones": tombstones, "dropped_below": dropped_below}
    session.commit([what.place.action("compacted", **done)])
    return report


def _keys(session: StoreSession, what: _Partition, max_bytes: int, check: Check) -> tuple[KeyMap, int]:
    """Return the last offset of every key written since the last round, and the offset up to which keys were read."""
    start = what.clean.offset
    dirty = [each for each in what.extents if each.next_offset > start]
    keys = KeyMap(_table(sum(each.next_offset - each.base_offset for each in dirty)), secrets.token_bytes(16))
    end = start
    for extent, data in read(session, dirty, check):
        rows = checked_rows(data)
        rows = rows[~what.is_aborted(rows)] if what.aborted else rows
        for body, unpacked, error in unpack(data, rows[rows[:, LAST] >= start], max_bytes):
            if error is not None:
                raise error
            taken, bad = keys.note(body, memoryview(unpacked))
            if bad:
                raise CorruptBatch(MALFORMED, path=extent.key)
            if taken:
                end = int(unpacked[taken - 1, LAST]) + 1
            if taken < len(unpacked):
                return keys, end
        end = extent.next_offset
    return keys, end


def _table(records: int) -> np.ndarray:
    slots = _LEAST_SLOTS
    while slots * 7 // 8 < records and 2 * slots * _SLOT_BYTES <= _KEY_BYTES:
        slots *= 2
    return np.zeros((slots, 3), np.uint64)


class RewriteBuffer:
    """In-memory output of `Rebatcher`."""

    def __init__(self) -> None:
        self.data = bytearray()

    def put(self, batch: memoryview, last_offset: int, max_timestamp: int, *, count: int) -> None:
        self.data += batch


class ChunkOrigin(NamedTuple):
    """Origin of a chunk, for error messages of `Rebatcher`."""

    path: str


def _rewritten(
    session: StoreSession, run: ExtentRun, wanted: RewriteOptions, max_bytes: int, check: Check
) -> tuple[bytearray, RewriteCounts]:
    """Return the batches of a run without superseded records."""
    out = RewriteBuffer()
    made = Rebatcher(cast("ReplacementFile", out), run.extents[0].base_offset, wanted, max_bytes)
    for extent, data in read(session, run.extents, check):
        chunk = Chunk(data, checked_rows(data), 0, special=wanted.aborted is not None)
        made.take(chunk, cast("Segment", ChunkOrigin(extent.key)))
    made.finish(run.extents[-1].next_offset)
    return out.data, made.counts
