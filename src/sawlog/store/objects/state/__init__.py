"""`State`: the content of a store after a commit. Every process computes the same state from the same commits.

The fold is deterministic: it depends only on the previous state and the commit, not on the time, the process or earlier
requests. It checks in this order (rule R5 of ADR 25). Does this version know every action and field? Is the commit
known already? Then it has its first outcome, even if that was a rejection. Are the uploads that it refers to above the
floor? Do its conditions hold? Only then is it applied.

An invalid request is rejected and never raises: an exception that every process meets would make the store unusable.
Messages of rejections are not part of the state, so later versions can improve them.

A process that meets an unknown action stops for good (R8), because it cannot compute the state without it.

The entries, by the module that defines them:

```
topic/ end/ extent/ producer/ clean/ epochs/ snapshot/          partitions.py
group/ offset/ page/ queue/ member/ owner/ broker/ served/ claims/    groups.py
transaction/ writing/ pending/ open/ aborted/                   transactions.py
document/ named/ floor void/ nonce/                             documents.py
counter/                                                        entries.py: how many numbers were handed out
```
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from . import documents, groups, partitions, transactions
from .commit import Action, Commit, Extent, Request, UpgradeRequired
from .entries import MutableState, Rejected, quoted, take_numbers
from .partitions import CompactionState

#: The outcome of a request: {"ok": [a result for each action]} or {"no": [kind, message, number, ...]}.
Outcome = Mapping[str, Any]


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
    "once": _spec(documents.apply_once, "name sequence time_ms parts"),
    "forget names": _spec(documents.forget_names, "names before_ms"),
    "change document": _spec(documents.change_document, "name version fields"),
    "expect document": _spec(documents.expect_document, "name version"),
    "void": _spec(documents.abandon_job, "job"),
    "raise floor": _spec(documents.raise_floor, "number"),
    "take numbers": _spec(lambda state, action: take_numbers(state, action["name"], action["count"]), "name count"),
    "save transaction": _spec(transactions.save, "name version fields"),
    "in transaction": _spec(transactions.check_writing, "producer epoch topic partition"),
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

    # --- reading

    @property
    def digest(self) -> str:
        """The digest: equal for equal states."""
        return self.entries.digest

    @property
    def floor(self) -> int:
        """The floor: an upload is void if it began when fewer commits were known."""
        return documents.floor_of(self)

    def extents(self, topic: str, partition: int, start: int, end: int | None = None) -> Iterable[Extent]:
        """Yield the extents that contain offsets from `start` on, in order."""
        bases = self.bases(topic, partition)
        for base in bases[max(bisect_right(bases, start) - 1, 0) :]:
            if end is not None and base >= end:
                return
            found = self.extent(topic, partition, base)
            if found.next_offset > start:
                yield found

    def epochs(self, topic: str, partition: int) -> list[tuple[int, int]]:
        """Return (leader epoch, its first offset), oldest first. Only a copy has epochs other than 0."""
        return [(int(epoch), int(first)) for epoch, first in self.entries.get(f"epochs/{topic}/{partition}", ())]

    def offset_at(self, topic: str, partition: int, timestamp: int) -> Extent | None:
        """Return the first extent whose newest record is not older than a timestamp."""
        for extent in self.extents(topic, partition, 0):
            if extent.max_timestamp >= timestamp:
                return extent
        return None

    def stable(self, topic: str, partition: int) -> int:
        """Return the last stable offset: every transaction below it is decided."""
        return transactions.stable(self, topic, partition, self.ends(topic, partition)[1])

    def aborted(self, topic: str, partition: int, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return (producer id, first offset, marker) of the aborted transactions that have offsets in a range."""
        return list(transactions.aborted(self, topic, partition, start, end))

    def referenced(self) -> set[str]:
        """Return the keys of all objects that contain extents."""
        return {self.entries.get(name)[0] for name in self.entries.of_kind("extent")}

    def snapshots(self) -> dict[str, Mapping[str, Any]]:
        """Return the entries of all snapshots, by name."""
        names = self.entries.names("snapshot/")
        return {unquote(name.partition("/")[2]): self.entries.get(name) for name in names}

    def groups(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return sorted(unquote(name.partition("/")[2]) for name in self.entries.names("group/"))

    def group(self, name: str) -> list[str] | None:
        """Return the topics that a group has committed in; None if there is no such group."""
        found = self.entries.get(f"group/{quoted(name)}")
        return None if found is None else list(found)

    def offsets(self, group: str) -> dict[tuple[str, int], tuple[int, str, int]]:
        """Return the committed offsets of a group: (offset, metadata, leader epoch) by topic id and partition."""
        prefix = f"offset/{quoted(group)}/"
        found = {}
        for name in self.entries.names(prefix):
            topic, partition = name.removeprefix(prefix).split("/")
            offset, metadata, epoch = self.entries.get(name)
            found[topic, int(partition)] = (int(offset), str(metadata), int(epoch))
        return found

    def document(self, name: str) -> tuple[int, Mapping[str, Any]]:
        """Return the version and the fields of a document."""
        return documents.document_of(self, name)

    def clean(self, topic: str, partition: int) -> CompactionState:
        """Return the state of compaction of a partition."""
        return partitions.compaction_state(self, topic, partition)

    def voided(self, job: str) -> int:
        """Return the commit at which a job was abandoned; -1 if it was not, or that is forgotten."""
        return documents.voided(self, job)

    def last_of(self, name: str) -> tuple[int, int, list[Any] | None] | None:
        """Return the last number stored under a name, its time, and its parts if they are known."""
        last = self.entries.get(f"named/{quoted(name)}")
        return None if last is None else documents.named_entry(last)

    def names_before(self, time_ms: int) -> list[str]:
        """Return the names last used before a time. Names whose time is unknown are left out."""
        found = self.entries.names("named/")
        old = [each for each in found if 0 < documents.named_entry(self.entries.get(each))[1] < time_ms]
        return [unquote(each.removeprefix("named/")) for each in old]

    def nonces_below(self, number: int) -> int:
        """Return the number of remembered outcomes of commits before `number`."""
        return sum(self.entries.get(name)[1] < number for name in self.entries.names("nonce/"))

    def outcome_of(self, writer: str, sequence: int) -> tuple[int, list[Outcome]] | None:
        """Return the number and the outcomes of a writer's commit, if it is the writer's last known one."""
        found = self.entries.get(f"nonce/{writer}")
        if found is None or found[0] != sequence:
            return None
        return int(found[1]), list(found[2])

    # --- the fold

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
            self.entries.put(f"nonce/{writer}", [sequence, self.number, [_without_text(each) for each in outcomes]])
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


def _without_text(outcome: Outcome) -> Outcome:
    """Return an outcome as it is remembered, without its message."""
    return {"no": [outcome["no"][0], "", *outcome["no"][2:]]} if "no" in outcome else outcome
