"""`GroupClaim`: a broker's hold on one group, while it has members or somebody needs it.

It is taken before the first member joins, so that no consumer that opens the store itself joins as well, and released
when nobody uses it, after everything that members committed is written (`topics.groups.serving`).

All methods belong to the event loop's thread; taking and releasing run in threads.

`Entries`: the groups that a broker knows. A group is of the classic protocol until a member of the one in which the
broker assigns joins it; then it is of that one until it is empty (`classic_members`).

Threads: the event loop's.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ...errors import GroupActive
from ...store.assignment import Share
from ...store.served import ClaimAttempt, Taken
from ..wire.errors import ErrorCode
from .classic_group import Group, State
from .classic_members import ClassicMembers
from .commits import Run
from .consumer_group import ConsumerGroup
from .members import CONSUMER
from .settings import Alarm, GroupConfig
from .stored import GroupSummary

#: How often to look whether a member that sends no heartbeats has expired.
_PAUSE_S = 0.25


class GroupClaim:
    """Being the one that admits members to a group."""

    def __init__(
        self,
        new_claim: Callable[[], ClaimAttempt],
        run: Run,
        *,
        is_needed: Callable[[], bool],
        before_release: Callable[[], Awaitable[None]],
    ) -> None:
        self._new_claim = new_claim
        self._run = run
        #: Whether the group has members, or anything else for which it must be kept.
        self._is_needed = is_needed
        self._before_release = before_release
        self._served: Taken | None = None
        self._users = 0
        self._changing = asyncio.Lock()
        self._releasing: asyncio.Task[None] | None = None

    @property
    def is_held(self) -> bool:
        """Whether it is held: what is committed now is written before it is released."""
        return self._served is not None

    @property
    def is_lost(self) -> bool:
        """Whether somebody else has it by now."""
        return self._served is not None and not self._served.current

    @property
    def is_idle(self) -> bool:
        """Whether it is not held, and nobody is about to use it."""
        return self._served is None and not self._users and not self._changing.locked()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold it in this block, and after it as long as it is needed. `GroupActive` if others are in the group."""
        self._users += 1
        try:
            if self._served is None:
                # Not cancelled with the request: it would be held, and nobody would know.
                taking = asyncio.ensure_future(self._take())
                taking.add_done_callback(lambda done: done.cancelled() or done.exception())
                await asyncio.shield(taking)
            yield
        finally:
            self._users -= 1
            self.let_go()

    async def _take(self) -> None:
        async with self._changing:
            if self._served is None and self._users:
                claim = self._new_claim()
                try:
                    self._served = await self._attempt(claim)
                finally:
                    await self._run(claim.close)

    async def _attempt(self, claim: ClaimAttempt) -> Taken:
        """Take it; wait for the session of a member that does not say anything."""
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

    def let_go(self) -> None:
        """Release it soon, if nobody needs it."""
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
        """Release it if nobody needs it, and wait until that is done."""
        self.let_go()
        if self._releasing is not None:
            await self._releasing
        async with self._changing:
            pass  # somebody who has given up may still be taking it


