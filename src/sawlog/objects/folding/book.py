"""What an action may do with the state, and how it refuses: what `State` offers to the modules of this room."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import quote

from ..commit import Action
from ..entries import Entries


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
