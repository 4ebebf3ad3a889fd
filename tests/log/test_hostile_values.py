"""Values that look like batches do not make opening a damaged log cost more than reading it once or twice."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sawlog import Log
from sawlog.batch import checksum
from sawlog.batch.checksum import PartialSums, crc32c
from sawlog.log import index

_HEADER = struct.Struct(">qiibIhiqqqhii")


def header(base: int, size: int, delta: int = 0) -> bytes:
    """That of a batch of that many bytes, whose checksum is wrong."""
    return _HEADER.pack(base, size - 12, 0, 2, 0, 0, delta, 0, 0, -1, -1, -1, 0)


def to_the_end(size: int) -> bytes:
    """Headers that all claim to reach to the end."""
    count = size // 61
    return b"".join(header(1 + i, (count - i) * 61) for i in range(count))


def to_one_place(size: int) -> bytes:
    """Headers that all claim to reach to one that could follow each of them."""
    count = size // 61 - 2
    body = b"".join(header(1, (count - i) * 61, 99) for i in range(count))
    return body + header(101, 61) + header(102, 61)


def each_to_the_next(size: int) -> bytes:
    return b"".join(header(1 + i, 61) for i in range(size // 61))


@pytest.mark.alternating
@pytest.mark.sampled(2)  # 0.1 s each
@pytest.mark.parametrize("made", [to_the_end, to_one_place, each_to_the_next])
@pytest.mark.parametrize("size", [100_000, 800_000])
def test_opening_after_a_torn_value_sums_each_byte_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[int], bytes], size: int
) -> None:
    with Log.open(tmp_path / "log") as log:
        log.append(b"acknowledged")
        path = Path(log.segments[-1].path)
        written = path.stat().st_size
    value = made(size)
    with path.open("ab") as file:
        file.write(header(1, 61 + len(value) + 1000) + value)
    (tmp_path / "log" / "checkpoint").unlink()
    summed = 0

    def counting(data: Any, start: int = 0) -> int:
        nonlocal summed
        summed += len(data)
        return crc32c(data, start)

    for module in (checksum, index):
        monkeypatch.setattr(module, "crc32c", counting)
    with Log.open(tmp_path / "log") as log:
        assert [record.value for record in log] == [b"acknowledged"]
        assert log.recovery.truncated_bytes == 61 + len(value)
    assert path.stat().st_size == written
    # A candidate costs at most four blocks beside its two sums; there is one every 61 bytes.
    most = 4 * PartialSums._BLOCK_BYTES * (size // 61) if made is to_one_place else 40 * size
    assert summed <= most + 10 * size


@pytest.mark.parametrize("size", [0, 1, 100, 40_000, 100_000])
def test_partial_sums_are_the_sums_of_the_parts(size: int) -> None:
    data = bytes(i * 7 % 251 for i in range(size))
    sums = PartialSums(memoryview(data))
    places = sorted({0, 1, 21, size // 3, size // 2, max(size - 5, 0), size, 16 << 10, (16 << 10) + 1, 33_000})
    for start in (each for each in places if each <= size):
        for end in (each for each in places if start <= each <= size):
            assert sums.of(start, end) == crc32c(data[start:end])
