"""Everything that is replicated except records: topics and their settings, committed offsets, and documents."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import StorageError
from ..committed_offsets import Committed
from ..directory.store import Store
from ..directory.topic import Topic
from ..names import REGISTRY
from ..objects.session import StoreSession
from ..objects.state.extents import COPY_OF
from ..objects.state.state import State

if TYPE_CHECKING:
    from .replicator import Options

Action = dict[str, Any]
Share = tuple[str, int]
#: A group's offsets as in the state: by topic id and partition.
_Kept = dict[tuple[str, int], tuple[int, str, int]]


def topic_actions(
    session: StoreSession, topics: Iterable[Topic], given: Options, ids: Collection[str]
) -> tuple[list[list[Action]], dict[str, str]]:
    """Return the requests that make the replica's topics match the source's, and the topics that cannot be replicated,
    with the reasons. `ids` are the ids of all topics of the source, including those that are not replicated."""
    requests: list[list[Action]] = []
    problems: dict[str, str] = {}
    wanted = {topic.name: topic for topic in topics}
    known = session.look(lambda state: {name: state.topic(name) for name in state.topics()})
    for name, entry in known.items():
        assert entry is not None
        if given.topics and name not in given.topics:
            continue
        topic = wanted.get(name)
        if topic is not None and topic.id == entry["id"]:
            continue
        if entry["id"] in ids:  # renamed at the source; the replica may have its only records
            problems[name] = (
                f"the topic {name} of the replica has another name at the source, where it has replaced another topic; "
                f"the replica keeps it. Ship to another address"
            )
        elif given.delete:
            requests.append([{"do": "delete topic", "name": name, "id": entry["id"]}])
        elif topic is not None:
            problems[name] = (
                f"the topic {name} was deleted and recreated at the source; the replica keeps the one of before. "
                f"Delete it there, or replicate with --delete"
            )
    named = {entry["id"]: name for name, entry in known.items() if entry is not None}
    for name, topic in wanted.items():
        before = known.get(name)
        is_new = before is None or before["id"] != topic.id
        if (other := named.get(topic.id, name)) != name:  # the replica may have its only records, under that name
            problems[name] = (
                f"the topic {name} has replaced another one: it is {other} in the replica, which keeps it. Ship to "
                f"another address"
            )
        if name in problems:
            continue
        if is_new:
            fields = {"name": name, "id": topic.id, "partitions": topic.partitions, "settings": dict(topic.settings)}
            requests.append([{"do": "create topic", **fields}])
        elif before is not None and (
            before["partitions"] != topic.partitions or dict(before["settings"]) != dict(topic.settings)
        ):
            gone = dict.fromkeys(set(before["settings"]) - set(topic.settings))
            changes = {**dict(topic.settings), **gone}
            count = max(topic.partitions, before["partitions"])
            fields = {"name": name, "id": topic.id, "partitions": count, "settings": changes}
            requests.append([{"do": "alter topic", **fields}])
    return requests, problems


def changed_offsets(
    session: StoreSession,
    topics: Iterable[Topic],
    offsets: Mapping[str, Mapping[Share, Committed]],
    ends: Mapping[tuple[str, int], int],
    *,
    delete: bool,
) -> list[Action]:
    """Return actions for offsets that groups have committed since, if the replica has the records before them."""
    names = {topic.id: topic.name for topic in topics}
    actions: list[Action] = []
    known: dict[str, _Kept] = session.look(lambda state: {group: state.offsets(group) for group in state.groups()})
    for group, committed in sorted(offsets.items()):
        before = known.get(group, {})
        rows: list[tuple[str, int, int, str, int]] = []
        for (_, partition), each in sorted(committed.items()):
            wanted = each.offset, each.metadata, each.leader_epoch
            share = each.topic_id, partition
            if share in ends and each.offset <= ends[share] and before.get(share) != wanted:
                rows.append((each.topic_id, partition, *wanted))
        if rows:
            used = {row[0]: names[row[0]] for row in rows}
            actions.append({"do": "commit offsets", "group": group, "offsets": rows, "topics": used})
    if delete:
        actions += [{"do": "delete group", "group": group} for group in sorted(set(known) - set(offsets))]
    return actions


def changed_documents(session: StoreSession, source: Store) -> list[Action]:
    """Return actions for documents that differ from the source's: users and ACLs."""
    actions: list[Action] = []
    for name in document_names(source):
        fields = dict(source.registry.read(name).fields)
        version, before = session.look(lambda state, name=name: state.document(name))  # type: ignore[misc]
        if name != COPY_OF and fields != dict(before):
            actions.append({"do": "change document", "name": name, "version": version, "fields": fields})
    return actions


def document_names(store: Store) -> list[str]:
    """Return the names of the documents of a store in a directory."""
    try:
        directory = store.directory.child(REGISTRY)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return []
        raise
    try:
        return sorted(name.removesuffix(".json") for name in directory.names() if name.endswith(".json"))
    finally:
        directory.close()


def documents_of(state: State) -> dict[str, Mapping[str, Any]]:
    """Return the documents of a replica."""
    names = [name.partition("/")[2] for name in state.entries.names("document/")]
    return {name: state.document(name)[1] for name in names if name != COPY_OF}
