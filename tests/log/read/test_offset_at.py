"""Finding a record by time: always what looking at every record would find."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sawlog import Log, LogConfig
from sawlog.batch.build import encode

from ..places import INDEX, TIME_INDEX, Place, named, now_ms
from ..sampling import some_of, some_or_all


def brute_force(log: Log, timestamp: int) -> int:
    """The first offset whose record is not older."""
    return next((record.offset for record in log if record.timestamp >= timestamp), log.next_offset)


def check(log: Log, timestamps: list[int]) -> None:
    for stamp in sorted({*timestamps, *(t + 1 for t in timestamps), *(max(t - 1, 0) for t in timestamps), 0, 2**40}):
        assert log.offset_at(stamp) == brute_force(log, stamp), stamp


@pytest.mark.sampled(4)  # 0.1 s each
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("interval", [0, 200, 4096])
def test_times_out_of_order_over_several_segments(place: Place, compression: str, interval: int) -> None:
    chance = random.Random(interval)
    log = place.open(compression=compression, index_interval_bytes=interval, segment_age_ms=None)
    stamps: list[int] = []
    for i in range(60):
        some = [chance.randrange(1000, 1060) for _ in range(chance.choice([1, 1, 3, 8]))]
        log.append_many([(b"x", None, (), stamp) for stamp in some])
        stamps += some
        if i % 20 == 19:
            log.seal()
    check(log, stamps)
    log.trim(len(log) // 2)
    check(log, stamps)
    log.close()
    log = place.open(index_interval_bytes=interval)
    check(log, stamps)
    log.truncate(log.next_offset - 20)
    check(log, stamps)
    log.append(b"x", timestamp=1055)
    check(log, stamps)


@settings(max_examples=60)
@given(
    batches=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=15),
    seals=st.sets(st.integers(0, 14), max_size=3),
    interval=st.sampled_from([0, 100, 300]),
    trimmed=st.integers(0, 10),
)
def test_any_times_in_any_order(batches: list[list[int]], seals: set[int], interval: int, trimmed: int) -> None:
    log = Log.in_memory(LogConfig(durability="os", index_interval_bytes=interval, segment_age_ms=None))
    for i, batch in enumerate(batches):
        log.append_many([(b"x", None, (), stamp) for stamp in batch])
        if i in seals:
            log.seal()
    log.trim(min(trimmed, log.next_offset))
    check(log, [stamp for batch in batches for stamp in batch])


def test_streams_and_tables_and_finished_batches_are_found_too(place: Place) -> None:
    log = place.open(index_interval_bytes=0)
    log.append_stream([b"x"], timestamp=1000)
    log.append_batches(encode([(b"x", None, (), 900), (b"x", None, (), 1100)]) * 3)
    log.append_stream([b"x"], timestamp=1200)
    check(log, [900, 1000, 1100, 1200])


def test_log_clock_counts_where_it_sets_the_time(place: Place) -> None:
    log = place.open(timestamp_type="append", index_interval_bytes=0)
    before = now_ms()
    for _ in range(3):
        log.append_many([(b"x", None, (), 5)] * 4)
    assert log.offset_at(6) == 0
    assert log.offset_at(before) == 0
    assert log.offset_at(now_ms() + 1000) == 12
    check(log, [record.timestamp for record in log])
    log.trim(2)
    assert log.offset_at(6) == 2
    check(log, [record.timestamp for record in log])


def test_datetime_and_milliseconds_mean_the_same(place: Place) -> None:
    log = place.open()
    for second in range(10):
        log.append(b"x", timestamp=datetime(2024, 1, 1, 0, 0, second, tzinfo=UTC))
    assert log.offset_at(datetime(2024, 1, 1, 0, 0, 5, tzinfo=UTC)) == 5
    assert log.offset_at(1704067205000) == 5
    assert log.offset_at(1704067204999) == 5
    assert log.offset_at(1704067205001) == 6


def test_empty_log_answers_with_its_next_offset(place: Place) -> None:
    log = place.open(initial_offset=7)
    assert log.offset_at(0) == 7
    log.append(b"x", timestamp=100)
    log.trim(8)
    assert log.offset_at(0) == 8


def test_time_before_the_records_that_are_left_finds_the_first_of_them(place: Place) -> None:
    log = place.open()
    log.append_many([(b"x", None, (), 100 + i) for i in range(10)])
    log.trim(5)
    assert log.offset_at(0) == 5
    assert log.offset_at(102) == 5
    assert log.offset_at(107) == 7


def time_indexed(place: Place) -> list[int]:
    """Two closed segments with several entries in each time index, times out of order; the times."""
    chance = random.Random(3)
    log = place.open(index_interval_bytes=100, segment_age_ms=None)
    stamps = []
    for i in range(24):
        stamps.append(1000 + 10 * i + chance.randrange(-25, 25))
        log.append(b"x" * 30, timestamp=stamps[-1])
        if i == 11:
            log.seal()
    log.close()
    return stamps


@pytest.mark.alternating
@pytest.mark.sampled(1)  # 0.5 s each
@pytest.mark.parametrize("base", [0, 12])
@some_or_all(60)
def test_damaged_time_index_gives_no_wrong_answer(memory_place: Place, base: int, most: int | None) -> None:
    """Damages any byte. A time index is a cache, and its entries are checked against the log."""
    stamps = time_indexed(memory_place)
    whole = memory_place.files()[named(base, TIME_INDEX)]
    assert len(whole) >= 3 * 12
    states = [whole[:size] for size in range(len(whole))]
    for position in range(len(whole)):
        for bits in (0x01, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[position] ^= bits
            states.append(bytes(damaged))
    wrong = []
    for state in some_of(states, most):
        place = memory_place.copy()
        place.write(named(base, TIME_INDEX), state)
        log = place.open()
        for stamp in {*stamps, *(stamp + 1 for stamp in stamps)}:
            if log.offset_at(stamp) != brute_force(log, stamp):
                wrong.append((state.hex(), stamp, log.offset_at(stamp), brute_force(log, stamp)))
                break
        place.close()
    assert wrong == []


def test_time_index_of_another_segment_gives_no_wrong_answer(place: Place) -> None:
    stamps = time_indexed(place)
    files = place.files()
    for suffix in (TIME_INDEX, INDEX):
        place.write(named(0, suffix), files[named(12, suffix)])
        place.write(named(12, suffix), files[named(0, suffix)])
    check(place.open(), stamps)
