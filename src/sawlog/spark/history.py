"""`startingTable`: start a stream with a topic's table, then continue with the log.

Offsets mean the same in both, so a micro-batch is still a set of offset ranges. The part of a range below the table's
end is read from the table's files, the rest from the log. Which of the two holds a record may change between attempts,
because the table job moves records to the table and retention removes them from the log; the record is the same. So
delivery is exactly once for the same reasons as without a table, and the checkpoint has the same format: the option can
be removed once the log holds everything still to be read.

Tasks read the files with pyarrow, in the record's columns. A table without a `value` column cannot be used. Records in
the quarantine are read as well, so that the stream returns everything the log held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from .. import tables
from ..errors import DataLoss, InvalidConfig
from ..sql.history import check_same_log, check_same_topic
from ..store.base import Topic, TopicPartition
from ..tables.formats import DataFile, TableSnapshot
from .subscription import EpochPosition, Positions, SubscribedPartitions

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 16_384


@dataclass(frozen=True)
class TableFileTask(InputPartition):
    """One table file, restricted to an offset range of one partition."""

    path: str
    topic: str
    partition: int
    first: int
    last: int


class TableHistory:
    """The tables of the topics that a stream reads."""

    def __init__(self, places: SubscribedPartitions) -> None:
        self._places = places

    def begun(self, before: Positions, partitions: Sequence[tuple[Topic, int]]) -> Positions:
        """Add a position for every partition that is new to the query: the start of its table."""
        at: dict[TopicPartition, EpochPosition] = {}
        found: dict[str, TableSnapshot | None] = {}
        for topic, number in partitions:
            if (topic.name, number) in before.at:
                continue
            if topic.name not in found:
                found[topic.name] = _snapshot(topic)
            snapshot = found[topic.name]
            if snapshot is not None and number in snapshot.marks:
                log = topic.partition(number)
                start = min(snapshot.marks[number].start, log.lowest_offset)
                at[topic.name, number] = EpochPosition(start, log.position()[1])
        return replace(before, at={**before.at, **at}) if at else before

    def plan_table_reads(self, start: Positions, end: Positions) -> tuple[Positions, list[InputPartition]]:
        """Return the positions from which the log must be read, and the tasks for the table files before them."""
        tasks: list[InputPartition] = []
        at = dict(start.at)
        store = self._places.store
        for name in sorted({topic for topic, _ in end.at}):
            if name not in store:
                continue  # planning the log reports it
            topic = store.topic(name)
            if end.is_recreated(name, topic.id, store.id) or start.is_recreated(name, topic.id, store.id):
                continue
            snapshot = _snapshot(topic)
            if snapshot is None:
                continue
            files = [*snapshot.data, *_bad_files(topic)]
            for (_, number), last in sorted(each for each in end.at.items() if each[0][0] == name):
                first, mark = at.get((name, number)), snapshot.marks.get(number)
                if mark is None or first is None or first.offset >= mark.end:
                    continue
                check_same_log(topic, number, mark)
                until = min(last.offset, mark.end)
                tasks += _tasks(files, name, number, max(first.offset, mark.start), until)
                at[name, number] = EpochPosition(max(until, first.offset), first.epoch)
        return replace(start, at=at), tasks


def _snapshot(topic: Topic) -> TableSnapshot | None:
    info = topic.table
    if info is None:
        return None
    found = tables.snapshot(info)
    check_same_topic(found, topic)
    if "value" not in found.schema.names:
        raise InvalidConfig(f"option startingTable: the table of {topic.name!r} has no column value")
    return found


def _bad_files(topic: Topic) -> Sequence[DataFile]:
    """The quarantine's files. Call after reading the table: the quarantine is committed first."""
    info = topic.table
    found = None if info is None else tables.open_table(tables.quarantine_of(info)).snapshot()
    return () if found is None else found.data


def _tasks(files: Sequence[DataFile], topic: str, number: int, first: int, last: int) -> Iterator[TableFileTask]:
    for file in files:
        if file.partitions is not None and not file.partitions.first <= number <= file.partitions.last:
            continue
        if file.offsets is not None and (file.offsets.last < first or file.offsets.first >= last):
            continue
        yield TableFileTask(file.path, topic, number, first, last)


def read(task: TableFileTask, columns: Sequence[str], shape: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the records of a table file. Runs in a task."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    stored = [name for name in columns if name not in ("topic", "partition", "timestampType")]
    try:
        file = pq.ParquetFile(task.path)
    except FileNotFoundError as error:
        raise DataLoss(
            f"{task.path} is gone: the table has merged it and removed it since this micro-batch was planned. Start "
            "the query again"
        ) from error
    with file:
        groups = [number for number in range(file.num_row_groups) if _has(file.metadata.row_group(number), task)]
        for batch in file.iter_batches(_BATCH_ROWS, groups, columns=[*dict.fromkeys((*stored, "partition", "offset"))]):
            offsets = batch.column("offset")
            wanted = pc.and_(pc.equal(batch.column("partition"), task.partition), pc.greater_equal(offsets, task.first))
            chosen = batch.filter(pc.and_(wanted, pc.less(offsets, task.last)))
            if chosen.num_rows:
                arrays = [_column(chosen, name, task, shape.field(name).type) for name in columns]
                yield pa.RecordBatch.from_arrays(arrays, schema=shape)


def _has(metadata: Any, task: TableFileTask) -> bool:
    """Return whether a row group may contain records of a task, by its statistics."""
    for number in range(metadata.num_columns):
        column = metadata.column(number)
        if column.path_in_schema == "offset" and column.statistics is not None and column.statistics.has_min_max:
            return bool(column.statistics.max >= task.first and column.statistics.min < task.last)
    return True


def _column(batch: pa.RecordBatch, name: str, task: TableFileTask, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if name == "topic":
        return pa.repeat(pa.scalar(task.topic, pa.string()), batch.num_rows)
    if name == "timestampType":  # a table does not have it
        return pa.nulls(batch.num_rows, kind)
    found = batch.column(name)
    return found if found.type == kind else found.cast(kind)
