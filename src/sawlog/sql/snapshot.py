"""`TopicSnapshot`: a topic as of the start of a query, and the parts of it that a filter leaves.

The ends of all partitions are taken once, together with their leader epochs. Later appends are not visible; if records
are dropped meanwhile (retention, truncation), the query fails with `DataLoss` instead of returning less.

`LogSource` is the `TableSource` of a log in a directory: it reads slices of the log's files, planned with the sparse
index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..config import LogConfig
from ..errors import CorruptBatch, OffsetOutOfRange, StorageError
from ..isolation import Isolation
from ..log import slices
from ..log.log import Log
from ..log.replica_source import RemoteSource
from ..log.slices import SliceAggregate
from ..log.summaries import Blocks, LogSummary
from ..storage import Directory
from ..store.base import Partition, PlannedSlice, Topic
from .filters import Bounds, IntRange
from .sources import Planned, TableSource

#: Bytes of the log that one task decodes: large enough to make planning negligible, small enough that the tasks in
#: flight fit into memory.
PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ScanSlice:
    """A part of one partition that one task reads."""

    partition: int
    part: Planned


@dataclass(frozen=True, slots=True)
class PartitionSpan:
    """The snapshot of one partition: start <= offset < end, in this leader epoch."""

    partition: int
    log: Partition
    source: TableSource
    start: int
    end: int
    epoch: int


class TopicSnapshot:
    """The spans of all partitions of a topic."""

    def __init__(self, topic: Topic, isolation: Isolation, spans: tuple[PartitionSpan, ...]) -> None:
        self.topic = topic
        self.isolation: Isolation = isolation
        self.spans = spans

    @classmethod
    def of(
        cls,
        topic: Topic,
        *,
        isolation: Isolation = "committed",
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
    ) -> TopicSnapshot:
        """Take a snapshot of the topic, optionally limited by `start` and `end` per partition."""
        spans = tuple(
            _span(topic, number, isolation, (start or {}).get(number), (end or {}).get(number))
            for number in range(topic.partitions)
        )
        return cls(topic, isolation, spans)

    def pieces(self, bounds: Bounds) -> Iterator[ScanSlice]:
        """Plan the parts to read for a filter, in the order of partitions and offsets."""
        for span in self.spans:
            within = bounds.partition.low <= span.partition <= bounds.partition.high
            start = max(span.start, bounds.offset.low)
            end = min(span.end, bounds.offset.high + 1)
            if within and start < end and not bounds.is_empty:
                for first, last in _in_time(span.source, start, end, bounds.time_ms):
                    yield from self._cut(span, first, last)

    def _cut(self, span: PartitionSpan, start: int, end: int) -> Iterator[ScanSlice]:
        planned = span.source.plan(start, end, epoch=span.epoch, target_bytes=PIECE_BYTES, isolation=self.isolation)
        return (ScanSlice(span.partition, each) for each in planned)


def _span(topic: Topic, number: int, isolation: Isolation, start: int | None, end: int | None) -> PartitionSpan:
    log = topic.partition(number)
    last, epoch = log.position(isolation=isolation)
    lowest = log.lowest_offset
    if start is not None and start > last:
        raise OffsetOutOfRange(start, lowest, last, log.path)
    first = lowest if start is None else max(start, lowest)
    return PartitionSpan(
        number, log, topic.source(number), min(first, last), last if end is None else min(end, last), epoch
    )


def _in_time(source: TableSource, start: int, end: int, time_ms: IntRange) -> list[tuple[int, int]]:
    """Return the offset ranges of blocks that may have a record of that time, with adjacent ranges merged."""
    if time_ms.is_everything:
        return [(start, end)]
    since = max(time_ms.low, -1)
    bounded = time_ms.high < 2**62
    found: list[tuple[int, int]] = []
    try:
        known = source.blocks(start, end, since=since, with_oldest=bounded)
        if known is None:
            return [(start, end)]
        for blocks in known:
            wanted = blocks.within(start, end) & (blocks.newest >= since) & (blocks.count > 0)
            if bounded and blocks.oldest is not None:
                wanted &= blocks.oldest <= time_ms.high
            for at in np.flatnonzero(wanted).tolist():
                first, last = max(int(blocks.first[at]), start), min(int(blocks.last[at]) + 1, end)
                if found and found[-1][1] >= first:
                    found[-1] = found[-1][0], last
                else:
                    found.append((first, last))
    except (CorruptBatch, StorageError):
        return [(start, end)]  # damaged, or being replaced: reading reports it
    return found


class LogSource:
    """One partition in a directory, opened again for each scan."""

    def __init__(self, log: Log, directory: Callable[[], Directory]) -> None:
        self._log = log
        self._directory = directory

    def plan(
        self, start: int, end: int, *, epoch: int, target_bytes: int | None = None, isolation: Isolation = "committed"
    ) -> list[PlannedSlice]:
        return slices.plan(self._log, start, end, epoch=epoch, target_bytes=target_bytes, isolation=isolation)

    def blocks(
        self, start: int, end: int, *, since: int = -1, with_oldest: bool = False, exact: bool = False
    ) -> Iterator[Blocks]:
        """Summarise blocks from their batch headers. Always exact."""
        summary = LogSummary.of(self._log)
        return summary.blocks(self._log, start, end, since=since, with_oldest=with_oldest, exact=exact)

    def proven_end(self, epoch: int, end: int) -> int:
        """See `TableSource.proven_end`."""
        return slices.proven_end(self._log, epoch, end)

    def open(self) -> LogSliceReader:
        return LogSliceReader(self._directory(), self._log.config, self._log._remote)


class LogSliceReader:
    """Reader of the slices of one log. Thread-safe."""

    def __init__(self, directory: Directory, config: LogConfig, remote: RemoteSource | None = None) -> None:
        self._directory = directory
        self._config = config
        self._remote = remote

    def read(self, part: PlannedSlice, *, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        remote = self._remote
        return slices.read(self._directory, part, self._config, columns=columns, batch_rows=batch_rows, remote=remote)

    def fold(self, part: PlannedSlice, into: SliceAggregate, *, columns: Sequence[str], batch_rows: int) -> None:
        remote = self._remote
        slices.fold(self._directory, part, self._config, into, columns=columns, batch_rows=batch_rows, remote=remote)

    def close(self) -> None:
        self._directory.close()
