"""The fault laboratory on the command line: `python -m tests.faults NAME --seed S ...`, from the repository root.

Each row of `COMMANDS` names a module in this folder with two functions:

    add_options(parser)        add its options; `--seed` exists already
    run(options) -> int        run, print the findings, return the exit code: 0 if there were none

A module is imported only when its command runs, because some need software that other machines lack.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys

#: name -> (module, summary)
COMMANDS: dict[str, tuple[str, str]] = {
    "crashes": (".crashes", "cut the power at every I/O of every operation, recover, check, go on"),
    "replay": (".enumeration", "replay one crash of one workload, as a violation prints it"),
    "recorded": (".recorded", "the same on real files: record their system calls, and cut the power at any of them"),
    "errors": (".errors", "make every I/O of every operation fail, with each errno, once and for ever"),
    "bits": (".bits", "flip every bit of every kind of file, and look at everything again"),
    "missing": (".missing", "delete and cut every file of a log and a store: whatever is lost is reported"),
    "threads": (".threads", "let threads share an fsync, and cut the power when one of them is told that it is done"),
    "mutants": (".mutants", "plant known bugs, one at a time, and see whether the rest of this table finds them"),
    "asan": (".asan", "the compiled kernel under AddressSanitizer: corpus, mutated inputs, tests/batch"),
    "fuzz": (".fuzz.run", "bad bytes for everybody who reads bytes: mutated, guided by coverage, or replayed"),
    "kills": (".kills", "kill -9 real processes at random moments of every kind of work, check, go on"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run one row of the table."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="The fault laboratory.",
        epilog="\n".join(f"  {name:10} {what}" for name, (_, what) in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="NAME", help="one of those below; NAME --help says more")
    command = parser.parse_args(given[:1]).command
    name, what = COMMANDS[command]
    module = importlib.import_module(name, __package__)
    own = argparse.ArgumentParser(prog=f"python -m tests.faults {command}", description=what)
    # The library logs damage and failures, which are the rule here; logging them is slow.
    logging.getLogger("sawlog").setLevel(logging.CRITICAL + 1)
    own.add_argument("--seed", type=int, default=1, help="the same seed gives the same run (default: 1)")
    module.add_options(own)
    return int(module.run(own.parse_args(given[1:])))


if __name__ == "__main__":
    sys.exit(main())
