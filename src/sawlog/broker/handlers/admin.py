"""Topics and their settings: creating, changing, deleting, describing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from ...display import counted
from ...errors import InvalidConfig, TopicExists
from ...store import settings
from ...store.base import Topic
from ...store.directory.topic_entry import TopicEntry
from ..config import BrokerConfig
from ..partitions import id_of
from ..security.acls import Operation, Resource
from ..wire import Body, ErrorCode, Key
from ..wire.schema import NO_ID
from . import DESCRIBE_CLUSTER, Context, KafkaError, answer_each, handles

_TOPIC, _BROKER, _BROKER_LOGGER, _GROUP = 2, 4, 8, 32
#: Sources of a setting's value.
_FROM_TOPIC, _FROM_STATIC, _FROM_DEFAULT = 1, 4, 5
_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3


# --- topics


@handles(Key.CREATE_TOPICS)
async def create_topics(context: Context, request: Body) -> Body:
    """Create topics, each independently. Needs CREATE on each topic or on the cluster, and DESCRIBE_CONFIGS to get the
    settings."""
    broker, names = context.broker, [each["name"] for each in request["topics"]]

    async def create(asked: Body, answer: Body) -> None:
        name, answer["configs"] = asked["name"], None
        if not context.allows(Operation.CREATE, Resource.CLUSTER):
            context.require(Operation.CREATE, Resource.TOPIC, name)
        if names.count(name) > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
        partitions = _partitions_of(context, asked)
        given = {each["name"]: each["value"] for each in asked["configs"] if each["value"] is not None}
        _check_names(given)
        if request["validate_only"]:
            TopicEntry.new(name, partitions, given)
            if name in await broker.run(broker.store.topics):
                raise TopicExists(f"the topic {name!r} already exists")
            created = settings.check(given)
        else:
            try:
                topic = await broker.create_topic(name, partitions, given)
            except TopicExists as error:
                if name not in await broker.run(broker.store.topics):  # its name differs only in case
                    raise
                raise TopicExists(f"the topic {name!r} already exists") from error
            answer["topic_id"] = id_of(topic)
            created = topic.settings
        if context.allows(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, name):
            answer.update(num_partitions=partitions, replication_factor=1, configs=_created(created))
        else:
            answer.update(topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, configs=[])

    return await answer_each(Key.CREATE_TOPICS, request, create)


def _created(given: dict[str, settings.Value]) -> list[Body]:
    """Return the settings of a new topic in the form of CreateTopics, without documentation."""
    wanted = ("name", "value", "read_only", "config_source", "is_sensitive")
    return [{key: row[key] for key in wanted} for row in _rows(given)]


def _partitions_of(context: Context, asked: Body) -> int:
    count, replicas, assignments = asked["num_partitions"], asked["replication_factor"], asked["assignments"]
    if assignments:
        if count != -1 or replicas != -1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "give assignments, or numbers of partitions and replicas")
        if sorted(each["partition_index"] for each in assignments) != list(range(len(assignments))):
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "the partitions must be numbered from 0")
        if any(each["broker_ids"] != [context.broker.node_id] for each in assignments):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"there is one broker, with id {context.broker.node_id}"
            )
        return len(assignments)
    if replicas not in (-1, 1):
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, f"there is one broker, so one replica, not {replicas}")
    if count == -1:
        return context.broker.config.default_partitions
    if count < 1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "a topic has at least one partition")
    return int(count)


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in settings.SETTINGS:
            raise InvalidConfig(f"unknown setting {name!r}")


@handles(Key.DELETE_TOPICS)
async def delete_topics(context: Context, request: Body) -> Body:
    """Delete topics by name or by id. Needs DELETE on each topic."""
    partitions = context.broker.partitions

    async def delete(asked: Body, answer: Body) -> None:
        name, topic_id = asked["name"], asked["topic_id"]
        if topic_id != NO_ID:
            if name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "give the name of a topic or its id, not both")
            name = await partitions.find_name(topic_id)
            if name is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        elif name is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "neither the name of a topic nor its id is given")
        context.require(Operation.DELETE, Resource.TOPIC, name)
        answer["name"] = name
        answer["topic_id"] = id_of(await partitions.topic(name))
        await context.broker.delete_topic(name)

    asked = request["topics"] or [{"name": name, "topic_id": NO_ID} for name in request["topic_names"] or ()]
    return await answer_each(Key.DELETE_TOPICS, {"topics": asked}, delete)


@handles(Key.CREATE_PARTITIONS)
async def create_partitions(context: Context, request: Body) -> Body:
    """Add partitions to topics. Needs ALTER on each topic."""
    broker = context.broker

    async def grow(asked: Body, answer: Body) -> None:
        count, assignments = asked["count"], asked["assignments"]
        context.require(Operation.ALTER, Resource.TOPIC, asked["name"])
        topic = await broker.partitions.topic(asked["name"])
        if count <= topic.partitions:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"{topic.name} has {counted(topic.partitions, 'partition')} already, not {count}",
            )
        if assignments is not None and (
            len(assignments) != count - topic.partitions
            or any(each["broker_ids"] != [broker.node_id] for each in assignments)
        ):
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "one assignment, to this broker, per new partition")
        if not request["validate_only"]:
            await broker.run(broker.store.alter_topic, topic.name, count, {})
            await broker.partitions.refresh(topic.name)

    topics = {each["name"]: each for each in request["topics"]}.values()
    return await answer_each(Key.CREATE_PARTITIONS, {"topics": topics}, grow)


# --- settings


@handles(Key.DESCRIBE_CONFIGS)
async def describe_configs(context: Context, request: Body) -> Body:
    """Return the settings of topics, groups and this broker, with their defaults and sources. Needs DESCRIBE_CONFIGS on
    each topic or group, or on the cluster."""

    async def describe(asked: Body, answer: Body) -> None:
        kind, name, wanted = asked["resource_type"], asked["resource_name"], asked["configuration_keys"]
        _require(context, Operation.DESCRIBE_CONFIGS, kind, name)
        if kind == _TOPIC:
            topic = await context.broker.partitions.topic(name)
            rows = _rows(topic.settings)
        elif kind == _BROKER:
            _check_node(context, name)
            rows = _broker_rows(context)
        elif kind == _BROKER_LOGGER:
            _check_node(context, name)
            rows = []
        elif kind == _GROUP:
            rows = _setting_rows(context, _GROUP_SETTINGS)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no settings here")
        rows = [row for row in rows if wanted is None or row["name"] in wanted]
        if not request["include_synonyms"]:
            rows = [{**row, "synonyms": []} for row in rows]
        if not request["include_documentation"]:
            rows = [{**row, "documentation": None} for row in rows]
        answer["configs"] = rows

    return await answer_each(Key.DESCRIBE_CONFIGS, request, describe)


def _require(context: Context, operation: Operation, kind: int, name: str) -> None:
    """Raise unless the client may perform an operation on the settings of a resource."""
    if kind in (_TOPIC, _GROUP):
        context.require(operation, Resource.TOPIC if kind == _TOPIC else Resource.GROUP, name)
    else:
        context.require(operation, Resource.CLUSTER)


def _check_node(context: Context, name: str) -> None:
    if name not in ("", str(context.broker.node_id)):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"this broker has the id {context.broker.node_id}, not {name!r}")


def _rows(given: dict[str, settings.Value]) -> list[Body]:
    """Return the settings of a topic."""
    rows: list[Body] = []
    for name, setting in settings.SETTINGS.items():
        default = settings.default_of(name)
        values = [(given[name], _FROM_TOPIC)] if name in given else []
        values.append((default, _FROM_DEFAULT))
        rows.append(_row(name, values, _type_of(name, default), setting.about, read_only=False))
    return rows


def _row(name: str, values: list[tuple[Any, int]], kind: int, about: str, *, read_only: bool) -> Body:
    """Describe a setting by its values and their sources; the first one is in force."""
    synonyms = [{"name": name, "value": _text(value), "source": source} for value, source in values]
    return {
        "name": name,
        "value": synonyms[0]["value"],
        "read_only": read_only,
        "config_source": synonyms[0]["source"],
        "is_sensitive": False,
        "synonyms": synonyms,
        "config_type": kind,
        "documentation": about,
    }


def _type_of(name: str, default: settings.Value) -> int:
    if name == "cleanup.policy":
        return _LIST
    if isinstance(default, str):
        return _BOOLEAN if default in ("true", "false") else _STRING
    return _DOUBLE if isinstance(default, float) else _LONG


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


#: Settings of the broker that clients request: Kafka's name, ours, and the documentation. They are fixed at startup.
_BROKER_SETTINGS = (
    ("auto.create.topics.enable", "auto_create_topics", "Create a missing topic when a client asks for it."),
    ("num.partitions", "default_partitions", "Number of partitions of a topic created without one."),
    ("socket.request.max.bytes", "max_request_bytes", "Largest request."),
    ("fetch.max.bytes", "max_fetch_bytes", "Largest response to a fetch."),
    ("max.connections", "max_connections", "Maximum number of connections."),
    ("max.connections.per.ip", "max_connections_per_address", "Maximum number of connections from one address."),
    ("group.min.session.timeout.ms", "group_min_session_timeout_ms", "Shortest session timeout of a member."),
    ("group.max.session.timeout.ms", "group_max_session_timeout_ms", "Longest session timeout of a member."),
    (
        "group.initial.rebalance.delay.ms",
        "group_initial_rebalance_delay_ms",
        "Time that the first members wait for others.",
    ),
    ("group.max.size", "group_max_size", "Maximum number of members of a group."),
    ("offset.metadata.max.bytes", "offset_metadata_max_bytes", "Largest metadata of a committed offset."),
    ("transaction.max.timeout.ms", "transaction_max_timeout_ms", "Longest timeout of a transaction."),
    ("transactional.id.expiration.ms", "transactional_id_expiration_ms", "Lifetime of an unused transactional id."),
    ("num.io.threads", "threads", "Threads for calls that may block on the disk."),
)
#: Settings of groups whose partitions the broker assigns. All groups have the same.
_GROUP_SETTINGS = (
    ("consumer.session.timeout.ms", "group_consumer_session_timeout_ms", "Session timeout of a member."),
    ("consumer.heartbeat.interval.ms", "group_consumer_heartbeat_interval_ms", "Interval of heartbeats."),
)


def _setting_rows(context: Context, table: Iterable[tuple[str, str, str]], *more: Body) -> list[Body]:
    """Return settings of the broker by Kafka's names, and `more`, sorted."""
    config, defaults = context.broker.config, {each.name: each.default for each in fields(BrokerConfig)}
    rows = [_fixed(name, getattr(config, ours), about, defaults[ours]) for name, ours, about in table]
    return sorted([*rows, *more], key=lambda row: str(row["name"]))


