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
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from uuid import UUID

from ..errors import GroupActive, GroupNotFound, InvalidConfig
from ..topics.groups.assignment import Share
from ..topics.groups.members import check_group_name
from ..topics.groups.offsets import Committed
from ..topics.store import Store
from .groups.claims import GroupClaim
from .groups.commits import Commit, CommitQueue, NewOffset, Run, StagedOffsets, Topics
from .groups.group import Group, MemberSummary, State
from .groups.member import Joined, JoinRequest, Synced, SyncRequest
from .groups.settings import GroupConfig
from .groups.subscription import CONSUMER, encode_assignment, encode_subscription
from .groups.timers import Alarm
from .wire.errors import ErrorCode

_logger = logging.getLogger("sawlog.broker.groups")

#: What ListGroups and DescribeGroups call groups of this protocol.
CLASSIC = "classic"


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A group, as it is listed."""

    name: str
    protocol_type: str
    state: str
    type: str = CLASSIC


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group, as it is described."""

    name: str
    state: str
    protocol_type: str
    protocol: str
    members: Sequence[MemberSummary]


@dataclass(slots=True)
class _Entry:
    """A group that this broker knows."""

    group: Group
    claim: GroupClaim
    #: Rings when the group was empty for so long that it is forgotten.
    forgetting: Alarm


