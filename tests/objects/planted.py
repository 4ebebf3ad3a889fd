"""Planted bugs that the harnesses must find. Each of `BUGS` breaks one rule of ADR 25, each of `CACHE_BUGS` one for
caches. `with planted("no nonce"): ...` plants one.

If only some processes have the bug, `is_affected` returns True in those.

`python -m tests.objects.planted "no nonce" serve -d ...` is the command `sawlog` with a planted bug.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from sawlog.errors import StorageError
from sawlog.store.objects import cache, checkpoints, maintenance, store
from sawlog.store.objects import state as actions
from sawlog.store.objects.bucket import Unanswered
from sawlog.store.objects.collect import Collector
from sawlog.store.objects.extent_reader import place_batches
from sawlog.store.objects.journal import Journal
from sawlog.store.objects.partition import ObjectPartition
from sawlog.store.objects.session import StoreSession
from sawlog.store.objects.state import State
from sawlog.store.objects.state.commit import SEGMENTS, STAGED, Commit, Nonce, commit_key, is_tombstone
from sawlog.store.objects.state.entries import Entries

#: The bugs, with a description of the wrong behaviour.
BUGS = {
    "no nonce": "a create without an answer is repeated under the next number, and the fold applies both",
    "acknowledged early": "the outcome is computed and returned before the commit is created",
    "believed late": "an answer is believed however old the last proof is",
    "deleted above the floor": "uploads that nothing refers to are removed though they may still be committed",
    "fold depends on time": "the state contains when a commit was folded",
    "checkpoint without digest": "a wrong checkpoint is made, and used without asking the commit after it",
    "unknown action skipped": "a process skips an action that a newer version has written",
    "refusal is a failure": "a create that was refused has failed, if the commit that refused it cannot be read",
    "fresh since the answer": "a state is fresh for a time after the answer, and not after the request",
}

#: Bugs that real processes cannot show. They believe answers for half a second, so that tests are short; a state that
#: counts as fresh for too long is then never older than a busy machine may make it.
SIMULATED_ONLY = frozenset({"fresh since the answer"})

#: Bugs that show only when a store is lost under its processes (`losing`).
LOSS_BUGS = {
    "history unchecked": "a writer does not notice that its store was deleted or rolled back",
    "conditions untested": "a store that exists is opened for writing without trying a conditional write",
    "remains taken for nothing": "commits without a sawlog.json are taken for no store, and one is created over them",
}

#: Bugs of caches. They show only if a bucket is rolled back or damaged after it was read on the same machine.
CACHE_BUGS = {
    "cache without identity": "blocks are keyed by key and position alone, so blocks of another history are served",
    "maintenance through the cache": "the same, and consolidation reads such blocks: wrong records become permanent",
    "proof through the cache": "tiering and replication take a copy in the cache for what the bucket has",
    "verification through the cache": "`verify` takes a copy in the cache for what the bucket has",
}


@contextmanager
def planted(
    bug: str | None, *, is_affected: Callable[[], bool] = lambda: True, now_s: Callable[[], float] = time.time
) -> Iterator[None]:
    """Plant a bug until the end of the block; None plants nothing."""
    if bug is None:
        yield
        return
    with ExitStack() as undo:
        _PLANTERS[bug](lambda *each: undo.enter_context(mock.patch.object(*each)), is_affected, now_s)
        yield


_Patch = Callable[..., Any]


def _no_nonce(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    create, apply = Journal._create, State.apply
    nobody = Nonce("nobody", 0)
    patch(Journal, "_create", lambda self, key, data, nonce: create(self, key, data, nobody))
    patch(
        State,
        "apply",
        lambda self, commit, *rest: apply(self, replace(commit, nonce=Nonce(f"n{self.number}", 1)), *rest),
    )


def _acknowledged_early(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    def commit(self: Journal, nonce: Nonce, requests: Any, inline: bytes) -> Any:
        key = commit_key(self.state.number)
        data = Commit(nonce, self.state.number, self.state.digest, requests, 0, inline).encode()
        copy = State(Entries(list(self.state.entries)), self.state.number)
        made, at = Commit.decode(data, key)
        outcomes = copy.apply(made, key, at)
        try:
            self._bucket.create(key, data)
        except OSError:
            pass
        self._refresh()
        return outcomes

    patch(Journal, "_commit", commit)


def _believed_late(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    patch(Journal, "_is_believed", lambda self: self._anchor is not None)


def _deleted_above_the_floor(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    def collect(self: Collector, report: Any, view: Any) -> None:
        referenced = self._session.look(lambda state: state.referenced(), fresh=True)
        for prefix in (STAGED, SEGMENTS):
            for entry in self._bucket.list(prefix):
                if entry.key not in referenced:
                    self._bucket.delete(entry.key)

    patch(Collector, "_collect_uploads", collect)


def _fold_depends_on_time(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    known = actions.ACTIONS["append"]

    def append(self: State, *rest: Any) -> Any:
        self.put("document/time", [1, {"now": int(now_s() * 4)}])
        return known.apply(self, *rest)

    planted = {**actions.ACTIONS, "append": known._replace(apply=append)}
    patch(actions, "ACTIONS", planted)


def _checkpoint_without_digest(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    stored = checkpoints.stored

    def store_wrong(bucket: Any, state: State) -> bool:
        names = [name for name, _ in state.entries if name.startswith("extent/")]
        wrong = State(Entries([each for each in state.entries if each[0] not in names[:1]]), state.number)
        return stored(bucket, wrong)

    def is_confirmed(bucket: Any, checkpoint: checkpoints.Checkpoint) -> bool:
        following = bucket.get(commit_key(checkpoint.number))
        return following is not None and not is_tombstone(following)

    patch(checkpoints, "stored", store_wrong)
    patch(checkpoints, "is_confirmed", is_confirmed)


def _unknown_action_skipped(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    """Unaffected processes write "append 2", which means the same as "append" and is unknown to the others."""
    known = actions.ACTIONS["append"]
    patch(actions, "ACTIONS", {**actions.ACTIONS, "append 2": known})
    request, commit = State._request, Journal._commit

    def _request(self: State, actions: Any, *rest: Any) -> Any:
        if is_affected():
            actions = [each for each in actions if each["do"] != "append 2"]
        return request(self, actions, *rest)

    def _commit(self: Journal, nonce: Nonce, requests: Any, inline: bytes) -> Any:
        if not is_affected():
            requests = tuple([_newer(action) for action in each] for each in requests)
        return commit(self, nonce, requests, inline)

    patch(State, "_request", _request)
    patch(Journal, "_commit", _commit)


def _newer(action: Any) -> Any:
    return {**action, "do": "append 2"} if action["do"] == "append" else action


def _cache_without_identity(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    named = cache._named
    patch(cache, "_named", lambda key, position, digest: named(key, position, ""))


def _maintenance_through_the_cache(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    _cache_without_identity(patch, is_affected, now_s)
    patch(maintenance, "read", _read_through_the_cache)


def _read_through_the_cache(session: StoreSession, extents: Any, check: Any) -> Iterator[Any]:
    for extent, data in session.extents.read_all(extents):
        place_batches(data, extent.base_offset, extent.leader_epoch)
        yield extent, data


def _proof_through_the_cache(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    patch(ObjectPartition, "_uncached", lambda self: self)


def _verification_through_the_cache(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    verify = ObjectPartition._verify_extent

    def through_the_cache(self: ObjectPartition, extent: Any, path: str, report: Any) -> None:
        data = bytes(self._session.extents.read(extent))
        with mock.patch.object(type(self._session.bucket), "get_range", return_value=data):
            verify(self, extent, path, report)

    patch(ObjectPartition, "_verify_extent", through_the_cache)


def _refusal_is_a_failure(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    look = Journal._look

    def _look(self: Journal, key: str) -> Any:
        try:
            self._bucket.get(key)
        except Unanswered:
            pass
        except StorageError:
            self._in_doubt = False
            raise
        return look(self, key)

    patch(Journal, "_look", _look)


def _fresh_since_the_answer(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    refresh = Journal.refresh

    def answered(self: Journal) -> int:
        found = refresh(self)
        self.proved_s = self._clocks.now_s()[0]
        return found

    patch(Journal, "refresh", answered)


def _history_unchecked(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    patch(Journal, "check_history", lambda self, max_age_s=0.0: None)
    patch(Journal, "_check_history", lambda self, sent, confirmed: None)


def _conditions_untested(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    patch(store, "check_conditional", lambda bucket, founded: None)


def _remains_taken_for_nothing(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    patch(store, "_refuse_remains", lambda bucket: None)


_PLANTERS: dict[str, Callable[[_Patch, Callable[[], bool], Callable[[], float]], None]] = {
    "no nonce": _no_nonce,
    "acknowledged early": _acknowledged_early,
    "believed late": _believed_late,
    "deleted above the floor": _deleted_above_the_floor,
    "fold depends on time": _fold_depends_on_time,
    "checkpoint without digest": _checkpoint_without_digest,
    "unknown action skipped": _unknown_action_skipped,
    "cache without identity": _cache_without_identity,
    "maintenance through the cache": _maintenance_through_the_cache,
    "proof through the cache": _proof_through_the_cache,
    "verification through the cache": _verification_through_the_cache,
    "refusal is a failure": _refusal_is_a_failure,
    "fresh since the answer": _fresh_since_the_answer,
    "history unchecked": _history_unchecked,
    "conditions untested": _conditions_untested,
    "remains taken for nothing": _remains_taken_for_nothing,
}


def main() -> None:
    """Run the command with a bug."""
    from sawlog.cli import main as command

    bug = sys.argv.pop(1)
    with planted(bug):
        command()


if __name__ == "__main__":
    main()
