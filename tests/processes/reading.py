"""Read a log in every way while another process writes to it, and check each record.

    python -m tests.processes.reading DIRECTORY SEED [follow] [fall] [cut]

It reads until the record named "end", then prints as JSON: how often the log was trimmed or truncated meanwhile, the
number of records it saw, a digest of the log's contents at the end, and the number of additional open descriptors.
`follow`: only with `follow`, otherwise a mix of scans, Arrow, single reads and raw batches. Without `fall` (trimmed)
and `cut` (truncated) an offset out of range is an error.

It checks that a record's name contains its own offset and a digest of the content, and that offsets have no gap and no
repeat.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator

from sawlog import Log, LogConfig, Record
from sawlog.batch.read import decode
from sawlog.errors import LogNotFound, OffsetOutOfRange

from . import content
from .launch import say


def digest_of(records: Iterable[Record]) -> str:
    """Return a digest of offsets and values."""
    made = hashlib.sha256()
    for record in records:
        made.update(b"%d:%b\n" % (record.offset, record.value or b""))
    return made.hexdigest()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Reading:
    """One reader of a log and its position."""

    def __init__(self, log: Log, seed: int, options: tuple[str, ...]) -> None:
        self.log = log
        self.random = random.Random(seed)
        self.options = options
        self.position = log.lowest_offset
        self.seen = self.trimmed = self.cut = 0
        self.ended = False

    def take(self, offset: int, value: bytes | None) -> None:
        """Check one record."""
        assert offset == self.position, f"got offset {offset}, expected {self.position}"
        name = content.name_of(value)
        if name == "end":
            self.ended = True
        else:
            assert int(name.partition(".")[0]) == offset, f"offset {offset} holds the record {name}"
        self.position += 1
        self.seen += 1

    def follow(self, most: int) -> Iterator[tuple[int, bytes | None]]:
        for record in itertools.islice(self.log.follow(self.position, timeout=0.05), most):
            yield record.offset, record.value

    def scan(self, most: int) -> Iterator[tuple[int, bytes | None]]:
        for record in itertools.islice(self.log.scan(self.position), most):
            yield record.offset, record.value

    def arrow(self, most: int) -> Iterator[tuple[int, bytes | None]]:
        for batch in self.log.scan_arrow(self.position, self.position + most, batch_rows=50):
            yield from zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)

    def read(self, most: int) -> Iterator[tuple[int, bytes | None]]:
        for offset in range(self.position, min(self.position + most, self.log.next_offset)):
            record = self.log.read(offset)
            yield record.offset, record.value

    def fetch(self, most: int) -> Iterator[tuple[int, bytes | None]]:
        start = self.position
        page = self.log.fetch(start, most * 100)
        records = decode(page.raw, start)
        assert list(page.records()) == records
        for record in records:
            yield record.offset, record.value

    def short_scan(self, most: int) -> Iterator[tuple[int, bytes | None]]:
        for record in self.log.scan(self.position, self.position + most, max_bytes=most * 50):
            yield record.offset, record.value

    def step(self) -> None:
        """Read some records in a random way."""
        ways = [self.follow]
        if "follow" not in self.options:
            ways += [self.scan, self.short_scan, self.arrow, self.read, self.fetch]
        try:
            for offset, value in self.random.choice(ways)(self.random.choice([1, 20, 2000])):
                self.take(offset, value)
        except OffsetOutOfRange as error:
            self.resume(error)

    def resume(self, error: OffsetOutOfRange) -> None:
        """Continue at the nearest existing record after the current position was trimmed or truncated."""
        if error.requested < error.lowest:
            assert "fall" in self.options, str(error)
            self.trimmed += 1
            self.position = error.lowest
        else:
            assert "cut" in self.options, str(error)
            self.cut += 1
            self.position = max(min(error.next, self.log.next_offset), self.log.lowest_offset)


def opened(directory: str) -> Log:
    """Open the log, as soon as it exists."""
    while True:
        try:
            return Log.open(directory, LogConfig(max_mapped_segments=4), mode="r")
        except LogNotFound:
            time.sleep(0.005)


def main(directory: str, seed: str, *options: str) -> None:
    log = opened(directory)
    reading = Reading(log, int(seed), options)
    before = descriptors()
    say("ready")
    while not reading.ended:
        reading.step()
    report = log.verify()
    assert report, str(report)
    summary = {
        "seen": reading.seen,
        "position": reading.position,
        "trimmed": reading.trimmed,
        "cut": reading.cut,
        "digest": digest_of(log.scan()),
        "descriptors": descriptors() - before,
    }
    say(json.dumps(summary))
    log.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
