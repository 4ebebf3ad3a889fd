"""A writer of a few keys that compacts, merges, recompresses and scrubs all the time, until it is killed or has done
STEPS steps.

    python -m tests.processes.rewriting DIRECTORY SEED [STEPS [trim]]

A value is named "<key>.<number>.<offset>": the values of a key are numbered, and each contains its own offset. Records
without a key have the name "none"; nothing removes them. Numbers continue where the log ends. For every acknowledged
record it prints "<key> <number> <offset>". Without STEPS it continues until it is killed. At the end it
appends the key "end". It prints "ready" once the log is open.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterable

from sawlog import Log, LogConfig, MaintenanceConfig
from sawlog.log import compaction

from . import content
from .launch import say

SETTINGS = LogConfig(segment_bytes=12_000, index_interval_bytes=400, durability="os", checkpoint_interval_ms=20)
KEYS = 25


def named(key: str, number: int, offset: int) -> str:
    return f"{key}.{number}.{offset}"


def parts(value: bytes | None) -> tuple[str, int, int]:
    """Return key, number and offset of a value, after checking all of its bytes."""
    key, number, offset = content.name_of(value).split(".")
    return key, int(number), int(offset)


def check(log: Log, output: str, told: str) -> dict[str, int]:
    """Compare with a worker's output: every key has its last acknowledged value or a later one, and each value its
    offset."""
    seen = Seen(told)
    for record in log.scan():
        seen.take(record.offset, record.key, record.value)
    for line in output.splitlines():
        if line != "ready" and len(line.split()) == 3:  # the last one may have been cut short by the kill
            key, said, _ = line.split()
            assert seen.numbers.get(key, -1) >= int(said), f"{told}: {line} was acknowledged"
    return seen.numbers


class Seen:
    """Takes records in order and checks each: its offset, the number of its key, and that no record without a key is
    missing."""

    def __init__(self, told: str = "") -> None:
        self.told = told
        self.numbers: dict[str, int] = {}
        self.offsets: set[int] = set()
        self.position = 0
        #: True if records were trimmed since the last one read.
        self.trimmed = True

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        name, number, wanted = parts(value)
        assert (b"none" if key is None else key) == name.encode(), self.told
        assert offset == wanted >= self.position, f"{self.told}: {name}.{number} for {wanted} stands at {offset}"
        before = self.numbers.get(name, -1)
        if name == "none" and not self.trimmed:
            assert number == before + 1, f"{self.told}: {before} is followed by {number} at {offset}"
        assert number > before, f"{self.told}: {name} goes back from {before} to {number}"
        self.trimmed = self.trimmed and name != "none"
        self.numbers[name], self.position = number, offset + 1
        self.offsets.add(offset)


class Rewriting:
    """Appends, with concurrent maintenance."""

    def __init__(self, log: Log, seed: int, tell: Callable[[object], None] = say) -> None:
        self.log = log
        self.random = random.Random(seed)
        self.tell = tell
        self.failed: list[Exception] = []
        self.numbers = check(log, "", "at the start")

    def append(self) -> None:
        """Append some records as one batch."""
        offset = self.log.next_offset
        batch, lines = [], []
        for at in range(offset, offset + self.random.choice([1, 1, 5, 30])):
            key = "none" if self.random.random() < 0.2 else str(self.random.randrange(KEYS))
            number = self.numbers[key] = self.numbers.get(key, -1) + 1
            value = content.make(named(key, number, at), self.random.choice([0, 40, 300]))
            batch.append((value, None if key == "none" else key.encode()))
            lines.append(f"{key} {number} {at}")
        placed = self.log.append_many(batch)
        assert placed.start == offset
        for line in lines:
            self.tell(line)

    def keep_up(self) -> None:
        """Run one maintenance operation."""
        kind = self.random.randrange(5)
        if kind == 0:
            self.log._merge_segments()
        elif kind == 1:
            self.log._recompress(self.random.choice(["zstd", "lz4"]))
        elif kind == 2:
            self.log.maintain(MaintenanceConfig(compact=True, min_dirty_ratio=0, scrub_interval_ms=0))
        else:
            assert self.log._access.appender is not None
            compaction.compact(self.log._access.appender, delete_retention_ms=10**9)

    def keep_up_until(self, done: threading.Event) -> None:
        try:
            while not done.is_set():
                self.keep_up()
        except Exception as error:
            self.failed.append(error)
            sys.stderr.write(f"maintenance failed: {error!r}\n")

    def run(self, steps: Iterable[int], *, trims: bool) -> None:
        """Append with concurrent maintenance, then append the end."""
        done = threading.Event()
        beside = threading.Thread(target=self.keep_up_until, args=(done,), daemon=True)
        beside.start()
        log = self.log
        for step in steps:
            self.append()
            if trims and step % 40 == 39:
                log.trim(max(log.lowest_offset, log.next_offset - 800))
            if step % 10 == 9:
                log.seal()
        done.set()
        beside.join()
        assert not self.failed, str(self.failed)
        log.append(content.make(named("end", 0, log.next_offset)), b"end")
        assert log.verify(), str(log.verify())


def main(directory: str, seed: str, steps: str = "", *options: str) -> None:
    log = Log.open(directory, SETTINGS)
    assert log.recovery, str(log.recovery)
    work = Rewriting(log, int(seed))
    say("ready")
    work.run(range(int(steps)) if steps else itertools.count(), trims="trim" in options)
    log.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
