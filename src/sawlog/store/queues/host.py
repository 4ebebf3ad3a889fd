"""Interfaces between a queue and its backend: `DeliveryStates` stores the delivery state, `QueueWorkers` the workers.

A *turn* is one atomic read-modify-write of the delivery state. In a directory, turns are exclusive and other processes
block; on object storage they are optimistic: the loser of a race gets `TurnConflict` and retries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from ..assignment import Share
from ..base import Topic
from ..committed_offsets import Committed, Pages, Start


class TurnConflict(Exception):
    """Another worker wrote first: nothing was written, and what was read is stale."""


class QueueTurn(Protocol):
    """Operations within a turn."""

    def places(self, group: str, topics: Iterable[Topic], start: Start, member: str) -> Mapping[Share, tuple[int, int]]:
        """Return where a group continues. Its first access to a topic commits the start position."""

    def offsets(self, group: str) -> dict[Share, Committed]:
        """Return the offsets of one group."""

    def pages(self, group: str) -> dict[Share, dict[int, bytes]]:
        """Return the state pages of a group's queues."""

    def write_all(
        self,
        changes: Iterable[tuple[str, Mapping[Share, Committed | None]]],
        marks: Mapping[str, str] | None = None,
        pages: Mapping[str, Pages] | None = None,
    ) -> None:
        """Commit offsets and pages, all or none; `TurnConflict`."""


class DeliveryStates(Protocol):
    """Committed offsets and state pages of queues."""

    def of(self, group: str) -> dict[Share, Committed]:
        """Return the offsets of one group."""

    def pages(self, group: str) -> dict[Share, dict[int, bytes]]:
        """Return the state pages of a group's queues, by partition and number."""

    def turn(self) -> AbstractContextManager[QueueTurn]:
        """Begin a turn."""


class QueueWorkers(Protocol):
    """Workers of a queue, as one of them sees them."""

    def join(self) -> str:
        """Join the group as a worker and return the id."""

    def dead(self, workers: set[str], *, now: bool) -> set[str]:
        """Return which of these workers are dead."""

    def beat(self) -> None:
        """Send a heartbeat."""

    def leave(self) -> None:
        """Leave the group. Safe to call twice."""

    def abandon(self) -> None:
        """Leave without blocking: the queue was dropped without being closed."""
