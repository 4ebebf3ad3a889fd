"""One quiet thread for everything that has to happen after a while: timed syncs, watermarks, lingering writers.

One for the whole process, however many logs are open, started when first needed. It holds its customers weakly, so
an abandoned log is not kept alive by its own housekeeping. A forked child starts its own.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import weakref
from collections.abc import Callable

from ..storage.forking import forkable

_lock = forkable(threading.Condition())
_due: list[tuple[float, int, float, weakref.WeakMethod[Callable[[], None]]]] = []
_numbers = itertools.count()
_thread: threading.Thread | None = None


def every(seconds: float, method: Callable[[], None]) -> None:
    """Call a bound method again and again for as long as its object lives. It must not raise and not block long."""
    global _thread  # noqa: PLW0603 - one thread per process is the point
    with _lock:
        heapq.heappush(_due, (time.monotonic() + seconds, next(_numbers), seconds, weakref.WeakMethod(method)))
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="sawlog-background", daemon=True)
            _thread.start()
        _lock.notify()


def _run() -> None:
    while True:
        method = _next()
        if method is not None:
            method()
            del method  # do not keep the log alive while waiting


def _next() -> Callable[[], None] | None:
    """Wait for the next call that is due, and put it back for its next turn."""
    with _lock:
        while not _due:
            _lock.wait()
        when, _, seconds, reference = _due[0]
        rest = when - time.monotonic()
        if rest > 0:
            _lock.wait(rest)
            return None
        heapq.heappop(_due)
        method = reference()
        if method is not None:
            heapq.heappush(_due, (time.monotonic() + seconds, next(_numbers), seconds, reference))
        return method
