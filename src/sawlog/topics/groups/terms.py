"""The options of a consumer, checked: `Terms` is what its group must know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ...errors import InvalidConfig
from .offsets import Start


@dataclass(frozen=True, slots=True)
class Terms:
    """The options that matter to the group."""

    #: The name of the group.
    group: str
    #: The name of the member, for display; may be empty.
    name: str
    #: The topics that it reads.
    topics: tuple[str, ...]
    #: Its session expires after this long without a heartbeat.
    session_timeout_ms: int
    #: It sends no heartbeat if no records were requested for this long.
    max_poll_s: float


def checked_topics(topics: Iterable[str]) -> tuple[str, ...]:
    """The names without duplicates; `InvalidConfig` if there are none."""
    made = (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))
    if not made or not all(isinstance(name, str) for name in made):
        raise InvalidConfig(f"a consumer needs one or more topics, given by name, not {made!r}")
    return made


def checked_start(start: Start) -> Start:
    """Return it if a group can start there; else `InvalidConfig`."""
    if start in ("earliest", "latest") or isinstance(start, datetime):
        return start
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return start
    raise InvalidConfig(f'start must be "earliest", "latest", an offset or a datetime, not {start!r}')


def checked_ms(name: str, value: object) -> int:
    """Return it if it is a number of milliseconds; else `InvalidConfig`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidConfig(f"{name} must be a number of milliseconds, at least 1, not {value!r}")
    return value
