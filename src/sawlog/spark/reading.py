"""Reading: the driver cuts ranges of offsets into tasks, each task yields Arrow batches of a few megabytes.

A task has one or more slices (see `sawlog.log.slices`). Large partitions become many tasks, small ones share one, so
that the parallelism does not depend on the number of partitions. A slice names its end, so a DataFrame is a snapshot:
however often Spark reads it, it gives the same records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ..errors import OffsetOutOfRange, SawlogError, StorageError, TopicNotFound
from ..log import slices
from ..log.log import Log
from ..log.slices import Slice
from ..storage import FileDirectory
from . import worker
from .options import Offsets, ReadOptions
from .places import Places

if TYPE_CHECKING:
    import pyarrow as pa

_logger = logging.getLogger("sawlog.spark")

#: What a task reads at least, if there is so much: less would not be worth starting one for.
LEAST_TASK_BYTES = 4 << 20
#: And at most, if nobody says otherwise; as Spark's own files.
TASK_BYTES = 128 << 20
#: Rows of one Arrow batch; two megabytes of log are one batch, or less.
_BATCH_ROWS = 65_536

_SOURCES = {"timestampType": "timestamp_type"}


class DataLoss(SawlogError):
    """Records that should be read are not there any more, and failOnDataLoss is true."""


@dataclass(frozen=True)
class Piece:
    """A slice, and where it is."""

    path: str
    topic: str
    partition: int
    what: Slice


@dataclass(frozen=True)
class Task(InputPartition):
    """What one task reads."""

    pieces: tuple[Piece, ...]

    def __init__(self, pieces: Sequence[Piece]) -> None:
        object.__setattr__(self, "pieces", tuple(pieces))


def plan(places: Places, options: ReadOptions, start: Offsets, end: Offsets) -> list[Task]:
    """Tasks for everything from `start` to `end`."""
    ranges: list[tuple[Log, str, int, int, int]] = []
    for topic, number in places.shares(lost_ok=not options.fail_on_data_loss):
        if number not in end.get(topic.name, {}):
            continue
        log = topic.partition(number)
        first, last = start.get(topic.name, {}).get(number, log.lowest_offset), end[topic.name][number]
        first = _clamped(options, topic.name, number, first, last, log.lowest_offset)
        if first < last:
            ranges.append((log, topic.name, number, first, last))
    step = _step(ranges, options)
    return _grouped(
        [
            Piece(log.path, name, number, each)
            for log, name, number, first, last in ranges
            for each in slices.plan(log, first, last, target_bytes=step, max_records=options.max_records)
        ],
        options,
    )


def _step(ranges: list[tuple[Log, str, int, int, int]], options: ReadOptions) -> int:
    """How finely partitions are cut before pieces are put together."""
    step = min(LEAST_TASK_BYTES, options.max_partition_bytes or LEAST_TASK_BYTES)
    if options.min_partitions:
        total = sum(log.size_bytes * (last - first) // max(len(log), 1) for log, _, _, first, last in ranges)
        step = min(step, total // options.min_partitions)
    return max(step, 1)


def _clamped(options: ReadOptions, topic: str, number: int, first: int, last: int, lowest: int) -> int:
    """Where to start really: records may have been dropped since."""
    if first >= lowest or first >= last:
        return first
    gone = f"records {first} to {min(lowest, last) - 1} of partition {number} of {topic!r} are gone (retention or trim)"
    if options.fail_on_data_loss:
        raise DataLoss(f"{gone}; failOnDataLoss=false would go on without them")
    _logger.warning("%s", gone)
    return lowest


def _grouped(pieces: list[Piece], options: ReadOptions) -> list[Task]:
    """Neighbouring pieces of a partition together until a task has enough; then what is small shares tasks."""
    if not pieces:
        return []
    total = sum(piece.what.size_bytes for piece in pieces)
    target = options.max_partition_bytes or TASK_BYTES
    if options.min_partitions:
        target = min(target, max(total // options.min_partitions, 1))
    joined = [pieces[0]]
    for piece in pieces[1:]:
        if (made := _joined(joined[-1], piece, target, options.max_records)) is not None:
            joined[-1] = made
        else:
            joined.append(piece)
    if options.max_records is not None:
        return [Task([piece]) for piece in joined]
    tasks: list[list[Piece]] = [[]]
    size = 0
    for piece in joined:
        if tasks[-1] and size + piece.what.size_bytes > target:
            tasks.append([])
            size = 0
        tasks[-1].append(piece)
        size += piece.what.size_bytes
    return [Task(each) for each in tasks]


def _joined(before: Piece, after: Piece, target: int, max_records: int | None) -> Piece | None:
    """Two slices of one file that follow each other, as one, if that is not too much."""
    one, two = before.what, after.what
    if (before.path, one.name, one.end_offset) != (after.path, two.name, two.start_offset):
        return None
    if two.end_position - one.start_position > target:
        return None
    if max_records is not None and two.end_offset - one.start_offset > max_records:
        return None
    whole = Slice(
        one.name,
        one.base_offset,
        one.sealed,
        one.start_offset,
        two.end_offset,
        one.start_position,
        max(one.end_position, two.end_position),
    )
    return Piece(before.path, before.topic, before.partition, whole)


def read(task: Any, columns: Sequence[str], *, fail_on_data_loss: bool) -> Iterator[pa.RecordBatch]:
    """The records of a task."""
    shape = arrow_schema(columns)
    for piece in getattr(task, "pieces", ()):  # Spark makes a task without a value where there is nothing to read
        try:
            yield from _read_piece(piece, columns, shape)
        except (OffsetOutOfRange, TopicNotFound, StorageError) as error:
            what = piece.what
            gone = (
                f"records {what.start_offset} to {what.end_offset - 1} of partition {piece.partition} of "
                f"{piece.topic!r} are gone, wholly or in part: {error}"
            )
            if fail_on_data_loss:
                raise DataLoss(f"{gone}; failOnDataLoss=false would go on without them") from error
            _logger.warning("%s", gone)
    worker.settle()


def _read_piece(piece: Piece, columns: Sequence[str], shape: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from ..config import LogConfig

    stored = [_SOURCES.get(name, name) for name in columns if name not in ("topic", "partition")]
    directory = FileDirectory(piece.path, create=False)
    try:
        for batch in slices.read(
            directory, piece.what, LogConfig(), columns=stored or ["offset"], batch_rows=_BATCH_ROWS
        ):
            arrays = [_column(batch, name, piece, shape.field(name).type) for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=shape)
    finally:
        directory.close()


def _column(batch: pa.RecordBatch, name: str, piece: Piece, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if name == "topic":
        return pa.repeat(pa.scalar(piece.topic, pa.string()), batch.num_rows)
    if name == "partition":
        return pa.repeat(pa.scalar(piece.partition, pa.int32()), batch.num_rows)
    found = batch.column(_SOURCES.get(name, name))
    return found if found.type == kind else found.cast(kind)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Exactly what Spark derives from the columns: nothing else is taken."""
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


class BatchReader(DataSourceReader):
    """`spark.read.format("sawlog")`."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks, for the store as it is now."""
        from .options import Point

        places = Places(self._options)
        try:
            start = places.resolve(self._options.start or Point("earliest"))
            end = places.resolve(self._options.end, ending=True)
            return plan(places, self._options, start, end)
        finally:
            places.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        return read(partition, self._columns, fail_on_data_loss=self._options.fail_on_data_loss)
