"""Library errors as Kafka error codes, and error responses to whole requests.

A response without an error code of its own carries the code in each of its items, so that every client understands it:
see `refusal`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from .. import errors
from .handlers import Body, KafkaError
from .wire.errors import ErrorCode, Key
from .wire.frames import RequestHeader

#: The first matching type wins.
_CODES: tuple[tuple[type[BaseException], ErrorCode], ...] = (
    (errors.TopicNotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (errors.InvalidTopicName, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (errors.InvalidConfig, ErrorCode.INVALID_CONFIG),
    (errors.OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (errors.RecordTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (errors.InvalidRecord, ErrorCode.INVALID_RECORD),
    (errors.OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (errors.ProducerFenced, ErrorCode.INVALID_PRODUCER_EPOCH),
    (errors.NotInTransaction, ErrorCode.TRANSACTION_ABORTABLE),
    (errors.NotCoordinator, ErrorCode.NOT_COORDINATOR),
    (errors.CorruptData, ErrorCode.CORRUPT_MESSAGE),
    (errors.UnsupportedCompression, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    (errors.GroupNotFound, ErrorCode.GROUP_ID_NOT_FOUND),
    (errors.GroupActive, ErrorCode.NON_EMPTY_GROUP),
    (errors.GroupFenced, ErrorCode.UNKNOWN_MEMBER_ID),
    (errors.DirectoryLocked, ErrorCode.NOT_LEADER_OR_FOLLOWER),  # retried: another process has the partition
    (errors.LogClosed, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (errors.AmbiguousAppend, ErrorCode.REQUEST_TIMED_OUT),  # an idempotent producer sends it again
    (errors.LogFailed, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),
)

#: Requests to a coordinator.
_COORDINATED = frozenset(
    {
        *(Key.JOIN_GROUP, Key.SYNC_GROUP, Key.HEARTBEAT, Key.LEAVE_GROUP, Key.CONSUMER_GROUP_HEARTBEAT),
        *(Key.OFFSET_COMMIT, Key.OFFSET_FETCH, Key.TXN_OFFSET_COMMIT),
        *(Key.INIT_PRODUCER_ID, Key.ADD_PARTITIONS_TO_TXN, Key.ADD_OFFSETS_TO_TXN, Key.END_TXN),
    }
)
#: Errors that Kafka's coordinators return when their own log fails. Clients then look up the coordinator and retry;
#: most other codes are fatal to them, because Kafka never returns those here. All of these requests are safe to retry.
_ASKED_AGAIN = {
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


def code_of(error: BaseException, key: int | None = None) -> ErrorCode:
    """Return the error code for an error, adapted to the API if `key` is given."""
    if isinstance(error, KafkaError):
        return error.code
    code = next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.UNKNOWN_SERVER_ERROR)
    return _ASKED_AGAIN.get(code, code) if key in _COORDINATED else code


#: Codes that were added to some APIs later: the code that earlier versions and all other APIs return instead, and the
#: first version of each API that knows the new one. A client that gets TRANSACTION_ABORTABLE (KIP-890) aborts its
#: transaction and continues; INVALID_TXN_STATE is fatal to it.
_KNOWN_SINCE: dict[ErrorCode, tuple[ErrorCode, dict[Key, int]]] = {
    ErrorCode.PRODUCER_FENCED: (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        {Key.INIT_PRODUCER_ID: 4, Key.ADD_PARTITIONS_TO_TXN: 2, Key.ADD_OFFSETS_TO_TXN: 2, Key.END_TXN: 2},
    ),
    ErrorCode.TRANSACTION_ABORTABLE: (
        ErrorCode.INVALID_TXN_STATE,
        {Key.PRODUCE: 11, Key.TXN_OFFSET_COMMIT: 4},
    ),
}


def known_code_of(error: BaseException, header: RequestHeader) -> ErrorCode:
    """Return the error code for an error in a response, limited to codes that the request's version knows."""
    code = code_of(error, header.api_key)
    earlier, versions = _KNOWN_SINCE.get(code, (code, {}))
    since = versions.get(Key(header.api_key))
    return code if since is not None and header.version >= since else earlier


