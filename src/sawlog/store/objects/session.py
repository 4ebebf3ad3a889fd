"""`StoreSession`: an open store in one process: its bucket, its journal, its readers and its committer."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from ... import errors
from ...errors import AmbiguousAppend, LogClosed, ReadOnlyLog, SawlogError
from ...storage.forking import forkable, this_process
from .bucket.bucket import Bucket
from .bucket.cache import BlockCache
from .extent_reader import ExtentReader
from .journal.committer import CommitCache, CommitNotifier, Committer
from .journal.journal import HISTORY_S, Journal
from .journal.timing import Clocks, StoreParameters
from .state.commit import Request
from .state.extents import STAGED
from .state.state import Outcome, State

if TYPE_CHECKING:
    from ...log.writer import Writer
    from ..consumer import Consumer
    from ..queues.queue import Queue
    from ..writer import TopicWriter

_T = TypeVar("_T")

#: Rejections of requests that relied on an outdated state.
_CONFLICTS = {"Changed": "Conflict", "BrokerRemoved": "Conflict"}
#: A state is fresh for this long, plus a typical round trip, after the request that proved it was sent.
LOOK_S = 0.05
#: How often callers that wait for the lock check whether the state is fresh by now.
_WAIT_S = 0.02
#: Maximum polling interval of callers that poll, while there is nothing new.
CALM_S = 1.0


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
        #: Recently folded commits: readers that follow the end of a partition find its batches there.
        self.recent = CommitCache()
        self._journal.on_fold = self.recent.add
        #: Readers of batches; extent_reader.py says which one is for what.
        self.extents = ExtentReader(bucket, cache, self.recent)
        self.maintenance = ExtentReader(bucket, recent=self.recent)
        self.uncached = ExtentReader(bucket)
        #: Notifies watchers of new commits.
        self.notifier = CommitNotifier(self.poll)
        self._committer = Committer(self._journal, self._lock, linger_s=linger_s, on_commit=self.notifier.tell)
        #: Current polling interval of callers that poll.
        self._calm_s = LOOK_S
        #: Writers and consumers, which are closed with the store.
        self._kept: weakref.WeakSet[Writer | TopicWriter | Consumer | Queue] = weakref.WeakSet()
        self._closed = False

    def keep(self, thing: Writer | TopicWriter | Consumer | Queue) -> None:
        """Close an object with the store, if it still exists then."""
        self._kept.add(thing)

    def close(self) -> None:
        """Close the registered objects and commit the queued requests. A forked child leaves that to its parent."""
        if not self._closed and self._process == this_process():
            with ExitStack() as last:  # close each of them, whatever the others raise
                last.callback(self._end)
                for thing in list(self._kept):
                    last.callback(thing.close)
        self._end()

    def _end(self) -> None:
        self._closed = True
        self.notifier.close()
        for reader in (self.extents, self.maintenance, self.uncached):
            reader.close()
        if self._process == this_process():
            self._committer.close()

    def check_open(self) -> None:
        """Raise if the store is closed or belongs to the parent process: two processes must not commit with the same
        nonces."""
        if self._closed:
            raise LogClosed(f"the store {self.bucket.url} is closed")
        if self._process != this_process():
            raise LogClosed(f"the store {self.bucket.url} was opened by the parent process; open it in this one")

    def check_writable(self) -> None:
        """Raise if the store is closed or read-only."""
        self.check_open()
        if self.mode != "w":
            raise ReadOnlyLog(f'the store {self.bucket.url} was opened with mode="r"')

    @property
    def is_closed(self) -> bool:
        return self._closed

    def look(self, read: Callable[[State], _T], *, fresh: bool = False, calm: bool = False) -> _T:
        """Read from the state as of at most 50 ms and one typical round trip ago, or with `fresh` as of now. A caller
        that polls passes `calm`: the state is then up to a second old, and the bucket is polled less and less often
        while it is idle."""
        self.check_open()
        enough_s = 0.0 if fresh else (self._calm_s if calm else LOOK_S) + self._journal.round_trip_s
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
                self._calm_s = min(self._calm_s * 2, CALM_S) if is_idle and calm else LOOK_S
            return read(self._journal.state)
        finally:
            self._lock.release()

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
        return None if self._closed or self._journal.proved_s is None else self.peek(read)

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

    def known(self) -> int:
        """Return the number of known commits."""
        return self.look(lambda state: state.number)

    def submit(self, request: Request, inline: Sequence[bytes] = ()) -> Future[Outcome]:
        """Add a request to the next commit."""
        self.check_writable()
        return self._committer.submit(request, inline)

    def commit(self, request: Request, inline: Sequence[bytes] = ()) -> list[object]:
        """Commit a request and return a result for each of its actions. Raises the error of a rejection."""
        return results(self.submit(request, inline).result())


def results(outcome: Outcome) -> list[object]:
    """Return the results of a request, or raise the error of its rejection."""
    if "ok" in outcome:
        return list(outcome["ok"])
    raise rejection(*outcome["no"])


def rejection(kind: str, message: str, *numbers: int) -> SawlogError:
    """Return the error for a rejected request."""
    if kind in ("Expired", "Void"):
        return AmbiguousAppend(message)
    made = getattr(errors, _CONFLICTS.get(kind, kind), None)
    if isinstance(made, type) and issubclass(made, SawlogError):
        return made(*numbers) if numbers else made(message)
    return SawlogError(f"{kind}: {message}")
