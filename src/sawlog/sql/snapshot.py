"""`Snapshot`: a topic as it was when a query began, and which parts of it a filter leaves.

The ends of all partitions are taken once, together with their leader epochs. What is appended later is not seen; what
is dropped meanwhile (retention, truncation) makes the query fail with `DataLoss` instead of returning less.

`LogSource`: a log as a table is made from it: in slices of its files, planned by the sparse index.
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
from ..log.slices import Folding
from ..log.summaries import Blocks, LogSummary
from ..storage import Directory
from ..store.base import Partition, PlannedSlice, Topic
from .filters import Bounds, Range
from .sources import Planned, TableSource

#: How much of the log one task decodes. Large enough that planning costs nothing beside it, small enough that the tasks
#: in flight fit into memory.
PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one partition that one task reads."""

    partition: int
    part: Planned


@dataclass(frozen=True, slots=True)
class Span:
    """What a snapshot has of one partition: start <= offset < end, in this leader epoch."""

    partition: int
    log: Partition
    source: TableSource
    start: int
    end: int
    epoch: int


class Snapshot:
    """The spans of all partitions of a topic."""

    def __init__(self, topic: Topic, isolation: Isolation, spans: tuple[Span, ...]) -> None:
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
    ) -> Snapshot:
        """The topic as it is now; from `start` and to `end`, by partition, if these are given."""
        spans = tuple(
            _span(topic, number, isolation, (start or {}).get(number), (end or {}).get(number))
            for number in range(topic.partitions)
        )
        return cls(topic, isolation, spans)

    @property
    def is_whole(self) -> bool:
        """Whether a partition has any offsets at all."""
        return any(span.start < span.end for span in self.spans)

    def pieces(self, bounds: Bounds) -> Iterator[Piece]:
        """What has to be read for a filter, in the order of partitions and offsets."""
        for span in self.spans:
            within = bounds.partition.low <= span.partition <= bounds.partition.high
            start = max(span.start, bounds.offset.low)
            end = min(span.end, bounds.offset.high + 1)
            if within and start < end and not bounds.is_empty:
                for first, last in _in_time(span.source, start, end, bounds.time_ms):
                    yield from self._cut(span, first, last)

    def _cut(self, span: Span, start: int, end: int) -> Iterator[Piece]:
        planned = span.source.plan(start, end, epoch=span.epoch, target_bytes=PIECE_BYTES, isolation=self.isolation)
        return (Piece(span.partition, each) for each in planned)


def _span(topic: Topic, number: int, isolation: Isolation, start: int | None, end: int | None) -> Span:
    log = topic.partition(number)
    last, epoch = log.position(isolation=isolation)
    lowest = log.lowest_offset
    if start is not None and start > last:
        raise OffsetOutOfRange(start, lowest, last, log.path)
    first = lowest if start is None else max(start, lowest)
    return Span(number, log, topic.source(number), min(first, last), last if end is None else min(end, last), epoch)


def _in_time(source: TableSource, start: int, end: int, time_ms: Range) -> list[tuple[int, int]]:
    """The offsets from `start` to `end` in blocks that may have a record of that time: neighbours are joined."""
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
        return [(start, end)]  # damaged, or just being replaced: reading will tell
    return found


class LogSource:
    """One partition in a directory, which is opened again for each scan."""

    def __init__(self, log: Log, directory: Callable[[], Directory]) -> None:
        self._log = log
        self._directory = directory

    def plan(
        self, start: int, end: int, *, epoch: int, target_bytes: int | None = None, isolation: Isolation = "committed"
    ) -> list[PlannedSlice]:
        """Slices, in order."""
        return slices.plan(self._log, start, end, epoch=epoch, target_bytes=target_bytes, isolation=isolation)

    def blocks(
        self, start: int, end: int, *, since: int = -1, with_oldest: bool = False, exact: bool = False
    ) -> Iterator[Blocks]:
        """What the headers of batches say; it is always exact."""
        summary = LogSummary.of(self._log)
        return summary.blocks(self._log, start, end, since=since, with_oldest=with_oldest, exact=exact)

    def proven_end(self, epoch: int, end: int) -> int:
        """How far the offsets below `end` are still those of a leader epoch."""
        return slices.proven_end(self._log, epoch, end)

    def open(self) -> LogReading:
        """Begin to read."""
        return LogReading(self._directory(), self._log.config, self._log._remote)


class LogReading:
    """Reads slices of one log. Safe for threads."""

    def __init__(self, directory: Directory, config: LogConfig, remote: RemoteSource | None = None) -> None:
        self._directory = directory
        self._config = config
        self._remote = remote

    def read(self, part: PlannedSlice, *, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The records of a slice."""
        remote = self._remote
        return slices.read(self._directory, part, self._config, columns=columns, batch_rows=batch_rows, remote=remote)

    def fold(self, part: PlannedSlice, into: Folding, *, columns: Sequence[str], batch_rows: int) -> None:
        """Add each record of a slice to something."""
        remote = self._remote
        slices.fold(self._directory, part, self._config, into, columns=columns, batch_rows=batch_rows, remote=remote)

    def close(self) -> None:
        """Close the directory."""
        self._directory.close()
