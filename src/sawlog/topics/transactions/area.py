"""`StagingArea`: the directory `staging/`, what is collected in it, and who may remove that.

A stage belongs to the process that holds the lock of its owner's file (see stage.py). What the tasks of a job have
staged is lent to the job: nobody holds it, and it is not removed before its lease ends. `sweep` removes the rest of
what dead processes have left, but never what an intent needs.

Threads and processes: any.
"""

from __future__ import annotations

import errno
import logging
import threading

from ...clock import Deadline, now_ms
from ...errors import CorruptFile, DirectoryLocked, SawlogError, StorageError
from ...storage import Directory, documents
from ...storage.forking import forkable
from ..names import STAGING, TMP
from .intent import INTENT
from .notes import is_note
from .stage import LEASE, Stage, StagedFile, file_name, leaves_traces, lock_owner, remove_all, remove_label

#: How long what tasks have staged waits for the commit of their job by default.
_LEASE_S = 24 * 3600.0
#: How often a document is written again because another process has removed it.
_SWEPT_TIMES = 20

_logger = logging.getLogger("sawlog")


class StagingArea:
    """The staging area of one store."""

    def __init__(self, root: Directory) -> None:
        self._root = root
        self._opening = forkable(threading.RLock())
        self._directory: Directory | None = None

    def close(self) -> None:
        """Close the handle."""
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    @property
    def directory(self) -> Directory:
        """The directory, created when it is first needed."""
        if self._directory is None:
            with self._opening:
                if self._directory is None:
                    there = STAGING in self._root.children()  # durably: it is older than the store's own file
                    self._directory = self._root.child(STAGING, create=not there)
        return self._directory

    def exists(self) -> bool:
        """Whether the directory exists: a reader does not create it."""
        return self._directory is not None or STAGING in self._root.children()

    def store(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Replace a file. A sweeper may treat a half-written one as that of a dead process: then try again."""
        for last in (*(False,) * _SWEPT_TIMES, True):
            try:
                self.directory.replace(name, data, durable=durable)
                return
            except StorageError as error:
                if error.errno != errno.ENOENT or last:
                    raise

    # --- collecting

    def begin(self) -> Stage:
        """A place to collect batches, or a name for an intent that contains all of them: in any case one that nobody
        removes before it is ended."""
        return Stage(self.directory)

    def adopt(self, id_: str, *, timeout_s: float = 5.0) -> Stage:
        """The stage of an id under which other processes have staged. A process that opens the store and sweeps holds
        it briefly, and a commit whose driver died for longer: waits for them. `DirectoryLocked` if it takes too
        long."""
        deadline = Deadline(timeout_s)
        held = DirectoryLocked(f"{self.directory.path}/{id_}")
        while True:
            try:
                stage = Stage(self.directory, adopt=id_)
            except DirectoryLocked as error:
                held = error
            else:
                if stage.current:
                    return stage
                stage.leave()  # the previous holder has removed the file that we locked
            deadline.pause(or_raise=held)

    def discard(self, id_: str) -> None:
        """Remove what was staged under an id, unless it was committed and is not completed yet."""
        self.adopt(id_).end()

    # --- for the tasks of a job

    def file(self, id_: str, label: str) -> StagedFile:
        """A new staged file for a stage that another process began and holds; each label once."""
        return StagedFile(self.directory, file_name(id_, label))

    def lend(self, id_: str, label: str, seconds: float = _LEASE_S) -> None:
        """Protect what is staged under an id from removal for that long, although nobody holds it: tasks stage, and
        end, before their job commits. Each label once."""
        self._write_lease(file_name(id_, label, LEASE), seconds)

    def withdraw(self, id_: str, label: str) -> None:
        """Remove what was staged under a label: the attempt of a task has failed."""
        remove_label(self.directory, id_, label)

    def _write_lease(self, name: str, seconds: float) -> None:
        until_ms = now_ms() + int(seconds * 1000)
        # After a power cut there is no job that could commit.
        self.store(name, documents.encode({"until_ms": until_ms}), durable=False)

    # --- cleaning up

    def sweep(self) -> None:
        """Remove what was staged and never committed by dead processes, and what is left of intents that are
        completed."""
        if not self.exists():
            return
        for id_ in sorted({name.partition(".")[0] for name in self.directory.names() if not is_note(name)}):
            try:
                owner = lock_owner(self.directory, id_)
            except DirectoryLocked:
                continue  # in use
            try:
                # Checked under the lock: its owner may have committed and died since the names were listed.
                if not self.directory.exists(f"{id_}{INTENT}") and not self._is_lent(id_):
                    if leaves_traces(self.directory.names(), id_):
                        self.directory.sync()  # an intent that came back without its marks would be placed again
                    remove_all(self.directory, id_)
            finally:
                owner.release()

    def _is_lent(self, id_: str) -> bool:
        """Whether a job that has not committed yet may still do so."""
        for name in self.directory.names():
            if name.partition(".")[0] == id_ and name.endswith(f"{LEASE}{TMP}"):
                # A task is just writing it; or has died at that moment, and its end is unknown.
                self._write_lease(name.removesuffix(TMP), _LEASE_S)
                return True
            if name.partition(".")[0] == id_ and name.endswith(LEASE):
                try:
                    if int(documents.load(self.directory, name)["until_ms"]) > now_ms():
                        return True
                except CorruptFile as error:
                    # Its end is unknown; a power cut can leave such leases. So it starts again from now.
                    _logger.warning("a damaged lease starts again from now: %s", error)
                    self._write_lease(name, _LEASE_S)
                    return True
                except (SawlogError, KeyError, TypeError, ValueError):
                    pass  # just removed: it protects nothing
        return False
