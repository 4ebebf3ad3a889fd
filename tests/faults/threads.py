"""Threads that share an fsync: each is told that its record is durable, and the power is cut at that moment.

Group commit lets one thread sync for all who have written by then. Who has written later, while the sync was running,
must wait for the next one. So here a sync takes its time *after* it has done its work: whoever is woken too soon finds
its record lost. After every append its thread crashes the simulated disk and looks.

`python -m tests.faults threads --rounds N`: a round is some threads on a new log. When threads run is decided by the
machine, so the seed decides only what is appended.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from sawlog import Log, LogConfig
from sawlog.testing import FaultyStorage

from .report import Tally

T = TypeVar("T")

THREADS = 6
APPENDS = 8
_CONFIG = LogConfig(segment_bytes=4000, checkpoint_interval_ms=3_600_000)


class SlowToReturn(FaultyStorage):
    """A disk whose fsync returns some time after it has done its work."""

    pause_s = 0.001

    def perform(self, operation: str, name: str, call: Callable[[], T], *more: Any) -> T:
        made = super().perform(operation, name, call, *more)
        if operation == "sync":
            time.sleep(self.pause_s)
        return made


def found_after_a_power_cut(disk: FaultyStorage, offset: int) -> bytes | None:
    """The value that is there at that offset, if everything is lost that was not synced."""
    with Log.open(disk.crash("lose").plain, _CONFIG, mode="r") as log:
        return log.read(offset).value if log.lowest_offset <= offset < log.next_offset else None


def play(seed: int, on_append: Callable[[], None] = lambda: None) -> list[str]:
    """One round; what was lost."""
    disk = SlowToReturn(seed)
    log = Log.open(disk, _CONFIG)
    lost: list[str] = []
    gate = threading.Barrier(THREADS)

    def work(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        gate.wait()
        try:
            for i in range(APPENDS):
                value = b"%d-%d " % (number, i) + chance.randbytes(chance.choice((0, 50, 600)))
                offset = log.append(value)
                if found_after_a_power_cut(disk, offset) != value:
                    lost.append(f"thread {number} was told that offset {offset} is durable, and it is lost")
                on_append()
        except Exception as error:
            lost.append(f"thread {number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    return lost


def add_options(parser: argparse.ArgumentParser) -> None:
    """For `python -m tests.faults threads`."""
    parser.add_argument("--rounds", type=int, default=200, help="so many new logs (default: 200)")


def run(options: argparse.Namespace) -> int:
    """Round after round."""
    with Tally("threads", options.rounds * THREADS * APPENDS, "appends") as tally:
        for seed in range(options.seed, options.seed + options.rounds):
            counting: Any = threading.Lock()

            def count(counting: Any = counting) -> None:
                with counting:
                    tally.advance()

            for each in play(seed, count):
                tally.violation(f"{each}\n  python -m tests.faults threads --rounds 10 --seed {seed}")
    return tally.finish()
