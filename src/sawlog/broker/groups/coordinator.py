"""`Coordinator`: the consumer groups of a broker. It routes each request to its group, and commits and fetches offsets.

Membership is in memory: after a restart of the broker, members rejoin, as Kafka's clients do automatically. Offsets are
in the store's own groups log, so that a group continues in Python without the broker, and vice versa. While a group has
members here, no consumer can join it directly (`GroupClaim`).

All methods belong to the event loop's thread. Blocking calls run in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from ...errors import GroupActive, GroupNotFound, InvalidConfig, SawlogError
from ...store.base import TopicPartition
from ...store.groups import Committed
from ...store.names import check_group_name
from ..wire import ErrorCode
from .consumer_group import JOIN_EPOCH, ConsumerGroup, HeartbeatRequest, HeartbeatResponse, TopicInfo
from .group import Group, GroupClaim
from .members import JoinRequest, JoinResponse, Sender, SyncRequest, SyncResponse, subscribed_topics
from .stored import (
    CommitQueue,
    GroupSummary,
    NewOffset,
    OffsetCommit,
    TopicLookup,
    missing_partitions,
    stored_group,
    stored_groups,
    topic_infos,
)

if TYPE_CHECKING:
    from ..broker import Broker

_logger = logging.getLogger("sawlog.broker.groups")


class Coordinator:
    """The groups of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store, self._run = broker.store, broker.run
        self._loop, self._config = broker.loop, broker.config
        self._commits = CommitQueue(broker)
        self._groups: dict[str, Group] = {}
        self._is_stopping = False
        #: Claims being taken again after a restart.
        self._holding: set[asyncio.Future[None]] = set()

    def name_error(self, name: str) -> ErrorCode:
        """Return the error if this broker cannot serve a group of that name, or NONE."""
        if self._is_stopping:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            check_group_name(name)
        except InvalidConfig:
            return ErrorCode.INVALID_GROUP_ID
        return ErrorCode.NONE if self._broker.nodes.coordinates("group", name) else ErrorCode.NOT_COORDINATOR

    # --- groups

    def _group(self, name: str) -> Group:
        """Return a group, created if this broker does not know it."""
        found = self._groups.get(name)
        if found is None:
            claim = GroupClaim(
                lambda: self._store.claim_group(name, str(self._broker.server.advertised)),
                self._broker,
                is_needed=lambda: self._is_needed(name),
                before_release=self._commits.flush,
            )
            found = Group(
                name,
                self._loop,
                self._config,
                claim,
                on_empty=lambda: self._emptied(name),
                on_idle=lambda: self._forget(name),
            )
            self._groups[name] = found
            found.forgetting.set(self._config.group_empty_ms)
        return found

    def _is_needed(self, name: str) -> bool:
        """Return whether a group has members, or a transaction will commit its offsets. Then no other process may admit
        members to it."""
        group = self._groups.get(name)
        return (group is not None and not group.is_empty) or bool(self._broker.transactions.pending(name))

    def _is_held(self, name: str) -> bool:
        """Return whether this broker holds the claim on a group."""
        group = self._groups.get(name)
        return group is not None and group.claim.is_held

    def _emptied(self, name: str) -> None:
        if name in self._groups:
            self.release(name)
            self._groups[name].forgetting.set(self._config.group_empty_ms)

    def _forget(self, name: str) -> None:
        """Drop a group that has not been used for a while. Its offsets are in the store."""
        group = self._groups[name]
        if not self._is_needed(name) and group.claim.is_idle:
            del self._groups[name]
        else:
            group.forgetting.set(self._config.group_empty_ms)

    # --- members

    async def join(self, name: str, request: JoinRequest) -> JoinResponse:
        """Answer a JoinGroup request when the next generation begins."""
        refused = self.name_error(name)
        if refused is not ErrorCode.NONE:
            return JoinResponse(refused, request.member_id)
        if request.member_id and self._groups.get(name) is None:
            return JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
        group = self._group(name)
        future: asyncio.Future[JoinResponse] = self._loop.create_future()

        def answer(joined: JoinResponse) -> None:
            if not future.done():
                future.set_result(joined)

        try:
            async with group.claim.held():
                read = subscribed_topics(request.protocols[0][1]) if request.protocols else None
                topics = {} if group.consumers.is_empty else await self._topics_of(group, read)
                group.join(request, topics, answer)
        except GroupActive as error:
            _logger.warning("client %s may not join: %s", request.client_id, error)
            return JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        try:
            return await future
        except asyncio.CancelledError:
            group.classic.client_gone(answer)
            raise

    async def sync(self, name: str, request: SyncRequest) -> SyncResponse:
        """Answer a SyncGroup request when the leader has assigned."""
        group = self._groups.get(name)
        if group is None:
            return SyncResponse(self.name_error(name) or ErrorCode.UNKNOWN_MEMBER_ID)
        future: asyncio.Future[SyncResponse] = self._loop.create_future()
        group.sync(request, lambda synced: None if future.done() else future.set_result(synced))
        return await future

    async def heartbeat(self, name: str, sender: Sender) -> ErrorCode:
        group = self._groups.get(name)
        if group is None:
            return self.name_error(name) or ErrorCode.UNKNOWN_MEMBER_ID
        return group.heartbeat(sender, {} if group.consumers.is_empty else await self._topics_of(group))

    def leave(self, name: str, members: Sequence[tuple[str, str | None]]) -> Sequence[ErrorCode]:
        """Process a LeaveGroup request: (member id, instance id) of each member."""
        group = self._groups.get(name)
        if group is None:
            return [self.name_error(name) or ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        return group.leave(members)

    async def consumer_heartbeat(self, name: str, beat: HeartbeatRequest) -> HeartbeatResponse:
        refused = self.name_error(name)
        if refused is not ErrorCode.NONE:
            return HeartbeatResponse(refused)
        if beat.epoch != JOIN_EPOCH:
            group = self._groups.get(name)
            if group is None:
                return HeartbeatResponse(ErrorCode.UNKNOWN_MEMBER_ID, "the member has to join again")
            topics = await self._topics_of(group, beat.topics, every=bool(beat.pattern))
            return group.consumers.heartbeat(beat, topics)
        group = self._group(name)
        try:
            async with group.claim.held():
                topics = await self._topics_of(group, beat.topics, every=bool(beat.pattern))
                return group.join_consumers(beat, topics)
        except GroupActive as error:
            _logger.warning("client %s may not join: %s", beat.client_id, error)
            return HeartbeatResponse(ErrorCode.GROUP_ID_NOT_FOUND, str(error))

    async def _topics_of(
        self, group: Group, more: frozenset[str] | None = None, *, every: bool = False
    ) -> Mapping[str, TopicInfo]:
        """Return the topics that members read, and `more`. Other processes change topics, so nothing is cached."""
        consumers, classic = group.consumers, group.classic.topics or frozenset()
        names = None if every or consumers.has_patterns else consumers.topics | classic | (more or frozenset())
        return await self._run(topic_infos, self._store, names)

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """Return a group whose partitions this broker assigns; None if there is none."""
        group = self._groups.get(name)
        found = None if group is None else group.summary
        return group.consumers if group is not None and found is not None and found.type == "consumer" else None

    # --- offsets

    async def commit(
        self, name: str, offsets: Mapping[TopicPartition, NewOffset], sender: Sender
    ) -> dict[TopicPartition, ErrorCode]:
        """Process an OffsetCommit request. Offsets whose code is NONE are durable on return."""
        error = self._commit_error(name, sender, offsets)
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        codes = self._unfit(offsets)
        rest = {partition: new for partition, new in offsets.items() if partition not in codes}
        if rest:
            commit = OffsetCommit(name, rest, sender.member_id, by_server=self._is_held(name))
            codes.update(await self._commits.write(commit))
        return codes

    def _commit_error(
        self, name: str, sender: Sender, partitions: Iterable[TopicPartition], *, transactional: bool = False
    ) -> ErrorCode:
        error = self.name_error(name)
        if error is not ErrorCode.NONE:
            return error
        group = self._groups.get(name)
        if group is not None:
            return group.commit_error(sender, partitions, transactional=transactional)
        # This makes members of both protocols rejoin. Kafka returns other errors here, which Java's KIP-848 consumer
        # treats as fatal; but Kafka still knows its members after a restart.
        return ErrorCode.NONE if sender.generation < 0 else ErrorCode.UNKNOWN_MEMBER_ID

    def _unfit(self, offsets: Mapping[TopicPartition, NewOffset]) -> dict[TopicPartition, ErrorCode]:
        """Return the errors of offsets that cannot be stored."""
        codes: dict[TopicPartition, ErrorCode] = {}
        for partition, new in offsets.items():
            if len(new.metadata) > self._config.offset_metadata_max_bytes:
                codes[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif new.offset >= 2**62:  # negative ones denote the beginning or the end
                codes[partition] = ErrorCode.INVALID_REQUEST
        return codes

    def fetch_error(self, name: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Return the error of an OffsetFetch request, or NONE. A request without a member id or an epoch comes from a
        tool, or from a client that does not send them, and is always accepted."""
        error = self.name_error(name)
        if error is not ErrorCode.NONE or not member_id or epoch < 0:
            return error
        group = self._groups.get(name)
        return ErrorCode.UNKNOWN_MEMBER_ID if group is None else group.fetch_error(member_id, epoch)

    async def fetch(self, name: str, partitions: Iterable[TopicPartition] | None) -> dict[TopicPartition, Committed]:
        """Return the committed offsets of a group, of these partitions or of all. Offsets of deleted or recreated
        topics are left out."""

        def read() -> dict[TopicPartition, Committed]:
            found = self._store.groups.committed(name)
            wanted = (
                found
                if partitions is None
                else {partition: found[partition] for partition in partitions if partition in found}
            )
            return TopicLookup(self._store).valid(wanted)

        await self._commits.flush()
        return await self._run(read)

    async def delete_offsets(
        self, name: str, partitions: Iterable[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Process an OffsetDelete request. Offsets of topics that members read are not deleted."""
        error = self.name_error(name)
        if error is not ErrorCode.NONE:
            return error, {}
        wanted = list(partitions)
        group = self._groups.get(name)
        if (group is None or group.summary is None) and name not in await self._run(self._store.groups.list):
            return ErrorCode.GROUP_ID_NOT_FOUND, {}
        subscribed = frozenset[str]() if group is None or group.is_empty else group.topics
        if subscribed is None:
            return ErrorCode.NON_EMPTY_GROUP, {}
        codes = {partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for partition in wanted if partition[0] in subscribed}
        rest = dict.fromkeys(partition for partition in wanted if partition not in codes)
        if rest:
            codes.update(await self._commits.write(OffsetCommit(name, rest, by_server=self._is_held(name))))
        refused = {partition for partition, code in codes.items() if code is ErrorCode.UNKNOWN_MEMBER_ID}
        return ErrorCode.NONE, {**codes, **dict.fromkeys(refused, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)}

    async def topic_ids(self, names: Iterable[str] | None = None) -> Mapping[str, bytes]:
        """Return the ids of these topics, or of all, as bytes."""
        found = await self._run(topic_infos, self._store, names)
        return {name: UUID(each.id).bytes for name, each in found.items()}

    # --- offsets of transactions

    @asynccontextmanager
    async def staging(
        self, name: str, offsets: Mapping[TopicPartition, NewOffset], sender: Sender
    ) -> AsyncIterator[dict[TopicPartition, ErrorCode]]:
        """Check a TxnOffsetCommit request and yield its error codes. In this block the caller stores the offsets whose
        code is NONE with the transaction, so that they become pending; the group is held meanwhile."""
        error = self._commit_error(name, sender, offsets, transactional=True)
        if error is not ErrorCode.NONE:
            yield dict.fromkeys(offsets, error)
            return
        codes = {**dict.fromkeys(offsets, ErrorCode.NONE), **self._unfit(offsets)}
        missing = await self._run(missing_partitions, self._store, list(offsets))
        codes.update(dict.fromkeys(missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._group(name).claim.held())
            except GroupActive as active:
                _logger.warning("offsets of a transaction were refused: %s", active)
                fit = [partition for partition, code in codes.items() if code is ErrorCode.NONE]
                codes.update(dict.fromkeys(fit, ErrorCode.UNKNOWN_MEMBER_ID))
            yield codes

    async def commit_transaction(
        self, offsets: Mapping[str, Mapping[TopicPartition, NewOffset]], transaction: tuple[str, str]
    ) -> None:
        """Commit the offsets of a transaction durably, by group, all or nothing. Raise the store's error on failure.

        `transaction` is its name and a mark that differs for each transaction of that name: its offsets are committed
        only once, even if this is called again after a crash and the groups have moved on since.
        """
        await self._commits.write_atomically(
            [OffsetCommit(name, each, transaction=transaction) for name, each in offsets.items()]
        )

    def release(self, name: str) -> None:
        """Release the claim on a group soon, unless it is needed: a transaction with its offsets has ended."""
        if (group := self._groups.get(name)) is not None:
            group.claim.release_if_unused()

    def hold(self, name: str) -> None:
        """Take the claim on a group again, which a pending transaction needs after a restart. Consumers that joined the
        group directly while no broker was running stay in it; no others can join."""
        holding = asyncio.ensure_future(self._hold(name))
        self._holding.add(holding)
        holding.add_done_callback(self._holding.discard)

    async def _hold(self, name: str) -> None:
        try:
            async with self._group(name).claim.held():
                pass
        except SawlogError as error:
            _logger.warning("a transaction will move the group %r, which is in use: %s", name, error)

    # --- describing and deleting

    async def list(self) -> Sequence[GroupSummary]:
        """Return all groups: those with members here, and those of the store."""
        await self._commits.flush()
        found = await self._run(stored_groups, self._store)
        found.update((group.name, summary) for group in self._groups.values() if (summary := group.summary) is not None)
        return [found[name] for name in sorted(found) if self._broker.nodes.coordinates("group", name)]

    async def describe(self, name: str) -> GroupSummary | None:
        """Return one group; None if it does not exist."""
        group = self._groups.get(name)
        found = None if group is None else group.summary
        if found is not None:
            return found
        await self._commits.flush()
        return await self._run(stored_group, self._store, name)

    async def delete(self, name: str) -> ErrorCode:
        """Delete a group and its offsets if it has no members."""
        error = self.name_error(name)
        if error is not ErrorCode.NONE:
            return error
        if self._is_needed(name):
            return ErrorCode.NON_EMPTY_GROUP
        group = self._groups.get(name)
        was_known = group is not None and group.summary is not None
        if group is not None:
            group.end()
            group.reset()
            await group.claim.close()
        await self._commits.flush()
        try:
            await self._run(self._store.groups.delete, name)
        except GroupActive as active:
            _logger.info("group %s was not deleted: %s", name, active)
            return ErrorCode.NON_EMPTY_GROUP
        except GroupNotFound:
            return ErrorCode.NONE if was_known else ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE

    # --- other brokers

    def give_up_others(self) -> None:
        """Give up groups that another broker coordinates. Their members join there."""
        for group in list(self._groups.values()):
            if group.claim.is_lost or (group.claim.is_held and not self._broker.nodes.coordinates("group", group.name)):
                _logger.info("group %s is coordinated by another broker", group.name)
                del self._groups[group.name]
                group.forgetting.stop()
                group.end(ErrorCode.NOT_COORDINATOR)
                group.claim.release_if_unused()
            else:
                group.claim.release_if_unused()  # a transaction may have ended in another process

    # --- shutdown

    def stop(self) -> None:
        """Answer pending requests and admit no more members. Clients look for another coordinator, which may be this
        broker after its restart."""
        self._is_stopping = True
        for group in self._groups.values():
            group.forgetting.stop()
            group.end()

    async def close(self) -> None:
        """Write accepted commits and release the groups. The store stays open."""
        self.stop()
        await self._commits.flush()
        for group in list(self._groups.values()):
            await group.claim.close()
        self._groups.clear()
