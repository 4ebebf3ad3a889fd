"""A writer that appends in every way, rotates all the time, and optionally trims and truncates.

    python -m tests.processes.writing DIRECTORY SEED STEPS [trim] [truncate] [split] [wait]

A record's name is "<offset>.<generation>": a record that replaces a truncated one has a higher generation. After STEPS
steps it appends a record named "end" and prints a digest of the log. `split` makes recovery treat every segment as a
large one. `wait` keeps appending until it is killed. It prints "ready" once the log is open.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable

import pyarrow as pa

from sawlog import Interval, Log, LogConfig
from sawlog.log import recovery

from . import content
from .launch import say
from .reading import digest_of

SETTINGS = LogConfig(segment_bytes=20_000, index_interval_bytes=500, checkpoint_interval_ms=10)


class Writing:
    """Random appends to one log."""

    def __init__(self, log: Log, seed: int) -> None:
        self.log = log
        self.random = random.Random(seed)
        self.generation = seed * 1_000_000

    def values(self, count: int) -> list[bytes]:
        """Return the next records, each with its offset in its name."""
        first = self.log.next_offset
        return [
            content.make(f"{offset}.{self.generation}", self.random.choice([0, 30, 200, 3000]))
            for offset in range(first, first + count)
        ]

    def append(self) -> None:
        self.log.append(*self.values(1))

    def append_many(self) -> None:
        self.log.append_many(self.values(self.random.randrange(1, 5)))

    def append_stream(self) -> None:
        (value,) = self.values(1)
        self.log.append_stream(value[at : at + 50] for at in range(0, len(value), 50))

    def append_arrow(self) -> None:
        self.log.append_arrow(pa.table({"value": pa.array(self.values(self.random.randrange(1, 60)), pa.binary())}))

    def write(self) -> None:
        with self.log.writer(batch_bytes=500) as writer:
            for value in self.values(20):
                writer.append(value)

    def trim(self) -> None:
        self.log.trim(max(self.log.next_offset - self.random.randrange(50, 800), self.log.lowest_offset))

    def truncate(self) -> None:
        self.generation += 1
        self.log.truncate(max(self.log.next_offset - self.random.randrange(1, 120), self.log.lowest_offset))


def main(directory: str, seed: str, steps: str, *options: str) -> None:
    if "split" in options:
        recovery.SMALL_BYTES = 1
    durability = random.Random(int(seed)).choice(["os", Interval(2, 3000), "always"])
    log = Log.open(directory, SETTINGS.with_(durability=durability))
    assert log.recovery, str(log.recovery)
    writing = Writing(log, int(seed))
    say("ready")
    kinds: list[Callable[[], None]] = [
        writing.append,
        writing.append_many,
        writing.append_stream,
        writing.append_arrow,
        writing.write,
        *([writing.trim] if "trim" in options else []),
        *([writing.truncate] if "truncate" in options else []),
    ]
    for _ in itertools.count() if "wait" in options else range(int(steps)):
        writing.random.choice(kinds)()
    log.append(content.make("end"))
    report = log.verify()
    assert report, str(report)
    say(digest_of(log.scan()))
    log.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
