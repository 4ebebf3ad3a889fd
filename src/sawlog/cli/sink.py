"""Where `produce` writes records: the topic's own writer or, with `--compression`, batches built here.

A topic's writer compresses as the topic's settings say. A log stores finished batches unchanged, as Kafka does for its
producers; so for `--compression` the batches are built here and appended as they are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ..batch import kernel
from ..batch.build import finish
from ..batch.refusals import refuse
from ..errors import InvalidRecord, SawlogError
from ..log.write import background
from ..log.write.encoders import recipe_of
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
        with topic.partition_writer(partition, linger_ms=LINGER_MS) as one:
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
        self._builders: dict[int, kernel.BatchBuilder] = {}
        self._since = 0.0
        self._lock = threading.RLock()
        background.every(LINGER_MS / 1000, self._flush_in_time)

    def append(self, value: bytes | None, key: bytes | None = None, headers: Any = (), timestamp: Any = None) -> None:
        """Append one record; write a batch when it is full, and all batches after the linger time."""
        payload_bytes = len(value or b"") + len(key or b"")
        with self._lock:
            number = self._choose(key, payload_bytes)
            waiting = self._builders.get(number)
            if waiting is not None and waiting.position + payload_bytes + _ROOM_BYTES > self._batch_bytes:
                self._place(number)  # a batch has to fit into a segment, and a record that fails has to fail alone
            builder = self._builders.get(number) or self._builders.setdefault(number, self._new_builder())
            builder.add(value, key, headers, timestamp)
            self._since = self._since or time.monotonic()
            if builder.position >= self._batch_bytes:
                self._place_alone(number)

    def _new_builder(self) -> kernel.BatchBuilder:
        recipe = self._recipe
        return kernel.BatchBuilder(refuse, max_record=recipe.max_record_bytes, max_total=recipe.max_batch_bytes)

    def _choose(self, key: bytes | None, size_bytes: int) -> int:
        if self._partition is not None:
            return self._partition
        return self._sticky.take(size_bytes) if key is None else partition_for(key, self._topic.partitions)

    def _place(self, number: int) -> None:
        """Write a partition's batch. If that fails, it is kept for the next attempt."""
        builder = self._builders.get(number)
        if builder is not None and builder.count:
            self._topic.append_batches(finish(builder, self._recipe).data, number)
            del self._builders[number]

    def _place_alone(self, number: int) -> None:
        """Do the same, but drop a single record that the log refuses, and raise."""
        try:
            self._place(number)
        except InvalidRecord:
            if self._builders[number].count == 1:
                del self._builders[number]
            raise

    def flush(self) -> None:
        """Write all batches."""
        with self._lock:
            for number in list(self._builders):
                self._place(number)
            self._since = 0.0

    def _flush_in_time(self) -> None:
        """Flush in the background: no record waits longer than twice the linger time, even without further records."""
        if self._since and time.monotonic() - self._since >= LINGER_MS / 1000:
            try:
                self.flush()
            except (SawlogError, OSError):
                pass  # the batch is kept; the next flush meets the same error and raises it
