"""`Workers`: this worker's membership in the group of a queue, and the liveness of the others.

A worker is a member of its group as a consumer is (`sawlog.store.members`): it locks a file, and the kernel releases
the lock when the process dies for any reason. Messages of a dead worker are therefore delivered again at once, without
waiting for their visibility timeout. A worker owns no partition: all workers take messages from all partitions.

A group has workers or consumers, never both at the same time.

Threads: any may call `beat`; everything else is for one thread at a time.
"""

from __future__ import annotations

import threading

from ...clock import Stopwatch
from ...errors import GroupActive
from ...storage import Directory
from ...storage.forking import forkable
from ..members import Members, Membership, group_directory
from ..served_groups import refuse_served
from .options import QueueOptions

#: A broker may take over the group if no worker has sent a heartbeat for this long. Leases still last until their
#: timeout.
_SESSION_MS = 10_000
#: Minimum interval between liveness checks.
_LOOK_S = 0.25


class Workers:
    """Workers of a queue, as one of them sees them."""

    def __init__(self, root: Directory, options: QueueOptions) -> None:
        self._root = root
        self._options = options
        self._members: Members | None = None
        self._membership: Membership | None = None
        self._alive: frozenset[str] = frozenset()
        self._looked = Stopwatch()
        #: Held while the background thread uses the files, or while they are closed.
        self._files = forkable(threading.Lock())

    def join(self) -> str:
        """Join the group as a worker and return the id. Call in a turn. `GroupActive` if the group has consumers, or a
        broker serves it."""
        if self._membership is not None and self._membership.current:
            return self._membership.id
        self.leave()
        with self._files:
            self._members = Members(group_directory(self._root, self._options.group, create=True))
        refuse_served(self._members.directory, self._options.group)
        consumers = [each for each in self._members.look().values() if not each.works]
        if consumers:
            who = ", ".join(sorted(each.name or each.process for each in consumers))
            raise GroupActive(
                f"the group {self._options.group!r} has consumers ({who}): close them first, or use another group"
            )
        self._membership = self._members.join(self._options.worker, [self._options.topic], _SESSION_MS, works=True)
        return self._membership.id

    def dead(self, workers: set[str], *, now: bool) -> set[str]:
        """Return which of these workers are dead. Read the ids before calling: workers that join later are not seen.
        Unless `now`, a death may be noticed with a short delay."""
        unknown = workers - self._alive
        if self._members is None or not (unknown or now or self._looked.elapsed_s >= _LOOK_S):
            return set()
        self._looked.restart()
        self._alive = frozenset(self._members.look())
        return workers - self._alive

    def beat(self) -> None:
        """Send a heartbeat."""
        with self._files:
            if self._membership is not None:
                self._membership.beat()

    def abandon(self) -> None:
        """Leave the group; there is nothing to wait for."""
        self.leave()

    def leave(self) -> None:
        """Leave the group; `join` joins again. Safe to call twice."""
        with self._files:
            membership, self._membership = self._membership, None
            members, self._members = self._members, None
            self._alive = frozenset()
        try:
            if membership is not None:
                membership.leave()
        finally:
            if members is not None:
                members.directory.close()
