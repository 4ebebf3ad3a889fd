"""Read the slices of a task: Arrow batches of a few megabytes, with every record planned for it.

A task opens the store and checks that store and topics are the ones the driver planned with. It reads each slice
completely or raises `DataLoss` (see `sawlog.log.slices`). With failOnDataLoss=false it logs a warning for records that
are gone and reads the rest of the slice. Storage errors are always raised, because they say nothing about the records;
so is a different store at the same path, because the records are in the right one. With `startingTable` a task may
also read a file of the topic's table, with pyarrow and in the record's columns.

`freeze_heap` keeps PySpark's garbage collection short. PySpark collects after every task, over all objects of the
process: hundreds of thousands of permanent ones from pyarrow, numpy and pandas, which took a third of a worker's time
for short tasks. `gc.freeze` after the first task exempts them: reference counting still frees them, but the collector
no longer searches them for cycles.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ..errors import DataLoss, InvalidConfig, StorageError, TopicNotFound
from ..store.base import SliceReader
from . import subscription
from .options import EARLIEST, OffsetSpec, ReadOptions, check_range
from .planning import PartitionSlice, Task, plan
from .subscription import DataLossPolicy, Positions

if TYPE_CHECKING:
    import pyarrow as pa


#: Maximum number of rows per Arrow batch; a batch also covers at most two megabytes of the log.
_BATCH_ROWS = 65_536
#: The same, for the files of a table.
_FILE_BATCH_ROWS = 16_384

_SOURCES = {"timestampType": "timestamp_type"}

_settled = False


def freeze_heap() -> None:
    """Exempt all existing objects from garbage collection. Call when a task ends; only the first call has an effect."""
    global _settled  # noqa: PLW0603 - one process, one heap
    if not _settled:
        _settled = True
        gc.freeze()


@dataclass(frozen=True)
class TableFileTask(InputPartition):
    """One table file, restricted to an offset range of one partition."""

    path: str
    topic: str
    partition: int
    first: int
    last: int


def read(task: Any, columns: Sequence[str], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Read the records of a task."""
    if isinstance(task, TableFileTask):
        yield from _read_table_file(task, columns)
    elif isinstance(task, Task):  # Spark creates one task without a value if there is nothing to read
        with _TaskReader(task, columns, options) as reading:
            for piece in task.pieces:
                yield from reading.read(piece)
    freeze_heap()


class _TaskReader:
    """The store of one task and its current partition."""

    def __init__(self, task: Task, columns: Sequence[str], options: ReadOptions) -> None:
        self._columns = columns
        self._shape = arrow_schema(columns)
        self._losses = DataLossPolicy(fail=options.fail_on_data_loss)
        self._topic_partition: tuple[str, int] | None = None
        self._slices: SliceReader | None = None
        self._store = subscription.open_for_task(options.where)
        if self._store.id != task.store:
            found = self._store.id
            self._store.close()
            raise DataLoss(
                f"{task.path} is another store here than where this job was planned: its id is {found}, not "
                f"{task.store}. Mount the same store at this path on all machines"
            )

    def __enter__(self) -> _TaskReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        self._store.close()

    def _leave(self) -> None:
        slices, self._slices, self._topic_partition = self._slices, None, None
        if slices is not None:
            slices.close()

    def read(self, piece: PartitionSlice) -> Iterator[pa.RecordBatch]:
        try:
            slices = self._enter(piece)
            try:
                yield from self._batches(slices, piece)
            except StorageError:
                self._leave()
                self._enter(piece)  # raises the better error if the topic was deleted meanwhile
                raise
        except TopicNotFound as error:
            first, last = piece.what.start_offset, piece.what.end_offset - 1
            gone = f"records {first} to {last} of partition {piece.partition} of {piece.topic!r} are gone"
            self._losses.report(f"{gone}, wholly or in part: {error}", cause=error)

    def _enter(self, piece: PartitionSlice) -> SliceReader:
        """Open the slices of a partition. They stay open for the next slice."""
        partition = piece.topic, piece.partition
        if self._slices is None or self._topic_partition != partition:
            self._leave()
            self._slices = self._store._slice_reader(piece.topic, piece.topic_id, piece.partition)
            self._topic_partition = partition
        return self._slices

    def _batches(self, slices: SliceReader, piece: PartitionSlice) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        stored = [_SOURCES.get(name, name) for name in self._columns if name not in ("topic", "partition")]
        for batch in slices.read(
            piece.what,
            columns=stored or ["offset"],
            batch_rows=_BATCH_ROWS,
            lost=self._report,
        ):
            arrays = [_column(batch, name, piece, self._shape.field(name).type) for name in self._columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._shape)

    def _report(self, loss: DataLoss) -> None:
        self._losses.report(str(loss), cause=loss)


