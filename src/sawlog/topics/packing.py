"""Collects single records into batches that are built here, for a topic that takes finished batches.

A topic's own writer compresses as the topic's settings say. A log stores finished batches unchanged, as Kafka does for
its producers. So who wants another compression, or writes to a topic behind a broker, builds the batches and hands them
over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .. import background
from ..batch import kernel
from ..batch.build import NOBODY, Encoded, Producer, Recipe, finish
from ..batch.refusals import refuse
from ..clock import Stopwatch
from ..config import KIB
from ..errors import InvalidRecord, SawlogError
from .partitioner import Sticky, partition_for

BATCH_BYTES = 128 * KIB
#: The size of a record without key and value, with some headers.
_ROOM_BYTES = 256


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
        self._hand_over_to, self._producer = place, producer
        self._batch_bytes = batch_bytes
        self._recipe = recipe
        self._sticky = Sticky(partitions, batch_bytes)
        self._builders: dict[int, kernel.BatchBuilder] = {}
        #: Finished batches that are not known to be stored. They do not change any more: one that is stored twice can
        #: be recognised.
        self._pending: dict[int, Encoded] = {}
        #: Since when a record waits.
        self._waiting: Stopwatch | None = None
        self._linger_s = None if linger_ms is None else linger_ms / 1000
        self._lock = threading.RLock()
        if self._linger_s is not None:
            background.every(self._linger_s, self._flush_in_time)

    def append(self, value: bytes | None, key: bytes | None = None, headers: Any = (), timestamp: Any = None) -> None:
        """Append one record; hand over a batch when it is full, and all batches after the linger time."""
        payload_bytes = len(value or b"") + len(key or b"")
        with self._lock:
            number = self._choose(key, payload_bytes)
            waiting = self._builders.get(number)
            if waiting is not None and waiting.position + payload_bytes + _ROOM_BYTES > self._batch_bytes:
                self._place(number)  # a batch has a largest size, and a record that fails has to fail alone
            builder = self._builders.get(number) or self._builders.setdefault(number, self._new_builder())
            builder.add(value, key, headers, timestamp)
            self._waiting = self._waiting or Stopwatch()
            if builder.position >= self._batch_bytes:
                self._place_alone(number)

    def _new_builder(self) -> kernel.BatchBuilder:
        recipe = self._recipe
        return kernel.BatchBuilder(refuse, max_record=recipe.max_record_bytes, max_total=recipe.max_batch_bytes)

    def _choose(self, key: bytes | None, size_bytes: int) -> int:
        if self._partition is not None:
            return self._partition
        return self._sticky.take(size_bytes) if key is None else partition_for(key, self._partitions)

    def _place(self, number: int) -> None:
        """Hand over a partition's batch. If that fails, it is kept for the next attempt."""
        if number in self._pending:
            self._hand_over(number)
        builder = self._builders.get(number)
        if builder is not None and builder.count:
            self._pending[number] = finish(builder, self._recipe, self._producer(number))
            del self._builders[number]  # its buffer belongs to the batch now
            self._hand_over(number)

    def _hand_over(self, number: int) -> None:
        self._hand_over_to(number, self._pending[number])
        del self._pending[number]

    def _place_alone(self, number: int) -> None:
        """Do the same, but drop a single record that is refused, and raise."""
        try:
            self._place(number)
        except InvalidRecord:
            if number in self._pending and self._pending[number].count == 1:
                del self._pending[number]
            raise

    def flush(self) -> None:
        """Hand over all batches."""
        with self._lock:
            for number in sorted({*self._pending, *self._builders}):
                self._place(number)
            self._waiting = None

    def _flush_in_time(self) -> None:
        """Flush in the background: no record waits longer than twice the linger time, even without further records."""
        waiting = self._waiting
        if self._linger_s is not None and waiting is not None and waiting.elapsed_s >= self._linger_s:
            try:
                self.flush()
            except (SawlogError, OSError):
                pass  # the batch is kept; the next flush meets the same error and raises it

    def __enter__(self) -> Packer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()
