"""Groups.

- Members: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, ListGroups, DescribeGroups and DeleteGroups.
- Groups whose partitions the broker assigns (KIP-848): ConsumerGroupHeartbeat and ConsumerGroupDescribe.
- Committed offsets: OffsetCommit, OffsetFetch and OffsetDelete, in which topics have names up to version 9, ids from
  version 10 on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from ...store.base import TopicPartition
from ...store.groups import Committed
from ..groups.consumer_group import ConsumerGroup, ConsumerMember, HeartbeatRequest
from ..groups.members import JoinRequest, Sender, SyncRequest, by_topic
from ..groups.stored import NewOffset
from ..membership import Kind
from ..security.acls import Operation, Resource
from ..wire import Body, ErrorCode, Key
from ..wire.schema import NOT_ASKED
from . import READ_GROUP, Context, KafkaError, Requirement, answer_each, handles

#: Key types of FindCoordinator.
_KEY_TYPES: dict[int, tuple[Kind, Resource]] = {
    0: ("group", Resource.GROUP),
    1: ("transaction", Resource.TRANSACTIONAL_ID),
}
#: From this version on, requests for offsets have topic ids.
_BY_ID = 10


@handles(Key.FIND_COORDINATOR)
async def find_coordinator(context: Context, request: Body) -> Body:
    """Return the coordinator of each key. Needs DESCRIBE on each group or transactional id."""

    async def find(key: str, answer: Body) -> None:
        if request["key_type"] not in _KEY_TYPES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown coordinator type {request['key_type']}")
        kind, resource = _KEY_TYPES[request["key_type"]]
        context.require(Operation.DESCRIBE, resource, key)
        node = context.broker.nodes.of(kind, key, context.advertised)
        answer.update(node_id=node.id, host=node.host, port=node.port)

    if context.header.version >= 4:
        return await answer_each(Key.FIND_COORDINATOR, request, find)
    answer: Body = {}
    await find(request["key"], answer)
    return answer


@handles(Key.JOIN_GROUP, READ_GROUP)
async def join_group(context: Context, request: Body) -> Body:
    """Join a group. The response comes when the next generation begins."""
    version = context.header.version
    session_ms = request["session_timeout_ms"]
    joined = await context.broker.groups.join(
        request["group_id"],
        JoinRequest(
            member_id=request["member_id"],
            instance_id=request["group_instance_id"],
            client_id=context.header.client_id or "",
            client_host=context.client_host,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=request["rebalance_timeout_ms"] if version >= 1 else session_ms,
            protocol_type=request["protocol_type"],
            protocols=tuple((each["name"], bytes(each["metadata"])) for each in request["protocols"]),
            knows_ids=version >= 4,
            may_skip=version >= 9,
        ),
    )
    return {
        "error_code": joined.error,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol if version >= 7 else joined.protocol or "",
        "leader": joined.leader,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
            for member_id, instance_id, metadata in joined.members
        ],
    }


@handles(Key.SYNC_GROUP, READ_GROUP)
async def sync_group(context: Context, request: Body) -> Body:
    """Return the member's assignment when the leader has assigned."""
    synced = await context.broker.groups.sync(
        request["group_id"],
        SyncRequest(
            member_id=request["member_id"],
            instance_id=request["group_instance_id"],
            generation=request["generation_id"],
            protocol_type=request["protocol_type"],
            protocol=request["protocol_name"],
            assignments={each["member_id"]: bytes(each["assignment"]) for each in request["assignments"]},
        ),
    )
    return {
        "error_code": synced.error,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


@handles(Key.HEARTBEAT, READ_GROUP)
async def heartbeat(context: Context, request: Body) -> Body:
    """Keep a session alive and report rebalances."""
    sender = Sender(request["member_id"], request["group_instance_id"], request["generation_id"])
    return {"error_code": await context.broker.groups.heartbeat(request["group_id"], sender)}


@handles(Key.LEAVE_GROUP, READ_GROUP)
def leave_group(context: Context, request: Body) -> Body:
    """Remove one member, or several from version 3 on."""
    groups = context.broker.groups
    if context.header.version < 3:
        (code,) = groups.leave(request["group_id"], [(request["member_id"], None)])
        return {"error_code": code}
    leaving = [(each["member_id"], each["group_instance_id"]) for each in request["members"]]
    codes = groups.leave(request["group_id"], leaving)
    whole = (ErrorCode.INVALID_GROUP_ID, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if codes and codes[0] in whole:
        return {"error_code": codes[0], "members": []}
    return {
        "error_code": ErrorCode.NONE,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": code}
            for (member_id, instance_id), code in zip(leaving, codes, strict=True)
        ],
    }


@handles(Key.LIST_GROUPS)
async def list_groups(context: Context, request: Body) -> Body:
    """Return the groups that the client may describe: with DESCRIBE on the cluster, all of the broker and the store."""
    sees_all = context.allows(Operation.DESCRIBE, Resource.CLUSTER)
    states = {each.lower() for each in request["states_filter"]}
    types = {each.lower() for each in request["types_filter"]}
    return {
        "error_code": ErrorCode.NONE,
        "groups": [
            {
                "group_id": each.name,
                "protocol_type": each.protocol_type,
                "group_state": each.state,
                "group_type": each.type,
            }
            for each in await context.broker.groups.list()
            if (not states or each.state.lower() in states)
            and (not types or each.type.lower() in types)
            and (sees_all or context.allows(Operation.DESCRIBE, Resource.GROUP, each.name))
        ],
    }


@handles(Key.DESCRIBE_GROUPS)
async def describe_groups(context: Context, request: Body) -> Body:
    """Return members with their assignments. Needs DESCRIBE on each group."""

    async def describe(name: str, answer: Body) -> None:
        context.require(Operation.DESCRIBE, Resource.GROUP, name)
        answer["authorized_operations"] = _operations(context, request, name)
        found = await context.broker.groups.describe(name)
        if found is None or found.type != "classic":  # ConsumerGroupDescribe describes those
            answer["group_state"] = "Dead"
            if context.header.version >= 6:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"no group {name!r} of the classic protocol")
            return
        answer.update(group_state=found.state, protocol_type=found.protocol_type, protocol_data=found.protocol)
        answer["members"] = [
            {
                "member_id": each.id,
                "group_instance_id": each.instance_id,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "member_metadata": each.subscription,
                "member_assignment": each.assignment,
            }
            for each in found.members
        ]

    return await answer_each(Key.DESCRIBE_GROUPS, request, describe)


