"""Whether a directory may become a store: what is already there is never touched.

A directory that is filled with what another store contains: it must not be taken for a complete one too early, and
must not be written by two.

```
restore.json      where it comes from, which moment is wanted, and whether everything was there once
restore.LOCK      held by the process that fills it
```

While it is not complete nobody else opens it. A complete one, which is being kept up to date, can be read. Whoever
opens it for writing, when it is not being filled any more, makes it a store like others: then it is not followed again.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import DirectoryLocked, InvalidConfig, StoreIncomplete
from ...log import files as log_names
from ...storage import Directory, checksummed
from ...storage.interface import Lock
from ..names import LOCK, RESTORE, RESTORE_LOCK, STAGING, STORE, TMP, TOPICS

#: What may be in a directory that becomes a store: left by a crash during its creation, or by the file system.
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
    """Raise `InvalidConfig` if a directory contains the objects of a store on object storage (`file://`). Its file has
    no checksum, so it must not be taken for a damaged one."""
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
    directory = root.child(name)
    try:
        return not directory.names() and not directory.children()
    finally:
        directory.close()


def is_log(names: Iterable[str]) -> bool:
    """Whether these are the files of one log."""
    return any(log_names.segment_base(name) is not None for name in names)


@dataclass(frozen=True, slots=True)
class Standby:
    """What is known of a directory that is being filled."""

    #: The address of the store that it comes from.
    source: str
    #: The moment that is wanted, for people.
    moment: str
    #: Whether it has contained everything once.
    complete: bool


def found(directory: Directory) -> Standby | None:
    """What is noted; None if it is a store like others, or nothing at all."""
    if not directory.exists(RESTORE):
        return None
    fields, path = checksummed.load(directory, RESTORE), f"{directory.path}/{RESTORE}"
    return Standby(
        checksummed.field(fields, "source", str, path),
        checksummed.field(fields, "moment", str, path),
        checksummed.field(fields, "complete", bool, path),
    )


def note(directory: Directory, standby: Standby) -> None:
    """Note it, durably."""
    checksummed.store(directory, RESTORE, asdict(standby))


def end(directory: Directory) -> None:
    """It is a store like others from now on, durably."""
    directory.remove(RESTORE)
    directory.sync()


def guard(directory: Directory) -> Lock:
    """Be the one who fills it; `DirectoryLocked` if another process does."""
    return directory.lock(RESTORE_LOCK, alone=False)


def admit(directory: Directory, mode: str) -> None:
    """Called when somebody opens the store who does not fill it: raises if that is too early."""
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
