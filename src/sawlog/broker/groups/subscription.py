"""What consumers put into the opaque bytes of the classic protocol: their topics, and what they were assigned.

```
subscription    int16 version · array of topics (string) · bytes user data · ... (later versions append)
assignment      int16 version · array of (topic: string, partitions: array of int32) · bytes user data · ...
string          int16 length · UTF-8;  array and bytes: int32 length · elements
```

The coordinator passes these on unread. It looks into them only to say who reads a topic, whether a restarted static
member still wants what it wanted, and in a group of both protocols (`classic_members`). Other users of the protocol
(Kafka Connect) put other things there.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, error

from ...errors import Malformed
from ...topics.groups.assignment import Share
from ..wire.messages.embedded import ASSIGNMENT, SUBSCRIPTION, VERSIONS
from ..wire.reading import decoder
from ..wire.schema import Fields

#: The protocol type of consumers.
CONSUMER = "consumer"

_INT16, _INT32 = Struct(">h"), Struct(">i")


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics of a subscription; None if it is not one."""
    try:
        (count,) = _INT32.unpack_from(subscription, 2)
        position, topics = 6, set[str]()
        if not 0 <= count <= len(subscription):
            return None
        for _ in range(count):
            (length,) = _INT16.unpack_from(subscription, position)
            position += 2
            if not 0 <= length <= len(subscription) - position:
                return None
            topics.add(str(subscription[position : position + length], "utf-8"))
            position += length
    except (error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def owned_partitions(subscription: bytes) -> list[Share]:
    """What a member says that it still owns; nothing if it does not say."""
    return _partitions(SUBSCRIPTION, "owned_partitions", subscription)


def assigned_partitions(assignment: bytes) -> list[Share]:
    """The partitions of an assignment; none if it is not one."""
    return _partitions(ASSIGNMENT, "assigned_partitions", assignment)


def _partitions(fields: Fields, name: str, data: bytes) -> list[Share]:
    try:
        (version,) = _INT16.unpack_from(data)
        found = decoder(fields, min(max(version, 0), VERSIONS[-1]), flexible=False)(memoryview(data), 2)[name]
    except (error, Malformed):
        return []
    return [(each["topic"], number) for each in found for number in each["partitions"]]


def same_topics(before: bytes, after: bytes) -> bool:
    """Whether two subscriptions are to the same topics. The rest differs when a consumer restarts, because it then
    owns nothing; that does not change what others get."""
    if before == after:
        return True
    topics = subscribed_topics(before)
    return topics is not None and topics == subscribed_topics(after)


def encode_subscription(topics: Iterable[str]) -> bytes:
    """A subscription of version 0."""
    names = [each.encode() for each in topics]
    parts = [_INT16.pack(len(name)) + name for name in names]
    return _INT16.pack(0) + _INT32.pack(len(names)) + b"".join(parts) + _INT32.pack(-1)


def encode_assignment(shares: Iterable[Share]) -> bytes:
    """An assignment of version 0."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(shares):
        topics.setdefault(topic, []).append(partition)
    made = _INT16.pack(0) + _INT32.pack(len(topics))
    for topic, partitions in topics.items():
        name = topic.encode()
        made += _INT16.pack(len(name)) + name + Struct(f">i{len(partitions)}i").pack(len(partitions), *partitions)
    return made + _INT32.pack(-1)
