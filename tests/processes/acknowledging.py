"""Writers that print every acknowledgement until they are killed.

    python -m tests.processes.acknowledging DIRECTORY DURABILITY

For each input line "<round> <form>" it forks a writer, which prints "ready <process id>" and appends until it is
killed; then it prints "dead <exit code>". It forks before anything is opened, which saves the time of starting Python.

Records are named "<round>.<number>.<first>-<last>", numbered in the order of the calls; first and last are the numbers
of the records of one batch, which is stored completely or not at all. The writer prints "<offset> <name>" for each
acknowledged record.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from sawlog import Interval, Log, LogConfig
from sawlog.config import Durability

from . import content
from .launch import say

POLICIES: dict[str, Durability] = {"always": "always", "interval": Interval(ms=3, bytes=3000), "os": "os"}
SETTINGS = LogConfig(segment_bytes=30_000, index_interval_bytes=500, checkpoint_interval_ms=5)


class Acknowledging:
    """Appends numbered records to a log."""

    def __init__(self, log: Log, round_: int) -> None:
        self.log = log
        self.round = round_
        self.random = random.Random(round_)
        self.numbers = itertools.count()

    def batch(self, count: int) -> list[tuple[str, bytes]]:
        """Return names and values of the next records, for one batch."""
        numbers = list(itertools.islice(self.numbers, count))
        names = [f"{self.round}.{number}.{numbers[0]}-{numbers[-1]}" for number in numbers]
        return [(name, content.make(name, self.random.choice([0, 100, 2000]))) for name in names]

    def singles(self, count: int) -> list[tuple[str, bytes]]:
        """Return names and values of the next records, for one batch each."""
        return list(itertools.chain.from_iterable(self.batch(1) for _ in range(count)))

    @staticmethod
    def acknowledged(offsets: Iterable[int], records: list[tuple[str, bytes]]) -> None:
        for offset, (name, _) in zip(offsets, records, strict=True):
            say(f"{offset} {name}")

    def append(self) -> None:
        records = self.batch(1)
        self.acknowledged([self.log.append(records[0][1])], records)

    def append_many(self) -> None:
        records = self.batch(self.random.randrange(1, 12))
        self.acknowledged(self.log.append_many([value for _, value in records]), records)

    def append_arrow(self) -> None:
        records = self.singles(self.random.randrange(1, 40))
        table = pa.table({"value": pa.array([value for _, value in records], pa.binary())})
        self.acknowledged(self.log.append_arrow(table), records)

    def append_stream(self) -> None:
        records = self.batch(1)
        value = records[0][1]
        chunks: Iterator[bytes] = (value[at : at + 64] for at in range(0, len(value), 64))
        self.acknowledged([self.log.append_stream(chunks)], records)

    def writer(self) -> None:
        """Append several batches with a writer; `flush` acknowledges them."""
        records = self.singles(30)
        first = self.log.next_offset
        with self.log.writer(batch_bytes=700) as writer:
            for _, value in records:
                writer.append(value)
            writer.flush()
            assert writer._last.stop == first + 30
        self.acknowledged(range(first, first + 30), records)

    def append_async(self) -> None:
        async def one(records: list[tuple[str, bytes]]) -> None:
            self.acknowledged([await self.log.append_async(records[0][1])], records)

        async def some() -> None:
            await asyncio.gather(*(one(self.batch(1)) for _ in range(25)))

        asyncio.run(some())


def write(directory: str, durability: str, round_: int, form: str) -> None:
    log = Log.open(directory, SETTINGS.with_(durability=POLICIES[durability]))
    call: Callable[[], None] = getattr(Acknowledging(log, round_), form)
    say(f"ready {os.getpid()}")
    while True:
        call()


def main(directory: str, durability: str) -> None:
    for line in sys.stdin:
        round_, form = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                write(directory, durability, int(round_), form)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(1)
        _, status = os.waitpid(pid, 0)
        say(f"dead {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
