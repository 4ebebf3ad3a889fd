"""Explicit buffering: collects single records into batches.

`append` here *is* the compiled builder's method: it encodes the record into the open batch and returns. When the batch
is full, when it is `linger_ms` old, on `flush` and on `close`, the batch is placed. So an offset is known only then;
`flush` returns the range. A record that was accepted is lost if the process dies before it is placed: to be sure, call
`flush`, which returns when the log's durability policy is satisfied.

Bad records are refused by `append` immediately and do not change the batch. If placing fails, the batch is kept and the
error is raised; the next `flush` tries again. Leaving the `with` block flushes, also after an exception.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from ... import background
from ...batch import kernel
from ...batch.build import NOBODY, Encoded, Producer, Recipe, seal
from ...batch.header import HEADER_BYTES
from ...batch.refusals import refuse
from ...closing import Closing
from ...config import KIB
from ...errors import InvalidConfig, LogClosed, SawlogError
from ...storage.forking import forkable
from .appender import Answer

#: About a thousand records of a hundred bytes: large enough to be fast, small enough to find a record in quickly.
BATCH_BYTES = 128 * KIB


class Target(Protocol):
    """Where a writer's batches go: an `Appender`, or a log that another process writes."""

    #: Open writers.
    writers: set[Writer]

    @property
    def recipe(self) -> Recipe:
        """How batches are made."""

    def place(
        self,
        batch: Encoded,
        expect_offset: int | None = None,
        producer: Producer = NOBODY,
        answer: Answer | None = None,
    ) -> range:
        """Store a batch and return its offsets. `answer` identifies the batch if it is tried again."""

    def settle(self, offset: int) -> None:
        """Return when what ended at `offset` is as durable as the policy promises."""

    def check_failure(self) -> None:
        """Raise if an earlier batch could not be made durable."""


class Writer(Closing):
    """Collects records into batches and places them. Thread-safe."""

    #: `append(value, key=None, headers=(), timestamp=None)`: add one record; its offset is known when it is placed.
    append: Callable[..., None]

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
        self._builder = kernel.BatchBuilder(
            refuse,
            limit=limit,
            on_full=self._full,
            max_record=recipe.max_record_bytes,
            max_total=recipe.max_batch_bytes,
            capacity=limit + 4096,
        )
        self._spare: bytearray | None = bytearray(limit + 4096)
        #: A finished batch that is not known to be placed, its buffer, and the placement from the log.
        self._pending: tuple[Encoded, bytearray, Answer] | None = None
        self._closed = False
        self._linger_s = None if linger_ms is None else linger_ms / 1000
        self._oldest = 0.0
        #: The offsets of the batch that was placed last.
        self.last: range = range(0)
        # A call into the compiled kernel is atomic under the interpreter's lock; interpreted it is not.
        self.append = self._builder.add if kernel.COMPILED else self._append_locked
        target.writers.add(self)
        if self._linger_s is not None:
            background.every(max(self._linger_s / 2, 0.001), self._flush_in_time)

    @property
    def builder(self) -> kernel.BatchBuilder:
        """What `append` encodes into: for a dispatcher in front of several writers."""
        return self._builder

    def _append_locked(self, value: Any, key: Any = None, headers: Any = (), timestamp: Any = None) -> None:
        with self._lock:
            self._builder.add(value, key, headers, timestamp)

    def append_many(self, records: Any) -> None:
        """Add many records, as `Log.append_many` does, but not as one batch."""
        for record in records:
            if isinstance(record, kernel.Record):
                stamp = None if record.timestamp < 0 else record.timestamp
                self.append(record.value, record.key, record.headers, stamp)
            elif isinstance(record, tuple):
                self.append(*record)
            elif isinstance(record, dict):
                self.append(**record)
            else:
                self.append(record)

    def _full(self) -> None:
        """The builder's batch has reached its size."""
        self._place()
        self._target.settle(self.last.stop)

    def _place(self, *, close: bool = False) -> None:
        """Place one batch, if there is one; if that fails it is kept for the next time. The same if an interrupt comes
        between any two lines: the builder keeps the batch until it is placed, and the log records that it is placed."""
        builder = self._builder
        with self._lock:
            if self._pending is None and builder.taken is None and (builder.count or close):
                spare, self._spare = self._spare, None
                builder.take(spare or bytearray(len(builder.buffer)), close)
            if self._pending is None and builder.taken is not None:
                taken: tuple[bytearray, int, int, int, int] = builder.taken
                if taken[2]:
                    self._pending = seal(*taken, self._target.recipe), taken[0], Answer()
                else:
                    builder.taken = None
            if self._pending is not None:
                encoded, buffer, answer = self._pending
                self.last = self._target.place(encoded, answer=answer)
                builder.taken = None
                self._pending, self._spare = None, buffer

    def flush(self) -> range:
        """Place everything so far, do what the log's policy requires, and return the offsets of the last batch.

        It also covers batches that were placed before: if they could not be synced, it raises.
        """
        with self._lock:
            if self._closed:
                raise LogClosed("this writer is closed")
            while self._pending is not None or self._builder.count or self._builder.taken is not None:
                self._place()
            last = self.last
        self._target.check_failure()
        if last:
            self._target.settle(last.stop)
        return last

    def _flush_in_time(self) -> None:
        """Called by the background: place a batch that has waited long enough."""
        if self._closed or not self._builder.count:
            self._oldest = 0.0
            return
        now = time.monotonic()
        if not self._oldest:
            self._oldest = now
        elif self._linger_s is not None and now - self._oldest >= self._linger_s / 2:
            self._oldest = 0.0
            try:
                self.flush()
            except (SawlogError, OSError):
                pass  # the batch is kept; the next append or flush meets the same error and raises it

    def close(self) -> None:
        """Flush and stop."""
        with self._lock:
            if self._closed:
                return
            try:
                self.flush()
                self._place(close=True)  # from here on `append` refuses; what came meanwhile is included
                self.flush()
            finally:
                self._closed = True
                self._builder.take(bytearray(HEADER_BYTES), True)
                self._target.writers.discard(self)
