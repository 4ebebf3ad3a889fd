"""Which partition a record goes to: exactly as Kafka's Java client decides.

With a key: murmur2 of the key's bytes (in the kernel), so that all records of a key are in one partition whoever wrote
them. An empty key is a key. Without one: *sticky*. Records stay together on one partition until it has received a
batch's worth of bytes, then another one is chosen. Distributing them one by one would make batches of one record.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..batch import kernel
from ..batch.refusals import refuse
from ..errors import InvalidRecordType
from ..storage.forking import forkable

if TYPE_CHECKING:
    import pyarrow as pa

#: This many bytes go to one partition before another is chosen: Kafka's batch.size.
STICKY_BYTES = 16 << 10
#: What a record costs in addition to its value.
_RECORD_BYTES = 10


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of a key."""
    try:
        found: int = kernel.partition_of(key, partitions)
    except TypeError as error:
        raise refuse("type", "key", key) from error
    return found


def partitions_for(keys: pa.Array | pa.ChunkedArray, partitions: int, without_key: int) -> npt.NDArray[np.int32]:
    """The partition of every key of an Arrow column; `without_key` for those that are null."""
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
        """The partition for that many bytes."""
        if self.partitions == 1:
            return 0
        with self._lock:
            if self._used_bytes >= self._sticky_bytes:
                self._draw()
            self._used_bytes += size_bytes + _RECORD_BYTES
            return self._current

    def _draw(self) -> None:
        """A different partition from the previous one, each with the same probability."""
        drawn = random.randrange(self.partitions - 1)
        self._current = drawn + (drawn >= self._current)
        self._used_bytes = 0
