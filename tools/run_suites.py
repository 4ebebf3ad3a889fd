"""`make suites`: third-party test suites, against `sawlog serve` and against Apache Kafka.

    python tools/run_suites.py --help

`suites/` has a module per suite; this is its entry point.
"""

from __future__ import annotations

import sys

from suites.command import main

if __name__ == "__main__":
    sys.exit(main())
