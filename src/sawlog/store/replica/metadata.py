"""The identity of a replica, and the metadata that it copies: topics and settings, committed offsets, documents.

A document in the copy names its source. A store with such a document is written by `sawlog replicate` alone, without
retention or compaction, since the source decides these.

A directory records the address of its replica, so that the store can read removed records from there. The first address
is recorded. Another one replaces it if no records are only in the first replica, or if the other replica has all of
them: to move to another bucket, replicate everything there, and the new address takes over.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...display import counted
from ...errors import CorruptFile, ImportMismatch, InvalidConfig, StorageError, TopicNotFound
from ..base import TopicPartition
from ..directory.replica import ReplicaAddress
from ..directory.store import DirectoryStore
from ..directory.topic import DirectoryTopic
from ..groups import Committed
from ..names import REGISTRY
from ..objects.maintenance import is_copy
from ..objects.session import StoreSession
from ..objects.state import State
from ..objects.state.commit import COPY_OF
from ..objects.store import ObjectStore
from .shipment import ReplicaPartition

if TYPE_CHECKING:
    from .replicator import Options


Action = dict[str, Any]
#: A group's offsets as in the state: by topic id and partition.
_Kept = dict[tuple[str, int], tuple[int, str, int]]


def topic_actions(
    session: StoreSession, topics: Iterable[DirectoryTopic], given: Options, ids: Collection[str]
) -> tuple[list[list[Action]], dict[str, str]]:
    """Return the requests that make the replica's topics match the source, and the reasons why topics cannot be
    replicated, by name. `ids` are the ids of all topics of the source, including those that are not replicated."""
    requests: list[list[Action]] = []
    problems: dict[str, str] = {}
    wanted = {topic.name: topic for topic in topics}
    known = session.look(lambda state: {name: state.topic(name) or {} for name in state.topics()})
    for name, entry in known.items():
        topic = wanted.get(name)
        if (given.topics and name not in given.topics) or (topic is not None and topic.id == entry["id"]):
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
    named = {entry["id"]: name for name, entry in known.items()}
    for name, topic in wanted.items():
        if (other := named.get(topic.id, name)) != name:  # the replica may have its only records, under that name
            problems[name] = (
                f"the topic {name} has replaced another one: it is {other} in the replica, which keeps it. Ship to "
                f"another address"
            )
        if name in problems:
            continue
        before, settings = known.get(name, {}), dict(topic.settings)
        fields = {"name": name, "id": topic.id, "partitions": topic.partitions, "settings": settings}
        if before.get("id") != topic.id:
            requests.append([{"do": "create topic", **fields}])
        elif before["partitions"] != topic.partitions or dict(before["settings"]) != settings:
            fields["partitions"] = max(topic.partitions, before["partitions"])
            fields["settings"] = {**settings, **dict.fromkeys(set(before["settings"]) - set(settings))}
            requests.append([{"do": "alter topic", **fields}])
    return requests, problems


def changed_offsets(
    session: StoreSession,
    topics: Iterable[DirectoryTopic],
    offsets: Mapping[str, Mapping[TopicPartition, Committed]],
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


def changed_documents(session: StoreSession, source: DirectoryStore) -> list[Action]:
    """Return actions for documents that differ from the source's: users and ACLs."""
    actions: list[Action] = []
    for name in document_names(source):
        fields = dict(source._registry.read(name).fields)
        version, before = session.look(lambda state, name=name: state.document(name))  # type: ignore[misc]
        if name != COPY_OF and fields != dict(before):
            actions.append({"do": "change document", "name": name, "version": version, "fields": fields})
    return actions


def document_names(store: DirectoryStore) -> list[str]:
    try:
        directory = store._directory.child(REGISTRY)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return []
        raise
    try:
        return sorted(name.removesuffix(".json") for name in directory.names() if name.endswith(".json"))
    finally:
        directory.close()


def documents_of(state: State) -> dict[str, Mapping[str, Any]]:
    names = [name.partition("/")[2] for name in state.entries.names("document/")]
    return {name: state.document(name)[1] for name in names if name != COPY_OF}


_logger = logging.getLogger("sawlog.store.replica")


