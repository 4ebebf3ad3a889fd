"""Members of a classic group: their requests, responses, subscriptions and timers.

`GroupMembers` is the membership of a group: its leader, its static members and the protocols that all members support.
It has no timers and no states. All members always have a protocol in common: check `is_compatible` before adding or
changing one.

The classic protocol carries subscriptions and assignments as opaque bytes:

```
subscription    int16 version · array of topics (string) · bytes user data · ... (later versions append)
assignment      int16 version · array of (topic: string, partitions: array of int32) · bytes user data · ...
string          int16 length · UTF-8;  array and bytes: int32 length · elements
```

The coordinator passes these on unread. It parses them only to find the readers of a topic, to check whether a restarted
static member wants the same topics, and in a group of both protocols (`classic_members`). Other users of the protocol,
such as Kafka Connect, store other things there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from struct import Struct, error

from ...errors import Malformed
from ...store.base import TopicPartition
from ..wire.codec import decoder
from ..wire.errors import ErrorCode
from ..wire.messages import ASSIGNMENT, SUBSCRIPTION, VERSIONS
from ..wire.schema import Field

#: Protocol type of consumers.
CONSUMER = "consumer"

_INT16, _INT32 = Struct(">h"), Struct(">i")
_decoder = cache(decoder)


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Return the topics of a subscription; None if it cannot be parsed."""
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


def owned_partitions(subscription: bytes) -> list[TopicPartition]:
    """Return the partitions that a member says it still owns; empty if it does not say."""
    return _partitions(SUBSCRIPTION, "owned_partitions", subscription)


def assigned_partitions(assignment: bytes) -> list[TopicPartition]:
    """Return the partitions of an assignment; empty if it cannot be parsed."""
    return _partitions(ASSIGNMENT, "assigned_partitions", assignment)


def _partitions(fields: tuple[Field, ...], name: str, data: bytes) -> list[TopicPartition]:
    try:
        (version,) = _INT16.unpack_from(data)
        found = _decoder(fields, min(max(version, 0), VERSIONS[-1]), flexible=False)(memoryview(data), 2)[name]
    except (error, Malformed):
        return []
    return [(each["topic"], number) for each in found for number in each["partitions"]]


def same_topics(before: bytes, after: bytes) -> bool:
    """Return whether two subscriptions name the same topics. The rest differs when a consumer restarts, because it owns
    nothing then, but does not affect the assignment."""
    if before == after:
        return True
    topics = subscribed_topics(before)
    return topics is not None and topics == subscribed_topics(after)


def encode_subscription(topics: Iterable[str]) -> bytes:
    """Encode a subscription in version 0."""
    names = [each.encode() for each in topics]
    parts = [_INT16.pack(len(name)) + name for name in names]
    return _INT16.pack(0) + _INT32.pack(len(names)) + b"".join(parts) + _INT32.pack(-1)


def encode_assignment(shares: Iterable[TopicPartition]) -> bytes:
    """Encode an assignment in version 0."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(shares):
        topics.setdefault(topic, []).append(partition)
    made = _INT16.pack(0) + _INT32.pack(len(topics))
    for topic, partitions in topics.items():
        name = topic.encode()
        made += _INT16.pack(len(name)) + name + Struct(f">i{len(partitions)}i").pack(len(partitions), *partitions)
    return made + _INT32.pack(-1)


#: Protocols that a member supports (names of assignors) with its subscription for each, in order of preference.
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request."""

    member_id: str
    #: group.instance.id of a static member, which keeps its partitions across a restart.
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    #: True if a new member first receives its id and joins with it (version 4 on), so that a retry after a client
    #: timeout does not count as another member.
    knows_ids: bool = True
    #: True if the leader understands skip_assignment (version 9 on).
    may_skip: bool = True


