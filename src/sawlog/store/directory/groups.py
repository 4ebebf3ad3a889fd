"""`DirectoryGroups`: consumer groups in files: members are lock files, offsets a compacted log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

from ...clock import now_ms
from ...config import whole_number
from ...errors import DirectoryLocked, GroupActive, GroupNotFound, InvalidConfig, SawlogError, TopicNotFound
from ...log.epochs import MAX_EPOCH
from ...storage import Directory
from ...storage.checksummed import load, store
from ..base import Partition, Store, Topic, TopicPartition
from ..groups import (
    Committed,
    GroupDescription,
    GroupDocuments,
    GroupRow,
    Groups,
    Member,
    OffsetChange,
    StartPosition,
    checked_position,
    resolve,
)
from ..membership import MemberOptions
from ..names import check_group_name
from .members import Members, forget_group, give_up, group_directory, groups_with_members, refuse_workers
from .membership import DirectoryClaim, DirectoryMembership, DirectoryWorkers, noted_server, refuse_served, server_of
from .offsets import OffsetStore

if TYPE_CHECKING:
    from ..options import QueueOptions


class DirectoryDocuments(GroupDocuments):
    """Documents of one group, as files in its directory."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def find(self, name: str) -> dict[str, Any] | None:
        return load(self._directory, name) if self._directory.exists(name) else None

    def keep(self, name: str, fields: dict[str, Any]) -> None:
        store(self._directory, name, fields)

    def remove(self, name: str) -> None:
        self._directory.remove(name)

    def sync(self) -> None:
        self._directory.sync()


