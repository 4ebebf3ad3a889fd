"""`Group`: one group that a broker coordinates, in either protocol, and the broker's claim on it.

`GroupClaim` is the broker's exclusive right to admit members to a group. The broker takes it before the first member
joins, so that no consumer that opens the store directly joins as well. It releases the claim when the group is no
longer in use, after writing everything that members committed. Taking and releasing a claim run in threads.

A group uses the classic protocol until a member of KIP-848 joins. Applications change `group.protocol` one instance at
a time, so for a while a group has members of both protocols (the online migration of KIP-848). From the first member of
KIP-848 on, the broker assigns the partitions of all, and answers the classic protocol as follows:

- JoinGroup is answered immediately, without a leader. It carries the member's subscription and the partitions it still
  owns, so it counts as a heartbeat; the generation is the member's epoch.
- SyncGroup returns the partitions that the member may own now.
- Heartbeat is answered with REBALANCE_IN_PROGRESS while the member must rejoin: to give up partitions, or because some
  are free for it. A member that does not rejoin within its rebalance timeout is removed.

The group stays in this mode until it is empty, even when only members of the classic protocol remain.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ...errors import GroupActive
from ...store.base import TopicPartition
from ...store.groups import CoordinatorClaim
from ..config import BrokerConfig
from ..wire import ErrorCode
from .classic_group import ClassicGroup, GroupState
from .consumer_group import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    HeartbeatRequest,
    HeartbeatResponse,
    TopicInfo,
)
from .members import (
    CONSUMER,
    DeadlineTimer,
    JoinRequest,
    JoinResponse,
    Sender,
    SyncRequest,
    SyncResponse,
    assigned_partitions,
    encode_assignment,
    owned_partitions,
    subscribed_topics,
)
from .stored import GroupSummary

if TYPE_CHECKING:
    from ..broker import Broker

_logger = logging.getLogger("sawlog.broker.groups")

#: Interval between checks whether a member without heartbeats has expired.
_PAUSE_S = 0.25
#: Upper bound of a group's first epoch. librdkafka 2.16 takes the first byte of an epoch for part of the member id
#: unless it is zero, so no epoch may reach 2**24.
_FIRST_EPOCHS = 1 << 22


class GroupClaim:
    """The exclusive right to admit members to a group."""

    def __init__(
        self,
        new_claim: Callable[[], CoordinatorClaim],
        broker: Broker,
        *,
        is_needed: Callable[[], bool],
        before_release: Callable[[], Awaitable[None]],
    ) -> None:
        self._new_claim = new_claim
        self._run = broker.run
        #: Tells whether the group has members, or another reason to be kept.
        self._is_needed = is_needed
        self._before_release = before_release
        self._served: CoordinatorClaim | None = None
        self._users = 0
        self._changing = asyncio.Lock()
        self._releasing: asyncio.Task[None] | None = None

    @property
    def is_held(self) -> bool:
        """True if it is held. Offsets committed now are written before it is released."""
        return self._served is not None

    @property
    def is_lost(self) -> bool:
        """True if another process has taken it."""
        return self._served is not None and not self._served.current

    @property
    def is_idle(self) -> bool:
        """True if it is not held and no caller is about to use it."""
        return self._served is None and not self._users and not self._changing.locked()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the claim in this block, and afterwards as long as it is needed. Raise `GroupActive` if the group has
        members elsewhere."""
        self._users += 1
        try:
            if self._served is None:
                # Not cancelled with the request: otherwise it could be held without anyone knowing.
                taking = asyncio.ensure_future(self._take())
                taking.add_done_callback(lambda done: done.cancelled() or done.exception())
                await asyncio.shield(taking)
            yield
        finally:
            self._users -= 1
            self.release_if_unused()

    async def _take(self) -> None:
        async with self._changing:
            if self._served is None and self._users:
                claim = self._new_claim()
                try:
                    await self._attempt(claim)
                    self._served = claim
                finally:
                    if self._served is None:
                        await self._run(claim.release)

    async def _attempt(self, claim: CoordinatorClaim) -> None:
        """Take the claim; wait for the session of a silent member to expire."""
        while True:
            try:
                return await self._run(claim.take)
            except GroupActive:
                await asyncio.sleep(_PAUSE_S)
                if not await self._run(lambda: claim.may_succeed):
                    raise

    @property
    def _is_used(self) -> bool:
        return self._users > 0 or self._is_needed()

    def release_if_unused(self) -> None:
        """Release the claim soon, unless it is needed."""
        if not self._is_used and self._releasing is None:
            self._releasing = asyncio.ensure_future(self._release())

    async def _release(self) -> None:
        try:
            async with self._changing:
                while self._served is not None and not self._is_used:
                    await self._before_release()
                    if not self._is_used:
                        served, self._served = self._served, None
                        await self._run(served.release)
        finally:
            self._releasing = None

    async def close(self) -> None:
        """Release the claim unless it is needed, and wait until that is done."""
        self.release_if_unused()
        if self._releasing is not None:
            await self._releasing
        async with self._changing:
            pass  # a cancelled caller may still be taking it


