"""Check offset ranges against the current store and split them into tasks, in the driver.

**Checks.** Spark plans a micro-batch, records it, reads it, perhaps again after a restart, and then considers its end
as read, whatever happened. So each position is checked against the current store before it is used:

    finding                               with failOnDataLoss=false, after a warning (with true: `DataLoss`)
    a start beyond the end of its epoch   reading continues at that end
    a start without an epoch beyond the   reading continues at the first record: it is unknown which records
      end of the log                        have changed
    a planned end beyond that of its      the existing records are read; the next micro-batch continues at the
      epoch                                 end of the epoch, because its start is beyond it
    a start below the first record        reading continues at the first record
    a partition that is new to the query  it is read from its first record
      and does not start at offset 0
    a partition that was read, or was     reading continues without it
      to be read, and is gone
    another topic of that name, or        the new topic is read from its first record; ranges planned for the old
      another store                         topic are dropped

So no record that is in the log and was to be read is skipped.

**Tasks.** A task reads one or more slices of one partition, as its topic plans them (`sawlog.log.slices` in a
directory, `sawlog.store.objects.slices` on object storage). A large range becomes many tasks, so that the
parallelism does not depend on the number of partitions:

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

from ..config import Isolation
from ..errors import DataLoss, TopicNotFound
from ..log import slices
from ..store.base import Partition, PlannedSlice, Topic, TopicPartition
from .options import ReadOptions
from .session import machine_cores
from .subscription import UNKNOWN, EpochPosition, Positions, SubscribedPartitions

#: Minimum size of a task, if there is enough to read: starting one costs more than reading less.
LEAST_TASK_BYTES = 4 << 20
#: Default maximum size of a task, the same as for Spark's file sources.
TASK_BYTES = 128 << 20
#: With up to this many partitions, each has its own task, however little there is to read.
SHARED_FROM = 64
#: Maximum number of times a partition is planned again because records were dropped meanwhile.
_RETRIES = 100
_MOVED = (
    "the start of the query has changed. A query that starts at latest or at a time needs a name, "
    '.option("groupId", ...), to survive a restart in its first micro-batch. Remove its checkpoint to start again'
)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of one partition from `first` up to `last`."""

    topic: Topic
    number: int
    log: Partition
    first: int
    last: EpochPosition


def starts(
    places: SubscribedPartitions, before: Positions, partitions: Sequence[tuple[Topic, int]], ends: Positions
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, EpochPosition]]:
    """Return the offset at which each partition with an end continues, and the starts of partitions whose topic was
    recreated."""
    began: dict[TopicPartition, int] = {}
    begun: dict[TopicPartition, EpochPosition] = {}
    read = {topic for topic, _ in before.at}
    for topic, number in partitions:
        partition = topic.name, number
        if partition not in ends.at:
            continue
        log, position, end = topic.partition(number), before.at.get(partition), ends.at[partition]
        if topic.name in read and before.is_recreated(topic.name, topic.id, places.store.id):
            _report_recreated(places, before, topic.name)
            begun[partition] = EpochPosition(_new(places, partition, log), end.epoch)
            began[partition] = begun[partition].offset
        elif position is None:
            began[partition] = _new(places, partition, log)
        elif position.epoch == end.epoch and position.offset <= end.offset:
            began[partition] = position.offset
        else:
            began[partition] = _start(places, partition, log, position)
    return began, begun


def drop_missing_topics(
    places: SubscribedPartitions, known: Positions, partitions: Sequence[tuple[Topic, int]]
) -> Positions:
    """Drop the positions of topics that no longer exist, and report the loss. Topics that exist but are no longer
    subscribed to are the user's choice."""
    there = {topic.name for topic, _ in partitions}
    gone = sorted(name for name in {name for name, _ in known.at} - there if not places.has(name))
    for name in gone:
        said = f"the topic {name!r} in {places.store.path} no longer exists: some of its records may not have been read"
        places.losses.report(said, "continuing without it")
    at = {partition: position for partition, position in known.at.items() if partition[0] not in gone}
    return replace(known, at=at, topics={name: each for name, each in known.topics.items() if name not in gone})


def clamp_to_store(
    places: SubscribedPartitions, target: Positions, partitions: Sequence[tuple[Topic, int]]
) -> Positions:
    """Lower ends that were looked up earlier to the records that the store still has."""
    at: dict[TopicPartition, EpochPosition] = {}
    target = drop_missing_topics(places, target, partitions)
    for topic, number in partitions:
        partition = topic.name, number
        if partition not in target.at:
            continue  # created since then
        if target.is_recreated(topic.name, topic.id, places.store.id):
            _report_recreated(places, target, topic.name)
            continue
        at[partition] = _end(places, partition, topic.partition(number), target.at[partition])
    return Positions(at, {topic: target.topics[topic] for topic, _ in at}, target.store)


