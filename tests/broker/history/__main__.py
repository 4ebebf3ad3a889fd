"""`python -m tests.broker.history --kills 200 --seed S`, from the top of the repository: concurrent clients of a broker
that is killed at random moments; `checker` checks the notes of all clients. Exit code 0 if there is no violation."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from ...faults.report import say
from .planted import BUGS, served_with
from .run import BESIDE, CAST, WITH_SPARK, keep, play, rounds


def main() -> int:
    """Run rounds until there were enough kills."""
    parser = argparse.ArgumentParser(prog="python -m tests.broker.history", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many, in all rounds (default: 200)")
    parser.add_argument("--round", type=int, default=25, help="how many before everything is checked (default: 25)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000, help="whom to kill, and when")
    parser.add_argument("--bug", choices=BUGS, help="plant a bug into the broker: it has to be found")
    parser.add_argument("--beside", action="store_true", help="with library transactions and appends beside the broker")
    parser.add_argument("--spark", action="store_true", help="with Spark's exactly-once sink, too")
    options = parser.parse_args()
    say(f"seed {options.seed}")
    cast = WITH_SPARK if options.spark else BESIDE if options.beside else CAST
    killed, broken = Counter[str](), Counter[str]()
    for number, kills in enumerate(rounds(options.kills, options.round)):
        directory = Path(tempfile.mkdtemp(prefix="sawlog-history-"))
        broker = None if options.bug is None else served_with(options.bug, directory / "data")
        outcome = play(directory, kills=kills, seed=options.seed + number, broker=broker, cast=cast)
        killed += outcome.kills
        broken.update(each.kind for each in outcome.violations)
        say(f"round {number + 1}, seed {options.seed + number}: {outcome}")
        if outcome.violations:
            keep(directory, outcome.violations)
            say("\n".join(f"  {each}" for each in outcome.violations[:20]))
            say(f"  kept in {directory}")
        else:
            shutil.rmtree(directory)
    say(f"{sum(killed.values())} kills ({dict(killed)}), {sum(broken.values())} violations {dict(broken) or ''}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
