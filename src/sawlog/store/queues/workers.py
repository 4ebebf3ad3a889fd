"""`Crew`: this worker's place in the group, and which of the others are alive.

A worker is a member of its group as a consumer is (`sawlog.store.members`): it holds the lock of a file, which
the kernel releases when its process dies, however it dies. So what a dead worker had is delivered again at once, and
does not wait for its time-out. It owns no partition: all workers take messages from all partitions.

A group has workers or consumers, never both at the same time.

Threads: `beat` may come from any; everything else from one at a time.
"""

from __future__ import annotations

import threading

from ...clock import Stopwatch
from ...errors import GroupActive
from ...storage import Directory
from ...storage.forking import forkable
from ..members import Members, Membership, group_directory
from ..served_groups import refuse_served
from .options import Terms

#: A broker may take over the group if no worker has said anything for this long. Messages stay with a worker until
#: their time-out all the same.
_SESSION_MS = 10_000
#: Who is alive is looked up at most this often.
_LOOK_S = 0.25


class Crew:
    """The workers of a queue, as one of them sees them."""

    def __init__(self, root: Directory, terms: Terms) -> None:
        self._root = root
        self._terms = terms
        self._members: Members | None = None
        self._membership: Membership | None = None
        self._alive: frozenset[str] = frozenset()
        self._looked = Stopwatch()
        #: Held while the files are used by the background, or closed.
        self._files = forkable(threading.Lock())

    def join(self) -> str:
        """Be a worker of the group, and return the id. In a turn. `GroupActive` if the group has consumers, or a broker
        serves it."""
        if self._membership is not None and self._membership.current:
            return self._membership.id
        self.leave()
        with self._files:
            self._members = Members(group_directory(self._root, self._terms.group, create=True))
        refuse_served(self._members.directory, self._terms.group)
        consumers = [each for each in self._members.look().values() if not each.works]
        if consumers:
            who = ", ".join(sorted(each.name or each.process for each in consumers))
            raise GroupActive(
                f"the group {self._terms.group!r} has consumers ({who}): close them first, or use another group"
            )
        self._membership = self._members.join(self._terms.worker, [self._terms.topic], _SESSION_MS, works=True)
        return self._membership.id

    def dead(self, workers: set[str], *, now: bool) -> set[str]:
        """Which of these are dead. They must have been read before this is called: who joins later is not seen. Unless
        `now`, it may take a moment until a death is noticed."""
        unknown = workers - self._alive
        if self._members is None or not (unknown or now or self._looked.elapsed_s >= _LOOK_S):
            return set()
        self._looked.restart()
        self._alive = frozenset(self._members.look())
        return workers - self._alive

    def beat(self) -> None:
        """Say that this worker is alive."""
        with self._files:
            if self._membership is not None:
                self._membership.beat()

    def abandon(self) -> None:
        """The same: files are not waited for."""
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
