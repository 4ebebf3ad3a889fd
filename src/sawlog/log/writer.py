"""Records to batches: reusable encoders (`EncoderPool`), open batches (`Batcher`), and the buffered `Writer`.

`EncoderPool` keeps encoders because their buffers are warm. `Batcher` gathers single records into batches for callers
that do not append each record at once:

```python
batcher.add(value, key, headers, timestamp)    # the compiled builder's own method
batch = batcher.ended()                        # end the open batch and finish it; None if it has no record
log.place(batch)
batcher.release()                              # the batch is stored: reuse its buffer
```

A batch also ends by size: `on_full` is called when its records reach `limit` bytes. The caller adds the time limit
(`LingerTimer`) and decides where a batch goes and how to handle failures. Until `release`, `ended` returns the same
batch, so that a caller that was interrupted between any two lines, or ran into a full disk, retries with it; new
records go to the next batch.

To have several batches in flight, call `take`, which hands them over unfinished; `sealed` finishes one, in any thread,
and `give_back` returns its buffer.

Threads: `Batcher.add` is one call into the kernel; everything else of a `Batcher` is for one thread at a time.

`Writer.append` *is* the method of the compiled builder: it encodes the record into the open batch and returns. The
batch is placed when it is full, when it is `linger_ms` old, on `flush` and on `close`. Offsets are known only then;
`flush` returns the range. An accepted record is lost if the process dies before its batch is placed. To be sure, call
`flush`, which returns when the log's durability policy is satisfied.

`append` refuses invalid records immediately, and they do not change the batch. If placing fails, the batch is kept and
the error is raised; the next `flush` retries. Leaving the `with` block flushes, even after an exception.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from .. import background
from ..batch import kernel
from ..batch.build import KEEP_BYTES, MAX_BATCH_BYTES, NO_PRODUCER, Encoded, Encoder, EncoderOptions, Producer, seal
from ..batch.compression import codec_id
from ..batch.header import HEADER_BYTES
from ..batch.inputs import HeadersInput, RecordInput, record_error
from ..clock import Deadline
from ..closing import Closing
from ..config import KIB, LogConfig, checked_count
from ..errors import InvalidConfig, LogClosed, SawlogError
from ..storage.forking import forkable

#: About a thousand records of 100 bytes: large enough to be fast, small enough to find a record quickly.
BATCH_BYTES = 128 * KIB
#: Encoders kept: one per thread that appends at the same time, up to this number.
_KEPT = 8


class EncoderPool:
    """Reusable encoders, one per concurrent caller. Thread-safe without a lock."""

    def __init__(self, recipe: EncoderOptions) -> None:
        self.recipe = recipe
        self._free: list[Encoder] = []

    def take(self) -> Encoder:
        """Take an encoder, to be given back."""
        try:
            return self._free.pop()
        except IndexError:
            return Encoder(self.recipe)

    def give_back(self, encoder: Encoder) -> None:
        """Return an encoder for the next caller."""
        if len(self._free) < _KEPT:
            self._free.append(encoder)


def recipe_of(config: LogConfig) -> EncoderOptions:
    """Return the encoding settings for a log with this configuration."""
    codec = codec_id(config.compression)
    return EncoderOptions(
        codec,
        config.compression_level,
        config.timestamp_type == "append",
        config.max_record_bytes or 0,
        # Before compression, a batch may exceed a segment; its final size is checked when it is placed.
        MAX_BATCH_BYTES if codec else min(MAX_BATCH_BYTES, config.segment_bytes),
        config.max_decompressed_bytes,
    )


class LingerTimer:
    """Timer that calls `flush` in a background thread when a record has waited for about `linger_s` seconds.

    It polls twice in that time: notifying it of each record would cost more than encoding one.
    """

    def __init__(self, linger_s: float, waits: Callable[[], bool], flush: Callable[[], object]) -> None:
        self._half_s = linger_s / 2
        self._waits = waits
        self._flush = flush
        #: When a record that an earlier poll found will have waited long enough.
        self._due: Deadline | None = None
        self._task = background.every(max(self._half_s, 0.001), self._look)

    def _look(self) -> None:
        if not self._waits():
            self._due = None
        elif self._due is None:
            self._due = Deadline(self._half_s)
        elif self._due.passed:
            self._due = None
            try:
                self._flush()
            except (SawlogError, OSError):
                pass  # the batch is kept; the next append or flush raises the same error

    def end(self) -> None:
        """Stop the timer."""
        self._task.cancel()


#: An ended but unfinished batch: its buffer, the end of its records, their number, and the first and largest timestamp.
Taken = tuple[bytearray, int, int, int, int]


class Batcher:
    """One open batch, and the previous one until it is stored."""

    __slots__ = ("_builder", "_capacity", "_ended", "_keep", "_largest", "_recipe", "_spares", "add")

    #: `add(value, key=None, headers=(), timestamp=None)`: encode one record into the open batch, or refuse it.
    add: Callable[..., None]

    def __init__(
        self,
        recipe: EncoderOptions,
        *,
        limit: int = 0,
        on_full: Callable[[], None] | None = None,
        max_bytes: int | None = None,
        capacity: int = 4096,
        keep: int = 0,
    ) -> None:
        """`on_full` is called at `limit` bytes, or never if that is 0. Records beyond the lower of `max_bytes` and the
        recipe's limit are refused. New buffers have `capacity` bytes; `keep` of them are kept for reuse."""
        most = recipe.max_batch_bytes if max_bytes is None else min(max_bytes, recipe.max_batch_bytes)
        self._recipe = recipe
        self._builder = kernel.BatchBuilder(
            record_error,
            limit=limit,
            on_full=on_full,
            max_record=recipe.max_record_bytes,
            max_total=most,
            capacity=capacity,
        )
        self._capacity = capacity
        self._keep = keep
        self._largest = max(KEEP_BYTES, capacity)
        self._spares: list[bytearray] = []
        #: A finished batch that may not be stored yet, and its buffer.
        self._ended: tuple[Encoded, bytearray] | None = None
        self.add = self._builder.add

    @property
    def builder(self) -> kernel.BatchBuilder:
        """Builder that `add` encodes into, for a dispatcher in front of several batchers."""
        return self._builder

    @property
    def count(self) -> int:
        """Number of records in the open batch."""
        return int(self._builder.count)

    @property
    def size_bytes(self) -> int:
        """Size of the open batch before compression."""
        return int(self._builder.position)

    @property
    def is_empty(self) -> bool:
        """True if every record is known to be stored."""
        return not self._builder.count and self._builder.taken is None and self._ended is None

    # --- one after the other

    def ended(self, *, close: bool = False) -> Encoded | None:
        """Return the batch to store next: the one not yet released, or the open one, which ends here. With `close`, no
        further record is accepted."""
        if self._ended is not None:
            return self._ended[0]
        builder = self._builder
        if builder.taken is None and (builder.count or close):
            builder.take(self._spares.pop() if self._spares else bytearray(self._capacity), close)
        taken: Taken | None = builder.taken  # the builder keeps it: an interrupt may come before the next line
        if taken is None:
            return None
        if not taken[2]:
            builder.taken = None
            return None
        made = seal(*taken, self._recipe)
        self._ended = made, taken[0]
        return made

    def release(self) -> None:
        """Drop the batch that `ended` returned: it is stored, or given up."""
        ended, builder = self._ended, self._builder
        if ended is not None:
            builder.taken = None
            self._ended = None
            self.give_back(ended[1])

    def close(self) -> None:
        """Refuse further records and discard those that are not stored."""
        builder = self._builder
        builder.take(bytearray(HEADER_BYTES), True)
        builder.taken = self._ended = None

    # --- several at the same time

    def take(self) -> Taken:
        """End the open batch and hand it over."""
        builder = self._builder
        taken: Taken = builder.take(self._spares.pop() if self._spares else bytearray(self._capacity))
        builder.taken = None
        return taken

    def sealed(self, taken: Taken) -> Encoded:
        """Finish a batch: compress it, write its header, compute its CRC."""
        return seal(*taken, self._recipe)

    def give_back(self, buffer: bytearray) -> None:
        """Return the buffer of a batch that is no longer needed."""
        if len(self._spares) < self._keep and len(buffer) <= self._largest:
            self._spares.append(buffer)


# --- the writer


class Placement:
    """Offsets of a placed batch, for a caller that an interrupt may prevent from receiving the result."""

    __slots__ = ("placed",)

    def __init__(self) -> None:
        self.placed: range | None = None

    def give(self, placed: range) -> range:
        """Record the offsets and return them."""
        self.placed = placed
        return placed

    def withdraw(self) -> None:
        """Forget the offsets: the batch was rolled back."""
        self.placed = None


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
        checked_count("batch_bytes", batch_bytes, what="a number of bytes")
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
        self._last: range = range(0)
        # A call into the compiled kernel is atomic under the GIL; the interpreted kernel needs the lock.
        if kernel.COMPILED:
            self.__dict__["append"] = self._batcher.add  # replaces the method below, which adds a lock
        self._linger_timer = None if linger_ms is None else LingerTimer(linger_ms / 1000, self._waits, self.flush)
        target.writers.add(self)

    @property
    def _builder(self) -> kernel.BatchBuilder:
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
        self._target.settle(self._last.stop)

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
        self._last = self._target.place(batch, placement=self._pending[1])
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
            last = self._last
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
