"""What groups and consumers need of a store, wherever it is.

`ConsumerHost` is a store, `ConsumedTopic` a topic. `GroupMembership` is one member's place in its group: whether it is
alive for the others, which partitions it owns, and what the group has committed. `DirectoryMembership` has it in files
of a directory, `objects.membership` in the commits of a store on object storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...log.protocols import LogReader
from ...storage import Directory
from ..topic import Topic
from .assignment import Share
from .offsets import Committed, Start
from .terms import Terms


class ConsumedTopic(Protocol):
    """A topic that is consumed."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def id(self) -> str:
        """Its unique id."""

    @property
    def partitions(self) -> int:
        """How many there are."""

    def partition(self, number: int) -> LogReader:
        """One partition."""


class Host(Protocol):
    """A store in a directory, as its groups see it."""

    @property
    def path(self) -> str:
        """The directory, for messages."""

    @property
    def directory(self) -> Directory:
        """Where the files of the groups and of their members are."""

    @property
    def mode(self) -> str:
        """ "w", or "r" if nothing may be changed."""

    def topic(self, name: str) -> Topic:
        """The current topic of that name; `TopicNotFound` if it does not exist."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """What a member sees of its group; equal if nothing has changed that matters for the assignment."""

    subscriptions: dict[str, tuple[str, ...]]
    silent: frozenset[str]
    owners: dict[Share, str]

    @property
    def topics(self) -> set[str]:
        """All topics that any member reads."""
        return {topic for topics in self.subscriptions.values() for topic in topics}


class GroupMembership(Protocol):
    """One member of one group. Only `beat`, `is_current` and `view` are called by the background; everything else under
    the consumer's lock."""

    @property
    def id(self) -> str:
        """Its id for the others; empty while it is not a member."""

    def join(self) -> None:
        """Become a member, unless it is one; `GroupActive` if a broker or workers of a queue have the group."""

    def beat(self) -> None:
        """Say that it is alive. May be called as often as one likes."""

    @property
    def is_current(self) -> bool:
        """Whether it is still a member for the others."""

    def still_owns(self) -> bool:
        """Whether everything that it has taken is still its own."""

    def view(self, owners: Mapping[Share, str] | None = None) -> GroupView:
        """The group as it is now; the owners, if they are given, are not read."""

    def fence_silent(self) -> None:
        """Remove members whose session has expired."""

    @property
    def owned(self) -> set[Share]:
        """The partitions that it has taken."""

    def take(
        self, shares: Sequence[Share], topics: Mapping[str, ConsumedTopic], start: Start
    ) -> dict[Share, tuple[int, int] | None]:
        """Become the owner of those that nobody owns: where the group continues in each (offset and leader epoch), None
        for the first record. No commit of an earlier owner comes after that."""

    def give_up(self, shares: Iterable[Share]) -> None:
        """Release partitions. After the last commit."""

    def commit(self, offsets: Mapping[Share, Committed]) -> None:
        """Commit offsets of partitions that it owns, all of them or none, durably; `GroupFenced` if one is not its own
        any more."""

    def committed(self) -> dict[Share, Committed]:
        """What the group has committed."""

    def leave(self) -> None:
        """Release everything and leave the group; `join` joins again."""

    def close(self) -> None:
        """Leave permanently."""

    def abandon(self) -> None:
        """As `close`, for a consumer that was dropped: does not wait, and raises nothing."""


class ConsumerGroups(Protocol):
    """The groups of a store, as its consumers see them."""

    def membership(self, terms: Terms) -> GroupMembership:
        """A place in a group, which is not joined yet."""


class ConsumerHost(Protocol):
    """A store, as its consumers see it."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    @property
    def mode(self) -> str:
        """ "w", or "r" if nothing may be changed."""

    @property
    def groups(self) -> ConsumerGroups:
        """Where offsets are committed."""

    def topic(self, name: str) -> ConsumedTopic:
        """The current topic of that name; `TopicNotFound` if it does not exist."""
