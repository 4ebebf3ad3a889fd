"""`python -m sawlog.testing`: replay one crash of a workload, or all crashes of one seed. See `crashes`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from .crashes import ENDINGS, Workload, enumerate_crashes


def _find(label: str) -> type[Workload]:
    module, _, name = label.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, Workload)):
        raise TypeError(f"{label} is not a Workload")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay one scenario, or enumerate all of one seed."""
    parser = argparse.ArgumentParser(prog="python -m sawlog.testing", description=main.__doc__)
    parser.add_argument("--workload", required=True, metavar="MODULE:CLASS", help="a subclass of Workload")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--crash-at", type=int, help="crash before the disk change with this number; default: every change"
    )
    parser.add_argument("--mode", choices=ENDINGS, help="how the crash ends; default: every way")
    parser.add_argument("--depth", type=int, default=2, help="number of consecutive crashes")
    given = parser.parse_args(arguments)
    sys.path.insert(0, "")  # as for a script: modules in the current directory can be imported
    outcome = enumerate_crashes(
        _find(given.workload),
        given.seed,
        endings=(given.mode,) if given.mode else ENDINGS,
        depth=given.depth,
        wanted=lambda scenario: given.crash_at in (None, scenario.crash_at),
    )
    for violation in outcome.violations:
        sys.stdout.write(f"{violation.trace}\n")
    sys.stdout.write(f"{outcome}\n")
    return 1 if outcome.violations or not outcome.scenarios else 0


if __name__ == "__main__":
    sys.exit(main())
