"""Threads that share an fsync: the power is cut at the moment when a thread's record is acknowledged.

Group commit lets one thread sync for all that have written by then. A thread that writes later, while the sync is
running, must wait for the next one. Here a sync returns late, *after* it has done its work: a thread that is woken too
soon finds its record lost. After every append its thread crashes the simulated disk and looks.

In a second kind of round (`play_cutting`) one thread truncates while others append, and the syncing thread pauses
before it wakes the others, so that the log is cut in between. A reader in another process cuts the power whenever it
sees a new record, which must be durable. A follower continues where the log was cut: at the end it has seen every
record that is there.

`python -m tests.faults threads --rounds N`: a round is some threads on a new log. The machine schedules the threads;
the seed decides only on the records.
"""

from __future__ import annotations

import argparse
import functools
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from sawlog import Log, LogConfig
from sawlog.errors import OffsetOutOfRange

from .disk import FaultyStorage
from .report import Tally

T = TypeVar("T")

THREADS = 6
APPENDS = 8
#: Limit for anything that normally takes milliseconds.
_PATIENCE_S = 60.0
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
    """Play one round and return the lost records."""
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


class Cutting:
    """One round with a thread that truncates."""

    def __init__(self, seed: int, on_append: Callable[[], None]) -> None:
        self.seed = seed
        self.disk = SlowToReturn(seed)
        self.log = Log.open(self.disk, _CONFIG)
        self._slow_to_tell()
        self._on_append = on_append
        self.lost: list[str] = []
        #: Offsets of all truncations, including the one in progress, and the number of finished ones.
        self.cuts: list[int] = []
        self.cuts_done = 0
        #: Acknowledged records: number of cuts begun before the append, offset, value.
        self.told: list[tuple[int, int, bytes]] = []
        self.followed: set[bytes | None] = set()
        self.ended = threading.Event()

    def _slow_to_tell(self) -> None:
        """Between the end of an fsync and the news of it, anything may happen."""
        assert self.log._access.appender is not None
        commit = self.log._access.appender.durability
        sync = commit._sync

        def slow() -> int:
            reached = sync()
            time.sleep(0.002)
            return reached

        commit._sync = slow

    def play(self) -> list[str]:
        writers = [functools.partial(self._append, number) for number in range(3)]
        watchers, threads = self._started(self._look, self._follow), self._started(*writers, self._cut)
        if self._wait_for(threads):
            self.ended.set()
            if self._wait_for(watchers):
                self._check_all()
        return self.lost

    def _started(self, *works: Callable[[], None]) -> list[threading.Thread]:
        made = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works]
        for thread in made:
            thread.start()
        return made

    def _wait_for(self, threads: list[threading.Thread]) -> bool:
        """Until all have ended; False if something is wrong, after which the others may wait forever."""
        deadline = time.monotonic() + _PATIENCE_S
        while any(thread.is_alive() for thread in threads) and not self.lost:
            if time.monotonic() > deadline:
                self.lost.append("a thread hangs")
            time.sleep(0.001)
        return not self.lost

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.lost.append(f"{getattr(work, '__name__', 'a thread that appends')}: {type(error).__name__}: {error}")

    def _append(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        for i in range(APPENDS):
            value = b"%d-%d " % (number, i) + chance.randbytes(chance.choice((0, 50, 600)))
            cuts = len(self.cuts)
            offset = self.log.append(value)
            self.told.append((cuts, offset, value))
            found = found_after_a_power_cut(self.disk, offset)
            if found != value and not self._was_cut(cuts, offset):
                self.lost.append(f"thread {number} was told that offset {offset} is durable, and it is lost")
            self._on_append()

    def _was_cut(self, cuts: int, offset: int) -> bool:
        """True if the record may have been truncated after that number of cuts."""
        return any(cut <= offset for cut in self.cuts[cuts:])

    def _cut(self) -> None:
        chance = random.Random(f"{self.seed} cuts")
        while len(self.told) < 2 * APPENDS:
            time.sleep(0.001 * chance.randrange(1, 6))
            with self.log._hold():
                offset = max(self.log.lowest_offset, self.log.next_offset - chance.randrange(1, 4))
                self.cuts.append(offset)
                self.log.truncate(offset)
                self.cuts_done += 1

    def _look(self) -> None:
        """Read as another process: every record seen survives a power cut at that moment."""
        with Log.open(self.disk.plain, _CONFIG, mode="r") as log:
            known = 0
            while not self.ended.is_set():
                cuts = self.cuts_done
                end = log.visible_offset
                if end in (known, log.lowest_offset) or len(self.cuts) != cuts:
                    time.sleep(0.0005)
                    continue
                known = end
                try:
                    value = log.read(end - 1).value
                except OffsetOutOfRange:
                    continue
                found = found_after_a_power_cut(self.disk, end - 1)
                if found != value and len(self.cuts) == cuts:
                    self.lost.append(f"a reader saw offset {end - 1}, and a power cut takes it")

    def _follow(self) -> None:
        at = self.log.lowest_offset
        while True:
            ended = self.ended.is_set()
            try:
                for record in self.log.follow(at, timeout=0 if ended else 0.01):
                    self.followed.add(record.value)
                    at = record.offset + 1
                if ended:
                    return
            except OffsetOutOfRange as error:
                at = min(at, error.next)

    def _check_all(self) -> None:
        there = {record.offset: record.value for record in self.log.scan()}
        for cuts, offset, value in self.told:
            if there.get(offset) != value and not self._was_cut(cuts, offset):
                self.lost.append(f"offset {offset} was acknowledged, and is not there")
        skipped = sorted(offset for offset, value in there.items() if value not in self.followed)
        if skipped:
            self.lost.append(f"a follower was never given the offsets {skipped}")
        self.log.close()


def play_cutting(seed: int, on_append: Callable[[], None] = lambda: None) -> list[str]:
    """Play one round with truncations and return the lost records."""
    return Cutting(seed, on_append).play()


def add_options(parser: argparse.ArgumentParser) -> None:
    """For `python -m tests.faults threads`."""
    parser.add_argument("--rounds", type=int, default=200, help="so many new logs (default: 200)")


def run(options: argparse.Namespace) -> int:
    """Round after round."""
    with Tally("threads", options.rounds * (THREADS + 3) * APPENDS, "appends") as tally:
        for seed in range(options.seed, options.seed + options.rounds):
            counting: Any = threading.Lock()

            def count(counting: Any = counting) -> None:
                with counting:
                    tally.advance()

            for each in (*play(seed, count), *play_cutting(seed, count)):
                tally.violation(f"{each}\n  python -m tests.faults threads --rounds 10 --seed {seed}")
    return tally.finish()
