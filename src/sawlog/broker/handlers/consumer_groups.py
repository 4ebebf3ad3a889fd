"""Groups whose partitions the broker assigns (KIP-848): ConsumerGroupHeartbeat, ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from ...store.base import TopicPartition
from ..groups.consumer_group import ConsumerGroup, ConsumerMember, HeartbeatRequest
from ..wire.apis import Key
from ..wire.errors import ErrorCode
from . import Body, Context
from .groups import operations_of


async def consumer_group_heartbeat(context: Context, request: Body) -> Body:
    """Process a member's heartbeat and return its assignment."""
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
            topics=_set(request["subscribed_topic_names"]),
            pattern=request["subscribed_topic_regex"],
            assignor=request["server_assignor"],
            owned=None if owned is None else _shares(owned),
            sees=context.broker.authorizer.sees(context),
        ),
    )
    return {
        "error_code": told.error,
        "error_message": told.message,
        "member_id": told.member_id,
        "member_epoch": told.epoch,
        "heartbeat_interval_ms": context.broker.groups.config.group_consumer_heartbeat_interval_ms,
        "assignment": None
        if told.assignment is None
        else {
            "topic_partitions": [
                {"topic_id": UUID(topic).bytes, "partitions": numbers}
                for topic, numbers in _by_topic(told.assignment).items()
            ]
        },
    }


def _set(names: Iterable[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _shares(topics: Iterable[Body]) -> frozenset[TopicPartition]:
    return frozenset((bytes(each["topic_id"]).hex(), number) for each in topics for number in each["partitions"])


def _by_topic(shares: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in sorted(shares):
        found.setdefault(topic, []).append(number)
    return found


async def consumer_group_describe(context: Context, request: Body) -> Body:
    """Return members with their current and target assignments."""
    names = {id.hex(): name for name, id in (await context.broker.groups.topic_ids()).items()}
    groups = [
        _described(name, context.broker.groups.consumer_group(name), names, operations_of(context, request, name))
        for name in request["group_ids"]
    ]
    return {"groups": groups}


def _described(name: str, group: ConsumerGroup | None, names: Mapping[str, str], operations: int) -> Body:
    if group is None:
        return {
            "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
            "error_message": f"no group {name!r} whose partitions the broker assigns",
            "group_id": name,
            "group_state": "",
            "assignor_name": "",
            "members": [],
            "authorized_operations": operations,
        }
    return {
        "error_code": ErrorCode.NONE,
        "group_id": name,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_member(each, group, names) for each in group.members],
        "authorized_operations": operations,
    }


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


def _assignment(shares: Iterable[TopicPartition], names: Mapping[str, str]) -> Body:
    return {
        "topic_partitions": [
            {"topic_id": UUID(topic).bytes, "topic_name": names[topic], "partitions": numbers}
            for topic, numbers in _by_topic(shares).items()
            if topic in names
        ]
    }


HANDLERS = {
    Key.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
    Key.CONSUMER_GROUP_DESCRIBE: consumer_group_describe,
}
