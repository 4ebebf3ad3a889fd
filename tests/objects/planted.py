"""Bugs that the torture must find: each breaks one rule of ADR 25. `with planted("no nonce"): ...`.

Where only some processes have the bug, `is_affected` says whether the calling one does.

`python -m tests.objects.planted "no nonce" serve -d ...` is the command `sawlog` with one of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from sawlog.objects import checkpoints
from sawlog.objects.checkpoints import commit_key
from sawlog.objects.collect import Collector
from sawlog.objects.commit import Commit, Nonce, is_tombstone
from sawlog.objects.entries import Entries
from sawlog.objects.extents import SEGMENTS, STAGED
from sawlog.objects.folding import actions
from sawlog.objects.journal import Journal
from sawlog.objects.state import State

#: The bugs, and what is wrong.
BUGS = {
    "no nonce": "a create without an answer is repeated under the next number, and the fold applies both",
    "acknowledged early": "the outcome is computed and returned before the commit is created",
    "believed late": "an answer is believed however old the last proof is",
    "deleted above the floor": "uploads that nothing refers to are removed though they may still be committed",
    "fold depends on time": "the state contains when a commit was folded",
    "checkpoint without digest": "a wrong checkpoint is made, and used without asking the commit after it",
    "unknown action skipped": "a process skips an action that a newer version has written",
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
        referenced = self._core.look(lambda state: state.referenced(), fresh=True)
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

    def store(bucket: Any, state: State) -> bool:
        names = [name for name, _ in state.entries if name.startswith("extent/")]
        wrong = State(Entries([each for each in state.entries if each[0] not in names[:1]]), state.number)
        return stored(bucket, wrong)

    def is_confirmed(bucket: Any, checkpoint: checkpoints.Checkpoint) -> bool:
        following = bucket.get(commit_key(checkpoint.number))
        return following is not None and not is_tombstone(following)

    patch(checkpoints, "stored", store)
    patch(checkpoints, "is_confirmed", is_confirmed)


def _unknown_action_skipped(patch: _Patch, is_affected: Callable[[], bool], now_s: Callable[[], float]) -> None:
    """Processes that are not affected write "append 2", which means the same; the others do not know it."""
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


_PLANTERS: dict[str, Callable[[_Patch, Callable[[], bool], Callable[[], float]], None]] = {
    "no nonce": _no_nonce,
    "acknowledged early": _acknowledged_early,
    "believed late": _believed_late,
    "deleted above the floor": _deleted_above_the_floor,
    "fold depends on time": _fold_depends_on_time,
    "checkpoint without digest": _checkpoint_without_digest,
    "unknown action skipped": _unknown_action_skipped,
}


def main() -> None:
    """The command, with a bug."""
    from sawlog.cli import main as command

    bug = sys.argv.pop(1)
    with planted(bug):
        command()


if __name__ == "__main__":
    main()
