"""The writer's lock of one log, and who may wait for it.

A partition has one writer, and a second one is told at once. There is one exception: upkeep takes the lock of a log
that nobody is writing, for as long as its work takes, and says so in the lock's note. Whoever wants to write then
waits for it instead of failing, for a bounded time.
"""

from __future__ import annotations

import time

from ..errors import DirectoryLocked, StorageError
from ..storage import Directory, Lock
from .names import LOCK

#: The note of a holder that will be gone soon.
UPKEEP = b"upkeep"
#: How long a writer waits for upkeep to end.
_PATIENCE_S = 60.0
_POLL_S = 0.01


def wait_for_upkeep(directory: Directory) -> Lock:
    """The writer's lock; `DirectoryLocked` at once if another writer has it."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return directory.lock(LOCK)
        except DirectoryLocked:
            if not _is_upkeep(directory) or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def _is_upkeep(directory: Directory) -> bool:
    try:
        return directory.read(LOCK).partition(b"\n")[2] == UPKEEP
    except StorageError:
        return False
