"""`GroupMembership`: one member's place in its group.

It says whether the member is alive for the others, which partitions it owns, and what the group has
committed. `DirectoryMembership` keeps it in files, `objects.membership` in the commits of a store on object storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .assignment import Share
from .base import Topic
from .committed_offsets import Committed, Start


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
        self, shares: Sequence[Share], topics: Mapping[str, Topic], start: Start
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
