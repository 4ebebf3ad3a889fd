"""Options as Spark passes them: text, parsed. `InvalidConfig` names the one that is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ..batch.text import parse_json
from ..clock import milliseconds
from ..errors import InvalidConfig
from .positions import RESERVED

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?(?:illiseconds?|econds?|inutes?|ours?|ays?)?")
#: Options of Kafka's source and sink that are for clients of a broker.
_FOR_BROKERS = ("kafka.", "kafkaconsumer.", "fetchoffset.")


class Given:
    """The options that were given, each parsed by its type."""

    def __init__(self, options: Mapping[str, str], known: Mapping[str, str]) -> None:
        self._options = {name.lower(): str(value) for name, value in options.items()}
        for name in self._options:
            if name not in known and not name.startswith(_FOR_BROKERS):
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]} ({known[near[0]]})?" if near else f"; use one of {', '.join(known)}"
                raise InvalidConfig(f"sawlog has no option {name}{hint}")
        self._known = known

    def wrong(self, name: str) -> InvalidConfig:
        """The error for an invalid value."""
        return InvalidConfig(f"option {name}={self._options.get(name)!r} is not {self._known[name]}")

    def text(self, name: str) -> str | None:
        """A text that is not empty."""
        value = self._options.get(name)
        if value is not None and not value.strip():
            raise self.wrong(name)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self._options.get(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise self.wrong(name)
        return value.lower() == "true"

    def number(self, name: str, least: int = 1) -> int | None:
        """An integer, at least `least`."""
        found = self.integer(name)
        if found is not None and found < least:
            raise self.wrong(name)
        return found

    def integer(self, name: str) -> int | None:
        """An integer."""
        value = self._options.get(name)
        if value is None:
            return None
        digits = value.strip()
        found = _whole(digits.removeprefix("-"))
        if found is None:
            raise self.wrong(name)
        return -found if digits.startswith("-") else found

    def size(self, name: str) -> int | None:
        """A number of bytes, also as 64m or 64MB."""
        value = self._options.get(name)
        if value is None:
            return None
        found = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", value.strip().lower())
        number = None if found is None else _whole(found[1])
        if found is None or number is None or number < 1:
            raise self.wrong(name)
        return number << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]

    def duration_ms(self, name: str, default: int) -> int:
        """A duration: 90s, 15m, 2 hours; a bare number is milliseconds."""
        value = self._options.get(name)
        if value is None:
            return default
        found = _DURATION.fullmatch(value.strip().lower())
        number = None if found is None else _whole(found[1])
        if found is None or number is None:
            raise self.wrong(name)
        return number * _UNITS[found[2] or "ms"]

    def time(self, name: str) -> int | None:
        """A time in ms since 1970."""
        value = self._options.get(name)
        if value is None:
            return None
        sign, digits = (-1, value.strip()[1:]) if value.strip().startswith("-") else (1, value.strip())
        if digits.isdecimal():
            number = _whole(digits)
            if number is None:
                raise self.wrong(name)
            return sign * number
        try:
            moment = datetime.fromisoformat(value.strip())
        except ValueError:
            raise self.wrong(name) from None
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        return int(milliseconds(moment))

    def each(self, name: str) -> tuple[tuple[str, int, int], ...] | None:
        """{"topic": {"0": number}} as JSON."""
        value = self._options.get(name)
        if value is None:
            return None
        found = loaded_json(value)
        made: list[tuple[str, int, int]] = []
        if not isinstance(found, dict):
            raise self.wrong(name)
        found.pop(RESERVED, None)  # copied from a checkpoint
        for topic, numbers in found.items():
            if not isinstance(numbers, dict):
                raise self.wrong(name)
            for partition, number in numbers.items():
                which = _whole(partition)
                if which is None or isinstance(number, bool) or not isinstance(number, int):
                    raise self.wrong(name)
                made.append((topic, which, number))
        return tuple(sorted(made))


def _whole(text: str) -> int | None:
    """An integer, at least 0, that fits into Java's long."""
    if not text.isdecimal() or len(text) > 19:
        return None
    return number if (number := int(text)) < 2**63 else None


def loaded_json(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None
