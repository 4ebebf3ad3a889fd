"""The committed offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete.

Topics have names up to version 9, ids from version 10 on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...store.base import TopicPartition
from ...store.groups import Committed
from ..groups.commits import NewOffset
from ..wire.apis import Key
from ..wire.errors import ErrorCode
from . import Body, Context

_BY_ID = 10


class _Names:
    """Names of the topics in a request; unknown topics have none."""

    def __init__(self, ids: Mapping[bytes, str] | None) -> None:
        self._ids = ids

    @classmethod
    async def of(cls, context: Context) -> _Names:
        """For one request."""
        if context.header.version < _BY_ID:
            return cls(None)
        return cls({id: name for name, id in (await context.broker.groups.topic_ids()).items()})

    def get(self, topic: Body) -> str | None:
        """The name of a topic; None if it was given by an id that is not known."""
        name: str = topic["name"]
        return name if self._ids is None else self._ids.get(bytes(topic["topic_id"]))

    @property
    def unknown(self) -> ErrorCode:
        """What is said of a topic without a name."""
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if self._ids is None else ErrorCode.UNKNOWN_TOPIC_ID


async def offset_commit(context: Context, request: Body) -> Body:
    """Commit offsets durably."""
    topics: Sequence[Body] = request["topics"]
    names = await _Names.of(context)
    offsets = {
        (name, each["partition_index"]): NewOffset(
            each["committed_offset"], each["committed_leader_epoch"], each["committed_metadata"] or ""
        )
        for topic in topics
        if (name := names.get(topic)) is not None
        for each in topic["partitions"]
    }
    codes = await context.broker.groups.commit(
        request["group_id"],
        offsets,
        member_id=request["member_id"],
        instance_id=request["group_instance_id"],
        generation=request["generation_id_or_member_epoch"],
    )
    return {"topics": [_codes(topic, names.get(topic), codes, names.unknown) for topic in topics]}


def _codes(topic: Body, name: str | None, codes: Mapping[TopicPartition, ErrorCode], unknown: ErrorCode) -> Body:
    """Return the error codes of a topic's partitions."""
    return {
        **{key: topic[key] for key in ("name", "topic_id") if key in topic},
        "partitions": [
            {
                "partition_index": each["partition_index"],
                "error_code": unknown if name is None else codes.get((name, each["partition_index"]), unknown),
            }
            for each in topic["partitions"]
        ],
    }


async def offset_fetch(context: Context, request: Body) -> Body:
    """Return the offsets of one group, or of several from version 8 on."""
    version, stable = context.header.version, request["require_stable"]
    if version >= 8:
        return {"groups": [await _fetched(context, each, stable) for each in request["groups"]]}
    group = {"group_id": request["group_id"], "topics": request["topics"], "member_id": None, "member_epoch": -1}
    found = await _fetched(context, group, stable)
    if version >= 2 or found["error_code"] is ErrorCode.NONE:
        return {"error_code": found["error_code"], "topics": found["topics"]}
    return {  # these versions have an error code for each partition only
        "topics": [
            {
                "name": topic["name"],
                "partitions": [_answer(number, None, found["error_code"]) for number in topic["partition_indexes"]],
            }
            for topic in request["topics"]
        ]
    }


async def _fetched(context: Context, group: Body, stable: bool) -> Body:
    groups, name = context.broker.groups, group["group_id"]
    error = groups.fetch_error(name, group["member_id"], group["member_epoch"])
    if error is not ErrorCode.NONE:
        return {"group_id": name, "topics": [], "error_code": error}
    wanted: Sequence[Body] | None = group["topics"]
    if wanted is None:
        topics = await _all_offsets(context, name, stable)
    else:
        names = await _Names.of(context)
        shares = [
            (found, number)
            for topic in wanted
            if (found := names.get(topic)) is not None
            for number in topic["partition_indexes"]
        ]
        unstable = groups.pending_offsets(name) if stable else frozenset[TopicPartition]()
        offsets = await groups.fetch(name, shares)
        topics = [_offsets(topic, names.get(topic), offsets, unstable, names.unknown) for topic in wanted]
    return {"group_id": name, "topics": topics, "error_code": ErrorCode.NONE}


async def _all_offsets(context: Context, name: str, stable: bool) -> list[Body]:
    """Return all committed offsets of a group."""
    groups = context.broker.groups
    unstable = groups.pending_offsets(name) if stable else frozenset[TopicPartition]()
    found = await groups.fetch(name, None)
    made: dict[str, Body] = {}
    for topic, number in sorted(found.keys() | unstable):
        entry = made.setdefault(topic, {"name": topic, "partitions": []})
        entry["partitions"].append(_read(number, (topic, number), found, unstable))
    if context.header.version >= _BY_ID:
        ids = await groups.topic_ids(made)
        return [{**entry, "topic_id": ids[topic]} for topic, entry in made.items() if topic in ids]
    return list(made.values())


def _offsets(
    topic: Body,
    name: str | None,
    found: Mapping[TopicPartition, Committed],
    unstable: frozenset[TopicPartition],
    unknown: ErrorCode,
) -> Body:
    return {
        **{key: topic[key] for key in ("name", "topic_id") if key in topic},
        "partitions": [
            _answer(number, None, unknown) if name is None else _read(number, (name, number), found, unstable)
            for number in topic["partition_indexes"]
        ],
    }


def _read(
    number: int, share: TopicPartition, found: Mapping[TopicPartition, Committed], unstable: frozenset[TopicPartition]
) -> Body:
    if share in unstable:
        return _answer(number, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    return _answer(number, found.get(share), ErrorCode.NONE)


def _answer(number: int, committed: Committed | None, code: ErrorCode) -> Body:
    if committed is None:
        return {"partition_index": number, "committed_offset": -1, "metadata": "", "error_code": code}
    epoch = committed.leader_epoch if committed.told_epoch is None else committed.told_epoch
    return {
        "partition_index": number,
        "committed_offset": committed.offset if committed.told_offset is None else committed.told_offset,
        "committed_leader_epoch": epoch,
        "metadata": committed.metadata,
        "error_code": code,
    }


async def offset_delete(context: Context, request: Body) -> Body:
    """Delete offsets of topics that the group does not read."""
    topics: Sequence[Body] = request["topics"]
    shares = [(topic["name"], each["partition_index"]) for topic in topics for each in topic["partitions"]]
    code, codes = await context.broker.groups.delete_offsets(request["group_id"], shares)
    if code is not ErrorCode.NONE:
        return {"error_code": code, "topics": []}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return {"error_code": code, "topics": [_codes(topic, topic["name"], codes, unknown) for topic in topics]}


HANDLERS = {
    Key.OFFSET_COMMIT: offset_commit,
    Key.OFFSET_FETCH: offset_fetch,
    Key.OFFSET_DELETE: offset_delete,
}
