"""`QueueOptions`: the validated options of a queue."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import InvalidConfig
from ..consumer_options import checked_start
from ..groups import StartPosition, check_group_name
from ..names import check_topic_name

#: Longer than any sensible delay or time-out; also keeps times in range.
_MOST_S = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Options that the workers of a queue must agree on, and those of one worker."""

    topic: str
    group: str
    #: Visibility timeout: how long a message stays with one worker.
    visibility_ms: int
    #: Deliveries after which a message becomes a dead letter; None: never.
    max_deliveries: int | None
    #: Dead-letter topic.
    dead_letters: str
    #: Start position of a new group.
    start: StartPosition
    #: Maximum number of messages fetched at once.
    prefetch: int
    #: The name of the worker, for display.
    worker: str

    @classmethod
    def checked(
        cls,
        topic: object,
        group: object,
        *,
        visibility_s: object,
        max_deliveries: object,
        dead_letters: object,
        start: StartPosition,
        prefetch: object,
        worker: object,
    ) -> QueueOptions:
        """Return the validated options; `InvalidConfig` or `InvalidTopicName`."""
        name = check_topic_name(topic)
        dead = check_topic_name(f"{name}-dead" if dead_letters is None else dead_letters)
        if dead == name:
            raise InvalidConfig(f"dead_letters={dead!r} is the queue's own topic: it would be delivered again")
        if worker is not None and not isinstance(worker, str):
            raise InvalidConfig(f"worker must be a str, not {worker!r}")
        return cls(
            name,
            check_group_name(group),
            milliseconds_of("visibility_s", visibility_s, least=0.001),
            None if max_deliveries is None else _count("max_deliveries", max_deliveries),
            dead,
            checked_start(start),
            _count("prefetch", prefetch),
            worker or "",
        )


def milliseconds_of(name: str, seconds: object, least: float = 0.0) -> int:
    """Convert seconds to milliseconds; `InvalidConfig` unless they are a number of at least `least`."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not least <= seconds <= _MOST_S:
        raise InvalidConfig(f"{name} must be a number of seconds from {least} to {_MOST_S:.0f}, not {seconds!r}")
    return int(seconds * 1000)


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidConfig(f"{name} must be an integer, at least 1, not {value!r}")
    return value
