"""`Committer`: one commit at a time per process, shared by all waiting callers.

Callers submit a request and wait for its outcome. While a commit is in flight, further requests queue up for the next
one, with up to `INLINE_BYTES` of batches in the commit itself. Larger batches are uploaded first and only referenced.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ....errors import CorruptData, LogClosed, StorageError
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
