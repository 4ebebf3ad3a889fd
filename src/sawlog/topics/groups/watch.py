"""`TopicWatch`: the topics that a consumer and its group read, as the store currently has them.

Topics get more partitions, are deleted and are recreated while they are read, also by other processes. So they are
looked up again every few seconds, and whenever something about a group indicates a change.

Threads: one looks topics up; whether it is time to do so can be asked from any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from ...clock import Deadline
from ...errors import TopicNotFound
from ..base import Topic
from .assignment import Share

_logger = logging.getLogger("sawlog.topics.consumer")

#: How often topics are checked for new partitions.
_TOPICS_S = 2.0


class TopicWatch:
    """The topics of one consumer (`names`), and those that other members of its group read."""

    def __init__(self, find: Callable[[str], Topic], names: tuple[str, ...]) -> None:
        self._find = find
        self.names = names
        self._found: dict[str, Topic] = {}
        #: The names of the last lookup: those of all members.
        self._asked_for: set[str] = set()
        self._due = Deadline(0.0)
        #: Whether topics were looked up since the last assignment.
        self._changed = True

    @property
    def is_due(self) -> bool:
        """Whether it is time for another lookup."""
        return self._due.passed

    def hurry(self) -> None:
        """Something has changed: look topics up again soon."""
        self._due = Deadline(0.0)

    @property
    def changed(self) -> bool:
        """Whether topics were looked up since `share_out`."""
        return self._changed

    def share_out(self) -> None:
        """Partitions are assigned by the last lookup."""
        self._changed = False

    def look(self, others: Iterable[str] = (), *, missing_ok: bool = True) -> None:
        """Ask the store for the topics of all members: more partitions, deleted, recreated."""
        found: dict[str, Topic] = {}
        self._asked_for = {*self.names, *others}
        for name in sorted(self._asked_for):
            try:
                found[name] = self._find(name)
            except TopicNotFound:
                if not missing_ok and name in self.names:
                    raise
                if name in self._found:
                    _logger.warning("the topic %r no longer exists; its partitions are no longer read", name)
        self._found = found
        self._due = Deadline(_TOPICS_S)
        self._changed = True

    def covers(self, names: set[str]) -> bool:
        """Whether all of these were in the last lookup."""
        return names <= self._asked_for

    def get(self, name: str) -> Topic | None:
        """One of them; None if it does not exist."""
        return self._found.get(name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._found.values())

    def partitions(self) -> list[Share]:
        """Every partition of every topic."""
        return [(topic.name, number) for topic in self for number in range(topic.partitions)]
