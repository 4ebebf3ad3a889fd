"""`QueueOptions`: the validated options of a queue."""

from __future__ import annotations

from dataclasses import dataclass

from ...config import checked_count
from ...errors import InvalidConfig
from ..consumer_options import checked_start
from ..groups import StartPosition, check_group_name
from ..names import check_topic_name

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

    def __post_init__(self) -> None:
        check_topic_name(self.topic)
        if check_topic_name(self.dead_letter_topic) == self.topic:
            raise InvalidConfig(f"dead_letters={self.topic!r} is the queue's own topic: it would be delivered again")
        if self.worker is not None and not isinstance(self.worker, str):
            raise InvalidConfig(f"worker must be a str, not {self.worker!r}")
        check_group_name(self.group)
        milliseconds_of("visibility_s", self.visibility_s, least=0.001)
        if self.max_deliveries is not None:
            checked_count("max_deliveries", self.max_deliveries)
        checked_start(self.start)
        checked_count("prefetch", self.prefetch)

    @property
    def visibility_ms(self) -> int:
        """The visibility timeout in milliseconds."""
        return int(self.visibility_s * 1000)

    @property
    def dead_letter_topic(self) -> str:
        """Name of the dead-letter topic."""
        return f"{self.topic}-dead" if self.dead_letters is None else self.dead_letters


def milliseconds_of(name: str, seconds: object, least: float = 0.0) -> int:
    """Convert seconds to milliseconds; `InvalidConfig` unless they are a number of at least `least`."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not least <= seconds <= _MOST_S:
        raise InvalidConfig(f"{name} must be a number of seconds from {least} to {_MOST_S:.0f}, not {seconds!r}")
    return int(seconds * 1000)
