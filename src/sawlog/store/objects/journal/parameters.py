"""`StoreParameters`: the durations that all processes of a store must agree on, stored once in `sawlog.json`.

A writer believes an answer for `belief_s` after the last proof. A maintainer deletes commit numbers `grace_s` after
they fell behind a confirmed checkpoint. Safety rests on the second being much longer than the first (ADR 25), so
neither is an option of a process.

`Clocks` is how a process measures elapsed time, and how it sleeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from .... import clock
from ....errors import InvalidConfig

#: The object that marks a store and holds its parameters, and a copy of it for `sawlog repair`.
STORE, STORE_COPY = "sawlog.json", "sawlog.copy.json"


@dataclass(frozen=True, slots=True)
class StoreParameters:
    """How long answers, commit numbers and unreferenced objects last."""

    #: How long an answer is believed after the last proof that the next number was not collected.
    belief_s: float = 600.0
    #: How long a commit number stays taken after its commit fell behind a confirmed checkpoint, and how long an upload
    #: may wait for its commit.
    grace_s: float = 7 * 86_400.0
    #: How long an unreferenced object is kept, because a reader may have planned to read it.
    readers_s: float = 86_400.0
    #: Number of commits between checkpoints.
    checkpoint_every: int = 256

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise InvalidConfig(f"{each.name} must be a number above 0, not {value!r}")
        if self.grace_s < 2 * self.belief_s:
            raise InvalidConfig(f"grace_s ({self.grace_s}) must be at least twice belief_s ({self.belief_s})")

    def as_fields(self) -> dict[str, float]:
        """Return the fields for `sawlog.json`."""
        return asdict(self)

    @classmethod
    def of(cls, stored: Mapping[str, object]) -> StoreParameters:
        """Create parameters from the fields of `sawlog.json`; missing ones have their defaults."""
        found = {each.name: stored[each.name] for each in fields(cls) if each.name in stored}
        return cls(**found)  # type: ignore[arg-type] # checked by __post_init__


class Clocks:
    """The clocks of the machine. Tests substitute their own."""

    def now_s(self) -> tuple[float, float]:
        """Return seconds by a clock that keeps running while the machine sleeps, where available, and by the wall
        clock. Only differences matter, and the larger one counts."""
        return clock.boot_s(), clock.wall_s()

    def pause(self, seconds: float) -> None:
        clock.pause(seconds)


def passed_s(now: tuple[float, float], then: tuple[float, float]) -> float:
    """Return the elapsed time, as far as it can be known: one clock may have stopped or been set back."""
    return max(after - before for after, before in zip(now, then, strict=True))
