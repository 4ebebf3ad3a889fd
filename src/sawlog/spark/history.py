"""`startingTable`: a stream that begins with a topic's table and goes on with the log.

Offsets mean the same in both, so a micro-batch is what it always is: ranges of offsets. What of a range is below the
table's end is read from the table's files, the rest from the log. Which of the two has a record may change from one
attempt to the next, because the job moves records to the table and retention removes them from the log; the record is
the same. So it is exactly once for the same reasons as without a table, and the checkpoint has the same format: the
option can be removed later, when everything is in the log.

The files are read by pyarrow in the tasks, with the columns of the record. A table that has no `value` cannot be used.
Records of the quarantine are read as well: the stream has what the log had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from .. import tables
from ..errors import DataLoss, InvalidConfig
from ..sql.materialised import check_same_log, check_same_topic
from ..store.base import Topic
from ..tables.state import DataFile, Snapshot
from .places import Places
from .positions import EpochPosition, Positions, Share

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 16_384


@dataclass(frozen=True)
class HistoryTask(InputPartition):
    """A part of a file of a table."""

    path: str
    topic: str
    partition: int
    first: int
    last: int

    def __init__(self, path: str, topic: str, partition: int, first: int, last: int) -> None:
        values = {"path": path, "topic": topic, "partition": partition, "first": first, "last": last}
        for name, value in values.items():
            object.__setattr__(self, name, value)


class History:
    """The tables of the topics that a stream reads."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def begun(self, before: Positions, shares: Sequence[tuple[Topic, int]]) -> Positions:
        """Positions with those of partitions that are new to the query: where their table begins."""
        at: dict[Share, EpochPosition] = {}
        found: dict[str, Snapshot | None] = {}
        for topic, number in shares:
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

    def taken(self, start: Positions, end: Positions) -> tuple[Positions, list[InputPartition]]:
        """The tasks for what is in tables; and where the log has to be read from."""
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


def _snapshot(topic: Topic) -> Snapshot | None:
    info = topic.table
    if info is None:
        return None
    found = tables.snapshot(info)
    check_same_topic(found, topic)
    if "value" not in found.schema.names:
        raise InvalidConfig(f"option startingTable: the table of {topic.name!r} has no column value")
    return found


def _bad_files(topic: Topic) -> Sequence[DataFile]:
    """The quarantine, read after the table: it is committed before it."""
    info = topic.table
    found = None if info is None else tables.open_table(tables.quarantine_of(info)).snapshot()
    return () if found is None else found.data


def _tasks(files: Sequence[DataFile], topic: str, number: int, first: int, last: int) -> Iterator[HistoryTask]:
    for file in files:
        if file.partitions is not None and not file.partitions.first <= number <= file.partitions.last:
            continue
        if file.offsets is not None and (file.offsets.last < first or file.offsets.first >= last):
            continue
        yield HistoryTask(file.path, topic, number, first, last)


def read(task: HistoryTask, columns: Sequence[str], shape: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of a task, in a task."""
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


def _has(metadata: Any, task: HistoryTask) -> bool:
    """Whether a row group may contain records of a task."""
    for number in range(metadata.num_columns):
        column = metadata.column(number)
        if column.path_in_schema == "offset" and column.statistics is not None and column.statistics.has_min_max:
            return bool(column.statistics.max >= task.first and column.statistics.min < task.last)
    return True


def _column(batch: pa.RecordBatch, name: str, task: HistoryTask, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if name == "topic":
        return pa.repeat(pa.scalar(task.topic, pa.string()), batch.num_rows)
    if name == "timestampType":  # a table does not have it
        return pa.nulls(batch.num_rows, kind)
    found = batch.column(name)
    return found if found.type == kind else found.cast(kind)
