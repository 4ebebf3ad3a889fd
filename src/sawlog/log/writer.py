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
from collections.abc import Iterable
from typing import Protocol

from ..batch import kernel
from ..batch.build import NOBODY, Encoded, Producer, Recipe
from ..batch.inputs import GivenHeaders, GivenRecord
from ..closing import Closing
from ..config import KIB
from ..errors import InvalidConfig, LogClosed
from ..storage.forking import forkable
from .appender import Answer
from .encoding import Batcher, Lingering

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
        #: A finished batch that is not known to be placed, and the placement from the log.
        self._pending: tuple[Encoded, Answer] | None = None
        self._closed = False
        #: The offsets of the batch that was placed last.
        self.last: range = range(0)
        # A call into the compiled kernel is atomic under the interpreter's lock; interpreted it is not.
        if kernel.COMPILED:
            self.__dict__["append"] = self._batcher.add  # instead of the method below, which is the same with a lock
        self._lingering = None if linger_ms is None else Lingering(linger_ms / 1000, self._waits, self.flush)
        target.writers.add(self)

    @property
    def builder(self) -> kernel.BatchBuilder:
        """What `append` encodes into: for a dispatcher in front of several writers."""
        return self._batcher.builder

    def _waits(self) -> bool:
        """Whether there is a record that is not placed."""
        return not self._closed and self._batcher.count > 0

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | None = None,
    ) -> None:
        """Add one record; its offset is known when it is placed. The timestamp is in milliseconds since 1970."""
        with self._lock:
            self._batcher.add(value, key, headers, timestamp)

    def append_many(self, records: Iterable[GivenRecord]) -> None:
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
                self.append(record)  # type: ignore[arg-type]  # other mappings than dicts are refused there

    def _full(self) -> None:
        """The builder's batch has reached its size."""
        self._place()
        self._target.settle(self.last.stop)

    def _place(self, *, close: bool = False) -> None:
        """Place one batch, if there is one; if that fails it is kept for the next time. The same if an interrupt comes
        between any two lines: the batcher keeps the batch until it is released, and the answer of the log says whether
        it is placed."""
        with self._lock:
            batch = self._batcher.ended(close=close)
            if batch is not None:
                self._place_batch(batch)

    def _place_batch(self, batch: Encoded) -> None:
        if self._pending is None or self._pending[0] is not batch:
            self._pending = batch, Answer()
        self.last = self._target.place(batch, answer=self._pending[1])
        self._batcher.release()
        self._pending = None

    def flush(self) -> range:
        """Place everything so far, do what the log's policy requires, and return the offsets of the last batch.

        It also covers batches that were placed before: if they could not be synced, it raises.
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
                self._place(close=True)  # from here on `append` refuses; what came meanwhile is included
                self.flush()
            finally:
                self._closed = True
                self._batcher.close()
                self._target.writers.discard(self)
                if self._lingering is not None:
                    self._lingering.end()
