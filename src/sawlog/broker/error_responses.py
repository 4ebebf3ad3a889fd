"""Library errors as Kafka error codes, and error responses to whole requests.

A response without an error code of its own carries the code in each of its items, so that every client understands it:
see `refusal`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from .. import errors
from .handlers import Body, KafkaError
from .wire.errors import ErrorCode, Key
from .wire.frames import RequestHeader
from .wire.messages import BY_KEY
from .wire.schema import UUID, Field, Fields

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


# --- requests that failed as a whole

_TOPICS, _PARTITIONS = ("topics", "topics"), ("partitions", "partitions")
#: The list in a request whose elements are answered one by one, and the list of answers; then those in the elements.
_LISTS: dict[Key, tuple[tuple[str, str], ...]] = {
    Key.PRODUCE: (("topic_data", "responses"), ("partition_data", "partition_responses")),
    Key.FETCH: (("topics", "responses"), _PARTITIONS),
    Key.METADATA: (_TOPICS,),
    Key.LIST_OFFSETS: (_TOPICS, _PARTITIONS),
    Key.OFFSET_COMMIT: (_TOPICS, _PARTITIONS),
    Key.TXN_OFFSET_COMMIT: (_TOPICS, _PARTITIONS),
    Key.OFFSET_FOR_LEADER_EPOCH: (_TOPICS, _PARTITIONS),
    Key.DELETE_RECORDS: (_TOPICS, _PARTITIONS),
    Key.OFFSET_FETCH: (("groups", "groups"),),
    Key.FIND_COORDINATOR: (("coordinator_keys", "coordinators"),),
    Key.ADD_PARTITIONS_TO_TXN: (
        ("v3_and_below_topics", "results_by_topic_v3_and_below"),
        ("partitions", "results_by_partition"),
    ),
    Key.CREATE_TOPICS: (_TOPICS,),
    Key.DELETE_TOPICS: (("topics", "responses"),),
    Key.CREATE_PARTITIONS: (("topics", "results"),),
    Key.DESCRIBE_CONFIGS: (("resources", "results"),),
    Key.ALTER_CONFIGS: (("resources", "responses"),),
    Key.INCREMENTAL_ALTER_CONFIGS: (("resources", "responses"),),
    Key.DESCRIBE_GROUPS: (("groups", "groups"),),
    Key.DELETE_GROUPS: (("groups_names", "results"),),
    Key.DESCRIBE_TRANSACTIONS: (("transactional_ids", "transaction_states"),),
    Key.CONSUMER_GROUP_DESCRIBE: (("group_ids", "groups"),),
    Key.DESCRIBE_TOPIC_PARTITIONS: (_TOPICS,),
    Key.DESCRIBE_PRODUCERS: (_TOPICS, ("partition_indexes", "partitions")),
    Key.ELECT_LEADERS: (("topic_partitions", "replica_election_results"), ("partitions", "partition_result")),
    Key.CREATE_ACLS: (("creations", "results"),),
    Key.DELETE_ACLS: (("filters", "filter_results"),),
    Key.ALTER_REPLICA_LOG_DIRS: (("topics", "results"), _PARTITIONS),
    Key.ALTER_USER_SCRAM_CREDENTIALS: (("users", "results"),),
}
#: Fields that an answer repeats from the element of the request.
_REPEATED = frozenset(
    {
        *("name", "topic", "topic_name", "topic_id", "index", "partition", "partition_index", "partition_id"),
        *("group_id", "key", "transactional_id", "resource_type", "resource_name", "user"),
    }
)
_NAMED_OTHERWISE = {"partition_index": "partition", "topic_name": "name"}
#: Errors of Fetch that concern the whole request.
_OF_SESSIONS = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)


def refusal(key: int, request: Body, code: ErrorCode, message: str | None = None) -> Body:
    """Return the response to a request that failed as a whole. The message goes wherever the response has a place for
    it."""
    api, lists = BY_KEY[key], _LISTS.get(Key(key), ())
    if key == Key.DELETE_TOPICS and request.get("topic_names"):
        lists = (("topic_names", "responses"),)
    elif key == Key.ALTER_REPLICA_LOG_DIRS:
        request = {"topics": [topic for directory in request["dirs"] for topic in directory["topics"]]}
    elif key == Key.ALTER_USER_SCRAM_CREDENTIALS:
        request = {"users": list(dict.fromkeys(each["name"] for field in request.values() for each in field))}
    elif key == Key.FETCH and code in _OF_SESSIONS:
        request = {}
    made = _refused(api.response, request, lists, code, message)
    if key == Key.FETCH and code not in _OF_SESSIONS:
        made["error_code"] = ErrorCode.NONE
    return made


def _refused(
    fields: Fields, item: Any, lists: tuple[tuple[str, str], ...], code: ErrorCode, message: str | None
) -> Body:
    """Return a struct of a response: the error, and the answers to the elements of a list in `item`."""
    items, answers = lists[0] if lists else ("", "")
    made: Body = {}
    for field in fields:
        if field.name == answers:
            inner = field.inner if isinstance(field.inner, tuple) else ()
            made[answers] = [_refused(inner, each, lists[1:], code, message) for each in item.get(items) or ()]
        elif field.name in ("error_code", "partition_error_code"):
            made[field.name] = code
        elif field.name == "error_message":
            made[field.name] = message
        elif field.name in _REPEATED:
            made.update(_repeated(field, item))
    return made


def _repeated(field: Field, item: Any) -> Body:
    """Return a field that identifies an element of a request, as its answer repeats it."""
    if not isinstance(item, dict):  # a name or a number
        return {} if field.kind is UUID else {field.name: item}
    name = field.name if field.name in item else _NAMED_OTHERWISE.get(field.name)
    value = item.get(name)
    return {} if value is None else {field.name: value}  # earlier versions have no null


# --- requests whose elements fail one by one


async def answer_each(
    items: Iterable[Body],
    names: tuple[str, ...],
    complete: Callable[[Body, Body], Awaitable[None]],
    *,
    has_message: bool = True,
) -> list[Body]:
    """Answer each element of a list in a request. The answer begins with the fields `names` of the element, and
    `complete(element, answer)` adds the others. An error concerns only one element; its message is told if the answer
    has a field for it."""
    answers: list[Body] = []
    for item in items:
        answer: Body = {name: item[name] for name in names if name in item}
        answer["error_code"] = ErrorCode.NONE
        try:
            await complete(item, answer)
        except errors.SawlogError as error:
            answer["error_code"] = code_of(error)
            if has_message:
                answer["error_message"] = message_of(error)
        answers.append(answer)
    return answers


async def answer_partitions(
    topics: Iterable[Body],
    names: tuple[str, str],
    lists: tuple[str, str],
    complete: Callable[[str, Body, Body], Awaitable[None]],
    *,
    has_message: bool = True,
) -> list[Body]:
    """Answer for each partition of each topic in a request. `names` are the fields with the name of a topic and the
    number of a partition; `lists` are the list of partitions in a topic of the request, and the list of answers.
    `complete(topic, partition, answer)` adds to the answer, as for `answer_each`."""
    answers: list[Body] = []
    for topic in topics:

        async def complete_one(asked: Body, answer: Body, name: str = topic[names[0]]) -> None:
            await complete(name, asked, answer)

        items = [each if isinstance(each, dict) else {names[1]: each} for each in topic[lists[0]]]
        parts = await answer_each(items, names[1:], complete_one, has_message=has_message)
        answers.append({names[0]: topic[names[0]], lists[1]: parts})
    return answers
