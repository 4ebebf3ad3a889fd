"""Two processes that append to one topic, compared with one; and the process that does it.

    python turning.py STORE TURNS

Each opens the store, says "ready", waits for a line, appends TURNS times a hundred records of 100 bytes with
`topic.append_many`, and says "done". Two processes have half of the turns each, so both candidates write the same.
The clock runs from the first line that is sent until the last process is done.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sawlog

if TYPE_CHECKING:
    from bench import Bench
    from rounds import Candidate, Sample
    from rows import Row

PER_TURN = 100
VALUE = bytes(100)


def append(path: str, turns: int) -> None:
    """The process."""
    with sawlog.open(path, maintenance_interval_s=None) as store:
        topic = store["measured"]
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(turns):
            topic.append_many([VALUE] * PER_TURN)
        print("done", flush=True)
        sys.stdin.readline()


def _told(processes: list[subprocess.Popen[str]]) -> Sample:
    """Start all processes at once and wait for them."""
    from rounds import Sample

    began = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    return Sample(time.perf_counter() - began, 0.0)


def _candidate(bench: Bench, count: int, turns: int, durability: str) -> Candidate:
    from rounds import Candidate, Trial, expect

    def content(path: Path) -> int:
        with sawlog.open(path, "r") as store:
            return sum(1 for _ in store["measured"].scan())

    @contextmanager
    def trial() -> Iterator[Trial]:
        path = bench.path()
        with sawlog.open(path) as store:
            store.create_topic("measured", durability=durability)
        command = [sys.executable, __file__, str(path), str(turns // count)]
        processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        try:
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()
            yield Trial(lambda: _told(processes), lambda: expect(content(path), turns * PER_TURN, f"{count} processes"))
        finally:
            for process in processes:
                process.communicate()
            shutil.rmtree(path, ignore_errors=True)

    return Candidate(f"{count}", trial)


def take_turns(bench: Bench) -> list[Row]:
    """One row per policy: with "always" each turn waits for the disk."""
    from rounds import best_of
    from rows import Row, Unit, rate, share

    rows = []
    for durability, turns in (("always", bench.scaled(1_000, 200)), ("os", bench.scaled(40_000, 10_000))):
        best = best_of([_candidate(bench, count, turns, durability) for count in (1, 2)], bench.effort)
        figures = {name: rate(Unit.RECORDS, sample, turns * PER_TURN, waits=True) for name, sample in best.items()}
        what = f"two processes, {PER_TURN} records a turn, durability {durability}"
        rows.append(Row(what, figures["2"], "one process", figures["1"], share(0.5), percent=True))
    return rows


if __name__ == "__main__":
    append(sys.argv[1], int(sys.argv[2]))
