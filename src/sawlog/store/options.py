"""Validated options of consumers and queues.

Kafka's names of consumer options are accepted, so that programs that move from Kafka keep working: an option with the
same meaning is translated, with a warning that gives its name here. `MemberOptions` (membership.py) is the part of a
consumer's options that the group must know.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypedDict

from ..config import checked_count
from ..errors import InvalidConfig
from .names import check_group_name, check_topic_name

if TYPE_CHECKING:
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


# --- queues

#: Longer than any sensible delay or time-out; also keeps times in range.
_MOST_S = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Options that the workers of a queue must agree on, and those of one worker. `InvalidConfig` or `InvalidTopicName`
    if one is invalid."""

    topic: str
    group: str
    #: Visibility timeout: the time for which a message stays with one worker.
    visibility_s: float
    #: Deliveries after which a message becomes a dead letter; None: never.
    max_deliveries: int | None
    #: Dead-letter topic; None: the topic's name with "-dead".
    dead_letters: str | None
    #: Start position of a new group.
    start: StartPosition
    #: Maximum number of messages fetched at once.
    prefetch: int
    #: Display name of the worker.
    worker: str | None
    #: Delay of the first retry, doubled with each further delivery, and its maximum.
    backoff_s: float = 0.0
    max_backoff_s: float = 3600.0

    def __post_init__(self) -> None:
        check_topic_name(self.topic)
        if check_topic_name(self.dead_letter_topic) == self.topic:
            raise InvalidConfig(f"dead_letters={self.topic!r} is the queue's own topic: it would be delivered again")
        if self.worker is not None and not isinstance(self.worker, str):
            raise InvalidConfig(f"worker must be a str, not {self.worker!r}")
        check_group_name(self.group)
        milliseconds_of("visibility_s", self.visibility_s, least=0.001)
        milliseconds_of("backoff_s", self.backoff_s)
        milliseconds_of("max_backoff_s", self.max_backoff_s)
        if self.max_deliveries is not None:
            checked_count("max_deliveries", self.max_deliveries)
        checked_start(self.start)
        checked_count("prefetch", self.prefetch)

    @property
    def visibility_ms(self) -> int:
        """The visibility timeout in milliseconds."""
        return int(self.visibility_s * 1000)

    def retry_delay_ms(self, deliveries: int) -> int:
        """Return the delay before the next delivery of a message, in milliseconds."""
        doubled_s = self.backoff_s * 2.0 ** min(deliveries - 1, 60)
        return int(min(doubled_s, self.max_backoff_s) * 1000)

    @property
    def dead_letter_topic(self) -> str:
        """Name of the dead-letter topic."""
        return f"{self.topic}-dead" if self.dead_letters is None else self.dead_letters


def milliseconds_of(name: str, seconds: object, least: float = 0.0) -> int:
    """Convert seconds to milliseconds; `InvalidConfig` unless they are a number of at least `least`."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not least <= seconds <= _MOST_S:
        raise InvalidConfig(f"{name} must be a number of seconds from {least} to {_MOST_S:.0f}, not {seconds!r}")
    return int(seconds * 1000)
