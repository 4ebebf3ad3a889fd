"""`TopicSnapshot`: a topic as of the start of a query, the parts of it that a filter leaves, and reading these.

The ends of all partitions are taken once, together with their leader epochs. Later appends are not visible; if records
are dropped meanwhile (retention, truncation), the query fails with `DataLoss` instead of returning less.

Parts are read in threads: the kernel decodes without the GIL. A few are in flight, and their batches are yielded in
order, so that a query without `order by` returns records in log order. To stop early, close the generator: parts in
flight are dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ..config import Isolation
from ..errors import CorruptBatch, OffsetOutOfRange, StorageError
from ..store.base import Partition, PlannedSlice, SliceReader, Topic
from .filters import Bounds, IntRange

#: Bytes of the log that one task decodes: large enough to make planning negligible, small enough that the tasks in
#: flight fit into memory.
PIECE_BYTES = 8 << 20
#: Rows per batch; larger batches are no faster and arrive later.
BATCH_ROWS = 131_072
#: Beyond this, threads compete for memory bandwidth.
_MOST_THREADS = 8

Finish = Callable[[pa.RecordBatch, int], pa.RecordBatch | None]
#: The unit of work of one thread.
Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class ScanSlice:
    """A part of one partition that one task reads."""

    partition: int
    part: PlannedSlice


@dataclass(frozen=True, slots=True)
class PartitionSpan:
    """The snapshot of one partition: start <= offset < end, in this leader epoch."""

    partition: int
    log: Partition
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
                for first, last in self._in_time(span.partition, start, end, bounds.time_ms):
                    for part in self.plan(span, first, last, PIECE_BYTES):
                        yield ScanSlice(span.partition, part)

    def plan(
        self, span: PartitionSpan, start: int, end: int, target_bytes: int | None = None
    ) -> Sequence[PlannedSlice]:
        """Plan slices that cover all offsets from `start` to `end`. Raises `DataLoss` if some are gone."""
        return self.topic._plan(
            span.partition, start, end, epoch=span.epoch, target_bytes=target_bytes, isolation=self.isolation
        )

    def _in_time(self, number: int, start: int, end: int, time_ms: IntRange) -> list[tuple[int, int]]:
        """Return the offset ranges of blocks that may have a record of that time, with adjacent ranges merged."""
        if time_ms.is_everything:
            return [(start, end)]
        since = max(time_ms.low, -1)
        bounded = time_ms.high < 2**62
        found: list[tuple[int, int]] = []
        try:
            known = self.topic._blocks(number, start, end, since=since, with_oldest=bounded)
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


def _span(topic: Topic, number: int, isolation: Isolation, start: int | None, end: int | None) -> PartitionSpan:
    log = topic.partition(number)
    last, epoch = log.position(isolation=isolation)
    lowest = log.lowest_offset
    if start is not None and start > last:
        raise OffsetOutOfRange(start, lowest, last, log.path)
    first = lowest if start is None else max(start, lowest)
    return PartitionSpan(number, log, min(first, last), last if end is None else min(end, last), epoch)


def scan(
    snapshot: TopicSnapshot,
    pieces: Iterator[ScanSlice],
    columns: list[str],
    finish: Finish,
    *,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Read the records of these pieces. `finish` converts a batch of a partition, in the reading thread; it returns
    None if no row is left."""
    with ExitStack() as last:
        opened = PartitionReaders(snapshot, last)

        def read(piece: ScanSlice) -> list[pa.RecordBatch]:
            batches = opened[piece.partition].read(piece.part, columns=columns, batch_rows=batch_rows)
            finished = (finish(batch, piece.partition) for batch in batches)
            return [batch for batch in finished if batch is not None and batch.num_rows]

        yield from map_in_order(read, pieces, last)


def map_in_order(
    read: Callable[[Part], list[pa.RecordBatch]], pieces: Iterator[Part], last: ExitStack
) -> Iterator[pa.RecordBatch]:
    """Apply `read` to each part in threads, and yield the results in order. The threads end with `last`."""
    threads = min(int(pa.cpu_count()), _MOST_THREADS)
    first = next(pieces, None)
    if first is None:
        return
    following = next(pieces, None)
    if following is None:  # one piece needs no thread
        yield from read(first)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="sawlog-sql")
    flying: deque[Future[list[pa.RecordBatch]]] = deque(pool.submit(read, each) for each in (first, following))
    last.callback(pool.shutdown, wait=True, cancel_futures=True)
    while flying:
        while len(flying) <= threads and (piece := next(pieces, None)) is not None:
            flying.append(pool.submit(read, piece))
        yield from flying.popleft().result()


class PartitionReaders:
    """Readers by partition, opened on first use."""

    def __init__(self, snapshot: TopicSnapshot, last: ExitStack) -> None:
        self._snapshot = snapshot
        self._last = last
        self._opened: dict[int, SliceReader] = {}
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> SliceReader:
        with self._lock:
            if number not in self._opened:
                self._opened[number] = made = self._snapshot.topic._slices(number)
                self._last.callback(made.close)
            return self._opened[number]
