"""Checks before a directory becomes a store, and the state of a store that is being restored.

A new store is created only in an empty directory; existing files are never touched.

A directory that is being restored from another store must not be opened as a complete one, and must have one writer:

```
restore.json      source, point in time to restore, and whether the restore was complete at least once
restore.LOCK      held by the process that restores
```

Until the restore is complete, no other process can open the store. After that it can be read while the restore keeps it
up to date. Opening it for writing when no restore is running turns it into an ordinary store, which can no longer
follow its source.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import DirectoryLocked, InvalidConfig, StoreIncomplete
from ...log import files as log_names
from ...storage import Directory, checksummed
from ...storage.interface import Lock
from ..names import LOCK, RESTORE, RESTORE_LOCK, STAGING, STORE, TMP, TOPICS

#: Entries that do not prevent creating a store: left by a crash during creation, or by the file system.
_NOTHING = frozenset({LOCK, f"{STORE}{TMP}", RESTORE, f"{RESTORE}{TMP}", RESTORE_LOCK, "lost+found"})


def refuse_strangers(root: Directory) -> None:
    """Raise `InvalidConfig` if a directory contains anything but an unfinished store."""
    names = root.names()
    children = [name for name in root.children() if name not in (TOPICS, STAGING) or not _is_empty(root, name)]
    if not {*names, *children} - _NOTHING:
        return
    if is_log(names):
        raise InvalidConfig(
            f"{root.path} holds one log, not a store of topics: use Log.open for it, or another directory"
        )
    found = ", ".join([*names, *(f"{name}/" for name in children)][:5])
    raise InvalidConfig(
        f"{root.path} is neither empty nor a store: it holds {found}; choose an empty or a new directory"
    )


def refuse_objects(root: Directory) -> None:
    """Raise `InvalidConfig` if a directory contains the objects of a store on object storage (`file://`). Its
    sawlog.json has no checksum and must not be reported as damaged."""
    try:
        fields = json.loads(root.read(STORE))
    except ValueError:
        return
    if isinstance(fields, dict) and "kind" in fields:
        raise InvalidConfig(
            f"{root.path} contains the objects of a store on object storage: open it by its address, "
            f"file://{Path(root.path).absolute()}"
        )


def _is_empty(root: Directory, name: str) -> bool:
    with closing(root.child(name)) as directory:
        return not directory.names() and not directory.children()


def is_log(names: Iterable[str]) -> bool:
    """Return whether these are the files of a single log."""
    return any(log_names.segment_base(name) is not None for name in names)


@dataclass(frozen=True, slots=True)
class Standby:
    """State of a directory that is being restored from another store."""

    #: Address of the source store.
    source: str
    #: Point in time to restore, as text for display.
    moment: str
    #: True if everything up to that point was restored at least once.
    complete: bool


def found(directory: Directory) -> Standby | None:
    """Return the restore state; None if the directory is an ordinary store or empty."""
    if not directory.exists(RESTORE):
        return None
    fields, path = checksummed.load(directory, RESTORE), f"{directory.path}/{RESTORE}"
    return Standby(
        checksummed.field(fields, "source", str, path),
        checksummed.field(fields, "moment", str, path),
        checksummed.field(fields, "complete", bool, path),
    )


def note(directory: Directory, standby: Standby) -> None:
    """Record the restore state, durably."""
    checksummed.store(directory, RESTORE, asdict(standby))


def end(directory: Directory) -> None:
    """Turn the directory into an ordinary store, durably."""
    directory.remove(RESTORE)
    directory.sync()


def guard(directory: Directory) -> Lock:
    """Lock the directory for restoring; `DirectoryLocked` if another process is restoring it."""
    return directory.lock(RESTORE_LOCK, alone=False)


def admit(directory: Directory, mode: str) -> None:
    """Check that the store may be opened by a process that is not restoring it; raise if that is too early."""
    noted = found(directory)
    if noted is None:
        return
    if not noted.complete:
        raise StoreIncomplete(
            errno.EAGAIN,
            f"{directory.path} is not complete: it is being restored from {noted.source}, or that was interrupted; "
            f"`sawlog restore {noted.source} {directory.path}` continues it",
        )
    if mode == "r":
        return
    try:
        held = guard(directory)
    except DirectoryLocked as error:
        raise DirectoryLocked(
            directory.path, f"`sawlog restore --follow`, which keeps it up to date from {noted.source}; end that first"
        ) from error
    try:
        if directory.exists(RESTORE):
            end(directory)
    finally:
        held.release()
