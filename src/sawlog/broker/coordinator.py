"""`Coordinator`: the consumer groups of a broker. It finds the group of each request, and knows what is committed.

Who is a member is in memory: after a restart of the broker members join again, as Kafka's clients do by themselves.
Offsets are in the store's own groups log, so that a group continues in Python without the broker, and back. While a
group has members here, nobody else joins it (`groups.claims`).

All methods belong to the event loop's thread. What may wait for the disk runs in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from ..errors import GroupActive, GroupNotFound, InvalidConfig, SawlogError
from ..store.assignment import Share
from ..store.committed_offsets import Committed
from ..store.members import check_group_name
from ..store.served import StoreService
from .groups.commits import Commit, CommitQueue, NewOffset, Run, StagedOffsets
from .groups.consumer_group import JOINING, Beat, ConsumerGroup, Told, TopicInfo
from .groups.members import Joined, JoinRequest, Synced, SyncRequest, subscribed_topics
from .groups.registry import Entries, Entry
from .groups.settings import GroupConfig
from .groups.stored import GroupSummary, Topics, missing_partitions, stored_group, stored_groups, topic_infos
from .wire.errors import ErrorCode

_logger = logging.getLogger("sawlog.broker.groups")


class Coordinator:
    """The groups of one broker. `address` says where clients connect: consumers that open the store are told it."""

    def __init__(
        self,
        store: StoreService,
        loop: asyncio.AbstractEventLoop,
        config: GroupConfig,
        *,
        run: Run,
        address: Callable[[], str],
        coordinates: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.config = config
        self._store = store
        self._loop = loop
        self._run = run
        #: Whether this broker is asked for a group, and not another one.
        self._coordinates = coordinates
        self._commits = CommitQueue(store, loop, run)
        self._staged = StagedOffsets()
        self._entries = Entries(
            loop,
            config,
            run,
            new_claim=lambda name: store.groups.claim(name, address()),
            is_pending=lambda name: bool(self._staged.pending(name)),
            before_release=self._commits.settled,
        )
        self._is_stopping = False
        #: Taking groups again after a restart.
        self._holding: set[asyncio.Future[None]] = set()

    def name_error(self, name: str) -> ErrorCode:
        """Why nothing can be done for a group of that name."""
        if self._is_stopping:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            check_group_name(name)
        except InvalidConfig:
            return ErrorCode.INVALID_GROUP_ID
        return ErrorCode.NONE if self._coordinates(name) else ErrorCode.NOT_COORDINATOR

    # --- members of the classic protocol

    async def join(self, name: str, request: JoinRequest) -> Joined:
        """A JoinGroup request; answered when the next generation begins."""
        refused = self.name_error(name)
        if refused is not ErrorCode.NONE:
            return Joined(refused, request.member_id)
        if request.member_id and self._entries.get(name) is None:
            return Joined(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
        entry = self._entries.need(name)
        future: asyncio.Future[Joined] = self._loop.create_future()

        def answer(joined: Joined) -> None:
            if not future.done():
                future.set_result(joined)

        try:
            async with entry.claim.held():
                topics = {} if entry.consumers.is_empty else await self._topics_of(entry, _subscribed(request))
                if not entry.consumers.is_empty:
                    return entry.mixed.join(request, topics)
                entry.classic.join(request, answer)
        except GroupActive as error:
            _logger.warning("client %s may not join: %s", request.client_id, error)
            return Joined(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        try:
            return await future
        except asyncio.CancelledError:
            entry.classic.gave_up(answer)
            raise

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        """A SyncGroup request; answered when the leader has assigned."""
        entry = self._entries.get(name)
        if entry is None:
            return Synced(self.name_error(name) or ErrorCode.UNKNOWN_MEMBER_ID)
        if not entry.consumers.is_empty:
            return entry.mixed.sync(request)
        future: asyncio.Future[Synced] = self._loop.create_future()
        entry.classic.sync(request, lambda synced: None if future.done() else future.set_result(synced))
        return await future

    async def heartbeat(self, name: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A Heartbeat request."""
        entry = self._entries.get(name)
        if entry is None:
            return self.name_error(name) or ErrorCode.UNKNOWN_MEMBER_ID
        if not entry.consumers.is_empty:
            return entry.mixed.heartbeat(member_id, instance_id, generation, await self._topics_of(entry))
        return entry.classic.heartbeat(member_id, instance_id, generation)

    def leave(self, name: str, members: Sequence[tuple[str, str | None]]) -> Sequence[ErrorCode]:
        """A LeaveGroup request: (member id, instance id) of each."""
        entry = self._entries.get(name)
        if entry is None:
            return [self.name_error(name) or ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        return entry.classic.leave(members) if entry.consumers.is_empty else entry.consumers.remove(members)

    # --- members whose partitions this broker assigns

    async def consumer_heartbeat(self, name: str, beat: Beat) -> Told:
        """A ConsumerGroupHeartbeat request."""
        refused = self.name_error(name)
        if refused is not ErrorCode.NONE:
            return Told(refused)
        if beat.epoch != JOINING:
            entry = self._entries.get(name)
            if entry is None:
                return Told(ErrorCode.UNKNOWN_MEMBER_ID, "the member has to join again")
            topics = await self._topics_of(entry, beat.topics, every=bool(beat.pattern))
            return entry.consumers.heartbeat(beat, topics)
        entry = self._entries.need(name)
        try:
            async with entry.claim.held():
                topics = await self._topics_of(entry, beat.topics, every=bool(beat.pattern))
                if not entry.can_migrate and not entry.classic.is_empty:
                    kind = entry.classic.protocol_type
                    return Told(ErrorCode.GROUP_ID_NOT_FOUND, f"{name!r} is a group of the classic protocol ({kind})")
                if not entry.classic.is_empty or entry.classic.protocol_type is not None:
                    members, generation = entry.classic.hand_over(), entry.classic.generation
                    entry.classic = self._entries.new_classic(name)
                    entry.mixed.adopt(members, generation, topics)
                return entry.consumers.heartbeat(beat, topics)
        except GroupActive as error:
            _logger.warning("client %s may not join: %s", beat.client_id, error)
            return Told(ErrorCode.GROUP_ID_NOT_FOUND, str(error))

    async def _topics_of(
        self, entry: Entry, more: frozenset[str] | None = None, *, every: bool = False
    ) -> Mapping[str, TopicInfo]:
        """The topics that members read, and `more`: as they are now, since other processes change them."""
        group, classic = entry.consumers, entry.classic.topics
        names = None if every or group.has_patterns else group.topics | (classic or frozenset()) | (more or frozenset())
        return await self._run(lambda: topic_infos(self._store, names))

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """A group whose partitions this broker assigns; None if there is none."""
        entry = self._entries.get(name)
        found = None if entry is None else entry.summary
        return entry.consumers if entry is not None and found is not None and found.type == "consumer" else None

    # --- offsets

    async def commit(
        self,
        name: str,
        offsets: Mapping[Share, NewOffset],
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
    ) -> dict[Share, ErrorCode]:
        """An OffsetCommit request: durable when it returns, but for those whose code is not NONE."""
        error = self._commit_error(name, member_id, instance_id, generation, offsets)
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        codes = self._unfit(offsets)
        rest = {share: new for share, new in offsets.items() if share not in codes}
        if rest:
            commit = Commit(name, rest, member_id, by_server=self._entries.is_held(name))
            codes.update(await self._commits.write(commit))
        return codes

    def _commit_error(
        self,
        name: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        partitions: Iterable[Share],
        *,
        transactional: bool = False,
    ) -> ErrorCode:
        error = self.name_error(name)
        if error is not ErrorCode.NONE:
            return error
        entry = self._entries.get(name)
        if entry is not None:
            return entry.commit_error(member_id, instance_id, generation, partitions, transactional=transactional)
        # Members of both protocols join again when they are told this. Kafka says other things here, of which Java's
        # consumer of KIP-848 makes a fatal error; but Kafka still knows its members after a restart.
        return ErrorCode.NONE if generation < 0 else ErrorCode.UNKNOWN_MEMBER_ID

    def _unfit(self, offsets: Mapping[Share, NewOffset]) -> dict[Share, ErrorCode]:
        """What cannot be stored."""
        codes: dict[Share, ErrorCode] = {}
        for share, new in offsets.items():
            if len(new.metadata) > self.config.offset_metadata_max_bytes:
                codes[share] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif new.offset >= 2**62:  # a negative one says where to begin
                codes[share] = ErrorCode.INVALID_REQUEST
        return codes

    def fetch_error(self, name: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Why an OffsetFetch request is refused. A request without a member id or an epoch comes from a tool, or from
        a client that does not send them, and is always accepted."""
        error = self.name_error(name)
        if error is not ErrorCode.NONE or not member_id or epoch < 0:
            return error
        entry = self._entries.get(name)
        return ErrorCode.UNKNOWN_MEMBER_ID if entry is None else entry.fetch_error(member_id, epoch)

    async def fetch(self, name: str, shares: Iterable[Share] | None) -> dict[Share, Committed]:
        """What a group has committed, of these partitions or of all. Offsets of topics that were deleted or recreated
        do not count."""

        def read() -> dict[Share, Committed]:
            found = self._store.groups.offsets.of(name)
            wanted = found if shares is None else {share: found[share] for share in shares if share in found}
            return Topics(self._store).valid(wanted)

        await self._commits.settled()
        return await self._run(read)

    def pending_offsets(self, name: str) -> frozenset[Share]:
        """The partitions whose offsets a transaction that has not ended will change."""
        return self._staged.pending(name)

    async def delete_offsets(self, name: str, shares: Iterable[Share]) -> tuple[ErrorCode, dict[Share, ErrorCode]]:
        """An OffsetDelete request. Of topics that members read nothing is deleted."""
        error = self.name_error(name)
        if error is not ErrorCode.NONE:
            return error, {}
        wanted = list(shares)
        entry = self._entries.get(name)
        if (entry is None or entry.summary is None) and name not in await self._run(self._store.groups.list):
            return ErrorCode.GROUP_ID_NOT_FOUND, {}
        subscribed = frozenset[str]() if entry is None or entry.is_empty else entry.topics
        if subscribed is None:
            return ErrorCode.NON_EMPTY_GROUP, {}
        codes = {share: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for share in wanted if share[0] in subscribed}
        rest = dict.fromkeys(share for share in wanted if share not in codes)
        if rest:
            codes.update(await self._commits.write(Commit(name, rest, by_server=self._entries.is_held(name))))
        refused = {share for share, code in codes.items() if code is ErrorCode.UNKNOWN_MEMBER_ID}
        return ErrorCode.NONE, {**codes, **dict.fromkeys(refused, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)}

    async def topic_ids(self, names: Iterable[str] | None = None) -> Mapping[str, bytes]:
        """The ids of these topics, or of all, as they are on the wire."""
        found = await self._run(lambda: topic_infos(self._store, names))
        return {name: UUID(each.id).bytes for name, each in found.items()}

    # --- offsets of transactions

    def stage_in(self, staged: StagedOffsets) -> None:
        """Where they are kept until their transaction ends."""
        self._staged = staged

    async def stage_offsets(
        self,
        producer_id: int,
        name: str,
        offsets: Mapping[Share, NewOffset],
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
    ) -> dict[Share, ErrorCode]:
        """A TxnOffsetCommit request: offsets that are committed when the producer's transaction is.

        They are kept in memory. Whoever calls this makes them durable with the transaction, and after a restart gives
        them again with `restage_offsets`, before the transaction is completed and before clients are served.
        """
        error = self._commit_error(name, member_id, instance_id, generation, offsets, transactional=True)
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        codes = {**dict.fromkeys(offsets, ErrorCode.NONE), **self._unfit(offsets)}
        missing = await self._run(lambda: missing_partitions(self._store, list(offsets)))
        codes.update(dict.fromkeys(missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        fit = {share: new for share, new in offsets.items() if codes[share] is ErrorCode.NONE}
        try:
            async with self._entries.need(name).claim.held():
                if fit:
                    self._staged.add(producer_id, name, fit)
        except GroupActive as active:
            _logger.warning("offsets of a transaction were refused: %s", active)
            codes.update(dict.fromkeys(fit, ErrorCode.UNKNOWN_MEMBER_ID))
        return codes

    def restage_offsets(self, producer_id: int, name: str, offsets: Mapping[Share, NewOffset]) -> None:
        """The same after a restart, for a transaction that has not ended: nothing is checked again. Whoever joined the
        group while there was no broker stays in it; nobody else joins."""
        self._staged.add(producer_id, name, offsets)
        holding = asyncio.ensure_future(self._hold(name))
        self._holding.add(holding)
        holding.add_done_callback(self._holding.discard)

    async def _hold(self, name: str) -> None:
        """Keep others out of a group as long as it is needed."""
        try:
            async with self._entries.need(name).claim.held():
                pass
        except SawlogError as error:
            _logger.warning("a transaction will move the group %r, which is in use: %s", name, error)

    async def complete_offsets(
        self, producer_id: int, commit: bool, *, transaction: tuple[str, str] | None = None
    ) -> None:
        """A producer's transaction has ended: commit its offsets durably, or forget them.

        May be called again after a crash. With the transaction's name and a mark that differs for each transaction of
        that name, its offsets are committed only once, though a group may have moved on since. Raises an error of the
        store if they could not be written: they are still staged then.
        """
        if commit:
            staged = self._staged.of(producer_id)
            await self._commits.write_together(
                [Commit(name, dict(offsets), transaction=transaction) for name, offsets in staged.items()]
            )
        for name in self._staged.drop(producer_id):
            self._entries.let_go(name)

    # --- looking and deleting

    async def list(self) -> Sequence[GroupSummary]:
        """All groups: those that have members here, and those of the store."""
        await self._commits.settled()
        found = await self._run(lambda: stored_groups(self._store))
        found.update((entry.name, summary) for entry in self._entries if (summary := entry.summary) is not None)
        return [found[name] for name in sorted(found) if self._coordinates(name)]

    async def describe(self, name: str) -> GroupSummary | None:
        """One group; None if it does not exist."""
        entry = self._entries.get(name)
        found = None if entry is None else entry.summary
        if found is not None:
            return found
        await self._commits.settled()
        return await self._run(lambda: stored_group(self._store, name))

    async def delete(self, name: str) -> ErrorCode:
        """Delete a group with its offsets, if it has no members."""
        error = self.name_error(name)
        if error is not ErrorCode.NONE:
            return error
        if self._entries.is_needed(name):
            return ErrorCode.NON_EMPTY_GROUP
        entry = self._entries.get(name)
        was_known = entry is not None and entry.summary is not None
        if entry is not None:
            entry.end()
            entry.classic, entry.consumers = self._entries.new_classic(name), self._entries.new_consumers(name)
            await entry.claim.close()
        await self._commits.settled()
        try:
            await self._run(lambda: self._store.groups.delete(name))
        except GroupActive as active:
            _logger.info("group %s was not deleted: %s", name, active)
            return ErrorCode.NON_EMPTY_GROUP
        except GroupNotFound:
            return ErrorCode.NONE if was_known else ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE

    # --- other brokers

    def give_up_others(self) -> None:
        """Let go of groups that another broker coordinates: their members join there."""
        for entry in self._entries:
            if entry.claim.is_lost or (entry.claim.is_held and not self._coordinates(entry.name)):
                _logger.info("group %s is coordinated by another broker", entry.name)
                self._entries.give_up(entry.name)
            else:
                entry.claim.let_go()  # a transaction may have ended elsewhere

    # --- the end

    def stop(self) -> None:
        """Answer what waits, and take no more members: clients look for another coordinator, which may be this broker
        after its restart."""
        self._is_stopping = True
        self._entries.end()

    async def close(self) -> None:
        """Write what was accepted, and let others join the groups. The store stays open."""
        self.stop()
        await self._commits.settled()
        await self._entries.close()


def _subscribed(request: JoinRequest) -> frozenset[str] | None:
    """The topics that a member of the classic protocol wants to read."""
    return subscribed_topics(request.protocols[0][1]) if request.protocols else None
