"""The cluster: its brokers, topics and partitions.

- Description: ApiVersions, Metadata, DescribeCluster and DescribeTopicPartitions.
- Administration: ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, AlterReplicaLogDirs,
  DescribeQuorum, ListConfigResources and DescribeClientQuotas. Each partition has one replica, on this broker, in one
  directory, and this broker leads it. A request for exactly that changes nothing and succeeds; any other request fails
  with the error that Kafka has for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...errors import SawlogError, TopicExists, TopicNotFound
from ...store.base import Topic
from ...store.names import check_topic_name
from ..partitions import id_of
from ..security.acls import Operation, Resource
from ..wire import Body, ErrorCode, Key
from ..wire.schema import NO_ID, NOT_ASKED
from . import ALTER_CLUSTER, DESCRIBE_CLUSTER, Context, KafkaError, Requirement, answer_partitions, code_of, handles

#: From this version on, the response about an unknown id has no name; before, the name cannot be null.
_UNNAMED_FROM = 12
#: Minimum and maximum level of each feature; the maximum is in force.
_FEATURES = {
    "group.version": (0, 1),  # KIP-848
    "metadata.version": (7, 25),  # Kafka 3.3 to 4.0: topic ids, no ZooKeeper
    "transaction.version": (0, 1),  # from 2 on, producers expect an epoch per transaction (KIP-890)
}
#: From this version of ApiVersions on, a range may begin with 0.
_ZERO_FROM = 4


@handles(Key.API_VERSIONS)
def api_versions(context: Context, request: Body) -> Body:
    """Return the supported version ranges and the feature levels, which Kafka negotiates separately. Version 3 omits
    ranges that begin with 0, because clients of that time fail on them."""
    least = 1 if context.header.version < _ZERO_FROM else 0
    return {
        "error_code": ErrorCode.NONE,
        "api_keys": context.broker.supported,
        "supported_features": [
            {"name": name, "min_version": lowest, "max_version": level}
            for name, (lowest, level) in _FEATURES.items()
            if lowest >= least
        ],
        "finalized_features_epoch": 0,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, (_, level) in _FEATURES.items()
        ],
    }


@handles(Key.METADATA)
async def metadata(context: Context, request: Body) -> Body:
    """Return the brokers and the requested topics. Needs DESCRIBE on each topic, and CREATE on it or on the cluster to
    create a missing one."""
    broker = context.broker
    asked = request["topics"]
    # Before version 1, an empty list means all topics; from then on, null does.
    if asked is None or (context.header.version == 0 and not asked):
        catalogue = await broker.partitions.catalogue()
        topics = [_listed(context, name, each) for name, each in catalogue.items() if context.sees(name)]
    else:
        topics = [await _asked(context, each, create=request["allow_auto_topic_creation"]) for each in asked]
    if request["include_topic_authorized_operations"]:
        topics = [_with_operations(context, topic) for topic in topics]
    return {
        "brokers": _brokers(context),
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "topics": topics,
        "cluster_authorized_operations": _cluster_operations(context, request),
    }


def _with_operations(context: Context, topic: Body) -> Body:
    """Add the operations that the client may perform on a topic."""
    if topic["error_code"] != ErrorCode.NONE:
        return topic
    return {**topic, "topic_authorized_operations": context.operations(Resource.TOPIC, topic["name"])}


def _cluster_operations(context: Context, request: Body) -> int:
    """Return the operations that the client may perform on the cluster, if requested and if it may describe it."""
    if not request["include_cluster_authorized_operations"]:
        return NOT_ASKED
    return context.operations(Resource.CLUSTER) if context.allows(Operation.DESCRIBE, Resource.CLUSTER) else 0


def _listed(context: Context, name: str, topic: Topic | SawlogError) -> Body:
    """Describe a topic in the list of all topics; with an error if it exists but cannot be read."""
    if isinstance(topic, SawlogError):
        return _missing(name, code_of(topic))
    return _described(context, topic, opened=False)


def _brokers(context: Context) -> list[Body]:
    nodes = context.broker.nodes.all(context.advertised)
    return [{"node_id": each.id, "host": each.host, "port": each.port} for each in nodes]


async def _asked(context: Context, asked: Body, *, create: bool) -> Body:
    """Describe one topic, by its id if it has one, regardless of its name. Java sends an empty name with an id, not
    null."""
    broker, name = context.broker, asked["name"]
    by_id = asked["topic_id"] != NO_ID or name is None
    if by_id:
        name = await broker.partitions.find_name(asked["topic_id"])
    denied = None if name is None else context.denial(Operation.DESCRIBE, Resource.TOPIC, name)
    if name is None or denied is not None:  # only the name or id that the client sent
        unnamed = None if context.header.version >= _UNNAMED_FROM else ""
        code = ErrorCode.UNKNOWN_TOPIC_ID if denied is None else denied.code
        return _missing(unnamed if by_id else name, code, asked["topic_id"])
    try:
        topic = await _topic(context, name, create=create)
    except SawlogError as error:
        return _missing(name, code_of(error))
    for index in range(topic.partitions):
        if broker.partitions.known(topic.name, index) is None:
            try:
                await broker.partitions.partition(topic.name, index)
            except SawlogError:
                continue  # described with an error
    return _described(context, topic, opened=True)


async def _topic(context: Context, name: str, *, create: bool) -> Topic:
    """Return a topic, created if it is missing and the client wants and may do that."""
    broker = context.broker
    try:
        return await broker.partitions.topic(name)
    except TopicNotFound:
        check_topic_name(name)
        if not (create and broker.config.auto_create_topics):
            raise
    if not context.allows(Operation.CREATE, Resource.CLUSTER):
        context.require(Operation.CREATE, Resource.TOPIC, name)
    try:
        return await broker.create_topic(name)
    except TopicExists:
        return await broker.partitions.topic(name)  # another client has just created it


def _missing(name: str | None, code: ErrorCode, topic_id: bytes = NO_ID) -> Body:
    return {"error_code": code, "name": name, "topic_id": topic_id, "partitions": []}


def _described(context: Context, topic: Topic, *, opened: bool) -> Body:
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": id_of(topic),
        "is_internal": False,
        "partitions": [_partition(context, topic, index, opened=opened) for index in range(topic.partitions)],
    }


def _partition(context: Context, topic: Topic, index: int, *, opened: bool) -> dict[str, Any]:
    """Describe one partition. The leader epoch of a partition that is not open is unknown; clients do without it."""
    node, found = context.broker.nodes.leader(topic.id, index), context.broker.partitions.known(topic.name, index)
    code = ErrorCode.KAFKA_STORAGE_ERROR if found is None and opened else ErrorCode.NONE
    return {
        "error_code": code,
        "partition_index": index,
        "leader_id": node,
        "leader_epoch": -1 if found is None else max(found.log.leader_epoch, 0),
        "replica_nodes": [node],
        "isr_nodes": [node],
        "offline_replicas": [],
    }


@handles(Key.DESCRIBE_CLUSTER)
async def describe_cluster(context: Context, request: Body) -> Body:
    """Return the brokers."""
    if request["endpoint_type"] != 1:
        raise KafkaError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "there are no controllers here, only a broker")
    return {
        "cluster_id": context.broker.cluster_id,
        "controller_id": context.broker.node_id,
        "endpoint_type": 1,
        "brokers": [
            {"broker_id": each["node_id"], "host": each["host"], "port": each["port"]} for each in _brokers(context)
        ],
        "cluster_authorized_operations": _cluster_operations(context, request),
    }


@handles(Key.DESCRIBE_TOPIC_PARTITIONS)
async def describe_topic_partitions(context: Context, request: Body) -> Body:
    """Return topics, one page of partitions at a time. Needs DESCRIBE on each topic."""
    broker, cursor = context.broker, request["cursor"]
    names = sorted({each["name"] for each in request["topics"]})
    if not names:
        names = [topic.name for topic in await broker.partitions.all_topics() if context.sees(topic.name)]
    if cursor is not None:
        names = [name for name in names if name >= cursor["topic_name"]]
    room = max(min(request["response_partition_limit"], 2000), 1)
    topics: list[Body] = []
    for name in names:
        found = _with_operations(context, await _asked(context, {"name": name, "topic_id": NO_ID}, create=False))
        first = cursor["partition_index"] if cursor is not None and cursor["topic_name"] == name else 0
        parts = found["partitions"][first:]
        if len(parts) > room or (room == 0 and parts):
            topics.append({**found, "partitions": [_eligible(part) for part in parts[:room]]})
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": first + room}}
        room -= len(parts)
        topics.append({**found, "partitions": [_eligible(part) for part in parts]})
    return {"topics": topics, "next_cursor": None}


def _eligible(part: Body) -> Body:
    """Return empty lists instead of null, which the protocol allows but Java's client fails on."""
    return {**part, "eligible_leader_replicas": [], "last_known_elr": []}


