"""CRC-32C is the one that Kafka means, and sums can be put together without their data."""

from __future__ import annotations

import mmap

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.batch.checksum import combine, crc32c

crcs = st.integers(0, 2**32 - 1)
lengths = st.integers(0, 2**48)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),  # the check value in every catalogue of CRCs
        (bytes(32), 0x8A9136AA),  # this and the next three: RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
    ],
)
def test_the_checksum_is_castagnolis(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


def test_the_checksum_is_the_packages_own_function() -> None:
    assert crc32c is package.crc32c


def test_every_kind_of_buffer_is_summed() -> None:
    data = b"a batch of records" * 300
    with mmap.mmap(-1, len(data)) as mapped:
        mapped[:] = data
        sums = {crc32c(data), crc32c(bytearray(data)), crc32c(memoryview(data)), crc32c(mapped)}
    assert sums == {crc32c(data)}


@given(st.binary(max_size=5000), st.integers(0, 5000))
def test_a_sum_goes_on_where_it_stopped(data: bytes, cut: int) -> None:
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)


@given(st.binary(max_size=5000), st.integers(0, 5000))
def test_the_sums_of_two_pieces_make_the_sum_of_the_whole(data: bytes, cut: int) -> None:
    a, b = data[:cut], data[cut:]
    assert combine(crc32c(a), crc32c(b), len(b)) == crc32c(data)


@pytest.mark.parametrize("length", [1, 15, 16, 255, 65536, 999_983, (1 << 24) - 1])
def test_long_second_pieces_combine(length: int) -> None:
    b = (b"0123456789abcdef~" * (length // 17 + 1))[:length]
    assert combine(crc32c(b"header"), crc32c(b), length) == crc32c(b"header" + b)


@pytest.mark.alternating
def test_the_longest_batch_combines() -> None:
    length, chunk = 2**31 - 1, bytes(range(256)) * (1 << 16)
    alone, together = 0, crc32c(b"header")
    for start in range(0, length, len(chunk)):
        piece = memoryview(chunk)[: min(len(chunk), length - start)]
        alone, together = crc32c(piece, alone), crc32c(piece, together)
    assert combine(crc32c(b"header"), alone, length) == together


def test_a_length_composed_of_shorter_ones_combines_the_same() -> None:
    zeros = {1: crc32c(b"\0")}  # the CRCs of 2^k - 1 zero bytes, each combined from the previous one: 2n + 1
    length = 1
    while length < 2**31 - 1:
        double = combine(zeros[length], zeros[length], length)
        zeros[2 * length + 1] = combine(double, zeros[1], 1)
        length = 2 * length + 1
    assert length == 2**31 - 1
    one_by_one = crc32c(b"header")
    for part in (2**30 - 1, 2**30 - 1, 1):
        one_by_one = combine(one_by_one, zeros[part], part)
    assert combine(crc32c(b"header"), zeros[length], length) == one_by_one


@given(crcs, crcs, crcs, lengths, lengths)
def test_it_does_not_matter_which_pieces_are_combined_first(a: int, b: int, c: int, m: int, n: int) -> None:
    assert combine(combine(a, b, m), c, n) == combine(a, combine(b, c, n), m + n)


@given(crcs)
def test_nothing_behind_changes_nothing(crc: int) -> None:
    assert combine(crc, crc32c(b""), 0) == crc


@given(crcs, crcs, lengths)
def test_a_combined_sum_is_a_sum(a: int, b: int, length: int) -> None:
    assert 0 <= combine(a, b, length) < 2**32


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        combine(1, 2, -1)
