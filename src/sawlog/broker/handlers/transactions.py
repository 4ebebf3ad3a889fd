"""Producer ids and transactions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from ...clock import now_ms
from ...errors import SawlogError
from ...store.base import Partition, TopicPartition
from ..groups.members import Sender, by_topic
from ..groups.stored import NewOffset
from ..security.acls import Operation, Resource
from ..transactions import TransactionState
from ..wire import Body, ErrorCode, Key
from . import READ_GROUP, WRITE_TRANSACTION, Context, KafkaError, answer_each, answer_partitions, handles, known_code_of


@handles(Key.INIT_PRODUCER_ID, WRITE_TRANSACTION)
async def init_producer_id(context: Context, request: Body) -> Body:
    """Return an id for an idempotent producer, or the next epoch of a transactional one. Without a transactional id,
    needs WRITE on any topic or IDEMPOTENT_WRITE on the cluster."""
    allows_some = context.broker.authorizer.allows_some
    if request["transactional_id"] is None and not allows_some(context.client, Operation.WRITE, Resource.TOPIC):
        context.require(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER)
    known = request["producer_id"], request["producer_epoch"]
    producer_id, epoch = await context.broker.transactions.init_producer(
        request["transactional_id"], request["transaction_timeout_ms"], known
    )
    return {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": epoch}


@handles(Key.ADD_PARTITIONS_TO_TXN)
async def add_partitions_to_txn(context: Context, request: Body) -> Body:
    """Add partitions to transactions. Needs WRITE on the transactional id and on each topic; from version 4 on, for
    brokers, CLUSTER_ACTION on the cluster."""
    if context.header.version >= 4:
        context.require(Operation.CLUSTER_ACTION, Resource.CLUSTER)
        results = [
            {"transactional_id": each["transactional_id"], "topic_results": await _add(context, each)}
            for each in request["transactions"]
        ]
        return {"error_code": ErrorCode.NONE, "results_by_transaction": results}
    names = ("transactional_id", "producer_id", "producer_epoch", "topics")
    old = {name: request[f"v3_and_below_{name}"] for name in names}
    context.require(Operation.WRITE, Resource.TRANSACTIONAL_ID, old["transactional_id"])
    return {"results_by_topic_v3_and_below": await _add(context, old)}


async def _add(context: Context, asked: Body) -> list[Body]:
    partitions = [(topic["name"], number) for topic in asked["topics"] for number in topic["partitions"]]
    try:
        codes = _denied(context, partitions)
        if not codes:
            codes = await context.broker.transactions.add_partitions(
                asked["transactional_id"], asked["producer_id"], asked["producer_epoch"], partitions
            )
    except SawlogError as error:
        codes = dict.fromkeys(partitions, known_code_of(error, context.header))
    return [
        {
            "name": topic["name"],
            "results_by_partition": [
                {"partition_index": number, "partition_error_code": codes[topic["name"], number]}
                for number in topic["partitions"]
            ],
        }
        for topic in asked["topics"]
    ]


def _denied(context: Context, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
    """Return the errors of all partitions if the client may not write to one of the topics; otherwise nothing."""
    if context.header.version >= 4:  # a broker
        return {}
    topics = {topic: context.denial(Operation.WRITE, Resource.TOPIC, topic) for topic, _ in partitions}
    if not any(topics.values()):
        return {}
    return {
        (topic, number): ErrorCode.OPERATION_NOT_ATTEMPTED if (error := topics[topic]) is None else error.code
        for topic, number in partitions
    }


@handles(Key.ADD_OFFSETS_TO_TXN, WRITE_TRANSACTION, READ_GROUP)
async def add_offsets_to_txn(context: Context, request: Body) -> Body:
    """Add a group to a transaction."""
    await context.broker.transactions.add_offsets(
        request["transactional_id"], request["producer_id"], request["producer_epoch"], request["group_id"]
    )
    return {"error_code": ErrorCode.NONE}


@handles(Key.TXN_OFFSET_COMMIT, WRITE_TRANSACTION, READ_GROUP)
async def txn_offset_commit(context: Context, request: Body) -> Body:
    """Add offsets to commit with the transaction. Needs READ on each topic."""
    offsets: dict[TopicPartition, NewOffset] = {}
    denied: dict[TopicPartition, ErrorCode] = {}
    for topic in request["topics"]:
        error = context.denial(Operation.READ, Resource.TOPIC, topic["name"])
        for part in topic["partitions"]:
            place = topic["name"], part["partition_index"]
            if error is None:
                offsets[place] = NewOffset.of(part)
            else:
                denied[place] = error.code
    codes: dict[TopicPartition, ErrorCode] = {}
    try:
        if offsets:
            sender = Sender(request["member_id"], request["group_instance_id"], request["generation_id"])
            codes = await context.broker.transactions.commit_offsets(
                request["transactional_id"],
                request["producer_id"],
                request["producer_epoch"],
                request["group_id"],
                offsets,
                sender,
            )
    except SawlogError as failure:
        codes = dict.fromkeys(offsets, known_code_of(failure, context.header))
    topics: defaultdict[str, list[Body]] = defaultdict(list)
    for (name, number), code in {**codes, **denied}.items():
        topics[name].append({"partition_index": number, "error_code": code})
    return {"topics": [{"name": name, "partitions": parts} for name, parts in topics.items()]}


@handles(Key.END_TXN, WRITE_TRANSACTION)
async def end_txn(context: Context, request: Body) -> Body:
    """Commit or abort a transaction."""
    await context.broker.transactions.end(
        request["transactional_id"], request["producer_id"], request["producer_epoch"], commit=request["committed"]
    )
    return {"error_code": ErrorCode.NONE}


@handles(Key.LIST_TRANSACTIONS)
async def list_transactions(context: Context, request: Body) -> Body:
    """Return the transactional ids that the client may describe, filtered by state, producer, age or pattern."""
    states, ids, age_ms = set(request["state_filters"]), set(request["producer_id_filters"]), request["duration_filter"]
    unknown = sorted(states - {state.value for state in TransactionState})
    try:
        pattern = re.compile(request["transactional_id_pattern"] or "")
    except re.error as error:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
    now = now_ms()
    found = [
        {"transactional_id": name, "producer_id": entry.producer_id, "transaction_state": entry.state.value}
        for name, entry in sorted(context.broker.transactions.entries().items())
        if context.allows(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, name)
        and (not states or entry.state.value in states)
        and (not ids or entry.producer_id in ids)
        and (age_ms < 0 or (entry.state is TransactionState.ONGOING and now - entry.started_ms > age_ms))
        and (not pattern.pattern or pattern.fullmatch(name))
    ]
    return {"error_code": ErrorCode.NONE, "unknown_state_filters": unknown, "transaction_states": found}


@handles(Key.DESCRIBE_TRANSACTIONS)
async def describe_transactions(context: Context, request: Body) -> Body:
    """Return the details of transactional ids. Needs DESCRIBE on each, and leaves out topics that the client may not
    describe."""
    entries = context.broker.transactions.entries()

    async def describe(name: str, answer: Body) -> None:
        context.require(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, name)
        if (entry := entries.get(name)) is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        topics = by_topic((topic, number) for topic, _, number in entry.partitions if context.sees(topic))
        answer.update(
            transaction_state=entry.state.value,
            transaction_timeout_ms=entry.timeout_ms,
            transaction_start_time_ms=entry.started_ms if entry.state is TransactionState.ONGOING else -1,
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            topics=[{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()],
        )

    return await answer_each(Key.DESCRIBE_TRANSACTIONS, request, describe)


@handles(Key.DESCRIBE_PRODUCERS)
async def describe_producers(context: Context, request: Body) -> Body:
    """Return the producers that partitions know. Needs READ on each topic."""

    async def describe(topic: str, number: int, answer: Body) -> None:
        context.require(Operation.READ, Resource.TOPIC, topic)
        found = await context.broker.partitions.partition(topic, number)
        answer["active_producers"] = await context.broker.run(_producers, found.log)

    return await answer_partitions(Key.DESCRIBE_PRODUCERS, request, describe)


def _producers(log: Partition) -> list[Body]:
    return [
        {
            "producer_id": each.producer_id,
            "producer_epoch": each.epoch,
            "last_sequence": each.last_sequence,
            "last_timestamp": each.last_timestamp,
            "coordinator_epoch": each.coordinator_epoch,
            "current_txn_start_offset": each.transaction_offset,
        }
        for each in log._producer_states
    ]