@dataclass(slots=True)
class Entry:
    """One group. One of the two is empty: `consumers` may also have members of the classic protocol."""

    name: str
    classic: Group
    consumers: ConsumerGroup
    claim: GroupClaim
    #: Rings when the group was empty for so long that it is forgotten.
    forgetting: Alarm
    config: GroupConfig

    @property
    def mixed(self) -> ClassicMembers:
        """The classic protocol, for a group whose partitions the broker assigns."""
        return ClassicMembers(self.consumers, self.config)

    @property
    def can_migrate(self) -> bool:
        """Whether the members of the classic protocol are consumers, so that the broker can assign their partitions."""
        return self.classic.protocol_type in (None, CONSUMER) and (
            self.classic.is_empty or self.classic.topics is not None
        )

    @property
    def is_empty(self) -> bool:
        """Whether it has no members of either protocol."""
        return self.classic.is_empty and self.consumers.is_empty

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that its members read; None if they do not say."""
        return self.classic.topics if self.consumers.is_empty else self.consumers.topics

    @property
    def summary(self) -> GroupSummary | None:
        """For those who look at it; None if nobody has ever joined."""
        classic, consumers = self.classic, self.consumers
        if not consumers.is_empty or (consumers.has_begun and classic.protocol_type is None):
            return GroupSummary(self.name, CONSUMER, consumers.state, consumers.assignor, (), "consumer")
        if classic.protocol_type is None or (classic.is_empty and not classic.generation):
            return None
        protocol = (classic.protocol or "") if classic.state is State.STABLE else ""
        return GroupSummary(self.name, classic.protocol_type, classic.state.value, protocol, classic.members)

    def commit_error(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        partitions: Iterable[Share],
        *,
        transactional: bool,
    ) -> ErrorCode:
        """Whether offsets of these partitions may be committed with these."""
        if self.consumers.is_empty:
            return self.classic.commit_error(member_id, instance_id, generation, transactional=transactional)
        if generation < 0 and not member_id:
            return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = self.consumers.commit_error(member_id, generation, partitions)
        if transactional and error is ErrorCode.STALE_MEMBER_EPOCH:
            # TxnOffsetCommit knows no epochs: with their error librdkafka waits for ever.
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def fetch_error(self, member_id: str, epoch: int) -> ErrorCode:
        """Whether a member may fetch offsets. As in Kafka, only groups of KIP-848 check the member and its epoch: in
        a classic group every client may fetch. Some classic members (franz-go's) send their id and generation."""
        is_classic = self.consumers.is_empty and self.classic.protocol_type is not None
        return ErrorCode.NONE if is_classic else self.consumers.epoch_error(member_id, epoch)

    def end(self, error: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> None:
        """Forget the members; answer whatever waits."""
        self.classic.end(error)
        self.consumers.end()


#: The first epoch of a group is below this: librdkafka 2.16 takes the first byte of an epoch for a part of the member's
#: id unless it is zero, so that no epoch may reach 2**24.
_FIRST_EPOCHS = 1 << 22


class Entries:
    """The groups of one broker, by name."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: GroupConfig,
        run: Run,
        *,
        new_claim: Callable[[str], ClaimAttempt],
        is_pending: Callable[[str], bool],
        before_release: Callable[[], Awaitable[None]],
    ) -> None:
        self._loop = loop
        self._config = config
        self._run = run
        self._new_claim = new_claim
        #: Whether a transaction will commit offsets of a group: then nobody else may join it either.
        self._is_pending = is_pending
        self._before_release = before_release
        self._entries: dict[str, Entry] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def get(self, name: str) -> Entry | None:
        """A group; None if this broker does not know it."""
        return self._entries.get(name)

    def need(self, name: str) -> Entry:
        """A group, whether it has members or not."""
        found = self._entries.get(name)
        if found is None:
            claim = GroupClaim(
                lambda: self._new_claim(name),
                self._run,
                is_needed=lambda: self.is_needed(name),
                before_release=self._before_release,
            )
            forgetting = Alarm(self._loop, lambda: self._forget(name))
            found = Entry(name, self.new_classic(name), self.new_consumers(name), claim, forgetting, self._config)
            self._entries[name] = found
            forgetting.set(self._config.group_empty_ms)
        return found

    def new_classic(self, name: str) -> Group:
        """A group of the classic protocol without members."""
        return Group(name, self._loop, self._config, lambda: self._emptied(name))

    def new_consumers(self, name: str) -> ConsumerGroup:
        """A group without members, whose partitions the broker assigns."""
        first_epoch = secrets.randbelow(_FIRST_EPOCHS)
        return ConsumerGroup(name, self._loop, self._config, lambda: self._emptied(name), first_epoch=first_epoch)

    def is_needed(self, name: str) -> bool:
        """Whether a group has members, or a transaction holds offsets of it."""
        entry = self._entries.get(name)
        return (entry is not None and not entry.is_empty) or self._is_pending(name)

    def is_held(self, name: str) -> bool:
        """Whether nobody else can join a group now."""
        entry = self._entries.get(name)
        return entry is not None and entry.claim.is_held

    def give_up(self, name: str) -> None:
        """Another broker has a group: forget its members, who look for that broker."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            entry.forgetting.stop()
            entry.end(ErrorCode.NOT_COORDINATOR)
            entry.claim.let_go()

    def let_go(self, name: str) -> None:
        """Let others join a group soon, if nobody needs it."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.claim.let_go()

    def _emptied(self, name: str) -> None:
        entry = self._entries.get(name)
        if entry is not None:
            entry.claim.let_go()
            entry.forgetting.set(self._config.group_empty_ms)

    def _forget(self, name: str) -> None:
        """Nobody has used a group for a while; its offsets are in the store."""
        entry = self._entries[name]
        if not self.is_needed(name) and entry.claim.is_idle:
            del self._entries[name]
        else:
            entry.forgetting.set(self._config.group_empty_ms)

    def end(self) -> None:
        """Forget all members; answer whatever waits."""
        for entry in self:
            entry.forgetting.stop()
            entry.end()

    async def close(self) -> None:
        """Let others join the groups."""
        self.end()
        for entry in self:
            await entry.claim.close()
        self._entries.clear()
