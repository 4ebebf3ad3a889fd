"""Handle requests: one module per family of APIs, and here the parts that all of them share.

`@handles` registers the handler of an API. It gets a `Context` and the decoded request, and returns the response or an
awaitable of it; None sends no response. Handlers run in the event loop's thread; calls that may block on the disk go
through `Broker.run`.

**Authorization.** The arguments of `@handles` are the operations that a request requires as a whole, which
`call_authorized` checks before it calls the handler. Most requests name several resources, and those that the client
may not use get an error of their own: the handler checks them with `Context.require`, and its docstring says what they
require. All follow Kafka's list of operations and resources by protocol. Lists leave out what the client may not
describe; asking for such a resource by name is an error, whether it exists or not. A broker without bindings checks
nothing.

**Errors.** A handler raises `KafkaError`, or an error of the library, which `code_of` translates. A response without an
error code of its own carries the code in each of its elements (`refusal`), so that every client understands it.
`answer_each` answers the elements of a request one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ... import errors
from ...errors import SawlogError
from ..security.acls import CLUSTER_NAME, OPERATIONS, ClientIdentity, Operation, Resource, word
from ..security.credentials import ANONYMOUS
from ..wire import BY_KEY, Body, ErrorCode, Key
from ..wire.schema import UUID, Fields

if TYPE_CHECKING:
    from ..broker import Broker
    from ..config import Address
    from ..security.authentication import Session
    from ..wire import RequestHeader

_logger = logging.getLogger("sawlog.broker")

#: Errors of clients that may not use a resource.
_DENIED = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

#: Prefix of IPv4 addresses on a dual-stack listener.
_MAPPED = "::ffff:"

Answer = Body | None | Awaitable[Body | None]


@dataclass(frozen=True, slots=True)
class Context:
    """The client and the broker of a request."""

    broker: Broker
    header: RequestHeader
    client_host: str
    #: Principal of the client, as ACLs name it.
    principal: str = ANONYMOUS
    #: Authentication state of the connection.
    session: Session | None = None

    @property
    def advertised(self) -> Address:
        """Address that clients should connect to."""
        return self.broker.server.advertised

    @property
    def client(self) -> ClientIdentity:
        """The client, as bindings name it."""
        return ClientIdentity(self.principal, self.client_host.removeprefix(_MAPPED))

    def allows(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> bool:
        """Return whether the client may perform an operation. For responses that omit denied resources silently."""
        authorizer = self.broker.authorizer
        return authorizer.is_open or authorizer.allows(self.client, operation, resource, name)

    def sees(self, topic: str) -> bool:
        """Return whether the client may describe a topic."""
        return self.allows(Operation.DESCRIBE, Resource.TOPIC, topic)

    def operations(self, resource: Resource, name: str = CLUSTER_NAME) -> int:
        """Return the operations that the client may perform on a resource, as the bit set of Kafka's responses."""
        return sum(1 << each for each in OPERATIONS[resource] if self.allows(each, resource, name))

    def denial(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> KafkaError | None:
        """Return the error if the client may not perform an operation, and log it."""
        if self.broker.authorizer.is_open or self.allows(operation, resource, name):
            return None
        api = BY_KEY[self.header.api_key].name
        reason = f"{self.principal} is not allowed: {api} needs {word(operation)} on the {word(resource)}"
        _logger.info("%s %r (from %s)", reason, name, self.client.host)
        return KafkaError(_DENIED[resource], reason)

    def require(self, operation: Operation, resource: Resource, name: str = CLUSTER_NAME) -> None:
        """Raise `KafkaError` unless the client may perform an operation."""
        error = self.denial(operation, resource, name)
        if error is not None:
            raise error


Handler = Callable[[Context, Body], Answer]
_H = TypeVar("_H", bound=Handler)

#: The handler of each API.
HANDLERS: Final[dict[int, Handler]] = {}


class Requirement(NamedTuple):
    """An operation on the resource that a field of the request names, or on the cluster if `field` is None. Null in the
    field requires nothing."""

    operation: Operation
    resource: Resource = Resource.CLUSTER
    field: str | None = None


READ_GROUP = Requirement(Operation.READ, Resource.GROUP, "group_id")
WRITE_TRANSACTION = Requirement(Operation.WRITE, Resource.TRANSACTIONAL_ID, "transactional_id")
DESCRIBE_CLUSTER, ALTER_CLUSTER = Requirement(Operation.DESCRIBE), Requirement(Operation.ALTER)


_REQUIREMENTS: Final[dict[int, tuple[Requirement, ...]]] = {}


def handles(key: Key, *requirements: Requirement) -> Callable[[_H], _H]:
    """Register a function as the handler of an API, for clients that meet all requirements."""

    def register(handler: _H) -> _H:
        HANDLERS[key], _REQUIREMENTS[key] = handler, requirements
        return handler

    return register


def call_authorized(handler: Handler, context: Context, request: Body) -> Answer:
    """Call a handler. Raise `KafkaError` if the client does not meet the requirements."""
    for operation, resource, field in _REQUIREMENTS[context.header.api_key]:
        name = CLUSTER_NAME if field is None else request[field]
        if name is not None:
            context.require(operation, resource, name)
    return handler(context, request)


# --- errors


class KafkaError(SawlogError):
    """An error with Kafka's error code, of a whole request or of one of its elements."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        self.code = code
        super().__init__(message or code.name)


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
    ErrorCode.TRANSACTION_ABORTABLE: (ErrorCode.INVALID_TXN_STATE, {Key.PRODUCE: 11, Key.TXN_OFFSET_COMMIT: 4}),
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


# --- responses to the elements of a request

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
    Key.ALTER_PARTITION_REASSIGNMENTS: (("topics", "responses"), _PARTITIONS),
    Key.DESCRIBE_QUORUM: (_TOPICS, _PARTITIONS),
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
    Key.DESCRIBE_USER_SCRAM_CREDENTIALS: (("users", "results"),),
    Key.ALTER_USER_SCRAM_CREDENTIALS: (("users", "results"),),
}
#: Fields that an answer repeats from the element of the request.
_REPEATED = frozenset(
    {
        *("name", "topic", "topic_name", "topic_id", "index", "partition", "partition_index", "partition_id"),
        *("group_id", "key", "transactional_id", "resource_type", "resource_name", "user"),
    }
)
_NAMED_OTHERWISE = {"partition_index": "partition", "topic_name": "name", "user": "name"}
#: Errors of Fetch that concern the whole request.
_OF_SESSIONS = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)

#: An element of a request, its answer, and the element that contains it.
_Element = tuple[Any, Body, Any]


def refusal(key: int, request: Body, code: ErrorCode, message: str | None = None) -> Body:
    """Return the response to a request that failed as a whole. The message goes wherever the response has a place for
    it."""
    if key == Key.DELETE_TOPICS and request.get("topic_names"):
        request = {"topics": request["topic_names"]}
    elif key == Key.ALTER_REPLICA_LOG_DIRS:
        request = {"topics": [topic for directory in request["dirs"] for topic in directory["topics"]]}
    elif key == Key.ALTER_USER_SCRAM_CREDENTIALS:
        request = {"users": list(dict.fromkeys(each["name"] for field in request.values() for each in field))}
    elif key == Key.FETCH and code in _OF_SESSIONS:
        request = {}
    made, _ = _response(key, request, code, message)
    if key == Key.FETCH and code not in _OF_SESSIONS:
        made["error_code"] = ErrorCode.NONE
    return made


async def answer_each(key: Key, request: Body, complete: Callable[[Any, Body], Awaitable[None]]) -> Body:
    """Answer the elements of a request one by one. `complete(element, answer)` adds to an answer, which already has the
    fields that identify the element. An error concerns only one element."""
    made, elements = _response(key, request, ErrorCode.NONE, None)
    for asked, answer, _ in elements:
        try:
            await complete(asked, answer)
        except SawlogError as error:
            _fail(answer, error)
    return made


async def answer_partitions(key: Key, request: Body, complete: Callable[[str, Any, Body], Awaitable[None]]) -> Body:
    """Answer for each partition of each topic in a request: `complete(topic, partition, answer)`, as `answer_each`."""
    made, elements = _response(key, request, ErrorCode.NONE, None)
    for asked, answer, topic in elements:
        try:
            await complete(topic.get("name") or topic.get("topic") or topic.get("topic_name", ""), asked, answer)
        except SawlogError as error:
            _fail(answer, error)
    return made


def _fail(answer: Body, error: SawlogError) -> None:
    answer["error_code"] = code_of(error)
    if "error_message" in answer:
        answer["error_message"] = message_of(error)


def _response(key: int, request: Body, code: ErrorCode, message: str | None) -> tuple[Body, list[_Element]]:
    """Return a response with the same error everywhere, and the elements of the request with their answers in it."""
    elements: list[_Element] = []

    def answer(shape: _Shape, item: Any, parent: Any) -> Body:
        made: Body = dict.fromkeys(shape.codes, code)
        if shape.has_message:
            made["error_message"] = message
        for name, other, is_id in shape.repeated:
            if not isinstance(item, dict):  # a name or a number
                if not is_id:
                    made[name] = item
            elif (value := item.get(name, item.get(other))) is not None:  # earlier versions have no null
                made[name] = value
        if shape.inner is None:
            elements.append((item, made, parent))
        else:
            made[shape.answers] = [answer(shape.inner, each, item) for each in item.get(shape.items) or ()]
        return made

    return answer(_shape(key), request, None), elements


class _Shape(NamedTuple):
    """A struct of a response."""

    #: Fields with error codes.
    codes: list[str]
    has_message: bool
    #: Fields that repeat the element of the request, their name there if it differs, and True for an id.
    repeated: list[tuple[str, str, bool]]
    #: The list in the request, and the list of answers to its elements.
    items: str
    answers: str
    inner: _Shape | None


@cache
def _shape(key: int) -> _Shape:
    def shape(fields: Fields, lists: tuple[tuple[str, str], ...]) -> _Shape:
        (items, answers), *rest = lists or [("", "")]
        names = {field.name: field for field in fields}
        inner = names[answers].inner if lists else None
        return _Shape(
            [name for name in ("error_code", "partition_error_code") if name in names],
            "error_message" in names,
            [(name, _NAMED_OTHERWISE.get(name, ""), names[name].kind is UUID) for name in names if name in _REPEATED],
            items,
            answers,
            shape(inner, tuple(rest)) if isinstance(inner, tuple) else None,
        )

    return shape(BY_KEY[key].response, _LISTS.get(Key(key), ()))
