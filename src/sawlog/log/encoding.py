"""The encoders of a log, kept because their buffers are warm.

How long records wait for a batch to fill: a batch that is old enough is stored although it is not full.

`Batcher`: gathers single records into batches, for whoever does not append each record at once.

```python
batcher.add(value, key, headers, timestamp)    # the compiled builder's own method
batch = batcher.ended()                        # end the open batch: a finished one, None if there is no record
log.place(batch)
batcher.release()                              # it is stored: its buffer is used again
```

Size ends a batch by itself: when the records reach `limit` bytes, `on_full` is called. Whoever gathers adds the time
(lingering.py) and decides where a batch goes and what happens if that fails: until `release`, `ended`
returns the same batch again. So a caller that is interrupted between any two lines, or whose disk was full, tries again
with it, and new records go to the next one.

For batches that are on their way at the same time, `take` hands them over one after the other, unfinished: `sealed`
finishes one, in any thread, and `give_back` returns its buffer.

Threads: `add` is one call into the kernel; everything else is for one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import background
from ..batch import kernel
from ..batch.build import KEEP_BYTES, MAX_BATCH_BYTES, Encoded, Encoder, Recipe, seal
from ..batch.compression import codec_id
from ..batch.header import HEADER_BYTES
from ..batch.inputs import refuse
from ..clock import Deadline
from ..config import LogConfig
from ..errors import SawlogError

#: How many are kept: as many as there are threads that append at the same time.
_KEPT = 8


class Encoders:
    """One for each caller at a time. Thread-safe, without a lock."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._free: list[Encoder] = []

    def take(self) -> Encoder:
        """Take one, to be given back."""
        try:
            return self._free.pop()
        except IndexError:
            return Encoder(self.recipe)

    def give_back(self, encoder: Encoder) -> None:
        """Give one back for the next caller."""
        if len(self._free) < _KEPT:
            self._free.append(encoder)


def recipe_of(config: LogConfig) -> Recipe:
    """How batches for a log with these settings are made."""
    codec = codec_id(config.compression)
    return Recipe(
        codec,
        config.compression_level,
        config.timestamp_type == "append",
        config.max_record_bytes or 0,
        # Before compression, a batch may be larger than a segment; its final size is checked when it is placed.
        MAX_BATCH_BYTES if codec else min(MAX_BATCH_BYTES, config.segment_bytes),
        config.max_decompressed_bytes,
    )


class Lingering:
    """Calls `flush` when something has waited for about `linger_s` seconds, in the background.

    It looks twice in that time, instead of being told of each record, which would cost more than encoding one.
    """

    def __init__(self, linger_s: float, waits: Callable[[], bool], flush: Callable[[], object]) -> None:
        self._half_s = linger_s / 2
        self._waits = waits
        self._flush = flush
        #: When what was there at an earlier look has waited long enough.
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
                pass  # the batch is kept; the next append or flush meets the same error and raises it

    def end(self) -> None:
        """Do not look any more."""
        self._task.cancel()


#: An ended batch that is not finished: its buffer, where the records in it end, their number, the first and the largest
#: timestamp.
Taken = tuple[bytearray, int, int, int, int]


class Batcher:
    """One open batch, and the one before it until it is stored."""

    __slots__ = ("_builder", "_capacity", "_ended", "_keep", "_largest", "_recipe", "_spares", "add")

    #: `add(value, key=None, headers=(), timestamp=None)`: encode one record into the open batch, or refuse it.
    add: Callable[..., None]

    def __init__(
        self,
        recipe: Recipe,
        *,
        limit: int = 0,
        on_full: Callable[[], None] | None = None,
        max_bytes: int | None = None,
        capacity: int = 4096,
        keep: int = 0,
    ) -> None:
        """`limit` calls `on_full`; 0: never. `max_bytes` refuses records, if it is lower than the recipe's limit.
        `capacity` is the size of a new buffer, and `keep` how many are kept for the next batches."""
        most = recipe.max_batch_bytes if max_bytes is None else min(max_bytes, recipe.max_batch_bytes)
        self._recipe = recipe
        self._builder = kernel.BatchBuilder(
            refuse,
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
        #: A finished batch that is not known to be stored, and its buffer.
        self._ended: tuple[Encoded, bytearray] | None = None
        self.add = self._builder.add

    @property
    def builder(self) -> kernel.BatchBuilder:
        """What `add` encodes into: for a dispatcher in front of several."""
        return self._builder

    @property
    def count(self) -> int:
        """The number of records in the open batch."""
        return int(self._builder.count)

    @property
    def size_bytes(self) -> int:
        """The size of the open batch, before compression."""
        return int(self._builder.position)

    @property
    def is_empty(self) -> bool:
        """Whether every record is stored, as far as is known."""
        return not self._builder.count and self._builder.taken is None and self._ended is None

    # --- one after the other

    def ended(self, *, close: bool = False) -> Encoded | None:
        """The batch to store next: the one that was not released, or else the open one, which ends here. With `close`,
        no record is accepted from then on."""
        if self._ended is not None:
            return self._ended[0]
        builder = self._builder
        if builder.taken is None and (builder.count or close):
            builder.take(self._spares.pop() if self._spares else bytearray(self._capacity), close)
        taken: Taken | None = builder.taken  # kept by the builder: an interrupt may come before the next line
        if taken is None:
            return None
        if not taken[2]:
            builder.taken = None
            return None
        made = seal(*taken, self._recipe)
        self._ended = made, taken[0]
        return made

    def release(self) -> None:
        """What `ended` returned is stored, or given up."""
        ended, builder = self._ended, self._builder
        if ended is not None:
            builder.taken = None
            self._ended = None
            self.give_back(ended[1])

    def close(self) -> None:
        """Accept no record from now on, and forget those that are not stored."""
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
        """A batch in this buffer is no longer needed."""
        if len(self._spares) < self._keep and len(buffer) <= self._largest:
            self._spares.append(buffer)
