"""Consumer groups, users and access control rules behind a broker: see `remote.RemoteStore`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import GroupActive, GroupNotFound, TopicNotFound, UserNotFound
from ..store.base import TopicPartition
from ..store.groups import GroupRow
from .client import EARLIEST, LATEST, Cluster, ConsumerGroupDescribeRequest, admin, by_topic, check, consumer
from .security.acls import CREATED, DESCRIBED, FILTERED, Binding, Filter, from_wire, to_wire
from .security.authorizer import sorted_bindings
from .security.credentials import BY_NUMBER, MECHANISMS, Salted
from .wire import ErrorCode

__all__ = ["RemoteAcls", "RemoteGroup", "RemoteGroups", "RemoteMember", "RemoteUsers"]

#: Newest version that names topics instead of using their ids.
_OFFSETS_VERSION = 9


# --- groups


@dataclass(frozen=True, slots=True)
class RemoteMember:
    """A member of a group."""

    id: str
    #: Its instance id, or its client id.
    name: str
    #: The host that it connected from.
    process: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoteGroup:
    """Members of a group and its progress."""

    name: str
    members: tuple[RemoteMember, ...]
    rows: tuple[GroupRow, ...]
    #: The broker that serves the group, for a store that is not asked through a broker.
    served_at: None = None


#: The members of a group, and the owner of each partition.
_Membership = tuple[list[RemoteMember], dict[TopicPartition, str]]


class RemoteGroups:
    """The consumer groups of a broker."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list(self) -> list[str]:
        """Return the names of all groups, sorted."""

        def attempt() -> list[str]:
            names: set[str] = set()
            for broker in self._cluster.brokers():
                answer = self._cluster.call(admin.ListGroupsRequest, broker)
                check(answer.error_code, f"the groups at {self._cluster.name}")
                names.update(each.group_id for each in answer.groups)
            return sorted(names)

        return self._cluster.retry(attempt)

    def describe(self, name: str) -> RemoteGroup:
        """Return the members of a group and its progress; `GroupNotFound`."""
        committed = self._committed(name)
        members, owners = self._cluster.retry(lambda: self._members(name))
        if not committed and not members:
            raise self._not_found(name)
        topics = {topic for topic, _ in committed}.union(*(member.topics for member in members))
        places = [place for topic in sorted(topics) for place in self._partitions(topic)]
        lowest, ends = self._cluster.list_offsets(places, EARLIEST), self._cluster.list_offsets(places, LATEST)
        rows = []
        for place in places:
            start, end, reached = lowest[place].offset, ends[place].offset, committed.get(place)
            lag = max(end - max(start, start if reached is None else reached), 0)
            rows.append(GroupRow(*place, reached, start, end, lag, owners.get(place)))
        return RemoteGroup(name, tuple(sorted(members, key=lambda each: each.id)), tuple(rows))

    def _not_found(self, name: str) -> GroupNotFound:
        return GroupNotFound(f"no group {name!r} at {self._cluster.name}: it has neither commits nor members")

    def _partitions(self, topic: str) -> Sequence[TopicPartition]:
        [found] = self._cluster.metadata([topic]).topics
        try:
            check(found.error_code, f"the topic {topic!r}")
        except TopicNotFound:
            return ()  # deleted meanwhile
        return [(topic, number) for number in range(len(found.partitions))]

    def _committed(self, name: str) -> dict[TopicPartition, int]:
        def attempt() -> dict[TopicPartition, int]:
            answer = self._cluster.call(
                consumer.OffsetFetchRequest,
                self._cluster.coordinator(name),
                max_version=_OFFSETS_VERSION,
                group_id=name,
                topics=None,
                groups=[{"group_id": name, "topics": None}],
            )
            [one] = answer.groups or [answer]  # below version 8 the response itself is about the group
            check(one.error_code, f"the offsets of the group {name!r}")
            return {
                (topic.name, part.partition_index): part.committed_offset
                for topic in one.topics
                for part in topic.partitions
                if part.error_code == ErrorCode.NONE and part.committed_offset >= 0
            }

        return self._cluster.retry(attempt)

    def _members(self, name: str) -> _Membership:
        coordinator = self._cluster.coordinator(name)
        [group] = self._cluster.call(admin.DescribeGroupsRequest, coordinator, groups=[name]).groups
        if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            check(group.error_code, f"the group {name!r}", group.error_message)
            if group.members:
                return _classic_members(group)
        if not self._cluster.supports(ConsumerGroupDescribeRequest):
            return [], {}
        [group] = self._cluster.call(ConsumerGroupDescribeRequest, coordinator, group_ids=[name]).groups
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return [], {}
        check(group.error_code, f"the group {name!r}", group.error_message)
        return _consumer_members(group)

    def commit(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without being a member; `GroupActive` if it has live members."""
        parts = by_topic(offsets, lambda place: {"partition_index": place[1], "committed_offset": offsets[place]})

        def attempt() -> None:
            answer = self._cluster.call(
                consumer.OffsetCommitRequest,
                self._cluster.coordinator(name),
                max_version=_OFFSETS_VERSION,
                group_id=name,
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[{"name": topic, "partitions": some} for topic, some in parts.items()],
            )
            for topic in answer.topics:
                for part in topic.partitions:
                    _check_idle(part.error_code, name)

        self._cluster.retry(attempt)

    def seek(self, name: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Move a group without live members; `GroupNotFound`, `GroupActive`."""
        self.describe(name)
        self.commit(name, offsets)
        return dict(offsets)

    def delete(self, name: str) -> None:
        """Delete a group and its offsets; `GroupActive` if it has live members."""

        def attempt() -> None:
            node = self._cluster.coordinator(name)
            [found] = self._cluster.call(admin.DeleteGroupsRequest, node, groups_names=[name]).results
            if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                raise self._not_found(name)
            _check_idle(found.error_code, name)

        self._cluster.retry(attempt)


def _check_idle(code: int, name: str) -> None:
    try:
        check(code, f"the group {name!r}")
    except GroupActive:
        raise GroupActive(f"the group {name!r} has live members: close them first, or seek in the consumer") from None


def _classic_members(group: Any) -> _Membership:
    members: list[RemoteMember] = []
    owners: dict[TopicPartition, str] = {}
    for each in group.members:
        topics: tuple[str, ...] = ()
        if group.protocol_type == "consumer":
            subscribed = _embedded(consumer.metadata.ConsumerProtocolSubscription, each.member_metadata)
            assigned = _embedded(consumer.metadata.ConsumerProtocolAssignment, each.member_assignment)
            topics = () if subscribed is None else tuple(subscribed.topics)
            for given in () if assigned is None else assigned.assigned_partitions:
                owners.update({(given.topic, number): each.member_id for number in given.partitions})
        members.append(RemoteMember(each.member_id, each.group_instance_id or each.client_id, each.client_host, topics))
    return members, owners


def _consumer_members(group: Any) -> _Membership:
    members: list[RemoteMember] = []
    owners: dict[TopicPartition, str] = {}
    for each in group.members:
        assigned = each.assignment.topic_partitions
        for given in assigned:
            owners.update({(given.topic_name, number): each.member_id for number in given.partitions})
        topics = tuple(sorted({*each.subscribed_topic_names, *(given.topic_name for given in assigned)}))
        members.append(RemoteMember(each.member_id, each.instance_id or each.client_id, each.client_host, topics))
    return members, owners


def _embedded(kind: Any, data: bytes) -> Any:
    """Decode the metadata or assignment of a group member; None if it has another format, which a client may choose."""
    try:
        return kind.decode(bytes(data))
    except Exception:  # kafka-python raises whatever the bytes happen to cause
        return None


# --- users and access rules


class RemoteUsers:
    """The SCRAM users of a broker. A salted password is sent, which is as good as the password: use TLS."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def list(self) -> dict[str, dict[str, int]]:
        """Return the names of all users, sorted, with the iterations of each mechanism."""
        return dict(sorted(self._described(None).items()))

    def put(self, name: str, salted: Sequence[Salted]) -> None:
        """Add a user, or replace a user's passwords."""
        new = {each.mechanism.name for each in salted}
        old = [each for each in self._described([name]).get(name, {}) if each not in new]
        self._alter(name, old, salted)

    def delete(self, name: str) -> None:
        """Delete a user; open connections stay authenticated."""
        found = self._described([name]).get(name)
        if not found:
            raise UserNotFound(f"no user {name!r}")
        self._alter(name, found, ())

    def _described(self, names: Sequence[str] | None) -> dict[str, dict[str, int]]:
        users = None if names is None else [{"name": name} for name in names]
        answer = self._cluster.call(admin.DescribeUserScramCredentialsRequest, self._cluster.controller(), users=users)
        check(answer.error_code, f"the users at {self._cluster.name}", answer.error_message)
        found = {}
        for each in answer.results:
            if each.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                continue
            check(each.error_code, f"the user {each.user!r}", each.error_message)
            known = [info for info in each.credential_infos if info.mechanism in BY_NUMBER]
            found[each.user] = {BY_NUMBER[info.mechanism].name: info.iterations for info in known}
        return found

    def _alter(self, name: str, deleted: Iterable[str], salted: Iterable[Salted]) -> None:
        deletions = [{"name": name, "mechanism": MECHANISMS[each].number} for each in deleted]
        upsertions = [
            {
                "name": name,
                "mechanism": each.mechanism.number,
                "iterations": each.iterations,
                "salt": each.salt,
                "salted_password": each.password,
            }
            for each in salted
        ]
        request = admin.AlterUserScramCredentialsRequest
        answer = self._cluster.call(request, self._cluster.controller(), deletions=deletions, upsertions=upsertions)
        [found] = answer.results
        check(found.error_code, f"the user {name!r}", found.error_message)


class RemoteAcls:
    """The access control rules of a broker."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def find(self, wanted: Filter) -> list[Binding]:
        """Return the matching rules, in order."""
        answer = self._cluster.call(admin.DescribeAclsRequest, **to_wire(wanted, FILTERED))
        check(answer.error_code, self._what("listing"), answer.error_message)
        return sorted_bindings(_binding(resource, rule) for resource in answer.resources for rule in resource.acls)

    def add(self, bindings: Iterable[Binding]) -> None:
        """Add rules; existing ones stay."""
        creations = [to_wire(each, CREATED) for each in bindings]
        for each in self._cluster.call(
            admin.CreateAclsRequest, self._cluster.controller(), creations=creations
        ).results:
            check(each.error_code, self._what("adding"), each.error_message)

    def delete(self, filters: Sequence[Filter]) -> list[list[Binding]]:
        """Delete the rules that match a filter; return the rules that each filter matched."""
        node, wanted = self._cluster.controller(), [to_wire(each, FILTERED) for each in filters]
        results = self._cluster.call(admin.DeleteAclsRequest, node, filters=wanted).filter_results
        for each in results:
            check(each.error_code, self._what("deleting"), each.error_message)
        return [sorted_bindings(map(_binding, each.matching_acls)) for each in results]

    def _what(self, doing: str) -> str:
        return f"{doing} access control rules at {self._cluster.name}"


def _binding(*parts: Any) -> Binding:
    """Return the rule whose fields are in these structs."""
    given = {name: getattr(part, name) for part in parts for name in DESCRIBED.values() if hasattr(part, name)}
    return from_wire(Binding, given, DESCRIBED)
