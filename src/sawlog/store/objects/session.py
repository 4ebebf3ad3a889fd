"""`StoreSession`: an open store in one process. It owns the bucket, the journal, the readers and two threads.

The `Committer` writes. Callers submit a request and wait for its outcome. One commit at a time is in flight; meanwhile
further requests queue up for the next one, with up to `INLINE_BYTES` of batches in the commit itself. Larger batches
are uploaded first and only referenced.

The `CommitNotifier` waits. It calls watchers back when there are new commits. One thread polls the bucket, however many
watchers there are, and none without watchers: every 50 ms, backing off to 250 ms while nothing arrives. Each commit of
this process notifies the watchers at once and counts as a poll.
"""

from __future__ import annotations

import logging
import sys
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ... import errors
from ...batch.header import Rows
from ...errors import AmbiguousAppend, CorruptData, InvalidRecordType, LogClosed, ReadOnlyLog, SawlogError, StorageError
from ...storage.forking import forkable, this_process
from .bucket import Bucket
from .cache import BlockCache
from .extent_reader import ExtentReader
from .journal import HISTORY_S, Clocks, Journal, StoreParameters
from .state import Outcome, State
from .state.commit import INLINE, STAGED, Request, UpgradeRequired, append_action, canonical, described

if TYPE_CHECKING:
    from ...log.writer import Writer
    from ..consumer import Consumer
    from ..queues.queue import Queue
    from ..writer import TopicWriter

_logger = logging.getLogger("sawlog.store.objects")
_T = TypeVar("_T")

#: Rejections of requests that relied on an outdated state.
_CONFLICTS = {"Changed": "Conflict", "BrokerRemoved": "Conflict"}
#: A state is fresh for this long, plus a typical round trip, after the request that proved it was sent.
LOOK_S = 0.05
#: Interval at which callers that wait for the lock check for a fresh state.
_WAIT_S = 0.02
#: Maximum polling interval of callers that poll, while there is nothing new.
PATIENT_S = 1.0
#: Time for which a commit waits for the callers that shared the last one.
_MOMENT_S = 0.005
#: Maximum size of the batches in one commit.
INLINE_BYTES = 8 << 20
#: Larger batches are uploaded before the commit that refers to them.
INLINE_BATCH_BYTES = 1 << 20
#: Interval between polls of the notifier, from busy to idle.
_SHORTEST_S, _LONGEST_S = 0.05, 0.25


@dataclass(slots=True)
class _Shared:
    """What a session and its `patient` variant share."""

    closed: bool = False
    #: Current polling interval of callers that poll.
    pause_s: float = LOOK_S


