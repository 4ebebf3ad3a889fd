"""What consumers put into the opaque bytes of the classic protocol: their topics, and what they were assigned.

```
subscription    int16 version · array of topics (string) · bytes user data · ... (later versions append)
assignment      int16 version · array of (topic: string, partitions: array of int32) · bytes user data · ...
string          int16 length · UTF-8;  array and bytes: int32 length · elements
```

The coordinator passes these on unread. It looks into them only to say who reads a topic, whether a restarted static
member still wants what it wanted, and in a group of both protocols (`classic_members`). Other users of the protocol
(Kafka Connect) put other things there.

The members of a group of Kafka's classic protocol, and what they ask and are told.

`Roster`: who is in a group, who leads it, and which protocols they have in common. No time, no states.

At every moment all members have a protocol in common: `is_compatible` is asked before one is added or changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct, error

from ...errors import Malformed
from ...store.assignment import Share
from ..wire.errors import ErrorCode
from ..wire.messages.groups import ASSIGNMENT, SUBSCRIPTION, VERSIONS
from ..wire.reading import decoder
from ..wire.schema import Fields
from .settings import Alarm

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


#: The protocols that a member supports (the names of its assignors) with its subscription for each, best first.
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a JoinGroup request says."""

    member_id: str
    #: group.instance.id: of a static member, which keeps its partitions while it restarts.
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    #: Whether a new member is first told its id, and joins with it (version 4 on): a client that gave up waiting is
    #: then not taken for one more member when it tries again.
    knows_ids: bool = True
    #: Whether the leader can be told not to assign (version 9 on).
    may_skip: bool = True


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a JoinGroup request."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    #: For the leader: id, instance id and subscription of each member.
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """What a SyncGroup request says."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    #: Of the leader: what each member gets.
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to a SyncGroup request."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True)
class Member:
    """One member."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    #: Rings when its session has expired.
    session: Alarm = field(repr=False)
    assignment: bytes = b""
    #: Whether it has not been in a generation yet.
    is_new: bool = True
    #: Whether it was told its id before it joined.
    knows_id: bool = True
    #: Whether it was told of the current generation, and has not asked for its assignment since.
    owes_sync: bool = False
    #: Waiting for the next generation; for its assignment.
    on_joined: Callable[[Joined], None] | None = None
    on_synced: Callable[[Synced], None] | None = None

    def update(self, request: JoinRequest) -> None:
        """It joins again, with these."""
        self.client_id, self.client_host = request.client_id, request.client_host
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.protocols = request.protocols

    @property
    def is_waiting(self) -> bool:
        """Whether one of its requests is waiting for the others: it sends no heartbeats meanwhile."""
        return self.on_joined is not None or self.on_synced is not None

    def alive(self) -> None:
        """It was heard of: its session begins anew."""
        self.session.set(self.session_timeout_ms)

    def supports(self, protocol: str) -> bool:
        """Whether it can use that protocol."""
        return any(name == protocol for name, _ in self.protocols)

    def subscription(self, protocol: str | None) -> bytes:
        """What it says for a protocol; nothing if it does not know it."""
        return next((said for name, said in self.protocols if name == protocol), b"")

    def answer_join(self, answer: Joined) -> None:
        """Answer its JoinGroup request, if one is waiting."""
        waiting, self.on_joined = self.on_joined, None
        if waiting is not None:
            waiting(answer)

    def answer_sync(self, answer: Synced) -> None:
        """Answer its SyncGroup request, if one is waiting."""
        waiting, self.on_synced = self.on_synced, None
        if waiting is not None:
            waiting(answer)

    def refuse(self, error: ErrorCode) -> None:
        """Answer whatever is waiting with an error."""
        self.answer_join(Joined(error, self.id))
        self.answer_sync(Synced(error))


class Roster:
    """The members of one group, in the order in which they joined."""

    def __init__(self) -> None:
        #: Of all members; stays when the last one leaves.
        self.protocol_type: str | None = None
        #: The id of the member that assigns partitions.
        self.leader: str | None = None
        self._members: dict[str, Member] = {}
        #: Ids of static members, by their instance id.
        self._static: dict[str, str] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def static_id(self, instance_id: str | None) -> str | None:
        """The member id of a static member; None if there is none."""
        return None if instance_id is None else self._static.get(instance_id)

    def add(self, member: Member, protocol_type: str) -> None:
        """Add one."""
        if not self._members:
            self.protocol_type = protocol_type
        self._members[member.id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.id

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member a new id; it keeps its place, also as leader."""
        if self.leader == member.id:
            self.leader = member_id
        member.id = member_id
        self._members = {each.id: each for each in self._members.values()}
        self._static[member.instance_id or ""] = member_id

    def remove(self, member: Member) -> None:
        """Remove one. If it led, the one that joined first leads."""
        del self._members[member.id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self._members), None)

    def clear(self) -> None:
        """Remove all."""
        self._members, self._static, self.leader = {}, {}, None

    def error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether that is a member. A static one is known by its instance id: the last that joined with it counts."""
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    def is_compatible(self, request: JoinRequest) -> bool:
        """Whether who joins has a protocol in common with all others."""
        if not request.protocol_type or not request.protocols:
            return False
        if self._members and request.protocol_type != self.protocol_type:
            return False
        me = request.member_id or self.static_id(request.instance_id)
        others = [each for each in self if each.id != me]
        return any(all(each.supports(name) for each in others) for name, _ in request.protocols)

    def elect_protocol(self) -> str:
        """Of the protocols that all support, the one that most prefer; of several, the one the leader names first."""
        votes: dict[str, int] = {}
        everyone = list(self)
        for member in everyone:
            preferred = next(name for name, _ in member.protocols if all(each.supports(name) for each in everyone))
            votes[preferred] = votes.get(preferred, 0) + 1
        leader = self._members.get(self.leader or "", everyone[0])
        order = [name for name, _ in leader.protocols]
        return max(votes, key=lambda name: (votes[name], -order.index(name)))

    def topics(self) -> frozenset[str] | None:
        """The topics that the members read; None if they do not say, because they are not consumers."""
        found: set[str] = set()
        for member in self:
            for _, subscription in member.protocols:
                topics = subscribed_topics(subscription) if self.protocol_type == CONSUMER else None
                if topics is None:
                    return None
                found |= topics
        return frozenset(found)
