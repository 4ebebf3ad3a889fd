"""The threads of a process share its journal here: `Committer` for writing, `CommitNotifier` for waiting, `CommitCache`
for reading.

Callers submit a request to the `Committer` and wait for its outcome. One commit at a time is in flight. Meanwhile,
further requests queue up for the next one, with up to `INLINE_BYTES` of batches in the commit itself. Larger batches
are uploaded first and only referenced.

The `CommitNotifier` wakes waiters when there are new commits. One thread polls the bucket for them, however many
waiters there are, and none if there are no waiters: every 50 ms, backing off to 250 ms while nothing arrives. Each
commit of this process wakes the waiters at once and counts as a poll.

The `CommitCache` keeps recently folded and frequently read commits in memory.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ....errors import CorruptData, LogClosed, SawlogError, StorageError
from ....storage.forking import forkable
from ..state.commit import Request, UpgradeRequired, canonical
from ..state.extents import INLINE
from ..state.state import Outcome
from .journal import HISTORY_S, Journal

_logger = logging.getLogger("sawlog.store.objects")

#: How long a commit waits for the callers that shared the last one.
_MOMENT_S = 0.005
#: Maximum size of the batches in one commit.
INLINE_BYTES = 8 << 20


@dataclass(slots=True)
class _Waiting:
    """A request, the batches to store in its commit, and the future of its outcome."""

    request: Request
    inline: Sequence[bytes]
    outcome: Future[Outcome] = field(default_factory=Future)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.inline))


class Committer:
    """The only source of commits in its process. Thread-safe; a forked child must not use its parent's."""

    def __init__(
        self,
        journal: Journal,
        lock: threading.RLock,
        *,
        linger_s: float = 0.0,
        on_commit: Callable[[], None] | None = None,
    ) -> None:
        self._journal = journal
        #: Guards the journal and its state.
        self._lock = lock
        self._linger_s = linger_s
        #: Number of requests in the last commit.
        self._last = 0
        #: Called after each commit, before its callers are notified, with the lock held.
        self._on_commit = on_commit
        self._queue: deque[_Waiting] = deque()
        self._changed = forkable(threading.Condition(forkable(threading.Lock())))
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, request: Request, inline: Sequence[bytes] = ()) -> Future[Outcome]:
        """Add a request to the next commit. `inline` holds the batches of its actions with an empty key, in order."""
        canonical(list(request))  # a request that cannot be encoded must not fail the requests of others
        made = _Waiting(request, inline)
        with self._changed:
            if self._closed or sys.is_finalizing():  # threads no longer start, so nothing would answer
                raise LogClosed("the store is closed")
            self._queue.append(made)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="sawlog-committer", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return made.outcome

    def close(self) -> None:
        """Commit the queued requests and stop. Requests that could not be committed fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._changed:
            left = list(self._queue)
            self._queue.clear()
        for each in left:  # the thread has died
            _fail(each, LogClosed("the store was closed before this was committed"))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                self._linger()
                taken = self._take()
                self._last = len(taken)
            self._commit([each for each in taken if each.outcome.set_running_or_notify_cancel()])

    def _linger(self) -> None:
        """Wait for more requests to join, unless there are enough for a commit.

        The callers of the last commit usually return within moments. Without this wait the first of them would get a
        commit of its own, and all others would wait for the one after it.
        """
        if self._closed:
            return
        if self._linger_s:
            self._changed.wait_for(lambda: self._closed or self._queued_bytes() >= INLINE_BYTES, self._linger_s)
        elif self._last > 1:
            self._changed.wait_for(lambda: self._closed or len(self._queue) >= self._last, _MOMENT_S)

    def _queued_bytes(self) -> int:
        return sum(each.size_bytes for each in self._queue)

    def _take(self) -> list[_Waiting]:
        taken = [self._queue.popleft()]
        size = taken[0].size_bytes
        while self._queue and size + self._queue[0].size_bytes <= INLINE_BYTES:
            taken.append(self._queue.popleft())
            size += taken[-1].size_bytes
        return taken

    def _commit(self, taken: list[_Waiting]) -> None:
        if not taken:
            return
        try:
            requests, inline = _gathered(taken)
            with self._lock:
                outcomes = self._journal.commit(requests, inline)
                self._notify()
        except BaseException as error:
            for each in taken:
                _fail(each, error)
            if not isinstance(error, Exception):
                raise
            return
        for each, outcome in zip(taken, outcomes, strict=True):
            each.outcome.set_result(outcome)
        self._journal.back_off()
        if self._journal.state.number % self._journal.parameters.checkpoint_every == 0:
            self._checkpoint()
        self._check_history()

    def _notify(self) -> None:
        """Notify watchers. Their errors must not fail a commit that is stored."""
        if self._on_commit is not None:
            try:
                self._on_commit()
            except Exception:
                _logger.exception("a callback for new commits failed")

    def _check_history(self) -> None:
        """Detect that the store was deleted or rolled back, after callers were answered, so that an acknowledgement
        costs one request. The error stops the journal, so the next caller gets it."""
        with self._lock, suppress(StorageError, CorruptData, UpgradeRequired):
            self._journal.check_history(HISTORY_S)

    def _checkpoint(self) -> None:
        """Store a checkpoint after a commit with a round number. Best effort: if it fails, maintenance stores one
        later."""
        with self._lock, suppress(StorageError):
            self._journal.checkpoint()


def _fail(waiting: _Waiting, error: BaseException) -> None:
    """Fail a waiting request, unless it has an outcome."""
    with suppress(InvalidStateError):
        waiting.outcome.set_exception(error)


def _gathered(taken: Sequence[_Waiting]) -> tuple[list[Request], bytes]:
    """Return the requests of one commit and all their batches."""
    requests: list[Request] = []
    inline = bytearray()
    for each in taken:
        requests.append(_moved(each, len(inline)))
        for data in each.inline:
            inline += data
    return requests, bytes(inline)


def _moved(waiting: _Waiting, start: int) -> Request:
    """Return a request with its batch positions shifted to where they are in the commit."""
    actions: list[Any] = []
    parts = iter(waiting.inline)
    for action in waiting.request:
        if action.get("do") != "append" or action["key"] != INLINE:
            actions.append(action)
            continue
        extents = [[position + start, *rest] for position, *rest in action["extents"]]
        actions.append({**action, "extents": extents})
        start += len(next(parts))
    return actions


_SHORTEST_S, _LONGEST_S = 0.05, 0.25
#: Maximum size of the cached commits.
_RECENT_BYTES = 32 << 20


class CommitNotifier:
    """The callbacks to call on new commits. Thread-safe."""

    def __init__(self, poll: Callable[[float], None]) -> None:
        #: Looks for new commits, unless that was done within this many seconds.
        self._poll = poll
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
                self._poll(pause_s * 0.8)
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
