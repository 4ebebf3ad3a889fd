"""Write in the tasks: rows become finished batches in staged files, complete but for their offsets.

Each attempt of each task writes its own files, so attempts that fail, are repeated or run twice (speculation) do not
affect each other: only files named in a message to the driver count, and the rest are removed. A few kilobytes need no
file; the message carries them. Rows go to the topic of the option `topic`, else of the column; to the partition of the
column `partition`, else of their key's hash (Kafka's murmur2), else to one chosen for each Arrow batch.

A partition with enough data gets files of its own, none larger than a segment: the commit turns them into segments
without copying a byte. The batches of the other partitions share one file and are copied.

Threads: one.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ..batch.build import Encoder
from ..errors import InvalidConfig, InvalidRecord, SawlogError
from ..log.writer import recipe_of
from ..store.base import TaskStaging, Topic
from ..store.directory.transactions import staging
from ..store.directory.transactions.staging import INLINE_BYTES, PartitionBuffer, PartitionFile, Piece
from ..store.partitioner import partitions_for
from ..store.settings import is_compacted
from . import commit, reading, subscription
from .options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa


#: Upper bound of the hash of a key or value.
_HASHES = 2**31 - 1
_HASH_OF_NULL = 0x2545F491
#: Odd multipliers, one per column of a digest.
_FACTORS = {"key": np.uint64(0x9E3779B97F4A7C15), "value": np.uint64(0xD6E8FEB86659FD93)}
#: Bytes of one partition that are flushed to a file of its own.
_OWN_BYTES = 16 << 20
#: Maximum bytes of finished batches that a task keeps in memory.
_HELD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StagedPartition:
    """The output of a task for one partition: staged or, if it is small, inline."""

    topic: str
    topic_id: str
    partition: int
    count: int
    pieces: tuple[Piece, ...]
    data: bytes = b""
    #: See `Part.digest`.
    digest: int = 0


@dataclass
class TaskCommit(WriterCommitMessage):
    """Commit message of one task."""

    stage: str
    parts: tuple[StagedPartition, ...]
    #: The streaming query that this micro-batch belongs to, if any.
    query: str | None = None


class PartitionOutput:
    """The output of a task for one partition, in memory and staged."""

    def __init__(self, topic: Topic, number: int, encoder: Encoder) -> None:
        self.topic, self.number, self.encoder = topic, number, encoder
        self.buffer = PartitionBuffer()
        #: Sum of the digests of all rows.
        self.digest = 0
        #: The task's own file, if earlier output needed one: all later output goes there.
        self.own_file: PartitionFile | None = None
        self._segment_bytes = topic.config.segment_bytes

    @property
    def is_large(self) -> bool:
        """True if the bytes in memory are enough for a segment."""
        return staging.ADOPT_BYTES <= self.buffer.size_bytes <= self._segment_bytes

    @property
    def is_full(self) -> bool:
        """True if the output should be flushed: a few batches more would not fit into a segment, or into memory."""
        return self.is_large and self.buffer.size_bytes >= min(_OWN_BYTES, self._segment_bytes // 2)

    def flush(self, staged: TaskStaging) -> int:
        """Move memory to a file and return the number of bytes moved."""
        moved = self.buffer.size_bytes
        if self.own_file is None and not self.is_large:
            self.buffer.move(staged.write)
        elif moved:
            if self.own_file is None or self.own_file.size_bytes + moved > self._segment_bytes:
                self.own_file = staged.own_file()
            self.buffer.move_alone(self.own_file)
        return moved

    def part(self) -> StagedPartition:
        """Describe the output for the driver."""
        buffer = self.buffer
        return StagedPartition(
            self.topic.name, self.topic.id, self.number, buffer.count, buffer.pieces, buffer.data, self.digest
        )


def digest_of(rows: pa.RecordBatch) -> int:
    """Sum the hashes of the keys and values of all rows, modulo 2**64. The same rows have the same digest in any order
    and in any partition. Timestamps and headers are not included."""
    total = np.zeros(rows.num_rows, np.uint64)
    for name, factor in _FACTORS.items():
        if name in rows.schema.names:
            # The compiled partitioner hashes a column if given that many partitions.
            hashed = partitions_for(rows.column(rows.schema.names.index(name)), _HASHES, _HASH_OF_NULL)
            total = (total ^ hashed.astype(np.uint64)) * factor
            total ^= total >> np.uint64(29)
    return int(total.sum(dtype=np.uint64))


class TaskAttempt:
    """One attempt of a write task."""

    def __init__(self, options: WriteOptions, stage: str, *, digests: bool = False) -> None:
        self._options = options
        self._digests = digests
        self._store = subscription.open_store(options.where)
        self._staged = self._store._staging.task(stage)
        self._outputs: dict[tuple[str, int], PartitionOutput] = {}
        self._held_bytes = 0
        self._topics: dict[str, Topic] = {}

    def take(self, batch: pa.RecordBatch) -> None:
        """Route and stage the rows of one Arrow batch."""
        for name, rows in self._by_topic(batch):
            topic = self._topic(name)
            for number, part in self._by_partition(topic, rows):
                self._stage_rows(self._output(topic, number), part)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        names = batch.schema.names
        rest = batch.select([name for name in names if name != "topic"])
        if self._options.topic is not None:  # overrides the column, as in Kafka's sink
            yield self._options.topic, rest
            return
        topics = batch.column(names.index("topic"))
        if topics.null_count:
            raise InvalidRecord("a row has no topic: its column topic is null, and there is no option topic")
        for name in pc.unique(topics).to_pylist():
            yield name, rest.filter(pc.equal(topics, pa.scalar(name)))

    def _topic(self, name: str) -> Topic:
        if name not in self._topics:
            if self._options.partitions is not None and name not in self._store:
                with commit.open_store(self._options.where) as writable:
                    commit.create_missing_topic(writable, name, self._options)
            self._topics[name] = self._store.topic(name)
        return self._topics[name]

    def _by_partition(self, topic: Topic, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        names = rows.schema.names
        keys = rows.column(names.index("key")) if "key" in names else None
        if is_compacted(topic.settings) and (keys is None or keys.null_count):
            raise InvalidRecord(
                f"the topic {topic.name!r} keeps the last record of each key (cleanup.policy), so every row needs a key"
            )
        drawn = random.randrange(topic.partitions)
        if keys is None:
            chosen = np.full(rows.num_rows, drawn, np.int32)
        else:
            chosen = np.asarray(partitions_for(keys, topic.partitions, drawn))
        if "partition" in names:
            given = rows.column(names.index("partition"))
            numbers = given.fill_null(-1).to_numpy(zero_copy_only=False)
            if numbers.max(initial=0) >= topic.partitions or numbers.min(initial=0) < -1:
                raise InvalidRecord(
                    f"the topic {topic.name!r} has partitions 0 to {topic.partitions - 1}; a row differs"
                )
            chosen = np.where(numbers >= 0, numbers, chosen)
            rows = rows.select([name for name in names if name != "partition"])
        if len(chosen) and (chosen == chosen[0]).all():
            yield int(chosen[0]), rows
            return
        order = np.argsort(chosen, kind="stable")
        ordered, sorted_rows = chosen[order], rows.take(order)
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        for first, last in zip(starts, [*starts[1:], len(ordered)], strict=True):
            yield int(ordered[first]), sorted_rows.slice(first, last - first)

    def _output(self, topic: Topic, number: int) -> PartitionOutput:
        found = self._outputs.get((topic.name, number))
        if found is None:
            config = topic.config
            if self._options.compression is not None:
                config = config.with_(
                    compression=self._options.compression, compression_level=self._options.compression_level
                )
            found = self._outputs[topic.name, number] = PartitionOutput(topic, number, Encoder(recipe_of(config)))
        return found

    def _stage_rows(self, output: PartitionOutput, rows: pa.RecordBatch) -> None:
        if self._digests:
            output.digest = (output.digest + digest_of(rows)) % staging.DIGESTS
        most = min(self._options.batch_bytes, output.topic.config.segment_bytes // 2 + 1)
        for encoded in output.encoder.table(rows, most):
            output.buffer.add(encoded)
            self._held_bytes += len(encoded.data)
            if output.is_full:
                self._held_bytes -= output.flush(self._staged)
            elif self._held_bytes > _HELD_BYTES:
                self._held_bytes -= sum(each.flush(self._staged) for each in self._largest())

    def _largest(self) -> Sequence[PartitionOutput]:
        """Choose the output to flush: the largest, if it is worth a file of its own; else everything."""
        largest = max(self._outputs.values(), key=lambda each: each.buffer.size_bytes)
        return [largest] if largest.own_file is not None or largest.is_large else list(self._outputs.values())

    def finish(self) -> tuple[StagedPartition, ...]:
        """Make everything durable, or inline it if it is small; return the parts for the commit message."""
        if not self._staged.is_empty or self._held_bytes > INLINE_BYTES:
            for each in self._outputs.values():
                each.flush(self._staged)
            self._staged.sync()
        return tuple(each.part() for each in self._outputs.values())

    def abandon(self) -> None:
        """Remove the staged files of a failed attempt."""
        self._staged.abandon()

    def close(self) -> None:
        """Close the files and keep them."""
        self._staged.close()
        self._store.close()


def stage(iterator: Iterator[pa.RecordBatch], options: WriteOptions, name: str, query: str | None) -> TaskCommit:
    """Stage the rows of a task."""
    attempt = TaskAttempt(options, name, digests=query is not None or options.transaction is not None)
    try:
        for batch in iterator:
            attempt.take(batch)
        return TaskCommit(name, attempt.finish(), query)
    except BaseException:
        # The driver never learns of these files; on a full disk they would keep it full.
        with suppress(SawlogError):
            attempt.abandon()
        raise
    finally:
        attempt.close()
        reading.freeze_heap()


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("sawlog")`. This object commits; copies of it write in the tasks."""

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._stage = f"spark{uuid.uuid4().hex}"
        commit.prepare(options, columns)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition. Runs in a task."""
        return stage(iterator, self._options, self._stage, self._query())

    def _query(self) -> str | None:
        """Return the streaming query if this write belongs to a `foreachBatch` whose txnVersion is the batch id."""
        query, batch = _query() or (None, None)
        return query if self._options.transaction is not None and self._options.transaction[1] == batch else None

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Place the staged output of all tasks, all or nothing."""
        name, sequence = self._options.transaction or (None, None)
        commit.publish(self._options, self._stage, _staged(messages), name=name, sequence=sequence)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged output of a failed job, unless it was published after all."""
        commit.discard(self._options, self._stage)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("sawlog")`. Spark creates a new one for every micro-batch."""

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        self._options = options
        commit.prepare(options, columns)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition. Runs in a task."""
        found = _query()
        if found is None:
            raise InvalidConfig("not a task of a streaming query: use df.write for a batch")
        query, batch = found
        return stage(iterator, self._options, commit.stage_name(query, batch), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Place a micro-batch, once, however often Spark repeats it."""
        staged = _staged(messages)
        queries = {each.query for each in staged if each.query is not None}
        if not queries:
            return  # no task had output
        [query] = queries
        commit.publish(self._options, commit.stage_name(query, batchId), staged, name=query, sequence=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staged output of a failed micro-batch, unless it was published before."""
        for query in {each.query for each in _staged(messages) if each.query is not None}:
            commit.discard(self._options, commit.stage_name(query, batchId))


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommit]:
    return [each for each in messages if isinstance(each, TaskCommit)]


def _query() -> tuple[str, int] | None:
    """Return the streaming query and the micro-batch of this task, if any."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    return None if query is None or batch is None else (query, int(batch))
