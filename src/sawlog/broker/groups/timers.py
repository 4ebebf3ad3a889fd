"""Time for groups: an event loop's clock, or one that a test drives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Handle(Protocol):
    """A call that is due at some time."""

    def cancel(self) -> None:
        """Do not call it."""


class Timers(Protocol):
    """The part of an event loop that groups need."""

    def time(self) -> float:
        """Seconds, by a clock that never goes back."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Handle:
        """Call a function when that many seconds have passed."""


class Alarm:
    """Calls a function when the time that was set last has come.

    Setting it to a later time costs nothing: a heartbeat does it, many times a second. The timer that is running then
    finds that it is too early, and waits for the rest.
    """

    __slots__ = ("_due_s", "_handle", "_ring", "_rings_s", "_timers")

    def __init__(self, timers: Timers, ring: Callable[[], None]) -> None:
        self._timers = timers
        self._ring = ring
        self._due_s = 0.0
        self._rings_s = 0.0
        self._handle: Handle | None = None

    @property
    def is_set(self) -> bool:
        """Whether it will ring."""
        return self._handle is not None

    def set(self, delay_ms: float) -> None:
        """Ring after that many milliseconds, and not before."""
        self._due_s = self._timers.time() + delay_ms / 1000
        if self._handle is not None and self._rings_s > self._due_s:
            self.stop()
        if self._handle is None:
            self._wait()

    def stop(self) -> None:
        """Do not ring."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wait(self) -> None:
        self._rings_s = self._due_s
        self._handle = self._timers.call_later(max(self._due_s - self._timers.time(), 0.0), self._come)

    def _come(self) -> None:
        self._handle = None
        if self._timers.time() < self._due_s:
            self._wait()
        else:
            self._ring()
