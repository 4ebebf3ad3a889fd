"""The mutable view of a `State` that actions work on, and `Rejected`, the exception by which they refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from .commit import Action
from .entries import Entries
from .extents import Extent

#: Separates the id of a topic from the name of a snapshot.
MARK = "@"


class Rejected(Exception):
    """A request that is not applied: the kind of error, a message, and the numbers for the error."""

    def __init__(self, kind: str, message: str, *numbers: int) -> None:
        self.kind = kind
        self.numbers = numbers
        super().__init__(message)


class StateEntries(Protocol):
    """The entries of a state while a request is applied. Changes are rolled back if the request is rejected."""

    entries: Entries
    #: Number of folded commits.
    number: int

    def put(self, name: str, value: Any) -> None:
        """Set an entry."""

    def drop(self, name: str) -> None:
        """Remove an entry, if it exists."""


class StateExtents(StateEntries, Protocol):
    """A state with its topics and their extents. Topics are identified by id unless stated otherwise."""

    def topics(self) -> list[str]:
        """The names of all topics."""

    def topic(self, name: str) -> Mapping[str, Any] | None:
        """Return the entry of a topic by name, or None."""

    def has(self, topic: str, partition: int) -> bool:
        """Return whether a partition exists."""

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the lowest and the next offset of a partition."""

    def bases(self, topic: str, partition: int) -> Sequence[int]:
        """Return the base offsets of the extents of a partition, in order."""

    def extent(self, topic: str, partition: int, base: int) -> Extent:
        """Return the extent that starts at `base`."""

    def add_extent(self, topic: str, partition: int, extent: Extent) -> None:
        """Add an extent."""

    def drop_extent(self, topic: str, partition: int, base: int) -> None:
        """Remove the extent that starts at `base`."""

    def copy_extents(self, topic: str, partition: int, to: str) -> None:
        """Reference the extents of a partition under another topic id as well."""

    def drop_partition(self, topic: str, partition: int) -> None:
        """Remove the extents and the offsets of a partition."""


def is_in_snapshot(topic_id: str) -> bool:
    """Return whether an id is that of a topic in a snapshot, which is read-only."""
    return MARK in topic_id


def existing(state: StateExtents, topic: str, partition: int) -> tuple[int, int]:
    """Return the lowest and the next offset of a writable partition; reject if it does not exist."""
    if is_in_snapshot(topic):
        raise Rejected("ReadOnlyLog", "a snapshot does not change; topic.fork() makes a topic of it")
    if not state.has(topic, partition):
        raise Rejected("TopicNotFound", f"the topic with the id {topic} has no partition {partition} any more")
    return state.ends(topic, partition)


def quoted(name: str) -> str:
    """Quote a name for use in the name of an entry."""
    return quote(name, safe="")


def take_numbers(state: StateEntries, name: str, count: int) -> int:
    """Allocate numbers from a counter and return the first. They are never handed out again."""
    if type(count) is not int or not 0 < count <= 1 << 20:
        raise Rejected("InvalidConfig", "a number of numbers that is not possible")
    first = int(state.entries.get(f"counter/{quoted(name)}", 0))
    state.put(f"counter/{quoted(name)}", first + count)
    return first


def take(state: StateEntries, action: Action) -> int:
    """Apply the action "take numbers"."""
    return take_numbers(state, action["name"], action["count"])
