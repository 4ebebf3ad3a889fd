"""The fast path of a read returns the same as the slow path, or nothing."""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sawlog import Log, LogConfig
from sawlog.batch import kernel as packaged
from sawlog.batch.build import encode
from sawlog.batch.checksum import crc32c
from sawlog.batch.header import ATTRIBUTES, HEADER_BYTES, new_rows
from sawlog.batch.read import decode

from .twins import BOTH, plain

CELL = 1 << packaged.CELL_SHIFT


def stored(counts: list[int], size: int = 20, codec: str = "none") -> tuple[bytearray, list[int]]:
    """Return consecutive batches with these numbers of records, from offset 100 on, and their positions."""
    made, starts, offset = bytearray(), [], 100
    for number, count in enumerate(counts):
        batch = bytearray(encode([b"%d" % number * (size // len(b"%d" % number))] * count, compression=codec))
        packaged.patch_place(memoryview(batch), 0, offset, 0)
        starts.append(len(made))
        made += batch
        offset += count
    return made, starts


def read(kernel: Any, data: Any, offset: int, large: Any = b"", marks: Any = None, step: int = 32) -> Any:
    return plain(kernel.read_fast(memoryview(data), offset, 100, True, -1, 0, large, marks or {}, step))


def page(kernel: Any, data: Any, offset: int, most: int, *, end: int = 10**9, bits: int = 0) -> Any:
    marks = bytearray(bits), bytearray(bits), array("H", bytes(16 * bits))
    return kernel.page_fast(memoryview(data), offset, end, most, 100, True, -1, 0, *marks)


@pytest.mark.parametrize("by_table", [False, True])
def test_the_kernels_checksum_is_that_of_the_package(by_table: bool) -> None:
    sizes = [*range(70), 1023, 1024, 1025, 3071, 3072, 3073, 9217, 100_000]
    for size in sizes:
        data = os.urandom(size + 3)
        for start in range(3):  # also unaligned
            part = memoryview(data)[start : start + size]
            assert packaged.checksum(part, by_table) == crc32c(part), size


@pytest.mark.parametrize("kernel", BOTH)
def test_every_record_is_found(kernel: Any) -> None:
    data, _ = stored([1, 3, 1, 40, 2])
    expected = {record.offset: plain(record) for record in decode(bytes(data))}
    for offset, record in expected.items():
        assert read(kernel, data, offset) == record
    assert read(kernel, data, 147) is None


@pytest.mark.parametrize("kernel", BOTH)
def test_far_records_are_found_by_landmarks_only(kernel: Any) -> None:
    data, _ = stored([200])
    assert read(kernel, data, 199, large=b"") is None
    starts = (packaged.landmarks, memoryview(bytearray(4 * 64)).cast("i"))
    assert starts[0](memoryview(data), HEADER_BYTES, len(data), 200, 32, starts[1])
    for marks in ({}, {0: starts[1]}):
        found = read(kernel, data, 299, large=b"\xff", marks=marks)
        assert found == (plain(decode(bytes(data))[199]) if marks else None)
    wrong = memoryview(bytearray(4 * 64)).cast("i")
    wrong[6] = 10**6
    assert read(kernel, data, 299, large=b"\xff", marks={0: wrong}) is None


UNUSUAL = {"damaged", "cut", "out of order", "not the one of the index"}
#: Allowed in a page, which is not decoded.
WHOLE = {"compressed", "transactional", "control"}


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("what", sorted(UNUSUAL | WHOLE))
def test_what_is_unusual_is_left_to_the_long_way(kernel: Any, what: str) -> None:
    data, starts = stored([2, 2], 200, "zstd" if what == "compressed" else "none")
    if what in ("transactional", "control"):
        data[starts[1] + 22] |= packaged.TRANSACTIONAL_BIT if what == "transactional" else packaged.CONTROL_BIT
        packaged.patch_crc(memoryview(data), starts[1], crc32c(memoryview(data)[starts[1] + 21 :]))
    wanted = -1
    if what == "damaged":
        data[starts[1] + 70] ^= 1
    elif what == "cut":
        del data[-1:]
    elif what == "out of order":
        packaged.patch_place(memoryview(data), starts[1], 103, 0)
    elif what == "not the one of the index":
        wanted = 103
    arguments = memoryview(data), 102
    assert kernel.read_fast(*arguments, 100, True, wanted, 0, b"", {}, 32) is None
    got = kernel.page_fast(*arguments, 10**9, 10**6, 100, True, wanted, 0, bytearray(), bytearray(), array("H"))
    assert (got is not None) == (what in WHOLE)


@pytest.mark.parametrize("kernel", BOTH)
def test_a_page_has_what_fits_and_at_least_one(kernel: Any) -> None:
    data, starts = stored([1] * 30)
    ends = [*starts[1:], len(data)]
    for first in (0, 7, 29):
        for most in (1, 200, 500, 10**6):
            start, end, next_offset, _, _ = page(kernel, data, 100 + first, most)
            fits = [each for each in ends[first:] if each - starts[first] <= most] or ends[first : first + 1]
            assert (start, end) == (starts[first], fits[-1])
            assert next_offset == 100 + ends.index(end) + 1
    assert page(kernel, data, 105, 10**6, end=110)[:3] == (starts[5], starts[10], 110)


@pytest.mark.parametrize("kernel", BOTH)
def test_a_page_ends_before_damage(kernel: Any) -> None:
    data, starts = stored([1] * 10)
    data[starts[6] + 65] ^= 1
    assert page(kernel, data, 102, 10**6)[:3] == (starts[2], starts[6], 106)
    assert page(kernel, data, 106, 10**6) is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("size", [20, 300, 5000])
def test_what_was_compared_is_remembered_and_no_more(kernel: Any, size: int) -> None:
    """Damage in an unverified batch is always found, whatever was read before."""
    rng = random.Random(size)
    data, starts = stored([1] * (6 * CELL // (size + 80) + 4), size)
    bits = (len(data) >> packaged.CELL_SHIFT + 3) + 1
    large, small, firsts = bytearray(bits), bytearray(bits), array("H", bytes(16 * bits))
    compared: set[int] = set()
    for _ in range(12):
        first = rng.randrange(len(starts))
        start, end, _, _, _ = kernel.page_fast(
            memoryview(data), 100 + first, 10**9, rng.choice([1, 3000, 20_000]), 100, True, -1, 0, large, small, firsts
        )
        compared |= {each for each in starts if start <= each < end}
    for number, at in enumerate(starts):
        data[at + 65] ^= 1
        found = kernel.page_fast(memoryview(data), 100 + number, 10**9, 1, 100, True, -1, 0, large, small, firsts)
        assert found is None or at in compared
        data[at + 65] ^= 1
    assert any(large) or any(small)
    starts_of = [at & ~packaged.PLAIN_CELL for at in firsts]
    known = {(cell << packaged.CELL_SHIFT) + at - 1 for cell, at in enumerate(starts_of) if at}
    first = {at >> packaged.CELL_SHIFT: at for at in reversed([*starts, len(data)])}
    assert known <= set(first.values())
    assert known


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("counts", [[1] * 300, [1, 1, 1, 250] * 30, [40] * 60, [250] * 12])
def test_pages_over_what_was_compared_before_are_the_same(kernel: Any, counts: list[int]) -> None:
    """The walk skips verified cells: with small batches, large ones, and both."""
    data, starts = stored(counts)
    firsts_of = [100 + sum(counts[:number]) for number in range(len(counts))]
    ends = [*starts[1:], len(data)]
    bits = (len(data) >> packaged.CELL_SHIFT + 3) + 1
    marks = bytearray(bits), bytearray(bits), array("H", bytes(16 * bits))
    usual = 100, True, -1, 0, *marks, True
    rng = random.Random(1)
    for number in (0, *rng.choices(range(len(counts)), k=12)):
        for most in (10**6, 1, 300, 4096, 8192, *rng.choices(range(60_000), k=4)):
            found = kernel.page_fast(memoryview(data), firsts_of[number], 10**9, most, *usual)
            fits = [each for each in ends[number:] if each - starts[number] <= most] or ends[number : number + 1]
            assert found[:2] == (starts[number], fits[-1]), (number, most)
            assert found[2] == [*firsts_of, 100 + sum(counts)][ends.index(fits[-1]) + 1]
    assert any(marks[2])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("size", [20, 1500, 5000])
def test_a_page_says_that_it_has_a_part_of_a_transaction_however_often_it_was_compared(kernel: Any, size: int) -> None:
    rng = random.Random(size)
    data, starts = stored([1] * (20 * CELL // (size + 80)), size)
    special = sorted(rng.sample(range(len(starts)), 2))
    for number in special:
        at = starts[number]
        data[at + 22] |= packaged.TRANSACTIONAL_BIT
        end = [*starts, len(data)][number + 1]
        packaged.patch_crc(memoryview(data), at, crc32c(memoryview(data)[at + 21 : end]))
    bits = (len(data) >> packaged.CELL_SHIFT + 3) + 1
    usual = 100, True, -1, 0, bytearray(bits), bytearray(bits), array("H", bytes(16 * bits)), True
    said = set()
    for number in (0, 0, *rng.choices(range(len(starts)), k=20)):
        for most in (10**6, *rng.choices(range(60_000), k=2)):
            start, end, _, _, found = kernel.page_fast(memoryview(data), 100 + number, 10**9, most, *usual)
            assert found == any(start <= starts[each] < end for each in special), (number, most)
            said.add(found)
    assert said == {True, False}


@pytest.mark.parametrize("kernel", BOTH)
def test_chunks_are_gathered_up_to_a_size(kernel: Any) -> None:
    def source() -> Iterator[Any]:
        yield from (b"ab", b"", b"cd", b"ef", bytearray(b"g"), None, b"large!")

    chunks = source()
    assert kernel.gather_chunks(chunks, 4) == ([b"ab", b"", b"cd"], None, False)
    assert kernel.gather_chunks(chunks, 4) == ([b"ef"], (bytearray(b"g"),), False)
    assert kernel.gather_chunks(chunks, 4) == ([], (None,), False)
    assert kernel.gather_chunks(chunks, 4) == ([], (b"large!",), False)
    assert kernel.gather_chunks(chunks, 4) == ([], None, True)


@pytest.mark.alternating
def test_a_log_reads_and_fetches_the_same_from_active_and_sealed_segments() -> None:
    rng = random.Random(3)
    with Log.in_memory(LogConfig(segment_bytes=60_000, index_interval_bytes=500)) as log:
        for number in range(400):
            log.append_many([b"%d" % number * rng.randrange(1, 60)] * rng.choice([1, 1, 3, 90]))
        expected = [plain(record) for record in log.scan()]
        for _ in range(300):
            offset = rng.randrange(len(expected))
            assert plain(log.read(offset)) == expected[offset]
            fetched = log.fetch(offset, rng.choice([1, 2000, 30_000, 200_000]))
            found = [plain(record) for record in decode(bytes(fetched.raw), offset)]
            assert found == expected[offset : fetched.next_offset]


@pytest.mark.parametrize("kernel", BOTH)
def test_an_attribute_of_any_batch_is_found(kernel: Any) -> None:
    rows = new_rows(3)
    rows[:] = 0
    lines = memoryview(rows)
    assert not kernel.any_attribute(lines, packaged.COMPRESSION_MASK)
    rows[2, ATTRIBUTES] = packaged.TRANSACTIONAL_BIT
    assert not kernel.any_attribute(lines, packaged.COMPRESSION_MASK)
    rows[1, ATTRIBUTES] = 3
    assert kernel.any_attribute(lines, packaged.COMPRESSION_MASK)
    assert not kernel.any_attribute(lines[2:], packaged.COMPRESSION_MASK)
    with pytest.raises(ValueError, match="outside"):
        kernel.any_attribute(memoryview(np.zeros((3, 4), np.int64)), packaged.COMPRESSION_MASK)
