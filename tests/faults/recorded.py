"""`python -m tests.faults recorded --scenarios N --seed S`: power cuts over the recorded system calls of real files.

The workloads of `crashes` run on files, through `FileDirectory`, and every system call is recorded (`syscalls`). Then
the power is cut before some of these calls, chosen by seed and workload: a possible state of the disk at that moment
(`powercuts`) is created in a new directory, where it is recovered and checked as usual. The recovery is recorded as
well, and the power is cut a second time, somewhere in it.

`crashes` is faster, but runs on a simulated disk, which behaves as the storage interface says. This method tests the
real storage: it finds a missing fsync of a file or a directory.

A power cut changes the machine's boot id, which invalidates the contents of the file `visible`. Not covered: the
workloads with readers, those whose disk fails (`failing_*`), and those that need a simulated disk
(`workloads.DISTURBED`).
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import os
import random
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from sawlog import background
from sawlog.log.files import VISIBLE
from sawlog.storage import FileDirectory, file, locks, published

from .enumeration import Workload, _seeded_uuids
from .powercuts import DATA, NAMES, History, PowerCut, Tree, lay_out, tree_of
from .report import Tally, say
from .stores import STORES
from .syscalls import recording
from .workloads import DISTURBED, LOGS


def _suits(name: str, kind: type[Workload]) -> bool:
    plan: Sequence[str] = getattr(kind, "plan", ())
    return not name.startswith("failing") and not DISTURBED.keys() & set(plan)


#: By the name that `--workload` takes.
WORKLOADS = {name: kind for name, kind in {**LOGS, **STORES}.items() if _suits(name, kind)}
#: States of names and of file contents.
STATES = tuple(f"{names}/{data}" for names in NAMES for data in DATA)
#: The second power cut comes within one of these numbers of calls, chosen at random: a few while opening, more
#: later.
_SOON = (6, 20, 60)
_DEPTH = 2
#: Stop after this many violations: more of them teach nothing new.
_ENOUGH = 25
#: A fast place for files, if it exists.
_MEMORY = "/dev/shm"


# --- one machine


class Files:
    """A directory of real files with the interface of `FaultyStorage` that workloads use, except for faults."""

    def __init__(self, path: Path, seed: int, history: History) -> None:
        self.seed = seed
        self._path = path
        self._history = history

    @property
    def plain(self) -> FileDirectory:
        """The directory: a new object each time, because a log closes the one that it is given."""
        return FileDirectory(self._path, create=not self._path.is_dir())

    @property
    def steps(self) -> int:
        """Number of changes so far."""
        return len(self._history.calls)

    def content(self) -> Tree:
        """All files by path. The published values are not among them, as on the simulated disk: nothing is promised
        about them."""
        return {name: data for name, data in tree_of(self._path).items() if name.rpartition("/")[2] != VISIBLE}

    def process_dies(self) -> Files:
        """A copy, as the next process finds it: nothing is lost, and nobody holds a lock."""
        place = Path(tempfile.mkdtemp(dir=self._path.parents[1])) / "data"
        lay_out(place, tree_of(self._path))
        return Files(place, self.seed, self._history)


@contextmanager
def _started_machine(boot: bytes) -> Iterator[None]:
    """A machine that was started with this boot id; in the end its processes die."""
    before = set(locks._held)
    with (
        mock.patch.object(file, "boot_id", return_value=boot),
        mock.patch.object(published, "boot_id", return_value=boot),
        mock.patch.dict(DISTURBED, clear=True),
        background.suspended(),
        _without_collector(),
    ):
        try:
            yield
        finally:
            for lock in set(locks._held) - before:
                lock.release()


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector: closing a file is a recorded call, and a collection may come at any time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for a while, in memory if possible."""
    place = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="sawlog-recorded-", dir=place) as made:
        yield Path(made).resolve()


class Recording:
    """All calls of a run, and the promises that held before each of them."""

    def __init__(self) -> None:
        self.history: History
        self.promises: list[Any] = []

    @property
    def moments(self) -> int:
        """Number of moments to cut the power at: before each call, and at the end."""
        return len(self.promises)

    @contextmanager
    def on(self, top: Path, seed: int, workload: Workload, promise: Any) -> Iterator[Files]:
        """Record the block. It works in the directory `data` below `top`, which is made if it is missing."""
        with recording(top) as self.history:
            self.history.before_call = lambda: self.promises.append(workload.copy(promise))
            files = Files(top / "data", seed, self.history)
            files.plain.close()
            yield files
        self.promises.append(workload.copy(promise))

    def after_a_power_cut(self, call: int, state: str, chance: random.Random) -> Tree:
        """Return the files after a power cut before that call."""
        names, data = state.split("/")
        return PowerCut(self.history, call, names, data, chance).tree()


# --- scenarios


@dataclass(frozen=True, slots=True)
class Scenario:
    """One power cut, and all that follows from it."""

    workload: str
    seed: int
    #: The call that was not made any longer, counted from 1.
    call: int
    #: State of names and of data.
    state: str

    def __str__(self) -> str:
        """The line that makes it happen again."""
        return (
            f"python -m tests.faults recorded --workload {self.workload} --seed {self.seed} "
            f"--call {self.call} --state {self.state}"
        )


class Violated(AssertionError):
    """A promise was not kept; says after which power cuts."""


