"""The log is the truth, everything else is a cache: no state of an index, a checkpoint or the producers' file, however
wrong, costs a record, an offset or the opening of the log.

Each file is flipped and truncated at every byte, in logs that were closed and in logs whose process was killed: in
memory completely, on files with a sample.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from sawlog import Log, Producer

from ..places import INDEX, TIME_INDEX, Place, named, values
from ..sampling import some_of, some_or_all

COUNT = 24
#: Number of states of each file in the quick tests.
SOME = 24


def built(place: Place, closed: bool) -> list[bytes | None]:
    """Three segments with several index entries each, two producers, and a trimmed beginning."""
    log = place.open(index_interval_bytes=150, segment_age_ms=None)
    for i in range(COUNT):
        if i in (8, 16):
            log.seal()
        log.append_many([(b"%d" % i * 8, None, (), 1000 + i)], producer=Producer(i % 2, 0, i // 2))
    expected = values(log)
    log.trim(3)
    if closed:
        log.close()
    return expected


def states(data: bytes, chance: random.Random, *, all_of_them: bool) -> Iterator[bytes]:
    """The file with a wrong byte, cut short, padded, and replaced by something else."""
    for position in range(0, len(data), 1 if all_of_them else 17):
        flipped = bytearray(data)
        flipped[position] ^= chance.choice([1 << chance.randrange(8), chance.randrange(1, 256)])
        yield bytes(flipped)
        yield data[:position]
    for extra in (b"\0", b"\0" * 8, b"\0" * 12, b"\0" * 96, b"\xff" * 24, data):
        yield data + extra
    yield bytes(len(data))
    yield b"\xff" * len(data)
    yield chance.randbytes(len(data))


def keeps_everything(log: Log, expected: list[bytes | None]) -> None:
    assert log.next_offset == COUNT
    lowest = log.lowest_offset
    assert lowest in (0, 3)  # a lost log start brings trimmed records back; it must not take others away
    assert values(log) == expected[lowest:]
    for offset in range(lowest, COUNT):
        assert log.read(offset).value == expected[offset]
    assert values(log.scan(13, 19)) == expected[13:19]
    assert bool(log.recovery)
    # known producers: the last batch of each is recognised, the next one is taken
    assert log.append_many([b"x"], producer=Producer(0, 0, 11)) == range(22, 23)
    assert log.append_many([b"x"], producer=Producer(1, 0, 11)) == range(23, 24)
    assert log.append_many([b"x"], producer=Producer(0, 0, 12)) == range(COUNT, COUNT + 1)


@pytest.mark.alternating
@pytest.mark.sampled(4)  # 0.1 s each
@some_or_all(SOME)
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize(
    "name", [named(0, INDEX), named(8, INDEX), named(16, INDEX), named(8, TIME_INDEX), named(16, TIME_INDEX)]
)
def test_no_state_of_an_index_costs_a_record(place: Place, name: str, closed: bool, most: int | None) -> None:
    expected = built(place, closed)
    if name not in place.files():
        assert not closed
        assert name.startswith(named(16, ""))
        place.write(name, place.files()[named(8, INDEX)])  # a state that no crash can leave, but that must work too
    chance = random.Random(name)
    for state in some_of(states(place.files()[name], chance, all_of_them=place.kind == "memory"), most):
        damaged = place.copy()
        damaged.write(name, state)
        keeps_everything(damaged.open(index_interval_bytes=150), expected)
        damaged.close()


@pytest.mark.alternating
@pytest.mark.sampled(2)  # 0.3 s each
@some_or_all(SOME)
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("name", ["checkpoint", "producers"])
def test_no_state_of_a_small_file_costs_a_record(place: Place, name: str, closed: bool, most: int | None) -> None:
    expected = built(place, closed)
    chance = random.Random(name)
    whole = place.files()[name]
    for state in some_of(states(whole, chance, all_of_them=place.kind == "memory"), most):
        damaged = place.copy()
        damaged.write(name, state)
        keeps_everything(damaged.open(), expected)
        damaged.close()


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_all_caches_may_be_missing_at_once(place: Place, closed: bool) -> None:
    expected = built(place, closed)
    damaged = place.copy()
    for name in damaged.names():
        if not name.endswith(".log"):
            damaged.remove(name)
    keeps_everything(damaged.open(), expected)
    damaged.close()
    log = damaged.open()
    assert log.recovery.clean
    assert log.recovery.findings == []


@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX])
def test_caches_of_segments_that_are_not_there_do_no_harm(place: Place, suffix: str) -> None:
    expected = built(place, True)
    for base in (5, 40):
        place.write(named(base, suffix), place.files()[named(8, suffix)])
    log = place.open()
    keeps_everything(log, expected)
    log.truncate(COUNT)
    for i in range(COUNT, 45):
        log.append(b"x")
        if i == 39:
            log.seal()
    assert len(log) == 42
    log.close()
    assert len(values(place.open())) == 42


def test_index_made_with_another_interval_is_used_and_replaced(place: Place) -> None:
    expected = built(place, True)
    for interval in (0, 10_000, 150):
        log = place.open(index_interval_bytes=interval)
        assert log.recovery.findings == []
        assert values(log) == expected[3:]
        assert [log.read(i).value for i in range(3, COUNT)] == expected[3:]
        log.close()


def test_indexes_of_two_segments_swapped(place: Place) -> None:
    expected = built(place, True)
    files = place.files()
    for suffix in (INDEX, TIME_INDEX):
        place.write(named(0, suffix), files[named(8, suffix)])
        place.write(named(8, suffix), files[named(0, suffix)])
    keeps_everything(place.open(), expected)


def test_wrong_index_that_was_used_is_replaced_on_disk(place: Place) -> None:
    """So the cost is paid only once."""
    built(place, True)
    good = place.files()[named(0, INDEX)]
    place.remove(named(0, INDEX))
    place.open().close()
    assert len(place.files()[named(0, INDEX)]) % 8 == 0
    place.write(named(0, INDEX), good[:-1])
    log = place.open(index_interval_bytes=150)
    assert log.recovery.rebuilt_indexes == 1
    assert place.files()[named(0, INDEX)] == good
