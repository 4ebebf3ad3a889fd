"""Read pieces of a topic as Arrow batches, in threads, in order, with bounded memory.

The kernel decodes without the GIL, so several threads decode at the same time. A few pieces are in flight; their
batches are yielded in the order of the pieces, so that a query without `order by` returns records in log order. To stop
early, close the generator: pieces in flight are dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

import pyarrow as pa

from .snapshot import ScanSlice, TopicSnapshot
from .sources import PartitionReader

#: Rows per batch; larger batches are no faster and arrive later.
BATCH_ROWS = 131_072
#: Beyond this, threads compete for memory bandwidth.
_MOST_THREADS = 8

Finish = Callable[[pa.RecordBatch, int], pa.RecordBatch | None]
#: The unit of work of one thread.
Part = TypeVar("Part")


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


def most_threads() -> int:
    """Number of decoding threads."""
    return min(int(pa.cpu_count()), _MOST_THREADS)


def map_in_order(
    read: Callable[[Part], list[pa.RecordBatch]], pieces: Iterator[Part], last: ExitStack
) -> Iterator[pa.RecordBatch]:
    """Apply `read` to each part in threads, and yield the results in order. The threads end with `last`."""
    threads = most_threads()
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
        self._opened: dict[int, PartitionReader] = {}
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> PartitionReader:
        with self._lock:
            if number not in self._opened:
                self._opened[number] = made = self._snapshot.spans[number].source.open()
                self._last.callback(made.close)
            return self._opened[number]
