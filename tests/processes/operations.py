"""Every writing operation of a log with its promise, for sweeps that make each step of it fail.

A `Promise` records what the log has acknowledged. An operation is a function of (log, promise) that does one thing and
records its outcome. `check_*` test whether a log, during or after a fault, still keeps the promise.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pyarrow as pa

from sawlog import Log, LogConfig, Record
from sawlog.batch.build import encode
from sawlog.errors import LogFailed

from . import content

#: Timestamp of all records: old, so that they can expire, and constant, so that sizes repeat.
OLD_MS = 1_000_000_000_000


@dataclass
class Promise:
    """Acknowledged records, and records that may be missing because an operation was dropping them."""

    kept: dict[int, bytes] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)
    #: Offsets from here on may be gone or reused: a truncation was requested.
    cut_from: int = 2**62
    #: Offsets below this may be gone: a trim was requested.
    trimmed_below: int = 0
    #: Prefix of the names of all later records.
    prefix: str = "r"
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def value(self, size: int = 40) -> bytes:
        """A new value that was never sent before."""
        made = content.make(f"{self.prefix}{next(self._numbers)}", size)
        self.sent.add(made)
        return made

    def acknowledge(self, offset: int, *values: bytes) -> None:
        """Record that the log has stored these values from `offset` on."""
        for at, value in enumerate(values, offset):
            assert at not in self.kept or at >= self.cut_from, f"offset {at} was given twice"
            self.kept[at] = value

    def cut(self, log: Log, offset: int) -> None:
        """Truncate and expect the records from `offset` on to be gone."""
        self.cut_from = min(self.cut_from, offset)
        log.truncate(offset)
        self.kept = {at: value for at, value in self.kept.items() if at < offset}
        self.cut_from = 2**62
        assert log.next_offset == offset

    def trim(self, log: Log, offset: int, drop: Callable[[], object]) -> None:
        """Drop everything below `offset` in some way."""
        self.trimmed_below = offset
        drop()
        self.kept = {at: value for at, value in self.kept.items() if at >= offset}
        assert log.lowest_offset == offset

    def check_records(self, found: list[Record]) -> None:
        """Check that these records include all promised ones, in order and without gaps, and none that was never
        sent."""
        offsets = [record.offset for record in found]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))) if offsets else True
        for record in found:
            assert record.value in self.sent, f"offset {record.offset} holds what nobody sent"
        there = {record.offset: record.value for record in found}
        for offset, value in self.kept.items():
            if self.trimmed_below <= offset < self.cut_from:
                assert offset in there, f"the acknowledged offset {offset} is gone"
            if offset in there and offset < self.cut_from:
                assert there[offset] == value, f"offset {offset} holds another record than was acknowledged"

    def check_reading(self, log: Log) -> None:
        """Check that all promised records can be read, by scans and one by one."""
        self.check_records(list(log.scan()))
        for offset, value in self.kept.items():
            if max(self.trimmed_below, log.lowest_offset) <= offset < self.cut_from:
                assert log.read(offset).value == value

    def try_append(self, log: Log) -> bool:
        """Append once more: the log accepts it or raises that it has failed."""
        value = self.value()
        try:
            self.acknowledge(log.append(value), value)
        except LogFailed:
            return False
        return True


# --- the operations


def append(log: Log, promise: Promise) -> None:
    value = promise.value()
    promise.acknowledge(log.append(value, b"key", timestamp=OLD_MS), value)


def append_with_rotation(log: Log, promise: Promise) -> None:
    for _ in range(3):
        value = promise.value(300)
        promise.acknowledge(log.append(value, timestamp=OLD_MS), value)


def append_many(log: Log, promise: Promise) -> None:
    values = [promise.value() for _ in range(5)]
    placed = log.append_many([(value, None, (), OLD_MS) for value in values])
    promise.acknowledge(placed.start, *values)


def append_arrow(log: Log, promise: Promise) -> None:
    values = [promise.value(200) for _ in range(12)]
    placed = log.append_arrow(pa.table({"value": pa.array(values, pa.binary())}))
    promise.acknowledge(placed.start, *values)


def append_batches(log: Log, promise: Promise) -> None:
    values = [promise.value(200) for _ in range(8)]
    raw = b"".join(encode([(value, None, (), OLD_MS)]) for value in values)
    promise.acknowledge(log.append_batches(raw).start, *values)


def append_stream(log: Log, promise: Promise) -> None:
    value = promise.value(300)
    promise.acknowledge(log.append_stream(value[at : at + 100] for at in range(0, len(value), 100)), value)


def append_stream_async(log: Log, promise: Promise) -> None:
    value = promise.value(300)

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(value), 100):
            yield value[at : at + 100]

    promise.acknowledge(asyncio.run(log.append_stream_async(chunks())), value)


def append_async(log: Log, promise: Promise) -> None:
    values = [promise.value() for _ in range(3)]

    async def all_of_them() -> list[int | BaseException]:
        return await asyncio.gather(*(log.append_async(value) for value in values), return_exceptions=True)

    found = asyncio.run(all_of_them())
    for value, offset in zip(values, found, strict=True):
        if isinstance(offset, int):
            promise.acknowledge(offset, value)
    for each in found:
        if isinstance(each, BaseException):
            raise each


def writer_flush(log: Log, promise: Promise) -> None:
    values = [promise.value() for _ in range(4)]
    writer = log.writer()
    for value in values:
        writer.append(value)
    try:
        placed = writer.flush()
    finally:
        log._access.appender.writers.discard(writer)  # type: ignore[union-attr]  # abandoned, as by a caller that gives up
    promise.acknowledge(placed.start, *values)


def writer_that_tries_again(log: Log, promise: Promise) -> None:
    """Flush again after a failed flush, which keeps the batch: it is placed once."""
    values = [promise.value() for _ in range(4)]
    with log.writer() as writer:
        for value in values:
            writer.append(value)
        try:
            writer.flush()
        except OSError:
            pass
        writer.flush()
        placed = writer._last
    promise.acknowledge(placed.start, *values)


def seal(log: Log, promise: Promise) -> None:
    log.seal()
    append(log, promise)


def truncate_in_active(log: Log, promise: Promise) -> None:
    promise.cut(log, log.segments[-1].base_offset + 1)
    append(log, promise)


def truncate_in_batch(log: Log, promise: Promise) -> None:
    promise.cut(log, 4)
    append(log, promise)


def truncate_to_a_segment_start(log: Log, promise: Promise) -> None:
    promise.cut(log, log.segments[-2].base_offset)


def truncate_all(log: Log, promise: Promise) -> None:
    promise.cut(log, log.lowest_offset)
    append(log, promise)


def trim(log: Log, promise: Promise) -> None:
    offset = log.segments[-2].base_offset + 1
    promise.trim(log, offset, lambda: log.trim(offset))
    append(log, promise)


def trim_all(log: Log, promise: Promise) -> None:
    offset = log.next_offset
    promise.trim(log, offset, lambda: log.trim(offset))
    append(log, promise)


def remove_expired(log: Log, promise: Promise) -> None:
    promise.trim(log, log.next_offset, lambda: log.remove_expired(1))
    append(log, promise)


def apply_retention(log: Log, promise: Promise) -> None:
    keep = log.config.retention_bytes
    assert keep is not None
    size, offset = log.size_bytes, log.lowest_offset
    for segment in log.segments[:-1]:
        if size - segment.size_bytes < keep:
            break
        size, offset = size - segment.size_bytes, segment.next_offset
    assert offset > log.lowest_offset
    promise.trim(log, offset, log.apply_retention)
    append(log, promise)


def sync(log: Log, promise: Promise) -> None:
    append(log, promise)
    log.sync()
    assert log.durable_offset == log.next_offset


def close(log: Log, promise: Promise) -> None:
    append(log, promise)
    log.close()


def close_with_writer(log: Log, promise: Promise) -> None:
    writer = log.writer()
    writer.append(promise.value())
    log.close()
    assert writer._last


def read_everything(log: Log, promise: Promise) -> None:
    for segment in log.segments:
        assert log.read(segment.base_offset).value == promise.kept[segment.base_offset]
    assert sum(batch.num_rows for batch in log.scan_arrow()) == len(log)
    assert log.fetch(log.lowest_offset, 1 << 20).next_offset == log.next_offset
    assert log.offset_at(OLD_MS + 10**9) == log.next_offset
    assert [record.offset for record in log.follow(timeout=0)] == list(range(log.lowest_offset, log.next_offset))
    log.verify()  # lists the batches that it could not read


CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=100, checkpoint_interval_ms=3_600_000)
LAZY = CONFIG.with_(durability="os")

Operation = Callable[[Log, Promise], None]

#: name -> (operation, settings it runs under)
OPERATIONS: dict[str, tuple[Operation, LogConfig]] = {
    each.__name__: (each, CONFIG)
    for each in (
        append,
        append_with_rotation,
        append_many,
        append_arrow,
        append_batches,
        append_stream,
        append_stream_async,
        append_async,
        writer_flush,
        writer_that_tries_again,
        seal,
        truncate_in_active,
        truncate_in_batch,
        truncate_to_a_segment_start,
        truncate_all,
        trim,
        trim_all,
        remove_expired,
        close,
        close_with_writer,
    )
}
OPERATIONS |= {
    "apply_retention": (apply_retention, CONFIG.with_(retention_bytes=1200)),
    "sync": (sync, LAZY),
    "close_lazily": (close, LAZY),
    "append_compressed": (append_many, CONFIG.with_(compression="zstd")),
    "read_everything": (read_everything, CONFIG.with_(max_mapped_segments=1)),
}


def fill(log: Log, promise: Promise) -> None:
    """Write initial contents: sealed segments, and an active one with several batches."""
    append_many(log, promise)
    append_with_rotation(log, promise)
    append_with_rotation(log, promise)
    log.seal()
    append_many(log, promise)
    append(log, promise)
    assert len(log.segments) >= 4
