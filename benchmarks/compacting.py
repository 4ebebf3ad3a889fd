"""A separate process that fills a log for compaction, or compacts it and reports the time and memory that took.

    python compacting.py fill|compact LOG-DIRECTORY MB

The log has records of 100 bytes with keys of 12; one of ten is the last of its key. The answer is JSON; the peak of
resident memory is that of the whole process, interpreter and mapped pages of the log included.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import pyarrow as pa
from peak import peak

import sawlog

RECORD_BYTES = 120
CONFIG = sawlog.LogConfig(durability="os", segment_bytes=128 << 20)


def fill(path: str, mb: int) -> dict[str, int]:
    """A log of that size, every key ten times at random places."""
    count = mb * 1_000_000 // RECORD_BYTES
    live = count // 10
    values = pa.array([bytes(100)] * 100_000, pa.binary())
    keys = np.random.default_rng(5).permutation(np.arange(count) % live)
    with sawlog.Log.open(path, CONFIG) as log:
        for first in range(0, count, 100_000):
            some = keys[first : first + 100_000]
            names = pa.array(np.char.mod(b"key-%08d", some), pa.binary())
            log.append_arrow(pa.table({"key": names, "value": values[: len(some)]}))
        log.seal()
        return {"records": len(log), "live": live}


def compact(path: str, mb: int) -> dict[str, float]:
    """Compact it; one record per key must be left."""
    live = mb * 1_000_000 // RECORD_BYTES // 10
    with sawlog.Log.open(path, CONFIG) as log:
        wall, cpu = time.perf_counter(), time.process_time()
        report = log.compact()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        top = peak()
        left = sum(batch.num_rows for batch in log.scan_arrow())
        if left != live or not log.verify():
            sys.exit(f"{left} records are left of {live} keys, or they are damaged")
    return {"wall_s": wall, "cpu_s": cpu, "bytes_read": report.bytes_read, "peak_bytes": top}


if __name__ == "__main__":
    work = {"fill": fill, "compact": compact}[sys.argv[1]]
    print(json.dumps(work(sys.argv[2], int(sys.argv[3]))))
