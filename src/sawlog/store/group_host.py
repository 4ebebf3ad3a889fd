"""`GroupMembership`: one member of a consumer group, as its consumer uses it.

It tells whether the group still counts the member, which partitions it owns, and what the group has committed.
`DirectoryMembership` stores this in files, `objects.membership` in the commits of a store on object storage.
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
    """Snapshot of a group; equal if nothing relevant to the assignment has changed."""

    subscriptions: dict[str, tuple[str, ...]]
    silent: frozenset[str]
    owners: dict[Share, str]

    @property
    def topics(self) -> set[str]:
        """All topics that any member reads."""
        return {topic for topics in self.subscriptions.values() for topic in topics}


class GroupMembership(Protocol):
    """One member of one group. The background thread calls only `beat`, `is_current` and `view`; everything else is
    called under the consumer's lock."""

    @property
    def id(self) -> str:
        """Member id; empty before `join`."""

    def join(self) -> None:
        """Join the group; no-op for a member. `GroupActive` if a broker or workers of a queue have the group."""

    def beat(self) -> None:
        """Send a heartbeat. May be called at any rate."""

    @property
    def is_current(self) -> bool:
        """Whether the other members still count this one."""

    def still_owns(self) -> bool:
        """Return whether this member still owns every partition it has taken."""

    def view(self, owners: Mapping[Share, str] | None = None) -> GroupView:
        """Return a snapshot of the group. The owners are not read if they are given."""

    def fence_silent(self) -> None:
        """Remove members whose session has expired."""

    @property
    def owned(self) -> set[Share]:
        """Partitions that this member owns."""

    def take(
        self, shares: Sequence[Share], topics: Mapping[str, Topic], start: Start
    ) -> dict[Share, tuple[int, int] | None]:
        """Take the partitions without an owner; return where the group continues in each (offset and leader epoch),
        None for the first record. No commit of an earlier owner can follow."""

    def give_up(self, shares: Iterable[Share]) -> None:
        """Release partitions, after the last commit."""

    def commit(self, offsets: Mapping[Share, Committed]) -> None:
        """Commit offsets of owned partitions, all or none, durably; `GroupFenced` if this member has lost one of
        them."""

    def committed(self) -> dict[Share, Committed]:
        """Return the group's committed offsets."""

    def leave(self) -> None:
        """Release everything and leave the group; `join` joins again."""

    def close(self) -> None:
        """Leave permanently."""

    def abandon(self) -> None:
        """Like `close`, for a consumer that was dropped: does not block and raises nothing."""
