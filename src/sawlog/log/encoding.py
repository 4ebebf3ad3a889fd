"""Encoding records into batches for a log: the pool of encoders, the batcher, and the linger timer.

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

Threads: `add` is one call into the kernel; everything else is for one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import background
from ..batch import kernel
from ..batch.build import KEEP_BYTES, MAX_BATCH_BYTES, Encoded, Encoder, EncoderOptions, seal
from ..batch.compression import codec_id
from ..batch.header import HEADER_BYTES
from ..batch.inputs import record_error
from ..clock import Deadline
from ..config import LogConfig
from ..errors import SawlogError

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
