"""Random logs with keys, a model of their contents after compaction, and checks of every way to read them.

The model is a plain list of `Entry`, one for each record that was appended. It knows nothing of batches, segments and
tables of keys: of all entries with the same key below an offset, the last one stays; entries without a key stay.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from sawlog import Log, Producer, Record
from sawlog.batch.arrow import COLUMNS, HEADER_TYPE
from sawlog.batch.header import scan
from sawlog.errors import RecordRemoved
from sawlog.log.appender import Appender

from ..batch.clients import CLIENTS, Seen, seen
from .transactional import batch, fetched

#: Timestamps are around this one, in any order.
T = 1_700_000_000_000
#: Longer than any test runs: tombstones stay.
LONG_MS = 10**12


@dataclass(frozen=True)
class Entry:
    """One record as it was appended."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def fields(self) -> Seen:
        return self.offset, self.timestamp, self.timestamp_type, self.key, self.value, self.headers


def entry(record: Record) -> Entry:
    return Entry(*seen(record))


def appender(log: Log) -> Appender:
    """Return the appender, for calls with settings that `Log` does not offer."""
    made = log._access.appender
    assert made is not None
    return made


def compacted(entries: Sequence[Entry], end: int, lowest: int = 0) -> list[Entry]:
    """Return the entries that remain after compaction of everything below `end`; tombstones stay."""
    last = {e.key: e.offset for e in entries if e.offset < end}
    return [e for e in entries if e.offset >= lowest and (e.offset >= end or e.key is None or last[e.key] == e.offset)]


class Filling:
    """Random appends of all kinds to one log, and a model of its contents."""

    def __init__(self, log: Log, rng: random.Random, keys: int = 40, sizes: Sequence[int] = (0, 5, 60, 300)) -> None:
        self.log = log
        self.random = rng
        self.keys = keys
        self.sizes = sizes
        self.entries: list[Entry] = []
        self.made = 0
        self.sequences: dict[int, int] = {}
        self.first_producer = 0
        #: (first offset, offset of the marker) of each transaction.
        self.transactions: list[tuple[int, int]] = []

    def record(self) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]:
        """Return the next record: (value, key, headers, timestamp)."""
        rng = self.random
        self.made += 1
        key = rng.choice([None, b"", b"k%d" % rng.randrange(self.keys), b"long" * 9 + b"%d" % rng.randrange(self.keys)])
        value = None if rng.random() < 0.1 else b"%d." % self.made + rng.randbytes(rng.choice(self.sizes))
        headers = [("h", b"x"), ("", None)] if rng.random() < 0.1 else []
        return value, key, headers, T + self.made + rng.choice([0, 0, 0, -500, 500])

    def many(self) -> list[Any]:
        return [self.record() for _ in range(self.random.choice([1, 2, 7, 20]))]

    def took(self, placed: range) -> None:
        """Add the placed records to the model."""
        self.entries.extend(entry(r) for r in self.log.scan(placed.start, placed.stop))

    def append(self) -> None:
        at = self.log.append(*self.record())
        self.took(range(at, at + 1))

    def append_many(self) -> None:
        self.took(self.log.append_many(self.many()))

    def produce(self) -> None:
        number, records = self.first_producer + self.random.randrange(3), self.many()
        sequence = self.sequences.get(number, 0)
        self.sequences[number] = sequence + len(records)
        self.took(self.log.append_many(records, producer=Producer(number, 0, sequence)))

    def append_arrow(self) -> None:
        values, keys, headers, times = zip(*self.many(), strict=True)
        columns = {
            "value": pa.array(values, pa.binary()),
            "key": pa.array(keys, pa.binary()),
            "headers": pa.array(headers, HEADER_TYPE),
            "timestamp": pa.array(times, pa.int64()),
        }
        self.took(self.log.append_arrow(pa.table(columns)))

    def write(self) -> None:
        start = self.log.next_offset
        with self.log.writer(batch_bytes=300) as writer:
            for value, key, headers, timestamp in self.many():
                writer.append(value, key, headers, timestamp)
        self.took(range(start, self.log.next_offset))

    def mark(self) -> None:
        """Append a transaction and commit or abort it."""
        self.transact(commit=self.random.random() < 0.6)

    def transact(self, *, commit: bool) -> None:
        producer = 9000 + self.random.randrange(2)
        keys = [b"k%d" % self.random.randrange(self.keys) for _ in range(3)]
        values = [b"t%d" % self.made] * 3
        placed = self.log.append_batches(batch(values, producer, keys=keys, timestamp=T + self.made))
        marker = self.log.append_marker(producer, 0, commit=commit)
        self.transactions.append((placed.start, marker))
        if commit:
            self.took(placed)
        else:
            assert list(self.log.scan(placed.start, placed.stop)) == []

    def fill(self, count: int) -> None:
        """Append about that many records."""
        end = len(self.entries) + count
        kinds: list[Callable[[], None]] = [
            self.append,
            self.append_many,
            self.append_many,
            self.produce,
            self.append_arrow,
            self.write,
            self.mark,
            self.log.seal,
        ]
        while len(self.entries) < end:
            with self.log._hold():  # read back before maintenance can remove any of it
                self.random.choice(kinds)()

    def truncate(self, offset: int) -> None:
        for first, marker in self.transactions:
            if first < offset <= marker:  # without the marker the transaction would be open again
                offset = max(first, self.log.lowest_offset)
        self.log.truncate(offset)
        self.transactions = [each for each in self.transactions if each[1] < offset]
        self.entries = [e for e in self.entries if e.offset < offset]
        self.first_producer += 10  # the next sequence of the old producers is not tested here

    def leave(self, entries: Iterable[Entry]) -> None:
        """Replace the model after maintenance."""
        self.entries = list(entries)


