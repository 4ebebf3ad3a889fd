"""A writer of a few keys that compacts, merges, recompresses and scrubs all the time, until it is killed or told.

    python -m tests.processes.rewriting DIRECTORY SEED [STEPS [trim]]

Key N is written with the values "N.0", "N.1", ... each of them named after the offset it should get as well; they go
on where the log ends. For every acknowledged record it says "<key> <number> <offset>". Without STEPS it goes on until
it is killed. At the end it appends the key "end". It says "ready" once the log is open.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading

from sawlog import Log, LogConfig, SawlogError, UpkeepConfig
from sawlog.log import compaction

from . import content
from .launch import say

SETTINGS = LogConfig(segment_bytes=12_000, index_interval_bytes=400, durability="os", checkpoint_interval_ms=20)
KEYS = 25


def named(key: str, number: int, offset: int) -> str:
    return f"{key}.{number}.{offset}"


def parts(value: bytes | None) -> tuple[str, int, int]:
    """(key, number, offset) of a value, every byte of which was checked."""
    key, number, offset = content.name_of(value).split(".")
    return key, int(number), int(offset)


def check(log: Log, output: str, told: str) -> dict[str, int]:
    """Against what a worker said: of every key the last acknowledged value or a later one; each where it was put."""
    last: dict[str, tuple[int, int]] = {}
    before = -1
    for record in log.scan():
        key, number, offset = parts(record.value)
        assert record.key == key.encode(), told
        assert record.offset == offset > before, f"{told}: {key}.{number} stands at {record.offset}"
        assert key == "x" or number > last.get(key, (-1, -1))[0], f"{told}: {key} goes back to {number}"
        before, last[key] = offset, (number, offset)
    for line in output.splitlines():
        if line != "ready" and len(line.split()) == 3:
            key, number, _ = line.split()
            assert last.get(key, (-1, -1))[0] >= int(number), f"{told}: {line} was acknowledged"
    return {key: number for key, (number, _) in last.items()}


class Rewriting:
    """Appends, and does upkeep beside them."""

    def __init__(self, log: Log, seed: int) -> None:
        self.log = log
        self.random = random.Random(seed)
        self.numbers = check(log, "", "at the start")

    def append(self) -> None:
        """Some records as one batch."""
        offset = self.log.next_offset
        batch, lines = [], []
        for at in range(offset, offset + self.random.choice([1, 1, 5, 30])):
            key = str(self.random.randrange(KEYS))
            number = self.numbers[key] = self.numbers.get(key, -1) + 1
            value = content.make(named(key, number, at), self.random.choice([0, 40, 300]))
            batch.append((value, key.encode()))
            lines.append(f"{key} {number} {at}")
        placed = self.log.append_many(batch)
        assert placed.start == offset
        for line in lines:
            say(line)

    def keep_up(self) -> None:
        """One piece of upkeep."""
        kind = self.random.randrange(5)
        if kind == 0:
            self.log.merge_segments()
        elif kind == 1:
            self.log.recompress(self.random.choice(["zstd", "lz4"]))
        elif kind == 2:
            self.log.upkeep(UpkeepConfig(compact=True, min_dirty_ratio=0, scrub_interval_ms=0))
        else:
            assert self.log._appender is not None
            compaction.compact(self.log._appender, delete_retention_ms=10**9)

    def keep_up_until(self, done: threading.Event) -> None:
        try:
            while not done.is_set():
                self.keep_up()
        except SawlogError as error:
            if not done.is_set():
                sys.stderr.write(f"upkeep failed: {error!r}\n")
                raise


def main(directory: str, seed: str, steps: str = "", *options: str) -> None:
    log = Log.open(directory, SETTINGS)
    assert log.recovery, str(log.recovery)
    work = Rewriting(log, int(seed))
    say("ready")
    done = threading.Event()
    beside = threading.Thread(target=work.keep_up_until, args=(done,), daemon=True)
    beside.start()
    for step in range(int(steps)) if steps else itertools.count():
        work.append()
        if "trim" in options and step % 40 == 39:
            log.trim(max(log.lowest_offset, log.next_offset - 800))
        if step % 10 == 9:
            log.seal()
    done.set()
    beside.join()
    log.append(content.make(named("end", 0, log.next_offset)), b"end")
    assert log.verify(), str(log.verify())
    log.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