def _operations(context: Context, request: Body, name: str) -> int:
    """Return the operations that the client may perform on a group, if requested."""
    return context.operations(Resource.GROUP, name) if request["include_authorized_operations"] else NOT_ASKED


@handles(Key.DELETE_GROUPS)
async def delete_groups(context: Context, request: Body) -> Body:
    """Delete groups without members, with their offsets. Needs DELETE on each group."""

    async def delete(name: str, answer: Body) -> None:
        context.require(Operation.DELETE, Resource.GROUP, name)
        answer["error_code"] = await context.broker.groups.delete(name)

    return await answer_each(Key.DELETE_GROUPS, {"groups_names": dict.fromkeys(request["groups_names"])}, delete)


# --- groups whose partitions the broker assigns


@handles(Key.CONSUMER_GROUP_HEARTBEAT, READ_GROUP)
async def consumer_group_heartbeat(context: Context, request: Body) -> Body:
    """Process a member's heartbeat and return its assignment. Needs DESCRIBE on the topics that it names; a pattern
    matches only topics that the member may describe."""
    topics = request["subscribed_topic_names"]
    for name in topics or ():
        context.require(Operation.DESCRIBE, Resource.TOPIC, name)
    owned = request["topic_partitions"]
    told = await context.broker.groups.consumer_heartbeat(
        request["group_id"],
        HeartbeatRequest(
            member_id=request["member_id"],
            epoch=request["member_epoch"],
            client_id=context.header.client_id or "",
            client_host=context.client_host,
            instance_id=request["instance_id"],
            rack_id=request["rack_id"],
            rebalance_timeout_ms=None if request["rebalance_timeout_ms"] < 0 else request["rebalance_timeout_ms"],
            topics=None if topics is None else frozenset(topics),
            pattern=request["subscribed_topic_regex"],
            assignor=request["server_assignor"],
            owned=None if owned is None else _partitions(owned),
            sees=context.sees,
        ),
    )
    return {
        "error_code": told.error,
        "error_message": told.message,
        "member_id": told.member_id,
        "member_epoch": told.epoch,
        "heartbeat_interval_ms": context.broker.config.group_consumer_heartbeat_interval_ms,
        "assignment": None
        if told.assignment is None
        else {
            "topic_partitions": [
                {"topic_id": UUID(topic).bytes, "partitions": numbers}
                for topic, numbers in by_topic(told.assignment).items()
            ]
        },
    }


