"""A reader of a log whose writer keeps rewriting segments: reads in every way and checks each record.

    python -m tests.processes.watching DIRECTORY SEED [follow | read] [fall]

It continues until it has seen the key "end". Then it prints, as JSON, the number of records it saw and how often
the log was trimmed meanwhile. It may miss only records that were trimmed. Without `fall` an offset out of range is an
error.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Iterable

from sawlog import Log, LogConfig, Record
from sawlog.batch.read import decode
from sawlog.errors import LogNotFound, OffsetOutOfRange, RecordRemoved

from .launch import say
from .rewriting import Seen

Row = tuple[int, bytes | None, bytes | None]


def rows(records: Iterable[Record]) -> Iterable[Row]:
    return ((record.offset, record.key, record.value) for record in records)


class Watching:
    """One reader of a log and its position."""

    def __init__(self, log: Log, seed: int, options: tuple[str, ...] = ()) -> None:
        self.log = log
        self.random = random.Random(seed)
        self.options = options
        self.seen = Seen(f"seed {seed} {options}")
        self.trims = 0
        #: The first offset that was not read.
        self.position = log.lowest_offset
        ways = {
            "follow": self.follow,
            "scan": self.scan,
            "arrow": self.arrow,
            "read": self.read,
            "fetch": self.fetch,
            "page": self.page,
            "time": self.time,
        }
        self.ways = [ways[name] for name in ways if name in options] or list(ways.values())

    def take(self, row: Row) -> None:
        self.seen.take(*row)
        self.position = row[0] + 1

    def follow(self, most: int) -> None:
        for row in rows(itertools.islice(self.log.follow(self.position, timeout=0.02), most)):
            self.take(row)

    def scan(self, most: int) -> None:
        for row in rows(itertools.islice(self.log.scan(self.position), most)):
            self.take(row)

    def arrow(self, most: int) -> None:
        end = min(self.position + most, self.log.next_offset)
        for batch in self.log.scan_arrow(self.position, end, batch_rows=50):
            for row in zip(*(batch.column(name).to_pylist() for name in ("offset", "key", "value")), strict=True):
                self.take(row)
        self.position = end

    def read(self, most: int) -> None:
        for offset in range(self.position, min(self.position + most, self.log.next_offset)):
            try:
                record = self.log.read(offset)
                self.take((record.offset, record.key, record.value))
            except RecordRemoved as removed:
                assert removed.requested == offset < removed.following
            self.position = offset + 1

    def fetch(self, most: int) -> None:
        page = self.log.fetch(self.position, most * 100)
        for row in rows(decode(page.raw, self.position)):
            self.take(row)
        self.position = page.next_offset

    def page(self, most: int) -> None:
        for row in rows(self.log.scan(self.position, max_bytes=most * 100)):
            self.take(row)

    def time(self, most: int) -> None:
        """Look up a timestamp without reading records."""
        for moment in (0, 2**62):
            at = self.log.offset_at(moment)
            assert 0 <= at <= self.log.next_offset
            assert moment == 0 or at >= self.position

    def step(self) -> None:
        """Read some records in a random way."""
        try:
            self.random.choice(self.ways)(self.random.choice([1, 20, 2000]))
        except OffsetOutOfRange as error:
            assert "fall" in self.options, str(error)
            assert error.requested < error.lowest, str(error)
            self.trims += 1
            self.position, self.seen.trimmed = max(self.position, error.lowest), True

    def run(self) -> None:
        """Read to the end, then check that no remaining record was missed."""
        started = self.position
        while "end" not in self.seen.numbers:
            self.step()
        if not self.trims:
            missed = [r.offset for r in self.log.scan() if r.offset >= started and r.offset not in self.seen.offsets]
            assert not missed, f"missed {missed[:20]}"


def opened(directory: str) -> Log:
    """Open the log, as soon as it exists."""
    while True:
        try:
            return Log.open(directory, LogConfig(max_mapped_segments=4), mode="r")
        except LogNotFound:
            time.sleep(0.005)


def main(directory: str, seed: str, *options: str) -> None:
    log = opened(directory)
    watching = Watching(log, int(seed), options)
    say("ready")
    watching.run()
    assert log.verify(), str(log.verify())
    say(json.dumps({"seen": len(watching.seen.offsets), "trims": watching.trims}))
    log.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
