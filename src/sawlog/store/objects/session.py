"""`Core`: what the parts of an open store share: its bucket, its journal, and who makes its commits."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Protocol, TypeVar

from ... import errors
from ...errors import AmbiguousAppend, LogClosed, ReadOnlyLog, SawlogError
from ...storage.forking import forkable, this_process
from .bucket.bucket import Bucket
from .bucket.cache import BlockCache
from .extent_reader import ExtentReader
from .journal.clocks import Clocks
from .journal.committer import Committer
from .journal.journal import HISTORY_S, Journal
from .journal.notifier import News, Recent
from .journal.parameters import Terms
from .state.commit import Request
from .state.extents import STAGED
from .state.state import Outcome, State

_T = TypeVar("_T")

#: Rejections of what relied on a state that is gone.
_CONFLICTS = {"Changed": "Conflict", "BrokerRemoved": "Conflict"}
#: A state is fresh for this long, and for a usual round trip, after the request that has shown it was sent.
LOOK_S = 0.05
#: How often those who wait for the lock look whether they are answered by now.
_WAIT_S = 0.02
#: Whoever looks again and again asks less often while there is nothing new, up to this.
CALM_S = 1.0


class Closable(Protocol):
    """What came from a store and is closed with it."""

    def close(self) -> None:
        """Safe to call twice."""


class Core:
    """One store, open in one process. Safe for threads."""

    def __init__(
        self,
        bucket: Bucket,
        mode: str,
        terms: Terms | None = None,
        *,
        clocks: Clocks | None = None,
        cache: BlockCache | None = None,
        linger_s: float = 0.0,
        founded: bytes | None = None,
    ) -> None:
        self.bucket = bucket
        #: What `sawlog.json` said when the store was opened.
        self._founded = founded
        self.mode = mode
        self.terms = Terms() if terms is None else terms
        self._process = this_process()
        self._clocks = Clocks() if clocks is None else clocks
        self._lock = forkable(threading.RLock())
        self._journal = Journal(bucket, self.terms, clocks=self._clocks)
        #: Commits that were folded lately: whoever follows the end of a partition finds its batches there.
        self.recent = Recent()
        self._journal.on_fold = self.recent.add
        #: Read batches; reading.py says which of them for what.
        self.extents = ExtentReader(bucket, cache, self.recent)
        self.maintenance = ExtentReader(bucket, recent=self.recent)
        self.uncached = ExtentReader(bucket)
        #: Tells others that there is something new.
        self.news = News(self)
        self._committer = Committer(self._journal, self._lock, linger_s=linger_s, on_commit=self.news.tell)
        #: How long those wait who look again and again.
        self._calm_s = LOOK_S
        #: What is closed with the store: writers and consumers.
        self._kept: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._closed = False

    def keep(self, thing: Closable) -> None:
        """Close it with the store, if it is still there then."""
        self._kept.add(thing)

    def close(self) -> None:
        """Close what came from it, and commit what waits. A forked child leaves that to its parent."""
        if not self._closed and self._process == this_process():
            with ExitStack() as last:  # each of them, whatever the others raise
                last.callback(self._end)
                for thing in list(self._kept):
                    last.callback(thing.close)
        self._end()

    def _end(self) -> None:
        self._closed = True
        self.news.close()
        for reader in (self.extents, self.maintenance, self.uncached):
            reader.close()
        if self._process == this_process():
            self._committer.close()

    def check_open(self) -> None:
        """Raise if it is closed, or its parent's: two processes must not make commits with the same nonces."""
        if self._closed:
            raise LogClosed(f"the store {self.bucket.url} is closed")
        if self._process != this_process():
            raise LogClosed(f"the store {self.bucket.url} was opened by the parent process; open it in this one")

    def check_writable(self) -> None:
        """Raise if it is closed, or only for reading."""
        self.check_open()
        if self.mode != "w":
            raise ReadOnlyLog(f'the store {self.bucket.url} was opened with mode="r"')

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def look(self, read: Callable[[State], _T], *, fresh: bool = False, calm: bool = False) -> _T:
        """Read something of the state as it was at most 50 ms and one usual round trip ago, or with `fresh` as it is
        now. A caller that polls is `calm`: then the state is up to a second old, and the bucket is asked less and less
        often while nothing happens."""
        self.check_open()
        enough_s = 0.0 if fresh else (self._calm_s if calm else LOOK_S) + self._journal.round_trip_s
        oldest_s = self._clocks.now_s()[0] - enough_s
        while not self._lock.acquire(timeout=_WAIT_S):
            # A commit that loses races has the lock for seconds, and reads all that is new again and again.
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
        """Read something of the state as it was folded last, without asking the bucket: it never waits for long."""
        with self._journal.folding:
            return read(self._journal.state)

    def last_known(self, read: Callable[[State], _T]) -> _T:
        """Read something of the state for a commit that relies on it. Nothing is requested while answers are believed:
        the commit is created after everything that others have committed, and is rejected if that contradicts it."""
        self.check_open()
        proved_s = self._journal.proved_s
        if proved_s is None or self._clocks.now_s()[0] - proved_s > self.terms.belief_s:
            return self.look(read)  # the commit would have to begin again from a checkpoint, too
        return self.peek(read)

    def poll(self, age_s: float) -> None:
        """Look for new commits, unless that was done within this time."""
        with self._lock:
            self._refresh(self._clocks.now_s()[0] - age_s)

    def _refresh(self, oldest_s: float) -> bool:
        """Look for new commits, unless a request that was sent after this time has shown that there are none: many who
        ask at the same time are answered by one request, and a commit is one. Whether it has looked."""
        if self._is_proved(oldest_s):
            return False
        if self._journal.refresh():
            self.news.tell()
        return True

    def _is_proved(self, oldest_s: float) -> bool:
        """Whether a request that was sent after this time has shown that nothing else is new."""
        proved_s = self._journal.proved_s
        return proved_s is not None and proved_s > oldest_s

    def glance(self, read: Callable[[State], _T]) -> _T | None:
        """The same; None if it is closed, or nothing is known."""
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
        """Store batches in an object of their own, and return its key, for an action."""
        key = f"{STAGED}{self.last_known(lambda state: state.number):020}-{uuid.uuid4().hex}"
        self.bucket.put(key, data)
        return key

    def known(self) -> int:
        """How many commits are known."""
        return self.look(lambda state: state.number)

    def submit(self, request: Request, inline: Sequence[bytes] = ()) -> Future[Outcome]:
        """Let a request be part of the next commit."""
        self.check_writable()
        return self._committer.submit(request, inline)

    def commit(self, request: Request, inline: Sequence[bytes] = ()) -> list[object]:
        """Commit a request, and return a result for each of its actions; its error if it is rejected."""
        return results(self.submit(request, inline).result())


def results(outcome: Outcome) -> list[object]:
    """The results of a request, or the error that its rejection is."""
    if "ok" in outcome:
        return list(outcome["ok"])
    raise rejection(*outcome["no"])


def rejection(kind: str, message: str, *numbers: int) -> SawlogError:
    """The error for a request that was rejected."""
    if kind in ("Expired", "Void"):
        return AmbiguousAppend(message)
    made = getattr(errors, _CONFLICTS.get(kind, kind), None)
    if isinstance(made, type) and issubclass(made, SawlogError):
        return made(*numbers) if numbers else made(message)
    return SawlogError(f"{kind}: {message}")