def _partitions(topics: Iterable[Body]) -> frozenset[TopicPartition]:
    return frozenset((bytes(each["topic_id"]).hex(), number) for each in topics for number in each["partitions"])


@handles(Key.CONSUMER_GROUP_DESCRIBE)
async def consumer_group_describe(context: Context, request: Body) -> Body:
    """Return members with their current and target assignments. Needs DESCRIBE on each group and all of its topics."""
    names = {id.hex(): name for name, id in (await context.broker.groups.topic_ids()).items()}

    async def describe(name: str, answer: Body) -> None:
        context.require(Operation.DESCRIBE, Resource.GROUP, name)
        group = context.broker.groups.consumer_group(name)
        if group is None:
            answer["authorized_operations"] = _operations(context, request, name)
            why = f"no group {name!r} whose partitions the broker assigns"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, why)
        members = [_member(each, group, names) for each in group.members]
        if not all(map(context.sees, _topics_of(members))):
            why = f"{context.principal} is not allowed to describe all topics of the group"
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, why)
        answer.update(
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.assignor,
            members=members,
            authorized_operations=_operations(context, request, name),
        )

    return await answer_each(Key.CONSUMER_GROUP_DESCRIBE, request, describe)


def _topics_of(members: Iterable[Body]) -> set[str]:
    """Return the names of the topics in the descriptions of members."""
    found: set[str] = set()
    for member in members:
        found.update(member["subscribed_topic_names"])
        for assigned in (member["assignment"], member["target_assignment"]):
            found.update(each["topic_name"] for each in assigned["topic_partitions"])
    return found


def _member(member: ConsumerMember, group: ConsumerGroup, names: Mapping[str, str]) -> Body:
    return {
        "member_id": member.id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "subscribed_topic_regex": member.pattern or None,
        "assignment": _assignment(member.assigned, names),
        "target_assignment": _assignment(group.target_of(member.id), names),
        "member_type": 0 if member.is_classic else 1,
    }


def _assignment(partitions: Iterable[TopicPartition], names: Mapping[str, str]) -> Body:
    return {
        "topic_partitions": [
            {"topic_id": UUID(topic).bytes, "topic_name": names[topic], "partitions": numbers}
            for topic, numbers in by_topic(partitions).items()
            if topic in names
        ]
    }


# --- committed offsets


#: Topics of a request, each with its name, or with the error if it is missing or the client may not use it.
_Named = list[tuple[Body, str | ErrorCode]]


async def _named(context: Context, topics: Iterable[Body], operation: Operation) -> _Named:
    """Return the names of topics, on each of which the client needs to perform an operation."""
    by_id = context.header.version >= _BY_ID
    ids = {id: name for name, id in (await context.broker.groups.topic_ids()).items()} if by_id else {}

    def find(topic: Body) -> str | ErrorCode:
        name = ids.get(bytes(topic["topic_id"])) if by_id else str(topic["name"])
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        denied = context.denial(operation, Resource.TOPIC, name)
        return name if denied is None else denied.code

    return [(topic, find(topic)) for topic in topics]


def _answer_to(topic: Body, partitions: list[Body]) -> Body:
    """Answer for a topic, which has the name or id of the request."""
    return {**{key: topic[key] for key in ("name", "topic_id") if key in topic}, "partitions": partitions}


def _codes(context: Context, topics: _Named, codes: Mapping[TopicPartition, ErrorCode]) -> list[Body]:
    """Return the error code of each partition of a request."""
    missing = ErrorCode.UNKNOWN_TOPIC_ID if context.header.version >= _BY_ID else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def code(name: str | ErrorCode, number: int) -> ErrorCode:
        return name if isinstance(name, ErrorCode) else codes.get((name, number), missing)

    return [
        _answer_to(
            topic,
            [
                {"partition_index": each["partition_index"], "error_code": code(name, each["partition_index"])}
                for each in topic["partitions"]
            ],
        )
        for topic, name in topics
    ]


