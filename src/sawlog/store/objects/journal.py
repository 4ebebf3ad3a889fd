"""`Journal`: reads and creates the numbered commits of a store.

```
commits/00000000000000000042     created if absent: the commit point
```

What makes it safe (ADR 25 has the argument, rules R1 to R8):

- *Belief* (R1). An answer of the bucket is believed only for `belief_s` after the last proof that the next number was
  not collected. `_anchor` is the time at which the proving request was sent: a listing of the checkpoints, a "not
  found" or a successful create. Without such a proof the journal restarts from the newest checkpoint. So a process that
  slept while commits were collected cannot create one of their numbers and believe it.
- *A create that is not answered with "created"* (R4) is looked up. With our nonce, it was applied; with another
  writer's, it was not; if the number is free, the same bytes are sent to it again. A rejection alone proves nothing:
  the client library retries requests, so the existing object may be our own commit. Until the number is known to belong
  to another writer, every error is `UnknownOutcome`.
- *Checkpoints* (R7) are used only if the next commit carries their digest; until then commits are folded.
- *Unknown or impossible content* (R8) stops the process: every later call raises the error again. An object that fails
  its checksum is read again first, because a bit may have flipped in transit.
- *History*. A bucket can be deleted or rolled back under a running process. So a process checks that the bucket still
  has the commits that it has folded: after a commit of its own, at most every `HISTORY_S`, and whenever it restarts
  from a checkpoint. If one is missing or different, the process stops.
"""

from __future__ import annotations

import errno
import random
import threading
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import chain, repeat
from statistics import median_low
from typing import NamedTuple

from ... import clock
from ...clock import now_ms
from ...errors import AmbiguousAppend, CorruptData, InvalidConfig, StorageError
from ...storage.forking import forkable
from . import checkpoints
from .bucket import Bucket, Unanswered
from .state import Outcome, State
from .state.commit import (
    COMMITS,
    Collected,
    Commit,
    Nonce,
    Request,
    Unreadable,
    UpgradeRequired,
    commit_key,
    is_tombstone,
    verified_commit,
)

#: The object that marks a store and holds its parameters, and a copy of it for `sawlog repair`.
STORE, STORE_COPY = "sawlog.json", "sawlog.copy.json"
#: Number of times an unanswered commit is looked up before its outcome is reported as unknown.
_LOOKS = 8
#: Maximum number of restarts. A bucket slower than `belief_s` would otherwise retry forever.
_RESTARTS = 12
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
#: Number of commits to request at a time. A process that follows a store finds none or one; finding more means that it
#: lags far behind.
_STEPS = (1, 1, 4, 16, 32)
#: Number of lost races in a row after which everything new is read before the next attempt.
_LOSSES = 2
#: The typical round trip is the median of this many. One sample is not enough: it may have been slow.
_ROUND_TRIPS = 8
#: Interval at which a process that commits checks that the bucket still has its earlier commits.
HISTORY_S = 10.0
#: The first bytes of a commit identify it: they hold its length, its checksum and the digest of the state before it.
_HEAD_BYTES = 128
#: Maximum number of commits folded since the last check to check: the newest.
_MOST_SIZES = 4096
#: There are other writers if one of their commits was seen within this time, or within the time of this many creates.
_COMPANY_S, _COMPANY_CREATES = 2.0, 50
#: Commits in a row after which a writer pauses even if it has seen no other.
_ALONE = 32
#: Number of creates whose duration is remembered.
_REMEMBERED = 8
#: Maximum size of the cached commits.
_RECENT_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class StoreParameters:
    """Lifetimes of answers, commit numbers and unreferenced objects."""

    #: Time for which an answer is believed after the last proof that the next number was not collected.
    belief_s: float = 600.0
    #: Time for which a commit number stays taken after its commit fell behind a confirmed checkpoint, and for which an
    #: upload may wait for its commit.
    grace_s: float = 7 * 86_400.0
    #: Time for which an unreferenced object is kept, because a reader may have planned to read it.
    readers_s: float = 86_400.0
    #: Number of commits between checkpoints.
    checkpoint_every: int = 256

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise InvalidConfig(f"{each.name} must be a number above 0, not {value!r}")
        if self.grace_s < 2 * self.belief_s:
            raise InvalidConfig(f"grace_s ({self.grace_s}) must be at least twice belief_s ({self.belief_s})")


