"""The times of a journal: `StoreParameters`, the durations that all processes of a store must agree on, `Clocks`, and
`CommitBackoff`, which keeps writers fair to each other.

A writer believes an answer for `belief_s` after the last proof. A maintainer deletes commit numbers `grace_s` after
they fell behind a confirmed checkpoint. Safety rests on the second being much longer than the first (ADR 25), so
neither is an option of a process: they are stored once, in `sawlog.json`.
"""

from __future__ import annotations

import random
from collections import deque
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


#: There are other writers if one of their commits was seen within this time, or within the time of this many creates.
_COMPANY_S, _COMPANY_CREATES = 2.0, 50
#: Commits in a row after which a writer pauses even if it has seen no other.
_ALONE = 32
#: Number of creates whose duration is remembered.
_REMEMBERED = 8


class CommitBackoff:
    """How long a writer pauses after a commit, so that others can make theirs. Not thread-safe.

    A writer that has lost a race must read the winning commit before it can try again: two requests, while the winner
    needs one. So a process that commits continuously would win every race and starve the others. A pause of about one
    request between two commits gives them a turn.

    The pause follows the duration of a create on this bucket rather than a constant that a slow bucket would exceed. It
    is based on the fastest of the last few creates, so that a single slow one costs nothing. A writer that has seen no
    commit of others for a while pauses only after many commits in a row, in case others are starving. The length is
    random: with equal pauses the others would be late every time.
    """

    def __init__(self) -> None:
        #: When another process's commit was last seen.
        self._others_s: float | None = None
        self._creates_s: deque[float] = deque(maxlen=_REMEMBERED)
        #: Number of our commits in a row without a pause, and when the last one was answered.
        self._commits = 0
        self._last_s = 0.0

    def saw_others(self, now_s: float) -> None:
        """Record that another writer's commit was read."""
        self._others_s = now_s

    def created(self, sent_s: float, now_s: float) -> None:
        """Record that one of our commits was created by a request sent at `sent_s`."""
        if sent_s - self._last_s >= 2 * self._quickest_s():
            self._commits = 0  # others had a turn
        self._creates_s.append(now_s - sent_s)
        self._last_s = now_s
        self._commits += 1

    def pause_s(self, now_s: float) -> float:
        """Return how long to pause now; 0 if others need no turn."""
        quickest_s = self._quickest_s()
        company_s = max(_COMPANY_S, _COMPANY_CREATES * quickest_s)
        if self._others_s is not None and now_s - self._others_s <= company_s:
            return quickest_s * random.uniform(1.0, 2.0)
        if self._commits < _ALONE:
            return 0.0
        self._commits = 0
        return quickest_s * random.uniform(1.0, 3.0)

    def _quickest_s(self) -> float:
        return min(self._creates_s, default=0.0)
