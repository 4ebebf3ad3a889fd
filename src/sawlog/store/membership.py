"""`GroupMembership`: a consumer's membership in its group; `assign`: the partitions of each member.

A member joins, sends heartbeats, watches the others, takes partitions from members whose session has expired, and
releases its own. A member whose own session has expired is *fenced*: `check` raises `GroupFenced`, and the next
`rebalance` joins again. Backends define how all this is recorded and why it is safe.

Threads: the background calls `tick`, and any thread may call `close`; everything else is called under the consumer's
lock. In a backend, the background calls only `beat`, `is_current` and `view`.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..clock import Stopwatch
from ..errors import GroupFenced
from ..storage.forking import forkable
from .base import Topic, TopicPartition
from .groups import Committed, StartPosition

_logger = logging.getLogger("sawlog.store.consumer")


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """Consumer options that the group must know."""

    group: str
    #: Display name of the member; may be empty.
    name: str
    topics: tuple[str, ...]
    #: The session expires after this long without a heartbeat.
    session_timeout_ms: int
    #: Heartbeats stop if no records were requested for this long.
    max_poll_s: float


@dataclass(frozen=True, slots=True)
class GroupView:
    """Snapshot of a group; equal if nothing relevant to the assignment has changed."""

    subscriptions: dict[str, tuple[str, ...]]
    silent: frozenset[str]
    owners: dict[TopicPartition, str]


class GroupMembership(ABC):
    """One member of one group, and the partitions that it owns."""

    def __init__(self, options: MemberOptions) -> None:
        self._options = options
        #: Number of partitions it should own; other members may not have released all of them yet.
        self._due_count = 0
        #: The group as it was at the last assignment.
        self._assigned_view: GroupView | None = None
        #: True if the group has changed since the last assignment.
        self.must_rebalance = True
        #: Held by the background thread while it works, so that nothing is closed meanwhile.
        self._ticking = forkable(threading.Lock())
        self._tick_failed = False
        self._closed = False
        #: Time since the last request for records. A member that requests none counts as dead, whatever its process
        #: does.
        self._asked = Stopwatch()
        #: The last offset that the background saw.
        self._last_seen = -1

    # --- the abstract core

    @property
    @abstractmethod
    def id(self) -> str:
        """Member id; empty before `join` and after being fenced."""

    @abstractmethod
    def join(self) -> None:
        """Join the group; no-op for a member. `GroupActive` if a broker or workers of a queue have the group."""

    @abstractmethod
    def beat(self) -> None:
        """Send a heartbeat. May be called at any rate."""

    @property
    @abstractmethod
    def is_current(self) -> bool:
        """True if the other members still count this one."""

    @abstractmethod
    def still_owns(self) -> bool:
        """Return whether this member still owns every partition it has taken."""

    @abstractmethod
    def view(self, owners: Mapping[TopicPartition, str] | None = None) -> GroupView:
        """Return a snapshot of the group. The owners are not read if they are given."""

    @abstractmethod
    def fence_silent(self) -> None:
        """Remove members whose session has expired."""

    @property
    @abstractmethod
    def owned(self) -> set[TopicPartition]:
        """Partitions that this member owns."""

    @abstractmethod
    def take(
        self, partitions: Sequence[TopicPartition], topics: Mapping[str, Topic], start: StartPosition
    ) -> dict[TopicPartition, tuple[int, int] | None]:
        """Take the partitions without an owner; return where the group continues in each (offset and leader epoch),
        None for the first record. No commit of an earlier owner can follow."""

    @abstractmethod
    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Release partitions, after the last commit."""

    @abstractmethod
    def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit offsets of owned partitions, all or none, durably; `GroupFenced` if this member has lost one of
        them."""

    @abstractmethod
    def committed(self) -> dict[TopicPartition, Committed]:
        """Return the group's committed offsets."""

    @abstractmethod
    def leave(self) -> None:
        """Release everything and leave the group; `rebalance` joins again."""

    # --- heartbeats

    @property
    def group(self) -> str:
        """Name of the group."""
        return self._options.group

    @property
    def topics(self) -> set[str]:
        """All topics that any member reads, as of the last assignment."""
        view = self._assigned_view
        return set() if view is None else {topic for topics in view.subscriptions.values() for topic in topics}

    def asked(self) -> None:
        """Record a request for records, which proves that the member is alive."""
        self._asked.restart()

    def tick(self, next_offset: int | None) -> bool:
        """Send a heartbeat and check the other members; return whether that worked. `next_offset` is the caller's
        position, if it is iterating: a new one counts as a request. Called by the background thread."""
        with self._ticking:
            if self._closed or not self.id:
                return False
            try:
                if next_offset is not None and next_offset != self._last_seen:
                    self._last_seen = next_offset
                    self._asked.restart()
                if self._asked.elapsed_s <= self._options.max_poll_s:
                    self.beat()
                view = self._assigned_view
                owners = None if view is None or len(self.owned) < self._due_count else view.owners
                if not self.is_current or self.view(owners) != view:
                    self.must_rebalance = True
                self._tick_failed = False
            except Exception:  # the thread serves the whole process
                if not self._tick_failed:  # logged once, not four times a second
                    _logger.exception("the background check of a consumer of %r failed", self.group)
                self._tick_failed = True
            return not self._tick_failed

    def check(self, *, thorough: bool = True) -> None:
        """Raise `GroupFenced` if this member's session has expired.

        Only `thorough` checks every partition: the member that fenced this one may have died halfway.
        """
        if not self.id:
            self.must_rebalance = True  # fenced and already reported: join again
        elif not self.is_current or (thorough and not self.still_owns()):
            raise self._fenced()

    def _fenced(self) -> GroupFenced:
        return GroupFenced(
            f"the session of this member of the group {self.group!r} expired after "
            f"{self._options.session_timeout_ms} ms without a heartbeat; its partitions were reassigned from the last "
            "commit on. The next call joins again"
        )

    # --- assignment

    def rebalance(self, partitions: Iterable[TopicPartition]) -> tuple[set[TopicPartition], list[TopicPartition]]:
        """Return the partitions of the group that this member should own, and those among them that have no owner yet.
        Joins, and fences members whose session has expired."""
        self.must_rebalance = False
        self.join()
        me = self.id
        self.beat()
        view = self._assigned_view = self.view()
        if view.silent - {me}:
            self.fence_silent()
            view = self._assigned_view = self.view()
        owners = {partition: id for partition, id in view.owners.items() if id in view.subscriptions and id != me}
        owners.update(dict.fromkeys(self.owned, me))
        mine = assign({**view.subscriptions, me: self._options.topics}, partitions, owners)[me]
        self._due_count = len(mine)
        return mine, [partition for partition in mine if partition not in owners]

    # --- leaving

    def close(self) -> None:
        """Leave permanently."""
        with self._ticking:  # the background does not run now, and will not
            self._closed = True
        self._end()

    def abandon(self) -> None:
        """Like `close`, for a consumer that was dropped: does not block and raises nothing."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        self.leave()


# --- assignment: a pure function of what every member can see
#
# It is *balanced*: no member has two more than another that could take one of them, directly or through others. It is
# *sticky*: a partition stays with its owner unless balance requires a move. It is deterministic: members that see the
# same state compute the same result without communication. Members that see different states (one has just died, and
# not all have noticed) may disagree for a moment. That is harmless, because owning a partition also requires its lock
# (see `sawlog.store.directory.members`).


def assign(
    subscriptions: Mapping[str, Collection[str]],
    partitions: Iterable[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> dict[str, set[TopicPartition]]:
    """Return the partitions that each member should own: every partition belongs to exactly one member that subscribes
    to its topic, if there is one. `subscriptions`: the topics of each live member; `owners`: the
    current owners."""
    plan: dict[str, set[TopicPartition]] = {member: set() for member in sorted(subscriptions)}
    free: list[TopicPartition] = []
    for partition in sorted(partitions):
        owner = owners.get(partition)
        if owner is not None and partition[0] in subscriptions.get(owner, ()):
            plan[owner].add(partition)
        else:
            free.append(partition)
    for partition in free:
        takers = [member for member in plan if partition[0] in subscriptions[member]]
        if takers:
            plan[min(takers, key=lambda member: (len(plan[member]), member))].add(partition)
    while _level(plan, subscriptions):
        pass
    return plan


def _level(plan: dict[str, set[TopicPartition]], subscriptions: Mapping[str, Collection[str]]) -> bool:
    """Move one partition from a member with too many towards one with too few; return whether a move was possible."""
    for giver in sorted(plan, key=lambda member: (-len(plan[member]), member)):
        path = _way_down(plan, subscriptions, giver)
        if path:
            for member, partition, taker in path:
                plan[member].remove(partition)
                plan[taker].add(partition)
            return True
    return False


def _way_down(
    plan: dict[str, set[TopicPartition]], subscriptions: Mapping[str, Collection[str]], giver: str
) -> list[tuple[str, TopicPartition, str]]:
    """Return the shortest chain of moves (from, what, to) that ends at a member with at least two fewer; empty if there
    is none.

    Each member in a chain passes on as many as it gets, so only the first and the last change in number.
    """
    came_from: dict[str, tuple[str, TopicPartition]] = {}
    waiting = deque([giver])
    seen = {giver}
    while waiting:
        member = waiting.popleft()
        if len(plan[member]) <= len(plan[giver]) - 2:
            path: list[tuple[str, TopicPartition, str]] = []
            while member != giver:
                before, partition = came_from[member]
                path.append((before, partition, member))
                member = before
            return path
        # The last partition of each topic that it owns: low numbers stay where they are.
        offers = {partition[0]: partition for partition in sorted(plan[member])}
        for other in sorted(plan.keys() - seen, key=lambda each: (len(plan[each]), each)):
            wanted = [offers[topic] for topic in sorted(offers) if topic in subscriptions[other]]
            if wanted:
                seen.add(other)
                came_from[other] = member, wanted[0]
                waiting.append(other)
    return []
