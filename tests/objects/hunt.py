"""Plant each bug of `planted`, run the harnesses, and print a table of the harnesses that found it and how soon.

`python -m tests.objects.hunt [--with scenario torture together rollback losing] [--bug "no nonce"] [--write]`

Bugs of caches show only after a rollback of the bucket, so `rollback` looks for them. `losing` looks for bugs that show
only when a store is lost under its processes. The other harnesses look for the rest. The first row is the unchanged
code. `--write` updates the table in `docs/internals/testing.md` and keeps cells that were not tried. A bug that no
harness finds is an error, and so is a finding in the unchanged code.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from . import losing as losses
from .planted import BUGS, CACHE_BUGS, LOSS_BUGS, SIMULATED_ONLY
from .scenario import run

TABLE = Path(__file__).parents[2] / "docs" / "internals" / "testing.md"
_BEGIN, _END = "<!-- hunt: written by `python -m tests.objects.hunt --write` -->", "<!-- end of hunt -->"
CONTROL = "nothing"
#: Number of seeds, each a longer story, after which a simulated bug must be found.
_SEEDS = 12
_NOT_FOUND = "not found"


def scenario(bug: str | None) -> str:
    """Return the number of simulated stories until the bug was found."""
    return next((f"{seed}" for seed in range(1, _SEEDS) if run(seed, steps=3000 * seed, bug=bug).wrong), "")


def rollback(bug: str | None) -> str:
    """Return the same for a bucket that is rolled back while the cache keeps the lost history."""
    seeds = range(1, _SEEDS if bug else 4)
    return next((f"{seed}" for seed in seeds if run(seed, steps=3000 * seed, bug=bug, roll_back=True).wrong), "")


def losing(bug: str | None) -> str:
    """Return the round in which the bug was found by simulated processes that lose their store in each way."""
    seeds = range(1, _SEEDS)
    return next((f"{seed}" for seed in seeds if any(losses.run(seed, kind, bug) for kind in losses.KINDS)), "")


def torture(bug: str | None) -> str:
    """Run real processes on a directory."""
    return _processes("tests.objects.torture", "--seconds", "20", bug=bug)


def together(bug: str | None) -> str:
    """Run all roles behind a proxy."""
    return _processes("tests.objects.together", "--minutes", "1", bug=bug)


def _processes(module: str, *options: str, bug: str | None) -> str:
    """Return the number of the run that found the bug. Each run has another seed."""
    for seed in range(1, 4 if bug else 2):
        command = [sys.executable, "-m", module, "--seed", str(seed), *options]
        done = subprocess.run([*command, *(["--bug", bug] if bug else [])], capture_output=True, text=True, check=False)
        said = re.search(r"(\d+) wrong", done.stdout)
        if said is None:
            raise RuntimeError(done.stdout + done.stderr)
        if int(said[1]):
            return str(seed)
    return ""


FINDERS = {"scenario": scenario, "torture": torture, "together": together, "rollback": rollback, "losing": losing}
#: The bugs that a harness looks for, if not `BUGS`.
_OF_PROCESSES = {bug: story for bug, story in BUGS.items() if bug not in SIMULATED_ONLY}
_WANTED = {"rollback": CACHE_BUGS, "losing": LOSS_BUGS, "torture": _OF_PROCESSES, "together": _OF_PROCESSES}
_ALL = {CONTROL: "no bug is planted: the control", **BUGS, **CACHE_BUGS, **LOSS_BUGS}
Cells = dict[tuple[str, str], str]


def hunt(bugs: list[str], finders: list[str]) -> Cells:
    """Look for bugs and return the cells of the table."""
    found: Cells = {}
    for bug in bugs:
        for name in finders:
            if bug != CONTROL and bug not in _WANTED.get(name, BUGS):
                continue
            begun_s = time.monotonic()
            tries = FINDERS[name](None if bug == CONTROL else bug)
            took_s = time.monotonic() - begun_s
            found[bug, name] = f"{tries or _NOT_FOUND} ({took_s:.0f} s)"
            sys.stdout.write(f"{bug:30} {name:10} {found[bug, name]}\n")
            sys.stdout.flush()
    return found


def written() -> Cells:
    """Return the cells of the documented table."""
    rows = TABLE.read_text().partition(_BEGIN)[2].partition(_END)[0].strip().splitlines()[2:]
    cells: Cells = {}
    for row in rows:
        name, *texts = (each.strip() for each in row.strip("|").split("|"))
        cells |= {(name.split("**")[1], finder): text for finder, text in zip(FINDERS, texts, strict=True) if text}
    return cells


def table(cells: Cells) -> str:
    """Format the table as Markdown."""
    lines = [f"| planted bug | {' | '.join(FINDERS)} |", "|---" * (len(FINDERS) + 1) + "|"]
    for bug, story in _ALL.items():
        lines.append(f"| **{bug}**: {story} | {' | '.join(cells.get((bug, name), '') for name in FINDERS)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bug", choices=list(_ALL), nargs="*", default=list(_ALL))
    parser.add_argument("--with", dest="finders", choices=list(FINDERS), nargs="*", default=list(FINDERS))
    parser.add_argument("--write", action="store_true", help=f"put the table into {TABLE.name}")
    given = parser.parse_args()
    cells = hunt(given.bug, given.finders)
    if given.write:
        head, _, rest = TABLE.read_text().partition(_BEGIN)
        tail = rest.partition(_END)[2]
        assert tail, f"{TABLE} has lost its marks"
        TABLE.write_text(f"{head}{_BEGIN}\n{table(written() | cells)}{_END}{tail}")
    missed = [
        f"{bug} by {name}" for (bug, name), cell in cells.items() if cell.startswith(_NOT_FOUND) != (bug == CONTROL)
    ]
    sys.stdout.write("".join(f"NOT AS IT SHOULD BE: {each}\n" for each in missed))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
