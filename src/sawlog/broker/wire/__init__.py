"""Kafka's wire protocol, sans-io: whole requests and responses, from bytes to dicts and back.

```python
from sawlog.broker import wire

header = wire.parse_header(frame)                       # a request without its length
body = wire.decode_request(header, frame)               # {"topics": [{"name": "orders", ...}], ...}
buffers = wire.encode_response(header, {"topics": [...]})    # length, header and body, ready to be sent

buffers = wire.encode_request(wire.Key.METADATA, 9, correlation_id=7, client_id="me", body={"topics": None})
correlation_id, body = wire.decode_response(wire.Key.METADATA, 9, frame)
```

`messages` has the fields of each request and response, in the notation of `schema`; `codec` compiles a table and a
version into functions; this module adds length and header:

```
request    size i32 | api_key i16 | version i16 | correlation_id i32 | client_id string | tags, if flexible | body
response   size i32 | correlation_id i32 | tags, if flexible and not ApiVersions | body
token      size i32 | bytes of a SASL mechanism, in both directions, after version 0 of SaslHandshake
```

The size counts the bytes that follow it. A frame to decode excludes the size; encoded buffers include it. `client_id`
may be null and has a 16-bit length even in flexible versions. The header of an ApiVersions response never has tags: the
client does not know the broker's versions yet.

Values are plain dicts: Kafka's field names in snake_case, lists for arrays, 16 bytes for a uuid. `records` stay views
of the received frame and are sent without a copy. A decoded dict has every field of every version; a field that the
version on the wire lacks has its default. A dict to encode may omit fields with their default; fields that the version
lacks are not written; a key that no version knows is an error.

Invalid bytes raise `Malformed`, in time and memory bounded by their size. A message of empty structs takes a hundred
times its size in memory once decoded, so the size of a request without records is limited. The only state is the cache
of compiled functions: everything is thread-safe.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from struct import Struct
from typing import Final, Literal, NamedTuple, TypeAlias

from ...errors import Malformed as Malformed
from ...errors import Unencodable as Unencodable
from ...errors import UnsupportedVersion as UnsupportedVersion
from .codec import UNREADABLE, Buffer, Decoder, Encoder, Sink, decoder, encoder, skip_tags
from .messages import BY_KEY as BY_KEY
from .schema import STRUCT, Fields
from .schema import Api as Api
from .schema import Body as Body
from .schema import Key as Key

_REQUEST: Final = Struct(">hhih")  # the last one is the length of client_id
_RESPONSE: Final = Struct(">i")
_SIZE: Final = Struct(">i")

#: The largest request of an API other than Produce. 100,000 partitions of a commit take some 3 MB.
LARGEST_WITHOUT_RECORDS: Final = 8 << 20
#: Maximum number of array elements in a request, in total. A commit of 100,000 partitions has that many.
ELEMENTS_MAX: Final = 200_000

#: A nonzero error code and its message.
FoundError: TypeAlias = tuple[int, str | None]
_Kind: TypeAlias = Literal["request", "response"]
_ErrorFinder: TypeAlias = Callable[[Body, list[FoundError]], None]


class RequestHeader(NamedTuple):
    """The header of a request. `body_at` is the position of the body in the frame."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def parse_header(frame: memoryview) -> RequestHeader:
    """Parse the header of a request. Its API and version may be unknown; the caller handles that."""
    try:
        api_key, version, correlation_id, length = _REQUEST.unpack_from(frame)
        position = _REQUEST.size
        client_id = None
        if length >= 0:
            client_id = str(frame[position : position + length], "utf-8")
            position += length
        elif length != -1:
            raise Malformed(f"client_id has the negative length {length}")
        if position > len(frame):
            raise Malformed("client_id ends after the request")
        api = BY_KEY.get(api_key)
        if api is not None and version in api.flexible_versions:
            position = position + 1 if frame[position] == 0 else skip_tags(frame, position)
    except UNREADABLE as error:
        raise Malformed(f"the request ends within its header, or client_id is not text: {error}") from error
    return RequestHeader(api_key, version, correlation_id, client_id, position)


def decode_request(header: RequestHeader, frame: memoryview) -> Body:
    """Return the body of a request as a dict."""
    if len(frame) > LARGEST_WITHOUT_RECORDS and header.api_key != Key.PRODUCE:
        raise Malformed(f"a request of {len(frame):,} bytes without records; the most is {LARGEST_WITHOUT_RECORDS:,}")
    return _decoder(header.api_key, header.version, "request")(frame, header.body_at)