class Group:
    """One group. Either `classic` or `consumers` is empty; `consumers` may include members of the classic protocol."""

    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        claim: GroupClaim,
        *,
        on_empty: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> None:
        """`on_empty` is called when the last member is gone, `on_idle` when `forgetting` fires."""
        self.name, self.claim = name, claim
        self._loop, self._config, self._on_empty = loop, config, on_empty
        #: Fires when the group has been empty long enough to be dropped.
        self.forgetting = DeadlineTimer(loop, on_idle)
        self.reset()

    def reset(self) -> None:
        """Replace both groups by empty ones."""
        self.classic = self._new_classic()
        first_epoch = secrets.randbelow(_FIRST_EPOCHS)
        self.consumers = ConsumerGroup(self.name, self._loop, self._config, self._on_empty, first_epoch=first_epoch)

    def _new_classic(self) -> ClassicGroup:
        return ClassicGroup(self.name, self._loop, self._config, self._on_empty)

    def end(self, error: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> None:
        """Drop the members and answer pending requests."""
        self.classic.end(error)
        self.consumers.end()

    # --- properties

    @property
    def is_empty(self) -> bool:
        """True if the group has no members of either protocol."""
        return self.classic.is_empty and self.consumers.is_empty

    @property
    def topics(self) -> frozenset[str] | None:
        """Topics that the members read; None if unknown."""
        return self.classic.topics if self.consumers.is_empty else self.consumers.topics

    @property
    def summary(self) -> GroupSummary | None:
        """Summary for listing and describing; None if no member has ever joined."""
        classic, consumers = self.classic, self.consumers
        if not consumers.is_empty or (consumers.has_begun and classic.protocol_type is None):
            return GroupSummary(self.name, CONSUMER, consumers.state, consumers.assignor, (), "consumer")
        if classic.protocol_type is None or (classic.is_empty and not classic.generation):
            return None
        protocol = (classic.protocol or "") if classic.state is GroupState.STABLE else ""
        return GroupSummary(self.name, classic.protocol_type, classic.state.value, protocol, classic.members)

    # --- KIP-848

    def join_consumers(self, beat: HeartbeatRequest, topics: Mapping[str, TopicInfo]) -> HeartbeatResponse:
        """Answer the first heartbeat of a member. The broker assigns the partitions of all members from now on."""
        classic = self.classic
        if not classic.is_empty and (classic.protocol_type not in (None, CONSUMER) or classic.topics is None):
            why = f"{self.name!r} is a group of the classic protocol ({classic.protocol_type})"
            return HeartbeatResponse(ErrorCode.GROUP_ID_NOT_FOUND, why)
        if not classic.is_empty or classic.protocol_type is not None:
            self.classic = self._new_classic()
            self._adopt(classic, topics)
        return self.consumers.heartbeat(beat, topics)

    def _adopt(self, classic: ClassicGroup, topics: Mapping[str, TopicInfo]) -> None:
        """Take over the members of a classic group, with the partitions they own."""
        members = classic.hand_over()
        for each in members:
            if each.is_new and not each.knows_id:
                continue  # it will rejoin under a new id
            owned = assigned_partitions(each.assignment)
            made = self.consumers.adopt(each.id, each.instance_id, classic.generation, _by_id(owned, topics))
            made.client_id, made.client_host = each.client_id, each.client_host
            made.topics = frozenset().union(*(subscribed_topics(said) or () for _, said in each.protocols[:1]))
            _keep(made, each.session_timeout_ms, each.rebalance_timeout_ms)
        if members:
            _logger.info("group %s: the broker now assigns its partitions", self.name)

    # --- the classic protocol

    def join(
        self, request: JoinRequest, topics: Mapping[str, TopicInfo], answer: Callable[[JoinResponse], None]
    ) -> None:
        """Process a JoinGroup request. The answer may come much later."""
        if self.consumers.is_empty:
            self.classic.join(request, answer)
        else:
            answer(self._joined(request, topics))

    def _joined(self, request: JoinRequest, topics: Mapping[str, TopicInfo]) -> JoinResponse:
        group, topic_names = self.consumers, subscribed_topics(request.protocols[0][1]) if request.protocols else None
        error = self._join_error(request, topic_names)
        if error is not ErrorCode.NONE:
            return JoinResponse(error, request.member_id)
        before = group.static_member(request.instance_id)
        if before is not None and not request.member_id:
            before.epoch = STATIC_LEAVE_EPOCH  # it has restarted and takes over its own partitions
        known = group.member(request.member_id)
        response = group.heartbeat(
            HeartbeatRequest(
                member_id=request.member_id or f"{request.instance_id or request.client_id}-{uuid.uuid4()}",
                epoch=JOIN_EPOCH if known is None else known.epoch,
                client_id=request.client_id,
                client_host=request.client_host,
                instance_id=request.instance_id,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                topics=topic_names,
                pattern="",
                owned=frozenset() if known is None else _by_id(owned_partitions(request.protocols[0][1]), topics),
            ),
            topics,
        )
        member = group.member(response.member_id or "")
        if member is None:
            return JoinResponse(response.error, request.member_id)
        _keep(member, request.session_timeout_ms, request.rebalance_timeout_ms)
        if not member.revoking:
            member.revoking_alarm.stop()
        return JoinResponse(ErrorCode.NONE, member.id, member.epoch, CONSUMER, request.protocols[0][0])

    def _join_error(self, request: JoinRequest, topics: frozenset[str] | None) -> ErrorCode:
        least, most = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
        if not least <= request.session_timeout_ms <= most:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if request.protocol_type != CONSUMER or topics is None:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.member_id:
            return self.consumers.member_error(request.member_id, request.instance_id)
        return ErrorCode.NONE

    def sync(self, request: SyncRequest, answer: Callable[[SyncResponse], None]) -> None:
        """Process a SyncGroup request. The answer comes when the leader has assigned."""
        if self.consumers.is_empty:
            self.classic.sync(request, answer)
            return
        error = self.consumers.epoch_error(request.member_id, request.generation, request.instance_id)
        member = self.consumers.member(request.member_id)
        if error is not ErrorCode.NONE or member is None:
            answer(SyncResponse(error))
            return
        member.session.set(member.session_timeout_ms)
        if self.consumers.has_newer_target(member) and not member.revoking:
            answer(SyncResponse(_rejoin(member)))
            return
        names = self.consumers.names(member.assigned)
        answer(SyncResponse(ErrorCode.NONE, CONSUMER, request.protocol, encode_assignment(names)))

    def heartbeat(self, sender: Sender, topics: Mapping[str, TopicInfo]) -> ErrorCode:
        if self.consumers.is_empty:
            return self.classic.heartbeat(*sender)
        error = self.consumers.epoch_error(sender.member_id, sender.generation, sender.instance_id)
        member = self.consumers.member(sender.member_id)
        if error is not ErrorCode.NONE or member is None:
            return error
        member.session.set(member.session_timeout_ms)
        self.consumers.refresh_topics(topics)
        return _rejoin(member) if self.consumers.must_reconcile(member) else ErrorCode.NONE

    def leave(self, members: Sequence[tuple[str, str | None]]) -> Sequence[ErrorCode]:
        """Process a LeaveGroup request: (member id, instance id) of each member."""
        return self.classic.leave(members) if self.consumers.is_empty else self.consumers.remove(members)

    # --- offsets

    def commit_error(self, sender: Sender, partitions: Iterable[TopicPartition], *, transactional: bool) -> ErrorCode:
        """Return the error for a commit of these partitions, or NONE."""
        if self.consumers.is_empty:
            return self.classic.commit_error(*sender, transactional=transactional)
        if sender.generation < 0 and not sender.member_id:
            return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = self.consumers.commit_error(sender.member_id, sender.generation, partitions)
        if transactional and error is ErrorCode.STALE_MEMBER_EPOCH:
            # TxnOffsetCommit has no epochs: after an epoch error librdkafka waits forever.
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def fetch_error(self, member_id: str, epoch: int) -> ErrorCode:
        """Return the error for a fetch of offsets, or NONE. As in Kafka, only KIP-848 groups check the member and its
        epoch: in a classic group every client may fetch. Some classic members (franz-go's) send their id and
        generation."""
        is_classic = self.consumers.is_empty and self.classic.protocol_type is not None
        return ErrorCode.NONE if is_classic else self.consumers.epoch_error(member_id, epoch)


def _keep(member: ConsumerMember, session_timeout_ms: int, rebalance_timeout_ms: int) -> None:
    """Keep a member of the classic protocol until its session expires."""
    member.is_classic = True
    member.session_timeout_ms, member.rebalance_timeout_ms = session_timeout_ms, rebalance_timeout_ms
    member.session.set(session_timeout_ms)


def _rejoin(member: ConsumerMember) -> ErrorCode:
    """Make a member rejoin, and limit the time that it may take."""
    if not member.revoking_alarm.is_set:
        member.revoking_alarm.set(member.rebalance_timeout_ms)
    return ErrorCode.REBALANCE_IN_PROGRESS


def _by_id(partitions: Iterable[TopicPartition], topics: Mapping[str, TopicInfo]) -> frozenset[TopicPartition]:
    """Translate topic names into ids. Partitions of deleted topics are left out."""
    return frozenset((topics[name].id, number) for name, number in partitions if name in topics)
