"""Crash enumeration: run a workload on a simulated disk, and crash it at every change of the disk.

```python
class Ledger(Workload):
    def work(self, disk):                              # on a new disk; record acknowledgements in self.promise
        with Log.open(disk.plain) as log:
            for number in range(10):
                log.append(b"%d" % number)
                self.promise.append(number)

    def recover(self, disk, promise, *, power_cut):    # after a crash: raise unless the promise is kept
        with Log.open(disk.plain) as log:
            found = [int(record.value) for record in log]
            assert found[: len(promise)] == promise
            log.append(b"%d" % len(found))             # then continue: this may crash as well
            promise[:] = [*found, len(found)]

outcome = enumerate_crashes(Ledger, seed=1)
assert not outcome.violations, outcome
```

The workload runs once. Before each change that it makes to the disk (see `device.Step`; a crash before a read equals a
crash before the next change), and at its end, the disk is crashed in every way: the power is cut in each mode of
`FaultyStorage.crash`, or only the process dies (`"dies"`). Each crash yields a separate disk, which is recovered and
checked immediately, while the workload is suspended. With `depth` 2, the recovery itself is crashed at one randomly
chosen change, and the result is recovered and checked as well; and so on.

A `Scenario` is one such crash with everything that follows. To replay it, give the workload, the seed, the number of
the change and the ending: `python -m tests.faults replay --workload package.module:Ledger --seed 1 --crash-at 17
--mode tear`. The work must therefore be deterministic: random numbers come from `self.random`, `uuid.uuid4` is seeded,
and the logs' background thread stays idle.

Threads: one enumeration at a time per process.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib
import random
import traceback
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from sawlog import background

from .device import Step
from .disk import MODES, FaultyStorage, Mode
from .report import say

#: How a crash can end: only the process dies, or the power is cut.
OneShotEvent = Literal["dies"] | Mode
ENDINGS: tuple[OneShotEvent, ...] = ("dies", *MODES)
#: Limits for the change of the second crash: a small one hits the recovery, a large one the work after it. One of these
#: is chosen at random.
_SOON = (6, 20, 60)


class Workload(ABC):
    """One run of a workload and the promises that it made. Subclass it; each instance runs once."""

    def __init__(self, seed: int) -> None:
        #: The source of all randomness in the work.
        self.random = random.Random(seed)
        #: Acknowledged effects, in any form; `work` keeps it up to date.
        self.promise: Any = []

    @abstractmethod
    def work(self, disk: FaultyStorage) -> None:
        """Run the workload on a new disk."""

    @abstractmethod
    def recover(self, disk: FaultyStorage, promise: Any, *, power_cut: bool) -> None:
        """Open a crashed disk and raise any error unless the promise is kept. Then continue working and keep `promise`,
        a copy, up to date: another crash may follow. Derive random choices from `disk.seed`."""

    def copy(self, promise: Any) -> Any:
        """Return a copy of the current promise, for a crash at this moment."""
        return copy.deepcopy(promise)

    @classmethod
    def label(cls) -> str:
        """Return the workload's name on the command line."""
        return f"{cls.__module__}:{cls.__qualname__}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One crash and everything that follows."""

    workload: str
    seed: int
    #: The first disk change that did not happen, counted from 1.
    crash_at: int
    mode: OneShotEvent
    #: Number of consecutive crashes.
    depth: int = 2

    def __str__(self) -> str:
        """Return the command that replays the scenario."""
        deeper = f" --depth {self.depth}" if self.depth != 2 else ""
        return (
            f"python -m tests.faults replay --workload {self.workload} --seed {self.seed} "
            f"--crash-at {self.crash_at} --mode {self.mode}{deeper}"
        )


@dataclass(frozen=True, slots=True)
class Violation:
    """A scenario that broke a promise."""

    scenario: Scenario
    #: The steps of the crashes: the first one, then the one during its recovery, and so on.
    crashes: tuple[str, ...]
    error: BaseException

    def __str__(self) -> str:
        where = ", then ".join(self.crashes)
        said = str(self.error).strip().partition("\n")[0]
        return f"{type(self.error).__name__}: {said} ({where})\n    {self.scenario}"

    @property
    def trace(self) -> str:
        """Traceback of the error."""
        return "".join(traceback.format_exception(self.error))


@dataclass(slots=True)
class Outcome:
    """Result of an enumeration."""

    #: Number of scenarios by ending.
    counts: Counter[str] = field(default_factory=Counter)
    #: Number of disk changes in the workload.
    steps: int = 0
    violations: list[Violation] = field(default_factory=list)

    @property
    def scenarios(self) -> int:
        """Total number of scenarios."""
        return self.counts.total()

    def __str__(self) -> str:
        found = [f"{self.scenarios} scenarios at {self.steps} changes, {len(self.violations)} violations"]
        return "\n  ".join([*found, *map(str, self.violations)])


