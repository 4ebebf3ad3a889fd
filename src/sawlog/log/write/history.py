"""What the log was and is: where it starts, its leader epochs, and what of it no longer counts. All of it is written to
the checkpoint before it happens, or with it.

Threads: the caller holds the log's lock.
"""

from __future__ import annotations

from ..files.epochs import Epochs
from ..files.remote import RemotePart
from ..segment.segments import SegmentSet
from .checkpointer import Checkpointer
from .marks import Marks, Tail


class History:
    """The writer's side of the start and the epochs of a log."""

    def __init__(self, segments: SegmentSet, marks: Marks, checkpoints: Checkpointer) -> None:
        self._segments = segments
        self._marks = marks
        self._checkpoints = checkpoints

    def leave(self, remote: RemotePart | None) -> None:
        """Record what of the log is only in its replica, or that nothing is. Before anything is removed here, and
        before the start is moved. The caller holds the lock."""
        if remote != self._segments.remote:
            self._checkpoints.note_remote(remote)
            self._segments.leave(remote)

    def move_start(self, offset: int) -> None:
        """Record where the log starts here now; or leave it where it started. The caller holds the lock."""
        before = self._segments.lowest_offset
        self._segments.start_at(offset)
        try:
            self._checkpoints.save(clean=False)
        except BaseException:
            self._segments.start_at(before)
            raise
        self._segments.outlook.state.trim(offset)

    def retreat(self, offset: int, tail: Tail, epochs: Epochs) -> None:
        """Before the log is cut at `offset`: record that no batch after `tail` counts as durable (if a batch is cut
        through, it is one of these), and the leader epochs from now on; then hide everything from `offset` on. If this
        raises, nothing has changed, except that the watermark on disk may be lower; or the log has failed. The caller
        is `exclusive`."""
        before = self._marks.lower(tail)
        try:
            if epochs != self._checkpoints.noted:
                self._checkpoints.note(epochs, cutting=True)
            elif tail < before:
                self._checkpoints.save(clean=False, cutting=True)
        except BaseException:
            self._marks.restore(before)
            raise
        try:
            self._marks.cut((offset, *tail[1:]), epochs.current)
            self._segments.begin_epoch(epochs)  # after that: a position beyond the cut is of an earlier epoch
        except BaseException as error:
            self._marks.commit.fail(error)  # it cannot be undone: the next open finishes the cut
            raise

    def begin_epoch(self, epochs: Epochs) -> None:
        """From now on batches belong to the last of these epochs, which is first recorded durably. The caller holds the
        lock, or nobody else can have it."""
        self._checkpoints.note(epochs)
        self._segments.begin_epoch(epochs)
        self._marks.begin_epoch(epochs.current)

    def take_over(self, *, clean: bool, in_order: bool, stored: bool) -> None:
        """Continue after the previous writer. If the log was not closed cleanly, records that it has lost may have been
        read: begin a new epoch at its end. Not if the current one began there, and nothing more of it was visible since
        the machine was started. `in_order`: the epochs of the batches increase; `stored`: the list on disk is up to
        date."""
        epochs, end = self._segments.epochs.trimmed(self._segments.log_start), self._segments.next_offset
        before = self._marks.visible.before
        unseen = epochs.entries[-1][1] == end and before == (end, epochs.current)
        # If the files with the epochs are lost, readers may still know an epoch of which no batch is left.
        last = epochs.current if before is None else max(epochs.current, before[1])
        if not in_order:
            self.begin_epoch(Epochs(((last + 1, end),)))
        elif not clean and not unseen:
            self.begin_epoch(epochs.begun(last + 1, end))
        elif not stored:
            self.begin_epoch(self._segments.epochs)
        else:
            self._checkpoints.save(clean=False)
        if before is None:  # readers already see every complete batch, but not what is placed from now on
            self._marks.show(self._marks.written[0])