def _fixed(name: str, value: Any, about: str, default: Any = None) -> Body:
    """Describe a setting that cannot change while the broker runs."""
    kind = _BOOLEAN if isinstance(value, bool) else _INT if isinstance(value, int) else _STRING
    source = _FROM_DEFAULT if value == default else _FROM_STATIC
    return _row(name, [(value, source)], kind, about, read_only=True)


def _broker_rows(context: Context) -> list[Body]:
    broker, batch_bytes = context.broker, settings.default_of("max.message.bytes")
    return _setting_rows(
        context,
        _BROKER_SETTINGS,
        _fixed("advertised.listeners", f"PLAINTEXT://{context.advertised}", "Address that clients should connect to."),
        _fixed("broker.id", broker.node_id, "Id of this broker."),
        _fixed("default.replication.factor", 1, "Replicas of a partition; there is always one.", 1),
        _fixed("listeners", f"PLAINTEXT://{broker.listening}", "Listening address."),
        _fixed("log.dirs", broker.store.path, "Path or address of the store."),
        _fixed("message.max.bytes", batch_bytes, "Largest batch, unless a topic has its own limit.", batch_bytes),
        _fixed("node.id", broker.node_id, "Id of this broker."),
    )


@handles(Key.ALTER_CONFIGS)
async def alter_configs(context: Context, request: Body) -> Body:
    """Replace all settings of topics. Needs ALTER_CONFIGS on each topic."""
    return await _alter(context, request, _replaced)


