"""A directory that is filled with what another store contains: it must not be taken for a complete one too early, and
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
from dataclasses import asdict, dataclass

from ..errors import DirectoryLocked, StoreIncomplete
from ..storage import Directory, documents
from ..storage.interface import Lock
from .names import RESTORE, RESTORE_LOCK


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
    fields, path = documents.load(directory, RESTORE), f"{directory.path}/{RESTORE}"
    return Standby(
        documents.field(fields, "source", str, path),
        documents.field(fields, "moment", str, path),
        documents.field(fields, "complete", bool, path),
    )


def note(directory: Directory, standby: Standby) -> None:
    """Note it, durably."""
    documents.store(directory, RESTORE, asdict(standby))


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
