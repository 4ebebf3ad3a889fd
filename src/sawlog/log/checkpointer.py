"""The writer's side of the checkpoint: the durable watermark, the start of the log and its leader epochs.

`Checkpointer` writes the files. Leader epochs take effect when the checkpoint names them (see epochs.py): the list is
written first, then the checkpoint with its checksum. If that fails, either the checkpoint still names the previous list
or the log has failed.

`LogLineage` moves the start of the log, begins epochs and prepares truncations. Each change is recorded in the
checkpoint before it takes effect, or together with it.

Threads: callers of `LogLineage` hold the log's lock. One `Checkpointer.save` runs at a time; a background thread saves
concurrently with the writer.
"""

from __future__ import annotations

import threading

from ..errors import StorageError, StorageFull
from ..storage import Directory
from ..storage.forking import forkable
from . import checkpoint
from .checkpoint import Checkpoint
from .durability import Durability, Tail
from .epochs import Epochs, store_epochs
from .remote import RemoteSegments, store_remote
from .segments import SegmentSet


class LogLineage:
    """Start and leader epochs of a log, as its writer changes them."""

    def __init__(self, segments: SegmentSet, durability: Durability, checkpoints: Checkpointer) -> None:
        self._segments = segments
        self._durability = durability
        self._checkpoints = checkpoints

    def set_remote(self, remote: RemoteSegments | None) -> None:
        """Record the part of the log that exists only in its replica; None for no such part. Call before local segments
        are removed and before the start moves. The caller holds the lock."""
        if remote != self._segments.remote:
            self._checkpoints.record_remote(remote)
            self._segments.set_remote(remote)

    def move_start(self, offset: int) -> None:
        """Record the new local start of the log. If that fails, the old start stays. The caller holds the lock."""
        before = self._segments.lowest_offset
        self._segments.set_start(offset)
        try:
            self._checkpoints.save(clean=False)
        except BaseException:
            self._segments.set_start(before)
            raise
        self._segments.transaction_view.state.trim(offset)

    def record_truncation(self, offset: int, tail: Tail, epochs: Epochs) -> None:
        """Prepare a truncation to `offset`: record that no batch after `tail` is durable (a batch that is cut through
        is one of these), record the new leader epochs, then hide everything from `offset` on. If this raises, either
        nothing has changed, except that the watermark on disk may be lower, or the log has failed. The caller is
        `exclusive`."""
        before = self._durability.lower_durable(tail)
        try:
            if epochs != self._checkpoints.epochs:
                self._checkpoints.record_epochs(epochs, cutting=True)
            elif tail < before:
                self._checkpoints.save(clean=False, cutting=True)
        except BaseException:
            self._durability.restore_durable(before)
            raise
        try:
            self._durability.truncate((offset, *tail[1:]), epochs.current)
            self._segments.begin_epoch(epochs)  # afterwards: positions beyond the cut belong to an earlier epoch
        except BaseException as error:
            self._durability.fail(error)  # cannot be undone: the next open finishes the truncation
            raise

    def begin_epoch(self, epochs: Epochs) -> None:
        """Record these epochs durably, then give new batches the last of them. The caller holds the lock, or no other
        thread can take it."""
        self._checkpoints.record_epochs(epochs)
        self._segments.begin_epoch(epochs)
        self._durability.begin_epoch(epochs.current)

    def take_over(self, *, clean: bool, in_order: bool, stored: bool) -> None:
        """Continue after the previous writer. If the log was not closed cleanly, lost records may have been read: begin
        a new epoch at its end, unless the current one began there and nothing more was visible since the last boot.
        `in_order`: the epochs of the batches increase; `stored`: the list on disk is up to date."""
        epochs, end = self._segments.epochs.trimmed(self._segments.log_start), self._segments.next_offset
        before = self._durability.previous
        unseen = epochs.entries[-1][1] == end and before == (end, epochs.current)
        # If the files with the epochs are lost, readers may still know an epoch that has no batch left.
        last = epochs.current if before is None else max(epochs.current, before[1])
        if not in_order:
            self.begin_epoch(Epochs(((last + 1, end),)))
        elif not clean and not unseen:
            self.begin_epoch(epochs.begun(last + 1, end))
        elif not stored:
            self.begin_epoch(self._segments.epochs)
        else:
            self._checkpoints.save(clean=False)
        if before is None:  # readers already see every complete batch; keep new batches from them
            self._durability.publish(self._durability.written[0])


