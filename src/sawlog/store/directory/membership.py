"""`DirectoryMembership`: one member of a consumer group, in files of a directory.

`sawlog.store.members` explains why this is safe. Threads: as for `GroupMembership`. The background thread never touches
a file that is being closed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence

from ...errors import GroupFenced
from ...storage import Directory, Lock
from ...storage.forking import forkable
from ..assignment import Share
from ..base import Topic
from ..committed_offsets import Committed, OffsetStore, Start
from ..consumer_options import MemberOptions
from ..group_host import GroupView
from ..members import Members, Membership, give_up, group_directory, refuse_workers
from ..served_groups import refuse_served

_logger = logging.getLogger("sawlog.store.consumer")


class DirectoryMembership:
    """One member of one group, with the locks of the partitions it owns."""

    def __init__(self, root: Directory, offsets: OffsetStore, options: MemberOptions) -> None:
        self._root = root
        self._offsets = offsets
        self._options = options
        self._members: Members | None = None
        self._membership: Membership | None = None
        #: Locks of the owned partitions.
        self._held: dict[Share, Lock] = {}
        #: Held while the background thread uses the files, or while they are replaced.
        self._changing = forkable(threading.Lock())

    @property
    def id(self) -> str:
        """Member id; empty before `join`."""
        return "" if self._membership is None else self._membership.id

    def join(self) -> None:
        """Join the group. No-op for a member."""
        if self._members is not None and self._membership is not None:
            return
        options = self._options
        with self._offsets.turn():
            with self._changing:
                if self._members is not None:  # the group may have been deleted and its directory replaced
                    self._members.directory.close()
                self._members = Members(group_directory(self._root, options.group, create=True))
            refuse_served(self._members.directory, options.group)
            refuse_workers(self._members, options.group)
            self._membership = self._members.join(options.name, options.topics, options.session_timeout_ms)

    def beat(self) -> None:
        """Send a heartbeat."""
        membership = self._membership
        if membership is not None:
            membership.beat()

    @property
    def is_current(self) -> bool:
        """Whether the other members still count this one."""
        membership = self._membership
        return membership is not None and membership.current

    def still_owns(self) -> bool:
        """Return whether every lock is still current: the member that fenced this one may have died halfway."""
        return all(lock.current for lock in list(self._held.values()))

    def view(self, owners: Mapping[Share, str] | None = None) -> GroupView:
        """Return a snapshot of the group."""
        with self._changing:
            members = self._members
            if members is None:
                return GroupView({}, frozenset(), {})
            found = members.look()
            silent = frozenset(id for id, each in found.items() if members.is_silent(each))
            read = members.owners() if owners is None else dict(owners)
            return GroupView({id: each.topics for id, each in found.items()}, silent, read)

    def fence_silent(self) -> None:
        """Remove members whose session has expired."""
        if self._members is None:
            return
        members, group = self._members, self._options.group
        with self._offsets.turn():
            for member in members.look().values():
                if member.id != self.id and members.is_silent(member) and members.fence(member):
                    who = member.name or member.process
                    _logger.warning("the session of %s expired; it was removed from the group %r", who, group)

    @property
    def owned(self) -> set[Share]:
        """Partitions that this member owns."""
        return set(self._held)

    def take(
        self, shares: Sequence[Share], topics: Mapping[str, Topic], start: Start
    ) -> dict[Share, tuple[int, int] | None]:
        """Take the partitions without an owner and read, in the same turn, where the group continues."""
        taken: dict[Share, tuple[int, int] | None] = {}
        if self._members is None or self._membership is None:
            return taken
        with self._offsets.turn() as turn:
            places = turn.places(self._options.group, topics.values(), start, self._membership.id)
            for share in shares:
                held = self._members.take(share, self._membership.id)
                if held is not None:
                    self._held[share] = held
                    taken[share] = places.get(share)
        return taken

    def give_up(self, shares: Iterable[Share]) -> None:
        """Release partitions."""
        for share in shares:
            give_up(self._held.pop(share))

    def commit(self, offsets: Mapping[Share, Committed]) -> None:
        """Commit in one turn, which also checks the locks."""
        with self._offsets.turn() as turn:
            if not self.is_current or not self.still_owns():
                raise GroupFenced(f"this member of the group {self._options.group!r} has lost its partitions")
            turn.write(self._options.group, offsets)

    def committed(self) -> dict[Share, Committed]:
        """Return the group's committed offsets."""
        return self._offsets.of(self._options.group)

    def leave(self) -> None:
        """Release everything and leave the group."""
        self.give_up(list(self._held))
        membership, self._membership = self._membership, None
        if membership is not None:
            membership.leave()

    def close(self) -> None:
        """Leave permanently, and close the files."""
        with self._changing:
            members, self._members = self._members, None
        try:
            self.leave()
        finally:
            if members is not None:
                members.directory.close()

    abandon = close
