"""What an action may do with the state, and how it refuses: what `State` offers to the modules of this room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from .commit import Action
from .entries import Entries
from .extents import Extent

#: What separates the id of a topic from the name of a snapshot.
MARK = "@"


class Rejected(Exception):
    """A request that is not applied: the kind of error, why, and the numbers that the error has."""

    def __init__(self, kind: str, message: str, *numbers: int) -> None:
        self.kind = kind
        self.numbers = numbers
        super().__init__(message)


class Book(Protocol):
    """A state while a request is applied to it: changes are taken back if the request is rejected."""

    entries: Entries
    #: How many commits are in it.
    number: int

    def put(self, name: str, value: Any) -> None:
        """Set an entry."""

    def drop(self, name: str) -> None:
        """Remove an entry, if it is there."""


class Extents(Book, Protocol):
    """The same, with its topics and their extents. Topics are named by their ids, unless it says otherwise."""

    def topics(self) -> list[str]:
        """The names of all topics."""

    def topic(self, name: str) -> Mapping[str, Any] | None:
        """What is known of a topic, by its name."""

    def has(self, topic: str, partition: int) -> bool:
        """Whether there is such a partition."""

    def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """The lowest and the next offset of a partition."""

    def bases(self, topic: str, partition: int) -> Sequence[int]:
        """The base offsets of its extents, in order."""

    def extent(self, topic: str, partition: int, base: int) -> Extent:
        """The extent that begins there."""

    def add_extent(self, topic: str, partition: int, extent: Extent) -> None:
        """Enter an extent."""

    def drop_extent(self, topic: str, partition: int, base: int) -> None:
        """Forget the extent that begins there."""

    def copy_extents(self, topic: str, partition: int, to: str) -> None:
        """Refer to the extents of a partition under another id, too."""

    def drop_partition(self, topic: str, partition: int) -> None:
        """Forget the extents and the ends of a partition."""


def is_in_snapshot(topic_id: str) -> bool:
    """Whether an id is that of a topic in a snapshot, which nobody may change."""
    return MARK in topic_id


def existing(book: Extents, topic: str, partition: int) -> tuple[int, int]:
    """The lowest and the next offset of a partition that may be changed; rejected if there is none."""
    if is_in_snapshot(topic):
        raise Rejected("ReadOnlyLog", "a snapshot does not change; topic.fork() makes a topic of it")
    if not book.has(topic, partition):
        raise Rejected("TopicNotFound", f"the topic with the id {topic} has no partition {partition} any more")
    return book.ends(topic, partition)


def quoted(name: str) -> str:
    """A name as a part of an entry's name."""
    return quote(name, safe="")


def take_numbers(book: Book, name: str, count: int) -> int:
    """Hand out the next numbers of a counter; the first of them. Nobody gets them again."""
    if type(count) is not int or not 0 < count <= 1 << 20:
        raise Rejected("InvalidConfig", "a number of numbers that is not possible")
    first = int(book.entries.get(f"counter/{quoted(name)}", 0))
    book.put(f"counter/{quoted(name)}", first + count)
    return first


def take(book: Book, action: Action) -> int:
    """The action that does so."""
    return take_numbers(book, action["name"], action["count"])
