"""`Slots`: two numbers in 64 bytes that one process writes and others read. Both kernels write the same bytes, believe
the same ones, and never give a number that was not stored."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.batch import kernel as packaged

from .twins import BOTH, interpreted

SIZE = packaged.SLOTS_BYTES
NUMBERS = st.integers(0, 2**63 - 1)
SECRETS = st.integers(0, 2**64 - 1)
PAIRS = st.lists(st.tuples(NUMBERS, st.integers(0, 2**31 - 1)), max_size=6)
LARGEST = 2**63 - 1


def slots(kernel: Any, buffer: bytes | bytearray, secret: int = 1, *, writable: bool = True) -> Any:
    return kernel.Slots(memoryview(buffer), secret, writable)


def found(kernel: Any, data: bytes, secret: int = 1) -> Any:
    """Return the numbers that a reader loads from these bytes."""
    return slots(kernel, bytes(data), secret, writable=False).load()


@given(secret=SECRETS, pairs=PAIRS)
def test_both_kernels_write_the_same_bytes_and_read_each_others(secret: int, pairs: list[tuple[int, int]]) -> None:
    buffers = [bytearray(SIZE), bytearray(SIZE)]
    writers = [slots(kernel, buffer, secret) for kernel, buffer in zip((packaged, interpreted), buffers, strict=True)]
    for pair in pairs:
        for writer in writers:
            writer.store(*pair)
        assert buffers[0] == buffers[1]
        for kernel in (packaged, interpreted):
            for buffer in buffers:
                assert found(kernel, buffer, secret) == pair
    assert [writer.load() for writer in writers] == [pairs[-1] if pairs else None] * 2


@given(data=st.binary(min_size=SIZE, max_size=SIZE), secret=SECRETS, pair=st.tuples(NUMBERS, NUMBERS))
def test_both_kernels_make_the_same_of_any_bytes(data: bytes, secret: int, pair: tuple[int, int]) -> None:
    assert found(packaged, data, secret) == found(interpreted, data, secret)
    after = []
    for kernel in (packaged, interpreted):
        buffer = bytearray(data)
        slots(kernel, buffer, secret).store(*pair)
        assert found(kernel, buffer, secret) == pair, "what is stored is believed, whatever was there before"
        after.append(buffer)
    assert after[0] == after[1]


@given(
    secret=SECRETS,
    pairs=PAIRS.filter(bool),
    damage=st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_damaged_slots_give_what_was_stored_or_nothing_in_both_kernels(
    secret: int, pairs: list[tuple[int, int]], damage: list[tuple[int, int]]
) -> None:
    buffer = bytearray(SIZE)
    writer = slots(packaged, buffer, secret)
    for pair in pairs:
        writer.store(*pair)
    for position, bits in damage:
        buffer[position] ^= bits
    seen = found(packaged, buffer, secret)
    assert seen == found(interpreted, buffer, secret)
    assert seen is None or seen in pairs


@pytest.mark.parametrize("kernel", BOTH)
def test_empty_slots_have_nothing(kernel: Any) -> None:
    for secret in (0, 1, 2**64 - 1):
        assert found(kernel, bytes(SIZE), secret) is None


@pytest.mark.parametrize("kernel", BOTH)
def test_a_slot_is_four_numbers_of_eight_bytes_each(kernel: Any) -> None:
    buffer = bytearray(SIZE)
    writer = slots(kernel, buffer)
    for number in range(1, 6):
        writer.store(10 * number, number)
        both = [struct.unpack_from(">3Q", buffer, at) for at in (0, 32)]
        assert max(both) == (number, 10 * number, number)
        assert min(both) == ((number - 1, 10 * number - 10, number - 1) if number > 1 else (0, 0, 0))


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("pair", [(0, 0), (LARGEST, 0), (0, LARGEST), (LARGEST, LARGEST)])
def test_the_smallest_and_the_largest_numbers_are_kept(kernel: Any, pair: tuple[int, int]) -> None:
    for secret in (0, 2**64 - 1):
        buffer = bytearray(SIZE)
        slots(kernel, buffer, secret).store(*pair)
        assert found(kernel, buffer, secret) == pair


@pytest.mark.parametrize("kernel", BOTH)
def test_the_same_numbers_again_change_no_byte(kernel: Any) -> None:
    buffer = bytearray(SIZE)
    writer = slots(kernel, buffer)
    writer.store(0, 0)
    assert found(kernel, buffer) == (0, 0), "zeros are stored although they look like nothing"
    for pair in ((0, 0), (5, 1), (5, 2)):
        writer.store(*pair)
        before = bytes(buffer)
        writer.store(*pair)
        assert buffer == before


@pytest.mark.parametrize("kernel", BOTH)
def test_another_secret_invalidates_all_of_it_and_the_next_writer_starts_over(kernel: Any) -> None:
    buffer = bytearray(SIZE)
    for number in range(10):
        slots(kernel, buffer, 7).store(number, 1)
    assert found(kernel, buffer, 8) is None
    slots(kernel, buffer, 8).store(3, 1)
    assert found(kernel, buffer, 8) == (3, 1)
    assert found(kernel, buffer, 7) in (None, (8, 1), (9, 1))


@pytest.mark.parametrize("kernel", BOTH)
def test_a_store_that_is_torn_between_any_two_bytes_leaves_the_numbers_before(kernel: Any) -> None:
    buffer = bytearray(SIZE)
    writer = slots(kernel, buffer)
    writer.store(255, 1)
    for pair in ((256, 1), (256, 2), (1, 3), (2**40, 4)):
        old, before = writer.load(), bytes(buffer)
        writer.store(*pair)
        at = 0 if before[:32] != buffer[:32] else 32
        assert before[32 - at : 64 - at] == buffer[32 - at : 64 - at], "the other slot is not touched"
        for count in range(33):
            torn = before[:at] + buffer[at : at + count] + before[at + count :]
            assert found(kernel, torn) == (pair if torn == buffer else old)


@pytest.mark.parametrize("kernel", BOTH)
def test_slots_that_are_only_read_refuse_to_store(kernel: Any) -> None:
    buffer = bytearray(SIZE)
    slots(kernel, buffer).store(7, 1)
    before = bytes(buffer)
    reader = slots(kernel, buffer, writable=False)
    with pytest.raises(ValueError, match="only read"):
        reader.store(8, 1)
    assert (bytes(buffer), reader.load()) == (before, (7, 1))


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("size", [0, 1, 63, 65, 128])
def test_a_buffer_of_another_size_is_refused(kernel: Any, size: int) -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        slots(kernel, bytearray(size))


@pytest.mark.parametrize("kernel", BOTH)
def test_a_buffer_that_cannot_be_written_is_refused_to_a_writer(kernel: Any) -> None:
    if not kernel.COMPILED:
        with pytest.raises(TypeError):
            slots(kernel, bytes(SIZE)).store(1, 1)
    else:
        with pytest.raises((BufferError, ValueError, TypeError)):
            slots(kernel, bytes(SIZE))
