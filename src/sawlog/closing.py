"""`with` for whatever has a `close`: the block ends with it, whether it fails or not.

`Ending`: whether something has ended, and a way to wait for it that no interrupt can break.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Something that is closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Ending:
    """False at first, and true for ever after `set`.

    It does what `threading.Event` does, which is Python code around a lock: a signal handler that raises in the middle
    of it leaves the lock taken, and whoever comes next waits for ever. Here every step is one call into C, and `set`
    can be repeated.
    """

    __slots__ = ("__weakref__", "_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        #: Taken until the end.
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        """Whether it has ended."""
        return self._is_set

    def set(self) -> None:
        """It has ended: everybody who waits goes on."""
        self._is_set = True
        self._open()

    def wait(self, seconds: float) -> bool:
        """Wait that long for the end, and return whether it has come."""
        if not self._is_set and self._gate.acquire(timeout=max(seconds, 0.0)):
            self._open()  # for the others
        return self._is_set

    def _open(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:
            pass  # another thread has opened it

    def _at_fork_reinit(self) -> None:
        """In a forked child: a thread of the parent may have been in the middle."""
        self._gate = threading.Lock()
        if not self._is_set:
            self._gate.acquire()
