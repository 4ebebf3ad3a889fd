"""Planning: the driver splits ranges of offsets into tasks.

A task has one or more slices of one partition, as its topic plans them (`sawlog.log.slices` in a directory,
`sawlog.store.objects.partition.slices` on object storage). A large range becomes many tasks, so that the parallelism
does not depend on the number of partitions:

    at least   one task for each partition that has something to read, as with Kafka's source; where there are very many
               of them (`SHARED_FROM`), small ones share tasks
    at least   as many as there are cores, if each then has some megabytes to read
    at least   minPartitions, if there are as many records: a slice may begin and end inside a batch
    at most    maxPartitionBytes, and maxRecordsPerPartition, in a task

A slice has an end, so a DataFrame is a snapshot: however often Spark reads it, it returns the same records.

A task contains the store, the topic and the leader epoch of its slices, because it may be read later, or on a machine
that has something else at the same path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from ..errors import DataLoss
from ..isolation import Isolation
from ..store.base import PlannedSlice
from .options import ReadOptions
from .places import Places
from .positions import UNKNOWN, Positions
from .ranges import Range, Ranges
from .session import machine_cores

#: The minimum size of a task, if there is that much: less would not be worth starting one.
LEAST_TASK_BYTES = 4 << 20
#: The default maximum; the same as for Spark's own files.
TASK_BYTES = 128 << 20
#: Up to this many partitions each have their own task, however little there is to read.
SHARED_FROM = 64
#: How often a partition is planned again because records were dropped meanwhile.
_RETRIES = 100


@dataclass(frozen=True, slots=True)
class PartitionSlice:
    """A slice, and its partition."""

    topic: str
    topic_id: str
    partition: int
    what: PlannedSlice

    @property
    def count(self) -> int:
        """The number of offsets."""
        return self.what.end_offset - self.what.start_offset


@dataclass(frozen=True)
class Task(InputPartition):
    """What one task reads, and from which store."""

    path: str
    store: str
    pieces: tuple[PartitionSlice, ...]

    def __init__(self, path: str, store: str, pieces: Sequence[PartitionSlice]) -> None:
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "store", store)
        object.__setattr__(self, "pieces", tuple(pieces))


@dataclass(frozen=True, slots=True)
class _Limits:
    """The limits of a task."""

    size_bytes: int
    #: None: unlimited.
    records: int | None
    #: How finely partitions are split before slices are combined again; None: by the number of records only.
    cut_bytes: int | None
    #: Whether partitions may share a task.
    shared: bool


def plan(
    places: Places, options: ReadOptions, start: Positions, end: Positions, *, moved: bool | None = None
) -> list[InputPartition]:
    """Tasks for everything from `start` to `end`; for `moved` see `Ranges`."""
    ranges = Ranges(places, start, end, moved=moved)
    found = [each for share in sorted(end.at) if (each := ranges.of(share)) is not None]
    limits = _limits(found, options)
    pieces = [piece for each in found for piece in _cut(ranges, each, limits, options.isolation)]
    return [Task(options.path, places.store.id, each) for each in _grouped(_joined(pieces, limits), limits)]


def _limits(ranges: Sequence[Range], options: ReadOptions) -> _Limits:
    total = sum(each.log.size_bytes * (each.last.offset - each.first) // max(len(each.log), 1) for each in ranges)
    count = sum(each.last.offset - each.first for each in ranges)
    size = options.max_partition_bytes or min(TASK_BYTES, max(total // machine_cores(), LEAST_TASK_BYTES))
    records = options.max_records
    if options.min_partitions:
        size = min(size, max(total // options.min_partitions, 1))
        fewer = max(count // options.min_partitions, 1)
        records = fewer if records is None else min(records, fewer)
    # The maximum number of records is about as many bytes, or fewer: splitting by both would make small remainders.
    by_records = records is not None and not options.max_partition_bytes and records * total <= 2 * size * count
    return _Limits(
        size,
        records,
        cut_bytes=None if by_records else min(LEAST_TASK_BYTES, size),
        shared=records is None and len(ranges) > SHARED_FROM,
    )


def _cut(ranges: Ranges, found: Range | None, limits: _Limits, isolation: Isolation) -> list[PartitionSlice]:
    """The slices of one partition. Ranges that are just being dropped are planned again."""
    lost: DataLoss | None = None
    for _ in range(_RETRIES):
        if found is None:
            return []
        topic, number, last = found.topic, found.number, found.last
        try:
            made = topic.plan(
                number,
                found.first,
                last.offset,
                epoch=None if last.epoch == UNKNOWN else last.epoch,
                target_bytes=limits.cut_bytes,
                max_records=limits.records,
                isolation=isolation,
            )
            return [PartitionSlice(topic.name, topic.id, number, each) for each in made]
        except DataLoss as error:
            lost = error
            found = ranges.again((topic.name, number))  # raises, unless data loss is no failure
    raise lost or AssertionError("nothing was tried")


def _joined(pieces: Sequence[PartitionSlice], limits: _Limits) -> list[PartitionSlice]:
    """Neighbouring slices of a file merged, as long as that is not too much for a task."""
    joined: list[PartitionSlice] = []
    for piece in pieces:
        if joined and (made := _as_one(joined[-1], piece, limits)) is not None:
            joined[-1] = made
        else:
            joined.append(piece)
    return joined


def _as_one(before: PartitionSlice, after: PartitionSlice, limits: _Limits) -> PartitionSlice | None:
    if (before.topic, before.partition) != (after.topic, after.partition):
        return None
    if limits.records is not None and after.what.end_offset - before.what.start_offset > limits.records:
        return None
    made = before.what.joined(after.what)
    return None if made is None or made.size_bytes > limits.size_bytes else replace(before, what=made)


def _grouped(pieces: Sequence[PartitionSlice], limits: _Limits) -> list[list[PartitionSlice]]:
    """Small slices share a task with what follows: of the same partition, or, if partitions are many, of others."""
    total = sum(piece.what.size_bytes for piece in pieces)
    size = min(limits.size_bytes, max(total // SHARED_FROM, 1)) if limits.shared else limits.size_bytes
    tasks: list[list[PartitionSlice]] = []
    taken, records = 0, 0
    for piece in pieces:
        taken, records = taken + piece.what.size_bytes, records + piece.count
        fits = taken <= size and (limits.records is None or records <= limits.records)
        same = tasks and (tasks[-1][-1].topic, tasks[-1][-1].partition) == (piece.topic, piece.partition)
        if tasks and fits and (same or limits.shared):
            tasks[-1].append(piece)
        else:
            tasks.append([piece])
            taken, records = piece.what.size_bytes, piece.count
    return tasks
