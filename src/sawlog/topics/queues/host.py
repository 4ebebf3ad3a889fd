"""What queues need of a store, wherever it is: a place for their pages, and a crew of workers.

A *turn* is one exchange: what is read and written in it is atomic. In a directory it is exclusive, and others wait; on
object storage it is optimistic, and one that comes second is lost (`TurnLost`) and has to begin again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from ...batch.given import GivenHeaders, GivenRecord
from ..face import Position
from ..groups.assignment import Share
from ..groups.host import ConsumedTopic
from ..groups.offsets import Committed, Pages, Start, StartingTopic
from .terms import Terms


class TurnLost(Exception):
    """Another worker was faster: nothing was written, and what was read is no longer so."""


class QueueTurn(Protocol):
    """What can be done in a turn."""

    def places(
        self, group: str, topics: Iterable[StartingTopic], start: Start, member: str
    ) -> Mapping[Share, tuple[int, int]]:
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


class QueueTopic(ConsumedTopic, Protocol):
    """A topic whose records are delivered."""

    def append(self, value: bytes | None, key: bytes | None = None, headers: GivenHeaders = ()) -> Position:
        """Append one record."""


class LetterTransaction(Protocol):
    """Records that are stored durably, all or none."""

    def append_many(self, topic: str, records: Iterable[GivenRecord]) -> None:
        """Add many records."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class QueueHost(Protocol):
    """A store, as its queues see it."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    @property
    def mode(self) -> str:
        """ "w", or "r" if nothing may be changed."""

    def topic(self, name: str) -> QueueTopic:
        """The current topic of that name."""

    def create_topic(self, name: str, partitions: int = 1, *, exist_ok: bool = False) -> object:
        """The topic of that name, created if it does not exist."""

    def transaction(self) -> LetterTransaction:
        """Records that are stored durably, all or none."""

    def _queueing(self, terms: Terms) -> tuple[QueueBooks, QueueCrew]:
        """Where its pages are, and its workers."""
