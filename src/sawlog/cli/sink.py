"""Where `produce` writes records: the topic's own writer or, with `--compression`, batches built here.

A topic's writer compresses as the topic's settings say. A log stores finished batches unchanged, as Kafka does for its
producers; so for `--compression` the batches are built here and appended as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ..errors import InvalidRecord
from ..log.write.batcher import Batcher
from ..log.write.encoders import recipe_of
from ..log.write.lingering import Lingering
from ..log.write.writer import BATCH_BYTES
from ..topics.partitioner import Sticky, partition_for
from ..topics.topic import Topic

#: How long a record waits for a batch to fill before it is stored.
LINGER_MS = 50
#: The size of a record without key and value, with some headers.
_ROOM_BYTES = 256


class Sink(Protocol):
    """Takes records one by one."""

    def append(self, value: bytes | None, key: bytes | None = None, headers: Any = (), timestamp: Any = None) -> None:
        """Append one record."""


@contextmanager
def open_sink(topic: Topic, partition: int | None, compression: str | None) -> Iterator[Sink]:
    """Open a sink; leaving the block stores all appended records, also after an error."""
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
    """Builds batches with a given compression and appends them. A record that cannot be stored is refused at once and
    does not affect the others."""

    def __init__(self, topic: Topic, partition: int | None, compression: str) -> None:
        self._topic, self._partition = topic, partition
        config = topic.partition(partition or 0).config
        self._batch_bytes = min(BATCH_BYTES, config.segment_bytes)
        self._recipe = recipe_of(config.with_(compression=compression, compression_level=None))
        self._sticky = Sticky(topic.partitions, BATCH_BYTES)
        self._batchers: dict[int, Batcher] = {}
        self._lock = threading.RLock()
        self._lingering = Lingering(LINGER_MS / 1000, self._waits, self.flush)

    def append(self, value: bytes | None, key: bytes | None = None, headers: Any = (), timestamp: Any = None) -> None:
        """Append one record; write a batch when it is full, and all batches after the linger time."""
        payload_bytes = len(value or b"") + len(key or b"")
        with self._lock:
            number = self._choose(key, payload_bytes)
            batcher = self._batchers.get(number)
            if batcher is None:
                batcher = self._batchers[number] = Batcher(self._recipe, keep=1)
            if batcher.count and batcher.size_bytes + payload_bytes + _ROOM_BYTES > self._batch_bytes:
                self._place(number)  # a batch has to fit into a segment, and a record that fails has to fail alone
            batcher.add(value, key, headers, timestamp)
            if batcher.size_bytes >= self._batch_bytes:
                self._place_alone(number)

    def _choose(self, key: bytes | None, size_bytes: int) -> int:
        if self._partition is not None:
            return self._partition
        return self._sticky.take(size_bytes) if key is None else partition_for(key, self._topic.partitions)

    def _place(self, number: int) -> None:
        """Write what there is for a partition. If that fails, it is kept for the next attempt."""
        batcher = self._batchers[number]
        while (batch := batcher.ended()) is not None:
            self._topic.partition(number).append_batches(batch.data)
            batcher.release()

    def _place_alone(self, number: int) -> None:
        """Do the same, but drop a single record that the log refuses, and raise."""
        try:
            self._place(number)
        except InvalidRecord:
            refused = self._batchers[number].ended()
            if refused is not None and refused.count == 1:
                self._batchers[number].release()
            raise

    def flush(self) -> None:
        """Write all batches."""
        with self._lock:
            for number in self._batchers:
                self._place(number)

    def _waits(self) -> bool:
        """Whether there is a record that is not stored."""
        return any(not batcher.is_empty for batcher in list(self._batchers.values()))
