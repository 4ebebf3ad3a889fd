"""Split offset ranges into tasks, in the driver.

A task reads one or more slices of one partition, as its topic plans them (`sawlog.log.slices` in a directory,
`sawlog.store.objects.slices` on object storage). A large range becomes many tasks, so that the parallelism
does not depend on the number of partitions:

    at least   one task per partition with records to read, as with Kafka's source; beyond `SHARED_FROM` partitions,
               small ones share tasks
    at least   one task per core, if each then reads several megabytes
    at least   minPartitions, if there are that many records: a slice may begin and end inside a batch
    at most    maxPartitionBytes and maxRecordsPerPartition per task

A slice has a fixed end, so a DataFrame is a snapshot: every read of it returns the same records.

A task names the store, the topic and the leader epoch of its slices, because it may run later, or on a machine that has
another store at the same path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from ..errors import DataLoss
from ..isolation import Isolation
from ..store.base import PlannedSlice
from .options import ReadOptions
from .places import SubscribedPartitions
from .positions import UNKNOWN, Positions
from .ranges import OffsetRange, RangeResolver
from .session import machine_cores

#: Minimum size of a task, if there is enough to read: starting one costs more than reading less.
LEAST_TASK_BYTES = 4 << 20
#: Default maximum size of a task, the same as for Spark's file sources.
TASK_BYTES = 128 << 20
#: With up to this many partitions, each has its own task, however little there is to read.
SHARED_FROM = 64
#: Maximum number of times a partition is planned again because records were dropped meanwhile.
_RETRIES = 100


@dataclass(frozen=True, slots=True)
class PartitionSlice:
    """A slice and its partition."""

    topic: str
    topic_id: str
    partition: int
    what: PlannedSlice

    @property
    def count(self) -> int:
        """Number of offsets in the slice."""
        return self.what.end_offset - self.what.start_offset


@dataclass(frozen=True)
class Task(InputPartition):
    """The slices that one task reads, and the store that holds them."""

    path: str
    store: str
    pieces: tuple[PartitionSlice, ...]

    def __init__(self, path: str, store: str, pieces: Sequence[PartitionSlice]) -> None:
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "store", store)
        object.__setattr__(self, "pieces", tuple(pieces))


@dataclass(frozen=True, slots=True)
class _Limits:
    """Size limits of a task."""

    size_bytes: int
    #: None: unlimited.
    records: int | None
    #: Granularity at which partitions are split before slices are merged again; None: split by record count only.
    cut_bytes: int | None
    #: Several partitions may share a task.
    shared: bool


def plan(
    places: SubscribedPartitions, options: ReadOptions, start: Positions, end: Positions, *, moved: bool | None = None
) -> list[InputPartition]:
    """Plan the tasks for everything from `start` to `end`; see `RangeResolver` for `moved`."""
    ranges = RangeResolver(places, start, end, moved=moved)
    found = [each for share in sorted(end.at) if (each := ranges.of(share)) is not None]
    limits = _limits(found, options)
    pieces = [piece for each in found for piece in _split(ranges, each, limits, options.isolation)]
    return [Task(options.path, places.store.id, each) for each in _pack_tasks(_merge_adjacent(pieces, limits), limits)]


def _limits(ranges: Sequence[OffsetRange], options: ReadOptions) -> _Limits:
    total = sum(each.log.size_bytes * (each.last.offset - each.first) // max(len(each.log), 1) for each in ranges)
    count = sum(each.last.offset - each.first for each in ranges)
    size = options.max_partition_bytes or min(TASK_BYTES, max(total // machine_cores(), LEAST_TASK_BYTES))
    records = options.max_records
    if options.min_partitions:
        size = min(size, max(total // options.min_partitions, 1))
        fewer = max(count // options.min_partitions, 1)
        records = fewer if records is None else min(records, fewer)
    # If the record limit already implies about this many bytes, splitting by both would leave small remainders.
    by_records = records is not None and not options.max_partition_bytes and records * total <= 2 * size * count
    return _Limits(
        size,
        records,
        cut_bytes=None if by_records else min(LEAST_TASK_BYTES, size),
        shared=records is None and len(ranges) > SHARED_FROM,
    )


def _split(
    ranges: RangeResolver, found: OffsetRange | None, limits: _Limits, isolation: Isolation
) -> list[PartitionSlice]:
    """Split one partition into slices. A range that retention is dropping is planned again."""
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
            found = ranges.again((topic.name, number))  # raises, unless failOnDataLoss=false
    raise lost or AssertionError("nothing was tried")


def _merge_adjacent(pieces: Sequence[PartitionSlice], limits: _Limits) -> list[PartitionSlice]:
    """Merge adjacent slices of a file, up to the limits of a task."""
    joined: list[PartitionSlice] = []
    for piece in pieces:
        if joined and (made := _merged(joined[-1], piece, limits)) is not None:
            joined[-1] = made
        else:
            joined.append(piece)
    return joined


def _merged(before: PartitionSlice, after: PartitionSlice, limits: _Limits) -> PartitionSlice | None:
    if (before.topic, before.partition) != (after.topic, after.partition):
        return None
    if limits.records is not None and after.what.end_offset - before.what.start_offset > limits.records:
        return None
    made = before.what.joined(after.what)
    return None if made is None or made.size_bytes > limits.size_bytes else replace(before, what=made)


def _pack_tasks(pieces: Sequence[PartitionSlice], limits: _Limits) -> list[list[PartitionSlice]]:
    """Pack small slices into tasks: with others of the same partition, or, with many partitions, of any."""
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
