"""`RemoteGroups`: the consumer groups of a broker, with the methods of `Groups`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import GroupActive, GroupNotFound, Malformed, TopicNotFound
from ...store.groups import GroupRow
from ..wire.apis import Key
from ..wire.errors import ErrorCode
from ..wire.messages.groups import ASSIGNMENT, SUBSCRIPTION, VERSIONS
from ..wire.reading import decoder
from ..wire.schema import Body, Field
from . import asking
from .cluster import Cluster, Place
from .refusals import check, refused

_CONSUMER = "consumer"
#: How a broker says that a group does not exist.
_ABSENT = frozenset({ErrorCode.GROUP_ID_NOT_FOUND})


@dataclass(frozen=True, slots=True)
class RemoteMember:
    """What a broker says about a member."""

    id: str
    #: The name that it was given: its instance id, else its client id.
    name: str
    #: Where it connected from.
    process: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoteGroup:
    """Information about a group."""

    name: str
    members: tuple[RemoteMember, ...]
    rows: tuple[GroupRow, ...]
    #: Only a store that is looked at from outside says where its members are.
    served_at: None = None


#: The members of a group, and the id of the one that has a partition.
Membership = tuple[list[RemoteMember], dict[Place, str]]


class RemoteGroups:
    """The consumer groups of a broker. `RemoteStore.groups` returns it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list(self) -> list[str]:
        """The names of all groups."""

        def attempt() -> list[str]:
            names: set[str] = set()
            for broker in self._cluster.brokers():
                answer = broker.call(Key.LIST_GROUPS, {})
                check(answer["error_code"], f"the groups at {broker.address}")
                names.update(each["group_id"] for each in answer["groups"])
            return sorted(names)

        return self._cluster.patiently(attempt)

    def describe(self, name: str) -> RemoteGroup:
        """The members of a group and its progress; `GroupNotFound` if it does not exist."""
        committed = self._committed(name)
        members, owners = self._members(name)
        if not committed and not members:
            raise GroupNotFound(f"no group {name!r} at {self._cluster.name}: nobody has committed or joined")
        topics = {topic for topic, _ in committed}.union(*(member.topics for member in members))
        places = [place for topic in sorted(topics) for place in self._partitions(topic)]
        lowest = asking.list_offsets(self._cluster, dict.fromkeys(places, asking.EARLIEST))
        ends = asking.list_offsets(self._cluster, dict.fromkeys(places, asking.LATEST))
        rows = []
        for place in places:
            start, end, reached = lowest[place].offset, ends[place].offset, committed.get(place)
            lag = max(end - max(start, start if reached is None else reached), 0)
            rows.append(GroupRow(*place, reached, start, end, lag, owners.get(place)))
        return RemoteGroup(name, tuple(sorted(members, key=lambda each: each.id)), tuple(rows))

    def _partitions(self, topic: str) -> Sequence[Place]:
        (found,) = self._cluster.metadata([topic])["topics"]
        try:
            check(found["error_code"], f"the topic {topic!r}")
        except TopicNotFound:
            return ()  # deleted meanwhile
        return [(topic, number) for number in range(len(found["partitions"]))]

    def _committed(self, name: str) -> dict[Place, int]:
        """The offsets that a group has committed."""

        def attempt() -> dict[Place, int]:
            request = {"group_id": name, "topics": None, "groups": [{"group_id": name, "topics": None}]}
            answer = self._cluster.coordinator(name).call(Key.OFFSET_FETCH, request)
            (one,) = answer["groups"] or [answer]  # up to version 7 the answer itself is the one
            check(one["error_code"], f"the offsets of the group {name!r}")
            return {
                (topic["name"], part["partition_index"]): part["committed_offset"]
                for topic in one["topics"]
                for part in topic["partitions"]
                if part["error_code"] == ErrorCode.NONE and part["committed_offset"] >= 0
            }

        return self._cluster.patiently(attempt)

    def _members(self, name: str) -> Membership:
        """The members of a group, and who has which partition."""

        def attempt() -> Membership:
            coordinator = self._cluster.coordinator(name)
            (group,) = coordinator.call(Key.DESCRIBE_GROUPS, {"groups": [name]})["groups"]
            if group["error_code"] not in _ABSENT:
                check(group["error_code"], f"the group {name!r}", group["error_message"])
                if group["members"]:
                    return _classic(group)
            if not coordinator.knows(Key.CONSUMER_GROUP_DESCRIBE):
                return [], {}
            (group,) = coordinator.call(Key.CONSUMER_GROUP_DESCRIBE, {"group_ids": [name]})["groups"]
            if group["error_code"] in _ABSENT:
                return [], {}
            check(group["error_code"], f"the group {name!r}", group["error_message"])
            return _assigned_by_the_broker(group)

        return self._cluster.patiently(attempt)

    # --- moving

    def commit(self, name: str, offsets: Mapping[Place, int]) -> None:
        """Commit offsets for a group without being a member. `GroupActive` if it has live members."""
        topics: defaultdict[str, list[Body]] = defaultdict(list)
        for (topic, number), offset in offsets.items():
            topics[topic].append({"partition_index": number, "committed_offset": offset})
        request = {
            "group_id": name,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": parts} for topic, parts in topics.items()],
        }

        def attempt() -> None:
            answer = self._cluster.coordinator(name).call(Key.OFFSET_COMMIT, request)
            for topic in answer["topics"]:
                for part in topic["partitions"]:
                    _check_moved(part["error_code"], name)

        self._cluster.patiently(attempt)

    def seek(self, name: str, offsets: Mapping[Place, int]) -> dict[Place, int]:
        """Move a group without live members; `GroupNotFound` if it does not exist."""
        self.describe(name)
        self.commit(name, offsets)
        return dict(offsets)

    def delete(self, name: str) -> None:
        """Delete a group and all its offsets; `GroupActive` if it has live members."""

        def attempt() -> None:
            answer = self._cluster.coordinator(name).call(Key.DELETE_GROUPS, {"groups_names": [name]})
            (result,) = answer["results"]
            if result["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND:
                raise GroupNotFound(f"no group {name!r} at {self._cluster.name}: nobody has committed or joined")
            _check_moved(result["error_code"], name)

        self._cluster.patiently(attempt)


def _check_moved(code: int, name: str) -> None:
    """Raise if a group could not be moved: usually because it has members."""
    if code == ErrorCode.NONE:
        return
    error = refused(code, f"the group {name!r}")
    if isinstance(error, GroupActive):
        raise GroupActive(f"the group {name!r} has live members: close them first, or seek in the consumer")
    raise error


def _classic(group: Body) -> Membership:
    members: list[RemoteMember] = []
    owners: dict[Place, str] = {}
    for each in group["members"]:
        topics: list[str] = []
        if group["protocol_type"] == _CONSUMER:
            topics = _embedded(SUBSCRIPTION, each["member_metadata"]).get("topics", [])
            for given in _embedded(ASSIGNMENT, each["member_assignment"]).get("assigned_partitions", ()):
                owners.update({(given["topic"], number): each["member_id"] for number in given["partitions"]})
        name = each["group_instance_id"] or each["client_id"]
        members.append(RemoteMember(each["member_id"], name, each["client_host"], tuple(topics)))
    return members, owners


def _assigned_by_the_broker(group: Body) -> Membership:
    members: list[RemoteMember] = []
    owners: dict[Place, str] = {}
    for each in group["members"]:
        for given in each["assignment"]["topic_partitions"]:
            owners.update({(given["topic_name"], number): each["member_id"] for number in given["partitions"]})
        topics = set(each["subscribed_topic_names"]) | {
            given["topic_name"] for given in each["assignment"]["topic_partitions"]
        }
        name = each["instance_id"] or each["client_id"]
        members.append(RemoteMember(each["member_id"], name, each["client_host"], tuple(sorted(topics))))
    return members, owners


def _embedded(fields: tuple[Field, ...], data: bytes) -> Body:
    """What a consumer wrote for others of its group; nothing, if it is not what consumers write."""
    if len(data) < 2:
        return {}
    version = int.from_bytes(data[:2], signed=True)
    if version < 0:
        return {}
    try:
        return decoder(fields, min(version, VERSIONS[-1]), flexible=False)(memoryview(data), 2)
    except Malformed:
        return {}
