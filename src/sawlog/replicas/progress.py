"""How far a replica is: what was copied, and what it lags behind by topic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Lag(NamedTuple):
    """What of a topic is not copied yet."""

    topic: str
    records: int
    #: About so many: what a partition has left is estimated from its size.
    size_bytes: int
    #: How old the oldest record is that is not copied.
    seconds: float


@dataclass(slots=True)
class Progress:
    """What was done since the beginning, and what is left."""

    rounds: int = 0
    records: int = 0
    size_bytes: int = 0
    #: By topic, those that are behind and those that are not.
    lags: dict[str, Lag] = field(default_factory=dict)
    #: What could not be copied, and why: by topic, or by topic and partition.
    problems: dict[str, str] = field(default_factory=dict)
    #: Offsets that were deleted at the source before they were copied.
    lost: int = 0

    @property
    def lag(self) -> Lag:
        """Of all topics together."""
        all_ = self.lags.values()
        return Lag(
            "all topics",
            sum(each.records for each in all_),
            sum(each.size_bytes for each in all_),
            max((each.seconds for each in all_), default=0.0),
        )

    @property
    def is_caught_up(self) -> bool:
        """Whether nothing was left after the last round."""
        return not self.lag.records