class Coordinator:
    """The groups of one broker."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        config: GroupConfig,
        *,
        run: Run,
        address: Callable[[], str],
    ) -> None:
        self._store = store
        self._loop = loop
        self._config = config
        self._run = run
        #: Where clients connect: consumers that open the store themselves are told it.
        self._address = address
        self._entries: dict[str, _Entry] = {}
        self._commits = CommitQueue(store, loop, run)
        self._staged = StagedOffsets()
        self._is_stopping = False

    # --- groups

    def _entry(self, name: str) -> _Entry:
        found = self._entries.get(name)
        if found is None:
            claim = GroupClaim(
                lambda: self._store.groups.claim(name, self._address()),
                self._run,
                is_needed=lambda: self._is_needed(name),
                before_release=self._commits.settled,
            )
            forgetting = Alarm(self._loop, lambda: self._forget(name))
            forgetting.set(self._config.group_empty_ms)
            found = self._entries[name] = _Entry(self._new_group(name), claim, forgetting)
        return found

    def _new_group(self, name: str) -> Group:
        return Group(name, self._loop, self._config, lambda: self._emptied(name))

    def _is_needed(self, name: str) -> bool:
        entry = self._entries.get(name)
        return (entry is not None and not entry.group.is_empty) or bool(self._staged.pending(name))

    def _is_held(self, name: str) -> bool:
        entry = self._entries.get(name)
        return entry is not None and entry.claim.is_held

    def _emptied(self, name: str) -> None:
        entry = self._entries.get(name)
        if entry is not None:
            entry.claim.let_go()
            entry.forgetting.set(self._config.group_empty_ms)

    def _forget(self, name: str) -> None:
        """Nobody has used a group for a while; its offsets are in the store."""
        entry = self._entries[name]
        if entry.group.is_empty and entry.claim.is_idle:
            del self._entries[name]
        else:
            entry.forgetting.set(self._config.group_empty_ms)

    def _known(self, name: str) -> Group | None:
        entry = self._entries.get(name)
        return None if entry is None else entry.group

    # --- members

    async def join(self, name: str, request: JoinRequest) -> Joined:
        """A JoinGroup request; answered when the next generation begins."""
        refused = self._name_error(name)
        if refused is not ErrorCode.NONE:
            return Joined(refused, request.member_id)
        if request.member_id and self._known(name) is None:
            return Joined(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
        entry = self._entry(name)
        future: asyncio.Future[Joined] = self._loop.create_future()

        def answer(joined: Joined) -> None:
            if not future.done():
                future.set_result(joined)

        try:
            async with entry.claim.held():
                entry.group.join(request, answer)
        except GroupActive as error:
            _logger.warning("member %s may not join: %s", request.client_id, error)
            return Joined(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        try:
            return await future
        except asyncio.CancelledError:
            entry.group.gave_up(answer)
            raise

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        """A SyncGroup request; answered when the leader has assigned."""
        group = self._known(name)
        if group is None:
            return Synced(self._name_error(name) or ErrorCode.UNKNOWN_MEMBER_ID)
        future: asyncio.Future[Synced] = self._loop.create_future()
        group.sync(request, lambda synced: None if future.done() else future.set_result(synced))
        return await future

    def heartbeat(self, name: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A Heartbeat request."""
        group = self._known(name)
        if group is None:
            return self._name_error(name) or ErrorCode.UNKNOWN_MEMBER_ID
        return group.heartbeat(member_id, instance_id, generation)

    def leave(self, name: str, members: Sequence[tuple[str, str | None]]) -> Sequence[ErrorCode]:
        """A LeaveGroup request: (member id, instance id) of each."""
        group = self._known(name)
        if group is None:
            return [self._name_error(name) or ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        return group.leave(members)

    def _name_error(self, name: str) -> ErrorCode:
        if self._is_stopping:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            check_group_name(name)
        except InvalidConfig:
            return ErrorCode.INVALID_GROUP_ID
        return ErrorCode.NONE

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
        error = self._commit_error(name, member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        codes = self._unfit(offsets)
        rest = {share: new for share, new in offsets.items() if share not in codes}
        if rest:
            codes.update(await self._commits.write(Commit(name, rest, member_id, by_server=self._is_held(name))))
        return codes

    def _commit_error(
        self, name: str, member_id: str, instance_id: str | None, generation: int, *, transactional: bool = False
    ) -> ErrorCode:
        error = self._name_error(name)
        if error is not ErrorCode.NONE:
            return error
        group = self._known(name)
        if group is not None:
            return group.commit_error(member_id, instance_id, generation, transactional=transactional)
        return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION

    def _unfit(self, offsets: Mapping[Share, NewOffset]) -> dict[Share, ErrorCode]:
        """What cannot be stored."""
        codes: dict[Share, ErrorCode] = {}
        for share, new in offsets.items():
            if len(new.metadata) > self._config.offset_metadata_max_bytes:
                codes[share] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif not 0 <= new.offset < 2**62:
                codes[share] = ErrorCode.INVALID_REQUEST
        return codes

    async def fetch(self, name: str, shares: Iterable[Share] | None) -> dict[Share, Committed]:
        """What a group has committed, of these partitions or of all. Offsets of topics that were deleted or recreated
        do not count."""

        def read() -> dict[Share, Committed]:
            found = self._store.groups.offsets.of(name)
            wanted = found if shares is None else {share: found[share] for share in shares if share in found}
            return Topics(self._store).valid(wanted)

        await self._commits.settled()
        return await self._run(read)

    def fetch_error(self, name: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Why offsets are not told. Members of the classic protocol and others do not say who they are."""
        return self._name_error(name)

    async def topic_ids(self, names: Iterable[str]) -> Mapping[str, bytes]:
        """The ids of topics, as they are on the wire."""
        wanted = list(names)

        def find() -> Mapping[str, bytes]:
            topics = Topics(self._store)
            return {name: UUID(topic.id).bytes for name in wanted if (topic := topics.find(name)) is not None}

        return await self._run(find)

    async def topic_names(self, ids: Iterable[bytes]) -> Mapping[bytes, str]:
        """The names of topics by their ids."""
        wanted = set(ids)
        names = await self._run(self._store.topics)
        return {id: name for name, id in (await self.topic_ids(names)).items() if id in wanted}

    def pending_offsets(self, name: str) -> frozenset[Share]:
        """The partitions whose offsets a transaction that has not ended will change."""
        return self._staged.pending(name)

    async def delete_offsets(self, name: str, shares: Iterable[Share]) -> tuple[ErrorCode, dict[Share, ErrorCode]]:
        """An OffsetDelete request. Of topics that members read nothing is deleted."""
        error = self._name_error(name)
        if error is not ErrorCode.NONE:
            return error, {}
        wanted = list(shares)
        group = self._known(name)
        if group is None and name not in await self._run(self._store.groups.list):
            return ErrorCode.GROUP_ID_NOT_FOUND, {}
        subscribed = frozenset[str]() if group is None or group.is_empty else group.topics
        if subscribed is None:
            return ErrorCode.NON_EMPTY_GROUP, {}
        codes = {share: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for share in wanted if share[0] in subscribed}
        rest = dict.fromkeys(share for share in wanted if share not in codes)
        if rest:
            codes.update(await self._commits.write(Commit(name, rest, by_server=self._is_held(name))))
        refused = {share for share, code in codes.items() if code is ErrorCode.UNKNOWN_MEMBER_ID}
        return ErrorCode.NONE, {**codes, **dict.fromkeys(refused, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)}

    # --- offsets of transactions

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
        error = self._commit_error(name, member_id, instance_id, generation, transactional=True)
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        codes = self._unfit(offsets)
        rest = {share: new for share, new in offsets.items() if share not in codes}
        missing = await self._run(lambda: _missing(self._store, rest))
        codes.update(dict.fromkeys(missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        rest = {share: new for share, new in rest.items() if share not in missing}
        try:
            async with self.kept(name):
                if rest:
                    self._staged.add(producer_id, name, rest)
        except GroupActive as active:
            _logger.warning("offsets of a transaction were refused: %s", active)
            codes.update(dict.fromkeys(rest, ErrorCode.UNKNOWN_MEMBER_ID))
        return {**dict.fromkeys(offsets, ErrorCode.NONE), **codes}

    def kept(self, name: str) -> AbstractAsyncContextManager[None]:
        """A block in which only members of this broker are in a group; `GroupActive` if there are others."""
        return self._entry(name).claim.held()

    def restage_offsets(self, producer_id: int, name: str, offsets: Mapping[Share, NewOffset]) -> None:
        """The same after a restart, for a transaction that has not ended: nothing is checked again."""
        self._staged.add(producer_id, name, offsets)

    async def complete_offsets(
        self, producer_id: int, commit: bool, *, transaction: tuple[str, str] | None = None
    ) -> None:
        """A producer's transaction has ended: commit its offsets durably, or forget them.

        May be called again after a crash. With the transaction's name and a mark that differs for each transaction of
        that name, its offsets are committed only once, though a group may have moved on since. Raises
        `GroupActive` never, and an error of the store if they could not be written: they are still staged then.
        """
        if commit:
            await self._commit_staged(producer_id, transaction)
        for name in self._staged.drop(producer_id):
            entry = self._entries.get(name)
            if entry is not None:
                entry.claim.let_go()

    async def _commit_staged(self, producer_id: int, transaction: tuple[str, str] | None) -> None:
        commits = [
            Commit(name, dict(offsets), transaction=transaction)
            for name, offsets in self._staged.of(producer_id).items()
        ]
        await self._commits.write_together(commits)

    # --- looking and deleting

    async def list(self) -> Sequence[GroupOverview]:
        """All groups: those that have members here, and those of the store."""
        await self._commits.settled()
        found = await self._run(lambda: _stored_groups(self._store))
        for name, entry in self._entries.items():
            group = entry.group
            if group.protocol_type is not None and (not group.is_empty or group.generation):
                found[name] = GroupOverview(name, group.protocol_type, group.state.value)
        return [found[name] for name in sorted(found)]

    async def describe(self, name: str) -> GroupSummary | None:
        """One group; None if it does not exist."""
        group = self._known(name)
        if group is not None and group.protocol_type is not None:
            protocol = (group.protocol or "") if group.state is State.STABLE else ""
            return GroupSummary(name, group.state.value, group.protocol_type, protocol, group.members)
        await self._commits.settled()
        return await self._run(lambda: _stored_group(self._store, name))

    async def delete(self, name: str) -> ErrorCode:
        """Delete a group with its offsets, if it has no members."""
        error = self._name_error(name)
        if error is not ErrorCode.NONE:
            return error
        entry = self._entries.get(name)
        was_known = entry is not None and entry.group.protocol_type is not None
        if self._is_needed(name):
            return ErrorCode.NON_EMPTY_GROUP
        if entry is not None:
            entry.group.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            entry.group = self._new_group(name)
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

    # --- the end

    def stop(self) -> None:
        """Answer what waits, and take no more members: clients look for another coordinator, which may be this broker
        after its restart."""
        self._is_stopping = True
        for entry in self._entries.values():
            entry.forgetting.stop()
            entry.group.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def close(self) -> None:
        """Write what was accepted, and let others join the groups. The store stays open."""
        self.stop()
        await self._commits.settled()
        for entry in self._entries.values():
            await entry.claim.close()
        self._entries.clear()


def _missing(store: Store, shares: Iterable[Share]) -> set[Share]:
    topics = Topics(store)
    return {share for share in shares if share not in topics}


def _stored_groups(store: Store) -> dict[str, GroupOverview]:
    found: dict[str, GroupOverview] = {}
    for name in store.groups.list():
        summary = _stored_group(store, name)
        if summary is not None:
            found[name] = GroupOverview(name, summary.protocol_type, summary.state)
    return found


def _stored_group(store: Store, name: str) -> GroupSummary | None:
    """A group without members here: it has committed, or consumers that opened the store themselves are in it."""
    try:
        seen = store.groups.describe(name)
    except (GroupNotFound, InvalidConfig):
        return None
    if seen.members:
        members = [
            MemberSummary(
                each.id,
                None,
                each.name or "sawlog",
                each.process,
                encode_subscription(each.topics),
                encode_assignment((row.topic, row.partition) for row in seen.rows if row.owner == each.id),
            )
            for each in seen.members
        ]
        return GroupSummary(name, State.STABLE.value, CONSUMER, "sawlog", members)
    by_members = any(each.member for each in store.groups.offsets.of(name).values())
    return GroupSummary(name, State.EMPTY.value, CONSUMER if by_members else "", "", ())
