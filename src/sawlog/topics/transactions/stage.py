"""`Stage`: the files of one transaction in `staging/`, and who may remove them.

```
staging/
  <id>.owner             locked by the process that collects; who finds it free may sweep what belongs to <id>
  <id>.<label>.batches   finished batches, back to back
  <id>.<label>.lease     whoever stages is done, and somebody else will commit: not to be swept before that time
```

What becomes of them is said in intents.py.
"""

from __future__ import annotations

import logging
import uuid

from ...errors import DirectoryLocked, InvalidConfig, SawlogError
from ...storage import Directory, Lock, Storage
from ...storage.interface import Buffer
from ..names import quoted
from .intent import INTENT, Piece

_OWNER = ".owner"
#: What the names of staged files and of leases end with.
BATCHES, LEASE = ".batches", ".lease"

_logger = logging.getLogger("sawlog")


class StagedFile:
    """A file in `staging/` that batches are written to. For one thread."""

    def __init__(self, staging: Directory, name: str) -> None:
        self.name = name
        # Its name is made durable by the commit, which syncs the directory before the intent speaks of it.
        staging.replace(name, b"", durable=False)
        self._storage: Storage = staging.open(name)

    def write(self, batches: Buffer) -> Piece:
        """Add finished batches."""
        return Piece(self.name, self._storage.append(batches), len(batches))

    def sync(self) -> None:
        """Return when everything written survives a power cut, once `staging/` is synced, too."""
        self._storage.sync()

    def close(self) -> None:
        """Give up the handle; the file stays."""
        self._storage.close()


class Stage:
    """A transaction's place in `staging/`, safe from being swept for as long as this object is not ended.

    Also that of a transaction that is all in its intent: the half-written intent is not to be swept either.
    """

    def __init__(self, staging: Directory, *, adopt: str | None = None) -> None:
        self._staging = staging
        self.id, self._owner = _claim(staging) if adopt is None else (adopt, lock_owner(staging, adopt))

    def file(self, label: str = "0") -> StagedFile:
        """A new staged file. Another process that was told the id makes its own: see `Intents.file`."""
        return StagedFile(self._staging, file_name(self.id, label))

    @property
    def held(self) -> bool:
        """Whether it is ours: not after its end, and not in a forked child."""
        return self._owner.held

    @property
    def current(self) -> bool:
        """Whether it is ours, and nobody has removed the file that says so."""
        return self._owner.current

    def leave(self) -> None:
        """Let go of it and let it be: there is an intent that needs it."""
        self._owner.release()

    def end(self) -> None:
        """Remove what belongs to it, unless an intent needs it. What cannot be removed now is swept later."""
        if not self._owner.held:
            return
        try:
            # A repeated commit finds the intent of the first one, which may be waiting to be completed.
            if not self._staging.exists(f"{self.id}{INTENT}"):
                remove_all(self._staging, self.id)
        except SawlogError as error:
            _logger.warning("left to be swept: %s", error)
        finally:
            self._owner.release()


def lock_owner(staging: Directory, id_: str) -> Lock:
    """Become the one who may collect, commit or remove what belongs to an id; `DirectoryLocked` if somebody is."""
    return staging.lock(f"{id_}{_OWNER}", alone=False)


def _claim(staging: Directory) -> tuple[str, Lock]:
    """A new id, and the lock that says that somebody is at it."""
    while True:
        chosen = uuid.uuid4().hex
        try:
            owner = lock_owner(staging, chosen)
        except DirectoryLocked:
            continue  # a sweeper was quicker than our lock
        if owner.current:
            return chosen, owner
        owner.release()


def file_name(id_: str, label: str, suffix: str = BATCHES) -> str:
    """What a staged file, or its lease, is called."""
    for what in (id_, label):
        if not what or quoted(what) != what or "." in what:
            raise InvalidConfig(f"the id of a stage and a label have letters, digits, - and _, not {what!r}")
    return f"{id_}.{label}{suffix}"


def remove_all(staging: Directory, id_: str) -> None:
    """Remove the files of one id; the owner's lock last, so that what is left can still be swept."""
    names = [name for name in staging.names() if name.partition(".")[0] == id_ and not name.endswith(INTENT)]
    for name in sorted(names, key=lambda name: name.endswith(_OWNER)):
        staging.remove(name)


def remove_label(staging: Directory, id_: str, label: str) -> None:
    """Remove a staged file and its lease, also one that is half-written."""
    for name in staging.names():
        if name.startswith(f"{id_}.{label}."):
            staging.remove(name)
