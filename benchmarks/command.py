"""The command line of every benchmark: select cases, measure them, print one table.

Exits with 0 whatever the verdicts: people judge the figures. A wrong result of a candidate is an error.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import machine
import table
from bench import Bench, Case
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rounds import Effort
from rows import Row

#: For each case; the fewest rounds may take longer.
SECONDS, QUICK_SECONDS = 5.0, 0.3


def arguments(about: str) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="smaller data and fewer rounds: a first impression")
    parser.add_argument("--only", metavar="PATTERN", help="only the cases whose name this regular expression finds")
    parser.add_argument("--dir", type=Path, help="where to put the data (default: a new directory in this one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    return parser.parse_args()


def chosen(cases: list[Case], pattern: str | None) -> list[Case]:
    """The cases to run; ends the program if there are none."""
    found = [case for case in cases if pattern is None or re.search(pattern, case.name)]
    if not found:
        sys.exit(f"no case is called {pattern}; there are {', '.join(case.name for case in cases)}")
    return found


def measured(cases: list[Case], bench: Bench) -> list[Row]:
    """Measure all cases, with a progress bar on standard error."""
    columns = (TextColumn("{task.description:20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows: list[Row] = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            progress.update(task, description=case.name)
            rows += case.run(bench)
            progress.advance(task)
    return rows


def run(cases: list[Case], about: str) -> None:
    """Measure and show."""
    machine.with_steady_copies()
    asked = arguments(about)
    if asked.list:
        print("\n".join(case.name for case in cases))
        return
    cases = chosen(cases, asked.only)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that the directory is removed
    parent = (asked.dir or Path.cwd()).resolve()
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=".sawlog-bench-", dir=parent))
    bench = Bench(directory, Effort(QUICK_SECONDS if asked.quick else SECONDS, quick=asked.quick))
    described = machine.description(parent)
    try:
        rows = measured(cases, bench)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        bench.close()
        shutil.rmtree(directory, ignore_errors=True)
    described["load"] += f", {machine.load():.1f} when it ended"
    table.show(rows, described)
    if asked.json:
        table.save(asked.json, rows, described)
