"""`State`: the content of a store after a commit. Every process computes the same state from the same commits.

The fold is deterministic: it depends only on the previous state and the commit, not on the time, the process or earlier
requests. It checks in this order (rule R5 of ADR 25). Does this version know every action and field? Is the commit
known already? Then it has its first outcome, even if that was a rejection. Are the uploads that it refers to above the
floor? Do its conditions hold? Only then is it applied.

An invalid request is rejected and never raises: an exception that every process meets would make the store unusable.
Messages of rejections are not part of the state, so later versions can improve them.

A process that meets an unknown action stops for good (R8), because it cannot compute the state without it.

The entries are defined in other modules, or here:

```
topic/ end/ extent/ producer/ clean/ epochs/ snapshot/                partitions.py
transaction/ writing/ pending/ open/ aborted/                         partitions.py
group/ offset/ page/ queue/ member/ owner/ broker/ served/ claims/    groups.py

document/<name>     [version, fields]
named/<name>        [the last number stored under the name, its time, parts]: parts is a list with
                    [topic, topic id, partition, records, digest] for each partition, or null
floor               uploads that were begun below this commit are void
void/<job>          the commit at which a job was abandoned: its uploads until then are void
nonce/<writer>      [sequence, commit, outcomes]
counter/<name>      how many numbers were handed out
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from . import groups, partitions
from .commit import Action, Commit, Request, UpgradeRequired
from .entries import MutableState, Rejected, quoted, take_numbers

#: The outcome of a request: {"ok": [a result for each action]} or {"no": [kind, message, number, ...]}.
Outcome = Mapping[str, Any]


# --- documents, names, and uploads


def apply_once(state: MutableState, action: Action) -> None:
    last = state.last_of(action["name"])
    if last is not None and action["sequence"] <= last[0]:
        raise Rejected("Done", f"number {action['sequence']} of {action['name']} is stored")
    state.put(f"named/{quoted(action['name'])}", [action["sequence"], action.get("time_ms", 0), action.get("parts")])


def forget_names(state: MutableState, action: Action) -> None:
    """Drop old names that were not used again in the meantime."""
    for name in action["names"]:
        last = state.last_of(name)
        if last is not None and last[1] < action["before_ms"]:
            state.drop(f"named/{quoted(name)}")


def change_document(state: MutableState, action: Action) -> int:
    """Replace the fields of a document that has not changed, and return its new version."""
    expect_document(state, action)
    state.put(f"document/{action['name']}", [action["version"] + 1, action["fields"]])
    return int(action["version"] + 1)


def expect_document(state: MutableState, action: Action) -> None:
    version, _ = state.document(action["name"])
    if version != action["version"]:
        raise Rejected("Changed", f"the document {action['name']} has version {version}")


def abandon_job(state: MutableState, action: Action) -> None:
    """Abandon a job: its uploads that no commit has adopted by now are void. Uploads of a later run are valid again."""
    state.put(f"void/{quoted(action['job'])}", state.number)


def raise_floor(state: MutableState, action: Action) -> int:
    """Void later references to uploads begun below a commit. Nonces, abandoned jobs and idle producers from before it
    are forgotten."""
    floor = int(action["number"])
    if floor > state.number:
        raise Rejected("InvalidConfig", f"there are {state.number} commits, not {floor}")
    if floor > state.floor:
        state.put("floor", floor)
    floor = state.floor
    for name in state.entries.names("nonce/"):
        if state.entries.get(name)[1] < floor:
            state.drop(name)
    for name in state.entries.names("void/"):
        if state.entries.get(name) < floor:
            state.drop(name)
    partitions.forget_producers(state, floor)
    return floor


# --- the actions


class ActionSpec(NamedTuple):
    """A known action: its effect, and the fields that it may have in addition to `do`."""

    #: Called with the state, the action, the key of the commit's object and the position of its batches there.
    apply: Callable[[Any, Action, str, int], Any]
    fields: frozenset[str]


def _fields(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _spec(apply: Callable[[Any, Action], Any], fields: str) -> ActionSpec:
    """Describe an action that refers to nothing in its own commit."""
    return ActionSpec(lambda state, action, commit_key, inline_at: apply(state, action), _fields(fields))


ACTIONS: dict[str, ActionSpec] = {
    "create topic": _spec(partitions.create_topic, "name id partitions settings created_ms"),
    "alter topic": _spec(partitions.alter_topic, "name id partitions settings"),
    "delete topic": _spec(partitions.delete_topic, "name id"),
    "replace topic": _spec(partitions.replace_topic, "name id by by_id ends"),
    "append": ActionSpec(
        partitions.append, _fields("topic partition key extents producers expect transactions copied")
    ),
    "advance": _spec(partitions.advance, "topic partition offset"),
    "begin epoch": _spec(partitions.begin_epoch, "topic partition epoch"),
    "replace": _spec(partitions.replace_extents, "topic partition old base end new"),
    "compacted": _spec(partitions.record_compaction, "topic partition offset time_ms tombstones dropped_below"),
    "move start": _spec(partitions.move_start, "topic partition offset"),
    "commit offsets": _spec(groups.commit_offsets, "group offsets topics member outside alone claim decided"),
    "delete group": _spec(groups.delete_group, "group"),
    "once": _spec(apply_once, "name sequence time_ms parts"),
    "forget names": _spec(forget_names, "names before_ms"),
    "change document": _spec(change_document, "name version fields"),
    "expect document": _spec(expect_document, "name version"),
    "void": _spec(abandon_job, "job"),
    "raise floor": _spec(raise_floor, "number"),
    "take numbers": _spec(lambda state, action: take_numbers(state, action["name"], action["count"]), "name count"),
    "save transaction": _spec(partitions.save_transaction, "name version fields"),
    "in transaction": _spec(partitions.check_writing, "producer epoch topic partition"),
    "register broker": _spec(groups.register_broker, "id run host port"),
    "beat": _spec(groups.beat_broker, "id run"),
    "remove broker": _spec(groups.remove_broker, "id run beat"),
    "claim group": _spec(groups.claim_group, "group id run address epoch"),
    "release group": _spec(groups.release_group, "group claim"),
    "join group": _spec(groups.join_group, "group member name process topics timeout_ms time_ms works"),
    "beat member": _spec(groups.beat_member, "group member time_ms"),
    "leave group": _spec(groups.leave_group, "group member"),
    "remove member": _spec(groups.remove_member, "group member beat"),
    "take partitions": _spec(groups.take_partitions, "group member shares begin"),
    "give up partitions": _spec(groups.give_up_partitions, "group member shares"),
    "exchange": _spec(groups.exchange, "group member count offsets topics pages"),
    "take snapshot": _spec(partitions.take_snapshot, "name topics time_ms"),
    "drop snapshot": _spec(partitions.drop_snapshot, "name"),
    "fork topic": _spec(partitions.fork_topic, "name id source source_id at"),
}
#: The kinds of entries in a checkpoint.
_KINDS = frozenset(
    {"floor", "topic", "end", "extent", "group", "offset", "named", "producer", "document", "nonce", "void", "clean"}
    | {"counter", "transaction", "writing", "pending", "open", "aborted", "broker", "served", "claims"}
    | {"member", "owner", "page", "queue", "snapshot", "epochs"}
)


def check_known(action: Action, key: str) -> None:
    """Raise unless this version knows the action and all its fields (R8)."""
    known = ACTIONS.get(str(action.get("do"))) if isinstance(action, Mapping) else None
    if known is None:
        raise UpgradeRequired(f"{key}: unknown action {str(action)[:80]}; a newer sawlog has written it")
    unknown = set(action) - known.fields - {"do"}
    if unknown:
        raise UpgradeRequired(f"{key}: {action['do']!r} with unknown fields {', '.join(sorted(unknown))}")


def check_kinds(kinds: Iterable[str], key: str) -> None:
    """Raise unless this version knows all kinds of entries of a checkpoint."""
    unknown = set(kinds) - _KINDS
    if unknown:
        raise UpgradeRequired(f"{key} has entries that this version does not know: {', '.join(sorted(unknown))}")


class State(MutableState):
    """The state after `number` commits. Not thread-safe: the journal guards it."""

    def apply(self, commit: Commit, key: str, inline_at: int) -> list[Outcome]:
        """Fold the next commit, stored in the object `key` with its batches from `inline_at` on, and return the
        outcomes of its requests."""
        for request in commit.requests:
            for action in request:
                check_known(action, key)
        writer, sequence = commit.nonce.writer, commit.nonce.sequence
        known = self.entries.get(f"nonce/{writer}")
        if known is not None and known[0] >= sequence:
            late = _no("Expired", "a later commit of this writer is known")
            outcomes = list(known[2]) if known[0] == sequence else [late] * len(commit.requests)
        elif known is None and commit.known < self.floor:
            late = _no("Expired", "it was begun below the floor: nobody knows whether it was applied before")
            outcomes = [late] * len(commit.requests)
        else:
            outcomes = [self._request(request, key, inline_at) for request in commit.requests]
            # Without the messages, which later versions may improve.
            kept = [{"no": [each["no"][0], "", *each["no"][2:]]} if "no" in each else each for each in outcomes]
            self.entries.put(f"nonce/{writer}", [sequence, self.number, kept])
        self.number += 1
        return outcomes

    def _request(self, request: Request, key: str, inline_at: int) -> Outcome:
        """Apply all actions of a request, or none."""
        self._undo.clear()
        try:
            done = {"ok": [ACTIONS[action["do"]].apply(self, action, key, inline_at) for action in request]}
            self._undo.clear()
            return done
        except Rejected as error:
            self._take_back()
            return _no(error.kind, str(error), *error.numbers)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
            self._take_back()
            return _no("InvalidConfig", "an action has no field that it needs, or a value that it cannot have")


def _no(kind: str, message: str, *numbers: int) -> Outcome:
    return {"no": [kind, message, *numbers]}
