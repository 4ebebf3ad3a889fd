"""Explicit buffering over all partitions of a topic: collects single records into batches.

One `sawlog.Writer` per partition, and the partitioner in front of them: `append` here *is* the compiled dispatcher's
method. The promises of a writer hold here too: a record is placed when its batch is full, when it is `linger_ms` old,
on `flush` and on `close`; until then it is lost if the process dies. Bad records are refused immediately. Records
without a key stay on one partition for a batch, then go to another.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ..batch import kernel
from ..batch.given import GivenHeaders
from ..closing import Closing
from ..log.write.writer import Writer
from ..storage.forking import forkable


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
            [writer.builder for writer in writers], batch_bytes, lambda: random.randrange(len(writers)), keyed
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
        headers: GivenHeaders = (),
        timestamp: int | None = None,
    ) -> None:
        """Add one record; its offset is known when it is placed. The timestamp is in milliseconds since 1970."""
        with self._lock:
            self._dispatcher.add(value, key, headers, timestamp)

    def flush(self) -> dict[int, range]:
        """Place everything so far, do what the logs' policy requires, and return the last batch of each partition."""
        with self._lock:
            flushed = {number: writer.flush() for number, writer in enumerate(self._writers)}
        return {number: placed for number, placed in flushed.items() if placed}

    def close(self) -> None:
        """Flush and stop."""
        with self._lock, ExitStack() as last:  # each is closed, whatever the others raise
            last.callback(self._on_close, self)
            for writer in self._writers:
                last.callback(writer.close)
