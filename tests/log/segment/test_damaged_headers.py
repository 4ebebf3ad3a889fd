"""A header is trusted only as far as other data confirms it: batches after a damaged one are still found.

Reading skips unwanted batches from header to header, without checking their content. A wrong length then leads into the
middle of the next batch, a wrong number of offsets beyond it.
"""

from __future__ import annotations

import pytest

from sawlog import Log, Producer
from sawlog.errors import CorruptBatch

from ..places import MemoryPlace, named, values

#: Positions of the last bytes of these numbers in a batch's header: their lowest bits.
LENGTH, LAST_DELTA, MAX_TIME, SEQUENCE = 11, 26, 42, 56


def damaged(place: MemoryPlace, number: int, byte: int, bits: int) -> Log:
    """Eight records in batches of their own, without an index entry but for each third, one header wrong; as it is
    read after an orderly close."""
    log = place.open(index_interval_bytes=200)
    for i in range(8):
        log.append_many([(b"value %d" % i, None, (), 1000 + i)], producer=Producer(1, 0, i))
    log.seal()
    log.append(b"end", timestamp=2000)
    log.close()
    place.flip(named(0), place.batches()[number].position + byte, bits)
    return place.open(mode="r")


@pytest.mark.alternating
@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16, 32, 64])
def test_batches_behind_a_wrong_length_are_read(memory_place: MemoryPlace, number: int, bits: int) -> None:
    log = damaged(memory_place, number, LENGTH, bits)
    for offset in {*range(8)} - {number}:
        assert log.read(offset).value == b"value %d" % offset
    for start in range(number + 1, 8):
        assert values(log.scan(start, 8)) == [b"value %d" % i for i in range(start, 8)]
    with pytest.raises(CorruptBatch) as found:
        log.read(number)
    assert found.value.next_offset == number + 1


@pytest.mark.alternating
@pytest.mark.parametrize("byte", [LENGTH, LAST_DELTA, MAX_TIME])
@pytest.mark.parametrize("bits", [1, 4, 64])
def test_search_by_time_is_right_or_says_what_is_in_the_way(byte: int, bits: int) -> None:
    for number in range(7):
        place = MemoryPlace()
        log = damaged(place, number, byte, bits)
        for offset in range(8):
            try:
                assert log.offset_at(1000 + offset) == offset
            except CorruptBatch:
                assert offset >= number - 2, "what is in the way stands behind what was asked for"
        assert log.offset_at(2000) == 8
        place.close()


@pytest.mark.parametrize("byte", [LENGTH, LAST_DELTA, SEQUENCE])
@pytest.mark.parametrize("number", [0, 3, 6])
def test_producers_behind_damage_are_known_after_a_restart(memory_place: MemoryPlace, byte: int, number: int) -> None:
    damaged(memory_place, number, byte, 4).close()
    memory_place.remove("producers")
    log = memory_place.open()
    assert log.append_many([b"again"], producer=Producer(1, 0, 7)) == range(7, 8)
    assert log.append_many([b"next"], producer=Producer(1, 0, 8)) == range(9, 10)
