"""Where `produce` puts records: the topic's own writer, or, with a compression of the caller's choice, batches built
here.

A topic packs what is written through it as its settings say. Kafka's producers choose for themselves, and a log keeps
finished batches as they come; so for `--compression` the batches are finished here and placed as they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ..batch.build import encode
from ..log.writer import BATCH_BYTES
from ..topics.partitioner import Sticky, partition_for
from ..topics.topic import Topic

#: How long a record waits for company before it is stored.
LINGER_MS = 50


class Sink(Protocol):
    """Takes records one by one."""

    def append(self, value: bytes | None, key: bytes | None = None, headers: Any = (), timestamp: Any = None) -> None:
        """Take one record."""


@contextmanager
def open_sink(topic: Topic, partition: int | None, compression: str | None) -> Iterator[Sink]:
    """Leaving stores everything that was taken, also after an error."""
    if compression is not None:
        packed = _Packed(topic, partition, compression)
        try:
            yield packed
        finally:
            packed.flush()
    elif partition is not None:
        with topic.partition(partition).writer(linger_ms=LINGER_MS) as one:
            yield one
    else:
        with topic.writer(linger_ms=LINGER_MS) as many:
            yield many


class _Packed:
    """Builds batches with a given compression and places them."""

    def __init__(self, topic: Topic, partition: int | None, compression: str) -> None:
        self._topic, self._partition, self._compression = topic, partition, compression
        self._sticky = Sticky(topic.partitions, BATCH_BYTES)
        self._waiting: dict[int, list[tuple[Any, ...]]] = {}
        self._sizes: dict[int, int] = {}
        self._since = 0.0

    def append(self, value: bytes | None, key: bytes | None = None, headers: Any = (), timestamp: Any = None) -> None:
        """Take one record; place a batch that is full, and all of them when they have waited."""
        size = len(value or b"") + len(key or b"")
        number = self._choose(key, size)
        stamp = time.time_ns() // 1_000_000 if timestamp is None else timestamp
        self._waiting.setdefault(number, []).append((value, key, headers, stamp))
        self._sizes[number] = self._sizes.get(number, 0) + size
        now = time.monotonic()
        self._since = self._since or now
        if self._sizes[number] >= BATCH_BYTES:
            self._place(number)
        elif now - self._since > LINGER_MS / 1000:
            self.flush()

    def _choose(self, key: bytes | None, size_bytes: int) -> int:
        if self._partition is not None:
            return self._partition
        return self._sticky.take(size_bytes) if key is None else partition_for(key, self._topic.partitions)

    def _place(self, number: int) -> None:
        batch = encode(self._waiting.pop(number), compression=self._compression)
        del self._sizes[number]
        self._topic.partition(number).append_batches(batch)

    def flush(self) -> None:
        """Place all."""
        for number in list(self._waiting):
            self._place(number)
        self._since = 0.0