class _Enumeration:
    def __init__(
        self, kind: Callable[[int], Workload], label: str, seed: int, endings: Sequence[OneShotEvent], depth: int
    ) -> None:
        self.kind, self.label, self.seed = kind, label, seed
        self.endings = endings
        self.depth = depth
        self.outcome = Outcome()
        self.wanted: Callable[[Scenario], bool] = lambda scenario: True
        self.on_scenario: Callable[[Scenario], None] = lambda scenario: None

    def run(self) -> Outcome:
        disk = FaultyStorage(self.seed)
        workload = self.kind(self.seed)
        disk.watch = lambda step: self._crash_here(disk, workload, step)
        # Without the background thread, whose timed syncs and saves would fall at a different moment in every run.
        with background.suspended(), _infrequent_gc(), _seeded_uuids(f"{self.label}/{self.seed}"):
            workload.work(disk)
            disk.watch = None
            self._crash_here(disk, workload, Step(disk.steps + 1, "end", ""))
        self.outcome.steps = disk.steps
        return self.outcome

    def _crash_here(self, disk: FaultyStorage, workload: Workload, step: Step) -> None:
        # With nothing pending, all endings give the same disk.
        endings: Sequence[OneShotEvent] = self.endings
        if disk.is_settled:
            endings = ("lose",) if "lose" in endings else endings[:1]
        for ending in endings:
            scenario = Scenario(self.label, self.seed, step.number, ending, self.depth)
            if self.wanted(scenario):
                self._try(scenario, disk, workload, step)

    def _try(self, scenario: Scenario, disk: FaultyStorage, workload: Workload, step: Step) -> None:
        chance = random.Random(f"{scenario.workload}/{scenario.seed}/{scenario.crash_at}/{scenario.mode}")
        crashes: list[str] = []
        try:
            with _seeded_uuids(chance.getrandbits(64)):
                found = _crashed(disk, scenario.mode, chance)
                crashes.append(f"{scenario.mode} before {step}")
                self._recover(workload, found, workload.copy(workload.promise), scenario.mode, chance, crashes)
        except Exception as error:
            self.outcome.violations.append(Violation(scenario, tuple(crashes), error))
        self.outcome.counts[scenario.mode] += 1
        self.on_scenario(scenario)

    def _recover(
        self,
        workload: Workload,
        disk: FaultyStorage,
        promise: Any,
        ending: OneShotEvent,
        chance: random.Random,
        crashes: list[str],
    ) -> None:
        """Recover a crashed disk, then the disk of the crash that happened during that recovery."""
        power_cut = ending != "dies"
        if len(crashes) >= self.depth:
            workload.recover(disk, promise, power_cut=power_cut)
            return
        first = disk.steps + 1 + chance.randrange(chance.choice(_SOON))
        next_ending: OneShotEvent = chance.choice(ENDINGS)
        caught: list[tuple[FaultyStorage, Any, str]] = []

        def watch(step: Step) -> None:
            if step.number == first:
                caught.append((_crashed(disk, next_ending, chance), workload.copy(promise), str(step)))

        disk.watch = watch
        workload.recover(disk, promise, power_cut=power_cut)
        disk.watch = None
        if not caught:
            caught.append((_crashed(disk, next_ending, chance), promise, "the end"))
        [(found, then, where)] = caught
        crashes.append(f"{next_ending} before {where}")
        self._recover(workload, found, then, next_ending, chance, crashes)


def _crashed(disk: FaultyStorage, ending: OneShotEvent, chance: random.Random) -> FaultyStorage:
    found = disk.process_dies() if ending == "dies" else disk.crash(ending, chance.getrandbits(64))
    found.seed = chance.getrandbits(32)
    return found


@contextmanager
def _infrequent_gc() -> Iterator[None]:
    """Keep the garbage collector from rescanning older objects: an enumeration creates very many disks and logs with
    reference cycles."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _seeded_uuids(seed: int | str) -> Iterator[None]:
    """Replace uuid4 by a seeded one, so that names that contain ids are reproducible."""
    chance, real = random.Random(seed), uuid.uuid4
    uuid.uuid4 = lambda: uuid.UUID(int=chance.getrandbits(128), version=4)
    try:
        yield
    finally:
        uuid.uuid4 = real


def enumerate_crashes(
    workload: type[Workload],
    seed: int = 0,
    *,
    endings: Sequence[OneShotEvent] = ENDINGS,
    depth: int = 2,
    wanted: Callable[[Scenario], bool] | None = None,
    on_scenario: Callable[[Scenario], None] | None = None,
) -> Outcome:
    """Crash the workload with one seed at every change of the disk, in every way, and return the outcome.

    `wanted` selects scenarios; `on_scenario` is called after each.
    """
    made = _Enumeration(workload, workload.label(), seed, endings, depth)
    made.wanted = made.wanted if wanted is None else wanted
    made.on_scenario = made.on_scenario if on_scenario is None else on_scenario
    return made.run()


# --- python -m tests.faults replay


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", required=True, metavar="MODULE:CLASS", help="a subclass of Workload")
    parser.add_argument("--crash-at", type=int, help="crash before this change of the disk (default: every change)")
    parser.add_argument("--mode", choices=ENDINGS, help="how the crash ends (default: every way)")
    parser.add_argument("--depth", type=int, default=2, help="number of consecutive crashes (default: 2)")


def run(options: argparse.Namespace) -> int:
    outcome = enumerate_crashes(
        _find(options.workload),
        options.seed,
        endings=(options.mode,) if options.mode else ENDINGS,
        depth=options.depth,
        wanted=lambda scenario: options.crash_at in (None, scenario.crash_at),
    )
    say(*(violation.trace for violation in outcome.violations), str(outcome))
    return 1 if outcome.violations or not outcome.scenarios else 0


def _find(label: str) -> type[Workload]:
    module, _, name = label.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, Workload)):
        raise TypeError(f"{label} is not a Workload")
    return found
