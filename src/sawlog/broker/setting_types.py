"""Kinds of settings: their valid values, and how to parse them from a file or a command line.

A configuration declares the kind of each setting next to its type: `threads: Annotated[int, Whole(1, 1024)] = 8`.
`kinds_of` collects them. A setting without a kind is a programming error, so that no setting is left unchecked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints

#: Maximum length of an invalid value in a message.
_SHOWN_CHARACTERS = 60


class SettingType(Protocol):
    """The valid values of a setting."""

    @property
    def expected(self) -> str:
        """Completes "must be" in a message."""

    def read(self, value: Any) -> Any:
        """Return the checked value. Raise `ValueError`, with a message if `expected` does not explain it."""

    def parse(self, text: str) -> Any:
        """Parse the text of a command line, to be passed to `read`. Raise `ValueError` if it is invalid."""


def setting_types(config: type) -> Mapping[str, SettingType]:
    """Return the kind of each setting of a dataclass."""
    hints = get_type_hints(config, include_extras=True)
    return {name: _kind_of(name, hint) for name, hint in hints.items()}


def _kind_of(name: str, hint: object) -> SettingType:
    if get_origin(hint) is not Annotated:
        raise TypeError(f"the setting {name} has no kind")
    kind: SettingType = get_args(hint)[1]
    return kind


def shown(value: object) -> str:
    """Format a value for a message: shortened, and even if it is a number that Python refuses to print."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of more than 4,000 digits"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer in a range."""

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
    """A number in a range."""

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
    """A boolean. Nothing else is accepted: the string "no" would be true."""

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
    """Printable text."""

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
    """The path of a file. In a configuration file, a relative path is relative to that file."""

    longest: int = 4096

    @property
    def expected(self) -> str:
        return "the path of a file"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several words."""

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
    """A list of distinct words; comma-separated on a command line."""

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
    """Another kind, or None. A file and a command line cannot express None; they omit the setting."""

    kind: SettingType

    @property
    def expected(self) -> str:
        return self.kind.expected

    def read(self, value: Any) -> Any:
        return None if value is None else self.kind.read(value)

    def parse(self, text: str) -> Any:
        return self.kind.parse(text)


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of values of another kind, joined by a separator on a command line."""

    kind: SettingType
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
