"""Groups as stored: their offsets, and the topics that these belong to.

`CommitQueue` commits offsets. A write to the store's groups log costs an fsync regardless of its size. Commits that
arrive during one write are therefore collected and written together by the next one, in the order of arrival. `flush`
waits for all earlier commits, so a member that fetches offsets sees every commit accepted before. Its methods belong to
the event loop's thread; reading and writing run in threads.

The functions and `TopicLookup` read the disk: call them in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from ...clock import now_ms
from ...errors import (
    AmbiguousAppend,
    DirectoryLocked,
    GroupError,
    GroupNotFound,
    InvalidConfig,
    LogClosed,
    NotCoordinator,
    SawlogError,
    StorageFull,
    TopicNotFound,
)
from ...store.base import Topic, TopicPartition
from ...store.groups import Committed, OffsetChange
from ...store.serving import StoreService
from ..wire import Body, ErrorCode
from .classic_group import GroupState, MemberSummary
from .consumer_group import TopicInfo
from .members import CONSUMER, encode_assignment, encode_subscription

if TYPE_CHECKING:
    from ..broker import Broker

_logger = logging.getLogger("sawlog.broker.groups")


#: Denotes the end of a partition.
_END = -1


@dataclass(frozen=True, slots=True)
class NewOffset:
    """An offset that a client commits."""

    offset: int
    #: Leader epoch of the last record read; -1 if unknown.
    leader_epoch: int = -1
    metadata: str = ""

    @classmethod
    def of(cls, part: Body) -> NewOffset:
        """Return the offset of a partition in a request."""
        return cls(part["committed_offset"], part["committed_leader_epoch"], part["committed_metadata"] or "")


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """The offsets of one request. None deletes an offset."""

    group: str
    offsets: Mapping[TopicPartition, NewOffset | None]
    #: Member id; empty if the client is not a member.
    member_id: str = ""
    #: True if this broker holds the group's claim. Otherwise consumers that opened the store directly may own a
    #: partition.
    by_server: bool = True
    #: Name and mark of the transaction it belongs to: see `store.groups.OffsetChange`.
    transaction: tuple[str, str] | None = None


class CommitQueue:
    """Offset commits waiting to be written."""

    def __init__(self, broker: Broker) -> None:
        self._store, self._loop, self._run = broker.store, broker.loop, broker.run
        self._waiting: list[tuple[OffsetCommit | None, asyncio.Future[dict[TopicPartition, ErrorCode]]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(self, commit: OffsetCommit) -> dict[TopicPartition, ErrorCode]:
        """Commit durably; return an error code for each offset. Cancelling the caller does not undo it."""
        return await self._add(commit)

    async def write_atomically(self, commits: Sequence[OffsetCommit]) -> None:
        """Commit durably, all or nothing; raise the store's error on failure. Deleted topics are skipped."""
        await self.flush()
        if commits:
            await self._run(self._write, commits)

    async def flush(self) -> None:
        """Wait until everything accepted before is written."""
        if self._writing is not None:
            await self._add(None)

    def _add(self, commit: OffsetCommit | None) -> asyncio.Future[dict[TopicPartition, ErrorCode]]:
        future: asyncio.Future[dict[TopicPartition, ErrorCode]] = self._loop.create_future()
        self._waiting.append((commit, future))
        if self._writing is None:
            self._writing = self._loop.create_task(self._write_all())
        return future

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                commits = [commit for commit, _ in batch if commit is not None]
                results = iter(await self._results(commits) if commits else ())
                for commit, future in batch:
                    result = {} if commit is None else next(results)
                    if not future.done():
                        future.set_result(result)
        finally:
            self._writing = None

    async def _results(self, commits: Sequence[OffsetCommit]) -> Sequence[dict[TopicPartition, ErrorCode]]:
        try:
            return await self._run(self._write, commits)
        except (DirectoryLocked, LogClosed, AmbiguousAppend) as error:
            # Another process holds the lock, this broker is stopping, or the bucket does not answer.
            _logger.warning("cannot commit offsets, clients will retry: %s", error)
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        except StorageFull:  # logged once by the broker
            code = ErrorCode.KAFKA_STORAGE_ERROR
        except (SawlogError, OSError) as error:
            _logger.error("cannot commit offsets: %s", error)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        except Exception:
            _logger.exception("cannot commit offsets")
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        return [dict.fromkeys(commit.offsets, code) for commit in commits]

    # --- in a thread

    def _write(self, commits: Sequence[OffsetCommit]) -> Sequence[dict[TopicPartition, ErrorCode]]:
        topics = TopicLookup(self._store)
        changes = [
            OffsetChange(
                commit.group,
                {
                    partition: None
                    if new is None
                    else _committed(topics[partition[0]], partition[1], commit.member_id, new)
                    for partition, new in commit.offsets.items()
                    if partition in topics
                },
                commit.by_server,
                commit.transaction,
            )
            for commit in commits
        ]
        refusals = self._store.commit_offsets(changes)
        return [
            dict.fromkeys(commit.offsets, _refused(commit.group, refused))
            if refused is not None
            else {
                partition: ErrorCode.NONE if partition in change.offsets else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                for partition in commit.offsets
            }
            for commit, change, refused in zip(commits, changes, refusals, strict=True)
        ]


