"""What this process has done so far, counted for whoever watches it: a broker's `/metrics`.

The counters belong to the process, not to a store: they never decrease while it lives, whichever logs are opened and
closed. `SYNCS` knows how long each sync of a file took, `DONE` how often something else has happened, by these names:

    segments_created, segments_removed      by rotation; by retention, trimming and compaction
    compaction_removed_bytes                of records that a later one of the same key has replaced
    recovery_truncated_bytes                of torn tails that were cut off
    index_rebuilds                          of segments whose index was missing or damaged
    scrubbed_bytes, scrub_problems          of sealed segments that were read completely, to see whether they are good
    corrupt_batches                         that were met in recovery, in scrubbing and by a broker's clients; each once

Threads: any. A lock is held for an addition; what is counted takes far longer.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from .forking import forkable

#: Upper ends of the buckets of a histogram, in seconds.
BUCKETS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192)


class Histogram:
    """How often something took how long. For one thread at a time."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """(upper end of a bucket, how many took up to that long), with increasing numbers."""
        total = 0
        for end, count in zip((*map(str, BUCKETS_S), "+Inf"), list(self.counts), strict=True):
            total += count
            yield end, total


SYNCS = Histogram()
DONE: Counter[str] = Counter()
#: Where damage was met: path and position. No more than so many are told apart from later ones.
_damaged: set[tuple[str | None, int | None]] = set()
_MOST_DAMAGED = 100_000
_lock = forkable(threading.Lock())


def count_sync(seconds: float) -> None:
    """A file was synced."""
    with _lock:
        SYNCS.add(seconds)


def count(name: str, by: int = 1) -> None:
    """Something has happened."""
    with _lock:
        DONE[name] += by


def count_damage(path: str | None, position: int | None) -> bool:
    """A damaged batch was met there; whether for the first time."""
    with _lock:
        if (path, position) in _damaged or len(_damaged) >= _MOST_DAMAGED:
            return False
        _damaged.add((path, position))
        DONE["corrupt_batches"] += 1
        return True
