"""Seeds that once failed. `test_crashes.py` replays them in every run.

A fix for something that a seed found adds the seed here, with one line on what was wrong. To replay one in full:

    python -m tests.faults crashes --workload NAME --seed SEED --scenarios 1
"""

from __future__ import annotations

#: (workload, seed, the bug)
FAILING_SEEDS = [
    ("aborting_os", 994087, "an async stream that was cancelled by its own source was stored"),
    ("interrupted_twice_always", 31645, "an interrupt while a producer was recorded left it without a batch"),
    ("readers_restored_interval", 37301, "an end published before a truncation made the truncated records look lost"),
    ("readers_transactions_interval", 66373, "a follower did not list the directory after a rollback"),
    ("transactional_os", 68267, "a page ended above the visible end, where a truncation was to cut a batch through"),
]
