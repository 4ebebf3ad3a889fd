"""Reads pieces of a topic as Arrow batches, in threads, in order, and with little in memory.

The kernel decodes without the GIL, so several threads do that at the same time. A few pieces are in flight; their
batches are yielded in the order of the pieces, so that a query without `order by` gets records as they are in the log.
Whoever stops early closes the generator, and what is in flight is dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

import pyarrow as pa

from .snapshot import Piece, Snapshot
from .sources import TableReading

#: Rows in one batch; larger ones do not pay, and take longer to arrive.
BATCH_ROWS = 131_072
#: More threads than this only wait for each other's memory.
_MOST_THREADS = 8

Finish = Callable[[pa.RecordBatch, int], pa.RecordBatch | None]
#: Something that is read as a whole, by one thread.
Part = TypeVar("Part")


def scan(
    snapshot: Snapshot, pieces: Iterator[Piece], columns: list[str], finish: Finish, *, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """The records of these pieces. `finish` makes of a batch and its partition what is wanted, or None if nothing is
    left of it; also in the threads."""
    with ExitStack() as last:
        opened = Readings(snapshot, last)

        def read(piece: Piece) -> list[pa.RecordBatch]:
            batches = opened[piece.partition].read(piece.part, columns=columns, batch_rows=batch_rows)
            finished = (finish(batch, piece.partition) for batch in batches)
            return [batch for batch in finished if batch is not None and batch.num_rows]

        yield from in_order(read, pieces, last)


def most_threads() -> int:
    """How many threads decode."""
    return min(int(pa.cpu_count()), _MOST_THREADS)


def in_order(
    read: Callable[[Part], list[pa.RecordBatch]], pieces: Iterator[Part], last: ExitStack
) -> Iterator[pa.RecordBatch]:
    """What `read` makes of each part, in their order, in threads; these end with `last`."""
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


class Readings:
    """What reads partitions, opened when first needed."""

    def __init__(self, snapshot: Snapshot, last: ExitStack) -> None:
        self._snapshot = snapshot
        self._last = last
        self._opened: dict[int, TableReading] = {}
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> TableReading:
        with self._lock:
            if number not in self._opened:
                self._opened[number] = made = self._snapshot.spans[number].source.open()
                self._last.callback(made.close)
            return self._opened[number]
