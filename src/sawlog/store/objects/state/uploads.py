"""Uploads that commits may still refer to: those begun at or above the floor by jobs that were not abandoned.

```
floor                                uploads that were begun below this commit are void
void/<job>                           the commit at which a job was abandoned: its uploads until then are void
nonce/<writer>                       [sequence, commit, outcomes]
```
"""

from __future__ import annotations

from . import transactions
from .commit import Action
from .extents import begun_at, job_of
from .mutation import Rejected, StateEntries, quoted


def floor_of(state: StateEntries) -> int:
    """Return the commit below which uploads are void: those that began when fewer commits were known."""
    return int(state.entries.get("floor", 0))


def voided(state: StateEntries, job: str) -> int:
    """Return the commit at which a job was abandoned; -1 if it was not, or that is forgotten."""
    if not state.entries.of_kind("void"):  # the common case, and a commit may ask thousands of times
        return -1
    return int(state.entries.get(f"void/{quoted(job)}", -1))


def check_floor(state: StateEntries, key: str) -> None:
    """Reject an upload that was begun so long ago that it may have been removed."""
    try:
        known, job = begun_at(key), job_of(key)
    except ValueError:
        raise Rejected("InvalidConfig", "the key is not that of an upload") from None
    floor = floor_of(state)
    if known < floor:
        raise Rejected("Void", f"{key} was begun below commit {floor}, and may be gone: upload it again")
    if job is not None and known <= voided(state, job):
        raise Rejected("Void", f"the job {job!r} was abandoned, and its uploads may be gone")


def give_up(state: StateEntries, action: Action) -> None:
    """Abandon a job: its uploads that no commit has adopted by now are void. Uploads of a later run are valid again."""
    state.put(f"void/{quoted(action['job'])}", state.number)


def raise_floor(state: StateEntries, action: Action) -> int:
    """Void later references to uploads begun below a commit. Nonces, abandoned jobs and idle producers from before it
    are forgotten."""
    floor = int(action["number"])
    if floor > state.number:
        raise Rejected("InvalidConfig", f"there are {state.number} commits, not {floor}")
    before = floor_of(state)
    floor = max(before, floor)
    if floor != before:
        state.put("floor", floor)
    for name in state.entries.names("nonce/"):
        if state.entries.get(name)[1] < floor:
            state.drop(name)
    for name in state.entries.names("void/"):
        if state.entries.get(name) < floor:
            state.drop(name)
    transactions.forget_producers(state, floor)
    return floor
