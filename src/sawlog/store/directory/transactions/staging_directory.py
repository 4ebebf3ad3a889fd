"""`StagingDirectory`: the directory `staging/`, and the right to remove files from it.

```
staging/
  <id>.owner             locked by the process that stages; if it is not locked, the files of <id> may be removed
  <id>.<label>.batches   complete batches, contiguous
  <id>.<label>.lease     staged for another process to commit: not removed before that time
  <id>.applied.<n>       progress of placing the intent: see pending
```

A `StagedTransaction` belongs to the process that holds the lock of its owner file. Files staged by the tasks of a job
have no holder: a lease protects them until the job commits. `sweep` removes the other files of dead processes, but
never one that an intent needs. `commits` explains the protocol.

Safe for threads and processes.
"""

from __future__ import annotations

import errno
import logging
import threading
import uuid
from collections.abc import Iterable

from ....clock import Deadline, now_ms
from ....errors import CorruptFile, DirectoryLocked, InvalidConfig, SawlogError, StorageError
from ....storage import Directory, Lock, Storage, checksummed
from ....storage.forking import forkable
from ....storage.interface import Buffer
from ...names import STAGING, TMP, quoted
from .intent import INTENT, Piece

_OWNER = ".owner"
#: First character of the files of a transaction's name: no id begins with it.
NOTE_MARK = "="
#: Suffixes of staged files and of leases.
BATCHES, LEASE = ".batches", ".lease"
#: Separator between id and part number in the names of marks.
APPLIED = ".applied."

_logger = logging.getLogger("sawlog")


class StagedFile:
    """Append-only file of batches in `staging/`. For one thread."""

    def __init__(self, staging: Directory, name: str) -> None:
        self.name = name
        # The commit makes the name durable: it syncs the directory before it writes the intent.
        staging.replace(name, b"", durable=False)
        self._storage: Storage = staging.open(name)

    @property
    def size_bytes(self) -> int:
        """Number of bytes written."""
        return self._storage.size

    def write(self, batches: Buffer) -> Piece:
        """Append complete batches."""
        return Piece(self.name, self._storage.append(batches), len(batches))

    def sync(self) -> None:
        """Make the content durable. It survives a power cut once `staging/` is synced, too."""
        self._storage.sync()

    def close(self) -> None:
        """Close the handle. The file is kept."""
        self._storage.close()


class StagedTransaction:
    """Files of one transaction in `staging/`, protected from removal until `end` or `leave`.

    A transaction that fits into its intent needs this, too: a half-written intent must not be removed.
    """

    def __init__(self, staging: Directory, *, adopt: str | None = None) -> None:
        self._staging = staging
        self.id, self._owner = _claim(staging) if adopt is None else (adopt, lock_owner(staging, adopt))

    def file(self, label: str = "0") -> StagedFile:
        """Create a staged file. Another process that knows the id uses `StagingDirectory.file`."""
        return StagedFile(self._staging, file_name(self.id, label))

    @property
    def held(self) -> bool:
        """True if this process holds the transaction: false after its end and in a forked child."""
        return self._owner.held

    @property
    def current(self) -> bool:
        """True if this process holds the transaction and its lock file still exists."""
        return self._owner.current

    def leave(self) -> None:
        """Release the lock and keep the staged files: an intent still needs them, or the job may be published again."""
        self._owner.release()

    def end(self) -> None:
        """Remove the files unless an intent needs them. What cannot be removed now is removed by a later sweep."""
        if not self._owner.held:
            return
        try:
            # A repeated commit finds the intent of the first one, which may not be completed yet.
            if not self._staging.exists(f"{self.id}{INTENT}"):
                remove_all(self._staging, self.id)
        except SawlogError as error:
            _logger.warning("will be removed later: %s", error)
        finally:
            self._owner.release()


def lock_owner(staging: Directory, id_: str) -> Lock:
    """Lock the files of an id for staging, committing or removing; `DirectoryLocked` if another process holds them."""
    return staging.lock(f"{id_}{_OWNER}", alone=False)


def _claim(staging: Directory) -> tuple[str, Lock]:
    """Return a new id with its lock."""
    while True:
        chosen = uuid.uuid4().hex
        try:
            owner = lock_owner(staging, chosen)
        except DirectoryLocked:
            continue  # a sweeper locked it first
        if owner.current:
            return chosen, owner
        owner.release()


def is_note(file: str) -> bool:
    """Return whether a file in `staging/` belongs to a name rather than to a transaction id."""
    return file.startswith(NOTE_MARK)


def file_name(id_: str, label: str, suffix: str = BATCHES) -> str:
    """Return the name of a staged file or of its lease."""
    for what in (id_, label):
        if not what or quoted(what) != what or "." in what:
            raise InvalidConfig(f"the id of a stage and a label may have letters, digits, - and _, not {what!r}")
    return f"{id_}.{label}{suffix}"


def remove_all(staging: Directory, id_: str) -> None:
    """Remove the files of one id. The owner file goes last, so that an interrupted removal can be resumed."""
    names = [name for name in staging.names() if name.partition(".")[0] == id_ and not name.endswith(INTENT)]
    for name in sorted(names, key=lambda name: name.endswith(_OWNER)):
        staging.remove(name)


