"""`QueueBooks` and `QueueCrew`: the delivery state of a queue and its workers, which each backend stores its own way.

A *turn* is one atomic exchange: what is read and written in it. In a directory turns exclude each other, and others
wait; on object storage they are optimistic: the second one fails with `TurnLost` and has to begin again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from ..assignment import Share
from ..base import Topic
from ..committed_offsets import Committed, Pages, Start


class TurnLost(Exception):
    """Another worker was faster: nothing was written, and what was read is no longer so."""


class QueueTurn(Protocol):
    """What can be done in a turn."""

    def places(self, group: str, topics: Iterable[Topic], start: Start, member: str) -> Mapping[Share, tuple[int, int]]:
        """Where a group continues; the first access of a group to a topic commits where it starts."""

    def offsets(self, group: str) -> dict[Share, Committed]:
        """The offsets of one group."""

    def pages(self, group: str) -> dict[Share, dict[int, bytes]]:
        """The pages of a group's queues."""

    def write_all(
        self,
        changes: Iterable[tuple[str, Mapping[Share, Committed | None]]],
        marks: Mapping[str, str] | None = None,
        pages: Mapping[str, Pages] | None = None,
    ) -> None:
        """Commit offsets and pages, all of them or none; `TurnLost`."""


class QueueBooks(Protocol):
    """Committed offsets and pages of queues."""

    def of(self, group: str) -> dict[Share, Committed]:
        """The offsets of one group."""

    def pages(self, group: str) -> dict[Share, dict[int, bytes]]:
        """The pages of a group's queues, by partition and number."""

    def turn(self) -> AbstractContextManager[QueueTurn]:
        """A turn."""


class QueueCrew(Protocol):
    """The workers of a queue, as one of them sees them."""

    def join(self) -> str:
        """Be a worker of the group, and return the id."""

    def dead(self, workers: set[str], *, now: bool) -> set[str]:
        """Which of these are dead."""

    def beat(self) -> None:
        """Say that this worker is alive."""

    def leave(self) -> None:
        """Leave the group. Safe to call twice."""

    def abandon(self) -> None:
        """Leave without waiting for anything: nobody has closed the queue."""