# --- administration


_TOPIC, _BROKER, _BROKER_LOGGER = 2, 4, 8
#: Topic of Kafka's metadata log. There is no such log here: the store's files describe the topics.
_METADATA_LOG = "__cluster_metadata"


async def _check_partition(context: Context, name: str, number: int) -> None:
    """Raise unless the partition exists."""
    topic = await context.broker.partitions.topic(name)
    if not 0 <= number < topic.partitions:
        raise TopicNotFound(f"the topic {name!r} has no partition {number}")


@handles(Key.ELECT_LEADERS, ALTER_CLUSTER)
async def elect_leaders(context: Context, request: Body) -> Body:
    """Refuse elections: the only replica of a partition always leads it. A request for all partitions lists none."""

    async def elect(topic: str, number: int, answer: Body) -> None:
        await _check_partition(context, topic, number)
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)

    return await answer_partitions(Key.ELECT_LEADERS, request, elect)


@handles(Key.ALTER_PARTITION_REASSIGNMENTS, ALTER_CLUSTER)
async def alter_partition_reassignments(context: Context, request: Body) -> Body:
    """Accept reassignments to this broker, where partitions already are. There is never a reassignment to cancel."""
    node = context.broker.node_id

    async def reassign(topic: str, asked: Body, answer: Body) -> None:
        await _check_partition(context, topic, asked["partition_index"])
        if asked["replicas"] is None:
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        if asked["replicas"] != [node]:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"there is one broker, with id {node}")

    made = await answer_partitions(Key.ALTER_PARTITION_REASSIGNMENTS, request, reassign)
    return {**made, "allow_replication_factor_change": request["allow_replication_factor_change"]}


