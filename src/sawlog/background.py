"""Background scheduler: timed syncs, checkpoints, lingering writers, heartbeats, maintenance of stores.

One timer thread per process dispatches due tasks to worker threads. A worker is started when all others are busy and
exits when idle. A task that blocks, on a disk or on a log with a stream in progress, delays only itself: the syncs,
checkpoints and heartbeats of all other logs continue. Calls of one task never overlap.

A task is a bound method whose object is held weakly, so that an abandoned log is not kept alive by its own maintenance.
`Task.cancel` prevents further calls, and `Task.wait` waits for a call in progress. A task whose log is closed during a
call ends with that call. A forked child starts its own threads.

Thread-safe.
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

#: An idle worker exits after this many seconds.
_IDLE_S = 5.0


class Task:
    """A bound method scheduled to run after a delay, once or repeatedly."""

    __slots__ = ("__weakref__", "_calling", "_cancelled", "_method", "_once", "_thread", "seconds")

    def __init__(self, seconds: float, method: Callable[[], None], *, once: bool) -> None:
        self.seconds = seconds
        self._method = weakref.WeakMethod(method)
        self._once = once
        self._cancelled = False
        #: Held by the worker during a call.
        self._calling = forkable(threading.Lock())
        self._thread = 0

    def cancel(self) -> None:
        """Prevent further calls. Use `wait` for one in progress."""
        self._cancelled = True

    def wait(self) -> None:
        """Wait for a call in progress; return immediately if called from within it."""
        if self._thread != threading.get_ident():
            with self._calling:
                pass

    def run(self) -> bool:
        """Call the method unless the task is cancelled or its object is gone. Return whether to reschedule it."""
        with self._calling:
            method = None if self._cancelled else self._method()
            if method is None:
                return False
            self._thread = threading.get_ident()
            try:
                method()
            except LogClosed:  # another thread closed the log during the call: nothing left to do
                return False
            finally:
                self._thread = 0
            return not self._once


_lock = threading.RLock()
#: Wakes the timer when a task is due sooner than it waits for.
_sooner = forkable(threading.Condition(_lock))
#: Wakes an idle worker when a task is ready.
_waiting = forkable(threading.Condition(_lock))
_due: list[tuple[float, int, Task]] = []
_ready: deque[Task] = deque()
_numbers = itertools.count()
_timer: threading.Thread | None = None
#: Number of idle workers.
_idle = 0
#: Nesting depth of `suspended` blocks.
_suspensions = 0


def every(seconds: float, method: Callable[[], None]) -> Task:
    """Call a bound method repeatedly in a background thread, for as long as its object lives. It may block, and must
    not raise anything but `LogClosed`."""
    task = Task(seconds, method, once=False)
    if not _suspensions or not seconds:
        with _lock:
            _schedule(task)
            _start_timer()
    return task


def soon(method: Callable[[], None]) -> Task:
    """Call a bound method once in a background thread, unless its object is gone by then. It may block, and must not
    raise anything but `LogClosed`."""
    task = Task(0.0, method, once=True)
    with _lock:
        _start_timer()
        _dispatch(task)  # bypasses the timer thread: appends that wait for a sync would pay for its wakeup too
    return task


@contextmanager
def suspended() -> Iterator[None]:
    """Ignore calls of `every` within this block, for tests that must be deterministic."""
    global _suspensions  # noqa: PLW0603 - one scheduler per process is the point
    _suspensions += 1
    try:
        yield
    finally:
        _suspensions -= 1


def are_suspended() -> bool:
    """Return True within a `suspended` block."""
    return _suspensions > 0


def _start_timer() -> None:
    """Start the timer thread if it is not running. The caller holds the lock."""
    global _timer, _idle  # noqa: PLW0603 - one timer per process is the point
    if _timer is None or not _timer.is_alive():  # the first call, or a forked child's
        _idle = 0
        _ready.clear()
        _timer = threading.Thread(target=_run_timer, name="sawlog-background", daemon=True)
        _timer.start()


def _schedule(task: Task) -> None:
    """Queue a task for its next call. The caller holds the lock."""
    heapq.heappush(_due, (time.monotonic() + task.seconds, next(_numbers), task))
    _sooner.notify()


def _run_timer() -> None:
    with _sooner:
        while True:
            rest = _due[0][0] - time.monotonic() if _due else None
            if rest is None or rest > 0:
                _sooner.wait(rest)
                continue
            _dispatch(heapq.heappop(_due)[2])


def _dispatch(task: Task) -> None:
    """Hand a due task to an idle worker, or start one. The caller holds the lock."""
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
    """Wait for a ready task; return None after `_IDLE_S` without one."""
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
