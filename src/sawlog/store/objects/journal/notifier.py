"""`News`: who waits for new commits is told of them. `Recent`: the commits that were folded lately, or are read much.

One thread of a process looks for new commits, however many wait for them, and none if nobody does.

While somebody waits the bucket is asked every 50 ms, and less often, down to every 250 ms, as long as nothing comes;
each commit of this process is news at once, and counts as a look.
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
#: Commits that are kept in memory, at most.
_RECENT_BYTES = 32 << 20


class Polled(Protocol):
    """What is asked for new commits."""

    def poll(self, age_s: float) -> None:
        """Look for new commits, unless that was done within this time."""


class News:
    """Those who wait for commits. Safe for threads."""

    def __init__(self, polled: Polled) -> None:
        self._polled = polled
        self._calls: dict[int, Callable[[], None]] = {}
        self._next = 0
        self._changed = forkable(threading.Condition(forkable(threading.Lock())))
        self._thread: threading.Thread | None = None
        self._came = False
        self._closed = False

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call back when there are new commits, until the returned function is called. The callback must not wait: it
        runs in whatever thread has seen them."""
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
        """There are new commits."""
        with self._changed:
            self._came = True
            calls = list(self._calls.values())
        for call in calls:
            call()

    def close(self) -> None:
        """Look no more."""
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
            except SawlogError as error:  # tried again; who reads gets the error
                _logger.warning("new commits could not be looked for: %s", error)
                pause_s = _LONGEST_S


class Recent:
    """The last commits, checked, as they are in the bucket, up to a number of bytes. Safe for threads."""

    def __init__(self, max_bytes: int = _RECENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = forkable(threading.Lock())

    def add(self, key: str, data: bytes) -> None:
        """Keep one; it replaces what another history had under its number."""
        with self._lock:
            self._size_bytes += len(data) - len(self._kept.pop(key, b""))
            self._kept[key] = data
            while self._size_bytes > self._max_bytes and self._kept:
                self._size_bytes -= len(self._kept.popitem(last=False)[1])

    def forget(self, key: str) -> None:
        """Keep this one no longer."""
        with self._lock:
            self._size_bytes -= len(self._kept.pop(key, b""))

    def has(self, key: str) -> bool:
        """Whether a commit is kept, at this moment."""
        return key in self._kept

    def get(self, key: str, position: int, size_bytes: int) -> bytes | None:
        """A part of a commit; None if it is not kept. The caller compares its digest: the commit may be one of another
        history, if the bucket was rolled back."""
        found = self._kept.get(key)
        if found is None or len(found) < position + size_bytes:
            return None
        return found[position : position + size_bytes]
