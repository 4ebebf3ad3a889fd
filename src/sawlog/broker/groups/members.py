"""Members of groups: their requests, responses, subscriptions and timers.

`Members` is the membership of a group of either protocol.

The classic protocol carries subscriptions and assignments as opaque bytes (`SUBSCRIPTION` and `ASSIGNMENT`). The
coordinator passes these on unread. It parses them only to find the readers of a topic, to check whether a restarted
static member wants the same topics, and in a group of both protocols (`Group`). Other users of the
protocol, such as Kafka Connect, store other things there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ...errors import Malformed
from ...store.base import TopicPartition
from ..wire import Body, ErrorCode
from ..wire.codec import Sink, decoder, encoder
from ..wire.messages import ASSIGNMENT, SUBSCRIPTION, VERSIONS
from ..wire.schema import Fields

if TYPE_CHECKING:
    from .consumer_group import ConsumerMember

#: Protocol type of consumers.
CONSUMER = "consumer"

_decoder, _encoder = cache(decoder), cache(encoder)


def _decoded(fields: Fields, version: int, data: bytes) -> Body | None:
    """Decode what follows the version; None if it cannot be parsed."""
    try:
        return _decoder(fields, version, flexible=False)(memoryview(data), 2)
    except Malformed:
        return None


def _encoded(fields: Fields, body: Body) -> bytes:
    """Encode in version 0."""
    sink = Sink(bytes(2))
    _encoder(fields, 0, flexible=False, what="the consumer protocol")(sink, body)
    return bytes(sink)


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Return the topics of a subscription; None if it cannot be parsed."""
    found = _decoded(SUBSCRIPTION[:1], 0, subscription)
    return None if found is None else frozenset(found["topics"])


def owned_partitions(subscription: bytes) -> list[TopicPartition]:
    """Return the partitions that a member says it still owns; empty if it does not say."""
    return _partitions(SUBSCRIPTION, "owned_partitions", subscription)


def assigned_partitions(assignment: bytes) -> list[TopicPartition]:
    """Return the partitions of an assignment; empty if it cannot be parsed."""
    return _partitions(ASSIGNMENT, "assigned_partitions", assignment)


def _partitions(fields: Fields, name: str, data: bytes) -> list[TopicPartition]:
    version = int.from_bytes(data[:2], "big", signed=True)
    found = _decoded(fields, min(max(version, 0), VERSIONS[-1]), data)
    return [(each["topic"], number) for each in (found or {name: ()})[name] for number in each["partitions"]]


def same_topics(before: bytes, after: bytes) -> bool:
    """Return whether two subscriptions name the same topics. The rest differs when a consumer restarts, because it owns
    nothing then, but does not affect the assignment."""
    if before == after:
        return True
    topics = subscribed_topics(before)
    return topics is not None and topics == subscribed_topics(after)


def encode_subscription(topics: Iterable[str]) -> bytes:
    return _encoded(SUBSCRIPTION, {"topics": list(topics)})


def encode_assignment(shares: Iterable[TopicPartition]) -> bytes:
    topics = [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic(shares).items()]
    return _encoded(ASSIGNMENT, {"assigned_partitions": topics})


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition numbers of each topic, sorted."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found


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


class Sender(NamedTuple):
    """The sender of a request, as it identifies itself. Without an id and a generation it is not a member, but a
    program that assigns its partitions itself, or a tool."""

    member_id: str = ""
    instance_id: str | None = None
    #: Generation, or member epoch.
    generation: int = -1


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


_M = TypeVar("_M", bound="ClassicMember | ConsumerMember")


class Members(Generic[_M]):
    """The members of one group, in the order in which they joined."""

    def __init__(self) -> None:
        self._members: dict[str, _M] = {}
        #: Member ids by instance id: the last static member to join under an instance id counts.
        self._static: dict[str, str] = {}

    def __iter__(self) -> Iterator[_M]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> _M:
        return self._members[member_id]

    def get(self, member_id: str) -> _M | None:
        """Return a member; None if the id is unknown."""
        return self._members.get(member_id)

    def static(self, instance_id: str | None) -> _M | None:
        """Return the static member with an instance id; None if there is none."""
        return None if instance_id is None else self._members.get(self._static.get(instance_id, ""))

    def add(self, member: _M) -> None:
        self._members[member.id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.id

    def remove(self, member: _M) -> None:
        del self._members[member.id]
        if member.instance_id is not None and self._static.get(member.instance_id) == member.id:
            del self._static[member.instance_id]

    def rename(self, member: _M, member_id: str) -> None:
        """Give a static member a new id. It keeps its position."""
        member.id = member_id
        self._members = {each.id: each for each in self._members.values()}
        self._static[member.instance_id or ""] = member_id

    def clear(self) -> None:
        self._members, self._static = {}, {}

    def find(self, member_id: str, instance_id: str | None) -> tuple[str, ErrorCode]:
        """Return the id of a member that an administrator may name by its instance id only, and the error unless it is
        a member."""
        named = self.static(instance_id) if not member_id else None
        known = member_id if named is None else named.id
        return known, self.error(known, instance_id)

    def error(self, member_id: str, instance_id: str | None = None) -> ErrorCode:
        """Return the error unless this is a member."""
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID
