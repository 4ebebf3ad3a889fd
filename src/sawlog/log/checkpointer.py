"""What the log was and is: where it starts, its leader epochs, and what of it no longer counts. All of it is written to
the checkpoint before it happens, or with it.

Threads: the caller holds the log's lock.

Records how far a log is durable, where it starts, and its leader epochs.

The epochs take effect when the checkpoint names them (see files/epochs.py): the list is written first, then the
checkpoint with its checksum. If that fails, the checkpoint names the previous list, or the log has failed.

Threads: one `save` at a time; the background saves concurrently with the writer.
"""

from __future__ import annotations

import threading

from ..errors import StorageError, StorageFull
from ..storage import Directory
from ..storage.forking import forkable
from . import checkpoint
from .checkpoint import Checkpoint
from .commit import Marks, Tail
from .epochs import Epochs, store_epochs
from .remote import RemotePart, store_remote
from .segments import SegmentSet


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


class Checkpointer:
    """The writer's side of `checkpoint` and `leader-epoch-checkpoint`."""

    def __init__(self, directory: Directory, segments: SegmentSet, marks: Marks) -> None:
        self._directory = directory
        self._segments = segments
        self._marks = marks
        #: The epochs that the checkpoint names.
        self.noted = segments.epochs
        #: Whether the checkpoint records that the file `remote` must exist.
        self._has_remote = segments.remote is not None
        #: Why the last watermark could not be written, if so. It only makes recovery less precise.
        self.error: StorageError | None = None
        self._saved = (-1, -1)
        self._ended = False
        self.lock = forkable(threading.Lock())

    def save(self, *, clean: bool, cutting: bool = False) -> None:
        """Replace the checkpoint by what is durable now."""
        with self.lock:
            if self._ended:
                return  # the background came late: the log is closed and marked so
            epochs = self.noted  # before the watermark, which is lowered before they change: see `Appender.retreat`
            offset, segment, position = self._marks.durable
            start = self._segments.lowest_offset
            # Also if what decides one is in the segment itself: it may not be durable, or is being cut off.
            state = self._segments.outlook.state
            undecided = cutting or state.first_open < segment or state.reached >= segment
            sizes = [each.size for each in self._segments.all if each.base_offset < segment]
            sealed = len(sizes), sum(sizes)
            made = Checkpoint(
                clean,
                offset,
                segment,
                position,
                start,
                epochs.current,
                epochs.crc,
                undecided,
                sealed,
                self._has_remote,
            )
            checkpoint.store(self._directory, made)
            self._saved = (offset, start)
            self._ended = clean

    def note_remote(self, part: RemotePart | None) -> None:
        """Record durably what of the log is only in its replica. The next checkpoint records that the file exists; the
        one before its removal, that it need not."""
        if part is None and self._has_remote:
            self._has_remote = False
            try:
                self.save(clean=False)
            except StorageFull:
                pass  # trimming makes room; after a crash in between, the replica is asked
            except BaseException:
                self._has_remote = True
                raise
        store_remote(self._directory, part)
        self._has_remote = part is not None

    def note_error(self, error: StorageError) -> None:
        """What was to be saved with the checkpoint could not be written."""
        self.error = error

    def end(self) -> None:
        """Write nothing from now on."""
        self._ended = True

    def save_if_moved(self) -> None:
        """Write the watermark, unless it is already written. If that fails, recovery is only less precise."""
        if self._saved != (self._marks.durable[0], self._segments.lowest_offset):
            try:
                with self._marks.commit.ending_on_failed_sync():
                    self.save(clean=False)
            except StorageError as error:
                self.error = error

    def note(self, epochs: Epochs, *, cutting: bool = False) -> None:
        """Record these epochs durably; `cutting`, before the log is cut. If it raises, the previous ones are in effect,
        or the log has failed."""
        before = self.noted
        try:
            store_epochs(self._directory, epochs)
            self.noted = epochs
            self.save(clean=False, cutting=cutting)
        except BaseException as error:
            self.noted = before
            self._note_again(error)
            raise

    def _note_again(self, error: BaseException) -> None:
        """Other epochs could not be recorded: let the checkpoint name the previous ones again."""
        try:
            found = checkpoint.load(self._directory)
            if found is None or found.epochs_crc != self.noted.crc:
                self.save(clean=False)
        except BaseException:
            self._marks.commit.fail(error)
            return
        try:
            store_epochs(self._directory, self.noted)
        except StorageError as again:
            self.error = again  # the list on disk is not the one that is named: it is rebuilt when it is needed
