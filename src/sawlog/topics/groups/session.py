"""`Session`: a consumer's membership in its group.

It joins, sends heartbeats, watches the others, takes partitions from members whose session has expired, and holds the
locks of the partitions that it owns. `members` explains why that is safe. If its own session has expired it is
*fenced*: `check` raises `GroupFenced`, and the next `share_out` joins again.

Threads: the background calls `tick`, and any thread may call `close`; everything else is called under the consumer's
lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from ...clock import Stopwatch
from ...errors import GroupFenced
from ...storage import Directory, Lock
from ...storage.forking import forkable
from .assignment import Share, assign
from .members import Members, Membership, give_up, group_directory, refuse_workers
from .offsets import OffsetStore
from .serving import refuse_served
from .terms import Terms

_logger = logging.getLogger("sawlog.topics.consumer")


@dataclass(frozen=True, slots=True)
class _View:
    """What a member sees of its group; equal if nothing has changed that matters for the assignment."""

    subscriptions: dict[str, tuple[str, ...]]
    silent: frozenset[str]
    owners: dict[Share, str]

    @classmethod
    def of(cls, members: Members, owners: dict[Share, str] | None = None) -> _View:
        """The current view; the owners, if they are given, are not read."""
        found = members.look()
        silent = frozenset(id for id, each in found.items() if members.is_silent(each))
        owners = members.owners() if owners is None else owners
        return cls({id: each.topics for id, each in found.items()}, silent, owners)

    @property
    def topics(self) -> set[str]:
        """All topics that any member reads."""
        return {topic for topics in self.subscriptions.values() for topic in topics}


class _Demand:
    """Whether records are requested from this member: if not, it is not alive, whatever its process does."""

    def __init__(self) -> None:
        self._asked = Stopwatch()
        #: The last offset that the background saw.
        self._last_seen = -1

    def asked(self) -> None:
        """Records were asked for."""
        self._asked.restart()

    def saw(self, next_offset: int) -> None:
        """The caller is iterating, and has reached this offset: moving on is a request for records."""
        if next_offset != self._last_seen:
            self._last_seen = next_offset
            self._asked.restart()

    @property
    def silent_s(self) -> float:
        """How long no records were requested."""
        return self._asked.elapsed_s


class Session:
    """One member of one group, and the partitions that it owns."""

    def __init__(self, root: Directory, offsets: OffsetStore, terms: Terms) -> None:
        self._root = root
        self._offsets = offsets
        self._terms = terms
        self._members: Members | None = None
        self._membership: Membership | None = None
        #: The locks of the owned partitions.
        self._held: dict[Share, Lock] = {}
        #: How many it should own; other members may not have released some of them yet.
        self._due_count = 0
        #: The group as it was at the last assignment, and whether it has changed since.
        self._view: _View | None = None
        self._stirred = True
        #: Held by the background while it works: its files are not closed meanwhile.
        self._ticking = forkable(threading.Lock())
        self._ailing = False
        self._demand = _Demand()

    # --- properties

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._terms.group

    @property
    def member_id(self) -> str:
        """Its id for the others; empty while it is not a member."""
        return "" if self._membership is None else self._membership.id

    @property
    def is_member(self) -> bool:
        """Whether it has joined and has not been fenced since."""
        return self._membership is not None

    @property
    def stirred(self) -> bool:
        """Whether the group has changed since the last assignment."""
        return self._stirred

    @property
    def topics(self) -> set[str]:
        """All topics that any member reads, as of the last check."""
        view = self._view
        return set() if view is None else view.topics

    # --- heartbeats

    def asked(self) -> None:
        """Records are requested: the member is alive."""
        self._demand.asked()

    def tick(self, next_offset: int | None) -> bool:
        """Called by the background: send a heartbeat, check the others; returns whether that worked. `next_offset` is
        where the caller is, if it is iterating."""
        with self._ticking:
            membership, members = self._membership, self._members
            if membership is None or members is None:
                return False
            try:
                if next_offset is not None:
                    self._demand.saw(next_offset)
                if self._demand.silent_s <= self._terms.max_poll_s:
                    membership.beat()
                view = self._view
                owners = None if view is None or len(self._held) < self._due_count else view.owners
                if not membership.current or _View.of(members, owners) != view:
                    self._stirred = True
                self._ailing = False
            except Exception:  # the thread serves the whole process
                if not self._ailing:  # logged once, not four times a second
                    _logger.exception("the background check of a consumer of %r failed", self.group)
                self._ailing = True
            return not self._ailing

    def check(self, *, thorough: bool = True) -> None:
        """Raise `GroupFenced` if our session has expired.

        Only with `thorough` the lock of every partition is checked: the member that fenced us may have died before it
        was done.
        """
        if self._membership is None:
            self._stirred = True  # fenced, and told so: join again
            return
        held = list(self._held.values()) if thorough else []
        if self._membership.current and all(lock.current for lock in held):
            return
        raise GroupFenced(
            f"the session of this member of the group {self.group!r} expired after {self._terms.session_timeout_ms} ms "
            "without a heartbeat; its partitions were reassigned from the last commit on. The next call joins "
            "again"
        )

    # --- assignment

    def share_out(self, partitions: Iterable[Share]) -> tuple[set[Share], list[Share]]:
        """What this member should own of all partitions of the group, and which of these nobody owns yet. Joins, and
        fences members whose session has expired."""
        self._stirred = False
        members, membership = self._joined()
        me = membership.id
        membership.beat()
        view = self._view = _View.of(members)
        if view.silent - {me}:
            view = self._view = self._fence_silent(members, me)
        owners = {share: id for share, id in view.owners.items() if id in view.subscriptions and id != me}
        owners.update(dict.fromkeys(self._held, me))
        mine = assign({**view.subscriptions, me: self._terms.topics}, partitions, owners)[me]
        self._due_count = len(mine)
        return mine, [share for share in mine if share not in owners]

    def _joined(self) -> tuple[Members, Membership]:
        if self._members is None or self._membership is None:
            with self._offsets.turn():
                with self._ticking:
                    if self._members is not None:  # the group may have been deleted and its directory replaced
                        self._members.directory.close()
                    self._members = Members(group_directory(self._root, self.group, create=True))
                refuse_served(self._members.directory, self.group)
                refuse_workers(self._members, self.group)
                terms = self._terms
                self._membership = self._members.join(terms.name, terms.topics, terms.session_timeout_ms)
        return self._members, self._membership

    def _fence_silent(self, members: Members, me: str) -> _View:
        with self._offsets.turn():
            for member in members.look().values():
                if member.id != me and members.is_silent(member) and members.fence(member):
                    who = member.name or member.process
                    _logger.warning("the session of %s expired; it was removed from the group %r", who, self.group)
        return _View.of(members)

    def take(self, share: Share) -> bool:
        """Become the owner of a partition, if nobody is. In a turn."""
        if self._members is None or self._membership is None:
            return False
        held = self._members.take(share, self._membership.id)
        if held is not None:
            self._held[share] = held
        return held is not None

    def give_up(self, share: Share) -> None:
        """Release a partition. After the last commit."""
        give_up(self._held.pop(share))

    # --- leaving

    def leave(self) -> None:
        """Release everything and leave the group; `share_out` joins again."""
        for share in list(self._held):
            self.give_up(share)
        membership, self._membership = self._membership, None
        if membership is not None:
            membership.leave()

    def close(self) -> None:
        """Leave permanently, and close the files."""
        with self._ticking:  # the background does not run now, and will not
            members, self._members = self._members, None
        try:
            self.leave()
        finally:
            if members is not None:
                members.directory.close()
