"""The visible end: the first offset that nobody may read yet.

A record is visible when it stays: under `"always"` when it is durable, under the other policies when it is written,
since that is what the user asked for; and not before the whole append that it belongs to is placed, because until then
it may be taken back. Everybody reads up to there: in the writer's process, which keeps it in
`SegmentSet.visible_offset`, and in others, which learn it, with the leader epoch, from a small file (`visible`, see
`sawlog.storage.published`):

    the file says                            a reader in another process sees
    an offset, since the machine started     everything below it, also after the writer was killed
    nothing, or it is missing or damaged     every whole batch: after a restart of the machine nothing that is there can
                                             be lost any more; and logs of version 0.2 have no such file

The writer publishes; readers never write. What it publishes only goes back before a truncation.

Threads: `show` is called by one at a time; the caller sees to that (see `Appender`).
"""

from __future__ import annotations

from ...storage import Directory, Published, open_published
from ..files.names import VISIBLE
from ..segment.segments import SegmentSet


class VisibleEnd:
    """The writer's side: what it shows, everybody may read."""

    def __init__(self, directory: Directory, segments: SegmentSet) -> None:
        self._segments = segments
        self._published: Published | None = open_published(directory, VISIBLE, create=True)
        self._store = _nowhere if self._published is None else self._published.store
        #: What readers in other processes were told before this writer came; None: they see every whole batch.
        self.before = None if self._published is None else self._published.load()

    @property
    def offset(self) -> int:
        """What is shown now."""
        return self._segments.visible_offset

    def show(self, offset: int, epoch: int) -> None:
        """Let everybody read up to `offset`, and know the epoch."""
        segments = self._segments
        segments.visible_offset = offset
        self._store(offset, epoch)
        if segments.waiting:
            segments.wake()

    def close(self) -> None:
        """Give up the handle; what is published stays."""
        self._store = _nowhere
        if self._published is not None:
            self._published.close()


def _nowhere(first: int, second: int) -> None:
    """Where nothing can be published, readers in other processes believe every whole batch."""
