"""`Ending`: whether SIGTERM has come, for a process that works until then.

Not a `threading.Event`: its `set`, called by a handler, waits for ever for the lock that the interrupted `wait` of the
same thread holds. And not a pipe that a handler of Python writes to: that runs between two instructions, and if the
signal comes right before `select`, not before this has returned, which it never does. So the system's own handler
writes.
"""

from __future__ import annotations

import os
import select
import signal


class Ending:
    """Set by SIGTERM, once somebody listens."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def listen(self) -> None:
        """From now on SIGTERM sets it and does nothing else."""
        signal.set_wakeup_fd(self._write)
        signal.signal(signal.SIGTERM, lambda *_: None)

    def is_set(self) -> bool:
        """True if it was set."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it, and return whether it has come."""
        return bool(select.select([self._read], [], [], timeout)[0])