class Checkpointer:
    """Writer of the files `checkpoint` and `leader-epoch-checkpoint`."""

    def __init__(self, directory: Directory, segments: SegmentSet, durability: Durability) -> None:
        self._directory = directory
        self._segments = segments
        self._durability = durability
        #: Epochs that the checkpoint names.
        self.epochs = segments.epochs
        #: True if the checkpoint says that the file `remote` must exist.
        self._has_remote = segments.remote is not None
        #: Error of the last failed save. Only makes recovery less precise.
        self.error: StorageError | None = None
        self._saved = (-1, -1)
        self._ended = False
        #: True between the turns of this process.
        self._paused = False
        self.lock = forkable(threading.Lock())

    def save(self, *, clean: bool, cutting: bool = False) -> None:
        """Replace the checkpoint with the current durable watermark."""
        with self.lock:
            if self._ended or self._paused:
                return  # a late background save: the log is closed and marked so, or another process writes it
            epochs = self.epochs  # before the watermark, which is lowered before they change: see `LogLineage`
            offset, segment, position = self._durability.durable
            start = self._segments.lowest_offset
            # Also if its marker is in the segment itself: it may not be durable, or is being truncated.
            state = self._segments.transaction_view.state
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

    def record_remote(self, part: RemoteSegments | None) -> None:
        """Record durably the part of the log that exists only in its replica. The next checkpoint requires the file
        `remote`; before the file is removed, a checkpoint drops the requirement."""
        if part is None and self._has_remote:
            self._has_remote = False
            try:
                self.save(clean=False)
            except StorageFull:
                pass  # trimming makes room; after a crash in between, opening reads the replica
            except BaseException:
                self._has_remote = True
                raise
        store_remote(self._directory, part)
        self._has_remote = part is not None

    def note_error(self, error: StorageError) -> None:
        """Keep the error of a best-effort save."""
        self.error = error

    def end(self) -> None:
        """Stop saving."""
        self._ended = True

    def pause(self) -> None:
        """Stop saving until `resume`, after a save that another thread has begun."""
        with self.lock:
            self._paused = True

    def resume(self, epochs: Epochs) -> None:
        """Save again. The log has these epochs, and other processes may have written the files."""
        self._paused, self._saved = False, (-1, -1)
        self.epochs, self._has_remote = epochs, self._segments.remote is not None

    def save_if_moved(self) -> None:
        """Write the watermark if it has moved. Best effort: a failure only makes recovery less precise."""
        if self._saved != (self._durability.durable[0], self._segments.lowest_offset):
            try:
                with self._durability.failing_on_sync_error():
                    self.save(clean=False)
            except StorageError as error:
                self.error = error

    def record_epochs(self, epochs: Epochs, *, cutting: bool = False) -> None:
        """Record these epochs durably, with `cutting` before a truncation. If this raises, either the previous ones
        stay in effect or the log has failed."""
        before = self.epochs
        try:
            store_epochs(self._directory, epochs)
            self.epochs = epochs
            self.save(clean=False, cutting=cutting)
        except BaseException as error:
            self.epochs = before
            self._restore_epochs(error)
            raise

    def _restore_epochs(self, error: BaseException) -> None:
        """Let the checkpoint name the previous epochs again after a failure to record new ones."""
        try:
            found = checkpoint.load(self._directory)
            if found is None or found.epochs_crc != self.epochs.crc:
                self.save(clean=False)
        except BaseException:
            self._durability.fail(error)
            return
        try:
            store_epochs(self._directory, self.epochs)
        except StorageError as again:
            self.error = again  # the list on disk is not the named one and is rebuilt when needed
