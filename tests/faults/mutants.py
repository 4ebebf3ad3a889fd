"""A test of the tests: plant known bugs into the running code, one at a time. The laboratory has to find them.

A `Mutant` is a real bug of some store: fragments of the source of some functions are replaced and the functions
compiled again. If a fragment no longer exists, planting fails, so that a mutant cannot rot: it must be updated with the
code, or dropped on purpose.

A *finder* is one of the laboratory's methods: crashes, errors, bits, threads, crashes with readers, the tests of the
storages, power cuts over recorded system calls. Each finder tries each mutant for some time, in its own process. The
results are printed, and written into `docs/internals/testing.md` with `--write`. A mutant that no finder finds is a
hole in the laboratory: an error.

`python -m tests.faults mutants` tries all of them; `--mutant` and `--with` choose. The list is in `bugs.py`.
"""

from __future__ import annotations
import __future__

import argparse
import importlib
import inspect
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import sawlog

from .report import Tally, say

if TYPE_CHECKING:
    from .enumeration import Workload

TABLE = Path(__file__).resolve().parents[2] / "docs/internals/testing.md"
_BEGIN, _END = "<!-- mutants: written by `make mutants` -->", "<!-- end of mutants -->"
#: CPU time for each finder and mutant. A busy machine does not make a finder worse.
_PATIENCE_S = 120.0
#: A finder that mostly waits may take this many times as long.
_WAITING = 6


@dataclass(frozen=True, slots=True)
class Edit:
    """In the source of a function, one fragment is replaced by another."""

    #: module:qualified.name
    function: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A known bug."""

    name: str
    #: The bug, and the store that had it.
    story: str
    edits: tuple[Edit, ...]
    #: Who finds it soonest.
    by: str


class Stale(AssertionError):
    """The code that a mutant changes is not there any more."""


# --- planting


def _plain(found: Any) -> FunctionType:
    """The function itself, behind whatever decorates it."""
    if isinstance(found, property):
        found = found.fget
    made = inspect.unwrap(getattr(found, "__func__", found))
    assert isinstance(made, FunctionType), f"{found} is no function"
    return made


_DEFINITION = re.compile(r"^(    )?(?:async )?(def|class) (\w+)|^\w", re.MULTILINE)


@cache
def _homes() -> dict[str, list[str]]:
    """The modules of the package, and of the simulated disk, that define a function or method of a name. (Parsing all
    of them would take a second.)"""
    found: dict[str, list[str]] = {}
    root = Path(sawlog.__file__).parent
    modules = {path: ("sawlog", *path.relative_to(root).with_suffix("").parts) for path in sorted(root.rglob("*.py"))}
    modules[Path(__file__).with_name("device.py")] = ("tests", "faults", "device")
    for path, parts in modules.items():
        inside = ""
        for match in _DEFINITION.finditer(path.read_text()):
            indented, kind, name = match.groups()
            if indented and inside and kind == "def":
                found.setdefault(f"{inside}.{name}", []).append(".".join(parts))
            elif not indented:
                inside = name if kind == "class" else ""
                if kind == "def":
                    found.setdefault(name, []).append(".".join(parts))
    return found


def function_of(name: str) -> FunctionType:
    """The function that an edit is about: `Class.method` or `function`, wherever it stands in the package; with
    `module:` before it where several modules have one."""
    room, _, qualified = name.rpartition(":")
    homes = [each for each in _homes().get(qualified, []) if not room or each.endswith(f".{room}")]
    if len(homes) != 1:
        raise Stale(f"there is no {name} any more" if not homes else f"{name} is in {', '.join(homes)}: say which")
    found: Any = importlib.import_module(homes[0])
    for each in qualified.split("."):
        found = inspect.getattr_static(found, each)
    return _plain(found)


def mutated(name: str, edits: Sequence[Edit]) -> CodeType:
    """The code of a function with these edits made; `Stale` if one cannot be made any more."""
    function = function_of(name)
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        found = source.count(edit.old)
        if found != 1:
            raise Stale(f"{name} holds {edit.old!r} {found} times, not once: bring the mutant up to date")
        source = source.replace(edit.old, edit.new)
    filename = inspect.getsourcefile(function) or "mutant"
    flags = __future__.annotations.compiler_flag
    names = dict(function.__globals__)
    exec(compile(source, filename, "exec", flags, dont_inherit=True), names)
    return _plain(names[function.__name__]).__code__


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The bug is in the running code."""
    names = dict.fromkeys(edit.function for edit in mutant.edits)
    made = {name: mutated(name, [edit for edit in mutant.edits if edit.function == name]) for name in names}
    before = {name: function_of(name).__code__ for name in names}
    try:
        for name, code in made.items():
            function_of(name).__code__ = code
        yield
    finally:
        for name, code in before.items():
            function_of(name).__code__ = code


# --- finding


class Found(Exception):
    """A finder has found the bug: number of tries, and the failure."""

    def __init__(self, tries: int, what: str) -> None:
        super().__init__(what)
        self.tries = tries


class Counter:
    """Counts a finder's tries."""

    def __init__(self) -> None:
        self.tries = 0


