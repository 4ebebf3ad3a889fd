"""`make suites`: test suites that others wrote, against `sawlog serve` and against Apache Kafka.

    python tools/run_suites.py --help

`suites/` has a module per suite. This is only the door to it.
"""

from __future__ import annotations

import sys

from suites.command import main

if __name__ == "__main__":
    sys.exit(main())