def check_everything(log: Log, entries: Sequence[Entry]) -> None:
    """Check that every way to read returns exactly these records, that other offsets raise with the next one, and that
    `verify` finds nothing."""
    wanted = [e.fields for e in entries]
    assert [seen(r) for r in log.scan()] == wanted
    report = log.verify()
    assert report, str(report)
    assert report.records >= len(wanted)
    check_single_reads(log, entries)
    check_arrow(log, wanted)
    check_raw(log, entries)
    check_times(log, entries)


def check_single_reads(log: Log, entries: Sequence[Entry]) -> None:
    there = {e.offset: e for e in entries}
    following = log.next_offset
    for offset in reversed(range(log.lowest_offset, log.next_offset)):
        if offset in there:
            assert seen(log.read(offset)) == there[offset].fields
            following = offset
        else:
            with pytest.raises(RecordRemoved) as raised:
                log.read(offset)
            assert (raised.value.requested, raised.value.following) == (offset, following)


def check_arrow(log: Log, wanted: Sequence[Seen]) -> None:
    rows = []
    for views in (False, True):
        found = [batch.to_pylist() for batch in log.scan_arrow(columns=COLUMNS, views=views)]
        rows.append([row for batch in found for row in batch])
    assert rows[0] == rows[1]
    assert [(row["offset"], row["key"], row["value"]) for row in rows[0]] == [(w[0], w[3], w[4]) for w in wanted]


def check_raw(log: Log, entries: Sequence[Entry]) -> None:
    """Check that fetched batches join without a gap, and that Kafka's clients can read each of them."""
    raw, at, pages = bytearray(), log.lowest_offset, 0
    while at < log.next_offset:
        page = log.fetch(at, 5000)
        assert page.next_offset > at
        raw += page.raw
        at, pages = page.next_offset, pages + 1
    wanted = [e.fields for e in entries]
    assert [seen(r) for r in fetched(log, 5000)] == wanted
    headers = scan(bytes(raw))
    assert [a.last_offset + 1 for a in headers[:-1]] == [b.base_offset for b in headers[1:]]
    by_offset = {w[0]: w for w in wanted}
    for number, header in enumerate(headers):
        data = bytes(raw[header.position : header.position + header.size_bytes])
        expected = [by_offset[o] for o in range(header.base_offset, header.last_offset + 1) if o in by_offset]
        if header.is_transactional and not expected:
            continue  # a marker, or aborted
        client = CLIENTS[number % len(CLIENTS)]
        assert [r for r in client.decode(data) if r[0] >= log.lowest_offset] == expected, client.name


def check_times(log: Log, entries: Sequence[Entry]) -> None:
    times = sorted({e.timestamp for e in entries})
    for time in [*times[:: max(len(times) // 20, 1)], times[-1] + 1] if times else []:
        expected = next((e.offset for e in entries if e.timestamp >= time), log.next_offset)
        assert log.offset_at(time) == expected