Finder = Callable[[Counter, int], None]


def crashes(count: Counter, seed: int) -> None:
    """All workloads but those with readers, few crashes of each at first, then more; one seed after the other."""
    from .crashes import WORKLOADS
    from .readers import READERS

    # In some, much is decided by the seed: which call fails, who commits when.
    seeds = {name: 6 if name.startswith(("failing", "store_commits")) else 2 for name in WORKLOADS}
    kinds = [(kind, more) for name, kind in WORKLOADS.items() if name not in READERS for more in range(seeds[name])]
    _enumerate(count, seed, kinds, (0.02, 0.1))


def readers(count: Counter, seed: int) -> None:
    """The workloads with readers, in the same way; where one crash takes as long as ten of the others."""
    from .readers import READERS

    _enumerate(count, seed, [(kind, more) for kind in READERS.values() for more in range(2)], (0.002, 0.01, 0.1))


def _enumerate(count: Counter, seed: int, kinds: Sequence[tuple[type[Workload], int]], shares: Sequence[float]) -> None:
    from .enumeration import Scenario, enumerate_crashes

    chance = random.Random(seed)
    tried: list[Scenario] = []

    def noted(scenario: Scenario) -> None:
        tried.append(scenario)
        count.tries = len(tried)

    for share in itertools.chain(shares, itertools.repeat(1.0)):
        for kind, more in chance.sample(kinds, len(kinds)):
            outcome = enumerate_crashes(
                kind, seed + more, wanted=lambda _, share=share: chance.random() < share, on_scenario=noted
            )
            for violation in outcome.violations:
                raise Found(tried.index(violation.scenario) + 1, str(violation))
        seed += 6 * (share == 1.0)


def bits(count: Counter, seed: int) -> None:
    """Some flips of each fixture, again and again."""
    from .bits import Violation, fixtures, sample

    while True:
        for fixture in fixtures():
            for flip in sample(fixture, 12, seed):
                count.tries += 1
                try:
                    fixture.try_flip(flip)
                except Violation as found:
                    raise Found(count.tries, str(found)) from found
        seed += 1


def by_command(name: str, arguments: Sequence[str]) -> Finder:
    """Make a finder of a command of the laboratory, which runs until its first violation."""

    def finder(count: Counter, seed: int) -> None:
        module = importlib.import_module(f".{name}", __package__)
        parser = argparse.ArgumentParser()
        parser.add_argument("--seed", type=int)
        module.add_options(parser)
        advance = Tally.advance

        def counted(self: Tally, number: int = 1, *, what: str = "") -> None:
            count.tries += number
            advance(self, number, what=what)

        def found(self: Tally, text: str) -> NoReturn:
            raise Found(count.tries, text)

        Tally.advance, Tally.violation = counted, found  # type: ignore[method-assign, assignment]
        while True:
            module.run(parser.parse_args([*arguments, "--seed", str(seed)]))
            seed += 1

    return finder


def storage(count: Counter, seed: int) -> None:
    """Run the tests of the storages: the suites, the comparison of the simulated disk's system calls with real files,
    and the test that removed data stays removed."""
    import pytest

    from .promised import tests_pass

    class Listening:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            count.tries += report.when == "call"
            if report.failed:
                failed.append(report.nodeid)

    failed: list[str] = []
    where = ["tests/log/write/test_aborted_streams.py", "tests/storage"]
    tests_pass(where, Listening())
    if failed:
        raise Found(count.tries, failed[0])


