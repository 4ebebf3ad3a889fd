"""`Journal`: the numbered commits of a store: reading the next ones, and making one.

```
commits/00000000000000000042     created if absent: the commit point
```

What makes it safe (ADR 25 has the argument, rules R1 to R8):

- *Belief* (R1). An answer of the bucket is believed only for `belief_s` after the last proof that the next number was
  not collected: `_anchor`, the time at which a request was sent that showed it (a listing of the checkpoints, a "not
  found" or a create of our own that was believed). Else everything begins again from the newest checkpoint. So a
  process that slept while commits were collected cannot create one of their numbers and believe it.
- *A create without an answer* (R4) is looked up: our nonce, and it was applied; somebody else's, and it was not;
  nothing, and the same bytes go to the same number again.
- *Checkpoints* (R7) are used only if the next commit carries their digest; until then commits are folded.
- *What is not known* (R8), and what cannot be, stops the process: the error is raised again by every later call.
"""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat

from ..clock import now_ms
from ..errors import AmbiguousAppend, CorruptData, StorageError
from ..storage.forking import forkable
from . import checkpoints
from .bucket import Bucket, Unanswered
from .checkpoints import COMMITS, Collected, commit_key
from .clocks import Clocks, passed_s
from .commit import Commit, Nonce, Request, UpgradeRequired, is_tombstone
from .courtesy import Courtesy
from .state import Outcome, State
from .terms import Terms

#: A commit without an answer is looked up this often before its caller is told that nobody knows.
_LOOKS = 8
#: Beginning again is tried this often: a bucket that answers more slowly than answers are believed has no end.
_RESTARTS = 12
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
#: So many commits are requested at a time. Who follows a store finds none or one; who has more to read is far behind.
_STEPS = (1, 1, 4, 16, 32)
#: After so many lost races in a row everything new is read before the next try.
_LOSSES = 2


class UnknownOutcome(Unanswered, AmbiguousAppend):
    """Nobody knows whether a commit was applied: the bucket did not answer."""


class _Nowhere(Collected):
    """There is nothing to begin from: no commit, no checkpoint that is confirmed."""


