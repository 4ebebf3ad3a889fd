"""`Outgoing`: what a task has for one partition, in memory and staged.

A partition that has enough gets files of its own, none larger than a segment: the commit makes segments of them without
copying a byte. What the others have goes to one file, and is copied.

Threads: one.
"""

from __future__ import annotations

from ..batch.build import Encoded, Encoder
from ..topics.protocols import StoredTopic, TaskStaging
from ..topics.transactions import staging
from ..topics.transactions.staging import OwnFile, Parcel
from .staged import StagedPart

#: Batches are moved to a file of their own when this many bytes have accumulated.
_OWN_BYTES = 16 << 20


class Outgoing:
    """See the module's docstring."""

    def __init__(self, topic: StoredTopic, number: int, encoder: Encoder) -> None:
        self.topic, self.number, self.encoder = topic, number, encoder
        self._parcel = Parcel()
        self._own: OwnFile | None = None
        self._segment_bytes = topic.config.segment_bytes

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
        return StagedPart(self.topic.name, self.topic.id, self.number, parcel.count, parcel.pieces, parcel.data)
