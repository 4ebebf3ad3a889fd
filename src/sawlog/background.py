"""Work that is due after some time: timed syncs, checkpoints, lingering writers, heartbeats, upkeep of stores.

One thread per process keeps the time and does nothing else. Due work is done by workers, which are started when all
others are busy and end when there is nothing to do. So a task that has to wait, for a disk or for a log that is being
streamed to, delays only itself: the syncs, checkpoints and heartbeats of all others continue. A task is never called
again before its last call has returned.

Tasks are methods whose objects are held weakly, so that an abandoned log is not kept alive by its own maintenance.
`Task.cancel` ends one before its object is gone, and `Task.wait` waits for a call that has begun. A task whose log is
closed during a call ends with that call. A forked child starts its own threads.

Threads: any.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .errors import LogClosed
from .storage.forking import forkable

#: An idle worker ends after this many seconds.
_IDLE_S = 5.0


class Task:
    """A method that is called after some seconds, once or again and again."""

    __slots__ = ("__weakref__", "_calling", "_cancelled", "_method", "_once", "_thread", "seconds")

    def __init__(self, seconds: float, method: Callable[[], None], *, once: bool) -> None:
        self.seconds = seconds
        self._method = weakref.WeakMethod(method)
        self._once = once
        self._cancelled = False
        #: Held during a call, by that thread.
        self._calling = forkable(threading.Lock())
        self._thread = 0

    def cancel(self) -> None:
        """No call begins from now on. `wait` waits for one that has begun."""
        self._cancelled = True

    def wait(self) -> None:
        """Wait until the current call has ended; from within that call, return at once."""
        if self._thread != threading.get_ident():
            with self._calling:
                pass

    def run(self) -> bool:
        """Call the method, unless it was cancelled or its object is gone; returns whether to call it again."""
        with self._calling:
            method = None if self._cancelled else self._method()
            if method is None:
                return False
            self._thread = threading.get_ident()
            try:
                method()
            except LogClosed:  # during the call, by another thread: nothing is left to do
                return False
            finally:
                self._thread = 0
            return not self._once


_lock = threading.RLock()
#: For the timer: something is due sooner. For the workers: something is ready.
_sooner = forkable(threading.Condition(_lock))
_waiting = forkable(threading.Condition(_lock))
_due: list[tuple[float, int, Task]] = []
_ready: deque[Task] = deque()
_numbers = itertools.count()
_timer: threading.Thread | None = None
#: The number of idle workers of this process.
_idle = 0
#: How many blocks of `suspended` are open.
_suspensions = 0


def every(seconds: float, method: Callable[[], None]) -> Task:
    """Call a bound method repeatedly as long as its object lives, in a background thread. It must not raise, except
    `LogClosed`; it may wait."""
    return _begin(Task(seconds, method, once=False))


def soon(method: Callable[[], None]) -> Task:
    """Call a bound method once, in a background thread, unless its object is gone by then. It must not raise, except
    `LogClosed`; it may wait."""
    task = Task(0.0, method, once=True)
    with _lock:
        _begin_timing()
        _give_out(task)  # not through the timer: who waits for a sync would wait for one thread more
    return task


@contextmanager
def suspended() -> Iterator[None]:
    """For tests that must do the same thing every time: what `every` is asked for within this block is never called."""
    global _suspensions  # noqa: PLW0603 - one scheduler per process is the point
    _suspensions += 1
    try:
        yield
    finally:
        _suspensions -= 1


def _begin(task: Task) -> Task:
    if _suspensions and task.seconds:
        return task
    with _lock:
        _schedule(task)
        _begin_timing()
    return task


def _begin_timing() -> None:
    """Start the timer, if there is none. The caller holds the lock."""
    global _timer, _idle  # noqa: PLW0603 - one timer per process is the point
    if _timer is None or not _timer.is_alive():  # the first call, or a forked child's
        _idle = 0
        _ready.clear()
        _timer = threading.Thread(target=_keep_time, name="sawlog-background", daemon=True)
        _timer.start()


def _schedule(task: Task) -> None:
    """The caller holds the lock."""
    heapq.heappush(_due, (time.monotonic() + task.seconds, next(_numbers), task))
    _sooner.notify()


def _keep_time() -> None:
    with _sooner:
        while True:
            rest = _due[0][0] - time.monotonic() if _due else None
            if rest is None or rest > 0:
                _sooner.wait(rest)
                continue
            _give_out(heapq.heappop(_due)[2])


def _give_out(task: Task) -> None:
    """Let a worker do what is due. The caller holds the lock."""
    _ready.append(task)
    if len(_ready) > _idle:
        threading.Thread(target=_work, name="sawlog-background-work", daemon=True).start()
    else:
        _waiting.notify()


def _work() -> None:
    while (task := _next()) is not None:
        if task.run():
            with _sooner:
                _schedule(task)


def _next() -> Task | None:
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
