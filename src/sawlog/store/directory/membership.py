"""`DirectoryMembership`: one member of a consumer group, in files of a directory. `DirectoryClaim`: a broker that
serves the group to the network. `DirectoryWorkers`: a worker of a queue.

`sawlog.store.directory.members` explains why membership is safe. A group has either consumers that open the store
themselves or members at a broker, because the two kinds do not know of each other:

```
members/<group>/broker      locked by a broker while it has members of the group; its note has the broker's address
```

Both are decided in turns of the groups' log: `DirectoryClaim.take` takes the lock if no consumer has joined, and
joining, moving or deleting a group checks for the lock first (`refuse_served`). The kernel releases the lock of a
broker that dies for any reason. A member that hangs or was stopped does not keep a broker out for longer than its
session timeout: the claim watches it as another member would, and fences it.

A worker is a member of its group as a consumer is, so messages of a dead worker are delivered again at once, without
waiting for their visibility timeout. It owns no partition: all workers take messages from all partitions. A group has
workers or consumers, never both at the same time.

Threads: as for `GroupMembership`. The background thread never touches a file that is being closed.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...clock import Stopwatch
from ...errors import DirectoryLocked, GroupActive
from ...storage import Directory, Lock
from ...storage.forking import forkable
from ..base import Topic, TopicPartition
from ..groups import (
    Committed,
    CoordinatorClaim,
    Member,
    QueueWorkers,
    StartPosition,
)
from ..membership import GroupMembership, GroupView, MemberOptions
from .members import Members, Membership, as_note, give_up, group_directory, note_of, refuse_consumers, refuse_workers
from .offsets import OffsetStore

if TYPE_CHECKING:
    from ..options import QueueOptions

_BROKER = "broker"
#: A broker may take over the group if no worker has sent a heartbeat for this long. Leases still last until their
#: timeout.
_SESSION_MS = 10_000
#: Minimum interval between liveness checks of workers.
_LOOK_S = 0.25

_logger = logging.getLogger("sawlog.store.consumer")


class DirectoryMembership(GroupMembership):
    """One member of one group, with the locks of the partitions it owns."""

    def __init__(self, root: Directory, offsets: OffsetStore, options: MemberOptions, *, works: bool = False) -> None:
        super().__init__(options)
        #: True for a worker of a queue, which owns no partition.
        self._works = works
        self._root = root
        self._offsets = offsets
        self._members: Members | None = None
        self._membership: Membership | None = None
        #: Locks of the owned partitions.
        self._held: dict[TopicPartition, Lock] = {}
        #: Held while the background thread uses the files, or while they are replaced.
        self._changing = forkable(threading.Lock())

    @property
    def id(self) -> str:
        return "" if self._membership is None else self._membership.id

    def join(self) -> None:
        if self._membership is None:
            with self._offsets.turn():
                self.join_in_turn()

    def join_in_turn(self) -> None:
        """Join the group in a turn of the caller."""
        options = self._options
        with self._changing:
            if self._members is not None:  # the group may have been deleted and its directory replaced
                self._members.directory.close()
            self._members = Members(group_directory(self._root, options.group, create=True))
        refuse_served(self._members.directory, options.group)
        (refuse_consumers if self._works else refuse_workers)(self._members, options.group)
        self._membership = self._members.join(
            options.name, options.topics, options.session_timeout_ms, works=self._works
        )

    def beat(self) -> None:
        membership = self._membership
        if membership is not None:
            membership.beat()

    @property
    def is_current(self) -> bool:
        membership = self._membership
        return membership is not None and membership.current

    def still_owns(self) -> bool:
        """Return whether every lock is still current: the member that fenced this one may have died halfway."""
        return all(lock.current for lock in list(self._held.values()))

    def view(self, owners: Mapping[TopicPartition, str] | None = None) -> GroupView:
        with self._changing:
            members = self._members
            if members is None:
                return GroupView({}, frozenset(), {})
            found = members.look()
            silent = frozenset(id for id, each in found.items() if members.is_silent(each))
            read = members.owners() if owners is None else dict(owners)
            return GroupView({id: each.topics for id, each in found.items()}, silent, read)

    def fence_silent(self) -> None:
        if self._members is None:
            return
        members, group = self._members, self._options.group
        with self._offsets.turn():
            for member in members.look().values():
                if member.id != self.id and members.is_silent(member) and members.fence(member):
                    who = member.name or member.process
                    _logger.warning("the session of %s expired; it was removed from the group %r", who, group)

    @property
    def owned(self) -> set[TopicPartition]:
        return set(self._held)

    def take(
        self, partitions: Sequence[TopicPartition], topics: Mapping[str, Topic], start: StartPosition
    ) -> dict[TopicPartition, tuple[int, int] | None]:
        """Take the partitions without an owner and read, in the same turn, where the group continues."""
        taken: dict[TopicPartition, tuple[int, int] | None] = {}
        if self._members is None or self._membership is None:
            return taken
        with self._offsets.turn() as turn:
            places = turn.places(self._options.group, topics.values(), start, self._membership.id)
            for partition in partitions:
                held = self._members.take(partition, self._membership.id)
                if held is not None:
                    self._held[partition] = held
                    taken[partition] = places.get(partition)
        return taken

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            give_up(self._held.pop(partition))

    def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit in one turn, which also checks the locks."""
        with self._offsets.turn() as turn:
            if not self.is_current or not self.still_owns():
                raise self._fenced()
            turn.write(self._options.group, offsets)

    def committed(self) -> dict[TopicPartition, Committed]:
        return self._offsets.of(self._options.group)

    def leave(self) -> None:
        self.give_up(list(self._held))
        membership, self._membership = self._membership, None
        if membership is not None:
            membership.leave()

    def _end(self) -> None:
        with self._changing:
            members, self._members = self._members, None
        try:
            self.leave()
        finally:
            if members is not None:
                members.directory.close()


