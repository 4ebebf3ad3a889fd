"""Requests whose check is more than a row: for the table in `gate.py`.

What each function says of its API is how Kafka answers it.

The one place where requests are checked: which operation on which resource each API needs.

`TABLE` has a row for every API, also for those that are not served, so that none can be forgotten: a handler without a
row is an error when the broker starts. `guarded` puts the check before a handler. A broker without bindings uses the
handlers as they are.

The rows follow Kafka's list of operations and resources by protocol. What may not be described is left out of lists; if
it is asked for by its name, the answer is an error, whether it exists or not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from ..handlers import Answer, Body, Context, Handler, KafkaError
from ..wire.apis import Key
from ..wire.errors import ErrorCode
from .acls import Operation, Resource
from .authorization import NO_ID, Asker, Guard, Need, Plan, Verdict, answered, each, free, named, split, topic_of, whole
from .authorizer import who

_READ, _WRITE, _CREATE = Operation.READ, Operation.WRITE, Operation.CREATE
_DELETE, _ALTER, _DESCRIBE = Operation.DELETE, Operation.ALTER, Operation.DESCRIBE
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
_TOPIC, _GROUP, _CLUSTER, _TRANSACTION = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID

READ_GROUP = Need(_READ, _GROUP, "group_id")
WRITE_TRANSACTION = Need(_WRITE, _TRANSACTION, "transactional_id")
CLUSTER_ACTION = Need(Operation.CLUSTER_ACTION, _CLUSTER)

#: From this version on OffsetFetch asks for several groups.
_GROUPS_FROM = 8
#: From this version on an OffsetFetch of one group has an error code of its own.
_ERROR_FROM = 2
#: From this version on AddPartitionsToTxn is for brokers among themselves.
_BROKERS_FROM = 4
#: From this version on FindCoordinator asks for several keys.
_KEYS_FROM = 4
#: From this version on the name of a topic in Metadata may be null.
_NAMELESS_FROM = 12


# --- producing


_BATCHES = each("topic_data", "responses", topic_of(_WRITE))
_IN_TRANSACTION = whole(WRITE_TRANSACTION)


def produce(asker: Asker, request: Body) -> Plan:
    """Whoever wants no answer notices a refusal because its connection is closed, as of any other error."""
    plan = Plan((request,)) if request["transactional_id"] is None else _IN_TRANSACTION(asker, request)
    if plan.finish is None:
        plan = _BATCHES(asker, request)
    return Plan(plan.requests, _unanswered) if plan.finish is not None and request["acks"] == 0 else plan


def _unanswered(bodies: list[Body]) -> Body:
    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "a producer without acknowledgements is not allowed")


_IDEMPOTENT = whole(Need(Operation.IDEMPOTENT_WRITE, _CLUSTER))
_AMONG_BROKERS = whole(CLUSTER_ACTION)


def init_producer_id(asker: Asker, request: Body) -> Plan:
    """An idempotent producer may write to some topic, whichever; or to all, by an operation of its own."""
    if request["transactional_id"] is not None:
        return _IN_TRANSACTION(asker, request)
    if asker.may_some(_WRITE, _TOPIC):
        return Plan((request,))
    return _IDEMPOTENT(asker, request)


def add_partitions_to_txn(asker: Asker, request: Body) -> Plan:
    """All partitions, or none: those that could have been added are answered with OPERATION_NOT_ATTEMPTED."""
    if asker.version >= _BROKERS_FROM:
        return _AMONG_BROKERS(asker, request)
    items = "v3_and_below_topics"
    code = asker.refused(_WRITE, _TRANSACTION, request["v3_and_below_transactional_id"])
    if code is not None:
        return answered(asker.refusal(request, code))
    good, bad = split(asker, request[items], named(_WRITE, _TOPIC, "name"))
    if not bad:
        return Plan((request,))
    answers = "results_by_topic_v3_and_below"
    made: list[Body] = []
    for error, some in ((ErrorCode.OPERATION_NOT_ATTEMPTED, good), *bad.items()):
        made += asker.refusal({**request, items: some}, error)[answers]
    return answered({answers: made})


# --- topics


def metadata(asker: Asker, request: Body) -> Plan:
    """All topics: those that may be described. Named ones: with an error if they may not; and a topic that does not
    exist is created for those who may create it."""
    asked = request["topics"]
    if asked is None or (asker.version == 0 and not asked):
        return Plan((request,), lambda bodies: _visible(asker, bodies[0]))
    good, bad = split(asker, asked, _describes)
    hidden = [_hidden(asker, item, code) for code, items in bad.items() for item in items]
    if not (request["allow_auto_topic_creation"] and asker.creates) or asker.may(_CREATE, _CLUSTER):
        created, fixed = good, []
    else:
        created, refused = split(asker, good, _creates)
        fixed = [item for items in refused.values() for item in items]
    if not (hidden or fixed):
        return Plan((request,))
    requests = [{**request, "topics": created}]
    if fixed:
        requests.append({**request, "topics": fixed, "allow_auto_topic_creation": False})

    def finish(bodies: list[Body]) -> Body:
        wanted = {_name(asker, item) for item in created}  # version 0 takes an empty list for all topics
        topics = [topic for topic in bodies[0]["topics"] if topic["name"] in wanted]
        topics += [_not_created(topic) for body in bodies[1:] for topic in body["topics"]]
        return {**bodies[0], "topics": topics + hidden}

    return Plan(tuple(requests), finish)


def _name(asker: Asker, item: Body) -> str | None:
    """The name of a topic that Metadata or DeleteTopics asks for; None if it was given by an id that is not known."""
    name: str | None = item["name"]
    return name if item["topic_id"] == NO_ID else asker.names.get(bytes(item["topic_id"]))


def _on_topic(operation: Operation) -> Verdict:
    """A topic that Metadata or DeleteTopics asks for."""

    def verdict(asker: Asker, item: Body) -> ErrorCode | None:
        name = _name(asker, item)
        return ErrorCode.UNKNOWN_TOPIC_ID if name is None else asker.refused(operation, _TOPIC, name)

    return verdict


_describes = _on_topic(_DESCRIBE)


def _creates(asker: Asker, item: Body) -> ErrorCode | None:
    """Whether a topic may be created, if it does not exist: that is not refused yet."""
    name = _name(asker, item)
    return None if name is not None and asker.may(_CREATE, _TOPIC, name) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _hidden(asker: Asker, item: Body, code: ErrorCode) -> Body:
    """A topic that may not be described: what the client knows of it, its name or its id, and no more."""
    made: Body = {"error_code": code, "name": item["name"], "topic_id": NO_ID, "partitions": []}
    if item["name"] is None or item["topic_id"] != NO_ID:
        made["name"] = None if asker.version >= _NAMELESS_FROM else ""
        made["topic_id"] = item["topic_id"]
    return made


def _not_created(topic: Body) -> Body:
    if topic["error_code"] != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return topic
    return {**topic, "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def _visible(asker: Asker, body: Body) -> Body:
    return {**body, "topics": [topic for topic in body["topics"] if asker.sees(topic["name"])]}


_DESCRIBED_TOPICS = each("topics", "topics", named(_DESCRIBE, _TOPIC, "name"))


def describe_topic_partitions(asker: Asker, request: Body) -> Plan:
    """All topics are those that may be described, so that a page and the next one's beginning tell of no others."""
    if request["topics"]:
        return _DESCRIBED_TOPICS(asker, request)
    visible: list[Body] = [{"name": name} for name in asker.topics if asker.sees(name)]
    return Plan(({**request, "topics": visible},)) if visible else answered({"topics": []})


