"""`Group`: one group of Kafka's classic protocol, in which the members choose a leader and the leader assigns.

```
                  a member joins                     all have joined, or the rebalance timeout has passed
    Empty ──────────────────────▶ PreparingRebalance ──────────────────────────────▶ CompletingRebalance
      ▲                              │      ▲   ▲                                          │   │
      └──────────────────────────────┘      │   └──────────────────────────────────────────┘   │ the leader
             nobody is left                 │     a member joins, leaves or expires            │ has assigned
                                            └──────────────── Stable ◀─────────────────────────┘
```

In *PreparingRebalance* every JoinGroup request waits. When all members have sent one, and all who were given an id have
come back with it, a new generation begins: each is told its number and the leader, and the leader gets all
subscriptions. Dynamic members that did not join in time are removed; static ones stay until their session expires. In
*CompletingRebalance* every SyncGroup request waits for the leader's. A request that can no longer be answered as it was
asked is answered with an error at once: nothing ever waits for something that cannot come.

A session expires when nothing was heard of a member for its session timeout. While one of its requests waits it sends
no heartbeats, so that does not count; a new member waits for a limited time.

Sans-io: time comes from `Timers`, and answers go to functions, which must not call the group again. Threads: one.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ..wire.errors import ErrorCode
from .members import CONSUMER, Joined, JoinRequest, Member, Protocols, Roster, Synced, SyncRequest, same_topics
from .settings import Alarm, GroupConfig, Timers

_logger = logging.getLogger("sawlog.broker.groups")


class State(Enum):
    """The states, with the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class MemberSummary:
    """A member, for those who look at the group."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    subscription: bytes
    assignment: bytes


class Group:
    """The members of one group, and what they have agreed on."""

    def __init__(
        self, name: str, timers: Timers, config: GroupConfig, on_empty: Callable[[], None] = lambda: None
    ) -> None:
        self.name = name
        self.state = State.EMPTY
        self.generation = 0
        #: The protocol of the current generation.
        self.protocol: str | None = None
        self._timers = timers
        self._config = config
        #: Called when the last member is gone, and nobody was told to come back.
        self._on_empty = on_empty
        self._roster = Roster()
        #: Ids that were given to members that have not come back with them yet.
        self._expected: dict[str, Alarm] = {}
        #: How long to wait: for members to join, to ask for their assignment, and for more first members.
        self._joining = Alarm(timers, self._begin_generation)
        self._syncing = Alarm(timers, self._sync_timed_out)
        self._gathering = Alarm(timers, self._gathered)
        #: When gathering first members ends at the latest; whether one has come since it was last extended.
        self._gather_until_s = 0.0
        self._has_grown = False

    # --- properties

    @property
    def protocol_type(self) -> str | None:
        """What kind of group it is: "consumer" for consumers."""
        return self._roster.protocol_type

    @property
    def leader(self) -> str | None:
        """The id of the member that assigns partitions."""
        return self._roster.leader

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, and expects none."""
        return not len(self._roster) and not self._expected

    @property
    def members(self) -> Sequence[MemberSummary]:
        """Who is in it; with subscriptions and assignments when all have got theirs."""
        is_stable = self.state is State.STABLE
        return [
            MemberSummary(
                each.id,
                each.instance_id,
                each.client_id,
                each.client_host,
                each.subscription(self.protocol) if is_stable else b"",
                each.assignment if is_stable else b"",
            )
            for each in self._roster
        ]

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that its members read; None if they do not say, because they are not consumers."""
        return self._roster.topics()

    # --- joining

    def join(self, request: JoinRequest, answer: Callable[[Joined], None]) -> None:
        """A JoinGroup request. The answer may come much later."""
        error = self._join_error(request)
        if error is not ErrorCode.NONE:
            answer(Joined(error, request.member_id))
        elif request.member_id in self._expected:
            self._expected.pop(request.member_id).stop()
            self._add(request, request.member_id, answer)
        elif request.member_id:
            self._join_again(self._roster[request.member_id], request, answer)
        elif (known := self._roster.static_id(request.instance_id)) is not None:
            self._replace(self._roster[known], request, answer)
        elif request.instance_id is None and request.knows_ids:
            answer(Joined(ErrorCode.MEMBER_ID_REQUIRED, self._expect(request)))
        else:
            self._add(request, _new_id(request), answer)

    def _join_error(self, request: JoinRequest) -> ErrorCode:
        """Why a request is refused at once."""
        least, most = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not least <= request.session_timeout_ms <= most:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if request.member_id and (request.instance_id is not None or request.member_id not in self._expected):
            error = self._roster.error(request.member_id, request.instance_id)
            if error is not ErrorCode.NONE:
                return error
        if not self._roster.is_compatible(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        is_known = request.member_id in self._roster or self._roster.static_id(request.instance_id) is not None
        if not is_known and len(self._roster) >= self._config.group_max_size:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _expect(self, request: JoinRequest) -> str:
        """Give a new member its id. It comes back with it, or its session expires."""
        made = _new_id(request)
        alarm = self._expected[made] = Alarm(self._timers, lambda: self._missed(made))
        alarm.set(request.session_timeout_ms)
        return made

    def _missed(self, member_id: str) -> None:
        """A new member did not come back."""
        del self._expected[member_id]
        self._go_on()

    def _add(self, request: JoinRequest, member_id: str, answer: Callable[[Joined], None]) -> None:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            Alarm(self._timers, lambda: self._session_expired(member)),
            knows_id=bool(request.member_id),
        )
        self._roster.add(member, request.protocol_type)
        self._has_grown = True
        member.session.set(self._config.group_new_member_timeout_ms)
        _logger.info("group %s: member %s joins", self.name, member_id)
        self._join_next(member, answer)

    def _join_again(self, member: Member, request: JoinRequest, answer: Callable[[Joined], None]) -> None:
        """A member joins that is one already.

        If it says nothing new it did not get the answer to its last request, and is told of the current generation.
        But the leader of a stable group asks for a new assignment that way: there may be new partitions.
        """
        is_repeated = member.protocols == request.protocols and (
            self.state is State.COMPLETING or (self.state is State.STABLE and member.id != self.leader)
        )
        member.update(request)
        if not member.is_new:
            member.alive()
        if is_repeated:
            answer(self._generation_for(member))
        else:
            self._join_next(member, answer)

    def _join_next(self, member: Member, answer: Callable[[Joined], None]) -> None:
        """Let a member wait for the next generation."""
        member.answer_join(Joined(ErrorCode.REBALANCE_IN_PROGRESS, member.id))  # to a request that was given up
        member.on_joined = answer
        self._rebalance()

    def _replace(self, member: Member, request: JoinRequest, answer: Callable[[Joined], None]) -> None:
        """A static member has restarted and does not know its id. It gets a new one, and whoever uses the old one is
        fenced. In a stable group it keeps its partitions, and the others do not notice."""
        before, old_id, was_leader = member.protocols, member.id, member.id == self.leader
        member.refuse(ErrorCode.FENCED_INSTANCE_ID)
        self._roster.rename(member, _new_id(request))
        member.update(request)
        _logger.info("group %s: static member %s is back as %s", self.name, request.instance_id, member.id)
        if not member.is_new:
            member.alive()
        if self.state is not State.STABLE or not self._wants_the_same(before, request.protocols):
            self._join_next(member, answer)
            return
        told = self._generation_for(member)
        if was_leader and request.may_skip:
            told = replace(told, skip_assignment=True)
        elif was_leader:  # it must not assign, because nobody would be told: let it believe that another one leads
            told = replace(told, leader=old_id, members=())
        answer(told)

    def _wants_the_same(self, before: Protocols, after: Protocols) -> bool:
        """Whether the assignment stays right when a member comes back with other protocols."""
        if self._roster.elect_protocol() != self.protocol:
            return False
        old, new = dict(before).get(self.protocol), dict(after)[self.protocol]
        return old == new or (old is not None and self.protocol_type == CONSUMER and same_topics(old, new))

    def gave_up(self, answer: Callable[[Joined], None]) -> None:
        """The client of a waiting JoinGroup request is gone. A new member that does not know its id cannot come back
        as the same, so it is not waited for. Others can."""
        for member in self._roster:
            if member.on_joined == answer and member.is_new and not member.knows_id and member.instance_id is None:
                self._remove(member)
                self._go_on()

    # --- rebalancing

    def _rebalance(self) -> None:
        """Something has changed: let everyone join the next generation."""
        if self.state is not State.PREPARING:
            delay_ms = self._config.group_initial_rebalance_delay_ms if self.state is State.EMPTY else 0
            self.state = State.PREPARING
            self._syncing.stop()
            for member in self._roster:
                if member.on_synced is not None:
                    member.alive()  # it could not send heartbeats while it waited
                    member.answer_sync(Synced(ErrorCode.REBALANCE_IN_PROGRESS))
            if delay_ms > 0:
                self._gather_until_s = self._timers.time() + self._rebalance_timeout_ms / 1000
                self._gather(delay_ms)
            else:
                self._joining.set(self._rebalance_timeout_ms)
        self._go_on()

    @property
    def _rebalance_timeout_ms(self) -> int:
        return max((each.rebalance_timeout_ms for each in self._roster), default=0)

    def _gather(self, delay_ms: float) -> None:
        """Wait for more first members."""
        self._has_grown = False
        rest_ms = (self._gather_until_s - self._timers.time()) * 1000
        self._gathering.set(max(min(delay_ms, rest_ms), 0.0))

    def _gathered(self) -> None:
        if self._has_grown and self._timers.time() < self._gather_until_s:
            self._gather(self._config.group_initial_rebalance_delay_ms)
        else:
            self._joining.set(self._rebalance_timeout_ms)
            self._go_on()

    def _go_on(self) -> None:
        """Begin the next generation, if nobody has to be waited for."""
        if self.state is State.PREPARING and not self._gathering.is_set:
            if not self._expected and all(each.on_joined is not None for each in self._roster):
                self._begin_generation()
        elif self.state is State.EMPTY and self.is_empty:
            self._on_empty()

    def _begin_generation(self) -> None:
        """All have joined, or had the time to."""
        for member in self._roster:
            if member.on_joined is None and member.instance_id is None:
                _logger.info("group %s: member %s did not join in time and is removed", self.name, member.id)
                self._remove(member)
        joined = [each for each in self._roster if each.on_joined is not None]
        if len(self._roster) and not joined:
            self._joining.set(self._rebalance_timeout_ms)  # static members, of which none is back yet
            return
        self._joining.stop()
        self.generation += 1
        if not joined:
            self.state, self.protocol = State.EMPTY, None
            _logger.info("group %s is empty", self.name)
            self._go_on()
            return
        if self.leader not in {each.id for each in joined}:
            self._roster.leader = joined[0].id
        self.protocol = self._roster.elect_protocol()
        self.state = State.COMPLETING
        self._syncing.set(self._rebalance_timeout_ms)
        _logger.info(
            "group %s: generation %d, members %d, %s", self.name, self.generation, len(self._roster), self.protocol
        )
        for member in self._roster:
            member.owes_sync = member.on_joined is not None
        for member in joined:
            member.is_new = False
            member.alive()
            member.answer_join(self._generation_for(member))

    def _generation_for(self, member: Member) -> Joined:
        """The current generation, as a member is told."""
        told = list(self._roster) if member.id == self.leader else []
        return Joined(
            ErrorCode.NONE,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            tuple((each.id, each.instance_id, each.subscription(self.protocol)) for each in told),
        )

    # --- assigning

    def sync(self, request: SyncRequest, answer: Callable[[Synced], None]) -> None:
        """A SyncGroup request. The answer comes when the leader has assigned."""
        error = self._sync_error(request)
        if error is not ErrorCode.NONE:
            answer(Synced(error))
            return
        member = self._roster[request.member_id]
        member.owes_sync = False
        member.alive()
        if self.state is State.STABLE:
            answer(self._assigned(member))
            return
        member.answer_sync(Synced(ErrorCode.REBALANCE_IN_PROGRESS))  # to a request that was given up
        member.on_synced = answer
        if member.id == self.leader:
            self._assign(request)

    def _sync_error(self, request: SyncRequest) -> ErrorCode:
        error = self._request_error(request.member_id, request.instance_id, request.generation)
        if error is not ErrorCode.NONE:
            return error
        if request.protocol_type not in (None, self.protocol_type) or request.protocol not in (None, self.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else ErrorCode.NONE

    def _request_error(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Whether a request comes from a member of the current generation."""
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._roster.error(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _assign(self, request: SyncRequest) -> None:
        self.state = State.STABLE
        for member in self._roster:
            member.assignment = bytes(request.assignments.get(member.id, b""))
        for member in self._roster:
            if member.on_synced is not None:
                member.alive()
                member.answer_sync(self._assigned(member))

    def _assigned(self, member: Member) -> Synced:
        return Synced(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    def _sync_timed_out(self) -> None:
        """Members that were told of a generation and do not ask for their part do not work on it either."""
        late = [each for each in self._roster if each.owes_sync]
        for member in late:
            _logger.info("group %s: member %s did not ask for its assignment and is removed", self.name, member.id)
            self._remove(member)
        if late:
            self._rebalance()

    # --- staying and leaving

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A Heartbeat request."""
        error = self._request_error(member_id, instance_id, generation)
        if error is ErrorCode.NONE:
            self._roster[member_id].alive()
            if self.state is State.PREPARING:
                return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def leave(self, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """A LeaveGroup request: the id and the instance id of each. The id is empty if an administrator removes a
        static member."""
        if self.state is State.DEAD:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(leaving)
        before = len(self._roster)
        results = [self._leave(member_id, instance_id) for member_id, instance_id in leaving]
        if len(self._roster) < before:
            self._rebalance()
        else:
            self._go_on()
        return results

    def _leave(self, member_id: str, instance_id: str | None) -> ErrorCode:
        expected = self._expected.pop(member_id, None)
        if expected is not None:
            expected.stop()
            return ErrorCode.NONE
        known = member_id or self._roster.static_id(instance_id) or ""
        error = self._roster.error(known, instance_id)
        if error is ErrorCode.NONE:
            _logger.info("group %s: member %s leaves", self.name, known)
            self._remove(self._roster[known])
        return error

    def _session_expired(self, member: Member) -> None:
        if member.is_waiting and not member.is_new:
            member.alive()  # it waits for others
            return
        _logger.info("group %s: the session of member %s expired", self.name, member.id)
        self._remove(member)
        self._rebalance()

    def _remove(self, member: Member) -> None:
        """Forget a member. Whatever it waits for is refused; it may join again as a new one."""
        member.session.stop()
        self._roster.remove(member)
        member.refuse(ErrorCode.UNKNOWN_MEMBER_ID)

    def end(self, error: ErrorCode) -> None:
        """The group is deleted, or the coordinator stops: answer everything that waits."""
        self.state = State.DEAD
        for alarm in (self._joining, self._syncing, self._gathering, *self._expected.values()):
            alarm.stop()
        self._expected.clear()
        members = list(self._roster)
        self._roster.clear()
        for member in members:
            member.session.stop()
            member.refuse(error)

    def hand_over(self) -> list[Member]:
        """Give up the members, to a group whose partitions the broker assigns. Whatever waits is answered so that
        clients join again."""
        members = list(self._roster)
        self.end(ErrorCode.REBALANCE_IN_PROGRESS)
        return members

    # --- committing

    def commit_error(
        self, member_id: str, instance_id: str | None, generation: int, *, transactional: bool = False
    ) -> ErrorCode:
        """Whether offsets may be committed with these. Without a member id and a generation they come from somebody
        who assigns partitions without the group, or from an administrator: only while it has no members."""
        if self.state is State.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and not len(self._roster):
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = self._request_error(member_id, instance_id, generation)
        if error is ErrorCode.NONE:
            self._roster[member_id].alive()
            if self.state is State.COMPLETING and not transactional:
                return ErrorCode.REBALANCE_IN_PROGRESS
        return error


def _new_id(request: JoinRequest) -> str:
    return f"{request.instance_id or request.client_id}-{uuid.uuid4()}"
