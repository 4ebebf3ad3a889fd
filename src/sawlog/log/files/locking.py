"""The writer's lock of one log, and who may wait for it.

A partition has one writer, and a second one gets an error immediately. There is one exception: upkeep takes the lock of
a log that nobody is writing, for as long as its work takes, and says so in the lock's note. A writer then waits for it
instead of failing, for a limited time, and asks it to stop with a file `wanted`: upkeep checks for that between two
steps, stops, and does the rest later. Topics wait for other writers too, and ask in the same way
(`sawlog.topics.turns`)."""

from __future__ import annotations

from ...clock import Deadline
from ...errors import DirectoryLocked, StorageError
from ...storage import Directory, Lock
from .names import LOCK, WANTED

#: The note of a holder that will release the lock soon.
UPKEEP_NOTE = b"upkeep"
#: How long a writer waits for upkeep to end.
_PATIENCE_S = 60.0


def take_lock(directory: Directory, note: bytes = b"") -> Lock:
    """The writer's lock, with a note for others; `DirectoryLocked` immediately if another writer holds it."""
    deadline = Deadline(_PATIENCE_S)
    refusals = 0
    while True:
        try:
            held = directory.lock(LOCK)
        except DirectoryLocked as error:
            busy = note_in(directory) == UPKEEP_NOTE
            refusals = 0 if busy else refusals + 1
            if busy and note != UPKEEP_NOTE:
                want(directory)
            # Checked twice, because upkeep takes the lock a moment before it leaves its note.
            if refusals > 1:
                raise
            deadline.pause(or_raise=error)
        else:
            try:
                held.leave(note)
                if is_wanted(directory):  # by us, or by a writer that has given up
                    directory.remove(WANTED)
            except BaseException:
                held.release()
                raise
            return held


def is_wanted(directory: Directory) -> bool:
    """Whether a writer waits for the lock."""
    return directory.exists(WANTED)


def want(directory: Directory) -> None:
    """Ask the process that holds the lock to release it. Whoever gets the lock removes the request."""
    try:
        if not is_wanted(directory):
            directory.replace(WANTED, b"", durable=False)
    except StorageError:
        pass  # on a full disk the writer waits until the holder has finished


def note_in(directory: Directory) -> bytes:
    """The note of the process that holds the lock, or held it last; empty if there is none."""
    try:
        return directory.read(LOCK).partition(b"\n")[2]
    except StorageError:
        return b""
