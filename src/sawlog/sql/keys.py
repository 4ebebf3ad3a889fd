"""`KeyDataset`: a topic's keys, and how many records each of them has.

DuckDB gets it in place of the topic by a query that needs no more (see grouping.py). The kernel counts while it walks
over the records, so that no column of keys is made, and DuckDB groups a few rows per key instead of one per record.

| column | type | |
|---|---|---|
| partition | int32 | |
| key | binary | null for the records without a key |
| records | int64 | |
| first_offset, last_offset | int64 | |
| oldest, newest | timestamp[ms, UTC] | |

A key may have any number of rows: threads count separately, and what does not fit into memory is given out before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..batch.counting import RANGES, KeyCounts
from ..batch.counting import SCHEMA as COUNTS
from ..errors import CorruptBatch
from ..log.segment.batches import Chunk
from .bounds import Bounds
from .expressions import fields_of
from .scanning import BATCH_ROWS, Readings, most_threads
from .snapshot import Piece, Snapshot

SCHEMA = pa.schema([pa.field("partition", pa.int32()), *COUNTS])


class KeyDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The keys of a snapshot of a topic. Any number of scans, in any threads."""

    def __init__(self, snapshot: Snapshot, raised: list[BaseException]) -> None:
        # Not `super().__init__`: see `TopicDataset`.
        self._snapshot = snapshot
        self._raised = raised

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return SCHEMA

    def __reduce__(self) -> Any:
        raise TypeError("a topic cannot be pickled: open the store in the other process")

    def scanner(self, columns: Any = None, filter: pc.Expression | None = None, **ignored: Any) -> KeyScanner:
        """What DuckDB calls. Options for Arrow's own readers are ignored."""
        return KeyScanner(self, list(columns or SCHEMA.names), filter)

    def batches(self, columns: Sequence[str], filter: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """The rows that pass the filter, with these columns. An error is also kept, because DuckDB makes text of it."""
        filtered = fields_of(filter)
        needed = {*columns, *(SCHEMA.names if filtered is None else filtered)}
        counting = _Counting(self._snapshot, "partition" in needed, not needed.isdisjoint(RANGES.names))
        try:
            for batch in counting.rows(self._snapshot.pieces(Bounds.of(filter))):
                passed = batch if filter is None else batch.filter(filter)
                if passed.num_rows:
                    yield passed.select(list(columns))
        except GeneratorExit:
            raise
        except BaseException as error:
            self._raised.append(error)
            raise


@dataclass(frozen=True, slots=True)
class KeyScanner:
    """One scan."""

    dataset: KeyDataset
    columns: Sequence[str]
    filter: pc.Expression | None

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns of the result."""
        return pa.schema([SCHEMA.field(name) for name in self.columns])

    def to_reader(self) -> pa.RecordBatchReader:
        """The result as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.dataset.batches(self.columns, self.filter))


class _Counter:
    """The counts of one thread: of one partition at a time, if it matters which."""

    def __init__(self, with_partition: bool, with_ranges: bool) -> None:
        self._counts = KeyCounts(ranges=with_ranges)
        self._with_partition = with_partition
        self._partition = -1
        self._rows: list[pa.RecordBatch] = []

    def turn_to(self, partition: int) -> None:
        """What is added from now on is of this partition."""
        if self._with_partition and partition != self._partition:
            self.flush()
        self._partition = partition

    def add_chunk(self, chunk: Chunk, start: int, end: int, max_bytes: int) -> None:
        """Count the records of checked batches."""
        self._counts.add(chunk.view, chunk.rows, start, end, max_bytes)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Count records that had to be read in another way."""
        if self._counts.is_spoiled:  # what was added of them before would count twice
            raise CorruptBatch("the records of a batch do not parse, although its checksum is right")
        self._counts.add_rows(batch)

    @property
    def has_rows(self) -> bool:
        """Whether there is something to take before all is counted."""
        return bool(self._rows or self._counts.rows)

    def flush(self) -> None:
        """Make rows of all that was counted."""
        self._counts.flush()
        self._rows += self._placed()

    def take(self) -> list[pa.RecordBatch]:
        """The rows, which are then the caller's."""
        rows, self._rows = [*self._rows, *self._placed()], []
        return rows

    def _placed(self) -> list[pa.RecordBatch]:
        rows = self._counts.take()
        if not self._with_partition:
            return rows
        number = pa.scalar(self._partition, pa.int32())
        return [each.add_column(0, SCHEMA.field(0), pa.repeat(number, each.num_rows)) for each in rows]


class _Counting:
    """One scan while it runs: some threads, each of which takes the next piece when it is done with one."""

    def __init__(self, snapshot: Snapshot, with_partition: bool, with_ranges: bool) -> None:
        self._snapshot = snapshot
        self._wanted = with_partition, with_ranges
        self._columns = ["key", "offset", "timestamp"] if with_ranges else ["key"]
        self._idle: list[_Counter] = []
        self._lock = threading.Lock()
        self._ended = False
        self._pieces: Iterator[Piece] = iter(())

    def rows(self, pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
        """The rows of all pieces."""
        first = [piece for piece in (next(pieces, None), next(pieces, None)) if piece is not None]
        self._pieces = chain(first, pieces)
        threads = most_threads() if len(first) > 1 else 1
        with ExitStack() as last:
            opened = Readings(self._snapshot, last)
            if threads == 1:
                while not self._ended:
                    yield from self._work(opened)
            else:
                yield from self._in_threads(opened, threads)
        for counter in self._idle:
            counter.flush()
            yield from counter.take()

    def _in_threads(self, opened: Readings, threads: int) -> Iterator[pa.RecordBatch]:
        pool = ThreadPoolExecutor(threads, thread_name_prefix="sawlog-sql")
        try:
            flying: deque[Future[list[pa.RecordBatch]]] = deque(pool.submit(self._work, opened) for _ in range(threads))
            while flying:
                yield from flying.popleft().result()
                if not self._ended:
                    flying.append(pool.submit(self._work, opened))
        finally:
            self._ended = True
            pool.shutdown(wait=True, cancel_futures=True)

    def _work(self, opened: Readings) -> list[pa.RecordBatch]:
        """Count pieces until there are rows to hand on, or no more pieces."""
        counter = self._counter()
        while not counter.has_rows and (piece := self._next()) is not None:
            counter.turn_to(piece.partition)
            opened[piece.partition].fold(piece.part, counter, columns=self._columns, batch_rows=BATCH_ROWS)
        rows = counter.take()
        with self._lock:
            self._idle.append(counter)
        return rows

    def _counter(self) -> _Counter:
        with self._lock:
            return self._idle.pop() if self._idle else _Counter(*self._wanted)

    def _next(self) -> Piece | None:
        with self._lock:
            piece = None if self._ended else next(self._pieces, None)
            self._ended = piece is None
            return piece
