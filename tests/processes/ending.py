"""`Ending`: an event that SIGTERM sets, for processes that work until then.

A `threading.Event` does not work: if a signal handler calls `set`, it deadlocks on the lock that the interrupted `wait`
of the same thread holds. Nor does a pipe that a Python handler writes to: Python runs handlers between two
instructions, so a signal that arrives right before `select` is handled only after `select` returns, which may be never.
Here the C handler writes to the pipe (`signal.set_wakeup_fd`)."""

from __future__ import annotations

import os
import select
import signal


class Ending:
    """Event that SIGTERM sets, after `listen`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def listen(self) -> None:
        """Let SIGTERM set the event and do nothing else."""
        signal.set_wakeup_fd(self._write)
        signal.signal(signal.SIGTERM, lambda *_: None)

    def is_set(self) -> bool:
        """True if it was set."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the signal and return whether it has arrived."""
        return bool(select.select([self._read], [], [], timeout)[0])
