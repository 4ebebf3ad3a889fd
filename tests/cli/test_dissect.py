"""Locating damage in a batch: a single changed byte is found; if several changed, none is reported."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sawlog.batch.build import encode
from sawlog.batch.checksum import crc32c
from sawlog.cli.dissect import Batch, Change, Damage, dissect, find_change

from ..looping import for_each


@given(some.binary(min_size=1, max_size=3000), some.data())
def test_a_flipped_bit_is_found(content: bytes, data: some.DataObject) -> None:
    index = data.draw(some.integers(0, len(content) - 1))
    mask = 1 << data.draw(some.integers(0, 7))
    damaged = bytearray(content)
    damaged[index] ^= mask
    assert find_change(crc32c(content), crc32c(damaged), len(content)) == Change(index, mask)


@given(some.binary(min_size=1, max_size=200), some.data())
def test_a_changed_byte_is_found(content: bytes, data: some.DataObject) -> None:
    index, mask = data.draw(some.integers(0, len(content) - 1)), data.draw(some.integers(1, 255))
    damaged = bytearray(content)
    damaged[index] ^= mask
    assert find_change(crc32c(content), crc32c(damaged), len(content)) == Change(index, mask)


@for_each("byte", range(4))
@for_each("bit", range(8))
def test_a_flipped_bit_of_the_checksum_itself_is_found(byte: int, bit: int) -> None:
    crc = crc32c(b"content")
    assert find_change(crc ^ 1 << 8 * (3 - byte) + bit, crc, 7) == Change(byte - 4, 1 << bit)


def test_many_changed_bytes_are_not_blamed_on_one() -> None:
    draw = random.Random(7)
    content = draw.randbytes(400)
    for _ in range(50):
        damaged = bytearray(content)
        for index in draw.sample(range(400), 5):
            damaged[index] ^= draw.randrange(1, 256)
        assert find_change(crc32c(content), crc32c(damaged), 400) is None


# --- whole segments

SIZES = (3, 1, 20, 7)


def segment(compression: str = "none") -> tuple[bytes, list[int]]:
    """Four batches, and where each starts."""
    parts, starts, offset, position = [], [], 0, 0
    for size in SIZES:
        values = [bytes([65 + size]) * 30 for _ in range(size)]
        parts.append(encode(values, base_offset=offset, compression=compression))
        starts.append(position)
        offset += size
        position += len(parts[-1])
    return b"".join(parts), starts


@for_each("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_an_intact_segment_is_split_into_its_batches(compression: str) -> None:
    content, starts = segment(compression)
    found = list(dissect(memoryview(content)))
    assert all(isinstance(each, Batch) and not each.remark for each in found)
    assert [each.header.position for each in found if isinstance(each, Batch)] == starts
    assert [each.header.count for each in found if isinstance(each, Batch)] == list(SIZES)


#: The leader epoch of a batch: nothing depends on it and nothing covers it.
UNCHECKED = range(12, 16)


@pytest.mark.alternating
def test_any_flipped_bit_is_noticed_and_the_first_bad_byte_is_named() -> None:
    """Every byte of a segment in turn. The neighbours confirm the base offset; the checksum covers the rest."""
    content, starts = segment()
    for position in range(len(content)):
        start = max(each for each in starts if each <= position)
        if position - start in UNCHECKED:
            continue
        damaged = bytearray(content)
        damaged[position] ^= 4
        found = list(dissect(memoryview(damaged)))
        damage = [each for each in found if isinstance(each, Damage)]
        remarks = [each.remark for each in found if isinstance(each, Batch) and each.remark]
        assert damage or remarks, position
        if damage:
            in_length = 8 <= position - start < 12
            expected = start + 8 if in_length else start if position - start < 8 else position
            assert (damage[0].position, damage[0].bad_position) == (start, expected), position
            assert len(found) == len(SIZES)  # the other batches are all there


def test_a_wrong_base_offset_is_detected_from_neighbouring_batches() -> None:
    content, starts = segment()
    damaged = bytearray(content)
    damaged[starts[1] + 6] ^= 1
    [remark] = [each.remark for each in dissect(memoryview(damaged)) if isinstance(each, Batch) and each.remark]
    assert remark == "the base offset should be 3, according to the batches around it"


@for_each("cut", [9, 30, 60, 61, 62, 200])
def test_a_torn_tail_is_marked_at_the_end_of_the_file(cut: int) -> None:
    content, starts = segment()
    torn = content[: starts[2] + cut]
    *whole, damage = dissect(memoryview(torn))
    assert len(whole) == 2
    assert isinstance(damage, Damage)
    assert (damage.position, damage.bad_position) == (starts[2], len(torn))
    assert "the file ends here" in damage.reason


def test_zeros_at_the_end_are_called_zeros() -> None:
    content, _ = segment()
    *whole, damage = dissect(memoryview(content + bytes(5000)))
    assert len(whole) == len(SIZES)
    assert isinstance(damage, Damage)
    assert damage.reason.startswith("5,000 zero bytes")


def test_a_batch_inside_a_record_is_not_mistaken_for_the_next_batch() -> None:
    inner = encode([b"inner"], base_offset=100)
    outer = encode([b"before", inner, b"after"], base_offset=0)
    content = bytearray(outer + encode([b"next"], base_offset=3))
    content[70:72] = b"!!"  # two bytes: no single one explains it
    damage, following = dissect(memoryview(content))
    assert isinstance(damage, Damage)
    assert damage.size_bytes == len(outer)
    assert "more than one byte" in damage.reason
    assert isinstance(following, Batch)
    assert following.header.base_offset == 3


def test_garbage_between_batches_is_one_damaged_range() -> None:
    content, starts = segment()
    mixed = content[: starts[1]] + b"garbage " * 40 + content[starts[1] :]
    found = list(dissect(memoryview(mixed)))
    assert [type(each) for each in found] == [Batch, Damage, Batch, Batch, Batch]
    assert isinstance(found[1], Damage)
    assert (found[1].position, found[1].size_bytes) == (starts[1], 320)


def test_offsets_that_compaction_removed_are_remarked() -> None:
    content = encode([b"a"], base_offset=0) + encode([b"b"], base_offset=9)
    [_, second] = dissect(memoryview(content))
    assert isinstance(second, Batch)
    assert second.remark == "offsets 1 to 8 are missing: removed by compaction, or lost"


@given(some.binary(max_size=400))
def test_any_bytes_can_be_dissected(content: bytes) -> None:
    found = list(dissect(memoryview(content)))
    assert sum(each.size_bytes if isinstance(each, Damage) else each.header.size_bytes for each in found) == len(
        content
    )
