"""`verify`: check every batch of every segment of a store in parallel, and report the damage.

The driver lists the segments, the tasks read them; no lock is taken and nothing is changed, so it may run next to
writers. The command exits with 4 if there is damage. Segments that are replaced meanwhile (compaction,
merging) are looked up again under their new names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import CorruptData, SawlogError, StorageError, TopicNotFound
from ..log.log import Log
from ..log.verify import VerifyReport as LogReport
from ..log.verify import verify_segment
from ..store.directory.store import DirectoryStore
from . import running
from .running import Advance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Approximate number of bytes per task, if segments are smaller.
_TASK_BYTES = 64 << 20
#: Tasks per core in each round; progress is shown after each round.
_WAVE = 4
#: Maximum number of times replaced segments are looked up again.
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class VerifyParams:
    """Parameters of `verify`."""

    #: Directory of the store.
    data: str
    #: Only this topic.
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """One segment, or another file of a partition that cannot be read at all."""

    topic: str
    partition: int | None
    segment: str
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreVerifyReport:
    """All segments, in order."""

    ok: bool
    records: int
    size_bytes: int
    segments: tuple[SegmentReport, ...]


@dataclass(frozen=True, slots=True)
class _Task:
    """Segments of one partition, by their base offsets."""

    data: str
    topic: str
    partition: int
    bases: tuple[int, ...]
    size_bytes: int
    #: Number of threads to use: more than one if there are fewer tasks than cores.
    threads: int = 1


_SegmentKey = tuple[str, int, int]


def check_params(params: VerifyParams) -> None:
    """Raise for errors that can be detected without Spark. Damage is left to the report."""
    try:
        running.check_topic(params.data, params.topic)
    except CorruptData:
        pass


def run(spark: SparkSession, params: VerifyParams, progress: Advance | None = None) -> StoreVerifyReport:
    """Check everything below the current end."""
    found: dict[_SegmentKey, SegmentReport] = {}
    broken: dict[tuple[str, int | None], SegmentReport] = {}
    cores = spark.sparkContext.defaultParallelism
    for _ in range(_ROUNDS):
        tasks = _tasks(params, found, broken)
        if not tasks:
            break
        for first in range(0, len(tasks), _WAVE * cores):
            wave = tasks[first : first + _WAVE * cores]
            given = [replace(task, threads=max(cores // len(wave), 1)) for task in wave]
            with running.one_line_errors():
                for reports in spark.sparkContext.parallelize(given, len(given)).map(check).collect():
                    found.update(reports)
            if progress is not None:
                progress(sum(task.size_bytes for task in wave))
    segments = (*broken.values(), *(found[key] for key in sorted(found)))
    return StoreVerifyReport(
        ok=not any(segment.problems for segment in segments),
        records=sum(segment.records for segment in segments),
        size_bytes=sum(segment.size_bytes for segment in segments),
        segments=segments,
    )


def _tasks(
    params: VerifyParams, found: dict[_SegmentKey, SegmentReport], broken: dict[tuple[str, int | None], SegmentReport]
) -> list[_Task]:
    """Return tasks for the segments not read yet, the largest first."""
    made: list[_Task] = []
    with DirectoryStore.open(params.data, "r") as store:
        for name in store.topics() if params.topic is None else [params.topic]:
            try:
                topic = store.topic(name)
            except TopicNotFound:
                if params.topic is not None:
                    raise
                continue  # deleted meanwhile
            except SawlogError as error:
                broken[name, None] = SegmentReport(name, None, "topic.json", problems=(str(error),))
                continue
            for number in range(topic.partitions):
                try:
                    log = topic.partition(number)
                    left = [each for each in log._segment_set.all if (name, number, each.base_offset) not in found]
                except SawlogError as error:
                    broken[name, number] = SegmentReport(name, number, "", problems=(str(error),))
                    continue
                made += _cut(params.data, name, number, [(each.base_offset, each.size) for each in left])
    return sorted(made, key=lambda task: -task.size_bytes)


def _cut(data: str, topic: str, number: int, segments: list[tuple[int, int]]) -> Iterator[_Task]:
    bases: list[int] = []
    size_bytes = 0
    for base, size in segments:
        if bases and size_bytes + size > _TASK_BYTES:
            yield _Task(data, topic, number, tuple(bases), size_bytes)
            bases, size_bytes = [], 0
        bases.append(base)
        size_bytes += size
    if bases:
        yield _Task(data, topic, number, tuple(bases), size_bytes)


def check(task: _Task) -> dict[_SegmentKey, SegmentReport]:
    """Read the segments; runs in a task. Leaves out segments that were deleted or replaced meanwhile."""
    with DirectoryStore.open(task.data, "r") as store:
        try:
            log = store.topic(task.topic).partition(task.partition)
        except TopicNotFound:
            return {}  # deleted meanwhile
        return dict(_check_all(log, task))


def _check_all(log: Log, task: _Task) -> Iterator[tuple[_SegmentKey, SegmentReport]]:
    segments, wanted = log._segment_set, frozenset(task.bases)
    for segment in segments.all:
        if segment.base_offset not in wanted:
            continue
        report = LogReport()
        problems: list[str] = []
        segments.use(segment)
        try:
            verify_segment(segment, report, log.config.max_decompressed_bytes, threads=task.threads)
        except StorageError as error:
            problems.append(f"{segment.path}: {error}")
        finally:
            segments.done(segment)
        problems += map(str, report.problems)
        if problems:
            segments.refresh()
            if segment not in segments.all:
                continue  # replaced or deleted while being read: not damage
        yield (
            (task.topic, task.partition, segment.base_offset),
            SegmentReport(
                task.topic,
                task.partition,
                segment.name,
                report.batches,
                report.records,
                report.size_bytes,
                tuple(problems),
            ),
        )