def _read_table_file(task: TableFileTask, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read the records of a table file."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    shape = arrow_schema(columns)
    needed = {"offset", "partition", *columns} - {"topic", "timestampType"}
    try:
        file = pq.ParquetFile(task.path)
    except FileNotFoundError as error:
        raise DataLoss(
            f"{task.path} is gone: the table has merged it and removed it since this micro-batch was planned. Start "
            "the query again"
        ) from error
    with file:
        groups = [number for number in range(file.num_row_groups) if _has(file.metadata.row_group(number), task)]
        for batch in file.iter_batches(_FILE_BATCH_ROWS, groups, columns=sorted(needed)):
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


def _column(batch: pa.RecordBatch, name: str, task: PartitionSlice | TableFileTask, kind: pa.DataType) -> pa.Array:
    """Return one of Spark's columns."""
    import pyarrow as pa

    stored = _SOURCES.get(name, name)
    if name == "topic":
        return pa.repeat(pa.scalar(task.topic, kind), batch.num_rows)
    if name == "partition":
        return pa.repeat(pa.scalar(task.partition, kind), batch.num_rows)
    if stored not in batch.schema.names:  # a table has no timestamp types
        return pa.nulls(batch.num_rows, kind)
    found = batch.column(stored)
    if name == "headers":  # null if there are none, as with Kafka's source
        import pyarrow.compute as pc

        found = pc.if_else(pc.greater(pc.list_value_length(found), 0), found, pa.scalar(None, found.type))
    return found if found.type == kind else found.cast(kind)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the exact schema that Spark derives from the columns: it accepts no other."""
    import pyarrow as pa

    headers = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": headers,
    }
    return pa.schema([pa.field(name, types[name]) for name in columns])


def _check_order(options: ReadOptions, start: Positions, end: Positions) -> None:
    """Reject a start after the end, as Kafka's source does. A default start may be: retention has dropped everything
    before the given end."""
    if options.start is None or options.start.kind == "earliest":
        return
    earliest = {(topic, number) for topic, number, offset in options.start.each if offset == EARLIEST}
    named = {(topic, number) for topic, number, _ in options.start.each} - earliest
    for (topic, number), first in sorted(start.at.items()):
        last = end.at.get((topic, number), first)
        given = options.start.kind == "time" or (topic, number) in named
        if given and first.offset > last.offset:
            raise InvalidConfig(
                f"option {options.start.option} is after {options.end.option or 'the end'} in partition {number} of "
                f"{topic!r}: offset {first.offset} > {last.offset}"
            )


class BatchReader(DataSourceReader):
    """`spark.read.format("sawlog")`."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        check_range(options)
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks against the current store."""
        now = subscription.SubscribedPartitions(self._options)
        try:
            start = now.resolve(self._options.start or OffsetSpec("earliest"))
            end = now.resolve(self._options.end, ending=True)
            _check_order(self._options, start, end)
            return plan(now, self._options, start, end)
        finally:
            now.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one partition. Runs in a task."""
        return read(partition, self._columns, self._options)