class StoreSession:
    """One store, open in one process. Thread-safe."""

    def __init__(
        self,
        bucket: Bucket,
        mode: str,
        parameters: StoreParameters | None = None,
        *,
        clocks: Clocks | None = None,
        cache: BlockCache | None = None,
        linger_s: float = 0.0,
        founded: bytes | None = None,
    ) -> None:
        self.bucket = bucket
        #: The content of `sawlog.json` when the store was opened.
        self._founded = founded
        self.mode = mode
        self.parameters = StoreParameters() if parameters is None else parameters
        self._process = this_process()
        self._clocks = Clocks() if clocks is None else clocks
        self._lock = forkable(threading.RLock())
        self._journal = Journal(bucket, self.parameters, clocks=self._clocks)
        #: Readers of batches; extent_reader.py says which one is for what.
        self.extents = ExtentReader(bucket, cache, self._journal.recent)
        self.maintenance = ExtentReader(bucket, recent=self._journal.recent)
        self.uncached = ExtentReader(bucket)
        #: Notifies watchers of new commits.
        self.notifier = CommitNotifier(self.poll)
        self._committer = Committer(self._journal, self._lock, linger_s=linger_s, on_commit=self.notifier.tell)
        #: True if the caller polls: see `patient`.
        self._is_patient = False
        self._shared = _Shared()
        #: Objects that are closed with the store, if they still exist then.
        self.kept: weakref.WeakSet[Writer | TopicWriter | Consumer | Queue] = weakref.WeakSet()

    @property
    def patient(self) -> StoreSession:
        """This session for a caller that polls: the state is up to a second old, and the bucket is polled less and less
        often while it is idle."""
        made = copy(self)
        made._is_patient = True
        return made

    def close(self) -> None:
        """Close the registered objects and commit the queued requests. A forked child leaves that to its parent."""
        if not self.is_closed and self._process == this_process():
            with ExitStack() as last:  # close each of them, whatever the others raise
                last.callback(self._end)
                for thing in list(self.kept):
                    last.callback(thing.close)
        self._end()

    def _end(self) -> None:
        self._shared.closed = True
        self.notifier.close()
        for reader in (self.extents, self.maintenance, self.uncached):
            reader.close()
        if self._process == this_process():
            self._committer.close()

    def check_open(self) -> None:
        """Raise if the store is closed or belongs to the parent process: two processes must not commit with the same
        nonces."""
        if self.is_closed:
            raise LogClosed(f"the store {self.bucket.url} is closed")
        if self._process != this_process():
            raise LogClosed(f"the store {self.bucket.url} was opened by the parent process; open it in this one")

    def check_writable(self) -> None:
        self.check_open()
        if self.mode != "w":
            raise ReadOnlyLog(f'the store {self.bucket.url} was opened with mode="r"')

    @property
    def is_closed(self) -> bool:
        return self._shared.closed

    def look(self, read: Callable[[State], _T], *, fresh: bool = False) -> _T:
        """Read from the state as of at most 50 ms and one typical round trip ago, or with `fresh` as of now. If this
        session is `patient`, the state may be older."""
        self.check_open()
        pause_s = self._shared.pause_s if self._is_patient else LOOK_S
        enough_s = 0.0 if fresh else pause_s + self._journal.round_trip_s
        oldest_s = self._clocks.now_s()[0] - enough_s
        while not self._lock.acquire(timeout=_WAIT_S):
            # A commit that loses races holds the lock for seconds, and refreshes the state repeatedly.
            with self._journal.folding:
                if self._is_proved(oldest_s):
                    return read(self._journal.state)
        try:
            before = self._journal.state.number
            if self._refresh(oldest_s):
                is_idle = self._journal.state.number == before
                self._shared.pause_s = min(pause_s * 2, PATIENT_S) if is_idle and self._is_patient else LOOK_S
            return read(self._journal.state)
        finally:
            self._lock.release()

    def find(self, read: Callable[[State], _T | None]) -> _T | None:
        """Read from the state; from a fresh one if nothing is found."""
        found = self.look(read)
        return self.look(read, fresh=True) if found is None else found

    def peek(self, read: Callable[[State], _T]) -> _T:
        """Read from the last folded state, without a request. Never blocks for long."""
        with self._journal.folding:
            return read(self._journal.state)

    def last_known(self, read: Callable[[State], _T]) -> _T:
        """Read from the state for a commit that relies on it. No request is sent while answers are believed: the commit
        comes after everything that others have committed, and is rejected on a conflict."""
        self.check_open()
        proved_s = self._journal.proved_s
        if proved_s is None or self._clocks.now_s()[0] - proved_s > self.parameters.belief_s:
            return self.look(read)  # the commit would have to restart from a checkpoint as well
        return self.peek(read)

    def poll(self, age_s: float) -> None:
        """Look for new commits, unless that was done within `age_s`."""
        with self._lock:
            self._refresh(self._clocks.now_s()[0] - age_s)

    def _refresh(self, oldest_s: float) -> bool:
        """Look for new commits and return True, unless a request sent after `oldest_s` has shown that there are none.
        So one request answers all concurrent callers, and a commit counts as one."""
        if self._is_proved(oldest_s):
            return False
        if self._journal.refresh():
            self.notifier.tell()
        return True

    def _is_proved(self, oldest_s: float) -> bool:
        """Return whether a request sent after `oldest_s` has shown that nothing is new."""
        proved_s = self._journal.proved_s
        return proved_s is not None and proved_s > oldest_s

    def glance(self, read: Callable[[State], _T]) -> _T | None:
        """Read from the last folded state; None if the store is closed or nothing is known."""
        return None if self.is_closed or self._journal.proved_s is None else self.peek(read)

    def check_end(self) -> None:
        """Raise `CorruptData` if a commit is missing before others."""
        self.check_open()
        with self._lock:
            self._journal.check_end()

    def check_store(self) -> None:
        """Raise `CorruptData` if the store was deleted, replaced or rolled back since it was opened."""
        self.check_open()
        with self._lock:
            self._journal.check_history(HISTORY_S)
            if self._founded is not None:
                self._journal.check_identity(self._founded)

    def checkpoint(self) -> bool:
        """Store the state as a checkpoint, unless there is one."""
        self.check_open()
        with self._lock:
            return self._journal.checkpoint()

    def upload(self, data: bytes) -> str:
        """Upload batches to an object of their own, and return its key for an action."""
        key = f"{STAGED}{self.last_known(lambda state: state.number):020}-{uuid.uuid4().hex}"
        self.bucket.put(key, data)
        return key

    def is_inline(self, data: bytes) -> bool:
        """Return whether batches are small enough to be part of the commit itself."""
        return len(data) <= INLINE_BATCH_BYTES

    def append_action(
        self, topic_id: str, partition: int, data: bytes, rows: Rows, expect_offset: int | None = None
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Return the action that appends batches with these headers, and the batches that go inline. Large ones are
        uploaded."""
        if expect_offset is not None and (isinstance(expect_offset, bool) or not isinstance(expect_offset, int)):
            raise InvalidRecordType(f"expect_offset must be an integer, not {expect_offset!r}")
        is_small = self.is_inline(data)
        key = INLINE if is_small else self.upload(data)
        return append_action(topic_id, partition, key, described(rows), expect_offset), [data] if is_small else []

    def known(self) -> int:
        return self.look(lambda state: state.number)

    def submit(self, request: Request, inline: Sequence[bytes] = ()) -> Future[Outcome]:
        self.check_writable()
        return self._committer.submit(request, inline)

    def commit(self, request: Request, inline: Sequence[bytes] = ()) -> list[object]:
        """Commit a request and return a result for each of its actions. Raises the error of a rejection."""
        return results(self.submit(request, inline).result())


def results(outcome: Outcome) -> list[object]:
    if "ok" in outcome:
        return list(outcome["ok"])
    raise rejection(*outcome["no"])


def refused_with(outcome: Outcome) -> str | None:
    """Return the kind of error with which a request was rejected; None if it was applied."""
    return outcome["no"][0] if "no" in outcome else None


def rejection(kind: str, message: str, *numbers: int) -> SawlogError:
    if kind in ("Expired", "Void"):
        return AmbiguousAppend(message)
    made = getattr(errors, _CONFLICTS.get(kind, kind), None)
    if isinstance(made, type) and issubclass(made, SawlogError):
        return made(*numbers) if numbers else made(message)
    return SawlogError(f"{kind}: {message}")


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
        while self._queue:  # the thread has died
            _fail(self._queue.popleft(), LogClosed("the store was closed before this was committed"))

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
            self._changed.wait_for(
                lambda: self._closed or sum(each.size_bytes for each in self._queue) >= INLINE_BYTES, self._linger_s
            )
        elif self._last > 1:
            self._changed.wait_for(lambda: self._closed or len(self._queue) >= self._last, _MOMENT_S)

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
        self._follow_up()

    def _notify(self) -> None:
        """Notify watchers. Their errors must not fail a commit that is stored."""
        if self._on_commit is not None:
            try:
                self._on_commit()
            except Exception:
                _logger.exception("a callback for new commits failed")

    def _follow_up(self) -> None:
        """Store a checkpoint after a commit with a round number: best effort, since maintenance stores one later. Then
        check that the store was not deleted or rolled back. Both come after the callers were answered, so that an
        acknowledgement costs one request. An error stops the journal, so the next caller gets it."""
        with self._lock:
            if self._journal.state.number % self._journal.parameters.checkpoint_every == 0:
                with suppress(StorageError):
                    self._journal.checkpoint()
            with suppress(StorageError, CorruptData, UpgradeRequired):
                self._journal.check_history(HISTORY_S)


def _fail(waiting: _Waiting, error: BaseException) -> None:
    """Fail a waiting request, unless it has an outcome."""
    with suppress(InvalidStateError):
        waiting.outcome.set_exception(error)


def _gathered(taken: Sequence[_Waiting]) -> tuple[list[Request], bytes]:
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


class CommitNotifier:
    """The callbacks to call on new commits. Thread-safe."""

    def __init__(self, poll: Callable[[float], None]) -> None:
        #: Looks for new commits, unless that was done within this many seconds.
        self._poll = poll
        self._calls: dict[object, Callable[[], None]] = {}
        self._changed = forkable(threading.Condition(forkable(threading.Lock())))
        self._thread: threading.Thread | None = None
        self._came = False
        self._closed = False

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call back when there are new commits, until the returned function is called. The callback must not block: it
        runs in whichever thread has seen them."""
        token = object()
        with self._changed:
            self._calls[token] = call
            if (self._thread is None or not self._thread.is_alive()) and not self._closed:
                self._thread = threading.Thread(target=self._work, name="sawlog-objects-news", daemon=True)
                self._thread.start()

        def stop() -> None:
            with self._changed:
                self._calls.pop(token, None)
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