def encode_response(header: RequestHeader, body: Body) -> list[Buffer]:
    """Return a response to the request with that header, ready to be sent.

    An ApiVersions request of an unknown version is answered in version 0, which every client understands.
    """
    api_key, version, correlation_id = header[:3]
    api = BY_KEY.get(api_key)
    if api_key == Key.API_VERSIONS and api is not None and version not in api.versions:
        version = 0
    encode = _encoder(api_key, version, "response")
    sink = Sink(b"\0\0\0\0" + _RESPONSE.pack(correlation_id))
    if api is not None and _tagged_header(api, version):
        sink.append(0)
    encode(sink, body)
    return _finish(sink)


def errors_in(header: RequestHeader, body: Body) -> list[FoundError]:
    """Return every error code of a response that this version of the response can carry, except zero."""
    find = _response_error_finder(header.api_key, header.version)
    found: list[FoundError] = []
    if find is not None:
        find(body, found)
    return found


@cache
def _response_error_finder(key: int, version: int) -> _ErrorFinder | None:
    api = BY_KEY[key]
    return _error_finder(api.response, version if version in api.versions else 0)


def _error_finder(fields: Fields, version: int) -> _ErrorFinder | None:
    """Return a function that collects the error codes of a struct; None if it has none."""
    present = [field for field in fields if field.exists_in(version)]
    codes = [field.name for field in present if field.name.endswith("error_code")]
    inner = [
        (field.name, field.kind is STRUCT, find)
        for field in present
        if isinstance(field.inner, tuple) and (find := _error_finder(field.inner, version)) is not None
    ]
    if not codes and not inner:
        return None

    def collect(body: Body, found: list[FoundError]) -> None:
        for name in codes:
            if code := body.get(name):
                found.append((code, body.get("error_message")))  # noqa: PERF401  a comprehension is slower when empty
        for name, is_single, find in inner:
            if value := body.get(name):
                for each in (value,) if is_single else value:
                    find(each, found)

    return collect


def encode_token(token: bytes) -> list[Buffer]:
    """Return a message of a SASL mechanism that has no header, ready to be sent."""
    return [_SIZE.pack(len(token)) + token]


def encode_request(key: int, version: int, correlation_id: int, client_id: str | None, body: Body) -> list[Buffer]:
    """Return a request, ready to be sent."""
    encode = _encoder(key, version, "request")
    name = b"" if client_id is None else client_id.encode()
    if len(name) > 0x7FFF:
        raise Unencodable(f"client_id has {len(name)} bytes; at most 32767 are possible")
    sink = Sink(
        b"\0\0\0\0" + _REQUEST.pack(key, version, correlation_id, -1 if client_id is None else len(name)) + name
    )
    if BY_KEY[key].flexible(version):
        sink.append(0)
    encode(sink, body)
    return _finish(sink)


def decode_response(key: int, version: int, frame: memoryview) -> tuple[int, Body]:
    """Return the correlation id and the body of a response to a request of that API and version."""
    api, decode = _known(key, version), _decoder(key, version, "response")
    try:
        (correlation_id,) = _RESPONSE.unpack_from(frame)
        position = skip_tags(frame, 4) if _tagged_header(api, version) else 4
    except UNREADABLE as error:
        raise Malformed(f"the response ends within its header: {error}") from error
    return correlation_id, decode(frame, position)


@cache
def _decoder(key: int, version: int, kind: _Kind) -> Decoder:
    api = _known(key, version)
    elements_max = ELEMENTS_MAX if kind == "request" else sys.maxsize
    return decoder(getattr(api, kind), version, flexible=api.flexible(version), elements_max=elements_max)


@cache
def _encoder(key: int, version: int, kind: _Kind) -> Encoder:
    try:
        api = _known(key, version)
    except UnsupportedVersion as error:
        raise Unencodable(str(error)) from None
    return encoder(getattr(api, kind), version, flexible=api.flexible(version), what=f"{api.name} {kind}")


def _known(key: int, version: int) -> Api:
    api = BY_KEY.get(key)
    if api is None or version not in api.versions:
        raise UnsupportedVersion(f"{api.name if api is not None else f'API {key}'} version {version} is not known")
    return api


def _tagged_header(api: Api, version: int) -> bool:
    return version in api.flexible_versions and api.key != Key.API_VERSIONS


def _finish(sink: Sink) -> list[Buffer]:
    _SIZE.pack_into(sink, 0, len(sink) + sink.inserted_bytes - 4)
    return sink.buffers()


# --- errors


class ErrorCode(IntEnum):
    """The number on the wire, under the name that Kafka's documentation uses."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133