def leaves_traces(names: Iterable[str], id_: str) -> bool:
    """Return whether a part of this id's intent was placed."""
    return any(name.startswith(f"{id_}{APPLIED}") for name in names)


def remove_label(staging: Directory, id_: str, label: str) -> None:
    """Remove a staged file and its lease, including a half-written one."""
    for name in staging.names():
        if name.startswith(f"{id_}.{label}."):
            staging.remove(name)


#: Default lifetime of a lease: how long staged files wait for the commit of their job.
_LEASE_S = 24 * 3600.0
#: Number of attempts to rewrite a document that another process has removed.
_SWEPT_TIMES = 20


class StagingDirectory:
    """Staging directory of one store."""

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
        """The directory, created on first use."""
        if self._directory is None:
            with self._opening:
                if self._directory is None:
                    there = STAGING in self._root.children()  # durably: it is older than the store's own file
                    self._directory = self._root.child(STAGING, create=not there)
        return self._directory

    def exists(self) -> bool:
        """Return whether the directory exists: a reader does not create it."""
        return self._directory is not None or STAGING in self._root.children()

    def store(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Replace a file. Retries if a sweeper has taken the half-written file for that of a dead process."""
        for last in (*(False,) * _SWEPT_TIMES, True):
            try:
                self.directory.replace(name, data, durable=durable)
                return
            except StorageError as error:
                if error.errno != errno.ENOENT or last:
                    raise

    # --- collecting

    def begin(self) -> StagedTransaction:
        """Begin a transaction whose files no other process removes before it ends."""
        return StagedTransaction(self.directory)

    def adopt(self, id_: str, *, timeout_s: float = 5.0) -> StagedTransaction:
        """Take over the transaction of an id that other processes have staged. Blocks while a sweeper holds it, which
        is brief, or a commit whose driver died. `DirectoryLocked` on timeout."""
        deadline = Deadline(timeout_s)
        held = DirectoryLocked(f"{self.directory.path}/{id_}")
        while True:
            try:
                stage = StagedTransaction(self.directory, adopt=id_)
            except DirectoryLocked as error:
                held = error
            else:
                if stage.current:
                    return stage
                stage.leave()  # the previous holder has removed the file that we locked
            deadline.pause(or_raise=held)

    def discard(self, id_: str) -> None:
        """Remove the staged files of an id, unless it is committed and not completed yet."""
        self.adopt(id_).end()

    # --- for the tasks of a job

    def file(self, id_: str, label: str) -> StagedFile:
        """Create a staged file for a transaction that another process holds. Each label once."""
        return StagedFile(self.directory, file_name(id_, label))

    def lend(self, id_: str, label: str, seconds: float = _LEASE_S) -> None:
        """Protect the staged files of an id from removal for that long, although no process holds them: tasks stage
        and end before their job commits. Each label once."""
        self._write_lease(file_name(id_, label, LEASE), seconds)

    def withdraw(self, id_: str, label: str) -> None:
        """Remove the files of a label: the attempt of a task has failed."""
        remove_label(self.directory, id_, label)

    def _write_lease(self, name: str, seconds: float) -> None:
        until_ms = now_ms() + int(seconds * 1000)
        # Need not be durable: after a power cut there is no job left to commit.
        self.store(name, checksummed.encode({"until_ms": until_ms}), durable=False)

    # --- cleaning up

    def sweep(self) -> None:
        """Remove the uncommitted files of dead processes, and what completed intents have left."""
        if not self.exists():
            return
        for id_ in sorted({name.partition(".")[0] for name in self.directory.names() if not is_note(name)}):
            try:
                owner = lock_owner(self.directory, id_)
            except DirectoryLocked:
                continue  # in use
            try:
                # Checked under the lock: the owner may have committed and died since the names were listed.
                if not self.directory.exists(f"{id_}{INTENT}") and not self._is_lent(id_):
                    if leaves_traces(self.directory.names(), id_):
                        self.directory.sync()  # an intent that came back without its marks would be placed again
                    remove_all(self.directory, id_)
            finally:
                owner.release()

    def _is_lent(self, id_: str) -> bool:
        """Return whether a job may still commit these files."""
        for name in self.directory.names():
            if name.partition(".")[0] == id_ and name.endswith(f"{LEASE}{TMP}"):
                # A task is writing it right now, or died doing so and the lease's end is unknown.
                self._write_lease(name.removesuffix(TMP), _LEASE_S)
                return True
            if name.partition(".")[0] == id_ and name.endswith(LEASE):
                try:
                    if int(checksummed.load(self.directory, name)["until_ms"]) > now_ms():
                        return True
                except CorruptFile as error:
                    # The lease's end is unknown, as after a power cut. Start it over.
                    _logger.warning("a damaged lease starts again from now: %s", error)
                    self._write_lease(name, _LEASE_S)
                    return True
                except (SawlogError, KeyError, TypeError, ValueError):
                    pass  # just removed
        return False
