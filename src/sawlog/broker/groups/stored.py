"""Groups and topics as stored. All functions read the disk: call them in a thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from ...errors import GroupNotFound, InvalidConfig, TopicNotFound
from ...store.base import Topic, TopicPartition
from ...store.groups import Committed
from ...store.serving import StoreService
from .classic_group import MemberSummary, State
from .consumer_group import TopicInfo
from .members import CONSUMER, encode_assignment, encode_subscription


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group as listed and described."""

    name: str
    protocol_type: str
    state: str
    protocol: str = ""
    members: Sequence[MemberSummary] = ()
    #: "classic", or "consumer" if the broker assigns the partitions.
    type: str = "classic"


class TopicLookup:
    """The topics of a store at one moment, each looked up at most once."""

    def __init__(self, store: StoreService) -> None:
        self._store = store
        self._found: dict[str, Topic | None] = {}

    def find(self, name: str) -> Topic | None:
        """Return a topic; None if it does not exist."""
        if name not in self._found:
            try:
                self._found[name] = self._store.topic(name)
            except TopicNotFound:
                self._found[name] = None
        return self._found[name]

    def __getitem__(self, name: str) -> Topic:
        """Return a topic that exists."""
        found = self.find(name)
        assert found is not None
        return found

    def __contains__(self, share: TopicPartition) -> bool:
        """Whether the partition exists."""
        topic = self.find(share[0])
        return topic is not None and 0 <= share[1] < topic.partitions

    def valid(self, offsets: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, Committed]:
        """Return the offsets whose topics still exist and were not recreated since the commit."""
        return {
            share: each
            for share, each in offsets.items()
            if (topic := self.find(share[0])) is not None and topic.id == each.topic_id
        }


def missing_partitions(store: StoreService, shares: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Return the partitions that do not exist."""
    topics = TopicLookup(store)
    return {share for share in shares if share not in topics}


def topic_infos(store: StoreService, names: Iterable[str] | None) -> Mapping[str, TopicInfo]:
    """Return the topics of these names that exist, or all topics."""
    topics = TopicLookup(store)
    wanted = store.topics() if names is None else names
    found = {name: topics.find(name) for name in wanted}
    return {name: TopicInfo(UUID(topic.id).hex, topic.partitions) for name, topic in found.items() if topic is not None}


def stored_groups(store: StoreService) -> dict[str, GroupSummary]:
    """Return all groups that have committed offsets, or members that opened the store directly."""
    found = {name: stored_group(store, name) for name in store.groups.list()}
    return {name: each for name, each in found.items() if each is not None}


def stored_group(store: StoreService, name: str) -> GroupSummary | None:
    """Return one of these groups; None if it does not exist."""
    try:
        seen = store.groups.describe(name)
    except (GroupNotFound, InvalidConfig):
        return None
    if seen.members:
        members = [
            MemberSummary(
                each.id,
                None,
                each.name or "sawlog",
                each.process,
                encode_subscription(each.topics),
                encode_assignment((row.topic, row.partition) for row in seen.rows if row.owner == each.id),
            )
            for each in seen.members
        ]
        return GroupSummary(name, CONSUMER, State.STABLE.value, "sawlog", members)
    by_members = any(each.member for each in store.groups.committed(name).values())
    return GroupSummary(name, CONSUMER if by_members else "", State.EMPTY.value)
