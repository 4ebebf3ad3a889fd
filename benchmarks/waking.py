"""Wake-up latency: from just before an append in one process to the record in the hands of another that waits for it.

    python waking.py [--count 1000] [--durability os|always] [--directory DIRECTORY] [--tasks]

One process appends a record every few milliseconds, which contains the time. The other one follows the topic (with
--tasks in an event loop) and compares. Both run on this machine, so they have the same clock.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time

import sawlog

_TOPIC = "measured"


def follow(path: str, count: int) -> list[float]:
    """Return the latencies of the records, in microseconds."""
    found: list[float] = []
    with sawlog.open(path, mode="r") as store:
        print("ready", flush=True)
        for record in store[_TOPIC].follow():
            found.append((time.monotonic_ns() - int(record.value or b"0")) / 1000)
            if len(found) == count:
                break
    return found


async def follow_in_task(path: str, count: int) -> list[float]:
    """Measure the same in an event loop."""
    found: list[float] = []
    async with sawlog.open_async(path, mode="r") as store:
        print("ready", flush=True)
        async for record in (await store.topic(_TOPIC)).follow():
            found.append((time.monotonic_ns() - int(record.value or b"0")) / 1000)
            if len(found) == count:
                break
    return found


def append(path: str, count: int) -> None:
    """Append the time, again and again."""
    with sawlog.open(path, maintenance_interval_s=None) as store:
        topic = store[_TOPIC]
        for _ in range(count):
            time.sleep(random.uniform(0.003, 0.008))
            topic.append(b"%d" % time.monotonic_ns(), partition=0)


def main() -> None:
    """Run both processes and print the distribution."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--durability", default="os")
    parser.add_argument("--directory")
    parser.add_argument("--tasks", action="store_true")
    parser.add_argument("--append", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.append:
        sys.stdin.readline()
        append(options.append, options.count)
        return
    with tempfile.TemporaryDirectory(dir=options.directory) as path:
        with sawlog.open(path) as store:
            store.create_topic(_TOPIC, partitions=1, durability=options.durability)
        command = [sys.executable, __file__, "--append", path, "--count", str(options.count)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as writer:
            assert writer.stdin is not None
            writer.stdin.write(b"go\n")
            writer.stdin.close()
            found = asyncio.run(follow_in_task(path, options.count)) if options.tasks else follow(path, options.count)
    cuts = statistics.quantiles(found, n=100)
    print(f"median {cuts[49]:,.0f} µs, p90 {cuts[89]:,.0f} µs, p99 {cuts[98]:,.0f} µs, max {max(found):,.0f} µs")


if __name__ == "__main__":
    main()
