"""Process-wide counters, exported by a broker's `/metrics`.

Counters belong to the process, not to a store: they never decrease, whichever logs are opened and closed.
`SYNC_DURATIONS` is a histogram of file syncs; `COUNTERS` counts everything else:

    segments_created, segments_removed      by rotation; by retention, trimming and compaction
    compaction_removed_bytes                records superseded by a later one of the same key
    recovery_truncated_bytes                torn tails cut off by recovery
    index_rebuilds                          segments whose index was missing or damaged
    scrubbed_bytes, scrub_problems          sealed segments read completely to find bit rot
    corrupt_batches                         found by recovery, by scrubbing or by a broker's clients; each counted once

Thread-safe. Each update takes a lock, whose cost is small beside the operation it counts.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from .forking import forkable

#: Upper bounds of a histogram's buckets, in seconds.
BUCKETS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192)


class Histogram:
    """Histogram of durations. Not thread-safe."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Record one duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield (upper bound, cumulative count) of every bucket, in increasing order."""
        total = 0
        for end, count in zip((*map(str, BUCKETS_S), "+Inf"), list(self.counts), strict=True):
            total += count
            yield end, total


SYNC_DURATIONS = Histogram()
COUNTERS: Counter[str] = Counter()
#: Path and position of the damaged batches counted so far. Once the set is full, no further ones are counted.
_damaged: set[tuple[str | None, int | None]] = set()
_MOST_DAMAGED = 100_000
_lock = forkable(threading.Lock())


def count_sync(seconds: float) -> None:
    """Record the duration of one file sync."""
    with _lock:
        SYNC_DURATIONS.add(seconds)


def count(name: str, by: int = 1) -> None:
    """Increase a counter."""
    with _lock:
        COUNTERS[name] += by


def count_damage(path: str | None, position: int | None) -> bool:
    """Count a damaged batch, unless it was counted before. Return whether it was counted now."""
    with _lock:
        if (path, position) in _damaged or len(_damaged) >= _MOST_DAMAGED:
            return False
        _damaged.add((path, position))
        COUNTERS["corrupt_batches"] += 1
        return True
