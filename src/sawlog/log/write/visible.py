"""The visible end: the first offset that may not be read yet.

A record is visible when it can no longer be lost as the policy defines it: under `"always"` when it is durable, under
the other policies when it is written; and not before the whole append that it belongs to is placed, because until then
it may be rolled back. All readers stop there: in the writer's process, which keeps it in `SegmentSet.visible_offset`,
and in others, which learn it, with the leader epoch, from a small file (`visible`, see `sawlog.storage.published`):

    the file contains                        a reader in another process sees
    an offset, since the machine started     everything below it, also after the writer was killed
    nothing, or it is missing or damaged     every complete batch: after a restart of the machine nothing can
                                             be lost any longer; logs of version 0.2 have no such file

The writer publishes; readers never write. What it publishes only decreases before a truncation.

Threads: `show` is called by one thread at a time; the caller ensures that (see `Appender`).
"""

from __future__ import annotations

from ...batch import kernel
from ...storage import Directory, Published, open_published
from ..files.names import VISIBLE
from ..segment.segments import SegmentSet


class VisibleEnd(kernel.VisibleFields):
    """The writer's side: everything below it may be read."""

    __slots__ = ("_published", "_segments", "_store", "before")
    #: Where it is published, if that is a mapped file.
    slots: kernel.Slots | None

    def __init__(self, directory: Directory, segments: SegmentSet) -> None:
        self._segments = segments
        self._published: Published | None = open_published(directory, VISIBLE, create=True)
        self._store = _nowhere if self._published is None else self._published.store
        self.slots = getattr(self._published, "slots", None)
        #: What was published before this writer came; None: readers see every complete batch.
        self.before = None if self._published is None else self._published.load()

    @property
    def offset(self) -> int:
        """What is currently published."""
        return self._segments.visible_offset

    def show(self, offset: int, epoch: int) -> None:
        """Let all readers read up to `offset`, and know the epoch."""
        segments = self._segments
        segments.visible_offset = offset
        self._store(offset, epoch)
        if segments.waiting:
            segments.wake()

    def close(self) -> None:
        """Close the handle; what is published is kept."""
        self._store, self.slots = _nowhere, None
        if self._published is not None:
            self._published.close()


def _nowhere(first: int, second: int) -> None:
    """Where nothing can be published, readers in other processes trust every complete batch."""
