"""A handler of SIGALRM for one block of a test."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def _ignored(*_: object) -> None:
    """Handle an alarm that another thread received before the timer stopped. Under `SIG_DFL`, Python would raise
    "Signal 14 ignored due to race condition" in whatever test runs next."""


@contextmanager
def alarms(handler: Callable[..., object]) -> Iterator[None]:
    """Handle alarms in this block; afterwards the timer is off and a late alarm has no effect."""
    signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, _ignored)
        signal.setitimer(signal.ITIMER_REAL, 0)