def record_address(
    source: DirectoryStore,
    address: ReplicaAddress,
    places: Mapping[tuple[str, int], ReplicaPartition],
    *,
    is_whole: bool,
) -> None:
    """Record an address, unless the recorded one is still needed. A directory that is not writable keeps all its
    records locally."""
    known, is_damaged = None, False
    try:
        known = source.replica
    except CorruptFile:  # rewritten by a replica that has everything
        is_damaged = True
    is_other = is_damaged or (known is not None and known.url != address.url)
    if known == address or (is_other and not _has_all(source, places)):
        return
    if (known is None and not is_damaged and not is_whole) or address.url.startswith("memory://"):
        return  # a replica of some topics, where another may have all; or one in the memory of this process
    try:
        address.store(source._directory)
    except StorageError as error:
        _logger.warning("%s: where the replica is could not be recorded: %s", source.path, error)


def _has_all(source: DirectoryStore, places: Mapping[tuple[str, int], ReplicaPartition]) -> bool:
    """Return whether a replica has everything that is only in another one."""
    for topic in source:
        try:
            for number in range(topic.partitions):
                log, place = topic.partition(number), places.get((topic.name, number))
                lowest, local = log.lowest_offset, log._local_offset
                if lowest < local and (place is None or place.start > lowest or place.end < local):
                    return False
        except TopicNotFound:
            continue
        except StorageError:  # only the earlier replica knows where the log begins
            return False
    return True


#: Maximum size of a block of numbers, and number of blocks: ids of another system may be too large for that.
_BLOCK, _MOST_BLOCKS = 1 << 20, 4096


def claim_copy(session: StoreSession, source_id: str, path: str) -> None:
    """Make an empty store the copy of another, unless it is already. Raises `ImportMismatch` if it is something
    else."""

    def look(state: State) -> tuple[int, Mapping[str, object], list[str]]:
        return *state.document(COPY_OF), state.topics()

    version, found, topics = session.look(look, fresh=True)
    if found.get("source") == source_id:
        return
    where = session.bucket.url
    if "source" in found:
        raise ImportMismatch(
            f"{where} is a replica of the store {found['source']} ({found.get('path')}), not of {path}: use another "
            "address"
        )
    if "was" in found:
        raise ImportMismatch(f"{where} was promoted: it is a store of its own now; use another address")
    if topics:
        raise ImportMismatch(
            f"{where} is a store of its own with {counted(len(topics), 'topic')}, not a replica of {path}: "
            "use another address"
        )
    fields = {"source": source_id, "path": path}
    outcome = session.submit(
        [{"do": "change document", "name": COPY_OF, "version": version, "fields": fields}]
    ).result()
    if "ok" not in outcome:  # another replicator was faster, of the same store or of another one
        claim_copy(session, source_id, path)


def still_a_copy(session: StoreSession, source_id: str) -> dict[str, object]:
    """Return the condition for writing to a copy: it still is one, and is not being promoted. Raises `ImportMismatch`
    if it is no longer a copy."""
    version, found = session.look(lambda state: state.document(COPY_OF), fresh=True)
    if found.get("source") != source_id:
        raise ImportMismatch(f"{session.bucket.url} is no replica any more: it was promoted, or deleted and recreated")
    return {"do": "expect document", "name": COPY_OF, "version": version}


def promote(url: str, *, options: Mapping[str, str] | None = None) -> None:
    """Turn a replica on object storage into a store of its own, for instance because its source is lost. It becomes
    writable, retention and compaction run, and `sawlog replicate` refuses it."""
    with ObjectStore.open(url, options=options, maintenance_interval_s=None) as store:
        session = store._session
        version, found = session.look(lambda state: state.document(COPY_OF), fresh=True)
        if not session.look(is_copy):
            raise InvalidConfig(f"{url} is no replica: there is nothing to promote")
        fields = {"was": found["source"], "path": found.get("path")}
        change = {"do": "change document", "name": COPY_OF, "version": version, "fields": fields}
        session.commit([change, *session.look(_numbers_in_use)])


def _numbers_in_use(state: State) -> list[dict[str, object]]:
    """Return actions that allocate the producer ids in the records, so that a broker does not hand them out again."""
    highest = max((int(name.rpartition("/")[2]) for name in state.entries.names("producer/")), default=-1)
    taken, actions = int(state.entries.get("counter/producer", 0)), list[dict[str, object]]()
    while taken <= highest and len(actions) < _MOST_BLOCKS:
        count = min(highest + 1 - taken, _BLOCK)
        actions.append({"do": "take numbers", "name": "producer", "count": count})
        taken += count
    return actions
