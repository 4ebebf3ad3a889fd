"""Kinds of settings: which values one may have, and how they are read from a file or a command line.

A config declares the kind of each setting beside its type: `threads: Annotated[int, Whole(1, 1024)] = 8`. `kinds_of`
finds them, so that a setting without a kind is an error of ours and no setting is left unchecked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints

#: More of a wrong value is not repeated in a message.
_SHOWN_CHARACTERS = 60


class Kind(Protocol):
    """What values a setting may have."""

    @property
    def expected(self) -> str:
        """What a value must be, to complete "must be"."""

    def read(self, value: Any) -> Any:
        """The value as it is kept; a `ValueError` if it is wrong, with a message if `expected` does not explain it."""

    def parse(self, text: str) -> Any:
        """The value that a text on a command line means, to be read; a `ValueError` if it means none."""


def kinds_of(config: type) -> Mapping[str, Kind]:
    """The kind of each setting of a dataclass."""
    hints = get_type_hints(config, include_extras=True)
    return {name: _kind_of(name, hint) for name, hint in hints.items()}


def _kind_of(name: str, hint: object) -> Kind:
    if get_origin(hint) is not Annotated:
        raise TypeError(f"the setting {name} has no kind")
    kind: Kind = get_args(hint)[1]
    return kind


def shown(value: object) -> str:
    """A value in a message: short, and also if it is a number that Python refuses to print."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of more than 4,000 digits"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer of a range."""

    lowest: int
    highest: int

    @property
    def expected(self) -> str:
        return f"an integer from {self.lowest} to {self.highest}"

    def read(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.lowest <= value <= self.highest:
            raise ValueError
        return value

    def parse(self, text: str) -> int:
        return int(text)


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a range, with or without a fraction."""

    lowest: float
    highest: float

    @property
    def expected(self) -> str:
        return f"a number from {self.lowest:g} to {self.highest:.0f}"

    def read(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.lowest <= value <= self.highest:
            raise ValueError
        return float(value)

    def parse(self, text: str) -> float:
        return float(text)


@dataclass(frozen=True, slots=True)
class Truth:
    """True or false, and nothing that only looks like it: "no" would mean yes."""

    expected = "true or false"

    def read(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def parse(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"


@dataclass(frozen=True, slots=True)
class Text:
    """A text of printable characters."""

    longest: int

    @property
    def expected(self) -> str:
        return f"a text of 1 to {self.longest} printable characters"

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or not 1 <= len(value) <= self.longest or not value.isprintable():
            raise ValueError
        return value

    def parse(self, text: str) -> str:
        return text


@dataclass(frozen=True, slots=True)
class File(Text):
    """The path of a file. A relative one in a config file is relative to that file."""

    longest: int = 4096

    @property
    def expected(self) -> str:
        return "the path of a file"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        return " or ".join(self.words)

    def read(self, value: Any) -> str:
        if not isinstance(value, str) or value not in self.words:
            raise ValueError
        return value

    def parse(self, text: str) -> str:
        return text


@dataclass(frozen=True, slots=True)
class Several:
    """Some of some words, each once; on a command line with commas in between."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        return f"a list of {', '.join(self.words)}"

    def read(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
            raise ValueError
        if not set(value) <= set(self.words) or len(set(value)) != len(value):
            raise ValueError
        return tuple(value)

    def parse(self, text: str) -> list[str]:
        return [each.strip() for each in text.split(",")] if text else []


@dataclass(frozen=True, slots=True)
class Maybe:
    """Another kind, or None. A file and a command line have no word for None: there the setting is left out."""

    kind: Kind

    @property
    def expected(self) -> str:
        return self.kind.expected

    def read(self, value: Any) -> Any:
        return None if value is None else self.kind.read(value)

    def parse(self, text: str) -> Any:
        return self.kind.parse(text)


@dataclass(frozen=True, slots=True)
class Listed:
    """Several values of another kind. A command line has them as one text, with separators in between."""

    kind: Kind
    separator: str

    @property
    def expected(self) -> str:
        return f"a list, of which each is {self.kind.expected}"

    def read(self, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError
        return tuple(self.kind.read(each) for each in value)

    def parse(self, text: str) -> list[Any]:
        return [self.kind.parse(each.strip()) for each in text.split(self.separator) if each.strip()]
