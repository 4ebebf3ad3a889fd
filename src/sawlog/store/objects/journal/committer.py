"""`Committer`: one commit at a time for a process; everybody who waits shares the next one.

Callers hand in a request and wait for its outcome. While a commit is on its way the next requests gather, up to
`INLINE_BYTES` of batches in the commit itself; what is larger is uploaded before and only referred to.
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

#: How long a commit waits for those who shared the last one.
_MOMENT_S = 0.005
#: Batches in one commit, at most.
INLINE_BYTES = 8 << 20


@dataclass(slots=True)
class _Waiting:
    """A request, the batches that go into the commit with it, and who waits."""

    request: Request
    inline: Sequence[bytes]
    outcome: Future[Outcome] = field(default_factory=Future)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.inline))


class Committer:
    """The only one in its process who makes commits. Safe for threads; a forked child must not use its parent's."""

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
        #: How many requests the last commit had.
        self._last = 0
        #: Called after each commit, before its callers are told, with the lock.
        self._on_commit = on_commit
        self._queue: deque[_Waiting] = deque()
        self._changed = forkable(threading.Condition(forkable(threading.Lock())))
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, request: Request, inline: Sequence[bytes] = ()) -> Future[Outcome]:
        """Put a request into the next commit. The batches are those of its actions with an empty key, in order."""
        canonical(list(request))  # what cannot be stored must not take the requests of others with it
        made = _Waiting(request, inline)
        with self._changed:
            if self._closed or sys.is_finalizing():  # then no thread starts any more, and nobody would answer
                raise LogClosed("the store is closed")
            self._queue.append(made)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="sawlog-committer", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return made.outcome

    def close(self) -> None:
        """Commit what waits, and end. What nobody could commit has failed then."""
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
        """Let others join, unless there is enough for a commit: for so long, however many come.

        Those who waited for the last commit come again in a moment. Without waiting for them the first of them would
        have the next commit for itself, and all others would wait for the one after it.
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
        self._journal.give_way()
        if self._journal.state.number % self._journal.terms.checkpoint_every == 0:
            self._checkpoint()
        self._check_history()

    def _notify(self) -> None:
        """Tell watchers. An error of theirs must not become that of a commit that is stored."""
        if self._on_commit is not None:
            try:
                self._on_commit()
            except Exception:
                _logger.exception("a callback for new commits failed")

    def _check_history(self) -> None:
        """Notice that the store was deleted or rolled back, after callers were answered: an acknowledgement costs one
        request. The error stops the journal, so the next caller gets it."""
        with self._lock, suppress(StorageError, CorruptData, UpgradeRequired):
            self._journal.check_history(HISTORY_S)

    def _checkpoint(self) -> None:
        """Whoever makes a commit with a round number stores the checkpoint. It is a help: if that fails, upkeep makes
        one later."""
        with self._lock, suppress(StorageError):
            self._journal.checkpoint()


def _fail(waiting: _Waiting, error: BaseException) -> None:
    """Tell a caller, unless it was told."""
    with suppress(InvalidStateError):
        waiting.outcome.set_exception(error)


def _gathered(taken: Sequence[_Waiting]) -> tuple[list[Request], bytes]:
    """The requests of one commit, and all their batches."""
    requests: list[Request] = []
    inline = bytearray()
    for each in taken:
        requests.append(_moved(each, len(inline)))
        for data in each.inline:
            inline += data
    return requests, bytes(inline)


def _moved(waiting: _Waiting, start: int) -> Request:
    """The request with the places that its batches have among those of all requests of the commit."""
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
