"""A broker's error codes as sawlog's own errors, so that a program handles a store and a broker in the same way."""

from __future__ import annotations

from ... import errors
from ...errors import BrokerRefused, SawlogError
from ..wire.errors import ErrorCode

#: Errors that say the same as one of ours.
_OURS: dict[int, type[SawlogError]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: errors.TopicNotFound,
    ErrorCode.UNKNOWN_TOPIC_ID: errors.TopicNotFound,
    ErrorCode.TOPIC_ALREADY_EXISTS: errors.TopicExists,
    ErrorCode.INVALID_TOPIC_EXCEPTION: errors.InvalidTopicName,
    ErrorCode.INVALID_CONFIG: errors.InvalidConfig,
    ErrorCode.INVALID_PARTITIONS: errors.InvalidConfig,
    ErrorCode.INVALID_REPLICATION_FACTOR: errors.InvalidConfig,
    ErrorCode.INVALID_GROUP_ID: errors.InvalidConfig,
    ErrorCode.CORRUPT_MESSAGE: errors.CorruptBatch,
    ErrorCode.MESSAGE_TOO_LARGE: errors.RecordTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: errors.RecordTooLarge,
    ErrorCode.INVALID_RECORD: errors.InvalidRecord,
    ErrorCode.INVALID_TIMESTAMP: errors.InvalidRecord,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: errors.UnsupportedCompression,
    ErrorCode.GROUP_ID_NOT_FOUND: errors.GroupNotFound,
    ErrorCode.NON_EMPTY_GROUP: errors.GroupActive,
    ErrorCode.UNKNOWN_MEMBER_ID: errors.GroupActive,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: errors.GroupActive,
}

#: What a client tries again after a look at the metadata. A topic that is unknown is not waited for.
_LATER = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise if a broker answered with an error: with its own message, if it sent one, else with `what` failed."""
    if code != ErrorCode.NONE:
        raise refused(code, what, message)


def refused(code: int, what: str, message: str | None = None) -> SawlogError:
    """The error for a code."""
    name = _name(code)
    text = message or f"{what}: {name.lower().replace('_', ' ')}"
    ours = _OURS.get(code)
    return BrokerRefused(f"{text} ({name})", code=code, name=name) if ours is None else ours(text)


def is_temporary(error: SawlogError) -> bool:
    """Whether the same request may succeed soon."""
    return isinstance(error, BrokerRefused) and error.code in _LATER


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
