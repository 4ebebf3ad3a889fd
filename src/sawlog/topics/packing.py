"""Collects single records into batches that are built here, for a topic that takes finished batches.

A topic's own writer compresses as the topic's settings say. A log stores finished batches unchanged, as Kafka does for
its producers. So who wants another compression, or writes to a topic behind a broker, builds the batches and hands them
over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from struct import Struct
from types import TracebackType
from typing import Any, Final

from ..batch import kernel
from ..batch.build import NOBODY, Encoded, Producer, Recipe
from ..batch.checksum import crc32c
from ..errors import InvalidRecord
from ..log.write.batcher import Batcher
from ..log.write.lingering import Lingering
from ..log.write.writer import BATCH_BYTES
from .partitioner import Sticky, partition_for

#: The size of a record without key and value, with some headers.
_ROOM_BYTES = 256
#: Where a batch has the id, the epoch and the sequence number of its producer; what its checksum covers.
_PRODUCER_AT: Final = 43
_PRODUCER: Final = Struct(">qhi")
_CHECKED_FROM: Final = 21


class Packer:
    """Builds batches and hands them over. A record that cannot be stored is refused at once and does not affect the
    others. Use it as a context manager: leaving the block stores everything, also after an error. Thread-safe."""

    def __init__(
        self,
        partitions: int,
        place: Callable[[int, Encoded], object],
        recipe: Recipe,
        *,
        partition: int | None = None,
        producer: Callable[[int], Producer] = lambda number: NOBODY,
        batch_bytes: int = BATCH_BYTES,
        linger_ms: float | None = None,
    ) -> None:
        """`place` stores a batch in a partition. `producer` says who the next batch for a partition comes from; the
        batch may be placed again until that succeeds. With `partition` everything goes to that one."""
        self._partitions, self._partition = partitions, partition
        self._hand_over, self._producer = place, producer
        self._batch_bytes = batch_bytes
        self._recipe = recipe
        self._sticky = Sticky(partitions, batch_bytes)
        self._batchers: dict[int, Batcher] = {}
        self._lock = threading.RLock()
        self._lingering = None if linger_ms is None else Lingering(linger_ms / 1000, self._waits, self.flush)

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
        """Hand over what there is for a partition. If that fails, it is kept for the next attempt, as it is."""
        batcher = self._batchers[number]
        while (batch := batcher.ended()) is not None:
            self._hand_over(number, _numbered(batch, self._producer(number)))
            batcher.release()

    def _place_alone(self, number: int) -> None:
        """Do the same, but drop a single record that is refused, and raise."""
        try:
            self._place(number)
        except InvalidRecord:
            refused = self._batchers[number].ended()
            if refused is not None and refused.count == 1:
                self._batchers[number].release()
            raise

    def flush(self) -> None:
        """Hand over all batches."""
        with self._lock:
            for number in sorted(self._batchers):
                self._place(number)

    def _waits(self) -> bool:
        """Whether there is a record that is not stored."""
        return any(not batcher.is_empty for batcher in list(self._batchers.values()))

    def __enter__(self) -> Packer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lingering is not None:
            self._lingering.end()
        self.flush()


def _numbered(batch: Encoded, producer: Producer) -> Encoded:
    """The same batch from that producer."""
    if producer.id >= 0:
        _PRODUCER.pack_into(batch.data, _PRODUCER_AT, producer.id, producer.epoch, producer.sequence)
        kernel.patch_crc(batch.data, 0, crc32c(batch.data[_CHECKED_FROM:]))
    return batch
