"""`Maintainer`: the periodic maintenance of an open store. Any number of processes may run it at once.

1. Check that the store was not deleted, replaced or rolled back since it was opened.
2. Drop expired records (`retention.ms`, `retention.bytes`) by moving the start of the partition.
3. Consolidate small extents into segments, and compact compacted topics.
4. Store a checkpoint, if the process that should have stored it did not.
5. Collect objects that are no longer needed.

Each step is a self-contained commit, or needs none. None of them waits for another process, holds a lock on the store,
or leaves work that must be completed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

from ...clock import Stopwatch, now_ms
from ...config import LogConfig, MaintenanceConfig
from ...errors import CorruptBatch, LogClosed, StorageError
from ...log.maintenance import MaintenanceReport, MergeReport
from ...log.retention import RetentionReport
from ...log.transactions import AbortedTransaction
from .. import settings as topic_settings
from . import checkpoints
from .collect import CollectionReport, Collector
from .rewrite import SEGMENT_BYTES, Compactable, PartitionId, compact, consolidate, is_due, settled, small_runs
from .session import StoreSession
from .state import State
from .state.commit import COPY_OF, Extent
from .transaction import ObjectStaging

#: Settings that limit age and size; -1 is no limit.
_LIMITS = "retention.ms", "retention.bytes"
#: Number of collections per `readers_s`.
_COLLECTIONS = 24
#: Minimum interval between checks that the store still exists.
_CHECK_S = 50.0

_T = TypeVar("_T")
_logger = logging.getLogger("sawlog.maintenance")


class _Partition(NamedTuple):
    """The current state of one partition."""

    place: PartitionId
    settings: Mapping[str, Any]
    start: int
    end: int
    extents: list[Extent]

    @property
    def log(self) -> LogConfig:
        return topic_settings.log_config(self.settings)

    @property
    def maintain(self) -> MaintenanceConfig:
        return topic_settings.maintenance_config(self.settings)

    @property
    def segment_bytes(self) -> int:
        return min(SEGMENT_BYTES, self.log.segment_bytes)


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
        """Make a running call end soon."""
        self._stopped = True

    def run(self, topic: str | None = None) -> list[MaintenanceReport]:
        """Run the work that is due, for one topic or for the whole store, and return a report per partition."""
        reports = []
        with self._turn:
            if self._since_check.elapsed_s >= _CHECK_S:
                self._since_check.restart()
                self._session.check_store()
            for place in self._session.look(_places, fresh=True):
                if topic not in (None, place.topic):
                    continue
                report = self._tend(place)
                if report:
                    reports.append(report)
            self._check_stopped()
            ObjectStaging(self._session).forget_names()
            self._checkpoint()
            if self._collection_is_due():
                self.collect()
        return reports

    def collect(self) -> CollectionReport:
        """Delete objects that are no longer needed."""
        self._since_collection = Stopwatch()
        self.collected = self._collector.run()
        return self.collected

    def _collection_is_due(self) -> bool:
        since = self._since_collection
        return since is None or since.elapsed_s >= self._session.parameters.readers_s / _COLLECTIONS

    def _check_stopped(self) -> None:
        if self._stopped:
            raise LogClosed(f"the store {self._session.bucket.url} is being closed")

    def _checkpoint(self) -> None:
        every = self._session.parameters.checkpoint_every
        number = self._session.known()
        if (
            number >= every
            and number - max((each.number for each in checkpoints.listed(self._session.bucket)), default=0) >= every
        ):
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
        action = {"do": "move start", "topic": found.place.topic_id, "partition": found.place.partition}
        removed = int(str(self._session.commit([{**action, "offset": start}])[0]))
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
        before = -1
        now: _Partition | None = found
        while now is not None and now.maintain.compact and (what := self._compactable(now)).clean.offset > before:
            before = what.clean.offset
            if not what.extents or not is_due(what, now.maintain):
                return
            self._check_stopped()
            sizes = {"segment_bytes": now.segment_bytes, "max_decompressed_bytes": now.log.max_decompressed_bytes}
            work = partial(compact, self._session, what, now.maintain, self._check_stopped, **sizes)
            done = self._unless_changed(now, work)
            if done is None:
                return  # another process is working on it
            report.compaction = done or report.compaction
            now = self._session.look(_partition_of(now.place))

    def _compactable(self, found: _Partition) -> Compactable:
        lag_ms = found.maintain.min_compaction_lag_ms
        place, before_ms = found.place, now_ms() - lag_ms if lag_ms else None

        def look(state: State) -> Compactable:
            where = place.topic_id, place.partition
            extents = settled(found.extents, found.segment_bytes, before_ms=before_ms, stable=state.stable(*where))
            aborted = [AbortedTransaction(*each, each[2] + 1) for each in state.aborted(*where, found.start, found.end)]
            return Compactable(place, found.start, extents, state.clean(*where), aborted)

        return self._session.look(look)

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


def _places(state: State) -> list[PartitionId]:
    found = []
    for name in state.topics():
        entry = state.topic(name)
        assert entry is not None
        found += [PartitionId(name, entry["id"], number) for number in range(entry["partitions"])]
    return found


def _is_limited(state: State, place: PartitionId) -> bool:
    """Return whether a partition has an age or size limit."""
    entry = state.topic(place.topic)
    return entry is not None and any(entry["settings"].get(name, -1) != -1 for name in _LIMITS)


def _partition_of(place: PartitionId) -> Callable[[State], _Partition | None]:
    def look(state: State) -> _Partition | None:
        entry = state.topic(place.topic)
        if entry is None or entry["id"] != place.topic_id:
            return None
        start, end = state.ends(place.topic_id, place.partition)
        extents = list(state.extents(place.topic_id, place.partition, start))
        return _Partition(place, dict(entry["settings"]), start, end, extents)

    return look


def _wanted_start(found: _Partition) -> int:
    """Return the start of a partition after applying its age and size limits."""
    start = found.start
    if found.log.retention_ms is not None:
        start = max(start, max(_expired(found.extents, now_ms() - found.log.retention_ms), default=start))
    if found.log.retention_bytes is not None:
        start = max(start, max(_surplus(found.extents, found.log.retention_bytes), default=start))
    return start


def _expired(extents: list[Extent], oldest_ms: int) -> Iterator[int]:
    for each in extents:
        if not 0 <= each.max_timestamp <= oldest_ms:
            return
        yield each.next_offset


def _surplus(extents: list[Extent], keep_bytes: int) -> Iterator[int]:
    total = sum(each.size_bytes for each in extents)
    for each in extents[:-1]:
        total -= each.size_bytes
        if total < keep_bytes:
            return
        yield each.next_offset