@handles(Key.OFFSET_COMMIT, READ_GROUP)
async def offset_commit(context: Context, request: Body) -> Body:
    """Commit offsets durably. Needs READ on each topic."""
    topics = await _named(context, request["topics"], Operation.READ)
    offsets = {
        (name, each["partition_index"]): NewOffset.of(each)
        for topic, name in topics
        if isinstance(name, str)
        for each in topic["partitions"]
    }
    sender = Sender(request["member_id"], request["group_instance_id"], request["generation_id_or_member_epoch"])
    codes = await context.broker.groups.commit(request["group_id"], offsets, sender)
    return {"topics": _codes(context, topics, codes)}


@handles(Key.OFFSET_FETCH)
async def offset_fetch(context: Context, request: Body) -> Body:
    """Return the offsets of one group, or of several from version 8 on. Needs DESCRIBE on each group and topic."""
    version, stable = context.header.version, request["require_stable"]
    if version >= 8:
        return {"groups": [await _fetched(context, each, stable) for each in request["groups"]]}
    group = {"group_id": request["group_id"], "topics": request["topics"], "member_id": None, "member_epoch": -1}
    found = await _fetched(context, group, stable)
    if version >= 2 or found["error_code"] is ErrorCode.NONE:
        return {"error_code": found["error_code"], "topics": found["topics"]}
    return {  # these versions have an error code for each partition only
        "topics": [
            _answer_to(topic, [_offset(number, None, found["error_code"]) for number in topic["partition_indexes"]])
            for topic in request["topics"]
        ]
    }


async def _fetched(context: Context, group: Body, stable: bool) -> Body:
    groups, name = context.broker.groups, group["group_id"]
    denied = context.denial(Operation.DESCRIBE, Resource.GROUP, name)
    error = groups.fetch_error(name, group["member_id"], group["member_epoch"]) if denied is None else denied.code
    if error is not ErrorCode.NONE:
        return {"group_id": name, "topics": [], "error_code": error}
    wanted: Sequence[Body] | None = group["topics"]
    unstable = context.broker.transactions.pending(name) if stable else frozenset[TopicPartition]()

    def offset(partition: TopicPartition) -> Body:
        if partition in unstable:
            return _offset(partition[1], None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        return _offset(partition[1], offsets.get(partition), ErrorCode.NONE)

    if wanted is None:
        offsets = await groups.fetch(name, None)
        known = defaultdict[str, list[Body]](list)
        for partition in sorted(offsets.keys() | unstable):
            if context.sees(partition[0]):
                known[partition[0]].append(offset(partition))
        topics: list[Body] = [{"name": topic, "partitions": parts} for topic, parts in known.items()]
        if context.header.version >= _BY_ID:
            ids = await groups.topic_ids(known)
            topics = [{**each, "topic_id": ids[each["name"]]} for each in topics if each["name"] in ids]
    else:
        found = await _named(context, wanted, Operation.DESCRIBE)
        offsets = await groups.fetch(
            name,
            [(each, number) for topic, each in found if isinstance(each, str) for number in topic["partition_indexes"]],
        )
        topics = [
            _answer_to(
                topic,
                [
                    offset((each, number)) if isinstance(each, str) else _offset(number, None, each)
                    for number in topic["partition_indexes"]
                ],
            )
            for topic, each in found
        ]
    return {"group_id": name, "topics": topics, "error_code": ErrorCode.NONE}


def _offset(number: int, committed: Committed | None, code: ErrorCode) -> Body:
    if committed is None:
        return {"partition_index": number, "committed_offset": -1, "metadata": "", "error_code": code}
    epoch = committed.leader_epoch if committed.told_epoch is None else committed.told_epoch
    return {
        "partition_index": number,
        "committed_offset": committed.offset if committed.told_offset is None else committed.told_offset,
        "committed_leader_epoch": epoch,
        "metadata": committed.metadata,
        "error_code": code,
    }


@handles(Key.OFFSET_DELETE, Requirement(Operation.DELETE, Resource.GROUP, "group_id"))
async def offset_delete(context: Context, request: Body) -> Body:
    """Delete offsets of topics that the group does not read. Needs READ on each topic."""
    topics = await _named(context, request["topics"], Operation.READ)
    partitions = [
        (name, each["partition_index"])
        for topic, name in topics
        if isinstance(name, str)
        for each in topic["partitions"]
    ]
    code, codes = await context.broker.groups.delete_offsets(request["group_id"], partitions)
    return {"error_code": code, "topics": _codes(context, topics, codes) if code is ErrorCode.NONE else []}