class DirectoryClaim(CoordinatorClaim):
    """A broker's claim to a group: it holds the lock of `members/<group>/broker` from `take` until `release`."""

    def __init__(self, root: Directory, offsets: OffsetStore, group: str, address: str) -> None:
        self._root = root
        self._offsets = offsets
        self._group = group
        self._address = address
        self._members: Members | None = None
        #: The beat of each member when it was first seen.
        self._beats: dict[str, int] = {}
        self._held: Lock | None = None

    def take(self) -> None:
        with self._offsets.turn():
            if self._members is None:
                self._members = Members(group_directory(self._root, self._group, create=True))
            live = self._fenced(self._members, self._members.look())
            if live:
                who = ", ".join(sorted(each.name or each.process for each in live.values()))
                raise GroupActive(
                    f"the group {self._group!r} has live members that opened the store themselves ({who}): close them "
                    "before members join over the network"
                )
            refuse_served(self._members.directory, self._group)
            self._held = self._members.directory.lock(_BROKER, alone=False)
            self._held.leave(as_note({"address": self._address}))

    def _fenced(self, members: Members, found: dict[str, Member]) -> dict[str, Member]:
        """Return the members except those whose session has expired, which are fenced. Call in a turn."""
        live: dict[str, Member] = {}
        for member in found.values():
            self._beats.setdefault(member.id, member.beat)
            if members.is_silent(member) and members.fence(member):
                who = member.name or member.process
                _logger.warning("the session of %s expired; it was removed from the group %r", who, self._group)
            else:
                live[member.id] = member
        self._beats = {id: beat for id, beat in self._beats.items() if id in live}
        return live

    @property
    def may_succeed(self) -> bool:
        """True if no member has sent a heartbeat since it was first seen: its session may have expired soon."""
        if self._members is None or not self._beats:
            return False
        found = self._members.look()
        return all(each.beat == self._beats.get(each.id, each.beat) for each in found.values())

    @property
    def current(self) -> bool:
        """True if the lock is held, and is the one that others see."""
        return self._held is not None and self._held.current

    def release(self) -> None:
        held, self._held = self._held, None
        members, self._members = self._members, None
        try:
            if held is not None and members is not None and held.current:
                members.directory.remove(_BROKER)
        finally:
            if held is not None:
                held.release()
            if members is not None:
                members.directory.close()


class DirectoryWorkers(QueueWorkers):
    """Workers of a queue, as one of them sees them. Any thread may call `beat`; everything else is for one thread at a
    time."""

    def __init__(self, root: Directory, offsets: OffsetStore, options: QueueOptions) -> None:
        wanted = MemberOptions(options.group, options.worker or "", (options.topic,), _SESSION_MS, math.inf)
        self._member = DirectoryMembership(root, offsets, wanted, works=True)
        self._alive: frozenset[str] = frozenset()
        self._looked = Stopwatch()

    def join(self) -> str:
        """Join the group as a worker and return the id. Call in a turn. `GroupActive` if the group has consumers, or a
        broker serves it."""
        if not self._member.is_current:
            self._member.leave()
            self._member.join_in_turn()
        return self._member.id

    def dead(self, workers: set[str], *, now: bool) -> set[str]:
        """Return which of these workers are dead. Read the ids before calling: workers that join later are not seen.
        Unless `now`, a death may be noticed with a short delay."""
        unknown = workers - self._alive
        if not self._member.id or not (unknown or now or self._looked.elapsed_s >= _LOOK_S):
            return set()
        self._looked.restart()
        self._alive = frozenset(self._member.view(owners={}).subscriptions)
        return workers - self._alive

    def beat(self) -> None:
        self._member.beat()

    def leave(self) -> None:
        self._member.close()
        self._alive = frozenset()


def noted_server(directory: Directory) -> str | None:
    """Return the address in the lock file; None if there is none. The broker may be dead."""
    if not directory.exists(_BROKER):
        return None
    return str(note_of(directory, _BROKER)[1].get("address", "")) or "an unknown address"


def server_of(directory: Directory) -> str | None:
    """Return the address of the broker that serves a group; None if there is none. Removes the file of a dead broker.
    Call in a turn, because it takes the lock for a moment."""
    address = noted_server(directory)
    if address is None:
        return None
    try:
        held = directory.lock(_BROKER, alone=False)
    except DirectoryLocked:
        return address
    try:
        directory.remove(_BROKER)
    finally:
        held.release()
    return None


def refuse_served(directory: Directory, group: str) -> None:
    """Raise `GroupActive` if a broker serves the group. Call in a turn."""
    address = server_of(directory)
    if address is not None:
        raise GroupActive(
            f"the group {group!r} has members at the broker {address}: connect to {address} with a Kafka client, or "
            "stop those members first"
        )