class Journal:
    """The commits of one store, folded. Not safe for threads: one owner, or a lock."""

    def __init__(self, bucket: Bucket, terms: Terms | None = None, *, clocks: Clocks | None = None) -> None:
        self._bucket = bucket
        self.terms = Terms() if terms is None else terms
        self._clocks = Clocks() if clocks is None else clocks
        self._writer = uuid.uuid4().hex
        self._sequence = 0
        self.state = State()
        #: When the request was sent that last proved that the next number was not collected; by both clocks.
        self._anchor: tuple[float, float] | None = None
        #: When the request was sent that last proved that there were no other commits than those that are folded. To
        #: begin again proves less: what was made since the checkpoint is read after that, if the bucket answers.
        self.proved_s: float | None = None
        #: Held while a commit is folded, and never while the bucket is asked: for those who only look at the state.
        self.folding = forkable(threading.Lock())
        #: Told of each commit that is folded: its key, and what is in the object.
        self.on_fold: Callable[[str, bytes], None] | None = None
        self._courtesy = Courtesy()
        #: A commit is being folded. If that is interrupted, the state is neither the one nor the other.
        self._folding = False
        #: Why this process must not go on.
        self._stopped: CorruptData | UpgradeRequired | None = None

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Every call from outside: not after what must stop this process, and not with half a commit in the state."""
        if self._stopped is not None:
            raise type(self._stopped)(str(self._stopped)) from self._stopped
        if self._folding:
            with self.folding:
                self.state, self._anchor, self.proved_s, self._folding = State(), None, None, False
        try:
            yield
        except (CorruptData, UpgradeRequired) as error:
            self._stopped = error
            raise

    # --- belief

    def _is_believed(self) -> bool:
        return self._anchor is not None and passed_s(self._clocks.now_s(), self._anchor) <= self.terms.belief_s

    def _check_belief(self) -> None:
        if not self._is_believed():
            raise Collected("the answer came too late to be believed")

    # --- reading

    def refresh(self) -> int:
        """Fold every commit that there is; returns how many were new."""
        with self._going_on():
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
                return self.state.number - before
            except Collected as error:
                self._anchor, reason = None, error
            self._pause(attempt, _FIRST_PAUSE_S / 10)
        if isinstance(reason, _Nowhere):
            raise CorruptData(f"{self._bucket.url}: {reason}")
        raise Unanswered(errno.EIO, f"{self._bucket.url} could not be read: {reason}")

    def check_end(self) -> None:
        """Look whether the end is one: commits are made one after the other, so if there is one after the next, the
        next is missing. Whoever took that for the end would store records in the middle of others."""
        with self._going_on():
            for attempt in range(2):
                self._refresh()
                number = self.state.number
                later = self._after(number)
                if later is None or self._bucket.get(commit_key(number)) is not None:
                    return
                if not attempt:
                    self._anchor = None  # begin again at a checkpoint: many may have been made and collected meanwhile
            raise CorruptData(
                f"{self._bucket.url}/{commit_key(number)} is missing, but {later} is there: somebody has removed it, "
                "or the storage has lost it. Bring it back from a version or a copy of the bucket; nothing is stored "
                "until then"
            )

    def _after(self, number: int) -> str | None:
        """A commit after that one, if there is any."""
        return next((each.key for each in self._bucket.list(COMMITS, after=commit_key(number))), None)

    def _pause(self, attempt: int, first_s: float = _FIRST_PAUSE_S) -> None:
        self._clocks.pause(min(first_s * 2.0**attempt, _LONGEST_PAUSE_S))

    def _step(self, count: int) -> bool:
        """Fold the next commits, as many as there are up to a number; whether there may be more. All are requested at
        the same time: the first that was not there proves that it was not collected when that was."""
        sent = self._clocks.now_s()
        first = self.state.number
        for data in self._bucket.get_many([commit_key(number) for number in range(first, first + count)]):
            self._check_belief()
            if data is None:
                self._prove(sent)
                return False
            self._fold(data)
        return True

    def _prove(self, sent: tuple[float, float]) -> None:
        """A request that was sent then has shown that the next number was free."""
        self._anchor, self.proved_s = sent, sent[0]

    def _fold(self, data: bytes) -> list[Outcome]:
        key = commit_key(self.state.number)
        if is_tombstone(data):
            raise Collected(f"{key} is collected")
        commit, inline_at = Commit.decode(data, key)
        if commit.digest != self.state.digest:
            raise CorruptData(
                f"{key}: the state before it has the digest {self.state.digest[:16]}..., the commit says "
                f"{commit.digest[:16]}...; a process has computed another state, and none may go on"
            )
        if commit.nonce.writer != self._writer:
            self._courtesy.saw_others(self._clocks.now_s()[0])
        with self.folding:
            self._folding = True
            try:
                outcomes = self.state.apply(commit, key, inline_at)
            except BaseException:
                self.proved_s = None  # whoever looks next must not believe half of it
                raise
            self._folding = False
        if self.on_fold is not None:
            self.on_fold(key, data)
        return outcomes

    def _restart(self) -> None:
        """Begin with the newest checkpoint that is confirmed, or with the first commit. What is folded already is kept
        if it is newer.

        The listing proves that the next number was not collected when it was sent, since nothing is collected that is
        not below a confirmed checkpoint; so that is what answers are believed after.
        """
        sent = self._clocks.now_s()
        found = checkpoints.listed(self._bucket)
        for each in found:
            if not checkpoints.is_confirmed(self._bucket, each):
                continue  # commits from before it are still there
            if each.number == self.state.number and each.digest != self.state.digest:
                raise CorruptData(f"{each.key} is not the state that this process has computed")
            if each.number > self.state.number:
                self.state = checkpoints.loaded(self._bucket, each)
            self._anchor = sent
            return
        self._check_beginning(is_new=not found)
        self._anchor = sent

    def _check_beginning(self, *, is_new: bool) -> None:
        """No checkpoint is confirmed: the first commit must be there, unless the store has none at all."""
        first = self._bucket.get(commit_key(0))
        if first is not None and not is_tombstone(first):
            return
        if first is None and is_new and not self.state.number and not any(self._bucket.list(COMMITS)):
            return
        raise _Nowhere("commits were collected, and no checkpoint is confirmed by the commit after it")

    # --- writing

    def commit(self, requests: Sequence[Request], inline: bytes = b"") -> list[Outcome]:
        """Make one commit of these requests, after all that others have made; what became of each. `UnknownOutcome` if
        the bucket does not answer for long."""
        with self._going_on():
            if not self._is_believed():
                self._refresh()
            self._sequence += 1
            return self._commit(Nonce(self._writer, self._sequence), tuple(requests), inline)

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
            except Unanswered as error:
                if doubtful and not isinstance(error, UnknownOutcome):
                    raise UnknownOutcome(errno.EIO, f"the commit may be stored or not: {error}") from error
                raise
            if not doubtful:  # the number is another's commit, so no attempt was or will be applied: this is the first
                known = self.state.number

    def _found(self, nonce: Nonce) -> list[Outcome] | None:
        """What became of a commit whose number may have been collected: the state knows, if it was applied."""
        self._anchor = None
        try:
            self._refresh()
        except Unanswered as error:
            raise UnknownOutcome(errno.EIO, f"the commit may be stored or not: {error}") from error
        found = self.state.outcome_of(nonce.writer, nonce.sequence)
        return None if found is None else found[1]

    def _create(self, key: str, data: bytes, nonce: Nonce) -> bytes | None:
        """Our commit, as it is stored; None if there is somebody else's, which was folded."""
        unanswered = False
        for attempt in range(_LOOKS):
            if attempt:
                self._pause(attempt - 1)
            try:
                sent = self._clocks.now_s()
                if self._bucket.create(key, data):
                    self._check_belief()
                    self._prove(sent)
                    self._courtesy.created(sent[0], self._clocks.now_s()[0])
                    return data
                found = self._bucket.get(key)
            except Unanswered:
                unanswered = True
                found = self._look(key)
            except StorageError as error:  # refused; but what was not answered before may be applied
                raise self._unknown(key) if unanswered else error from error
            if found is None:
                continue  # it was not applied so far: the same bytes, at the same number
            self._check_belief()
            if is_tombstone(found):
                raise Collected(f"{key} is collected")  # if it was ours, the checkpoint knows its outcome
            if Commit.decode(found, key)[0].nonce == nonce:
                return found
            self._fold(found)
            return None
        raise self._unknown(key)

    def _look(self, key: str) -> bytes | None:
        """What is there after a create without an answer; None if nothing is, or again there is no answer."""
        try:
            found = self._bucket.get(key)
        except StorageError:
            return None
        self._check_belief()
        return found

    def _unknown(self, key: str) -> UnknownOutcome:
        return UnknownOutcome(errno.EIO, f"{self._bucket.url}/{key}: no answer; the commit may be stored or not")

    def give_way(self) -> None:
        """After a commit: a pause in which others can make theirs, if there are some."""
        pause_s = self._courtesy.pause_s(self._clocks.now_s()[0])
        if pause_s:
            self._clocks.pause(pause_s)

    # --- checkpoints

    def checkpoint(self) -> bool:
        """Store the state as a checkpoint, unless there is one; whether one was stored. It counts when the next commit
        has confirmed it."""
        with self._going_on():
            return self.state.number > 0 and checkpoints.stored(self._bucket, self.state)