class UnknownOutcome(Unanswered, AmbiguousAppend):
    """The outcome of a commit is unknown: the bucket did not answer."""


class _Nowhere(Collected):
    """There is nothing to start from: no commits and no confirmed checkpoint."""


class _Seen(NamedTuple):
    """The number and the first bytes of a folded commit."""

    number: int
    head: bytes


class Journal:
    """The folded commits of one store. Not thread-safe: it needs one owner or a lock."""

    def __init__(
        self, bucket: Bucket, parameters: StoreParameters | None = None, *, clocks: Clocks | None = None
    ) -> None:
        self._bucket = bucket
        self.parameters = StoreParameters() if parameters is None else parameters
        self._clocks = Clocks() if clocks is None else clocks
        self._writer = uuid.uuid4().hex
        self._sequence = 0
        self.state = State()
        #: Send time, by both clocks, of the last request that proved that the next number was not collected.
        self._anchor: tuple[float, float] | None = None
        #: Send time of the last request that proved that all commits are folded. A restart proves less: the commits
        #: since the checkpoint are read later, if the bucket answers.
        self.proved_s: float | None = None
        #: Held while a commit is folded, and never during a request, for readers of the state.
        self.folding = forkable(threading.Lock())
        #: Recently folded commits: readers that follow the end of a partition find its batches there.
        self.recent = CommitCache()
        self._backoff = CommitBackoff()
        #: Durations of the last single-commit requests, and their typical value; 0 if unknown.
        self._round_trips_s: deque[float] = deque(maxlen=_ROUND_TRIPS)
        self.round_trip_s = 0.0
        #: The newest folded commit. `_seen` was the newest commit at the last check of the history; `_seen_at` is a
        #: time at which it was the last of all, `_checked_s` the time of the check.
        self._newest: _Seen | None = None
        self._seen: _Seen | None = None
        #: Sizes of the commits folded since then.
        self._sizes: dict[int, int] = {}
        self._seen_at = self._clocks.now_s()
        self._checked_s = self._seen_at[0]
        #: Minimum number of commits, according to the names of the checkpoints.
        self._recorded = 0
        #: Set while the current commit was sent and its number is not known to belong to another writer.
        self._in_doubt = False
        #: Set while a commit is being folded. If that is interrupted, the state is inconsistent.
        self._folding = False
        #: The error that stopped this process.
        self._stopped: CorruptData | UpgradeRequired | None = None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Guard for public methods: refuse after a fatal error; discard a half-applied state."""
        if self._stopped is not None:
            raise type(self._stopped)(str(self._stopped)) from self._stopped
        if self._folding:
            with self.folding:
                self.state, self._anchor, self.proved_s, self._folding = State(), None, None, False
                self._newest = self._seen = None
                self._sizes.clear()
        try:
            yield
        except Unreadable:
            raise  # the next call reads it again
        except (CorruptData, UpgradeRequired) as error:
            self._stopped = error
            raise

    # --- belief

    def _is_believed(self) -> bool:
        return self._anchor is not None and passed_s(self._clocks.now_s(), self._anchor) <= self.parameters.belief_s

    def _check_belief(self) -> None:
        if not self._is_believed():
            raise Collected("the answer came too late to be believed")

    # --- reading

    def refresh(self) -> int:
        """Fold all new commits and return their number."""
        with self._guarded():
            return self._refresh()

    def _refresh(self) -> int:
        before = self.state.number
        reason: Collected | None = None
        for attempt in range(_RESTARTS):
            try:
                if not self._is_believed():
                    self._restart()
                steps = chain(_STEPS, repeat(_STEPS[-1]))
                while self._step(next(steps)):
                    pass
                self._check_recorded()
                return self.state.number - before
            except Collected as error:
                self._anchor, reason = None, error
            self._pause(attempt, _FIRST_PAUSE_S / 10)
        if isinstance(reason, _Nowhere):
            raise CorruptData(f"{self._bucket.url}: {reason}")
        raise Unanswered(errno.EIO, f"{self._bucket.url} could not be read: {reason}")

    def check_end(self) -> None:
        """Raise `CorruptData` if a commit exists beyond the end. Commits are created in sequence, so a commit after the
        next number means that the next one is missing, and a writer would store records in the middle of others."""
        with self._guarded():
            for attempt in range(2):
                self._refresh()
                number = self.state.number
                later = next((each.key for each in self._bucket.list(COMMITS, after=commit_key(number))), None)
                if later is None or self._bucket.get(commit_key(number)) is not None:
                    return
                if not attempt:
                    self._anchor = None  # restart from a checkpoint: commits may have been collected meanwhile
            raise CorruptData(
                f"{self._bucket.url}/{commit_key(number)} is missing, but {later} is there: it was deleted, or the "
                "storage has lost it. Bring it back from a version or a copy of the bucket, or return to the state "
                "before it with `sawlog repair`; nothing is stored until then"
            )

    def _pause(self, attempt: int, first_s: float = _FIRST_PAUSE_S) -> None:
        self._clocks.pause(min(first_s * 2.0**attempt, _LONGEST_PAUSE_S))

    def _step(self, count: int) -> bool:
        """Fold up to `count` of the next commits and return whether there may be more. All are requested in parallel:
        the first missing one proves that its number was not collected when the requests were sent."""
        sent = self._clocks.now_s()
        first = self.state.number
        found = self._bucket.get_many([commit_key(number) for number in range(first, first + count)])
        if count == 1:
            self._round_trips_s.append(self._clocks.now_s()[0] - sent[0])
            self.round_trip_s = median_low(self._round_trips_s) if len(self._round_trips_s) > 1 else 0.0
        for data in found:
            self._check_belief()
            if data is None:
                self._prove(sent)
                return False
            self._fold(data)
        return True

    def _prove(self, sent: tuple[float, float]) -> None:
        """Record that a request sent at this time proved that the next number was free."""
        self._anchor, self.proved_s = sent, sent[0]
        if self._seen is None:
            self._remember_checked()

    def _fold(self, given: bytes) -> list[Outcome]:
        key = commit_key(self.state.number)
        data, (commit, inline_at) = verified_commit(self._bucket, key, given)
        if commit.digest != self.state.digest:
            raise CorruptData(
                f"{self._bucket.url}/{key} continues another history: the state before it has the digest "
                f"{self.state.digest[:16]}..., the commit says {commit.digest[:16]}... Either the bucket was rolled "
                "back while this process was running (restart it), or a process has computed another state, and none "
                "may go on (`sawlog verify` says which)"
            )
        if commit.nonce.writer != self._writer:
            self._backoff.saw_others(self._clocks.now_s()[0])
        with self.folding:
            self._folding = True
            try:
                outcomes = self.state.apply(commit, key, inline_at)
            except BaseException:
                self.proved_s = None  # readers must not trust a half-applied state
                raise
            self._folding = False
        self._newest = _Seen(self.state.number - 1, data[:_HEAD_BYTES])
        self._sizes[self._newest.number] = len(data)
        if len(self._sizes) > _MOST_SIZES:
            del self._sizes[next(iter(self._sizes))]
        self.recent.add(key, data)
        return outcomes

    def _restart(self) -> None:
        """Start from the newest confirmed checkpoint, or from the first commit. Keeps the current state if it is newer.

        The listing proves that the next number was not collected when the request was sent, because only commits below
        a confirmed checkpoint are collected. So belief starts at that time.
        """
        sent = self._clocks.now_s()
        found = checkpoints.listed(self._bucket)
        for each in found:
            if not checkpoints.is_confirmed(self._bucket, each):
                continue  # the commits before it still exist
            if each.number == self.state.number and each.digest != self.state.digest:
                raise CorruptData(f"{each.key} is not the state that this process has computed")
            self._check_history(sent, confirmed=each.number)
            if each.number > self.state.number:
                ahead = checkpoints.loaded(self._bucket, each)
                self._check_continues(ahead, each.key)
                self.state = ahead
                self._newest = self._seen = None  # perhaps collected by now
                self._sizes.clear()
            break
        else:
            self._check_history(sent, confirmed=0)
            self._check_beginning(is_new=not found)
        self._recorded = max((each.number for each in found), default=0)
        self._anchor = sent

    def _check_beginning(self, *, is_new: bool) -> None:
        """Without a confirmed checkpoint, raise unless the first commit exists or the store has no commits."""
        first = self._bucket.get(commit_key(0))
        if first is not None and not is_tombstone(first):
            return
        if first is None and is_new and not self.state.number and not any(self._bucket.list(COMMITS)):
            return
        raise _Nowhere("commits were collected, and no checkpoint is confirmed by the commit after it")

    # --- history

    def check_history(self, max_age_s: float = 0.0) -> None:
        """Raise `CorruptData` if the bucket has lost or replaced commits that this process has folded. Sends no request
        if that was checked within `max_age_s`."""
        with self._guarded():
            seen, newest, sent_s = self._seen, self._newest, self._clocks.now_s()[0]
            if seen is None or newest is None or sent_s - self._checked_s < max_age_s:
                return
            # The newest may be our own, just created: it says nothing about those before it.
            is_there = self._has(seen) and (newest.number - seen.number < 2 or self._missing(seen.number) is None)
            if is_there:
                self._remember_checked()
                return
            self._anchor = None  # collected or lost: the checkpoints tell
            self._refresh()

    def _remember_checked(self) -> None:
        """Record that the bucket has all folded commits."""
        if self._newest is not None and self._anchor is not None:
            self._seen, self._seen_at, self._checked_s = self._newest, self._anchor, self._clocks.now_s()[0]
            self._sizes = {self._newest.number: self._sizes[self._newest.number]}

    def check_identity(self, founded: bytes) -> None:
        """Raise `CorruptData` unless `sawlog.json` is as it was when the store was opened."""
        with self._guarded():
            # Read it again in case it was damaged in transit.
            if self._bucket.get(STORE) != founded and (found := self._bucket.get(STORE)) != founded:
                how = "is gone" if found is None else "has changed"
                raise CorruptData(
                    f"{self._bucket.url}/{STORE} {how} while this process was using the store: it was deleted or "
                    "replaced. Restart it after checking the store with `sawlog verify`"
                )

    def _check_history(self, sent: tuple[float, float], confirmed: int) -> None:
        """Check the history against `confirmed`, the newest checkpoint confirmed by a request sent at `sent`. Raises
        `Collected` if the bucket answered so late that a missing commit may have been collected meanwhile."""
        seen, newest = self._seen, self._newest
        if seen is None or newest is None:
            return
        first = self._kept_from(seen, confirmed)
        if newest.number < first:
            return
        missing = self._missing(first)
        for each in (seen, newest):
            if missing is None and each.number >= first and not (self._has(each) or self._has(each)):
                missing = each.number  # a second read rules out damage in transit
        if missing is None:
            return
        # The process may have been suspended since `first` was computed, for longer than the collector waits.
        is_late = passed_s(self._clocks.now_s(), sent) > self.parameters.belief_s
        if is_late or missing < self._kept_from(seen, confirmed):
            raise Collected(f"the answer about {commit_key(missing)} came too late to be believed")
        raise CorruptData(
            f"{self._bucket.url}/{commit_key(missing)} is gone or is another commit: the store was deleted, "
            "rolled back or replaced while this process was using it. What it has appended since then is not in "
            "the store. Restart it after checking the store with `sawlog verify`"
        )

    def _kept_from(self, seen: _Seen, confirmed: int) -> int:
        """Return the first commit that cannot have been collected by now. Only commits below a confirmed checkpoint are
        collected, and never one that was the last a short time ago: the collector waits."""
        waits_s = min(self.parameters.grace_s, self.parameters.readers_s)
        is_recent = passed_s(self._clocks.now_s(), self._seen_at) <= waits_s / 2
        return seen.number if is_recent else max(seen.number, confirmed)

    def _has(self, seen: _Seen) -> bool:
        try:
            return self._bucket.get_range(commit_key(seen.number), 0, len(seen.head)) == seen.head
        except StorageError as error:
            if isinstance(error, Unanswered) or error.errno == errno.EACCES:
                raise
            return False

    def _missing(self, first: int) -> int | None:
        """Return the first folded commit from `first` on that is missing or has another size, or None."""
        entries = self._bucket.list(COMMITS, commit_key(first - 1) if first else "")
        found = {entry.key: entry.size_bytes for entry in entries}
        sizes = [(each, size) for each, size in self._sizes.items() if each >= first]
        return next((each for each, size in sizes if found.get(commit_key(each)) != size), None)

    def _check_continues(self, ahead: State, key: str) -> None:
        """Raise `CorruptData` if a checkpoint ahead of us lacks our last commit and cannot have forgotten it."""
        last = self.state.entries.get(f"nonce/{self._writer}")
        known = ahead.entries.get(f"nonce/{self._writer}", (0,))
        if last is not None and last[1] >= ahead.floor and known[0] < last[0]:
            raise CorruptData(
                f"{self._bucket.url}/{key} continues another history, without {commit_key(last[1])} of this process: "
                "the store was rolled back or replaced while this process was using it. Restart it after checking the "
                "store with `sawlog verify`"
            )

    def _check_recorded(self) -> None:
        """Raise `CorruptData` if a checkpoint records commits after the last one."""
        if self.state.number < self._recorded:
            raise CorruptData(
                f"{self._bucket.url}/{commit_key(self.state.number)} is missing, but a checkpoint records "
                f"{self._recorded} commits: {self._recorded - self.state.number} or more were lost. Bring them back "
                "from a version or a copy of the bucket, or return to the state before them with `sawlog repair`"
            )

    # --- writing

    def commit(self, requests: Sequence[Request], inline: bytes = b"") -> list[Outcome]:
        """Append a commit with these requests and return the outcome of each. Raises `UnknownOutcome` if the commit may
        be stored; any other error means that it is not stored and never will be."""
        self._in_doubt = False
        try:
            with self._guarded():
                if not self._is_believed():
                    self._refresh()
                self._sequence += 1
                return self._commit(Nonce(self._writer, self._sequence), tuple(requests), inline)
        except UnknownOutcome:
            raise
        except Exception as error:
            if self._in_doubt:
                raise UnknownOutcome(errno.EIO, f"the commit may be stored or not: {error}") from error
            raise

    def _commit(self, nonce: Nonce, requests: tuple[Request, ...], inline: bytes) -> list[Outcome]:
        known, doubtful, losses = self.state.number, False, 0
        while True:
            number = self.state.number
            made = Commit(nonce, known, self.state.digest, requests, now_ms(), inline).encode()
            try:
                ours = self._create(commit_key(number), made, nonce)
                if ours is not None:
                    return self._fold(ours)
                losses += 1
                if losses >= _LOSSES:
                    self._refresh()
            except Collected:
                doubtful = True
                found = self._found(nonce)
                if found is not None:
                    return found
            if not doubtful:  # another writer owns the number, so no attempt was or will be applied: start over
                known = self.state.number

    def _found(self, nonce: Nonce) -> list[Outcome] | None:
        """Return the outcomes of a commit whose number may have been collected, or None. The state knows them if the
        commit was applied."""
        self._anchor = None
        self._refresh()
        found = self.state.outcome_of(nonce.writer, nonce.sequence)
        return None if found is None else found[1]

    def _create(self, key: str, data: bytes, nonce: Nonce) -> bytes | None:
        """Create our commit and return it as stored; None if another writer's commit took the number and was folded."""
        was_in_doubt = self._in_doubt  # about an earlier number
        for attempt in range(_LOOKS):
            if attempt:
                self._pause(attempt - 1)
            sent = self._clocks.now_s()
            before, self._in_doubt = self._in_doubt, True
            try:
                if self._bucket.create(key, data):
                    self._check_belief()
                    self._prove(sent)
                    self._backoff.created(sent[0], self._clocks.now_s()[0])
                    return data
            except Unanswered:
                pass
            except StorageError:  # not applied, but an earlier attempt may be
                self._in_doubt = before
                raise
            found = self._look(key)
            if found is None:
                continue  # not applied so far, or unknown: send the same bytes to the same number
            stored, commit = found
            if commit.nonce == nonce:
                return stored
            self._in_doubt = was_in_doubt
            self._fold(stored)
            return None
        raise UnknownOutcome(errno.EIO, f"{self._bucket.url}/{key}: no answer; the commit may be stored or not")

    def _look(self, key: str) -> tuple[bytes, Commit] | None:
        """Return the stored commit after a create that was rejected or unanswered; None if it is missing or the bucket
        does not answer. Raises `Collected` if it is a tombstone: if it was ours, the checkpoint has its outcome."""
        try:
            found = self._bucket.get(key)
            self._check_belief()
            if found is None:
                return None
            stored, (commit, _) = verified_commit(self._bucket, key, found)
        except StorageError:
            return None
        return stored, commit

    def back_off(self) -> None:
        """Pause after a commit if other writers need a turn."""
        pause_s = self._backoff.pause_s(self._clocks.now_s()[0])
        if pause_s:
            self._clocks.pause(pause_s)

    # --- checkpoints

    def checkpoint(self) -> bool:
        """Store the state as a checkpoint unless there is one, and return whether it was stored. It counts once the
        next commit has confirmed it."""
        with self._guarded():
            return self.state.number > 0 and checkpoints.stored(self._bucket, self.state)


