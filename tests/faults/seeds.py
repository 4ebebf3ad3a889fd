"""The seed of a quick run, a new one each time, so that many runs cover many scenarios; printed, so that a run can be
repeated.

`SAWLOG_FAULT_SEED=N pytest tests/faults` sets it. Otherwise it follows from the time, and workers inherit it from the
process that forks them. pytest's header and the message of a failed test show it.

A quick run has a time box for each method (`Box`): it tries scenarios in an order that the seed decides (`shuffled`),
until its box is used up. A growing list does not make the run longer. Other seeds reach the scenarios that a box leaves
out; the slow tests try all of them.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

VARIABLE = "SAWLOG_FAULT_SEED"
#: Short enough to be typed.
_MOST = 1_000_000
_T = TypeVar("_T")


def seed_of_this_run() -> int:
    """Return the seed, which is the same in all processes of a run."""
    given = os.environ.get(VARIABLE)
    if given is None:
        given = os.environ[VARIABLE] = str(int(time.time()) % _MOST)
    try:
        return int(given)
    except ValueError:
        raise SystemExit(f"{VARIABLE} is a whole number, not {given!r}") from None


def repeat() -> str:
    """Return the environment setting that repeats this run."""
    return f"{VARIABLE}={seed_of_this_run()}"


def shuffled(rows: Iterable[_T], what: str) -> list[_T]:
    """Return all rows in the order of this run."""
    found = list(rows)
    return random.Random(f"{seed_of_this_run()} {what}").sample(found, len(found))


def some_of(rows: Sequence[_T], count: int | None, what: str) -> list[_T]:
    """Return the first row, the last one, and `count` rows between them chosen by the seed; all rows if `count` is
    None."""
    if count is None or count + 2 >= len(rows):
        return list(rows)
    between = shuffled(range(1, len(rows) - 1), what)[:count]
    return [rows[at] for at in sorted([0, *between, len(rows) - 1])]


def in_turn(rows: Iterable[Sequence[_T]]) -> Iterator[_T]:
    """The first of each row, then the second of each: something of every row comes early."""
    nothing: Any = object()
    for column in zip_longest(*rows, fillvalue=nothing):
        yield from (each for each in column if each is not nothing)


class Box:
    """A time box: seconds of CPU for one test, and a minimum of tries, however slow the machine is."""

    def __init__(self, cpu_s: float, least: int) -> None:
        self.tries = 0
        self._least = least
        self._ends = time.process_time() + cpu_s

    @property
    def has_room(self) -> bool:
        """True if another try fits."""
        return self.tries < self._least or time.process_time() < self._ends

    def fill(self, rows: Iterable[_T]) -> Iterator[_T]:
        """Yield rows while another try fits, and count them."""
        for each in rows:
            if not self.has_room:
                break
            self.tries += 1
            yield each

    def check(self) -> None:
        """A test that has tried next to nothing could not have failed."""
        assert self.tries >= self._least, f"{self.tries} tries, and at least {self._least} are needed"