def message_of(error: BaseException) -> str:
    """Return the message for a client: the text of an expected error, but only the type of an unexpected one."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # without Python's errno prefix
    if isinstance(error, KeyError) and len(error.args) == 1:
        return str(error.args[0])  # without the quotes
    return str(error) if isinstance(error, (errors.SawlogError, OSError)) else type(error).__name__


#: Builds the response to a request that failed with an error code.
_Refuse = Callable[[Body, ErrorCode], Body]


def _each(
    items: str, answers: str, *names: str, field: str = "error_code", bare: str | None = None, **more: object
) -> _Refuse:
    """Answer each element of a list in the request: with the fields `names`, the error code in `field`, and `more`. An
    element without fields is repeated as `bare`."""

    def refuse(request: Body, code: ErrorCode) -> Body:
        return {
            answers: [
                {**(_copied(item, names) if bare is None else {bare: item}), field: code, **more}
                for item in request.get(items) or ()
            ]
        }

    return refuse


def _nested(items: str, answers: str, names: tuple[str, ...], inner: _Refuse) -> _Refuse:
    """Answer each topic in a list of the request: with the fields `names`, and its partitions as `inner` answers."""

    def refuse(request: Body, code: ErrorCode) -> Body:
        return {answers: [{**_copied(item, names), **inner(item, code)} for item in request.get(items) or ()]}

    return refuse


def _copied(item: Body, names: tuple[str, ...]) -> Body:
    return {name: item[name] for name in names if name in item}


def _partitions(number: str, *names: str) -> _Refuse:
    """Answer each partition of each topic."""
    return _nested("topics", "topics", names, _each("partitions", "partitions", number))


def _whole(**more: object) -> _Refuse:
    """Answer once."""
    return lambda request, code: {"error_code": code, **more}


def _both(first: _Refuse, second: _Refuse) -> _Refuse:
    return lambda request, code: {**first(request, code), **second(request, code)}


_FETCHED = _nested(
    "topics",
    "responses",
    ("topic", "topic_id"),
    lambda topic, code: {
        "partitions": [
            {"partition_index": part["partition"], "error_code": code, "high_watermark": -1, "records": b""}
            for part in topic["partitions"]
        ]
    },
)


def _fetch(request: Body, code: ErrorCode) -> Body:
    if code in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
        return {"error_code": code, "responses": []}
    return {"error_code": ErrorCode.NONE, **_FETCHED(request, code)}


_NAMED, _BY_ID = _each("topic_names", "responses", bare="name"), _each("topics", "responses", "name", "topic_id")


def _delete_topics(request: Body, code: ErrorCode) -> Body:
    return _NAMED(request, code) if request["topic_names"] else _BY_ID(request, code)


def _find_coordinator(request: Body, code: ErrorCode) -> Body:
    nowhere = {"node_id": -1, "host": "", "port": -1, "error_code": code}
    keys = request["coordinator_keys"] or [request["key"]]
    return {**nowhere, "coordinators": [{"key": key, **nowhere} for key in keys]}


_DELETED_OFFSETS = _partitions("partition_index", "name")


def _offset_delete(request: Body, code: ErrorCode) -> Body:
    if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return {"error_code": ErrorCode.NONE, **_DELETED_OFFSETS(request, code)}
    return {"error_code": code, "topics": []}


def _alter_replica_log_dirs(request: Body, code: ErrorCode) -> Body:
    return {
        "results": [
            {
                "topic_name": topic["name"],
                "partitions": [{"partition_index": number, "error_code": code} for number in topic["partitions"]],
            }
            for directory in request["dirs"]
            for topic in directory["topics"]
        ]
    }


def _alter_users(request: Body, code: ErrorCode) -> Body:
    names = dict.fromkeys(each["name"] for field in ("deletions", "upsertions") for each in request[field])
    return {"results": [{"user": name, "error_code": code, "error_message": None} for name in names]}


_NUMBERS = _each("partitions", "results_by_partition", field="partition_error_code", bare="partition_index")
_RESOURCES = ("resource_type", "resource_name")

_REFUSALS: dict[Key, _Refuse] = {
    Key.PRODUCE: _nested(
        "topic_data",
        "responses",
        ("name", "topic_id"),
        _each("partition_data", "partition_responses", "index", base_offset=-1),
    ),
    Key.FETCH: _fetch,
    Key.METADATA: _both(_whole(brokers=()), _each("topics", "topics", "name", "topic_id", partitions=())),
    Key.LIST_OFFSETS: _partitions("partition_index", "name"),
    Key.OFFSET_COMMIT: _partitions("partition_index", "name", "topic_id"),
    Key.TXN_OFFSET_COMMIT: _partitions("partition_index", "name"),
    Key.OFFSET_FOR_LEADER_EPOCH: _partitions("partition", "topic"),
    Key.DELETE_RECORDS: _partitions("partition_index", "name"),
    Key.OFFSET_FETCH: _both(_whole(topics=()), _each("groups", "groups", "group_id", topics=())),
    Key.OFFSET_DELETE: _offset_delete,
    Key.FIND_COORDINATOR: _find_coordinator,
    Key.ADD_PARTITIONS_TO_TXN: _both(
        _whole(results_by_transaction=()),
        _nested("v3_and_below_topics", "results_by_topic_v3_and_below", ("name",), _NUMBERS),
    ),
    Key.INIT_PRODUCER_ID: _whole(producer_id=-1, producer_epoch=-1),
    Key.CREATE_TOPICS: _each("topics", "topics", "name"),
    Key.DELETE_TOPICS: _delete_topics,
    Key.CREATE_PARTITIONS: _each("topics", "results", "name"),
    Key.DESCRIBE_CONFIGS: _each("resources", "results", *_RESOURCES),
    Key.ALTER_CONFIGS: _each("resources", "responses", *_RESOURCES),
    Key.INCREMENTAL_ALTER_CONFIGS: _each("resources", "responses", *_RESOURCES),
    Key.DESCRIBE_GROUPS: _each("groups", "groups", bare="group_id"),
    Key.DELETE_GROUPS: _each("groups_names", "results", bare="group_id"),
    Key.DESCRIBE_TRANSACTIONS: _each("transactional_ids", "transaction_states", bare="transactional_id"),
    Key.CONSUMER_GROUP_DESCRIBE: _each("group_ids", "groups", bare="group_id"),
    Key.DESCRIBE_TOPIC_PARTITIONS: _each("topics", "topics", "name"),
    Key.DESCRIBE_PRODUCERS: _nested(
        "topics", "topics", ("name",), _each("partition_indexes", "partitions", bare="partition_index")
    ),
    # Version 0 of ElectLeaders has an error code for each partition only.
    Key.ELECT_LEADERS: _both(
        _whole(),
        _nested(
            "topic_partitions",
            "replica_election_results",
            ("topic",),
            _each("partitions", "partition_result", bare="partition_id"),
        ),
    ),
    Key.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
    Key.CREATE_ACLS: _each("creations", "results"),
    Key.DELETE_ACLS: _each("filters", "filter_results"),
    Key.ALTER_USER_SCRAM_CREDENTIALS: _alter_users,
    Key.ALTER_CLIENT_QUOTAS: _each("entries", "entries", "entity"),
}


def refusal(key: int, request: Body, code: ErrorCode) -> Body:
    """Return the response to a request that failed as a whole."""
    return _REFUSALS.get(Key(key), _whole())(request, code)


async def answer_each(
    items: Iterable[Body], names: tuple[str, ...], complete: Callable[[Body, Body], Awaitable[None]]
) -> list[Body]:
    """Answer each element of a list in a request. The answer begins with the fields `names` of the element, and
    `complete(element, answer)` adds the others. An error concerns only one element."""
    answers: list[Body] = []
    for item in items:
        answer = {**_copied(item, names), "error_code": ErrorCode.NONE, "error_message": None}
        try:
            await complete(item, answer)
        except errors.SawlogError as error:
            answer.update(error_code=code_of(error), error_message=message_of(error))
        answers.append(answer)
    return answers
