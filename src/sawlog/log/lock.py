"""The writer's lock of one log, and who may wait for it.

A partition has one writer, and a second one gets an error immediately. There is one exception: upkeep takes the lock of
a log that nobody is writing, for as long as its work takes, and says so in the lock's note. A writer then waits for it
instead of failing, for a limited time, and asks it to stop with a file `wanted`: upkeep checks for that between two
steps, stops, and does the rest later. Topics wait for other writers too, and ask in the same way
(`sawlog.store.directory.lock_leases`).

The turns of upkeep: one task at a time, and none when the log closes or a writer is waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..clock import Deadline
from ..errors import DirectoryLocked, InvalidConfig, LogClosed, StorageError
from ..storage import Directory, Lock
from ..storage.forking import forkable
from .files import LOCK, WANTED

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


class UpkeepTurns:
    """Taken before the log's lock, never while that is held."""

    def __init__(
        self, directory: Directory, check_alive: Callable[[], None], is_held: Callable[[], bool], *, lent: bool
    ) -> None:
        self._directory = directory
        self._check_alive = check_alive
        self._is_held = is_held
        #: Whether the log was opened for upkeep only, which stops when a writer is waiting.
        self._lent = lent
        self._closing = False
        self._lock = forkable(threading.Lock())

    def check(self) -> None:
        """Raise if upkeep should stop: the log is closed, closing or has failed, or a writer is waiting."""
        self._check_alive()
        if self._closing:
            raise LogClosed(f"the log {self._directory.path} is being closed")
        if self._lent and is_wanted(self._directory):
            raise LogClosed(f"upkeep of {self._directory.path} stopped early: a writer is waiting")

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One upkeep task. Not for a thread that holds the log: others' upkeep waits for that, and this for them."""
        if self._is_held():
            raise InvalidConfig("upkeep cannot run while the log is held: call it outside `hold`")
        with self._lock:
            self.check()
            try:
                yield
            except StorageError:
                self.check()  # missing files of a log that was closed or removed meanwhile are not a failure
                raise

    @property
    def is_running(self) -> bool:
        """Whether a task is at it."""
        return self._lock.locked()

    def cancel(self) -> None:
        """The log is about to be closed: upkeep stops where it is."""
        self._closing = True

    def end(self) -> None:
        """Before the log is closed: stop upkeep, and wait until it has ended."""
        self.cancel()
        with self._lock:
            pass