class CommitCache:
    """The last commits, verified, as they are in the bucket, up to a total size. Thread-safe."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = forkable(threading.Lock())

    def add(self, key: str, data: bytes) -> None:
        """Cache a commit; it replaces one of another history with the same number."""
        with self._lock:
            self._size_bytes += len(data) - len(self._kept.pop(key, b""))
            self._kept[key] = data
            while self._size_bytes > _RECENT_BYTES and self._kept:
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


class Clocks:
    """The clocks of the machine. Tests substitute their own."""

    def now_s(self) -> tuple[float, float]:
        """Return seconds by a clock that keeps running while the machine sleeps, where available, and by the wall
        clock. Only differences matter, and the larger one counts."""
        return clock.boot_s(), clock.wall_s()

    def pause(self, seconds: float) -> None:
        clock.pause(seconds)


def passed_s(now: tuple[float, float], then: tuple[float, float]) -> float:
    """Return the elapsed time, as far as it can be known: one clock may have stopped or been set back."""
    return max(after - before for after, before in zip(now, then, strict=True))


class CommitBackoff:
    """The pause of a writer after a commit, which gives others a turn. Not thread-safe.

    A writer that has lost a race must read the winning commit before it can try again: two requests, while the winner
    needs one. So a process that commits continuously would win every race and starve the others. A pause of about one
    request between two commits gives them a turn.

    The pause follows the duration of a create on this bucket rather than a constant that a slow bucket would exceed. It
    is based on the fastest of the last few creates, so that a single slow one costs nothing. A writer that has seen no
    commit of others for a while pauses only after many commits in a row, in case others are starving. The length is
    random: with equal pauses the others would be late every time.
    """

    def __init__(self) -> None:
        #: When another process's commit was last seen.
        self._others_s: float | None = None
        self._creates_s: deque[float] = deque(maxlen=_REMEMBERED)
        #: Number of our commits in a row without a pause, and when the last one was answered.
        self._commits = 0
        self._last_s = 0.0

    def saw_others(self, now_s: float) -> None:
        self._others_s = now_s

    def created(self, sent_s: float, now_s: float) -> None:
        """Record that one of our commits was created by a request sent at `sent_s`."""
        if sent_s - self._last_s >= 2 * self._quickest_s():
            self._commits = 0  # others had a turn
        self._creates_s.append(now_s - sent_s)
        self._last_s = now_s
        self._commits += 1

    def pause_s(self, now_s: float) -> float:
        """Return how long to pause now; 0 if others need no turn."""
        quickest_s = self._quickest_s()
        company_s = max(_COMPANY_S, _COMPANY_CREATES * quickest_s)
        if self._others_s is not None and now_s - self._others_s <= company_s:
            return quickest_s * random.uniform(1.0, 2.0)
        if self._commits < _ALONE:
            return 0.0
        self._commits = 0
        return quickest_s * random.uniform(1.0, 3.0)

    def _quickest_s(self) -> float:
        return min(self._creates_s, default=0.0)