FINDERS: dict[str, Finder] = {
    "crashes": crashes,
    "errors": by_command("errors", ["--share", "0.003"]),
    "bits": bits,
    "missing": by_command("missing", []),
    "threads": by_command("threads", ["--rounds", "10"]),
    "readers": readers,
    "storage": storage,
    "recorded": by_command("recorded", ["--scenarios", "500", "--each", "6"]),
    "promised": by_command("promised", []),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one mutant and one finder: tries, and seconds of CPU. `tries` is None if it was not found."""

    mutant: str
    finder: str
    tries: int | None
    seconds: float
    what: str

    @property
    def cell(self) -> str:
        """For the table."""
        return "" if self.tries is None else f"{self.tries:,} ({self.seconds:.1f} s)"


def look(mutant: Mutant, finder: str, seed: int, patience_s: float) -> NoReturn:
    """Plant the mutant in this process, run the finder, print the result as one line of JSON, and exit."""
    from ..durations import cpu_s  # not above: pytest rewrites it when it is imported as a plugin

    count, began, deadline = Counter(), cpu_s(), time.monotonic() + _WAITING * patience_s
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the finder's own output does not belong in the table

    def end(tries: int | None, what: str) -> NoReturn:
        made = Finding(mutant.name, finder, tries, cpu_s() - began, what)
        fields = {name: getattr(made, name) for name in ("mutant", "finder", "tries", "seconds", "what")}
        os.write(out, json.dumps(fields).encode() + b"\n")
        os._exit(0)

    def watch() -> None:
        while cpu_s() - began < patience_s and time.monotonic() < deadline:
            time.sleep(0.1)
        end(None, f"{count.tries} tries")

    threading.Thread(target=watch, daemon=True).start()
    if finder != "storage":
        importlib.import_module(f".{finder}", __package__)  # what cannot be imported has found nothing
    with planted(mutant):
        try:
            FINDERS[finder](count, seed)
        except Found as found:
            end(found.tries, str(found))
        except BaseException as error:  # so bad that the finder's own work does not get through
            end(max(count.tries, 1), f"{type(error).__name__}: {error}")
    end(None, f"{count.tries} tries, and nothing else to try")


def find(mutant: Mutant, finder: str, seed: int = 1, patience_s: float = _PATIENCE_S) -> Finding:
    """One mutant and one finder."""
    command = [sys.executable, "-m", "tests.faults", "mutants", "--mutant", mutant.name, "--with", finder]
    command += ["--look", "--seed", str(seed), "--patience", str(patience_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as child:
        try:
            said, _ = child.communicate(timeout=_WAITING * patience_s + 60)
            lines = said.splitlines()
            assert lines, f"{finder} ended without a word while it looked for {mutant.name!r}: {' '.join(command)}"
            return Finding(**json.loads(lines[-1]))
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)  # os.killpg(child.pid, signal.SIGKILL)  # includes its children
            except ProcessLookupError:
                pass


# --- the table


Cells = dict[tuple[str, str], str]


def table(mutants: Sequence[Mutant], cells: Cells) -> str:
    """Format the results as Markdown: tries and seconds of CPU for each mutant and finder."""
    lines = [f"| planted bug | {' | '.join(FINDERS)} |", f"|---|{'---|' * len(FINDERS)}"]
    for mutant in mutants:
        row = [cells.get((mutant.name, finder), "") for finder in FINDERS]
        lines.append(f"| **{mutant.name}**: {mutant.story} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def written() -> Cells:
    """Parse the table on the page, by mutant and finder, without finders that have no column yet."""
    _, _, rest = TABLE.read_text().partition(_BEGIN)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in rest.partition(_END)[0].splitlines()]
    if not any(rows):
        return {}
    head, _, *found = [row for row in rows if row]
    return {
        (row[0].split("**")[1], finder): cell
        for row in found
        for finder, cell in (dict.fromkeys(FINDERS, "") | dict(zip(head[1:], row[1:], strict=True))).items()
    }


def write(mutants: Sequence[Mutant], findings: Sequence[Finding]) -> None:
    """Write the table into the page, between its marks. Cells that were not tried keep their values."""
    cells = written() | {(each.mutant, each.finder): each.cell for each in findings}
    head, _, rest = TABLE.read_text().partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    assert tail, f"{TABLE} has lost its marks"
    TABLE.write_text(f"{head}{_BEGIN}\n{table(mutants, cells)}{_END}{tail}")


# --- the command


def add_options(parser: argparse.ArgumentParser) -> None:
    """For `python -m tests.faults mutants`."""
    parser.add_argument("--mutant", action="append", help="only this one; may be given several times")
    parser.add_argument("--with", action="append", dest="finders", choices=FINDERS, help="only by this finder")
    parser.add_argument(
        "--patience", type=float, default=_PATIENCE_S, metavar="S", help="seconds of CPU for each finder"
    )
    parser.add_argument("--first", action="store_true", help="only who finds it soonest")
    parser.add_argument("--write", action="store_true", help=f"put the table into {TABLE.name}")
    parser.add_argument("--list", action="store_true", help="say which mutants there are, and end")
    parser.add_argument("--quick", type=int, metavar="N", help="only by the quick tests, in up to N runs")
    parser.add_argument("--look", action="store_true", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Plant, look, tell."""
    from .bugs import CONTROL, MUTANTS

    chosen = [each for each in (CONTROL, *MUTANTS) if options.mutant is None or each.name in options.mutant]
    finders = options.finders or list(FINDERS)
    if options.list:
        say(*(f"{each.name:45} {each.story}" for each in chosen))
        return 0
    if options.quick:
        from .quick import search

        return search(chosen, options.quick, options.seed)
    if options.look:
        look(chosen[0], finders[0], options.seed, options.patience)
    findings: list[Finding] = []
    lost: list[str] = []
    for mutant in chosen:
        mine: list[Finding] = []
        soonest = [mutant.by] if options.first and mutant is not CONTROL else finders
        for finder in soonest:
            mine.append(find(mutant, finder, options.seed, options.patience))
            say(f"{mutant.name:45} {finder:10} {mine[-1].cell or '-'}")
        findings += mine
        if all(each.tries is None for each in mine) is (mutant is not CONTROL):
            lost.append(mutant.name if mutant is not CONTROL else f"{mutant.name}, but: {mine[-1].what}")
    say("", *table(chosen, {(each.mutant, each.finder): each.cell for each in findings}).splitlines())
    if options.write:
        write((CONTROL, *MUTANTS), findings)
    say("", f"{len(chosen) - (CONTROL in chosen)} bugs planted, {len(lost)} not as they should be found")
    if lost:
        say(f"NOT FOUND: {', '.join(lost)}")
    return 1 if lost else 0