class Run:
    """One workload, recorded once, whose power can be cut at any moment."""

    def __init__(self, name: str, seed: int, place: Path) -> None:
        self.name, self.seed, self._place = name, seed, place
        self.workload = WORKLOADS[name](seed)
        self.recording = Recording()
        chance = random.Random(f"{name}/{seed}")
        with self._machine(chance) as top, self.recording.on(top, seed, self.workload, self.workload.promise) as files:
            self.workload.work(files)  # type: ignore[arg-type]

    def sample(self, count: int) -> list[Scenario]:
        """Some power cuts, at moments and with results that the seed chooses."""
        chance = random.Random(f"{self.name}/{self.seed}/{count}")
        return [
            Scenario(self.name, self.seed, 1 + chance.randrange(self.recording.moments), chance.choice(STATES))
            for _ in range(count)
        ]

    def cut(self, scenario: Scenario) -> None:
        """Cut the power, recover, check, continue, and once more; `Violated` if a promise is not kept."""
        chance = random.Random(f"{scenario.workload}/{scenario.seed}/{scenario.call}/{scenario.state}")
        found, call, state = self.recording, scenario.call, scenario.state
        cuts: list[str] = []
        for _ in range(_DEPTH):
            calls = [*found.history.calls, "the end"]
            cuts.append(f"{state} before call {call} of {len(calls) - 1}, {calls[call - 1]}")
            try:
                found = self._recover(found, call, state, chance)
            except Exception as error:
                said = str(error).strip().partition("\n")[0]
                text = f"{type(error).__name__}: {said} ({', then '.join(cuts)})\n    {scenario}"
                raise Violated(text) from error
            call = 1 + chance.randrange(min(chance.choice(_SOON), found.moments))
            state = chance.choice(STATES)

    def _recover(self, found: Recording, call: int, state: str, chance: random.Random) -> Recording:
        """Recover from a power cut on the next machine, and return the recording of that."""
        promise = self.workload.copy(found.promises[call - 1])
        tree, made = found.after_a_power_cut(call, state, chance), Recording()
        with self._machine(chance, tree) as top, made.on(top, chance.getrandbits(32), self.workload, promise) as files:
            self.workload.recover(files, promise, power_cut=True)  # type: ignore[arg-type]
        return made

    @contextmanager
    def _machine(self, chance: random.Random, tree: Tree | None = None) -> Iterator[Path]:
        """A machine whose disk holds this, and nothing after the block."""
        room = Path(tempfile.mkdtemp(dir=self._place))
        lay_out(room / "disk", tree or {})
        try:
            # The work of one compaction step depends on the hashes of keys.
            with (
                _started_machine(chance.randbytes(16)),
                _seeded_uuids(chance.getrandbits(64)),
                mock.patch.object(secrets, "token_bytes", random.Random(chance.getrandbits(64)).randbytes),
            ):
                yield room / "disk"
        finally:
            shutil.rmtree(room)


def try_all(run: Run, scenarios: Sequence[Scenario]) -> Iterator[str]:
    """Yield the violation that each scenario found, or ""."""
    for scenario in scenarios:
        try:
            run.cut(scenario)
            yield ""
        except Violated as error:
            yield str(error)
    gc.collect()  # logs that a power cut has interrupted hold descriptors, and go in circles


# --- the command


def add_options(parser: argparse.ArgumentParser) -> None:
    """For `python -m tests.faults recorded`."""
    parser.add_argument("--scenarios", type=int, default=20_000, help="at least so many (default: 20,000)")
    parser.add_argument("--workload", default="*", metavar="PATTERN", help="only those whose name matches")
    parser.add_argument("--each", type=int, default=25, help="power cuts per recording (default: 25)")
    parser.add_argument("--call", type=int, help="only before this call; with --state, one scenario again")
    parser.add_argument("--state", choices=STATES, help="only this result", metavar="NAMES/DATA")
    parser.add_argument("--list", action="store_true", help="say which workloads there are, and end")


def _chosen(run: Run, options: argparse.Namespace) -> list[Scenario]:
    if options.call is None:
        made = run.sample(options.each)
        return [each for each in made if options.state in (None, each.state)]
    assert 1 <= options.call <= run.recording.moments, f"there are calls 1 to {run.recording.moments}"
    states = STATES if options.state is None else (options.state,)
    return [Scenario(run.name, run.seed, options.call, state) for state in states]


def run(options: argparse.Namespace) -> int:
    """Record and cut, workload after workload, seed after seed."""
    chosen = [name for name in WORKLOADS if fnmatch.fnmatchcase(name, options.workload)]
    if options.list or not chosen:
        say(*chosen)
        return 0 if chosen else 2
    seed, wanted = options.seed, 1 if options.call is not None else options.scenarios
    with Tally("recorded", wanted, "scenarios") as tally, scratch() as place:
        while tally.done < wanted and len(tally.violations) < _ENOUGH:
            for name in chosen:
                made = Run(name, seed, place)
                tally.counts["calls recorded"] += len(made.recording.history.calls)
                scenarios = _chosen(made, options)
                for scenario, found in zip(scenarios, try_all(made, scenarios), strict=True):
                    tally.advance(what=scenario.state)
                    if found:
                        tally.violation(found)
                if tally.done >= wanted or len(tally.violations) >= _ENOUGH:
                    break
            seed += 1
    say(f"{len(chosen)} workloads, seeds {options.seed} to {seed - 1}, {_DEPTH} power cuts in a row")
    return tally.finish()
