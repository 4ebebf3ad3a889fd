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
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable

from ...errors import DirectoryLocked, InvalidConfig, SawlogError
from ...storage import Directory, Lock, Storage
from ...storage.interface import Buffer
from ..names import quoted
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
