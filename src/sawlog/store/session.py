"""`Session`: a consumer's membership in its group.

It joins, sends heartbeats, watches the other members, takes partitions from members whose session has expired, and
releases its own. `GroupMembership` defines how that is recorded and why it is safe, in a directory or on object
storage. A member whose own session has expired is *fenced*: `check` raises `GroupFenced`, and the next `share_out`
joins again.

Threads: the background calls `tick`, and any thread may call `close`; everything else is called under the consumer's
lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence

from ..clock import Stopwatch
from ..errors import GroupFenced
from ..storage.forking import forkable
from .assignment import assign
from .base import Topic, TopicPartition
from .groups import Committed, GroupMembership, GroupView, MemberOptions, StartPosition

_logger = logging.getLogger("sawlog.store.consumer")


class _Demand:
    """Time since records were last requested. A member that requests none counts as dead, whatever its process does."""

    def __init__(self) -> None:
        self._asked = Stopwatch()
        #: The last offset that the background saw.
        self._last_seen = -1

    def asked(self) -> None:
        """Record a request."""
        self._asked.restart()

    def saw(self, next_offset: int) -> None:
        """Treat a new offset as a request: the caller is iterating."""
        if next_offset != self._last_seen:
            self._last_seen = next_offset
            self._asked.restart()

    @property
    def silent_s(self) -> float:
        """Seconds since the last request."""
        return self._asked.elapsed_s


class Session:
    """One member of one group, and the partitions that it owns."""

    def __init__(self, membership: GroupMembership, options: MemberOptions) -> None:
        self._membership = membership
        self._options = options
        #: Number of partitions it should own; other members may not have released all of them yet.
        self._due_count = 0
        #: The group as it was at the last assignment, and whether it has changed since.
        self._view: GroupView | None = None
        self._stirred = True
        #: Held by the background thread while it works, so that nothing is closed meanwhile.
        self._ticking = forkable(threading.Lock())
        self._ailing = False
        self._closed = False
        self._demand = _Demand()

    # --- properties

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._options.group

    @property
    def member_id(self) -> str:
        """Member id; empty before it has joined."""
        return self._membership.id

    @property
    def is_member(self) -> bool:
        """Whether it has joined and has not been fenced since."""
        return bool(self._membership.id)

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
        """Record a request for records, which proves that the member is alive."""
        self._demand.asked()

    def tick(self, next_offset: int | None) -> bool:
        """Send a heartbeat and check the other members; return whether that worked. `next_offset` is the caller's
        position, if it is iterating. Called by the background thread."""
        with self._ticking:
            membership = self._membership
            if self._closed or not membership.id:
                return False
            try:
                if next_offset is not None:
                    self._demand.saw(next_offset)
                if self._demand.silent_s <= self._options.max_poll_s:
                    membership.beat()
                view = self._view
                owners = None if view is None or len(membership.owned) < self._due_count else view.owners
                if not membership.is_current or membership.view(owners) != view:
                    self._stirred = True
                self._ailing = False
            except Exception:  # the thread serves the whole process
                if not self._ailing:  # logged once, not four times a second
                    _logger.exception("the background check of a consumer of %r failed", self.group)
                self._ailing = True
            return not self._ailing

    def check(self, *, thorough: bool = True) -> None:
        """Raise `GroupFenced` if this member's session has expired.

        Only `thorough` checks every partition: the member that fenced this one may have died halfway.
        """
        if not self._membership.id:
            self._stirred = True  # fenced and already reported: join again
            return
        if self._membership.is_current and (not thorough or self._membership.still_owns()):
            return
        raise self._fenced()

    def _fenced(self) -> GroupFenced:
        return GroupFenced(
            f"the session of this member of the group {self.group!r} expired after "
            f"{self._options.session_timeout_ms} ms without a heartbeat; its partitions were reassigned from the last "
            "commit on. The next call joins again"
        )

    # --- assignment

    def share_out(self, partitions: Iterable[TopicPartition]) -> tuple[set[TopicPartition], list[TopicPartition]]:
        """Return the partitions of the group that this member should own, and which of these have no owner yet. Joins,
        and fences members whose session has expired."""
        self._stirred = False
        membership = self._membership
        membership.join()
        me = membership.id
        membership.beat()
        view = self._view = membership.view()
        if view.silent - {me}:
            membership.fence_silent()
            view = self._view = membership.view()
        owners = {share: id for share, id in view.owners.items() if id in view.subscriptions and id != me}
        owners.update(dict.fromkeys(membership.owned, me))
        mine = assign({**view.subscriptions, me: self._options.topics}, partitions, owners)[me]
        self._due_count = len(mine)
        return mine, [share for share in mine if share not in owners]

    def take(
        self, shares: Sequence[TopicPartition], topics: Mapping[str, Topic], start: StartPosition
    ) -> dict[TopicPartition, tuple[int, int] | None]:
        """Take partitions without an owner; return where the group continues in each, None for the first record."""
        return self._membership.take(shares, topics, start)

    def give_up(self, shares: Iterable[TopicPartition]) -> None:
        """Release partitions, after the last commit."""
        self._membership.give_up(shares)

    # --- offsets

    def commit(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit offsets of owned partitions, all or none; `GroupFenced` if this member has lost one of them."""
        try:
            self._membership.commit(offsets)
        except GroupFenced:
            raise self._fenced() from None

    def committed(self) -> dict[TopicPartition, Committed]:
        """Return the group's committed offsets."""
        return self._membership.committed()

    # --- leaving

    def leave(self) -> None:
        """Release everything and leave the group; `share_out` joins again."""
        self._membership.leave()

    def abandon(self) -> None:
        """Like `close`, for a consumer that was dropped: does not block."""
        self._closed = True
        self._membership.abandon()

    def close(self) -> None:
        """Leave permanently."""
        with self._ticking:  # the background does not run now, and will not
            self._closed = True
        self._membership.close()
