"""The registry of actions: the effect of each one and the fields that it may have.

A process that meets an unknown action stops for good (rule R8 of ADR 25), because it cannot compute the state without
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from . import brokers, documents, groups, members, mutation, records, snapshots, topics, transactions, uploads
from .commit import Action, UpgradeRequired


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
    "create topic": _spec(topics.create, "name id partitions settings created_ms"),
    "alter topic": _spec(topics.alter, "name id partitions settings"),
    "delete topic": _spec(topics.delete, "name id"),
    "replace topic": _spec(topics.replace, "name id by by_id ends"),
    "append": ActionSpec(records.append, _fields("topic partition key extents producers expect transactions copied")),
    "advance": _spec(records.advance, "topic partition offset"),
    "begin epoch": _spec(records.begin_epoch, "topic partition epoch"),
    "replace": _spec(records.replace, "topic partition old base end new"),
    "compacted": _spec(records.compacted, "topic partition offset time_ms tombstones dropped_below"),
    "move start": _spec(records.move_start, "topic partition offset"),
    "commit offsets": _spec(groups.commit, "group offsets topics member outside alone claim decided"),
    "delete group": _spec(groups.delete, "group"),
    "once": _spec(documents.once, "name sequence time_ms parts"),
    "forget names": _spec(documents.forget_names, "names before_ms"),
    "change document": _spec(documents.change, "name version fields"),
    "expect document": _spec(documents.expect, "name version"),
    "void": _spec(uploads.give_up, "job"),
    "raise floor": _spec(uploads.raise_floor, "number"),
    "take numbers": _spec(mutation.take, "name count"),
    "save transaction": _spec(transactions.save, "name version fields"),
    "in transaction": _spec(transactions.check_writing, "producer epoch topic partition"),
    "register broker": _spec(brokers.register, "id run host port"),
    "beat": _spec(brokers.beat, "id run"),
    "remove broker": _spec(brokers.remove, "id run beat"),
    "claim group": _spec(brokers.claim, "group id run address epoch"),
    "release group": _spec(brokers.release, "group claim"),
    "join group": _spec(members.join, "group member name process topics timeout_ms time_ms works"),
    "beat member": _spec(members.beat, "group member time_ms"),
    "leave group": _spec(members.leave, "group member"),
    "remove member": _spec(members.remove, "group member beat"),
    "take partitions": _spec(members.take, "group member shares begin"),
    "give up partitions": _spec(members.give_up, "group member shares"),
    "exchange": _spec(groups.exchange, "group member count offsets topics pages"),
    "take snapshot": _spec(snapshots.take, "name topics time_ms"),
    "drop snapshot": _spec(snapshots.drop, "name"),
    "fork topic": _spec(snapshots.fork, "name id source source_id at"),
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
