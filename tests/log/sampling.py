"""Matrices of crashes and damage: the quick tests visit some of the cases, `make test-all` visits all of them.

The choice follows from the seed of the run, which pytest's header shows (see tests/faults/seeds.py), so that many runs
see many cases and each can be repeated.

    @some_or_all(12)
    def test_a_crash_at_any_call(most: int | None) -> None:
        for number in some_of(range(300), most): ...
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

import pytest

from ..faults.enumeration import Outcome, Scenario, Workload, enumerate_crashes
from ..faults.seeds import seed_of_this_run

T = TypeVar("T")


def some_or_all(most: int) -> pytest.MarkDecorator:
    """The test has a parameter `most`: how many cases it visits, None for all."""
    return pytest.mark.parametrize(
        "most", [pytest.param(most, id="some"), pytest.param(None, id="all", marks=pytest.mark.slow)]
    )


def some_of(cases: Iterable[T], most: int | None) -> list[T]:
    """At most that many of the cases, in their order; all of them if `most` is None."""
    found = list(cases)
    if most is None or len(found) <= most:
        return found
    chosen = random.Random(seed_of_this_run()).sample(range(len(found)), most)
    return [found[at] for at in sorted(chosen)]


def crashed_at_some(workload: type[Workload], seed: int, most: int | None) -> Outcome:
    """Crash the work in that many of the possible ways, or in all of them. A violation names the command that repeats
    it."""
    if most is None:
        return enumerate_crashes(workload, seed)
    there: list[Scenario] = []

    def note(scenario: Scenario) -> bool:
        there.append(scenario)
        return False

    enumerate_crashes(workload, seed, wanted=note)
    chosen = set(some_of(there, most))
    outcome = enumerate_crashes(workload, seed, wanted=chosen.__contains__)
    assert outcome.scenarios == len(chosen)
    return outcome
