"""`python -m tests.faults crashes --scenarios 100000 --seed S`: crash enumeration over all workloads, seed after seed.

Every seed runs every workload once, and crashes it at every change of the disk in every way (see
`enumeration`); then comes the next seed, until there were as many scenarios as asked for.
"""

from __future__ import annotations

import argparse
import fnmatch

from .enumeration import ENDINGS, Scenario, enumerate_crashes
from .readers import READERS
from .report import Tally, say
from .stores import STORES
from .transactions import TRANSACTIONS
from .workloads import LOGS

#: By the name that `--workload` takes.
WORKLOADS = {**LOGS, **TRANSACTIONS, **STORES, **READERS}
#: Stop after this many violations: more add no information.
_ENOUGH = 25


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scenarios", type=int, default=100_000, help="at least so many (default: 100,000)")
    parser.add_argument("--workload", default="*", metavar="PATTERN", help="only those whose name matches")
    parser.add_argument("--depth", type=int, default=2, help="crashes in a row (default: 2)")
    parser.add_argument("--list", action="store_true", help="say which workloads there are, and end")


def run(options: argparse.Namespace) -> int:
    chosen = {name: kind for name, kind in WORKLOADS.items() if fnmatch.fnmatchcase(name, options.workload)}
    if options.list or not chosen:
        say(*chosen)
        return 0 if chosen else 2
    with Tally("crashes", options.scenarios, "scenarios") as tally:

        def count(scenario: Scenario) -> None:
            tally.advance(what=scenario.mode)

        seed = options.seed
        while tally.done < options.scenarios and len(tally.violations) < _ENOUGH:
            for kind in chosen.values():
                outcome = enumerate_crashes(kind, seed, depth=options.depth, on_scenario=count)
                for violation in outcome.violations[:_ENOUGH]:
                    tally.violation(str(violation))
                if tally.done >= options.scenarios or len(tally.violations) >= _ENOUGH:
                    break
            seed += 1
    say(f"{len(chosen)} workloads, seeds {options.seed} to {seed - 1}, depth {options.depth}, {', '.join(ENDINGS)}")
    return tally.finish()
