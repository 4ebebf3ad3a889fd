"""The log against a plain dictionary: any operations in any order, on files and in memory.

Hypothesis chooses the operations. After each of them the ends of the log are compared with the model, and sometimes
everything that can be read. The log is reopened after a clean close and as after a kill: the directory is copied while
the log is open, may lose its caches, and may get a torn tail. On failure the shortest sequence of operations is printed
as a program."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sawlog import LogConfig, Producer, Record
from sawlog.batch.arrow import HEADER_TYPE
from sawlog.batch.build import encode
from sawlog.batch.read import decode
from sawlog.errors import OffsetMismatch, OffsetOutOfRange, RecordTooLarge, StreamAborted

from .places import FilePlace, MemoryPlace, Place, named

#: (value, key, headers, timestamp)
Row = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]

SMALL = st.binary(max_size=12)
ROWS: st.SearchStrategy[Row] = st.tuples(
    st.one_of(st.none(), SMALL, st.integers(0, 60).map(lambda size: b"v" * size)),
    st.one_of(st.none(), SMALL),
    st.lists(st.tuples(st.sampled_from(["", "h", "ü"]), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
    st.integers(0, 40),
)
BATCHES = st.lists(ROWS, min_size=1, max_size=6)
CODECS = st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"])
CONFIGS = st.builds(
    LogConfig,
    segment_bytes=st.integers(200, 2000),
    segment_overflow_bytes=st.sampled_from([None, 0, 300]),
    durability=st.just("os"),
    compression=CODECS,
    max_mapped_segments=st.sampled_from([0, 1, 3, None]),
    index_interval_bytes=st.sampled_from([0, 100, 500, 4096]),
    max_index_bytes=st.sampled_from([30, 200, 10_000]),
    segment_age_ms=st.sampled_from([None, 10]),
)
#: Positions in the log, as a share of it: both ends are likely.
SHARES = st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1))


class LogMachine(RuleBasedStateMachine):
    """A log and its expected content."""

    place: Place

    def make_place(self) -> Place:
        raise NotImplementedError

    @initialize(config=CONFIGS, start=st.sampled_from([0, 42]))
    def begin(self, config: LogConfig, start: int) -> None:
        self.place = self.make_place()
        self.config = config
        self.log = self.place.open(config, initial_offset=start)
        self.records: dict[int, Row] = {}
        self.lowest = self.next = start
        self.producer_id = self.sequence = 0
        self.sent: tuple[list[Row], int, range] | None = None

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.place.close()

    # --- the model

    def took(self, rows: list[Row], placed: range) -> None:
        assert placed == range(self.next, self.next + len(rows))
        self.records.update(zip(placed, rows, strict=True))
        self.next = placed.stop

    def at(self, share: float) -> int:
        return self.lowest + round(share * (self.next - self.lowest))

    def expected(self, start: int, end: int) -> list[Record]:
        return [Record(*self.records[i][:3], timestamp=self.records[i][3], offset=i) for i in range(start, end)]

    def fits(self, rows: list[Row]) -> bool | None:
        """Return True if a batch fits into a segment; None if it depends on the compression."""
        plain, packed = len(encode(rows)), len(encode(rows, compression=self.config.compression))
        if plain <= self.config.segment_bytes:
            return True
        return False if packed > self.config.segment_bytes else None

    def append(self, rows: list[Row], call: Any) -> None:
        fits = self.fits(rows)
        try:
            placed = call()
        except RecordTooLarge:
            assert fits is not True
            assert self.log.next_offset == self.next
        else:
            assert fits is not False
            self.took(rows, placed)

    # --- appending

    @rule(row=ROWS)
    def append_one(self, row: Row) -> None:
        self.took([row], range(offset := self.log.append(*row), offset + 1))

    @rule(rows=BATCHES, expect=st.booleans())
    def append_many(self, rows: list[Row], expect: bool) -> None:
        self.append(rows, lambda: self.log.append_many(rows, self.next if expect else None))

    @rule(row=ROWS, wrong=st.sampled_from([-1, 1, 100]))
    def append_with_a_wrong_expectation(self, row: Row, wrong: int) -> None:
        before = self.place.files()
        with pytest.raises(OffsetMismatch):
            self.log.append(*row, expect_offset=self.next + wrong)
        with pytest.raises(OffsetMismatch):
            self.log.append_stream([b"x"], expect_offset=self.next + wrong)
        assert self.place.files() == before

    @rule(rows=BATCHES)
    def append_arrow(self, rows: list[Row]) -> None:
        values, keys, headers, stamps = zip(*rows, strict=True)
        table = pa.table(
            {
                "value": pa.array(values, pa.binary()),
                "key": pa.array(keys, pa.binary()),
                "headers": pa.array([list(pairs) for pairs in headers], HEADER_TYPE),
                "timestamp": pa.array(stamps, pa.int64()),
            }
        )
        self.took(rows, self.log.append_arrow(table))

    @rule(batches=st.lists(st.tuples(st.lists(ROWS, min_size=1, max_size=2), CODECS), min_size=1, max_size=6))
    def append_batches(self, batches: list[tuple[list[Row], str]]) -> None:
        raw = [encode(rows, compression=codec) for rows, codec in batches]
        rows = [row for some, _ in batches for row in some]
        largest = max(map(len, raw))
        try:
            placed = self.log.append_batches(b"".join(raw))
        except RecordTooLarge:
            assert largest > self.config.segment_bytes
        else:
            assert largest <= self.config.segment_bytes
            self.took(rows, placed)

    @rule(row=ROWS, cuts=st.lists(st.integers(0, 60), max_size=4))
    def append_stream(self, row: Row, cuts: list[int]) -> None:
        value, key, headers, stamp = row
        value = value or b""
        points = [0, *sorted(min(cut, len(value)) for cut in cuts), len(value)]
        chunks = [value[a:b] for a, b in pairwise(points)]
        try:
            offset = self.log.append_stream(chunks, key, headers=headers, timestamp=stamp)
        except RecordTooLarge:
            assert self.log.next_offset == self.next
        else:
            self.took([(value, key, headers, stamp)], range(offset, offset + 1))

    @rule(good=st.integers(0, 3))
    def append_stream_that_breaks(self, good: int) -> None:
        def chunks() -> Any:
            for _ in range(good):
                yield b"x" * 20
            raise ConnectionError

        state = self.log.next_offset, self.log.size_bytes
        with pytest.raises((StreamAborted, RecordTooLarge)):
            self.log.append_stream(chunks())
        assert (self.log.next_offset, self.log.size_bytes) == state

    @rule(rows=BATCHES, batch_bytes=st.sampled_from([1, 150, 10_000]))
    def append_through_a_writer(self, rows: list[Row], batch_bytes: int) -> None:
        with self.log.writer(batch_bytes) as writer:
            for row in rows:
                writer.append(*row)
        self.took(rows, range(self.next, self.log.next_offset))

    @rule(rows=BATCHES)
    def append_from_tasks(self, rows: list[Row]) -> None:
        async def main() -> list[int]:
            return await asyncio.gather(*(self.log.append_async(*row) for row in rows))

        offsets = asyncio.run(main())
        assert offsets == sorted(offsets)
        self.took(rows, range(offsets[0], offsets[-1] + 1))

    @rule(rows=st.lists(ROWS, min_size=1, max_size=2), raw=st.booleans())
    def send_as_a_producer(self, rows: list[Row], raw: bool) -> None:
        if self.fits(rows) is not True:
            return
        producer = Producer(self.producer_id, 0, self.sequence)
        if raw:
            placed = self.log.append_batches(encode(rows, producer=producer))
        else:
            placed = self.log.append_many(rows, producer=producer)
        self.took(rows, placed)
        self.sent = rows, self.sequence, placed
        self.sequence += len(rows)

    @precondition(lambda self: self.sent is not None)
    @rule(raw=st.booleans())
    def send_again(self, raw: bool) -> None:
        assert self.sent is not None
        rows, sequence, placed = self.sent
        if raw:
            assert self.log.append_batches(encode(rows, producer=Producer(self.producer_id, 0, sequence))) == placed
        else:
            assert self.log.append_many(rows, producer=Producer(self.producer_id, 0, sequence)) == placed

    # --- dropping

    @rule(share=SHARES)
    def truncate(self, share: float) -> None:
        offset = self.at(share)
        assert self.log.truncate(offset) == self.next - offset
        for i in range(offset, self.next):
            del self.records[i]
        self.next = offset
        if self.sent is not None and self.sent[2].stop > offset:
            self.producer_id, self.sequence, self.sent = self.producer_id + 1, 0, None

    @rule(share=SHARES)
    def trim(self, share: float) -> None:
        offset = self.at(share)
        assert self.log.trim(offset) == offset - self.lowest
        self.lowest = offset

    @rule()
    def expire_everything(self) -> None:
        assert self.log.remove_expired(0) == self.next - self.lowest
        self.lowest = self.next

    @rule()
    def expire_nothing(self) -> None:
        assert self.log.remove_expired(10**15) == 0

    @rule()
    def seal(self) -> None:
        self.log.seal()

    # --- reopening

    @rule(config=CONFIGS)
    def reopen(self, config: LogConfig) -> None:
        self.log.close()
        self.config = config
        self.log = self.place.open(config)
        assert self.log.recovery.clean
        assert self.log.recovery.findings == []

    @rule(
        config=CONFIGS,
        lost=st.sets(st.sampled_from(["index", "timeindex", "producers", "checkpoint"])),
        tail=st.sampled_from([b"", b"", b"\0", b"torn", b"\0" * 100, b"\xff" * 70]),
    )
    def reopen_after_a_kill(self, config: LogConfig, lost: set[str], tail: bytes) -> None:
        if self.lowest != self.log.segments[0].base_offset:
            lost = lost - {"checkpoint"}  # the checkpoint knows the start of the log
        if "producers" in lost and self.sent and self.sent[2].start < self.log.segments[0].base_offset:
            # neither its batches nor the producers file are left: the log does not know the producer
            self.producer_id, self.sequence, self.sent = self.producer_id + 1, 0, None
        left_behind = self.place.copy()
        self.place.close()
        if isinstance(self.place, FilePlace):
            shutil.rmtree(self.place.path)
        self.place = left_behind
        for name in left_behind.names():
            if name.rpartition(".")[2] in lost:
                left_behind.remove(name)
        if tail:
            left_behind.extend(named(left_behind.bases()[-1]), tail)
        self.config = config
        self.log = left_behind.open(config)
        assert bool(self.log.recovery)
        assert self.log.recovery.truncated_bytes == len(tail)

    # --- reading

    @rule(share=SHARES)
    def read_one(self, share: float) -> None:
        offset = self.at(share)
        if offset < self.next:
            assert [self.log.read(offset)] == self.expected(offset, offset + 1)
            assert self.log[offset - self.next] == self.log.read(offset)
        for outside in (self.lowest - 1, self.next):
            with pytest.raises(OffsetOutOfRange) as caught:
                self.log.read(outside)
            assert (caught.value.lowest, caught.value.next) == (self.lowest, self.next)

    @rule(one=SHARES, other=SHARES)
    def read_a_range(self, one: float, other: float) -> None:
        start, end = sorted((self.at(one), self.at(other)))
        expected = self.expected(start, end)
        assert list(self.log.scan(start, end)) == expected
        assert self.log[start:end] == expected
        offsets = [row for batch in self.log.scan_arrow(start, end) for row in batch["offset"].to_pylist()]
        assert offsets == list(range(start, end))

    @rule(share=SHARES, max_bytes=st.sampled_from([1, 150, 500, 10**6]))
    def fetch(self, share: float, max_bytes: int) -> None:
        start = self.at(share)
        found = self.log.fetch(start, max_bytes)
        assert decode(found.raw, start, found.next_offset) == self.expected(start, found.next_offset)
        assert (found.next_offset > start) == (start < self.next)
        paged = list(self.log.scan(start, max_bytes=max_bytes))
        assert paged == self.expected(start, found.next_offset)

    @rule(share=SHARES)
    def follow(self, share: float) -> None:
        start = self.at(share)
        assert list(self.log.follow(start, timeout=0)) == self.expected(start, self.next)

    @rule(stamp=st.integers(0, 41))
    def find_a_time(self, stamp: int) -> None:
        expected = next((i for i in range(self.lowest, self.next) if self.records[i][3] >= stamp), self.next)
        assert self.log.offset_at(stamp) == expected

    @rule()
    def look_at_everything(self) -> None:
        assert list(self.log) == self.expected(self.lowest, self.next)
        report = self.log.verify()
        assert report.ok, str(report)
        beside = self.place.open(self.config, mode="r")
        assert list(beside) == self.expected(self.lowest, self.next)
        assert (beside.lowest_offset, beside.next_offset) == (self.lowest, self.next)
        beside.close()

    # --- always

    @invariant()
    def edges_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.lowest_offset, log.next_offset, len(log)) == (self.lowest, self.next, self.next - self.lowest)
        assert log.durable_offset <= log.written_offset <= log.next_offset
        segments = log.segments
        assert segments[0].base_offset <= self.lowest
        assert [segment.next_offset for segment in segments[:-1]] == [segment.base_offset for segment in segments[1:]]
        assert [segment.sealed for segment in segments] == [True] * (len(segments) - 1) + [False]
        assert log.size_bytes == sum(segment.size_bytes for segment in segments)
        most = self.config.max_mapped_segments
        assert most is None or sum(segment.mapped for segment in segments[:-1]) <= most


class MemoryMachine(LogMachine):
    def make_place(self) -> Place:
        return MemoryPlace()


class FileMachine(LogMachine):
    def make_place(self) -> Place:
        self.folder = tempfile.mkdtemp()
        self.syncs = mock.patch.multiple(os, fsync=os.fstat, fdatasync=os.fstat)
        self.syncs.start()
        return FilePlace(Path(self.folder) / "log")

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.syncs.stop()
            shutil.rmtree(self.folder)


def budget(examples: int, phases: tuple[Phase, ...] = tuple(Phase)) -> settings:
    # `explore` multiplies the examples; the default profile repeats the same ones
    many = settings().max_examples // 100
    return settings(
        max_examples=examples * max(many, 1),
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=phases,
    )


class LongMemoryMachine(MemoryMachine):
    """The same machine with more steps."""


class LongFileMachine(FileMachine):
    """The same machine with more steps."""


#: Looking for a shorter example takes minutes on files; what fails there mostly fails in memory, too.
UNSHORTENED = (Phase.explicit, Phase.reuse, Phase.generate)

TestInMemory = pytest.mark.costly(MemoryMachine.TestCase)  # a machine needs many steps to get anywhere
TestInMemory.settings = budget(15)
TestOnFiles = pytest.mark.costly(FileMachine.TestCase)  # the same
TestOnFiles.settings = budget(8, UNSHORTENED)
TestInMemoryAtLength = pytest.mark.slow(LongMemoryMachine.TestCase)
TestInMemoryAtLength.settings = budget(120)
TestOnFilesAtLength = pytest.mark.slow(LongFileMachine.TestCase)
TestOnFilesAtLength.settings = budget(40, UNSHORTENED)
