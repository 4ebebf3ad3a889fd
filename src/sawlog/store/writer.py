"""Buffered writers over all partitions of a topic: `TopicWriter` and `Packer` collect single records into batches.

`TopicWriter` has one `sawlog.Writer` per partition with the partitioner in front of them: `append` *is* the method of
the compiled dispatcher. It keeps the promises of a writer: a record is placed when its batch is full, when it is
`linger_ms` old, on `flush` and on `close`; until then it is lost if the process dies. Invalid records are refused
immediately. Records without a key stay on one partition for a batch, then move to another.

`Packer` builds the batches itself, to compress them differently or to write to a topic behind a broker: a log stores
complete batches unchanged, as Kafka does for its producers.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from ..batch import kernel
from ..batch.build import Encoded, EncoderOptions
from ..batch.inputs import HeadersInput
from ..closing import Closing
from ..errors import InvalidRecord
from ..log.writer import BATCH_BYTES, Batcher, LingerTimer, Writer
from ..storage.forking import forkable
from .partitioner import Sticky, partition_for

#: The size of a record without key and value, with some headers.
_ROOM_BYTES = 256


class Packer:
    """Builds batches and passes them on. A record that cannot be stored is refused at once and does not affect the
    others. Use it as a context manager: leaving the block stores everything, also after an error. Thread-safe."""

    def __init__(
        self,
        partitions: int,
        place: Callable[[int, Encoded], object],
        recipe: EncoderOptions,
        *,
        partition: int | None = None,
        batch_bytes: int = BATCH_BYTES,
        linger_ms: float | None = None,
    ) -> None:
        """`place` stores a batch in a partition; after an error it gets the same batch again. With `partition`, all
        records go to that one."""
        self._partitions, self._partition = partitions, partition
        self._hand_over = place
        self._batch_bytes = batch_bytes
        self._recipe = recipe
        self._sticky = Sticky(partitions, batch_bytes)
        self._batchers: dict[int, Batcher] = {}
        self._lock = threading.RLock()
        self._lingering = None if linger_ms is None else LingerTimer(linger_ms / 1000, self._waits, self.flush)

    def append(self, value: bytes | None, key: bytes | None = None, headers: Any = (), timestamp: Any = None) -> None:
        """Append one record; hand over a batch when it is full, and all batches after the linger time."""
        payload_bytes = len(value or b"") + len(key or b"")
        with self._lock:
            number = self._choose(key, payload_bytes)
            batcher = self._batchers.get(number)
            if batcher is None:
                batcher = self._batchers[number] = Batcher(self._recipe, keep=1)
            if batcher.count and batcher.size_bytes + payload_bytes + _ROOM_BYTES > self._batch_bytes:
                self._place(number)  # a batch has a largest size, and a record that fails has to fail alone
            batcher.add(value, key, headers, timestamp)
            if batcher.size_bytes >= self._batch_bytes:
                self._place_alone(number)

    def _choose(self, key: bytes | None, size_bytes: int) -> int:
        if self._partition is not None:
            return self._partition
        return self._sticky.take(size_bytes) if key is None else partition_for(key, self._partitions)

    def _place(self, number: int) -> None:
        """Pass on the batches of a partition. If that fails, they are kept unchanged for the next attempt."""
        batcher = self._batchers[number]
        while (batch := batcher.ended()) is not None:
            self._hand_over(number, batch)
            batcher.release()

    def _place_alone(self, number: int) -> None:
        """Like `_place`, but drop a single record that is refused, and raise."""
        try:
            self._place(number)
        except InvalidRecord:
            refused = self._batchers[number].ended()
            if refused is not None and refused.count == 1:
                self._batchers[number].release()
            raise

    def flush(self) -> None:
        """Pass on all batches."""
        with self._lock:
            for number in sorted(self._batchers):
                self._place(number)

    def _waits(self) -> bool:
        """Return whether any record is not stored yet."""
        return any(not batcher.is_empty for batcher in list(self._batchers.values()))

    def __enter__(self) -> Packer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lingering is not None:
            self._lingering.end()
        self.flush()


class TopicWriter(Closing):
    """Collects records into batches, per partition. Thread-safe."""

    def __init__(
        self,
        writers: Sequence[Writer],
        batch_bytes: int,
        *,
        keyed: bool = False,
        on_close: Callable[[TopicWriter], None] = lambda writer: None,
    ) -> None:
        self._writers = tuple(writers)
        self._lock = forkable(threading.RLock())
        self._dispatcher = kernel.Dispatcher(
            [writer._builder for writer in writers], batch_bytes, lambda: random.randrange(len(writers)), keyed
        )
        # A call into the compiled kernel is atomic under the interpreter's lock; interpreted it is not.
        if kernel.COMPILED:
            self.__dict__["append"] = self._dispatcher.add  # instead of the method below, which is the same with a lock
        #: Called once, with the writer, when it is closed.
        self._on_close = on_close

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: int | None = None,
    ) -> None:
        """Add one record. Its offset is known once it is placed. The timestamp is in milliseconds since 1970."""
        with self._lock:
            self._dispatcher.add(value, key, headers, timestamp)

    def flush(self) -> dict[int, range]:
        """Place everything so far, apply the logs' durability policy, and return the last batch of each partition."""
        with self._lock:
            flushed = {number: writer.flush() for number, writer in enumerate(self._writers)}
        return {number: placed for number, placed in flushed.items() if placed}

    def close(self) -> None:
        """Flush and stop."""
        with self._lock, ExitStack() as last:  # close every writer, even if one of them raises
            last.callback(self._on_close, self)
            for writer in self._writers:
                last.callback(writer.close)
