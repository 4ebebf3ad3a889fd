"""Types of settings: their valid values, and how to parse them from a file or a command line.

A configuration declares the type of each setting next to its annotation: `threads: Annotated[int, whole(1, 1024)] = 8`.
`setting_types` collects them. A setting without one is a programming error, so that no setting is left unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

#: Maximum length of an invalid value in a message.
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class SettingType:
    """The valid values of a setting."""

    #: Completes "must be" in a message.
    expected: str
    #: Returns the checked value. Raises `ValueError`, with a message if `expected` does not explain it.
    read: Callable[[Any], Any]
    #: Parses the text of a command line, to be passed to `read`. Raises `ValueError` if it is invalid.
    parse: Callable[[str], Any] = str
    #: True if the value is the path of a file. In a configuration file, a relative path is relative to that file.
    is_file: bool = False


def setting_types(config: type) -> Mapping[str, SettingType]:
    """Return the type of each setting of a dataclass."""
    hints = get_type_hints(config, include_extras=True)
    return {name: _type_of(name, hint) for name, hint in hints.items()}


def _type_of(name: str, hint: object) -> SettingType:
    if get_origin(hint) is not Annotated:
        raise TypeError(f"the setting {name} has no type")
    found: SettingType = get_args(hint)[1]
    return found


def shown(value: object) -> str:
    """Format a value for a message: shortened, and even if it is a number that Python refuses to print."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of more than 4,000 digits"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _checked(is_valid: Callable[[Any], bool], convert: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError
        return value if convert is None else convert(value)

    return read


def _in_range(kinds: Any, lowest: float, highest: float) -> Callable[[Any], bool]:
    def is_valid(value: Any) -> bool:
        return isinstance(value, kinds) and not isinstance(value, bool) and lowest <= value <= highest

    return is_valid


def whole(lowest: int, highest: int) -> SettingType:
    """An integer in a range."""
    return SettingType(f"an integer from {lowest} to {highest}", _checked(_in_range((int,), lowest, highest)), int)


def number(lowest: float, highest: float) -> SettingType:
    """A number in a range."""
    read = _checked(_in_range((int, float), lowest, highest), float)
    return SettingType(f"a number from {lowest:g} to {highest:.0f}", read, float)


def _truth_of(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


#: A boolean. Nothing else is accepted: the string "no" would be true.
TRUTH = SettingType("true or false", _checked(lambda value: isinstance(value, bool)), _truth_of)


def text(longest: int, expected: str | None = None, *, is_file: bool = False) -> SettingType:
    """Printable text."""
    read = _checked(lambda value: isinstance(value, str) and 1 <= len(value) <= longest and value.isprintable())
    return SettingType(expected or f"a text of 1 to {longest} printable characters", read, is_file=is_file)


#: The path of a file.
FILE = text(4096, "the path of a file", is_file=True)


def choice(*words: str) -> SettingType:
    """One of several words."""
    return SettingType(" or ".join(words), _checked(lambda value: isinstance(value, str) and value in words))


def several(*words: str) -> SettingType:
    """A list of distinct words; comma-separated on a command line."""

    def is_valid(value: Any) -> bool:
        if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
            return False
        return set(value) <= set(words) and len(set(value)) == len(value)

    def parse(text: str) -> list[str]:
        return [each.strip() for each in text.split(",")] if text else []

    return SettingType(f"a list of {', '.join(words)}", _checked(is_valid, tuple), parse)


def maybe(kind: SettingType) -> SettingType:
    """Another type, or None. A file and a command line cannot express None; they omit the setting."""
    return SettingType(
        kind.expected, lambda value: None if value is None else kind.read(value), kind.parse, kind.is_file
    )


def listed(kind: SettingType, *, separator: str) -> SettingType:
    """A list of values of another type, joined by a separator on a command line."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError
        return tuple(kind.read(each) for each in value)

    def parse(text: str) -> list[Any]:
        return [kind.parse(each.strip()) for each in text.split(separator) if each.strip()]

    return SettingType(f"a list, of which each is {kind.expected}", read, parse)
