"""Whose turn it is to do upkeep: one piece at a time, and none when the log closes or somebody wants to write."""

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
        #: Whether the log was opened for upkeep alone, which ends when somebody wants to write.
        self._lent = lent
        self._closing = False
        self._lock = forkable(threading.Lock())

    def check(self) -> None:
        """Raise if upkeep should not go on: the log is closed, closing or has failed."""
        self._check_alive()
        if self._closing:
            raise LogClosed(f"the log {self._directory.path} is being closed")
        if self._lent and is_wanted(self._directory):
            raise LogClosed(f"upkeep of {self._directory.path} ended early: somebody wants to write")

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One piece of upkeep. Not for who holds the log still: others' upkeep waits for that, and this for them."""
        if self._is_held():
            raise InvalidConfig("upkeep cannot be done while the log is held: call it outside `hold`")
        with self._lock:
            self.check()
            try:
                yield
            except StorageError:
                self.check()  # the files of a log that was closed or removed meanwhile are no failure
                raise

    def cancel(self) -> None:
        """The log is about to be closed: upkeep ends where it is."""
        self._closing = True

    def end(self) -> None:
        """Before the log is closed: let upkeep end, and wait until it has."""
        self.cancel()
        with self._lock:
            pass