@handles(Key.INCREMENTAL_ALTER_CONFIGS)
async def incremental_alter_configs(context: Context, request: Body) -> Body:
    """Change some settings of topics. Needs ALTER_CONFIGS on each topic."""
    return await _alter(context, request, _changes)


async def _alter(context: Context, request: Body, changes_of: Callable[[Topic, list[Body]], dict[str, object]]) -> Body:
    broker = context.broker

    async def alter(asked: Body, answer: Body) -> None:
        _require(context, Operation.ALTER_CONFIGS, asked["resource_type"], asked["resource_name"])
        if asked["resource_type"] != _TOPIC:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "only the settings of topics can be changed while it runs")
        topic = await broker.partitions.topic(asked["resource_name"])
        changes = changes_of(topic, asked["configs"])
        _check_names(changes)
        settings.changed(topic.settings, changes)  # raises before anything is changed
        if not request["validate_only"]:
            await broker.alter_topic(topic.name, changes)

    return await answer_each(Key.ALTER_CONFIGS, request, alter)


def _replaced(topic: Topic, configs: list[Body]) -> dict[str, object]:
    """Return the changes that leave exactly these settings."""
    return {**dict.fromkeys(topic.settings), **{each["name"]: each["value"] for each in configs}}


def _changes(topic: Topic, configs: list[Body]) -> dict[str, object]:
    """Return the changes that incremental operations amount to."""
    changes: dict[str, object] = {}
    for each in configs:
        name, operation, value = each["name"], each["config_operation"], each["value"]
        if name in changes:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the request changes {name} more than once")
        if operation == _SET:
            if value is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"no value for {name}")
            changes[name] = value
        elif operation == _DELETE:
            changes[name] = None
        elif operation in (_APPEND, _SUBTRACT) and name == "cleanup.policy":
            now = _parts(topic.settings.get(name, settings.default_of(name)))
            named = _parts(value)
            wanted = [*now, *named] if operation == _APPEND else [each for each in now if each not in named]
            changes[name] = ",".join(dict.fromkeys(wanted))
        else:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} is not a list: set it, or delete it")
    return changes


