"""`Outgoing`: what a task has for one partition, in memory and staged.

A partition that has enough gets files of its own, none larger than a segment: the commit makes segments of them without
copying a byte. What the others have goes to one file, and is copied.

Threads: one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..batch.build import Encoded, Encoder
from ..topics.base import TaskStaging, Topic
from ..topics.partitioner import partitions_for
from ..topics.transactions import staging
from ..topics.transactions.staging import OwnFile, Parcel
from .staged import StagedPart

if TYPE_CHECKING:
    import pyarrow as pa

#: A hash of a key or value is below this.
_HASHES = 2**31 - 1
_HASH_OF_NULL = 0x2545F491
#: Odd numbers, one for each column of a digest.
_FACTORS = {"key": np.uint64(0x9E3779B97F4A7C15), "value": np.uint64(0xD6E8FEB86659FD93)}
#: Batches are moved to a file of their own when this many bytes have accumulated.
_OWN_BYTES = 16 << 20


class Outgoing:
    """See the module's docstring."""

    def __init__(self, topic: Topic, number: int, encoder: Encoder) -> None:
        self.topic, self.number, self.encoder = topic, number, encoder
        self._parcel = Parcel()
        self._digest = 0
        self._own: OwnFile | None = None
        self._segment_bytes = topic.config.segment_bytes

    def count_in(self, rows: pa.RecordBatch) -> None:
        """Include rows in the digest of this partition."""
        self._digest = (self._digest + digest_of(rows)) % staging.DIGESTS

    def add(self, batch: Encoded) -> int:
        """Add a finished batch; returns its size in bytes."""
        self._parcel.add(batch)
        return len(batch.data)

    @property
    def held_bytes(self) -> int:
        """How much is in memory."""
        return self._parcel.size_bytes

    @property
    def has_own_file(self) -> bool:
        """Whether something was moved to a file of its own: then all that follows is."""
        return self._own is not None

    @property
    def is_large(self) -> bool:
        """Whether what is in memory is enough for a segment."""
        return staging.ADOPT_BYTES <= self.held_bytes <= self._segment_bytes

    @property
    def is_full(self) -> bool:
        """Whether it should be moved: with a few batches more, it would not fit into a segment, or into memory."""
        return self.is_large and self.held_bytes >= min(_OWN_BYTES, self._segment_bytes // 2)

    def move(self, staged: TaskStaging) -> int:
        """Move what is in memory to a file; returns how much it was."""
        moved = self._parcel.size_bytes
        if not self.has_own_file and not self.is_large:
            self._parcel.move(staged.write)
        elif moved:
            if self._own is None or self._own.size_bytes + moved > self._segment_bytes:
                self._own = staged.own_file()
            self._parcel.move_alone(self._own)
        return moved

    def part(self) -> StagedPart:
        """For the driver: what is staged, and what is not."""
        parcel = self._parcel
        return StagedPart(
            self.topic.name, self.topic.id, self.number, parcel.count, parcel.pieces, parcel.data, self._digest
        )


def digest_of(rows: pa.RecordBatch) -> int:
    """Sum of the hashes of the keys and values of all rows, modulo 2**64. The same rows have the same digest in any
    order and in any partition. Timestamps and headers are not part of it."""
    total = np.zeros(rows.num_rows, np.uint64)
    for name, factor in _FACTORS.items():
        if name in rows.schema.names:
            # As if there were that many partitions: the compiled hash of a column.
            hashed = partitions_for(rows.column(rows.schema.names.index(name)), _HASHES, _HASH_OF_NULL)
            total = (total ^ hashed.astype(np.uint64)) * factor
            total ^= total >> np.uint64(29)
    return int(total.sum(dtype=np.uint64))
