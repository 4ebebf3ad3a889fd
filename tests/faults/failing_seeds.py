"""Seeds that have failed once, replayed in every run: `test_crashes.py` takes them like the seed of the run.

Whoever mends what a seed has found adds it here, with one line on what was wrong. Replay one by hand, in full:

    python -m tests.faults crashes --workload NAME --seed SEED --scenarios 1
"""

from __future__ import annotations

#: (workload, seed, what was wrong)
FAILING_SEEDS = [
    ("aborting_os", 994087, "an async stream that was cancelled by its own source was stored"),
]