class RangeResolver:
    """The offset ranges that a batch or a micro-batch from `start` to `end` reads.

    A batch may start after its end: then there is nothing to read. A micro-batch may not: either its start has `moved`,
    because it was looked up again after a restart, or the partition was shorter when it was planned than the part
    already read.
    """

    def __init__(
        self, places: SubscribedPartitions, start: Positions, end: Positions, *, moved: bool | None = None
    ) -> None:
        self._places = places
        self._start = start
        self._end = end
        self._moved = moved
        self._topics: dict[str, Topic] = {}

    def again(self, partition: TopicPartition) -> OffsetRange | None:
        """Like `of`, for a partition that has changed since."""
        self._topics.clear()
        return self.of(partition)

    def of(self, partition: TopicPartition) -> OffsetRange | None:
        """Return the range to read in a partition; None if it is empty."""
        name, number = partition
        start, end = self._start.at.get(partition), self._end.at[partition]
        if start == end and not self._begins_again(name):
            return None
        try:
            topic = self._topic(name)
            if self._end.is_recreated(name, topic.id, self._places.store.id):
                _report_recreated(self._places, self._end, name)
                return None
            log = topic.partition(number)
        except TopicNotFound as error:
            gone = f"records up to {end.offset - 1} of partition {number} of {name!r} are gone: {error}"
            self._places.losses.report(gone, cause=error)
            return None
        if start is not None and self._start.is_recreated(name, topic.id, self._places.store.id):
            _report_recreated(self._places, self._start, name)
            start = None
        first, last = self._checked(partition, log, start, end)
        return OffsetRange(topic, number, log, first, EpochPosition(last, end.epoch)) if first < last else None

    def _topic(self, name: str) -> Topic:
        """Look up a topic once for all its partitions."""
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = self._places.topic(name)
        return found

    def _begins_again(self, name: str) -> bool:
        """Return whether the end belongs to another topic, or another store, than the start."""
        start, end = self._start, self._end
        return start.is_recreated(name, end.topics.get(name, ""), end.store or "")

    def _checked(
        self, partition: TopicPartition, log: Partition, start: EpochPosition | None, end: EpochPosition
    ) -> tuple[int, int]:
        last = _end(self._places, partition, log, end).offset
        lowest = log.lowest_offset
        if start is None:
            return _new(self._places, partition, log), last
        fits = start.epoch == end.epoch and start.offset <= last
        first = start.offset if fits else _start(self._places, partition, log, start)
        if first > last and start.offset > end.offset and self._moved is not None:
            said = f"this micro-batch should go from {start.offset} to {end.offset} in partition {partition[1]} of"
            then = "leaving it out" if self._moved else "continuing at its first record"
            self._places.losses.report(f"{said} {partition[0]!r}: {_MOVED}", then)
            return (last, last) if self._moved else (lowest, last)
        if first < min(lowest, last):
            said = (
                f"records {first} to {min(lowest, last) - 1} of partition {partition[1]} of {partition[0]!r} are gone"
            )
            self._places.losses.report(f"{said} (retention or trim)")
        return max(first, lowest), last


def _new(places: SubscribedPartitions, partition: TopicPartition, log: Partition) -> int:
    """Return the start of a partition that is new to the query: its first record."""
    lowest = log.lowest_offset
    if lowest > 0:
        places.losses.report(
            f"partition {partition[1]} of {partition[0]!r} is new to the query and starts at offset {lowest} instead "
            "of 0: earlier records are gone (retention or trim)",
            f"continuing at offset {lowest}",
        )
    return lowest


def _start(places: SubscribedPartitions, partition: TopicPartition, log: Partition, position: EpochPosition) -> int:
    """Return the offset to continue at: the position, unless the records before it are gone."""
    end = slices.proven_end(log, position.epoch, position.offset)
    if end >= position.offset:
        return position.offset
    said = f"partition {partition[1]} of {partition[0]!r} was read up to offset {position.offset}, but"
    if position.epoch == UNKNOWN:
        places.losses.report(
            f"{said} now ends at {end}: it was truncated, or recreated", "continuing at its first record"
        )
        return log.lowest_offset
    places.losses.report(
        f"{said} has lost its records from offset {end} on since then (a power cut, or truncate); newer records may "
        "have the same offsets",
        f"continuing at offset {end}",
    )
    return end


def _end(
    places: SubscribedPartitions, partition: TopicPartition, log: Partition, position: EpochPosition
) -> EpochPosition:
    """Return the end of the range: the planned end, or as far as records exist."""
    end = slices.proven_end(log, position.epoch, position.offset)
    if end < position.offset:
        places.losses.report(
            f"records {end} to {position.offset - 1} of partition {partition[1]} of {partition[0]!r} are gone: they "
            f"were planned to be read, but the log has lost its records from offset {end} on since then (a power cut, "
            "or truncate)"
        )
    return EpochPosition(end, position.epoch)


def _report_recreated(places: SubscribedPartitions, read: Positions, topic: str) -> None:
    if read.store not in (None, places.store.id):
        what = f"{places.store.path} is another store than the one that was read: its id is {places.store.id}, not "
        what += str(read.store)
    else:
        what = f"the topic {topic!r} in {places.store.path} was deleted and recreated"
    then = f"continuing with the current topic {topic!r}, at its first record"
    places.losses.report(f"{what}; the unread records of the old topic {topic!r} are gone", then)


# --- tasks


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
    found = [each for partition in sorted(end.at) if (each := ranges.of(partition)) is not None]
    limits = _limits(found, options)
    pieces = [piece for each in found for piece in _split(ranges, each, limits, options.isolation)]
    return [
        Task(options.where.path, places.store.id, tuple(each))
        for each in _pack_tasks(_merge_adjacent(pieces, limits), limits)
    ]


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
            made = topic._plan(
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
