"""The writer's lock of a log, and the lock of its maintenance.

A partition has one writer; a second one gets `DirectoryLocked` immediately. Maintenance is the exception: it takes the
lock of a log without a writer for as long as its work takes, and says so in a note in the lock file. A writer then
waits for a limited time instead of failing, and asks maintenance to stop by creating the file `wanted`. Maintenance
checks for that file between two steps, stops, and does the rest later. Where processes take turns (turns.py), a
writer waits for other writers, too.

`MaintenanceLock` runs one maintenance task at a time, and none while the log is closing or a writer is waiting. Where
processes take turns, it locks a file as well, for as long as a task takes; the turns go on meanwhile, and the task
takes one to put its result into effect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from ..clock import Deadline
from ..errors import DirectoryLocked, InvalidConfig, LogClosed, StorageError
from ..storage import Directory, Lock
from ..storage.forking import forkable
from .files import LOCK, MAINTENANCE_LOCK, WANTED

#: Note of a holder that will release the lock soon.
MAINTENANCE_NOTE = b"maintenance"
#: Maximum time that a writer waits for maintenance to stop.
_PATIENCE_S = 60.0


def take_lock(directory: Directory, note: bytes = b"") -> Lock:
    """Take the writer's lock and leave a note in it; `DirectoryLocked` immediately if another writer holds it."""
    deadline = Deadline(_PATIENCE_S)
    refusals = 0
    while True:
        try:
            held = directory.lock(LOCK)
        except DirectoryLocked as error:
            busy = read_lock_note(directory) == MAINTENANCE_NOTE
            refusals = 0 if busy else refusals + 1
            if busy and note != MAINTENANCE_NOTE:
                request_release(directory)
            # Checked twice, because maintenance takes the lock a moment before it leaves its note.
            if refusals > 1:
                raise
            deadline.pause(or_raise=error)
        else:
            try:
                held.leave(note)
                if is_release_requested(directory):  # by this call, or by a writer that has given up
                    directory.remove(WANTED)
            except BaseException:
                held.release()
                raise
            return held


def is_release_requested(directory: Directory) -> bool:
    """Return True if a writer waits for the lock."""
    return directory.exists(WANTED)


def request_release(directory: Directory) -> None:
    """Ask the process that holds the lock to release it. The next holder removes the request."""
    try:
        if not is_release_requested(directory):
            directory.replace(WANTED, b"", durable=False)
    except StorageError:
        pass  # on a full disk the writer waits until the holder finishes


def read_lock_note(directory: Directory) -> bytes:
    """Return the note of the current or last holder of the lock; empty if there is none."""
    try:
        return directory.read(LOCK).partition(b"\n")[2]
    except StorageError:
        return b""


class MaintenanceLock:
    """Mutex of the maintenance tasks of a log. Taken before the log's lock, never while holding it."""

    def __init__(
        self,
        directory: Directory,
        check_alive: Callable[[], None],
        is_held: Callable[[], bool],
        takes_turns: Callable[[], bool],
        *,
        lent: bool,
    ) -> None:
        self._directory = directory
        self._check_alive = check_alive
        self._is_held = is_held
        self._takes_turns = takes_turns
        #: True if the log was opened only for maintenance, which stops when a writer is waiting.
        self._lent = lent
        self._closing = False
        self._lock = forkable(threading.Lock())

    def check(self) -> None:
        """Raise if maintenance has to stop: the log is closed, closing or has failed, or a writer is waiting."""
        self._check_alive()
        if self._closing:
            raise LogClosed(f"the log {self._directory.path} is being closed")
        if self._lent and is_release_requested(self._directory):
            raise LogClosed(f"maintenance of {self._directory.path} stopped early: a writer is waiting")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Run one maintenance task. Refused in a thread that holds the log, where it could deadlock with another
        task."""
        if self._is_held():
            raise InvalidConfig("maintenance cannot run while the log is held: call it outside `hold`")
        with self._lock, ExitStack() as held:
            self.check()
            if self._takes_turns():  # the files that it prepares have the same names in every process
                held.callback(self._directory.lock(MAINTENANCE_LOCK, alone=False).release)
            try:
                yield
            except StorageError:
                self.check()  # a log that was closed or removed meanwhile has no files: not a failure
                raise

    @property
    def is_running(self) -> bool:
        """True if a task is running."""
        return self._lock.locked()

    def cancel(self) -> None:
        """Tell a running task to stop at its next check: the log is about to be closed."""
        self._closing = True

    def end(self) -> None:
        """Stop maintenance and block until it has ended, before the log is closed."""
        self.cancel()
        with self._lock:
            pass
