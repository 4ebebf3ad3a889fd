"""`python -m sawlog.pipelines JOB …`, and the script for `spark-submit` (`sawlog pipeline script` prints its path).

A script is not part of a package, so the imports here are absolute.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

JOBS = ("ingest", "export", "table", "verify", "compact", "repartition", "stats", "scaffold")


def main(arguments: list[str]) -> int:
    """Run the job named by the first argument and return the exit code."""
    if not arguments or arguments[0] not in JOBS:
        sys.stderr.write(f"usage: {Path(__file__).name} {{{','.join(JOBS)}}} …; see JOB --help\n")
        return 2
    job = importlib.import_module(f"sawlog.pipelines.{arguments[0]}")
    code: int = job.main(arguments[1:])
    return code


if __name__ == "__main__":
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [path for path in sys.path if path != here]  # the modules of this package are not top-level modules
    sys.exit(main(sys.argv[1:]))
