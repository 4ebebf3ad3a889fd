"""Work that is due after some time: timed syncs, watermarks, lingering writers, heartbeats.

One thread per process keeps the time and does nothing else. Due work is done by workers, which are started when all
others are busy and end when there is nothing to do. So a customer that has to wait, for a disk or for a log that is
being streamed to, delays only itself: the syncs, watermarks and heartbeats of all others continue. A customer is never
called again before its last call has returned.

Customers are held weakly, so that an abandoned log is not kept alive by its own maintenance. A forked child starts its
own threads.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...storage.forking import forkable

#: An idle worker ends after this many seconds.
_IDLE_S = 5.0


@dataclass(slots=True)
class _Customer:
    """A method, and how often it is called: after so many seconds, once or again and again."""

    seconds: float
    method: weakref.WeakMethod[Callable[[], None]]
    once: bool


_lock = threading.RLock()
#: For the timer: something is due sooner. For the workers: something is ready.
_sooner = forkable(threading.Condition(_lock))
_waiting = forkable(threading.Condition(_lock))
_due: list[tuple[float, int, _Customer]] = []
_ready: deque[_Customer] = deque()
_numbers = itertools.count()
_timer: threading.Thread | None = None
#: The number of idle workers of this process.
_idle = 0


def every(seconds: float, method: Callable[[], None]) -> None:
    """Call a bound method repeatedly as long as its object lives, in a background thread. It must not raise; it may
    wait."""
    _begin(_Customer(seconds, weakref.WeakMethod(method), once=False))


def soon(method: Callable[[], None]) -> None:
    """Call a bound method once, in a background thread, unless its object is gone by then. It must not raise; it may
    wait."""
    _begin(_Customer(0.0, weakref.WeakMethod(method), once=True))


def _begin(customer: _Customer) -> None:
    global _timer, _idle  # noqa: PLW0603 - one timer per process is the point
    with _sooner:
        _schedule(customer)
        if _timer is None or not _timer.is_alive():  # the first call, or a forked child's
            _idle = 0
            _ready.clear()
            _timer = threading.Thread(target=_keep_time, name="sawlog-background", daemon=True)
            _timer.start()


def _schedule(customer: _Customer) -> None:
    """The caller holds the lock."""
    heapq.heappush(_due, (time.monotonic() + customer.seconds, next(_numbers), customer))
    _sooner.notify()


def _keep_time() -> None:
    with _sooner:
        while True:
            rest = _due[0][0] - time.monotonic() if _due else None
            if rest is None or rest > 0:
                _sooner.wait(rest)
                continue
            _ready.append(heapq.heappop(_due)[2])
            if len(_ready) > _idle:
                threading.Thread(target=_work, name="sawlog-background-work", daemon=True).start()
            else:
                _waiting.notify()


def _work() -> None:
    while True:
        customer = _next()
        if customer is None:
            return
        method = customer.method()
        if method is not None:
            method()
            del method  # do not keep the log alive while waiting
            if not customer.once:
                with _sooner:
                    _schedule(customer)


def _next() -> _Customer | None:
    """Wait for work that is due; None if there is none for a while."""
    global _idle  # noqa: PLW0603
    with _waiting:
        deadline = time.monotonic() + _IDLE_S
        while not _ready:
            rest = deadline - time.monotonic()
            if rest <= 0:
                return None
            _idle += 1
            try:
                _waiting.wait(rest)
            finally:
                _idle -= 1
        return _ready.popleft()
