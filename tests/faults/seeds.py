"""The seed of a quick run: another one each time, so that many runs see many scenarios; and said, to be repeated.

`SAWLOG_FAULT_SEED=N pytest tests/faults` takes that one. Otherwise it follows from the time, and workers inherit it
from the process that forks them. It is printed in pytest's header and in the message of a failed test.

A quick run has a time box for each method (`Box`): it walks what there is in an order that the seed decides
(`shuffled`), for as long as its box lasts. A list that grows does not make the run longer. What the box leaves out
comes with another seed; the slow tests leave nothing out.
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
    """The same in all processes of a run, and for as long as it lasts."""
    given = os.environ.get(VARIABLE)
    if given is None:
        given = os.environ[VARIABLE] = str(int(time.time()) % _MOST)
    try:
        return int(given)
    except ValueError:
        raise SystemExit(f"{VARIABLE} is a whole number, not {given!r}") from None


def repeat() -> str:
    """How to see the same again."""
    return f"{VARIABLE}={seed_of_this_run()}"


def shuffled(rows: Iterable[_T], what: str) -> list[_T]:
    """All of them, in the order of this run."""
    found = list(rows)
    return random.Random(f"{seed_of_this_run()} {what}").sample(found, len(found))


def some_of(rows: Sequence[_T], count: int | None, what: str) -> list[_T]:
    """The first, the last, and so many between them that the seed of this run chooses; all if no count is given."""
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
    """So many seconds of CPU for one test; but at least so many tries, however slow the machine is."""

    def __init__(self, cpu_s: float, least: int) -> None:
        self.tries = 0
        self._least = least
        self._ends = time.process_time() + cpu_s

    @property
    def has_room(self) -> bool:
        """Whether there should be another try."""
        return self.tries < self._least or time.process_time() < self._ends

    def fill(self, rows: Iterable[_T]) -> Iterator[_T]:
        """As many of these as there is room for, each counted as a try."""
        for each in rows:
            if not self.has_room:
                break
            self.tries += 1
            yield each

    def check(self) -> None:
        """A test that has tried next to nothing could not have failed."""
        assert self.tries >= self._least, f"{self.tries} tries, and at least {self._least} are needed"
