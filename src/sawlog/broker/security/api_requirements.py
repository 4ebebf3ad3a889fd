"""Operations and resources that each Kafka API requires.

`API_REQUIREMENTS` has an entry for every API, including those the broker does not serve, so that none can be forgotten:
a handler without an entry is an error when the broker starts. `with_authorization` wraps a handler in the check. A
broker without bindings calls its handlers directly.

The entries follow Kafka's list of operations and resources by protocol. Lists leave out what the client may not
describe. Asking for such a resource by name is an error, whether it exists or not. A check that needs more than a table
entry is a function of its own; its docstring says how Kafka answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from ..handlers import Answer, Body, Context, Handler, KafkaError
from ..wire.errors import ErrorCode, Key
from ..wire.schema import NO_ID
from .acls import Operation, Resource
from .authorizer import identity_of
from .request_checks import (
    AuthorizationContext,
    CheckedRequest,
    ElementCheck,
    RequestCheck,
    Requirement,
    answered,
    each,
    free,
    named,
    split,
    topic_of,
    whole,
)

_READ, _WRITE, _CREATE = Operation.READ, Operation.WRITE, Operation.CREATE
_DELETE, _ALTER, _DESCRIBE = Operation.DELETE, Operation.ALTER, Operation.DESCRIBE
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
_TOPIC, _GROUP, _CLUSTER, _TRANSACTION = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID

READ_GROUP = Requirement(_READ, _GROUP, "group_id")
WRITE_TRANSACTION = Requirement(_WRITE, _TRANSACTION, "transactional_id")
CLUSTER_ACTION = Requirement(Operation.CLUSTER_ACTION, _CLUSTER)

#: OffsetFetch asks for several groups from this version on.
_GROUPS_FROM = 8
#: The response to an OffsetFetch of one group has its own error code from this version on.
_ERROR_FROM = 2
#: AddPartitionsToTxn is for brokers only from this version on.
_BROKERS_FROM = 4
#: FindCoordinator asks for several keys from this version on.
_KEYS_FROM = 4
#: The name of a topic in Metadata may be null from this version on.
_NAMELESS_FROM = 12


# --- producing


_BATCHES = each("topic_data", "responses", topic_of(_WRITE))
_IN_TRANSACTION = whole(WRITE_TRANSACTION)


def produce(auth: AuthorizationContext, request: Body) -> CheckedRequest:
    """With acks=0 there is no response: the broker closes the connection, as after any other error."""
    plan = CheckedRequest((request,)) if request["transactional_id"] is None else _IN_TRANSACTION(auth, request)
    if plan.finish is None:
        plan = _BATCHES(auth, request)
    return CheckedRequest(plan.requests, _unanswered) if plan.finish is not None and request["acks"] == 0 else plan


def _unanswered(bodies: list[Body]) -> Body:
    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "a producer without acknowledgements is not allowed")


_IDEMPOTENT = whole(Requirement(Operation.IDEMPOTENT_WRITE, _CLUSTER))
_AMONG_BROKERS = whole(CLUSTER_ACTION)


def init_producer_id(auth: AuthorizationContext, request: Body) -> CheckedRequest:
    """Allow an idempotent producer that may write to any topic or has IDEMPOTENT_WRITE on the cluster."""
    if request["transactional_id"] is not None:
        return _IN_TRANSACTION(auth, request)
    if auth.allows_some(_WRITE, _TOPIC):
        return CheckedRequest((request,))
    return _IDEMPOTENT(auth, request)


def add_partitions_to_txn(auth: AuthorizationContext, request: Body) -> CheckedRequest:
    """Add all partitions or none: allowed partitions then fail with OPERATION_NOT_ATTEMPTED."""
    if auth.version >= _BROKERS_FROM:
        return _AMONG_BROKERS(auth, request)
    items = "v3_and_below_topics"
    code = auth.refused(_WRITE, _TRANSACTION, request["v3_and_below_transactional_id"])
    if code is not None:
        return answered(auth.refusal(request, code))
    good, bad = split(auth, request[items], named(_WRITE, _TOPIC, "name"))
    if not bad:
        return CheckedRequest((request,))
    answers = "results_by_topic_v3_and_below"
    made: list[Body] = []
    for error, some in ((ErrorCode.OPERATION_NOT_ATTEMPTED, good), *bad.items()):
        made += auth.refusal({**request, items: some}, error)[answers]
    return answered({answers: made})


# --- topics


def metadata(auth: AuthorizationContext, request: Body) -> CheckedRequest:
    """A request for all topics returns those the client may describe. Named topics that it may not describe get an
    error. A missing topic is created only if the client may create it."""
    asked = request["topics"]
    if asked is None or (auth.version == 0 and not asked):
        return CheckedRequest((request,), lambda bodies: _visible(auth, bodies[0]))
    good, bad = split(auth, asked, _describes)
    hidden = [_hidden(auth, item, code) for code, items in bad.items() for item in items]
    if not (request["allow_auto_topic_creation"] and auth.creates) or auth.allows(_CREATE, _CLUSTER):
        created, fixed = good, []
    else:
        created, refused = split(auth, good, _creates)
        fixed = [item for items in refused.values() for item in items]
    if not (hidden or fixed):
        return CheckedRequest((request,))
    requests = [{**request, "topics": created}]
    if fixed:
        requests.append({**request, "topics": fixed, "allow_auto_topic_creation": False})

    def finish(bodies: list[Body]) -> Body:
        wanted = {_name(auth, item) for item in created}  # version 0 reads an empty list as all topics
        topics = [topic for topic in bodies[0]["topics"] if topic["name"] in wanted]
        topics += [_not_created(topic) for body in bodies[1:] for topic in body["topics"]]
        return {**bodies[0], "topics": topics + hidden}

    return CheckedRequest(tuple(requests), finish)


def _name(auth: AuthorizationContext, item: Body) -> str | None:
    """Return the name of a topic in Metadata or DeleteTopics; None if its id is unknown."""
    name: str | None = item["name"]
    return name if item["topic_id"] == NO_ID else auth.names.get(bytes(item["topic_id"]))


def _on_topic(operation: Operation) -> ElementCheck:
    """Check a topic of Metadata or DeleteTopics."""

    def verdict(auth: AuthorizationContext, item: Body) -> ErrorCode | None:
        name = _name(auth, item)
        return ErrorCode.UNKNOWN_TOPIC_ID if name is None else auth.refused(operation, _TOPIC, name)

    return verdict


_describes = _on_topic(_DESCRIBE)


def _creates(auth: AuthorizationContext, item: Body) -> ErrorCode | None:
    """Return an error if the topic may not be created. The error applies only if the topic does not exist."""
    name = _name(auth, item)
    return None if name is not None and auth.allows(_CREATE, _TOPIC, name) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _hidden(auth: AuthorizationContext, item: Body, code: ErrorCode) -> Body:
    """Describe a topic that the client may not describe: only the name or id that it sent."""
    made: Body = {"error_code": code, "name": item["name"], "topic_id": NO_ID, "partitions": []}
    if item["name"] is None or item["topic_id"] != NO_ID:
        made["name"] = None if auth.version >= _NAMELESS_FROM else ""
        made["topic_id"] = item["topic_id"]
    return made


def _not_created(topic: Body) -> Body:
    if topic["error_code"] != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return topic
    return {**topic, "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def _visible(auth: AuthorizationContext, body: Body) -> Body:
    return {**body, "topics": [topic for topic in body["topics"] if auth.sees(topic["name"])]}


_DESCRIBED_TOPICS = each("topics", "topics", named(_DESCRIBE, _TOPIC, "name"))


def describe_topic_partitions(auth: AuthorizationContext, request: Body) -> CheckedRequest:
    """A request for all topics covers those the client may describe, so that no page or cursor reveals another one."""
    if request["topics"]:
        return _DESCRIBED_TOPICS(auth, request)
    visible: list[Body] = [{"name": name} for name in auth.topics if auth.sees(name)]
    return CheckedRequest(({**request, "topics": visible},)) if visible else answered({"topics": []})


_DELETED_TOPICS = each("topics", "responses", _on_topic(_DELETE))
_DELETED_NAMES = each("topic_names", "responses", named(_DELETE, _TOPIC))


def delete_topics(auth: AuthorizationContext, request: Body) -> CheckedRequest:
    return (_DELETED_TOPICS if request["topics"] else _DELETED_NAMES)(auth, request)


def without_settings(auth: AuthorizationContext, body: Body) -> Body:
    """CreateTopics returns the settings of a new topic only to clients that may describe them."""
    unknown = {
        "topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }
    topics = [
        topic
        if topic["error_code"] != ErrorCode.NONE or auth.allows(_DESCRIBE_CONFIGS, _TOPIC, topic["name"])
        else {**topic, **unknown}
        for topic in body["topics"]
    ]
    return {**body, "topics": topics}


#: Resource types that have settings: topics, brokers, broker loggers, client metrics, groups.
_CONFIGURED = {2: _TOPIC, 4: _CLUSTER, 8: _CLUSTER, 16: _CLUSTER, 32: _GROUP}


def configs(operation: Operation, answers: str) -> RequestCheck:
    def verdict(auth: AuthorizationContext, item: Body) -> ErrorCode | None:
        resource = _CONFIGURED.get(item["resource_type"], _CLUSTER)
        return (
            auth.refused(operation, _CLUSTER)
            if resource is _CLUSTER
            else auth.refused(operation, resource, item["resource_name"])
        )

    return each("resources", answers, verdict)


# --- groups


_COORDINATORS = {
    resource: (
        whole(Requirement(_DESCRIBE, resource, "key")),
        each("coordinator_keys", "coordinators", named(_DESCRIBE, resource)),
    )
    for resource in (_GROUP, _TRANSACTION)
}


def find_coordinator(auth: AuthorizationContext, request: Body) -> CheckedRequest:
    one, several = _COORDINATORS[_TRANSACTION if request["key_type"] == 1 else _GROUP]
    return (one if auth.version < _KEYS_FROM else several)(auth, request)


def consumer_group_heartbeat(auth: AuthorizationContext, request: Body) -> CheckedRequest:
    """The member must be allowed to describe the topics it names. A pattern matches only topics that it may describe
    (see `Authorizer.sees`)."""
    code = READ_GROUP.refused(auth, request)
    for name in request["subscribed_topic_names"] or ():
        code = code or auth.refused(_DESCRIBE, _TOPIC, name)
    return CheckedRequest((request,)) if code is None else answered(auth.refusal(request, code))


def listed_groups(auth: AuthorizationContext, body: Body) -> Body:
    if auth.allows(_DESCRIBE, _CLUSTER):
        return body
    return {**body, "groups": [group for group in body["groups"] if auth.allows(_DESCRIBE, _GROUP, group["group_id"])]}


def described_groups(auth: AuthorizationContext, body: Body) -> Body:
    """A group is not described if it reads a topic that the client may not describe."""
    return {**body, "groups": [_described_group(auth, group) for group in body["groups"]]}


def _described_group(auth: AuthorizationContext, group: Body) -> Body:
    names = {name for member in group["members"] for name in member["subscribed_topic_names"]}
    for member in group["members"]:
        for assigned in (member["assignment"], member["target_assignment"]):
            names |= {each["topic_name"] for each in assigned["topic_partitions"]}
    if all(map(auth.sees, names)):
        return group
    return {
        "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "error_message": f"{auth.client.principal} is not allowed to describe all topics of the group",
        "group_id": group["group_id"],
    }


def offset_fetch(auth: AuthorizationContext, request: Body) -> CheckedRequest:
    """Return the groups that the client may describe, and of each the topics that it may describe."""
    if auth.version >= _GROUPS_FROM:
        parts = [_Fetched(auth, group) for group in request["groups"]]
        asked = [part.request for part in parts if part.code is None]

        def finish(bodies: list[Body]) -> Body:
            found = iter(bodies[0]["groups"] if bodies else ())
            return {"groups": [part.refusal if part.code is not None else part.answer(next(found)) for part in parts]}

        return CheckedRequest(({**request, "groups": asked},) if asked else (), finish)
    group = {"group_id": request["group_id"], "topics": request["topics"]}
    part = _Fetched(auth, group)
    if part.code is not None:
        old = auth.version < _ERROR_FROM
        topics = [_no_offsets(topic, part.code) for topic in request["topics"]] if old else []
        return answered({"error_code": part.code, "topics": topics})
    return CheckedRequest(({**request, "topics": part.request["topics"]},), lambda bodies: part.answer(bodies[0]))


class _Fetched:
    """One group of an OffsetFetch request."""

    def __init__(self, auth: AuthorizationContext, group: Body) -> None:
        self._auth_context = auth
        self._group = group
        self.code = auth.refused(_DESCRIBE, _GROUP, group["group_id"])
        self._asks_all = group["topics"] is None
        self._hidden: list[Body] = []
        self.request = group
        if self.code is None and not self._asks_all:
            good, bad = split(auth, group["topics"], topic_of(_DESCRIBE))
            self._hidden = [_no_offsets(topic, code) for code, topics in bad.items() for topic in topics]
            self.request = {**group, "topics": good}

    @property
    def refusal(self) -> Body:
        return {"group_id": self._group["group_id"], "error_code": self.code, "topics": []}

    def answer(self, found: Body) -> Body:
        topics = found["topics"]
        if self._asks_all:
            topics = [topic for topic in topics if self._auth_context.sees(topic["name"])]
        return {**found, "topics": [*topics, *self._hidden]}


def _no_offsets(topic: Body, code: ErrorCode) -> Body:
    missing = {"committed_offset": -1, "metadata": "", "error_code": code}
    return {
        **{key: topic[key] for key in ("name", "topic_id") if key in topic},
        "partitions": [{"partition_index": number, **missing} for number in topic["partition_indexes"]],
    }


# --- transactions


def listed_transactions(auth: AuthorizationContext, body: Body) -> Body:
    field = "transaction_states"
    return {
        **body,
        field: [one for one in body[field] if auth.allows(_DESCRIBE, _TRANSACTION, one["transactional_id"])],
    }


def described_transactions(auth: AuthorizationContext, body: Body) -> Body:
    field = "transaction_states"
    return {
        **body,
        field: [
            {**one, "topics": [topic for topic in one.get("topics", ()) if auth.sees(topic["topic"])]}
            for one in body[field]
        ],
    }


# --- the table


def _no_ids(request: Body) -> Iterable[Body]:
    return ()


@dataclass(frozen=True, slots=True)
class ApiRequirement:
    """The check of one API."""

    check: RequestCheck
    #: The elements of a request that may refer to a topic by id.
    topics: Callable[[Body], Iterable[Body]] = _no_ids
    #: Tells whether a request asks for all topics, so that the check needs their names.
    lists: Callable[[Body], bool] = lambda request: False


def _cluster(operation: Operation) -> ApiRequirement:
    return ApiRequirement(whole(Requirement(operation, _CLUSTER)))


def _partitions_of(operation: Operation, field: str = "name", unless: Requirement | None = None) -> ApiRequirement:
    return ApiRequirement(each("topics", "topics", named(operation, _TOPIC, field), unless=unless))


API_REQUIREMENTS: Final[dict[Key, ApiRequirement]] = {
    # Before authentication.
    Key.API_VERSIONS: ApiRequirement(free),
    Key.SASL_HANDSHAKE: ApiRequirement(free),
    Key.SASL_AUTHENTICATE: ApiRequirement(free),
    # Records.
    Key.PRODUCE: ApiRequirement(produce, lambda request: request["topic_data"]),
    Key.FETCH: ApiRequirement(each("topics", "responses", topic_of(_READ, "topic")), lambda request: request["topics"]),
    Key.LIST_OFFSETS: _partitions_of(_DESCRIBE),
    Key.OFFSET_FOR_LEADER_EPOCH: _partitions_of(_DESCRIBE, "topic", CLUSTER_ACTION),
    Key.DELETE_RECORDS: _partitions_of(_DELETE),
    # Topics.
    Key.METADATA: ApiRequirement(metadata, lambda request: request["topics"] or ()),
    Key.DESCRIBE_CLUSTER: ApiRequirement(free),  # the handler filters the response: see `Authorizer.operations`
    Key.DESCRIBE_TOPIC_PARTITIONS: ApiRequirement(
        describe_topic_partitions, lists=lambda request: not request["topics"]
    ),
    Key.CREATE_TOPICS: ApiRequirement(
        each(
            "topics",
            "topics",
            named(_CREATE, _TOPIC, "name"),
            unless=Requirement(_CREATE, _CLUSTER),
            hide=without_settings,
        )
    ),
    Key.DELETE_TOPICS: ApiRequirement(delete_topics, lambda request: request["topics"] or ()),
    Key.CREATE_PARTITIONS: ApiRequirement(each("topics", "results", named(_ALTER, _TOPIC, "name"))),
    Key.DESCRIBE_CONFIGS: ApiRequirement(configs(_DESCRIBE_CONFIGS, "results")),
    Key.ALTER_CONFIGS: ApiRequirement(configs(_ALTER_CONFIGS, "responses")),
    Key.INCREMENTAL_ALTER_CONFIGS: ApiRequirement(configs(_ALTER_CONFIGS, "responses")),
    Key.LIST_CONFIG_RESOURCES: _cluster(_DESCRIBE_CONFIGS),
    Key.DESCRIBE_LOG_DIRS: _cluster(_DESCRIBE),
    Key.ALTER_REPLICA_LOG_DIRS: _cluster(_ALTER),
    Key.DESCRIBE_QUORUM: _cluster(_DESCRIBE),
    Key.ELECT_LEADERS: _cluster(_ALTER),
    Key.ALTER_PARTITION_REASSIGNMENTS: _cluster(_ALTER),
    Key.LIST_PARTITION_REASSIGNMENTS: _cluster(_DESCRIBE),
    # Groups.
    Key.FIND_COORDINATOR: ApiRequirement(find_coordinator),
    Key.JOIN_GROUP: ApiRequirement(whole(READ_GROUP)),
    Key.SYNC_GROUP: ApiRequirement(whole(READ_GROUP)),
    Key.HEARTBEAT: ApiRequirement(whole(READ_GROUP)),
    Key.LEAVE_GROUP: ApiRequirement(whole(READ_GROUP)),
    Key.CONSUMER_GROUP_HEARTBEAT: ApiRequirement(consumer_group_heartbeat),
    Key.LIST_GROUPS: ApiRequirement(whole(hide=listed_groups)),
    Key.DESCRIBE_GROUPS: ApiRequirement(each("groups", "groups", named(_DESCRIBE, _GROUP))),
    Key.CONSUMER_GROUP_DESCRIBE: ApiRequirement(
        each("group_ids", "groups", named(_DESCRIBE, _GROUP), hide=described_groups)
    ),
    Key.DELETE_GROUPS: ApiRequirement(each("groups_names", "results", named(_DELETE, _GROUP))),
    # Offsets of groups.
    Key.OFFSET_COMMIT: ApiRequirement(
        each("topics", "topics", topic_of(_READ), READ_GROUP), lambda request: request["topics"]
    ),
    Key.OFFSET_FETCH: ApiRequirement(
        offset_fetch, lambda request: [one for group in request.get("groups") or () for one in group["topics"] or ()]
    ),
    Key.OFFSET_DELETE: ApiRequirement(
        each("topics", "topics", named(_READ, _TOPIC, "name"), Requirement(_DELETE, _GROUP, "group_id")),
    ),
    # Transactions.
    Key.INIT_PRODUCER_ID: ApiRequirement(init_producer_id),
    Key.ADD_PARTITIONS_TO_TXN: ApiRequirement(add_partitions_to_txn),
    Key.ADD_OFFSETS_TO_TXN: ApiRequirement(whole(WRITE_TRANSACTION, READ_GROUP)),
    Key.TXN_OFFSET_COMMIT: ApiRequirement(
        each("topics", "topics", named(_READ, _TOPIC, "name"), WRITE_TRANSACTION, READ_GROUP),
    ),
    Key.END_TXN: ApiRequirement(whole(WRITE_TRANSACTION)),
    Key.LIST_TRANSACTIONS: ApiRequirement(whole(hide=listed_transactions)),
    Key.DESCRIBE_TRANSACTIONS: ApiRequirement(
        each("transactional_ids", "transaction_states", named(_DESCRIBE, _TRANSACTION), hide=described_transactions)
    ),
    Key.DESCRIBE_PRODUCERS: _partitions_of(_READ),
    # Access control.
    Key.DESCRIBE_ACLS: _cluster(_DESCRIBE),
    Key.CREATE_ACLS: _cluster(_ALTER),
    Key.DELETE_ACLS: _cluster(_ALTER),
    Key.DESCRIBE_USER_SCRAM_CREDENTIALS: _cluster(_DESCRIBE),
    Key.ALTER_USER_SCRAM_CREDENTIALS: _cluster(_ALTER),
    Key.DESCRIBE_CLIENT_QUOTAS: _cluster(_DESCRIBE_CONFIGS),
    Key.ALTER_CLIENT_QUOTAS: _cluster(_ALTER_CONFIGS),
}


# --- before a handler


def with_authorization(key: int, handler: Handler) -> Handler:
    """Wrap a handler so that it gets only the allowed part of a request."""
    requirement = API_REQUIREMENTS[Key(key)]

    def handle(context: Context, request: Body) -> Answer:
        if context.broker.authorizer.is_super_user(context.principal):
            return handler(context, request)
        partitions = context.broker.partitions
        ids = {bytes(one.get("topic_id", NO_ID)) for one in requirement.topics(request)} - {NO_ID}
        names = {each: partitions.name_of(each) for each in ids}
        if None in names.values() or requirement.lists(request):
            return _looked_up(context, request, handler, requirement, ids)
        return _checked(context, request, handler, requirement, _auth_context(context, names))

    handle.pipelined = getattr(handler, "pipelined", False)  # type: ignore[attr-defined]
    return handle


def _auth_context(
    context: Context, names: dict[bytes, str | None], topics: tuple[str, ...] = ()
) -> AuthorizationContext:
    header, broker = context.header, context.broker
    return AuthorizationContext(
        broker.authorizer,
        identity_of(context),
        Key(header.api_key),
        header.version,
        names,
        topics,
        broker.config.auto_create_topics,
    )


async def _looked_up(
    context: Context, request: Body, handler: Handler, requirement: ApiRequirement, ids: Iterable[bytes]
) -> Body | None:
    """Check a request whose topics must be looked up first."""
    partitions = context.broker.partitions
    topics = tuple(each.name for each in await partitions.all_topics())
    auth = _auth_context(context, {each: partitions.name_of(each) for each in ids}, topics)
    return await _result(_checked(context, request, handler, requirement, auth))


def _checked(
    context: Context, request: Body, handler: Handler, requirement: ApiRequirement, auth: AuthorizationContext
) -> Answer:
    plan = requirement.check(auth, request)
    finish = plan.finish
    if finish is None:
        (one,) = plan.requests
        return handler(context, one)
    if len(plan.requests) > 1:
        return _finished(context, plan.requests, handler, finish)
    answers = [handler(context, one) for one in plan.requests]
    if any(isinstance(each, Awaitable) for each in answers):
        return _finished_one(answers[0], finish)
    return finish(answers)  # type: ignore[arg-type]  # None only for a producer that wants no response


async def _finished(
    context: Context, requests: Iterable[Body], handler: Handler, finish: Callable[[list[Any]], Body]
) -> Body:
    return finish([await _result(handler(context, one)) for one in requests])


async def _finished_one(answer: Answer, finish: Callable[[list[Any]], Body]) -> Body:
    return finish([await _result(answer)])


async def _result(answer: Answer) -> Body | None:
    return await answer if isinstance(answer, Awaitable) else answer
