"""`Closing`, the base class of context managers that close themselves, and `OneShotEvent`, an event that stays usable
when a signal handler raises inside it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """A context manager that calls `close` at the end of its `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OneShotEvent:
    """An event that is false until `set`, true forever after.

    `threading.Event` is Python code around a lock: a signal handler that raises in the middle of it leaves the lock
    held, and the next thread to use the event deadlocks. Here every step is a single call into C, and `set` can be
    repeated.
    """

    __slots__ = ("__weakref__", "_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        #: Held until `set`.
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        """Return whether `set` was called."""
        return self._is_set

    def set(self) -> None:
        """Set the event and wake all waiters."""
        self._is_set = True
        self._open()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for `set`, and return whether it was called."""
        if not self._is_set and self._gate.acquire(timeout=max(seconds, 0.0)):
            self._open()  # for the other waiters
        return self._is_set

    def _open(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:
            pass  # another thread has released it

    def _at_fork_reinit(self) -> None:
        """Renew the lock in a forked child: a thread of the parent may have held it."""
        self._gate = threading.Lock()
        if not self._is_set:
            self._gate.acquire()
