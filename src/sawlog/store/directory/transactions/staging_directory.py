"""`Stage`: the files of one transaction in `staging/`, and who may remove them.

```
staging/
  <id>.owner             locked by the process that collects; if it is not locked, the files of <id> may be removed
  <id>.<label>.batches   finished batches, contiguous
  <id>.<label>.lease     staging is done, and another process will commit: not to be removed before that time
  <id>.proposal          the intent, before it is committed
  <id>.at.<n>.<offset>, <id>.applied.<n>    how far the intent is placed: see ledger.py
```

intents.py says what happens to them.

`StagingArea`: the directory `staging/`, what is collected in it, and who may remove that.

A stage belongs to the process that holds the lock of its owner's file (see stage.py). What the tasks of a job have
staged is lent to the job: nobody holds it, and it is not removed before its lease ends. `sweep` removes the rest of
what dead processes have left, but never what an intent needs.

Threads and processes: any.
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
from .committed_names import is_note
from .intent import INTENT, Piece

_OWNER = ".owner"
#: The suffixes of staged files and of leases.
BATCHES, LEASE = ".batches", ".lease"
#: What is between the id and the number of a part, in the names of notes and of marks.
AT, APPLIED = ".at.", ".applied."

_logger = logging.getLogger("sawlog")


class StagedFile:
    """A file in `staging/` to which batches are written. For one thread."""

    def __init__(self, staging: Directory, name: str) -> None:
        self.name = name
        # Its name is made durable by the commit, which syncs the directory before it writes the intent.
        staging.replace(name, b"", durable=False)
        self._storage: Storage = staging.open(name)

    @property
    def size_bytes(self) -> int:
        """How many bytes were written."""
        return self._storage.size

    def write(self, batches: Buffer) -> Piece:
        """Append finished batches."""
        return Piece(self.name, self._storage.append(batches), len(batches))

    def sync(self) -> None:
        """Return when everything written survives a power cut, once `staging/` is synced, too."""
        self._storage.sync()

    def close(self) -> None:
        """Close the handle; the file is kept."""
        self._storage.close()


class Stage:
    """A transaction's place in `staging/`, protected from removal until this object is ended.

    Also for a transaction that is completely in its intent: the half-written intent must not be removed either.
    """

    def __init__(self, staging: Directory, *, adopt: str | None = None) -> None:
        self._staging = staging
        self.id, self._owner = _claim(staging) if adopt is None else (adopt, lock_owner(staging, adopt))

    def file(self, label: str = "0") -> StagedFile:
        """A new staged file. Another process that knows the id makes its own: see `StagingArea.file`."""
        return StagedFile(self._staging, file_name(self.id, label))

    @property
    def held(self) -> bool:
        """Whether it is ours: not after its end, and not in a forked child."""
        return self._owner.held

    @property
    def current(self) -> bool:
        """Whether it is ours, and nobody has removed its lock file."""
        return self._owner.current

    def leave(self) -> None:
        """Release it and keep the files: there is an intent that needs them."""
        self._owner.release()

    def end(self) -> None:
        """Remove its files, unless an intent needs them. What cannot be removed now is removed later."""
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
    """Take the lock for collecting, committing or removing the files of an id; `DirectoryLocked` if it is held."""
    return staging.lock(f"{id_}{_OWNER}", alone=False)


def _claim(staging: Directory) -> tuple[str, Lock]:
    """A new id, and its lock."""
    while True:
        chosen = uuid.uuid4().hex
        try:
            owner = lock_owner(staging, chosen)
        except DirectoryLocked:
            continue  # a sweeper was faster than our lock
        if owner.current:
            return chosen, owner
        owner.release()


def file_name(id_: str, label: str, suffix: str = BATCHES) -> str:
    """The name of a staged file, or of its lease."""
    for what in (id_, label):
        if not what or quoted(what) != what or "." in what:
            raise InvalidConfig(f"the id of a stage and a label may have letters, digits, - and _, not {what!r}")
    return f"{id_}.{label}{suffix}"


def remove_all(staging: Directory, id_: str) -> None:
    """Remove the files of one id; the owner's lock last, so that the rest can still be removed later."""
    names = [name for name in staging.names() if name.partition(".")[0] == id_ and not name.endswith(INTENT)]
    for name in sorted(names, key=lambda name: name.endswith(_OWNER)):
        staging.remove(name)


def leaves_traces(names: Iterable[str], id_: str) -> bool:
    """Whether a part of the intent of this id was placed, or begun."""
    return any(name.startswith((f"{id_}{AT}", f"{id_}{APPLIED}")) for name in names)


def remove_label(staging: Directory, id_: str, label: str) -> None:
    """Remove a staged file and its lease, also one that is half-written."""
    for name in staging.names():
        if name.startswith(f"{id_}.{label}."):
            staging.remove(name)


#: How long what tasks have staged waits for the commit of their job by default.
_LEASE_S = 24 * 3600.0
#: How often a document is written again because another process has removed it.
_SWEPT_TIMES = 20


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
        self.store(name, checksummed.encode({"until_ms": until_ms}), durable=False)

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
                    if int(checksummed.load(self.directory, name)["until_ms"]) > now_ms():
                        return True
                except CorruptFile as error:
                    # Its end is unknown; a power cut can leave such leases. So it starts again from now.
                    _logger.warning("a damaged lease starts again from now: %s", error)
                    self._write_lease(name, _LEASE_S)
                    return True
                except (SawlogError, KeyError, TypeError, ValueError):
                    pass  # just removed: it protects nothing
        return False
