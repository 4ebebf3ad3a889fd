"""The method: candidates alternate in several short rounds, and the best round of each counts.

On a shared machine the slow runs measure the neighbours; the best run of several is the one that was disturbed least.
Both clocks are kept: wall time, which users wait for, and the process's CPU time (all its threads), which neighbours
disturb less. The order changes from round to round, so that nobody always runs behind the one who fills the caches.

Every trial checks its own result outside the clock, and a wrong one ends the benchmark: nobody wins by doing less.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

MOST_ROUNDS = 50


class WrongResult(Exception):
    """A candidate returned a wrong result."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement, in seconds."""

    wall_s: float
    cpu_s: float

    def scaled(self, factor: float) -> Sample:
        """For more or less of the same."""
        return Sample(self.wall_s * factor, self.cpu_s * factor)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run: the measured function and the check of its result."""

    measure: Callable[[], Sample]
    check: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Somebody who takes part: `trial()` makes everything ready, and cleans up when it is left."""

    name: str
    trial: Callable[[], AbstractContextManager[Trial]]


@dataclass(frozen=True, slots=True)
class Effort:
    """Effort per case: number and length of rounds."""

    seconds: float
    quick: bool = False

    @property
    def fewest_rounds(self) -> int:
        """However long they take."""
        return 2 if self.quick else 4


def timed(work: Callable[[], object]) -> Sample:
    """Run it once between two looks at the clocks."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Sample(time.perf_counter() - wall, time.process_time() - cpu)


def expect(found: object, wanted: object, what: str) -> None:
    """Raise unless they are equal."""
    if found != wanted:
        raise WrongResult(f"{what}: {found} instead of {wanted}")


def best_of(candidates: list[Candidate], effort: Effort) -> dict[str, Sample]:
    """Rounds until the time is used up; the best wall and the best CPU time of each candidate."""
    walls: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    cpus: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for turn in _turns(effort):
        shift = turn % len(candidates)
        for candidate in candidates[shift:] + candidates[:shift]:
            with candidate.trial() as trial:
                sample = trial.measure()
                trial.check()
            walls[candidate.name].append(sample.wall_s)
            cpus[candidate.name].append(sample.cpu_s)
    return {name: Sample(min(walls[name]), min(cpus[name])) for name in walls}


def _turns(effort: Effort) -> Iterator[int]:
    end = time.monotonic() + effort.seconds
    for turn in range(MOST_ROUNDS):
        if turn >= effort.fewest_rounds and time.monotonic() >= end:
            return
        yield turn
