"""Cluster administration, for a cluster of one broker: ElectLeaders, DescribeQuorum, AlterPartitionReassignments,
ListPartitionReassignments, AlterReplicaLogDirs, ListConfigResources, DescribeClientQuotas.

Each partition has one replica, on this broker, in one directory, and this broker leads it. A request for exactly that
changes nothing and succeeds; any other request fails with the error that Kafka has for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import SawlogError, TopicNotFound
from ...store.base import Topic
from ..error_responses import code_of
from ..wire.apis import Key
from ..wire.errors import ErrorCode
from . import Body, Context

_TOPIC, _BROKER, _BROKER_LOGGER = 2, 4, 8
#: Topic of Kafka's metadata log. There is no such log here: the store's files describe the topics.
_METADATA_LOG = "__cluster_metadata"


async def _topic(context: Context, name: str) -> Topic | ErrorCode:
    """Return a topic, or the error code."""
    try:
        return await context.broker.partitions.topic(name)
    except TopicNotFound:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except SawlogError as error:
        return code_of(error)


def _error(topic: Topic | ErrorCode, partition: int) -> ErrorCode:
    """Return the error unless the partition exists."""
    if isinstance(topic, ErrorCode):
        return topic
    is_there = 0 <= partition < topic.partitions
    return ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _with_message(made: Body, code: ErrorCode, message: str | None = None) -> Body:
    return {**made, "error_code": code, "error_message": message or (code.name if code else None)}


async def elect_leaders(context: Context, request: Body) -> Body:
    """Every partition is led by its only replica. A request for all lists only those that had an election: none."""
    results: list[Body] = []
    for asked in request["topic_partitions"] or ():
        topic = await _topic(context, asked["topic"])
        parts = [
            _with_message({"partition_id": number}, _error(topic, number) or ErrorCode.ELECTION_NOT_NEEDED)
            for number in asked["partitions"]
        ]
        results.append({"topic": asked["topic"], "partition_result": parts})
    return {"error_code": ErrorCode.NONE, "replica_election_results": results}


async def alter_partition_reassignments(context: Context, request: Body) -> Body:
    """Accept reassignments to this broker, where partitions already are. There is never a reassignment to cancel."""
    responses: list[Body] = []
    for asked in request["topics"]:
        topic = await _topic(context, asked["name"])
        parts = [_reassigned(context, topic, each) for each in asked["partitions"]]
        responses.append({"name": asked["name"], "partitions": parts})
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "allow_replication_factor_change": request.get("allow_replication_factor_change", True),
        "responses": responses,
    }


def _reassigned(context: Context, topic: Topic | ErrorCode, asked: Body) -> Body:
    made: Body = {"partition_index": asked["partition_index"]}
    error, replicas = _error(topic, asked["partition_index"]), asked["replicas"]
    if error:
        return _with_message(made, error)
    if replicas is None:
        return _with_message(made, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    if replicas != [context.broker.node_id]:
        why = f"there is one broker, with id {context.broker.node_id}"
        return _with_message(made, ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)
    return _with_message(made, ErrorCode.NONE)


async def list_partition_reassignments(context: Context, request: Body) -> Body:
    """Return no reassignments."""
    return {"error_code": ErrorCode.NONE, "error_message": None, "topics": []}


async def alter_replica_log_dirs(context: Context, request: Body) -> Body:
    """Accept moves to the store's directory, where partitions already are."""
    results: dict[str, list[Body]] = {}
    for directory in request["dirs"]:
        for asked in directory["topics"]:
            topic = await _topic(context, asked["name"])
            for number in asked["partitions"]:
                error = _error(topic, number)
                if not error and directory["path"] != context.broker.store.path:
                    error = ErrorCode.LOG_DIR_NOT_FOUND
                results.setdefault(asked["name"], []).append({"partition_index": number, "error_code": error})
    return {"results": [{"topic_name": name, "partitions": parts} for name, parts in results.items()]}


async def describe_quorum(context: Context, request: Body) -> Body:
    """Describe a quorum of one. It votes on no log, so its log ends at 0."""
    broker, advertised = context.broker, context.advertised
    topics = [
        {
            "topic_name": asked["topic_name"],
            "partitions": [_quorum(context, asked, each) for each in asked["partitions"]],
        }
        for asked in request["topics"]
    ]
    listener = {"name": "PLAINTEXT", "host": advertised.host, "port": advertised.port}
    nodes = [{"node_id": broker.node_id, "listeners": [listener]}]
    return {"error_code": ErrorCode.NONE, "error_message": None, "topics": topics, "nodes": nodes}


def _quorum(context: Context, asked: Body, partition: Body) -> Body:
    made: Body = {"partition_index": partition["partition_index"]}
    if (asked["topic_name"], partition["partition_index"]) != (_METADATA_LOG, 0):
        return _with_message(made, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    voter = {"replica_id": context.broker.node_id, "log_end_offset": 0}
    leads = {"leader_id": context.broker.node_id, "leader_epoch": 0, "high_watermark": 0}
    return _with_message({**made, **leads, "current_voters": [voter], "observers": []}, ErrorCode.NONE)


async def list_config_resources(context: Context, request: Body) -> Body:
    """Return the resources of DescribeConfigs. Version 0 asks only for client metrics, which do not exist."""
    if context.header.version == 0:
        return {"error_code": ErrorCode.NONE, "config_resources": []}
    wanted = set(request["resource_types"]) or {_TOPIC, _BROKER, _BROKER_LOGGER}
    found: list[Body] = []
    if _TOPIC in wanted:
        found += _resources(_TOPIC, [topic.name for topic in await context.broker.partitions.all_topics()])
    for kind in (_BROKER, _BROKER_LOGGER):
        if kind in wanted:
            found += _resources(kind, [str(context.broker.node_id)])
    return {"error_code": ErrorCode.NONE, "config_resources": found}


def _resources(kind: int, names: Iterable[str]) -> list[Body]:
    return [{"resource_name": name, "resource_type": kind} for name in names]


async def describe_client_quotas(context: Context, request: Body) -> Body:
    """Return no quotas: there are none, and AlterClientQuotas is not offered."""
    return {"error_code": ErrorCode.NONE, "error_message": None, "entries": []}


HANDLERS = {
    Key.ELECT_LEADERS: elect_leaders,
    Key.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    Key.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    Key.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
    Key.DESCRIBE_QUORUM: describe_quorum,
    Key.LIST_CONFIG_RESOURCES: list_config_resources,
    Key.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
}