def _parts(value: settings.Value | None) -> list[str]:
    """Return the elements of a list; empty for an empty text."""
    return [part.strip() for part in str(value).split(",")] if value else []


@handles(Key.DESCRIBE_LOG_DIRS, DESCRIBE_CLUSTER)
async def describe_log_dirs(context: Context, request: Body) -> Body:
    """Return the sizes of partitions, all in the store's directory."""
    broker = context.broker
    wanted = None if request["topics"] is None else {each["topic"]: each["partitions"] for each in request["topics"]}
    topics: list[Body] = []
    for topic in await broker.partitions.all_topics():
        if wanted is not None and topic.name not in wanted:
            continue
        numbers = range(topic.partitions) if wanted is None else wanted[topic.name] or range(topic.partitions)
        sizes = await broker.run(_sizes, topic, [number for number in numbers if number < topic.partitions])
        topics.append(
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": number, "partition_size": size, "offset_lag": 0, "is_future_key": False}
                    for number, size in sizes
                ],
            }
        )
    total, free = await broker.run(broker.store.space)
    result = {"error_code": ErrorCode.NONE, "log_dir": broker.store.path, "topics": topics}
    return {"results": [{**result, "total_bytes": total, "usable_bytes": free, "is_cordoned": False}]}


def _sizes(topic: Topic, numbers: list[int]) -> list[tuple[int, int]]:
    return [(number, topic.partition(number).size_bytes) for number in numbers]
