"""`ClassicGroup`: a group of Kafka's classic protocol, in which an elected leader assigns the partitions.

```
                  a member joins                     all have joined, or the rebalance timeout has passed
    Empty ──────────────────────▶ PreparingRebalance ──────────────────────────────▶ CompletingRebalance
      ▲                              │      ▲   ▲                                          │   │
      └──────────────────────────────┘      │   └──────────────────────────────────────────┘   │ the leader
             no member is left              │     a member joins, leaves or expires            │ has assigned
                                            └──────────────── Stable ◀─────────────────────────┘
```

In *PreparingRebalance* every JoinGroup request waits. When all members have sent one, and all clients that were given
an id have come back with it, a new generation begins: each member learns its number and the leader, and the leader gets
all subscriptions. Dynamic members that did not join in time are removed; static ones stay until their session expires.
In *CompletingRebalance* every SyncGroup request waits for the leader's. A request that can no longer succeed is
answered with an error immediately: nothing waits for an event that cannot occur.

A session expires when a member is silent for its session timeout. A member sends no heartbeats while one of its
requests waits, so that time does not count; a new member waits for a limited time.

Sans-io: time comes from the event loop's clock, and responses go to callbacks, which must not call the group again.
Single-threaded.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ..config import BrokerConfig
from ..wire import ErrorCode
from .members import (
    CONSUMER,
    ClassicMember,
    DeadlineTimer,
    JoinRequest,
    JoinResponse,
    Members,
    Protocols,
    SyncRequest,
    SyncResponse,
    same_topics,
    subscribed_topics,
)

_logger = logging.getLogger("sawlog.broker.groups")


class GroupState(Enum):
    """Group states, by the names that Kafka's tools display."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class MemberSummary:
    """A member as described to clients."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    subscription: bytes
    assignment: bytes


class ClassicGroup:
    """The members of one group and their current generation."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        on_empty: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.state = GroupState.EMPTY
        self.generation = 0
        #: Protocol of the current generation.
        self.protocol: str | None = None
        self._loop = loop
        self._config = config
        #: Called when the last member is gone and no new id is outstanding.
        self._on_empty = on_empty
        self._members = Members[ClassicMember]()
        #: Kind of group, "consumer" for consumers: common to all members, and kept when the last one leaves.
        self.protocol_type: str | None = None
        #: Id of the member that assigns partitions.
        self.leader: str | None = None
        #: Ids given to new members that have not come back with them yet.
        self._awaited_ids: dict[str, DeadlineTimer] = {}
        #: Timeouts: for members to join, to request their assignment, and for more initial members.
        self._joining = DeadlineTimer(loop, self._begin_generation)
        self._syncing = DeadlineTimer(loop, self._sync_timed_out)
        self._gathering = DeadlineTimer(loop, self._gathered)
        #: Latest end of gathering initial members, and whether one joined since it was last extended.
        self._gather_until_s = 0.0
        self._has_grown = False

    # --- properties

    @property
    def is_empty(self) -> bool:
        """True if it has no members and no outstanding ids."""
        return not len(self._members) and not self._awaited_ids

    @property
    def members(self) -> Sequence[MemberSummary]:
        """The members, with subscriptions and assignments if the group is stable."""
        is_stable = self.state is GroupState.STABLE
        return [
            MemberSummary(
                each.id,
                each.instance_id,
                each.client_id,
                each.client_host,
                each.subscription(self.protocol) if is_stable else b"",
                each.assignment if is_stable else b"",
            )
            for each in self._members
        ]

    @property
    def topics(self) -> frozenset[str] | None:
        """Topics that the members read; None if unknown, because they are not consumers."""
        found: set[str] = set()
        for member in self._members:
            for _, subscription in member.protocols:
                topics = subscribed_topics(subscription) if self.protocol_type == CONSUMER else None
                if topics is None:
                    return None
                found |= topics
        return frozenset(found)

    # --- joining

    def join(self, request: JoinRequest, answer: Callable[[JoinResponse], None]) -> None:
        """Process a JoinGroup request. The answer may come much later."""
        error = self._join_error(request)
        if error is not ErrorCode.NONE:
            answer(JoinResponse(error, request.member_id))
        elif request.member_id in self._awaited_ids:
            self._awaited_ids.pop(request.member_id).stop()
            self._add(request, request.member_id, answer)
        elif request.member_id:
            self._join_again(self._members[request.member_id], request, answer)
        elif (known := self._members.static(request.instance_id)) is not None:
            self._replace(known, request, answer)
        elif request.instance_id is None and request.knows_ids:
            answer(JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, self._assign_id(request)))
        else:
            self._add(request, _new_id(request), answer)

    def _join_error(self, request: JoinRequest) -> ErrorCode:
        """Return the error of a request that is refused immediately, or NONE."""
        least, most = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not least <= request.session_timeout_ms <= most:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if request.member_id and (request.instance_id is not None or request.member_id not in self._awaited_ids):
            error = self._members.error(request.member_id, request.instance_id)
            if error is not ErrorCode.NONE:
                return error
        if not self._is_compatible(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        is_known = request.member_id in self._members or self._members.static(request.instance_id) is not None
        if not is_known and len(self._members) >= self._config.group_max_size:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _assign_id(self, request: JoinRequest) -> str:
        """Give a new member its id. The member comes back with it, or its session expires."""
        made = _new_id(request)
        alarm = self._awaited_ids[made] = DeadlineTimer(self._loop, lambda: self._id_unclaimed(made))
        alarm.set(request.session_timeout_ms)
        return made

    def _id_unclaimed(self, member_id: str) -> None:
        """Drop the id of a new member that did not come back."""
        del self._awaited_ids[member_id]
        self._advance()

    def _add(self, request: JoinRequest, member_id: str, answer: Callable[[JoinResponse], None]) -> None:
        member = ClassicMember(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            DeadlineTimer(self._loop, lambda: self._session_expired(member)),
            knows_id=bool(request.member_id),
        )
        if not len(self._members):
            self.protocol_type = request.protocol_type
        self._members.add(member)
        self._has_grown = True
        member.session.set(self._config.group_new_member_timeout_ms)
        _logger.info("group %s: member %s joins", self.name, member_id)
        self._join_next(member, answer)

    def _join_again(self, member: ClassicMember, request: JoinRequest, answer: Callable[[JoinResponse], None]) -> None:
        """Process a JoinGroup request of an existing member.

        A request without changes means that the member did not get the last response: it receives the current
        generation again. The leader of a stable group, however, requests a new assignment that way, as there may be new
        partitions.
        """
        is_repeated = member.protocols == request.protocols and (
            self.state is GroupState.COMPLETING_REBALANCE
            or (self.state is GroupState.STABLE and member.id != self.leader)
        )
        member.update(request)
        if not member.is_new:
            member.restart_session()
        if is_repeated:
            answer(self._generation_for(member))
        else:
            self._join_next(member, answer)

    def _join_next(self, member: ClassicMember, answer: Callable[[JoinResponse], None]) -> None:
        """Make a member wait for the next generation."""
        member.answer_join(JoinResponse(ErrorCode.REBALANCE_IN_PROGRESS, member.id))  # the client gave up this request
        member.on_joined = answer
        self._rebalance()

    def _replace(self, member: ClassicMember, request: JoinRequest, answer: Callable[[JoinResponse], None]) -> None:
        """Process the restart of a static member that does not know its id. It gets a new one, and any user of the old
        id is fenced. In a stable group it keeps its partitions without a rebalance."""
        before, old_id, was_leader = member.protocols, member.id, member.id == self.leader
        member.refuse(ErrorCode.FENCED_INSTANCE_ID)
        self._members.rename(member, _new_id(request))
        if was_leader:
            self.leader = member.id
        member.update(request)
        _logger.info("group %s: static member %s is back as %s", self.name, request.instance_id, member.id)
        if not member.is_new:
            member.restart_session()
        if self.state is not GroupState.STABLE or not self._wants_the_same(before, request.protocols):
            self._join_next(member, answer)
            return
        response = self._generation_for(member)
        if was_leader and request.may_skip:
            response = replace(response, skip_assignment=True)
        elif was_leader:  # its assignment would reach no one: name another leader
            response = replace(response, leader=old_id, members=())
        answer(response)

    def _wants_the_same(self, before: Protocols, after: Protocols) -> bool:
        """Return whether the assignment remains valid for a member that returns with other protocols."""
        if self._elect_protocol() != self.protocol:
            return False
        old, new = dict(before).get(self.protocol), dict(after)[self.protocol]
        return old == new or (old is not None and self.protocol_type == CONSUMER and same_topics(old, new))

    def _is_compatible(self, request: JoinRequest) -> bool:
        """Return whether the joining member has a protocol in common with all others, which all members always have."""
        if not request.protocol_type or not request.protocols:
            return False
        if len(self._members) and request.protocol_type != self.protocol_type:
            return False
        static = self._members.static(request.instance_id)
        me = request.member_id or (None if static is None else static.id)
        others = [each for each in self._members if each.id != me]
        return any(all(each.supports(name) for each in others) for name, _ in request.protocols)

    def _elect_protocol(self) -> str:
        """Return the protocol that most members prefer and all support; the leader's order breaks ties."""
        everyone = list(self._members)
        votes = Counter(
            next(name for name, _ in member.protocols if all(each.supports(name) for each in everyone))
            for member in everyone
        )
        leader = self._members.get(self.leader or "") or everyone[0]
        order = [name for name, _ in leader.protocols]
        return max(votes, key=lambda name: (votes[name], -order.index(name)))

    def client_gone(self, answer: Callable[[JoinResponse], None]) -> None:
        """Handle a client that disconnected during JoinGroup. A new member that does not know its id cannot come back
        as the same member, so it is removed. Others can."""
        for member in self._members:
            if member.on_joined == answer and member.is_new and not member.knows_id and member.instance_id is None:
                self._remove(member)
                self._advance()

    # --- rebalancing

    def _rebalance(self) -> None:
        """Make all members join the next generation."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            delay_ms = self._config.group_initial_rebalance_delay_ms if self.state is GroupState.EMPTY else 0
            self.state = GroupState.PREPARING_REBALANCE
            self._syncing.stop()
            for member in self._members:
                if member.on_synced is not None:
                    member.restart_session()  # no heartbeats while it waited
                    member.answer_sync(SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
            if delay_ms > 0:
                self._gather_until_s = self._loop.time() + self._rebalance_timeout_ms / 1000
                self._gather(delay_ms)
            else:
                self._joining.set(self._rebalance_timeout_ms)
        self._advance()

    @property
    def _rebalance_timeout_ms(self) -> int:
        return max((each.rebalance_timeout_ms for each in self._members), default=0)

    def _gather(self, delay_ms: float) -> None:
        """Wait for more initial members."""
        self._has_grown = False
        rest_ms = (self._gather_until_s - self._loop.time()) * 1000
        self._gathering.set(max(min(delay_ms, rest_ms), 0.0))

    def _gathered(self) -> None:
        if self._has_grown and self._loop.time() < self._gather_until_s:
            self._gather(self._config.group_initial_rebalance_delay_ms)
        else:
            self._joining.set(self._rebalance_timeout_ms)
            self._advance()

    def _advance(self) -> None:
        """Begin the next generation if no member is outstanding."""
        if self.state is GroupState.PREPARING_REBALANCE and not self._gathering.is_set:
            if not self._awaited_ids and all(each.on_joined is not None for each in self._members):
                self._begin_generation()
        elif self.state is GroupState.EMPTY and self.is_empty:
            self._on_empty()

    def _begin_generation(self) -> None:
        """Begin a generation with the members that have joined."""
        for member in self._members:
            if member.on_joined is None and member.instance_id is None:
                _logger.info("group %s: member %s did not join in time and is removed", self.name, member.id)
                self._remove(member)
        joined = [each for each in self._members if each.on_joined is not None]
        if len(self._members) and not joined:
            self._joining.set(self._rebalance_timeout_ms)  # only static members, and none is back yet
            return
        self._joining.stop()
        self.generation += 1
        if not joined:
            self.state, self.protocol = GroupState.EMPTY, None
            _logger.info("group %s is empty", self.name)
            self._advance()
            return
        if self.leader not in {each.id for each in joined}:
            self.leader = joined[0].id
        self.protocol = self._elect_protocol()
        self.state = GroupState.COMPLETING_REBALANCE
        self._syncing.set(self._rebalance_timeout_ms)
        _logger.info(
            "group %s: generation %d, members %d, %s", self.name, self.generation, len(self._members), self.protocol
        )
        for member in self._members:
            member.owes_sync = member.on_joined is not None
        for member in joined:
            member.is_new = False
            member.restart_session()
            member.answer_join(self._generation_for(member))

    def _generation_for(self, member: ClassicMember) -> JoinResponse:
        """Return the current generation as the response to a member."""
        recipients = list(self._members) if member.id == self.leader else []
        return JoinResponse(
            ErrorCode.NONE,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            tuple((each.id, each.instance_id, each.subscription(self.protocol)) for each in recipients),
        )

    # --- assigning

    def sync(self, request: SyncRequest, answer: Callable[[SyncResponse], None]) -> None:
        """Process a SyncGroup request. The answer comes when the leader has assigned."""
        error = self._sync_error(request)
        if error is not ErrorCode.NONE:
            answer(SyncResponse(error))
            return
        member = self._members[request.member_id]
        member.owes_sync = False
        member.restart_session()
        if self.state is GroupState.STABLE:
            answer(self._assigned(member))
            return
        member.answer_sync(SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))  # the client gave up this request
        member.on_synced = answer
        if member.id == self.leader:
            self._assign(request)

    def _sync_error(self, request: SyncRequest) -> ErrorCode:
        error = self._request_error(request.member_id, request.instance_id, request.generation)
        if error is not ErrorCode.NONE:
            return error
        if request.protocol_type not in (None, self.protocol_type) or request.protocol not in (None, self.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE

    def _request_error(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Return the error unless the request comes from a member of the current generation."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._members.error(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _assign(self, request: SyncRequest) -> None:
        self.state = GroupState.STABLE
        for member in self._members:
            member.assignment = bytes(request.assignments.get(member.id, b""))
        for member in self._members:
            if member.on_synced is not None:
                member.restart_session()
                member.answer_sync(self._assigned(member))

    def _assigned(self, member: ClassicMember) -> SyncResponse:
        return SyncResponse(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    def _sync_timed_out(self) -> None:
        """Remove members that know the generation but did not request their assignment, so do not process it."""
        late = [each for each in self._members if each.owes_sync]
        for member in late:
            _logger.info("group %s: member %s did not ask for its assignment and is removed", self.name, member.id)
            self._remove(member)
        if late:
            self._rebalance()

    # --- staying and leaving

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        error = self._request_error(member_id, instance_id, generation)
        if error is ErrorCode.NONE:
            self._members[member_id].restart_session()
            if self.state is GroupState.PREPARING_REBALANCE:
                return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def leave(self, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Process a LeaveGroup request: id and instance id of each member. The id is empty if an administrator removes
        a static member."""
        if self.state is GroupState.DEAD:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(leaving)
        before = len(self._members)
        results = [self._leave(member_id, instance_id) for member_id, instance_id in leaving]
        if len(self._members) < before:
            self._rebalance()
        else:
            self._advance()
        return results

    def _leave(self, member_id: str, instance_id: str | None) -> ErrorCode:
        expected = self._awaited_ids.pop(member_id, None)
        if expected is not None:
            expected.stop()
            return ErrorCode.NONE
        known, error = self._members.find(member_id, instance_id)
        if error is ErrorCode.NONE:
            _logger.info("group %s: member %s leaves", self.name, known)
            self._remove(self._members[known])
        return error

    def _session_expired(self, member: ClassicMember) -> None:
        if member.is_waiting and not member.is_new:
            member.restart_session()  # it is waiting for other members
            return
        _logger.info("group %s: the session of member %s expired", self.name, member.id)
        self._remove(member)
        self._rebalance()

    def _remove(self, member: ClassicMember) -> None:
        """Remove a member and refuse its pending requests. It may join again as a new member. If it was the leader, the
        oldest remaining member becomes the leader."""
        member.session.stop()
        self._members.remove(member)
        if self.leader == member.id:
            self.leader = next((each.id for each in self._members), None)
        member.refuse(ErrorCode.UNKNOWN_MEMBER_ID)

    def end(self, error: ErrorCode) -> None:
        """Answer all pending requests, because the group is deleted or the coordinator stops."""
        self.state = GroupState.DEAD
        for alarm in (self._joining, self._syncing, self._gathering, *self._awaited_ids.values()):
            alarm.stop()
        self._awaited_ids.clear()
        members = list(self._members)
        self._members.clear()
        self.leader = None
        for member in members:
            member.session.stop()
            member.refuse(error)

    def hand_over(self) -> list[ClassicMember]:
        """Give up the members, to a group whose partitions the broker assigns. Pending requests are answered so that
        clients rejoin."""
        members = list(self._members)
        self.end(ErrorCode.REBALANCE_IN_PROGRESS)
        return members

    # --- committing

    def commit_error(
        self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool = False
    ) -> ErrorCode:
        """Return the error for a commit, or NONE. A commit without member id and generation comes from a client that
        assigns its partitions manually, or from an administrator; it is allowed only while the group has no members."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and not len(self._members):
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = self._request_error(member_id, instance_id, generation)
        if error is ErrorCode.NONE:
            self._members[member_id].restart_session()
            if self.state is GroupState.COMPLETING_REBALANCE and not transactional:
                return ErrorCode.REBALANCE_IN_PROGRESS
        return error


def _new_id(request: JoinRequest) -> str:
    return f"{request.instance_id or request.client_id}-{uuid.uuid4()}"