@handles(Key.LIST_PARTITION_REASSIGNMENTS, DESCRIBE_CLUSTER)
async def list_partition_reassignments(context: Context, request: Body) -> Body:
    """Return no reassignments."""
    return {"topics": []}


@handles(Key.ALTER_REPLICA_LOG_DIRS, ALTER_CLUSTER)
async def alter_replica_log_dirs(context: Context, request: Body) -> Body:
    """Accept moves to the store's directory, where partitions already are."""
    results: dict[str, list[Body]] = {}
    for directory in request["dirs"]:
        is_here = directory["path"] == context.broker.store.path
        for topic in directory["topics"]:
            for number in topic["partitions"]:
                code = ErrorCode.NONE if is_here else ErrorCode.LOG_DIR_NOT_FOUND
                try:
                    await _check_partition(context, topic["name"], number)
                except SawlogError as error:
                    code = code_of(error)
                results.setdefault(topic["name"], []).append({"partition_index": number, "error_code": code})
    return {"results": [{"topic_name": name, "partitions": parts} for name, parts in results.items()]}


@handles(Key.DESCRIBE_QUORUM, DESCRIBE_CLUSTER)
async def describe_quorum(context: Context, request: Body) -> Body:
    """Describe a quorum of one. It votes on no log, so its log ends at 0."""
    broker, advertised = context.broker, context.advertised
    voter = {"replica_id": broker.node_id, "log_end_offset": 0}
    leads = {"leader_id": broker.node_id, "leader_epoch": 0, "high_watermark": 0, "current_voters": [voter]}

    async def describe(topic: str, asked: Body, answer: Body) -> None:
        if (topic, asked["partition_index"]) != (_METADATA_LOG, 0):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        answer.update(leads)

    made = await answer_partitions(Key.DESCRIBE_QUORUM, request, describe)
    listener = {"name": "PLAINTEXT", "host": advertised.host, "port": advertised.port}
    return {**made, "nodes": [{"node_id": broker.node_id, "listeners": [listener]}]}


@handles(Key.LIST_CONFIG_RESOURCES, Requirement(Operation.DESCRIBE_CONFIGS))
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


@handles(Key.DESCRIBE_CLIENT_QUOTAS, Requirement(Operation.DESCRIBE_CONFIGS))
async def describe_client_quotas(context: Context, request: Body) -> Body:
    """Return no quotas: there are none, and AlterClientQuotas is not offered."""
    return {"entries": []}