@dataclass(frozen=True, slots=True)
class JoinResponse:
    """The response to a JoinGroup request."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    #: For the leader only: id, instance id and subscription of each member.
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A SyncGroup request."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    #: From the leader only: the assignment of each member.
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class SyncResponse:
    """The response to a SyncGroup request."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class DeadlineTimer:
    """Calls a function when the deadline set last has passed, by the clock of the event loop.

    Moving the deadline later is cheap, because heartbeats do it many times a second: the running timer notices that it
    fired too early and waits for the rest.
    """

    __slots__ = ("_callback", "_due_s", "_fires_s", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._due_s = 0.0
        self._fires_s = 0.0
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        """True if the timer will fire."""
        return self._handle is not None

    def set(self, delay_ms: float) -> None:
        """Fire after `delay_ms` milliseconds, and not before."""
        self._due_s = self._loop.time() + delay_ms / 1000
        if self._handle is not None and self._fires_s > self._due_s:
            self.stop()
        if self._handle is None:
            self._wait()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wait(self) -> None:
        self._fires_s = self._due_s
        self._handle = self._loop.call_later(max(self._due_s - self._loop.time(), 0.0), self._fired)

    def _fired(self) -> None:
        self._handle = None
        if self._loop.time() < self._due_s:
            self._wait()
        else:
            self._callback()


@dataclass(slots=True)
class ClassicMember:
    """A member of a classic group."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    #: Fires when the session expires.
    session: DeadlineTimer = field(repr=False)
    assignment: bytes = b""
    #: True if it has not been part of a generation yet.
    is_new: bool = True
    #: True if it received its id before it joined.
    knows_id: bool = True
    #: True if it knows the current generation but has not requested its assignment since.
    owes_sync: bool = False
    #: Answer the pending JoinGroup and SyncGroup requests.
    on_joined: Callable[[JoinResponse], None] | None = None
    on_synced: Callable[[SyncResponse], None] | None = None

    def update(self, request: JoinRequest) -> None:
        """Apply the values of another JoinGroup request."""
        self.client_id, self.client_host = request.client_id, request.client_host
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.protocols = request.protocols

    @property
    def is_waiting(self) -> bool:
        """True if a request is pending. The member sends no heartbeats meanwhile."""
        return self.on_joined is not None or self.on_synced is not None

    def restart_session(self) -> None:
        """Restart the session timeout after a request."""
        self.session.set(self.session_timeout_ms)

    def supports(self, protocol: str) -> bool:
        return any(name == protocol for name, _ in self.protocols)

    def subscription(self, protocol: str | None) -> bytes:
        """Return the subscription for a protocol; empty if the member does not support it."""
        return next((said for name, said in self.protocols if name == protocol), b"")

    def answer_join(self, answer: JoinResponse) -> None:
        """Answer the pending JoinGroup request, if any."""
        waiting, self.on_joined = self.on_joined, None
        if waiting is not None:
            waiting(answer)

    def answer_sync(self, answer: SyncResponse) -> None:
        """Answer the pending SyncGroup request, if any."""
        waiting, self.on_synced = self.on_synced, None
        if waiting is not None:
            waiting(answer)

    def refuse(self, error: ErrorCode) -> None:
        """Answer pending requests with an error."""
        self.answer_join(JoinResponse(error, self.id))
        self.answer_sync(SyncResponse(error))


def member_error(
    members: Container[str], static: Mapping[str, str], member_id: str, instance_id: str | None
) -> ErrorCode:
    """Return the error unless this is a member. `static` has member ids by instance id: the last static member to join
    under an instance id counts."""
    if instance_id is not None:
        known = static.get(instance_id)
        if known is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if known != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in members else ErrorCode.UNKNOWN_MEMBER_ID


class GroupMembers:
    """The members of one group, in the order in which they joined."""

    def __init__(self) -> None:
        #: Common to all members; stays when the last one leaves.
        self.protocol_type: str | None = None
        #: Id of the member that assigns partitions.
        self.leader: str | None = None
        self._members: dict[str, ClassicMember] = {}
        #: Member ids by instance id.
        self._static: dict[str, str] = {}

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> ClassicMember:
        return self._members[member_id]

    def static_id(self, instance_id: str | None) -> str | None:
        """Return the member id of a static member; None if there is none."""
        return None if instance_id is None else self._static.get(instance_id)

    def add(self, member: ClassicMember, protocol_type: str) -> None:
        if not self._members:
            self.protocol_type = protocol_type
        self._members[member.id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.id

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """Give a static member a new id. It keeps its position and its leadership."""
        if self.leader == member.id:
            self.leader = member_id
        member.id = member_id
        self._members = {each.id: each for each in self._members.values()}
        self._static[member.instance_id or ""] = member_id

    def remove(self, member: ClassicMember) -> None:
        """Remove a member. If it was the leader, the oldest remaining member becomes the leader."""
        del self._members[member.id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self._members), None)

    def clear(self) -> None:
        self._members, self._static, self.leader = {}, {}, None

    def error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return the error unless this is a member."""
        return member_error(self._members, self._static, member_id, instance_id)

    def is_compatible(self, request: JoinRequest) -> bool:
        """Return whether the joining member has a protocol in common with all others."""
        if not request.protocol_type or not request.protocols:
            return False
        if self._members and request.protocol_type != self.protocol_type:
            return False
        me = request.member_id or self.static_id(request.instance_id)
        others = [each for each in self if each.id != me]
        return any(all(each.supports(name) for each in others) for name, _ in request.protocols)

    def elect_protocol(self) -> str:
        """Return the protocol that most members prefer and all support; the leader's order breaks ties."""
        votes: dict[str, int] = {}
        everyone = list(self)
        for member in everyone:
            preferred = next(name for name, _ in member.protocols if all(each.supports(name) for each in everyone))
            votes[preferred] = votes.get(preferred, 0) + 1
        leader = self._members.get(self.leader or "", everyone[0])
        order = [name for name, _ in leader.protocols]
        return max(votes, key=lambda name: (votes[name], -order.index(name)))

    def topics(self) -> frozenset[str] | None:
        """Return the topics that the members read; None if unknown, because they are not consumers."""
        found: set[str] = set()
        for member in self:
            for _, subscription in member.protocols:
                topics = subscribed_topics(subscription) if self.protocol_type == CONSUMER else None
                if topics is None:
                    return None
                found |= topics
        return frozenset(found)
