"""`GroupEntry`: one group that a broker coordinates, and the broker's claim on it.

A group uses the classic protocol until a KIP-848 member joins; from then on the broker assigns its partitions until the
group is empty (`classic_members`).

`GroupClaim` is the broker's exclusive right to admit members to a group. The broker takes it before the first member
joins, so that no consumer that opens the store directly joins as well. It releases the claim when the group is no
longer in use, after writing everything that members committed.

All methods belong to the event loop's thread; taking and releasing a claim run in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import GroupActive
from ...store.base import TopicPartition
from ...store.groups import CoordinatorClaim
from ..config import BrokerConfig
from ..wire.errors import ErrorCode
from .classic_group import ClassicGroup, GroupState
from .classic_members import ClassicProtocolAdapter
from .consumer_group import ConsumerGroup
from .members import CONSUMER, DeadlineTimer
from .stored import GroupSummary

if TYPE_CHECKING:
    from ..broker import Broker

#: Interval between checks whether a member without heartbeats has expired.
_PAUSE_S = 0.25


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


@dataclass(slots=True)
class GroupEntry:
    """One group. Either `classic` or `consumers` is empty; `consumers` may include members of the classic protocol."""

    name: str
    classic: ClassicGroup
    consumers: ConsumerGroup
    claim: GroupClaim
    #: Fires when the group has been empty long enough to be dropped.
    forgetting: DeadlineTimer
    config: BrokerConfig

    @property
    def mixed(self) -> ClassicProtocolAdapter:
        """The classic protocol, for a group whose partitions the broker assigns."""
        return ClassicProtocolAdapter(self.consumers, self.config)

    @property
    def can_migrate(self) -> bool:
        """True if the classic members are consumers, so that the broker can assign their partitions."""
        return self.classic.protocol_type in (None, CONSUMER) and (
            self.classic.is_empty or self.classic.topics is not None
        )

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

    def commit_error(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        partitions: Iterable[TopicPartition],
        *,
        transactional: bool,
    ) -> ErrorCode:
        """Return the error for a commit of these partitions, or NONE."""
        if self.consumers.is_empty:
            return self.classic.commit_error(member_id, instance_id, generation, transactional=transactional)
        if generation < 0 and not member_id:
            return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = self.consumers.commit_error(member_id, generation, partitions)
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

    def end(self, error: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> None:
        """Drop the members and answer pending requests."""
        self.classic.end(error)
        self.consumers.end()
