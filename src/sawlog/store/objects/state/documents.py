"""Conditions of a request: versioned documents, names that make it idempotent, and uploads that it may refer to.

```
document/<name>     [version, fields]
named/<name>        [the last number stored under the name, its time, parts]: parts is a list with
                    [topic, topic id, partition, records, digest] for each partition, or null
floor               uploads that were begun below this commit are void
void/<job>          the commit at which a job was abandoned: its uploads until then are void
nonce/<writer>      [sequence, commit, outcomes]
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import transactions
from .commit import Action, begun_at, job_of
from .entries import MutableState, Rejected, quoted


def apply_once(state: MutableState, action: Action) -> None:
    """Reject the request if this name and number are stored already."""
    name = f"named/{quoted(action['name'])}"
    last = state.entries.get(name)
    if last is not None and action["sequence"] <= named_entry(last)[0]:
        raise Rejected("Done", f"number {action['sequence']} of {action['name']} is stored")
    state.put(name, [action["sequence"], action.get("time_ms", 0), action.get("parts")])


def forget_names(state: MutableState, action: Action) -> None:
    """Drop old names that were not used again in the meantime."""
    for name in action["names"]:
        entry = f"named/{quoted(name)}"
        last = state.entries.get(entry)
        if last is not None and named_entry(last)[1] < action["before_ms"]:
            state.drop(entry)


def named_entry(value: Any) -> tuple[int, int, list[Any] | None]:
    """Return the number, the time and the parts of a name's entry."""
    number, time_ms, parts = value
    return int(number), int(time_ms), parts


def document_of(state: MutableState, name: str) -> tuple[int, Mapping[str, Any]]:
    """Return the version and the fields of a document. A document that was never stored has version 0."""
    version, fields = state.entries.get(f"document/{name}", (0, {}))
    return int(version), fields


def change_document(state: MutableState, action: Action) -> int:
    """Replace the fields of a document that has not changed, and return its new version."""
    expect_document(state, action)
    state.put(f"document/{action['name']}", [action["version"] + 1, action["fields"]])
    return int(action["version"] + 1)


def expect_document(state: MutableState, action: Action) -> None:
    """Reject the request if a document has changed."""
    version, _ = document_of(state, action["name"])
    if version != action["version"]:
        raise Rejected("Changed", f"the document {action['name']} has version {version}")


# --- uploads


def floor_of(state: MutableState) -> int:
    """Return the floor: an upload is void if it began when fewer commits were known."""
    return int(state.entries.get("floor", 0))


def voided(state: MutableState, job: str) -> int:
    """Return the commit at which a job was abandoned; -1 if it was not, or that is forgotten."""
    if not state.entries.of_kind("void"):  # the common case, and a commit may ask thousands of times
        return -1
    return int(state.entries.get(f"void/{quoted(job)}", -1))


def check_floor(state: MutableState, key: str) -> None:
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


def abandon_job(state: MutableState, action: Action) -> None:
    """Abandon a job: its uploads that no commit has adopted by now are void. Uploads of a later run are valid again."""
    state.put(f"void/{quoted(action['job'])}", state.number)


def raise_floor(state: MutableState, action: Action) -> int:
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
