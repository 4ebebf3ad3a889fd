"""Library errors as Kafka error codes, and error responses to whole requests.

A response without an error code of its own carries the code in each of its items, so that every client understands it:
see `refusal`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def _nested(items: str, parts: str, answers: str, number: str, *names: str) -> Callable[[Body, ErrorCode], Body]:
    """Build responses that repeat the topics and partitions of the request."""

    def refuse(request: Body, code: ErrorCode) -> Body:
        return {
            answers: [
                {
                    **{name: topic[name] for name in names if name in topic},
                    "partitions": [{number: part[number], "error_code": code} for part in topic[parts]],
                }
                for topic in request[items] or ()
            ]
        }

    return refuse


def _produce(request: Body, code: ErrorCode) -> Body:
    return {
        "responses": [
            {
                "name": topic["name"],
                "topic_id": topic["topic_id"],
                "partition_responses": [
                    {"index": part["index"], "error_code": code, "base_offset": -1} for part in topic["partition_data"]
                ],
            }
            for topic in request["topic_data"]
        ]
    }


def _fetch(request: Body, code: ErrorCode) -> Body:
    if code in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
        return {"error_code": code, "responses": []}
    return {
        "error_code": ErrorCode.NONE,
        "responses": [
            {
                "topic": topic["topic"],
                "topic_id": topic["topic_id"],
                "partitions": [
                    {"partition_index": part["partition"], "error_code": code, "high_watermark": -1, "records": b""}
                    for part in topic["partitions"]
                ],
            }
            for topic in request["topics"]
        ],
    }


def _metadata(request: Body, code: ErrorCode) -> Body:
    return {
        "error_code": code,
        "brokers": [],
        "topics": [
            {"error_code": code, "name": topic["name"], "topic_id": topic["topic_id"], "partitions": []}
            for topic in request["topics"] or ()
        ],
    }


def _each(items: str, answers: str, *names: str) -> Callable[[Body, ErrorCode], Body]:
    """Build responses with an error code for each item of the request."""

    def refuse(request: Body, code: ErrorCode) -> Body:
        return {
            answers: [{**{name: item[name] for name in names}, "error_code": code} for item in request.get(items) or ()]
        }

    return refuse


def _names(items: str, answers: str, name: str) -> Callable[[Body, ErrorCode], Body]:
    """Build responses to requests that list bare names."""
    return lambda request, code: {answers: [{name: item, "error_code": code} for item in request[items] or ()]}


def _delete_topics(request: Body, code: ErrorCode) -> Body:
    named = [{"name": name, "error_code": code} for name in request["topic_names"] or ()]
    return {
        "responses": named
        or [
            {"name": each["name"], "topic_id": each["topic_id"], "error_code": code} for each in request["topics"] or ()
        ]
    }


def _find_coordinator(request: Body, code: ErrorCode) -> Body:
    keys = request["coordinator_keys"] or [request["key"]]
    return {
        "error_code": code,
        "node_id": -1,
        "host": "",
        "port": -1,
        "coordinators": [{"key": key, "node_id": -1, "host": "", "port": -1, "error_code": code} for key in keys],
    }


def _offset_fetch(request: Body, code: ErrorCode) -> Body:
    groups = [
        {"group_id": group["group_id"], "topics": [], "error_code": code} for group in request.get("groups") or ()
    ]
    return {"error_code": code, "topics": [], "groups": groups}


def _add_partitions(request: Body, code: ErrorCode) -> Body:
    old = [
        {
            "name": topic["name"],
            "results_by_partition": [
                {"partition_index": number, "partition_error_code": code} for number in topic["partitions"]
            ],
        }
        for topic in request.get("v3_and_below_topics") or ()
    ]
    return {"error_code": code, "results_by_topic_v3_and_below": old, "results_by_transaction": []}


def _offset_delete(request: Body, code: ErrorCode) -> Body:
    is_whole = code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topics = _nested("topics", "partitions", "topics", "partition_index", "name")(request, code)["topics"]
    return {"error_code": code if is_whole else ErrorCode.NONE, "topics": [] if is_whole else topics}


def _describe_producers(request: Body, code: ErrorCode) -> Body:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {"partition_index": number, "error_code": code} for number in topic["partition_indexes"]
                ],
            }
            for topic in request["topics"]
        ]
    }


def _elect_leaders(request: Body, code: ErrorCode) -> Body:
    """Version 0 has an error code for each partition only."""
    results = [
        {
            "topic": topic["topic"],
            "partition_result": [{"partition_id": number, "error_code": code} for number in topic["partitions"]],
        }
        for topic in request["topic_partitions"] or ()
    ]
    return {"error_code": code, "replica_election_results": results}


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


_REFUSALS: dict[Key, Callable[[Body, ErrorCode], Body]] = {
    Key.PRODUCE: _produce,
    Key.FETCH: _fetch,
    Key.METADATA: _metadata,
    Key.LIST_OFFSETS: _nested("topics", "partitions", "topics", "partition_index", "name"),
    Key.OFFSET_COMMIT: _nested("topics", "partitions", "topics", "partition_index", "name", "topic_id"),
    Key.TXN_OFFSET_COMMIT: _nested("topics", "partitions", "topics", "partition_index", "name"),
    Key.OFFSET_FOR_LEADER_EPOCH: _nested("topics", "partitions", "topics", "partition", "topic"),
    Key.DELETE_RECORDS: _nested("topics", "partitions", "topics", "partition_index", "name"),
    Key.OFFSET_FETCH: _offset_fetch,
    Key.OFFSET_DELETE: _offset_delete,
    Key.FIND_COORDINATOR: _find_coordinator,
    Key.ADD_PARTITIONS_TO_TXN: _add_partitions,
    Key.CREATE_TOPICS: _each("topics", "topics", "name"),
    Key.DELETE_TOPICS: _delete_topics,
    Key.CREATE_PARTITIONS: _each("topics", "results", "name"),
    Key.DESCRIBE_CONFIGS: _each("resources", "results", "resource_type", "resource_name"),
    Key.ALTER_CONFIGS: _each("resources", "responses", "resource_type", "resource_name"),
    Key.INCREMENTAL_ALTER_CONFIGS: _each("resources", "responses", "resource_type", "resource_name"),
    Key.DESCRIBE_GROUPS: _names("groups", "groups", "group_id"),
    Key.DELETE_GROUPS: _names("groups_names", "results", "group_id"),
    Key.DESCRIBE_TRANSACTIONS: _names("transactional_ids", "transaction_states", "transactional_id"),
    Key.CONSUMER_GROUP_DESCRIBE: _names("group_ids", "groups", "group_id"),
    Key.DESCRIBE_TOPIC_PARTITIONS: _each("topics", "topics", "name"),
    Key.DESCRIBE_PRODUCERS: _describe_producers,
    Key.ELECT_LEADERS: _elect_leaders,
    Key.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
    Key.CREATE_ACLS: _each("creations", "results"),
    Key.DELETE_ACLS: _each("filters", "filter_results"),
    Key.ALTER_USER_SCRAM_CREDENTIALS: _alter_users,
    Key.ALTER_CLIENT_QUOTAS: _each("entries", "entries", "entity"),
}


def refusal(key: int, request: Body, error: BaseException) -> Body:
    """Return the response to a request that failed as a whole."""
    code = code_of(error, key)
    make = _REFUSALS.get(Key(key))
    if make is not None:
        return make(request, code)
    body: dict[str, Any] = {"error_code": code}
    return body
