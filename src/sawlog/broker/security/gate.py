"""The one place where requests are checked: which operation on which resource each API needs.

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

from ..handlers import Answer, Body, Context, Handler
from ..wire.apis import Key
from .acls import Operation, Resource
from .authority import who
from .cases import (
    CLUSTER_ACTION,
    READ_GROUP,
    WRITE_TRANSACTION,
    add_partitions_to_txn,
    configs,
    consumer_group_heartbeat,
    delete_topics,
    describe_topic_partitions,
    described_groups,
    described_transactions,
    find_coordinator,
    init_producer_id,
    listed_groups,
    listed_transactions,
    metadata,
    offset_fetch,
    produce,
    without_settings,
)
from .plans import NO_ID, Asker, Guard, Need, each, free, named, topic_of, whole

_READ, _WRITE, _CREATE = Operation.READ, Operation.WRITE, Operation.CREATE
_DELETE, _ALTER, _DESCRIBE = Operation.DELETE, Operation.ALTER, Operation.DESCRIBE
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
_TOPIC, _GROUP, _CLUSTER, _TRANSACTION = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID


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
