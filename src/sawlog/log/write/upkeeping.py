"""The turns of upkeep: one task at a time, and none when the log closes or a writer is waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...errors import InvalidConfig, LogClosed, StorageError
from ...storage import Directory
from ...storage.forking import forkable
from ..files.locking import is_wanted


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
