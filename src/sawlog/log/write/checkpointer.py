"""Records how far a log is durable, where it starts, and its leader epochs.

The epochs take effect when the checkpoint names them (see files/epochs.py): the list is written first, then the
checkpoint with its checksum. If that fails, the checkpoint names the previous list, or the log has failed.

Threads: one `save` at a time; the background saves concurrently with the writer.
"""

from __future__ import annotations

import threading

from ...errors import StorageError, StorageFull
from ...storage import Directory
from ...storage.forking import forkable
from ..files import checkpoint
from ..files.checkpoint import Checkpoint
from ..files.epochs import Epochs, store_epochs
from ..files.remote import RemotePart, store_remote
from ..segment.segments import SegmentSet
from .marks import Marks


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
