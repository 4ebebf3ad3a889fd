"""`CommitQueue`: offsets on their way to the store's groups log, many commits with one write.

A turn of the groups log costs an fsync, whatever it writes. So while one turn is under way commits gather, and the next
turn writes all of them. They are written in the order in which they came, and `settled` waits for those before it: who
fetches offsets after another member's commit was accepted sees it.

All methods belong to the event loop's thread; reading and writing run in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ...clock import now_ms
from ...errors import AmbiguousAppend, DirectoryLocked, GroupError, LogClosed, NotCoordinator, SawlogError, StorageFull
from ...store.assignment import Share
from ...store.committed_offsets import Committed
from ...store.groups import Change
from ...store.served import ServedTopic, StoreService
from ..wire.errors import ErrorCode
from .stored import Topics

_logger = logging.getLogger("sawlog.broker.groups")
_T = TypeVar("_T")


class Run(Protocol):
    """Calls something that may wait for the disk, in a thread."""

    def __call__(self, call: Callable[[], _T], /) -> asyncio.Future[_T]:
        """Call it."""


#: An offset that stands for the end of a partition.
_END = -1


@dataclass(frozen=True, slots=True)
class NewOffset:
    """An offset that a client commits."""

    offset: int
    #: The leader epoch of the last record that it read; -1 if it does not say.
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """What one request commits; an offset that is None is deleted."""

    group: str
    offsets: Mapping[Share, NewOffset | None]
    #: The id of the member; empty if it was not one.
    member_id: str = ""
    #: Whether this broker serves the group. Else consumers that opened the store themselves may own a partition.
    by_server: bool = True
    #: The name of the transaction that it belongs to, and its mark: see `topics.groups.groups.Change`.
    transaction: tuple[str, str] | None = None


class CommitQueue:
    """Commits that wait for their turn."""

    def __init__(self, store: StoreService, loop: asyncio.AbstractEventLoop, run: Run) -> None:
        self._store = store
        self._loop = loop
        self._run = run
        self._waiting: list[tuple[Commit | None, asyncio.Future[dict[Share, ErrorCode]]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(self, commit: Commit) -> dict[Share, ErrorCode]:
        """Commit durably; the result has a code for each offset. It is written even if nobody waits any more."""
        return await self._add(commit)

    async def write_together(self, commits: Sequence[Commit]) -> None:
        """Commit durably, all of them or none; raises what prevents it. What does not exist any more is left out."""
        await self.settled()
        if commits:
            await self._run(lambda: self._write(commits))

    async def settled(self) -> None:
        """Wait until everything is written that was accepted before."""
        if self._writing is not None:
            await self._add(None)

    def _add(self, commit: Commit | None) -> asyncio.Future[dict[Share, ErrorCode]]:
        future: asyncio.Future[dict[Share, ErrorCode]] = self._loop.create_future()
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

    async def _results(self, commits: Sequence[Commit]) -> Sequence[dict[Share, ErrorCode]]:
        try:
            return await self._run(lambda: self._write(commits))
        except (DirectoryLocked, LogClosed, AmbiguousAppend) as error:
            # Another process is stuck in its turn, we are stopping, or the bucket does not answer.
            _logger.warning("offsets could not be committed, clients try again: %s", error)
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        except StorageFull:  # which the broker logs, once
            code = ErrorCode.KAFKA_STORAGE_ERROR
        except (SawlogError, OSError) as error:
            _logger.error("offsets could not be committed: %s", error)
            code = ErrorCode.KAFKA_STORAGE_ERROR
        except Exception:
            _logger.exception("offsets could not be committed")
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        return [dict.fromkeys(commit.offsets, code) for commit in commits]

    # --- in a thread

    def _write(self, commits: Sequence[Commit]) -> Sequence[dict[Share, ErrorCode]]:
        topics = Topics(self._store)
        changes = [
            Change(
                commit.group,
                {
                    share: None if new is None else _committed(topics[share[0]], share[1], commit.member_id, new)
                    for share, new in commit.offsets.items()
                    if share in topics
                },
                commit.by_server,
                commit.transaction,
            )
            for commit in commits
        ]
        refusals = self._store.groups.commit_together(changes)
        return [
            dict.fromkeys(commit.offsets, _refused(commit.group, refused))
            if refused is not None
            else {share: _code(share in change.offsets) for share in commit.offsets}
            for commit, change, refused in zip(commits, changes, refusals, strict=True)
        ]


def _committed(topic: ServedTopic, number: int, member_id: str, new: NewOffset) -> Committed:
    """What is stored. A client that names no leader epoch has read in the current one: consumers of this library go by
    it if the log loses its end, and the client gets back what it said. The same holds for a negative offset, by which a
    client says to begin at the end (-1) or at the beginning."""
    offset, epoch = new.offset, new.leader_epoch
    if offset < 0 or epoch < 0:
        try:
            log = topic.partition(number)
            if offset < 0:
                offset = log.visible_offset if offset == _END else log.lowest_offset
            if epoch < 0:
                epoch = log.leader_epoch
        except SawlogError as error:
            _logger.warning("partition %d of %s cannot be asked for its epoch: %s", number, topic.name, error)
            offset = max(offset, 0)
    told_epoch = None if epoch == new.leader_epoch else new.leader_epoch
    told_offset = None if offset == new.offset else new.offset
    return Committed(offset, topic.id, new.metadata, now_ms(), member_id, epoch, told_epoch, told_offset)


def _refused(group: str, error: GroupError) -> ErrorCode:
    """As Kafka refuses a commit from outside while a group has members; or one that another broker coordinates."""
    _logger.warning("a commit to group %s was refused: %s", group, error)
    return ErrorCode.NOT_COORDINATOR if isinstance(error, NotCoordinator) else ErrorCode.UNKNOWN_MEMBER_ID


def _code(is_there: bool) -> ErrorCode:
    return ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class StagedOffsets:
    """Offsets of transactions that have not ended. In memory: the transaction log makes them durable."""

    def __init__(self) -> None:
        self._staged: dict[int, dict[str, dict[Share, NewOffset]]] = {}

    def add(self, producer_id: int, group: str, offsets: Mapping[Share, NewOffset]) -> None:
        """Add what a producer commits if its transaction does."""
        self._staged.setdefault(producer_id, {}).setdefault(group, {}).update(offsets)

    def of(self, producer_id: int) -> Mapping[str, Mapping[Share, NewOffset]]:
        """What a producer's transaction commits, by group."""
        return self._staged.get(producer_id, {})

    def drop(self, producer_id: int) -> Iterable[str]:
        """Forget a producer's; the groups that are concerned."""
        return list(self._staged.pop(producer_id, ()))

    def pending(self, group: str) -> frozenset[Share]:
        """The partitions for which a group waits for the end of a transaction."""
        return frozenset(share for groups in self._staged.values() for share in groups.get(group, ()))