_DELETED_TOPICS = each("topics", "responses", _on_topic(_DELETE))
_DELETED_NAMES = each("topic_names", "responses", named(_DELETE, _TOPIC))


def delete_topics(asker: Asker, request: Body) -> Plan:
    return (_DELETED_TOPICS if request["topics"] else _DELETED_NAMES)(asker, request)


def without_settings(asker: Asker, body: Body) -> Body:
    """CreateTopics tells the settings of the new topic to those who may describe them."""
    unknown = {
        "topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }
    topics = [
        topic
        if topic["error_code"] != ErrorCode.NONE or asker.may(_DESCRIBE_CONFIGS, _TOPIC, topic["name"])
        else {**topic, **unknown}
        for topic in body["topics"]
    ]
    return {**body, "topics": topics}


#: Types of resources that have settings: topics, brokers, loggers of brokers, client metrics, groups.
_CONFIGURED = {2: _TOPIC, 4: _CLUSTER, 8: _CLUSTER, 16: _CLUSTER, 32: _GROUP}


def configs(operation: Operation, answers: str) -> Guard:
    def verdict(asker: Asker, item: Body) -> ErrorCode | None:
        resource = _CONFIGURED.get(item["resource_type"], _CLUSTER)
        return (
            asker.refused(operation, _CLUSTER)
            if resource is _CLUSTER
            else asker.refused(operation, resource, item["resource_name"])
        )

    return each("resources", answers, verdict)


# --- groups


_COORDINATORS = {
    resource: (
        whole(Need(_DESCRIBE, resource, "key")),
        each("coordinator_keys", "coordinators", named(_DESCRIBE, resource)),
    )
    for resource in (_GROUP, _TRANSACTION)
}


def find_coordinator(asker: Asker, request: Body) -> Plan:
    one, several = _COORDINATORS[_TRANSACTION if request["key_type"] == 1 else _GROUP]
    return (one if asker.version < _KEYS_FROM else several)(asker, request)


def consumer_group_heartbeat(asker: Asker, request: Body) -> Plan:
    """A member may know of the topics that it names. Of those that its pattern matches it gets the others, see
    `Authority.sees`."""
    code = READ_GROUP.refused(asker, request)
    for name in request["subscribed_topic_names"] or ():
        code = code or asker.refused(_DESCRIBE, _TOPIC, name)
    return Plan((request,)) if code is None else answered(asker.refusal(request, code))


def listed_groups(asker: Asker, body: Body) -> Body:
    if asker.may(_DESCRIBE, _CLUSTER):
        return body
    return {**body, "groups": [group for group in body["groups"] if asker.may(_DESCRIBE, _GROUP, group["group_id"])]}


def described_groups(asker: Asker, body: Body) -> Body:
    """A group that reads topics of which the client may not know is not described."""
    return {**body, "groups": [_described_group(asker, group) for group in body["groups"]]}


def _described_group(asker: Asker, group: Body) -> Body:
    names = {name for member in group["members"] for name in member["subscribed_topic_names"]}
    for member in group["members"]:
        for assigned in (member["assignment"], member["target_assignment"]):
            names |= {each["topic_name"] for each in assigned["topic_partitions"]}
    if all(map(asker.sees, names)):
        return group
    return {
        "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "error_message": f"{asker.who.principal} is not allowed to describe all topics of the group",
        "group_id": group["group_id"],
    }


def offset_fetch(asker: Asker, request: Body) -> Plan:
    """Groups that may be described, and of each the topics that may be."""
    if asker.version >= _GROUPS_FROM:
        parts = [_Fetched(asker, group) for group in request["groups"]]
        asked = [part.request for part in parts if part.code is None]

        def finish(bodies: list[Body]) -> Body:
            found = iter(bodies[0]["groups"] if bodies else ())
            return {"groups": [part.refusal if part.code is not None else part.answer(next(found)) for part in parts]}

        return Plan(({**request, "groups": asked},) if asked else (), finish)
    group = {"group_id": request["group_id"], "topics": request["topics"]}
    part = _Fetched(asker, group)
    if part.code is not None:
        old = asker.version < _ERROR_FROM
        topics = [_no_offsets(topic, part.code) for topic in request["topics"]] if old else []
        return answered({"error_code": part.code, "topics": topics})
    return Plan(({**request, "topics": part.request["topics"]},), lambda bodies: part.answer(bodies[0]))


class _Fetched:
    """One group of an OffsetFetch."""

    def __init__(self, asker: Asker, group: Body) -> None:
        self._asker = asker
        self._group = group
        self.code = asker.refused(_DESCRIBE, _GROUP, group["group_id"])
        self._asks_all = group["topics"] is None
        self._hidden: list[Body] = []
        self.request = group
        if self.code is None and not self._asks_all:
            good, bad = split(asker, group["topics"], topic_of(_DESCRIBE))
            self._hidden = [_no_offsets(topic, code) for code, topics in bad.items() for topic in topics]
            self.request = {**group, "topics": good}

    @property
    def refusal(self) -> Body:
        return {"group_id": self._group["group_id"], "error_code": self.code, "topics": []}

    def answer(self, found: Body) -> Body:
        topics = found["topics"]
        if self._asks_all:
            topics = [topic for topic in topics if self._asker.sees(topic["name"])]
        return {**found, "topics": [*topics, *self._hidden]}


def _no_offsets(topic: Body, code: ErrorCode) -> Body:
    missing = {"committed_offset": -1, "metadata": "", "error_code": code}
    return {
        **{key: topic[key] for key in ("name", "topic_id") if key in topic},
        "partitions": [{"partition_index": number, **missing} for number in topic["partition_indexes"]],
    }


# --- transactions, seen from outside


def listed_transactions(asker: Asker, body: Body) -> Body:
    field = "transaction_states"
    return {**body, field: [one for one in body[field] if asker.may(_DESCRIBE, _TRANSACTION, one["transactional_id"])]}


def described_transactions(asker: Asker, body: Body) -> Body:
    field = "transaction_states"
    return {
        **body,
        field: [
            {**one, "topics": [topic for topic in one.get("topics", ()) if asker.sees(topic["topic"])]}
            for one in body[field]
        ],
    }


# --- the table


def _no_ids(request: Body) -> Iterable[Body]:
    return ()


@dataclass(frozen=True, slots=True)
class Row:
    """What an API needs."""

    guard: Guard
    #: The topics that a request may name by id.
    topics: Callable[[Body], Iterable[Body]] = _no_ids
    #: Whether a request asks for all topics, so that the guard has to know them.
    lists: Callable[[Body], bool] = lambda request: False


def _cluster(operation: Operation) -> Row:
    return Row(whole(Need(operation, _CLUSTER)))


def _partitions_of(operation: Operation, field: str = "name", unless: Need | None = None) -> Row:
    return Row(each("topics", "topics", named(operation, _TOPIC, field), unless=unless))


TABLE: Final[dict[Key, Row]] = {
    # Before anybody is known.
    Key.API_VERSIONS: Row(free),
    Key.SASL_HANDSHAKE: Row(free),
    Key.SASL_AUTHENTICATE: Row(free),
    # Records.
    Key.PRODUCE: Row(produce, lambda request: request["topic_data"]),
    Key.FETCH: Row(each("topics", "responses", topic_of(_READ, "topic")), lambda request: request["topics"]),
    Key.LIST_OFFSETS: _partitions_of(_DESCRIBE),
    Key.OFFSET_FOR_LEADER_EPOCH: _partitions_of(_DESCRIBE, "topic", CLUSTER_ACTION),
    Key.DELETE_RECORDS: _partitions_of(_DELETE),
    # Topics.
    Key.METADATA: Row(metadata, lambda request: request["topics"] or ()),
    Key.DESCRIBE_CLUSTER: Row(free),  # what may not be known is not in the response: see `Authority.operations`
    Key.DESCRIBE_TOPIC_PARTITIONS: Row(describe_topic_partitions, lists=lambda request: not request["topics"]),
    Key.CREATE_TOPICS: Row(
        each(
            "topics",
            "topics",
            named(_CREATE, _TOPIC, "name"),
            unless=Need(_CREATE, _CLUSTER),
            hide=without_settings,
        )
    ),
    Key.DELETE_TOPICS: Row(delete_topics, lambda request: request["topics"] or ()),
    Key.CREATE_PARTITIONS: Row(each("topics", "results", named(_ALTER, _TOPIC, "name"))),
    Key.DESCRIBE_CONFIGS: Row(configs(_DESCRIBE_CONFIGS, "results")),
    Key.ALTER_CONFIGS: Row(configs(_ALTER_CONFIGS, "responses")),
    Key.INCREMENTAL_ALTER_CONFIGS: Row(configs(_ALTER_CONFIGS, "responses")),
    Key.LIST_CONFIG_RESOURCES: _cluster(_DESCRIBE_CONFIGS),
    Key.DESCRIBE_LOG_DIRS: _cluster(_DESCRIBE),
    Key.ALTER_REPLICA_LOG_DIRS: _cluster(_ALTER),
    Key.DESCRIBE_QUORUM: _cluster(_DESCRIBE),
    Key.ELECT_LEADERS: _cluster(_ALTER),
    Key.ALTER_PARTITION_REASSIGNMENTS: _cluster(_ALTER),
    Key.LIST_PARTITION_REASSIGNMENTS: _cluster(_DESCRIBE),
    # Groups.
    Key.FIND_COORDINATOR: Row(find_coordinator),
    Key.JOIN_GROUP: Row(whole(READ_GROUP)),
    Key.SYNC_GROUP: Row(whole(READ_GROUP)),
    Key.HEARTBEAT: Row(whole(READ_GROUP)),
    Key.LEAVE_GROUP: Row(whole(READ_GROUP)),
    Key.CONSUMER_GROUP_HEARTBEAT: Row(consumer_group_heartbeat),
    Key.LIST_GROUPS: Row(whole(hide=listed_groups)),
    Key.DESCRIBE_GROUPS: Row(each("groups", "groups", named(_DESCRIBE, _GROUP))),
    Key.CONSUMER_GROUP_DESCRIBE: Row(each("group_ids", "groups", named(_DESCRIBE, _GROUP), hide=described_groups)),
    Key.DELETE_GROUPS: Row(each("groups_names", "results", named(_DELETE, _GROUP))),
    # Offsets of groups.
    Key.OFFSET_COMMIT: Row(each("topics", "topics", topic_of(_READ), READ_GROUP), lambda request: request["topics"]),
    Key.OFFSET_FETCH: Row(
        offset_fetch, lambda request: [one for group in request.get("groups") or () for one in group["topics"] or ()]
    ),
    Key.OFFSET_DELETE: Row(
        each("topics", "topics", named(_READ, _TOPIC, "name"), Need(_DELETE, _GROUP, "group_id")),
    ),
    # Transactions.
    Key.INIT_PRODUCER_ID: Row(init_producer_id),
    Key.ADD_PARTITIONS_TO_TXN: Row(add_partitions_to_txn),
    Key.ADD_OFFSETS_TO_TXN: Row(whole(WRITE_TRANSACTION, READ_GROUP)),
    Key.TXN_OFFSET_COMMIT: Row(
        each("topics", "topics", named(_READ, _TOPIC, "name"), WRITE_TRANSACTION, READ_GROUP),
    ),
    Key.END_TXN: Row(whole(WRITE_TRANSACTION)),
    Key.LIST_TRANSACTIONS: Row(whole(hide=listed_transactions)),
    Key.DESCRIBE_TRANSACTIONS: Row(
        each("transactional_ids", "transaction_states", named(_DESCRIBE, _TRANSACTION), hide=described_transactions)
    ),
    Key.DESCRIBE_PRODUCERS: _partitions_of(_READ),
    # Who may do what.
    Key.DESCRIBE_ACLS: _cluster(_DESCRIBE),
    Key.CREATE_ACLS: _cluster(_ALTER),
    Key.DELETE_ACLS: _cluster(_ALTER),
    Key.DESCRIBE_USER_SCRAM_CREDENTIALS: _cluster(_DESCRIBE),
    Key.ALTER_USER_SCRAM_CREDENTIALS: _cluster(_ALTER),
    Key.DESCRIBE_CLIENT_QUOTAS: _cluster(_DESCRIBE_CONFIGS),
    Key.ALTER_CLIENT_QUOTAS: _cluster(_ALTER_CONFIGS),
}


# --- before a handler


def guarded(key: int, handler: Handler) -> Handler:
    """A handler that gets what the client may do, and no more."""
    row = TABLE[Key(key)]

    def handle(context: Context, request: Body) -> Answer:
        if context.broker.authority.trusts(context.principal):
            return handler(context, request)
        partitions = context.broker.partitions
        ids = {bytes(one.get("topic_id", NO_ID)) for one in row.topics(request)} - {NO_ID}
        names = {each: partitions.name_of(each) for each in ids}
        if None in names.values() or row.lists(request):
            return _looked_up(context, request, handler, row, ids)
        return _planned(context, request, handler, row, _asker(context, names))

    handle.pipelined = getattr(handler, "pipelined", False)  # type: ignore[attr-defined]
    return handle


def _asker(context: Context, names: dict[bytes, str | None], topics: tuple[str, ...] = ()) -> Asker:
    header, broker = context.header, context.broker
    return Asker(
        broker.authority,
        who(context),
        Key(header.api_key),
        header.version,
        names,
        topics,
        broker.config.auto_create_topics,
    )


async def _looked_up(context: Context, request: Body, handler: Handler, row: Row, ids: Iterable[bytes]) -> Body | None:
    """The same for a request about topics that have to be looked up first."""
    partitions = context.broker.partitions
    topics = tuple(each.name for each in await partitions.all_topics())
    asker = _asker(context, {each: partitions.name_of(each) for each in ids}, topics)
    return await _result(_planned(context, request, handler, row, asker))


def _planned(context: Context, request: Body, handler: Handler, row: Row, asker: Asker) -> Answer:
    plan = row.guard(asker, request)
    finish = plan.finish
    if finish is None:
        (one,) = plan.requests
        return handler(context, one)
    if len(plan.requests) > 1:
        return _finished(context, plan.requests, handler, finish)
    answers = [handler(context, one) for one in plan.requests]
    if any(isinstance(each, Awaitable) for each in answers):
        return _finished_one(answers[0], finish)
    return finish(answers)  # type: ignore[arg-type]  # None only for a producer that wants no answer


async def _finished(
    context: Context, requests: Iterable[Body], handler: Handler, finish: Callable[[list[Any]], Body]
) -> Body:
    return finish([await _result(handler(context, one)) for one in requests])


async def _finished_one(answer: Answer, finish: Callable[[list[Any]], Body]) -> Body:
    return finish([await _result(answer)])


async def _result(answer: Answer) -> Body | None:
    return await answer if isinstance(answer, Awaitable) else answer
