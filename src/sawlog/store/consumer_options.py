"""Validated consumer options: `MemberOptions` is the part that the group must know.

Kafka's option names are accepted, so that programs that move from Kafka keep working: an option with the same meaning
is translated, with a warning that gives its name here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Literal, TypedDict

from ..config import checked_count
from ..errors import InvalidConfig
from .groups import StartPosition


class KafkaNames(TypedDict, total=False):
    """Accepted Kafka options."""

    auto_offset_reset: Literal["earliest", "latest", "none"]
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    isolation_level: Literal["read_committed", "read_uncommitted"]
    client_id: str


def _reset(value: object) -> dict[str, object]:
    """Translate Kafka's single option into two: where a new group starts, and where to continue if records are gone."""
    if value == "none":
        return {"on_lost": "error"}
    if value in ("earliest", "latest"):
        return {"start": value, "on_lost": value}
    raise InvalidConfig(f'auto_offset_reset must be "earliest", "latest" or "none", not {value!r}')


def _isolation(value: object) -> dict[str, object]:
    known = {"read_committed": "committed", "read_uncommitted": "uncommitted"}
    if not isinstance(value, str) or value not in known:
        raise InvalidConfig(f'isolation_level must be "read_committed" or "read_uncommitted", not {value!r}')
    return {"isolation": known[value]}


_OURS: dict[str, Callable[[object], dict[str, object]]] = {
    "auto_offset_reset": _reset,
    "enable_auto_commit": lambda value: {} if value else {"auto_commit_ms": None},
    "auto_commit_interval_ms": lambda value: {"auto_commit_ms": value},
    "isolation_level": _isolation,
    "client_id": lambda value: {"member": value},
}


#: Hints for Kafka options that have no equivalent here.
_HINTS = {
    "group_id": "the group is the first argument, consumer(group, topics)",
    "bootstrap_servers": "a store is a directory; clients of Kafka connect to `sawlog serve`",
    "max_poll_records": "poll takes it, consumer.poll(max_records=...)",
    "value_deserializer": "see topic.typed(value=...)",
    "key_deserializer": "see topic.typed(key=...)",
    "group_instance_id": "a member's name for display is member=",
}


def translated(given: Mapping[str, object]) -> dict[str, object]:
    """Translate Kafka's option names; `TypeError` for an unknown name. Warnings point at the caller's caller."""
    made: dict[str, object] = {}
    for name in sorted(given, key="enable_auto_commit".__eq__):  # that comes last: it wins over the interval
        if name not in _OURS:
            hint = f": {_HINTS[name]}" if name in _HINTS else ""
            raise TypeError(f"consumer() got an unexpected keyword argument {name!r}{hint}")
        ours = _OURS[name](given[name])
        made |= ours
        shown = ", ".join(f"{each}={value!r}" for each, value in ours.items()) or "nothing: it is the default"
        warnings.warn(f"{name} is Kafka's name; here it is {shown}", UserWarning, stacklevel=3)
    return made


def checked_topics(topics: Iterable[str]) -> tuple[str, ...]:
    """The names without duplicates; `InvalidConfig` if there are none."""
    made = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    if not made or not all(isinstance(name, str) for name in made):
        raise InvalidConfig(f"a consumer needs one or more topics, given by name, not {made!r}")
    return made


def checked_start(start: StartPosition) -> StartPosition:
    """Return it if a group can start there; else `InvalidConfig`."""
    if start in ("earliest", "latest") or isinstance(start, datetime):
        return start
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return start
    raise InvalidConfig(f'start must be "earliest", "latest", an offset or a datetime, not {start!r}')


def checked_ms(name: str, value: object) -> int:
    """Return it if it is a number of milliseconds; else `InvalidConfig`."""
    return checked_count(name, value, what="a number of milliseconds")