def _committed(topic: Topic, number: int, member_id: str, new: NewOffset) -> Committed:
    """Return the offset as stored. A client that names no leader epoch has read in the current one: consumers of this
    library use the epoch to detect that the log lost its end. A negative offset means the end (-1) or the beginning and
    is stored as the actual offset. The client gets back the values it sent."""
    offset, epoch = new.offset, new.leader_epoch
    if offset < 0 or epoch < 0:
        try:
            log = topic.partition(number)
            if offset < 0:
                offset = log.visible_offset if offset == _END else log.lowest_offset
            if epoch < 0:
                epoch = log.leader_epoch
        except SawlogError as error:
            _logger.warning("cannot read the epoch of partition %d of %s: %s", number, topic.name, error)
            offset = max(offset, 0)
    told_epoch = None if epoch == new.leader_epoch else new.leader_epoch
    told_offset = None if offset == new.offset else new.offset
    return Committed(offset, topic.id, new.metadata, now_ms(), member_id, epoch, told_epoch, told_offset)


def _refused(group: str, error: GroupError) -> ErrorCode:
    """Return the error of a refused commit: the group has members elsewhere, or another broker coordinates it."""
    _logger.warning("a commit to group %s was refused: %s", group, error)
    return ErrorCode.NOT_COORDINATOR if isinstance(error, NotCoordinator) else ErrorCode.UNKNOWN_MEMBER_ID


# --- in a thread


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group as listed and described."""

    name: str
    protocol_type: str
    state: str
    protocol: str = ""
    members: Sequence[MemberSummary] = ()
    #: "classic", or "consumer" if the broker assigns the partitions.
    type: str = "classic"


class TopicLookup:
    """The topics of a store at one moment, each looked up at most once."""

    def __init__(self, store: StoreService) -> None:
        self._store = store
        self._found: dict[str, Topic | None] = {}

    def find(self, name: str) -> Topic | None:
        """Return a topic; None if it does not exist."""
        if name not in self._found:
            try:
                self._found[name] = self._store.topic(name)
            except TopicNotFound:
                self._found[name] = None
        return self._found[name]

    def __getitem__(self, name: str) -> Topic:
        """Return a topic that exists."""
        found = self.find(name)
        assert found is not None
        return found

    def __contains__(self, partition: TopicPartition) -> bool:
        topic = self.find(partition[0])
        return topic is not None and 0 <= partition[1] < topic.partitions

    def valid(self, offsets: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, Committed]:
        """Return the offsets whose topics still exist and were not recreated since the commit."""
        return {
            partition: each
            for partition, each in offsets.items()
            if (topic := self.find(partition[0])) is not None and topic.id == each.topic_id
        }


def missing_partitions(store: StoreService, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
    topics = TopicLookup(store)
    return {partition for partition in partitions if partition not in topics}


def topic_infos(store: StoreService, names: Iterable[str] | None) -> Mapping[str, TopicInfo]:
    """Return the topics of these names that exist, or all topics."""
    topics = TopicLookup(store)
    wanted = store.topics() if names is None else names
    found = {name: topics.find(name) for name in wanted}
    return {name: TopicInfo(UUID(topic.id).hex, topic.partitions) for name, topic in found.items() if topic is not None}


def stored_groups(store: StoreService) -> dict[str, GroupSummary]:
    """Return all groups that have committed offsets, or members that opened the store directly."""
    found = {name: stored_group(store, name) for name in store.groups.list()}
    return {name: each for name, each in found.items() if each is not None}


def stored_group(store: StoreService, name: str) -> GroupSummary | None:
    """Return one of these groups; None if it does not exist."""
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
        return GroupSummary(name, CONSUMER, GroupState.STABLE.value, "sawlog", members)
    by_members = any(each.member for each in store.groups.committed(name).values())
    return GroupSummary(name, CONSUMER if by_members else "", GroupState.EMPTY.value)
