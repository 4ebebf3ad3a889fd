"""`CommitNotifier` wakes waiters when there are new commits; `CommitCache` keeps recently folded or frequently read
commits in memory.

One thread per process polls for new commits, however many waiters there are, and none if there are no waiters. It polls
the bucket every 50 ms, backing off to 250 ms while nothing arrives. Each commit of this process wakes the waiters at
once and counts as a poll.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from ....errors import LogClosed, SawlogError
from ....storage.forking import forkable

_logger = logging.getLogger("sawlog.store.objects")

_SHORTEST_S, _LONGEST_S = 0.05, 0.25
#: Maximum size of the cached commits.
_RECENT_BYTES = 32 << 20


class Polled(Protocol):
    """A source of new commits."""

    def poll(self, age_s: float) -> None:
        """Look for new commits, unless that was done within `age_s`."""


class CommitNotifier:
    """The callbacks to call on new commits. Thread-safe."""

    def __init__(self, polled: Polled) -> None:
        self._polled = polled
        self._calls: dict[int, Callable[[], None]] = {}
        self._next = 0
        self._changed = forkable(threading.Condition(forkable(threading.Lock())))
        self._thread: threading.Thread | None = None
        self._came = False
        self._closed = False

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call back when there are new commits, until the returned function is called. The callback must not block: it
        runs in whichever thread has seen them."""
        with self._changed:
            self._next += 1
            number = self._next
            self._calls[number] = call
            if (self._thread is None or not self._thread.is_alive()) and not self._closed:
                self._thread = threading.Thread(target=self._work, name="sawlog-objects-news", daemon=True)
                self._thread.start()

        def stop() -> None:
            with self._changed:
                self._calls.pop(number, None)
                self._changed.notify_all()

        return stop

    def tell(self) -> None:
        """Call the watchers: there are new commits."""
        with self._changed:
            self._came = True
            calls = list(self._calls.values())
        for call in calls:
            call()

    def close(self) -> None:
        """Stop polling."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        pause_s = _SHORTEST_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or not self._calls, pause_s)
                if self._closed or not self._calls:
                    self._thread = None
                    return
                pause_s = _SHORTEST_S if self._came else min(pause_s * 1.3, _LONGEST_S)
                self._came = False
            try:
                self._polled.poll(pause_s * 0.8)
            except LogClosed:
                return
            except SawlogError as error:  # retried; readers get the error themselves
                _logger.warning("new commits could not be looked for: %s", error)
                pause_s = _LONGEST_S


class CommitCache:
    """The last commits, verified, as they are in the bucket, up to a total size. Thread-safe."""

    def __init__(self, max_bytes: int = _RECENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = forkable(threading.Lock())

    def add(self, key: str, data: bytes) -> None:
        """Cache a commit; it replaces one of another history with the same number."""
        with self._lock:
            self._size_bytes += len(data) - len(self._kept.pop(key, b""))
            self._kept[key] = data
            while self._size_bytes > self._max_bytes and self._kept:
                self._size_bytes -= len(self._kept.popitem(last=False)[1])

    def forget(self, key: str) -> None:
        with self._lock:
            self._size_bytes -= len(self._kept.pop(key, b""))

    def has(self, key: str) -> bool:
        """Return whether a commit is cached at this moment."""
        return key in self._kept

    def get(self, key: str, position: int, size_bytes: int) -> bytes | None:
        """Return a byte range of a commit, or None if it is not cached. The caller must compare its digest: the commit
        may belong to another history if the bucket was rolled back."""
        found = self._kept.get(key)
        if found is None or len(found) < position + size_bytes:
            return None
        return found[position : position + size_bytes]