class DirectoryGroups(Groups):
    """Consumer groups of a store in a directory. Thread-safe."""

    def __init__(self, store: Store, directory: Directory) -> None:
        self._store = store
        self._directory = directory
        #: Committed offsets; for consumers.
        self._offsets = OffsetStore(directory, writable=store.mode != "r")

    def _membership(self, options: MemberOptions) -> DirectoryMembership:
        return DirectoryMembership(self._directory, self._offsets, options)

    def _queueing(self, options: QueueOptions) -> tuple[OffsetStore, DirectoryWorkers]:
        return self._offsets, DirectoryWorkers(self._directory, self._offsets, options)

    def _close(self) -> None:
        """Close the files. Called by `Store.close`."""
        self._offsets.close()

    # --- inspecting

    def committed(self, name: str) -> dict[TopicPartition, Committed]:
        return self._offsets.of(name)

    def list(self) -> list[str]:
        """Return the names of all groups that have committed something or have members."""
        names = set(self._offsets.groups())
        for name in groups_with_members(self._directory):
            if name not in names and (self._live(name) or self._served_at(name)):
                names.add(name)
        return sorted(names)

    def describe(self, name: str) -> GroupDescription:
        """Return the members of a group and its progress; `GroupNotFound` if it does not exist, `CorruptBatch` if that
        is uncertain because commits are lost."""
        offsets = self._offsets.of(check_group_name(name))
        members, served_at = self._live(name), self._served_at(name)
        if not offsets and not members and not served_at:
            raise self._not_found(name)
        owners = {partition: id for partition, id in self._owners(name).items() if id in members}
        works = any(member.works for member in members.values())
        pages = self._offsets.pages(name) or ({} if works else None)
        topics = {topic for topic, _ in offsets}.union(*(member.topics for member in members.values()))
        rows: list[GroupRow] = []
        for topic_name in sorted(topics):
            try:
                topic = self._store.topic(topic_name)
            except TopicNotFound:
                continue  # deleted meanwhile
            rows.extend(_row(topic, number, offsets, owners, pages) for number in range(topic.partitions))
        return GroupDescription(name, tuple(sorted(members.values(), key=lambda each: each.id)), tuple(rows), served_at)

    def _served_at(self, name: str) -> str | None:
        """Return the address of the broker that has the group's members; None if they do not connect over the
        network."""
        with self._members(name) as members:
            noted = None if members is None else noted_server(members.directory)
            if members is None or noted is None or self._store.mode == "r":
                return noted
            try:
                with self._offsets.turn():
                    return server_of(members.directory)
            except DirectoryLocked:  # a process is stopped in its turn
                return noted

    def _claim(self, name: str, address: str) -> DirectoryClaim:
        """Return the claim of a broker at that address to admit members to the group."""
        return DirectoryClaim(self._directory, self._offsets, check_group_name(name), address)

    @contextmanager
    def _members(self, name: str) -> Iterator[Members | None]:
        """Open the members of a group; None if it never had any."""
        if name not in groups_with_members(self._directory):
            yield None
            return
        with closing(group_directory(self._directory, name, create=False)) as directory:
            yield Members(directory)

    def _live(self, name: str) -> dict[str, Member]:
        with self._members(name) as members:
            if members is None:
                return {}
            return members.look() if self._store.mode != "r" else members.glance()

    def _owners(self, name: str) -> dict[TopicPartition, str]:
        with self._members(name) as members:
            return {} if members is None else members.owners()

    def _not_found(self, name: str) -> SawlogError:
        lost = self._offsets.lost_commits()
        return lost or GroupNotFound(f"no group {name!r} in {self._store.path}: it has neither commits nor members")

    # --- moving

    def commit(
        self,
        name: str,
        offsets: Mapping[TopicPartition, int],
        *,
        metadata: str = "",
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit offsets for a group without being a member: for readers that track their own progress. `epochs` are
        the leader epochs in which they were read; the default is the current one.

        `GroupActive`, and nothing is written, if a live member owns one of the partitions, or a broker has members of
        the group.
        """
        check_group_name(name)
        known = epochs or {}
        made = {
            partition: self._committed(partition, offset, metadata, known.get(partition))
            for partition, offset in offsets.items()
        }
        (refused,) = self._commit_together([OffsetChange(name, made)])
        if refused is not None:
            raise refused

    def _commit_together(self, changes: Sequence[OffsetChange]) -> Sequence[GroupActive | None]:
        """Commit for several groups with one disk write. Durable on return. Each change is written whole or refused,
        with its error at its index in the result. Later changes replace earlier ones."""
        with self._offsets.turn() as turn:
            results = [None if change.by_server else self._refused(change) for change in changes]
            new = {change.transaction for change in changes if change.transaction is not None}
            new = {(name, mark) for name, mark in new if turn.mark(name) != mark}
            wanted = [
                change
                for change, refused in zip(changes, results, strict=True)
                if refused is None and (change.transaction is None or change.transaction in new)
            ]
            pages: dict[str, dict[TopicPartition, Mapping[int, bytes | None]]] = {}
            for change in wanted:
                if not change.by_server:  # a broker's members move forward: pages below are ignored
                    pages.setdefault(change.group, {}).update(turn.without_pages(change.group, change.offsets))
            turn.write_all([(change.group, change.offsets) for change in wanted], dict(new), pages)
        return results

    def _refused(self, change: OffsetChange) -> GroupActive | None:
        try:
            self._refuse_owners(change.group, change.offsets)
        except GroupActive as error:
            return error
        return None

    def seek(self, name: str, offsets: Mapping[TopicPartition, StartPosition]) -> dict[TopicPartition, int]:
        """Move a group without live members to offsets, "earliest", "latest" or times, and return the offsets.

        `GroupActive` if it has live members: they would continue where they are. `GroupNotFound` if the group does not
        exist.
        """
        epochs = {
            partition: self._partition(partition)[1].leader_epoch for partition in offsets
        }  # before their ends are read
        found = {partition: self._resolved(partition, place) for partition, place in offsets.items()}
        made = {
            partition: self._committed(partition, offset, "", epochs[partition]) for partition, offset in found.items()
        }
        with self._offsets.turn() as turn:
            self._refuse_members(check_group_name(name))
            if not turn.offsets(name):
                raise self._not_found(name)
            turn.write_all([(name, made)], pages={name: turn.without_pages(name, made)})
        return found

    @contextmanager
    def _documents(self, name: str) -> Iterator[DirectoryDocuments]:
        """Hold the documents that readers with their own progress keep for a group, exclusively."""
        with self._offsets.turn(), closing(group_directory(self._directory, name, create=True)) as directory:
            yield DirectoryDocuments(directory)

    def delete(self, name: str) -> None:
        with self._offsets.turn() as turn:
            self._refuse_members(check_group_name(name))
            offsets = turn.offsets(name)
            if not offsets:
                raise self._not_found(name)
            pages = turn.without_pages(name, turn.pages(name))
            turn.write_all([(name, dict.fromkeys(offsets))], pages={name: pages})
            forget_group(self._directory, name)

    def _refuse_members(self, name: str) -> None:
        """Raise `GroupActive` if the group has live members, here or at a broker. Call in a turn."""
        members = self._live(name)
        if members:
            who = ", ".join(sorted(each.name or each.process for each in members.values()))
            raise GroupActive(f"the group {name!r} has live members ({who}): close them first, or seek in the consumer")
        with self._members(name) as found:
            if found is not None:
                refuse_served(found.directory, name)

    def _refuse_owners(self, name: str, partitions: Iterable[TopicPartition]) -> None:
        """Raise `GroupActive` if one of these partitions has an owner. Call in a turn, during which no member can take
        one."""
        with self._members(name) as members, ExitStack() as undo:
            if members is None:
                return
            refuse_served(members.directory, name)
            refuse_workers(members, name)
            for partition in partitions:
                held = members.take(partition, "")
                if held is None:
                    raise GroupActive(
                        f"partition {partition[1]} of {partition[0]!r} is owned by a live member of the group "
                        f"{name!r}: its offset is committed there"
                    )
                undo.callback(give_up, held)

    def _partition(self, partition: TopicPartition) -> tuple[Topic, Partition]:
        topic = self._store.topic(partition[0])
        return topic, topic.partition(partition[1])

    def _committed(self, partition: TopicPartition, offset: int, metadata: str, epoch: int | None = None) -> Committed:
        topic, log = self._partition(partition)
        epoch = log.leader_epoch if epoch is None else whole_number(epoch, "a leader epoch")
        if not -1 <= epoch <= MAX_EPOCH:
            raise InvalidConfig(f"a leader epoch must be an integer from -1 (unknown) to {MAX_EPOCH}, not {epoch}")
        return Committed(checked_position(offset), topic.id, metadata, now_ms(), "", epoch)

    def _resolved(self, partition: TopicPartition, place: StartPosition) -> int:
        return resolve(self._partition(partition)[1], place)


def _row(
    topic: Topic,
    number: int,
    offsets: Mapping[TopicPartition, Committed],
    owners: Mapping[TopicPartition, str],
    pages: Mapping[TopicPartition, Mapping[int, bytes]] | None,
) -> GroupRow:
    """Describe the progress in one partition. `pages` are those of a queue, or None."""
    partition = topic.name, number
    log = topic.partition(number)
    end, lowest = log.visible_offset, log.lowest_offset
    found = offsets.get(partition)
    committed, reached = None, lowest
    if found is not None and found.topic_id == topic.id:
        committed, reached = found.offset, min(found.offset, log.epoch_end(found.leader_epoch))
    lag = max(end - max(lowest, reached), 0)
    left = None
    if pages is not None:
        from ..queues.delivery_state import unfinished  # a broker, which has no queues, starts without it

        left = unfinished(topic.id, reached, lowest, end, pages.get(partition, {}))
    return GroupRow(topic.name, number, committed, lowest, end, lag, owners.get(partition), left)
