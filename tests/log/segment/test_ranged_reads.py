"""A reader requests about as many bytes as it needs from a storage on which a view is not free.

A file is mapped, and a view of all of it costs nothing; a remote object is fetched range by range.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sawlog import Log, LogConfig
from sawlog.batch.build import encode
from sawlog.batch.header import BASE
from sawlog.log import batches
from sawlog.storage import MemoryDirectory

INTERVAL_BYTES = 4096
SEGMENT_BYTES = 256 << 10
#: Values of a hundred bytes per batch: batches of 1 KiB, and of 20 KiB.
SIZES = (10, 200)
#: "mixed": every other batch is compressed.
CODECS = ("none", "zstd", "mixed")


class Counting:
    """A storage whose views are not free: counts the bytes that it is asked for."""

    views_are_free = False

    def __init__(self, inner: Any, asked: list[int]) -> None:
        self._inner = inner
        self._asked = asked

    def read(self, position: int, size: int) -> bytes:
        self._asked.append(size)
        return bytes(self._inner.read(position, size))

    def view(self, position: int, size: int) -> memoryview:
        return memoryview(self.read(position, size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class CountingDirectory:
    """A directory of such storages."""

    def __init__(self, inner: MemoryDirectory) -> None:
        self._inner = inner
        self.asked: list[int] = []

    def open_sealed(self, name: str) -> Counting:
        return Counting(self._inner.open_sealed(name), self.asked)

    def open_shared(self, name: str) -> Counting:
        return Counting(self._inner.open_shared(name), self.asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def spent(self) -> int:
        """Return the number of bytes requested since the last call."""
        total = sum(self.asked)
        self.asked.clear()
        return total


@pytest.fixture(scope="module", params=[(size, codec) for size in SIZES for codec in CODECS], ids=str)
def stored(request: pytest.FixtureRequest) -> tuple[MemoryDirectory, int, int]:
    """A closed log of several segments, the size of its largest batch, and where it ends."""
    count, codec = request.param
    directory = MemoryDirectory()
    codecs = ("none", "zstd") if codec == "mixed" else (codec,)
    config = LogConfig(segment_bytes=SEGMENT_BYTES, index_interval_bytes=INTERVAL_BYTES)
    with Log.open(directory, config.with_(durability="os")) as log:
        number = 0
        while len(log.segments) < 4:
            values = [(b"%0100d" % (number * 7919 + each), None, (), 1000 + number) for each in range(count)]
            log.append_batches(encode(values, compression=codecs[number // count % len(codecs)]))
            number += count
        largest = max(_batch_sizes(log))
        return directory, largest, log.next_offset


def _batch_sizes(log: Log) -> Iterator[int]:
    position = 0
    while position < log.next_offset:
        page = log.fetch(position, 1)
        yield page.size_bytes
        position = page.next_offset


@pytest.fixture
def counted(stored: tuple[MemoryDirectory, int, int]) -> Iterator[tuple[Log, CountingDirectory, int, int]]:
    """The log as a reader sees it, with every segment open."""
    directory = CountingDirectory(stored[0])
    with Log.open(directory, mode="r") as log:  # type: ignore[arg-type]
        for segment in log.segments:
            log.read(segment.base_offset)
        directory.spent()
        yield log, directory, *stored[1:]


@pytest.mark.alternating
@pytest.mark.sampled(2)  # 0.3 s each
def test_one_record_costs_what_the_index_leaves_open(counted: tuple[Log, CountingDirectory, int, int]) -> None:
    log, directory, largest, end = counted
    for offset in range(0, end, end // 50):
        assert log.read(offset).offset == offset
        assert directory.spent() <= 3 * (INTERVAL_BYTES + 2 * largest) + 200


@pytest.mark.alternating
@pytest.mark.parametrize("max_bytes", [1, 1000, 30_000, 200_000])
def test_a_page_costs_little_more_than_its_bytes(
    counted: tuple[Log, CountingDirectory, int, int], max_bytes: int
) -> None:
    log, directory, largest, end = counted
    for offset in range(0, end, end // 20):
        page = log.fetch(offset, max_bytes)
        assert page.next_offset > offset
        assert directory.spent() <= 2 * max_bytes + 3 * (INTERVAL_BYTES + 2 * largest) + (64 << 10)


def test_a_few_records_cost_a_few_batches(counted: tuple[Log, CountingDirectory, int, int]) -> None:
    log, directory, largest, end = counted
    for offset in range(0, end - 5, end // 20):
        assert len(list(log.scan(offset, offset + 5))) == 5
        assert directory.spent() <= 3 * (INTERVAL_BYTES + 2 * largest)


def test_a_time_is_found_near_its_index_entry(counted: tuple[Log, CountingDirectory, int, int]) -> None:
    log, directory, largest, end = counted
    for offset in range(0, end, end // 20):
        found = log.offset_at(log.read(offset).timestamp)
        assert found <= offset
        assert directory.spent() <= 6 * (INTERVAL_BYTES + 2 * largest) + (64 << 10)


def test_a_scan_asks_for_every_byte_once(counted: tuple[Log, CountingDirectory, int, int]) -> None:
    log, directory, largest, end = counted
    assert sum(1 for _ in log.scan()) == end
    assert directory.spent() <= 1.3 * log.size_bytes + 8 * largest


@pytest.mark.alternating
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_every_batch_is_found_wherever_a_view_ends(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view may have more batches than one step takes, and end within the header of the next one."""
    with Log.in_memory() as log:
        for number in range(20):
            log.append(b"%d" % number * (number % 3))
        segment = log._segment_set.active
        monkeypatch.setattr(batches, "CHUNK_ROWS", rows)
        for chunk_bytes in range(61, 400):
            found = segment.batches(segment.storage, 0, segment.size, 0, chunk_bytes=chunk_bytes)
            assert [base for chunk in found for base in chunk.rows[:, BASE].tolist()] == list(range(20)), chunk_bytes


def test_opening_a_segment_asks_for_its_end_only(stored: tuple[MemoryDirectory, int, int]) -> None:
    directory, largest, _ = stored
    counting = CountingDirectory(directory)
    with Log.open(counting, mode="r") as log:  # type: ignore[arg-type]
        counting.spent()
        log.read(log.segments[0].base_offset)
        assert counting.spent() <= 6 * (INTERVAL_BYTES + 2 * largest)
