"""`Router`: chooses the partition of a record exactly as Kafka's Java client does, and encodes batches per partition.

With a key: murmur2 of the key's bytes (in the kernel), so that all records of a key are in one partition, whichever
client wrote them. An empty key is a key. Without a key: *sticky*. Records go to one partition until it has received a
batch's worth of bytes, then another one is chosen. Distributing them one by one would make batches of one record.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ..batch import kernel
from ..batch.build import Encoder, EncoderOptions
from ..batch.inputs import record_error
from ..batch.kernel import Record
from ..config import LogConfig
from ..errors import InvalidRecord, InvalidRecordType
from ..log.writer import recipe_of
from ..storage.forking import forkable

if TYPE_CHECKING:
    import pyarrow as pa


#: This many bytes go to one partition before another is chosen: Kafka's batch.size.
STICKY_BYTES = 16 << 10
#: Overhead of a record on top of its value.
_RECORD_BYTES = 10


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition of a key."""
    try:
        found: int = kernel.partition_of(key, partitions)
    except TypeError as error:
        raise record_error("type", "key", key) from error
    return found


def partitions_for(keys: pa.Array | pa.ChunkedArray, partitions: int, without_key: int) -> npt.NDArray[np.int32]:
    """Return the partition of every key in an Arrow column; `without_key` for nulls."""
    import pyarrow as pa

    try:
        column = keys.cast(pa.large_binary())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InvalidRecordType(f"keys must be binary or string columns, not {keys.type}") from error
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    found = np.empty(len(column), np.int32)
    if len(column):
        valid, offsets, data = map(_bytes_of, column.buffers())
        first = column.offset
        kernel.partitions_of(offsets.cast("q")[first:], data, valid, first, partitions, without_key, memoryview(found))
    return found


def _bytes_of(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"") if buffer is None else memoryview(buffer).cast("B")


class Sticky:
    """Chooses partitions for records without a key. Thread-safe."""

    def __init__(self, partitions: int, sticky_bytes: int = STICKY_BYTES) -> None:
        self.partitions = partitions
        self._sticky_bytes = sticky_bytes
        self._lock = forkable(threading.Lock())
        self._current = random.randrange(partitions)
        self._used_bytes = 0

    def take(self, size_bytes: int) -> int:
        """Return the partition for this many bytes."""
        if self.partitions == 1:
            return 0
        with self._lock:
            if self._used_bytes >= self._sticky_bytes:
                self._draw()
            self._used_bytes += size_bytes + _RECORD_BYTES
            return self._current

    def _draw(self) -> None:
        """Choose a different partition, each with the same probability."""
        drawn = random.randrange(self.partitions - 1)
        self._current = drawn + (drawn >= self._current)
        self._used_bytes = 0


def key_of(record: Any) -> Any:
    """Return the key of a record in any form that `append_many` accepts."""
    if isinstance(record, Record):
        return record.key
    if isinstance(record, dict):
        return record.get("key")
    return record[1] if isinstance(record, tuple) and len(record) > 1 else None


class Routed(Protocol):
    """A topic, as its router sees it."""

    @property
    def name(self) -> str:
        """Name of the topic."""

    @property
    def partitions(self) -> int:
        """Current number of partitions."""

    @property
    def keyed(self) -> bool:
        """True if every record needs a key."""

    @property
    def config(self) -> LogConfig:
        """Encoding settings."""

    def check_number(self, number: object) -> None:
        """Raise `TopicNotFound` if there is no such partition."""


class Router:
    """Routes the records of a topic."""

    def __init__(self, topic: Routed, recipe: EncoderOptions | None = None) -> None:
        """Batches are encoded by `recipe`, or else by the topic's current settings."""
        self._topic = topic
        self._recipe = recipe
        self._sticky = Sticky(topic.partitions)

    @property
    def keyed(self) -> bool:
        """True if every record needs a key."""
        return self._topic.keyed

    @property
    def recipe(self) -> EncoderOptions:
        """Settings for encoding batches."""
        return self._recipe or recipe_of(self._topic.config)

    def together(self, size_bytes: int) -> int:
        """Return the partition for records without a key, which stay together until they fill a batch."""
        if self._sticky.partitions != self._topic.partitions:  # some were added
            self._sticky = Sticky(self._topic.partitions)
        return self._sticky.take(size_bytes)

    def place_for(self, value: bytes | None, key: bytes | None, partition: int | None = None) -> int:
        """Return the partition of a record."""
        if key is None:
            self.refuse_keyless()
        if partition is not None:
            self._topic.check_number(partition)
            return partition
        if key is not None:
            return partition_for(key, self._topic.partitions)
        return self.together(len(value) if isinstance(value, (bytes, bytearray, memoryview)) else 0)

    def refuse_keyless(self) -> None:
        """Raise if a record without a key cannot be accepted."""
        if self._topic.keyed:
            raise InvalidRecord(
                f"the topic {self._topic.name!r} keeps the last record of each key (cleanup.policy), so a record needs "
                "a key"
            )

    def split(self, records: list[Any], partition: int | None = None) -> dict[int, list[Any]]:
        """Group records by partition. Those without a key stay together."""
        if not records:
            raise InvalidRecord("no record to append")
        if self._topic.keyed and any(key_of(record) is None for record in records):
            self.refuse_keyless()
        if partition is not None or self._topic.partitions == 1:
            return {0 if partition is None else partition: records}
        partitions, together = self._topic.partitions, self.together(0)
        parts: defaultdict[int, list[Any]] = defaultdict(list)
        for record in records:
            key = record[1] if type(record) is tuple and len(record) > 1 else key_of(record)
            parts[together if key is None else partition_for(key, partitions)].append(record)
        return parts

    def split_table(self, table: pa.Table, partition: int | None = None) -> dict[int, pa.Table]:
        """Group the rows of an Arrow table by partition. Rows without a key stay together."""
        keys = table.column("key") if "key" in table.schema.names else None
        if keys is None or keys.null_count:
            self.refuse_keyless()
        if partition is not None:
            return {partition: table}
        if keys is None or self._topic.partitions == 1:
            return {self.together(table.nbytes): table}
        chosen = partitions_for(keys, self._topic.partitions, self.together(0))
        return {number: table.take(np.flatnonzero(chosen == number)) for number in np.unique(chosen).tolist()}

    def encoded(self, records: list[Any], partition: int | None = None) -> dict[int, bytearray]:
        """Encode one batch for each partition that the records go to."""
        parts = self.split(records, partition)
        return {number: bytearray(self.encode(each)) for number, each in sorted(parts.items())}

    def encode(self, records: list[Any]) -> bytes:
        """Encode records as one batch."""
        return bytes(Encoder(self.recipe).many(records).data)
