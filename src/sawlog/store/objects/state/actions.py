"""All actions that this version knows, by name: what each does, and which fields it may have.

A process that meets another one stops for good (rule R8 of ADR 25): it must not go on without what it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from . import book, brokers, documents, groups, members, records, snapshots, topics, transactions, uploads
from .commit import Action, UpgradeRequired


class Known(NamedTuple):
    """What this version knows of an action: what it does, and which fields it may have besides `do`."""

    #: With the state, the action, the key of the commit's object, and the position at which its batches begin there.
    apply: Callable[[Any, Action, str, int], Any]
    fields: frozenset[str]


def _fields(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _known(apply: Callable[[Any, Action], Any], fields: str) -> Known:
    """An action that refers to nothing in its own commit."""
    return Known(lambda book, action, commit_key, inline_at: apply(book, action), _fields(fields))


ACTIONS: dict[str, Known] = {
    "create topic": _known(topics.create, "name id partitions settings created_ms"),
    "alter topic": _known(topics.alter, "name id partitions settings"),
    "delete topic": _known(topics.delete, "name id"),
    "replace topic": _known(topics.replace, "name id by by_id ends"),
    "append": Known(records.append, _fields("topic partition key extents producers expect transactions copied")),
    "advance": _known(records.advance, "topic partition offset"),
    "begin epoch": _known(records.begin_epoch, "topic partition epoch"),
    "replace": _known(records.replace, "topic partition old base end new"),
    "compacted": _known(records.compacted, "topic partition offset time_ms tombstones dropped_below"),
    "move start": _known(records.move_start, "topic partition offset"),
    "commit offsets": _known(groups.commit, "group offsets topics member outside alone claim decided"),
    "delete group": _known(groups.delete, "group"),
    "once": _known(documents.once, "name sequence time_ms parts"),
    "forget names": _known(documents.forget_names, "names before_ms"),
    "change document": _known(documents.change, "name version fields"),
    "expect document": _known(documents.expect, "name version"),
    "void": _known(uploads.give_up, "job"),
    "raise floor": _known(uploads.raise_floor, "number"),
    "take numbers": _known(book.take, "name count"),
    "save transaction": _known(transactions.save, "name version fields"),
    "in transaction": _known(transactions.check_writing, "producer epoch topic partition"),
    "register broker": _known(brokers.register, "id run host port"),
    "beat": _known(brokers.beat, "id run"),
    "remove broker": _known(brokers.remove, "id run beat"),
    "claim group": _known(brokers.claim, "group id run address epoch"),
    "release group": _known(brokers.release, "group claim"),
    "join group": _known(members.join, "group member name process topics timeout_ms time_ms works"),
    "beat member": _known(members.beat, "group member time_ms"),
    "leave group": _known(members.leave, "group member"),
    "remove member": _known(members.remove, "group member beat"),
    "take partitions": _known(members.take, "group member shares begin"),
    "give up partitions": _known(members.give_up, "group member shares"),
    "exchange": _known(groups.exchange, "group member count offsets topics pages"),
    "take snapshot": _known(snapshots.take, "name topics time_ms"),
    "drop snapshot": _known(snapshots.drop, "name"),
    "fork topic": _known(snapshots.fork, "name id source source_id at"),
}
#: The kinds of entries, as they are in a checkpoint.
_KINDS = frozenset(
    {"floor", "topic", "end", "extent", "group", "offset", "named", "producer", "document", "nonce", "void", "clean"}
    | {"counter", "transaction", "writing", "pending", "open", "aborted", "broker", "served", "claims"}
    | {"member", "owner", "page", "queue", "snapshot", "epochs"}
)


def check_known(action: Action, key: str) -> None:
    """Raise unless this version knows the action with all its fields: it must not go on without them (R8)."""
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
