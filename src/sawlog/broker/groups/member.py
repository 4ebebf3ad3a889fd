"""The members of a group of Kafka's classic protocol, and what they ask and are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..wire.errors import ErrorCode
from .timers import Alarm

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
