"""Records in bulk: `Writer` collects single records into batches, `append_table` encodes an Arrow table.

`Writer.append` *is* the method of the compiled builder: it encodes the record into the open batch and returns. The
batch is placed when it is full, when it is `linger_ms` old, on `flush` and on `close`. Offsets are known only then;
`flush` returns the range. An accepted record is lost if the process dies before its batch is placed. To be sure, call
`flush`, which returns when the log's durability policy is satisfied.

`append` refuses invalid records immediately, and they do not change the batch. If placing fails, the batch is kept and
the error is raised; the next `flush` retries. Leaving the `with` block flushes, even after an exception.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from ..batch import kernel
from ..batch.build import NO_PRODUCER, Encoded, EncoderOptions, Producer
from ..batch.inputs import HeadersInput, RecordInput
from ..closing import Closing
from ..config import KIB
from ..errors import InvalidConfig, InvalidRecord, LogClosed
from ..storage.forking import forkable
from . import ingest
from .appender import Appender, Placement
from .encoding import Batcher, LingerTimer

if TYPE_CHECKING:
    import pyarrow as pa

#: About a thousand records of 100 bytes: large enough to be fast, small enough to find a record quickly.
BATCH_BYTES = 128 * KIB


class Target(Protocol):
    """Destination of a writer's batches: an `Appender`, or a log that another process writes."""

    #: Open writers.
    writers: set[Writer]

    @property
    def recipe(self) -> EncoderOptions:
        """Encoding settings for batches."""

    def place(
        self,
        batch: Encoded,
        expect_offset: int | None = None,
        producer: Producer = NO_PRODUCER,
        placement: Placement | None = None,
    ) -> range:
        """Store a batch and return its offsets. `placement` identifies the batch when the call is retried."""

    def settle(self, offset: int) -> None:
        """Block until an append that ended at `offset` is as durable as the policy promises."""

    def check_failure(self) -> None:
        """Raise if an earlier batch could not be made durable."""


class Writer(Closing):
    """Buffered appends: collects records into batches and places them. Thread-safe."""

    def __init__(self, target: Target, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None) -> None:
        if isinstance(batch_bytes, bool) or not isinstance(batch_bytes, int) or batch_bytes < 1:
            raise InvalidConfig(f"batch_bytes must be a number of bytes, at least 1, not {batch_bytes!r}")
        if linger_ms is not None and (isinstance(linger_ms, bool) or not isinstance(linger_ms, (int, float))):
            raise InvalidConfig(f"linger_ms must be a number of milliseconds, not {linger_ms!r}")
        if linger_ms is not None and not linger_ms > 0:
            raise InvalidConfig(f"linger_ms must be above 0, not {linger_ms}; omit it to flush by size only")
        self._target = target
        recipe = target.recipe
        limit = min(batch_bytes, recipe.max_batch_bytes)
        self._lock = forkable(threading.RLock())
        self._batcher = Batcher(recipe, limit=limit, on_full=self._full, capacity=limit + 4096, keep=1)
        #: A finished batch that may not be placed yet, and its placement.
        self._pending: tuple[Encoded, Placement] | None = None
        self._closed = False
        #: Offsets of the last placed batch.
        self.last: range = range(0)
        # A call into the compiled kernel is atomic under the GIL; the interpreted kernel needs the lock.
        if kernel.COMPILED:
            self.__dict__["append"] = self._batcher.add  # replaces the method below, which adds a lock
        self._linger_timer = None if linger_ms is None else LingerTimer(linger_ms / 1000, self._waits, self.flush)
        target.writers.add(self)

    @property
    def builder(self) -> kernel.BatchBuilder:
        """Builder that `append` encodes into, for a dispatcher in front of several writers."""
        return self._batcher.builder

    def _waits(self) -> bool:
        """Return True if the open batch has records."""
        return not self._closed and self._batcher.count > 0

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: int | None = None,
    ) -> None:
        """Add one record. Its offset is known once it is placed. `timestamp` is in milliseconds since 1970."""
        with self._lock:
            self._batcher.add(value, key, headers, timestamp)

    def append_many(self, records: Iterable[RecordInput]) -> None:
        """Add records in any form that `Log.append_many` accepts, but not as one batch."""
        for record in records:
            if isinstance(record, kernel.Record):
                stamp = None if record.timestamp < 0 else record.timestamp
                self.append(record.value, record.key, record.headers, stamp)
            elif isinstance(record, tuple):
                self.append(*record)
            elif isinstance(record, dict):
                self.append(**record)
            else:
                self.append(record)  # type: ignore[arg-type]  # refuses mappings other than dicts

    def _full(self) -> None:
        """Place the batch: it has reached its size limit."""
        self._place()
        self._target.settle(self.last.stop)

    def _place(self, *, close: bool = False) -> None:
        """Place one batch, if there is one. After a failure, or an interrupt between any two lines, the next call
        retries the same batch: the batcher keeps it until `release`, and its `Placement` records whether the log has
        already stored it."""
        with self._lock:
            batch = self._batcher.ended(close=close)
            if batch is not None:
                self._place_batch(batch)

    def _place_batch(self, batch: Encoded) -> None:
        if self._pending is None or self._pending[0] is not batch:
            self._pending = batch, Placement()
        self.last = self._target.place(batch, placement=self._pending[1])
        self._batcher.release()
        self._pending = None

    def flush(self) -> range:
        """Place all records, block as the log's durability policy requires, and return the offsets of the last batch.

        Covers earlier batches too: raises if one of them could not be synced.
        """
        with self._lock:
            if self._closed:
                raise LogClosed("this writer is closed")
            while (batch := self._batcher.ended()) is not None:
                self._place_batch(batch)
            last = self.last
        self._target.check_failure()
        if last:
            self._target.settle(last.stop)
        return last

    def close(self) -> None:
        """Flush and stop."""
        with self._lock:
            if self._closed:
                return
            try:
                self.flush()
                self._place(close=True)  # `append` refuses from here on; records added meanwhile are included
                self.flush()
            finally:
                self._closed = True
                self._batcher.close()
                self._target.writers.discard(self)
                if self._linger_timer is not None:
                    self._linger_timer.end()


# --- Arrow tables

#: Bytes encoded before they are placed. A larger table holds the log's lock while the rest is encoded.
_GROUP_BYTES = 8 << 20


def append_table(appender: Appender, table: pa.Table | pa.RecordBatch, expect_offset: int | None) -> range:
    """Place the rows of a table, all of them or none, and return their offsets."""
    encoder = appender.encoders.take()
    try:
        batches = encoder.table(table, min(BATCH_BYTES, appender.config.segment_bytes // 2 + 1))
        group, more = _next_group(batches)
        if more:
            return _place_groups(appender, group, batches, expect_offset)
        return _place_group(appender, group, expect_offset)
    finally:
        appender.encoders.give_back(encoder)


def _place_groups(appender: Appender, group: bytearray, batches: Iterator[Encoded], expect_offset: int | None) -> range:
    with appender.appending() as first:
        placed = _place_group(appender, group, expect_offset)
        more = True
        while more:
            group, more = _next_group(batches)
            if group:
                placed = _place_group(appender, group, None)
        return range(first, placed.stop)


def _place_group(appender: Appender, group: bytearray, expect_offset: int | None) -> range:
    if not group:
        raise InvalidRecord("no record to append")
    return appender.place_rows(memoryview(group), ingest.rows_of(memoryview(group)), expect_offset)


def _next_group(batches: Iterator[Encoded]) -> tuple[bytearray, bool]:
    """Return the next batches, contiguous and of limited size, and whether more may follow."""
    group = bytearray()
    for batch in batches:
        group += batch.data
        if len(group) >= _GROUP_BYTES:
            return group, True
    return group, False
