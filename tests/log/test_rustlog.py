"""RustLog's own test lists, on our log: segment, index, partition, retention and index rebuild.

Its sizes differ (a record there has a header of 12 bytes, here a batch has one of 61), its promises are kept. Where it
has none (a fetch below the base is hidden, a torn record stops a reader in silence), tests/log/test_seed_defects.py
has ours. Its mapping tests are in tests/storage/test_file.py.
"""

from __future__ import annotations

import pytest

from sawlog import Log, LogConfig
from sawlog.batch.build import encode
from sawlog.batch.read import decode
from sawlog.errors import OffsetOutOfRange, RecordTooLarge

from .places import INDEX, TIME_INDEX, Place, fill, named, now_ms, values

#: A batch with a record of ten bytes.
TEN = len(encode([(b"0123456789", None, (), 1000)]))


def in_segments(place: Place, *counts: int, **settings: object) -> Log:
    """A log with that many records in each segment; the last one is active."""
    log = place.open(**settings)
    done = 0
    for i, count in enumerate(counts):
        if i:
            log.seal()
        fill(log, count, start=done, timestamp=now_ms())
        done += count
    return log


def fetched(log: Log, start: int, max_bytes: int) -> tuple[list[bytes | None], int]:
    """The values from `start` on, as a consumer sees them, and where it continues."""
    found = log.fetch(start, max_bytes)
    return values(decode(found.raw, start)), found.next_offset


def expected(start: int, end: int) -> list[bytes]:
    return [b"%d" % i + b"." * (10 - len(b"%d" % i)) for i in range(start, end)]


# --- segment


def test_new_log_is_empty(place: Place) -> None:
    log = place.open()
    assert (log.lowest_offset, log.next_offset, len(log), log.size_bytes) == (0, 0, 0, 0)
    assert [(s.base_offset, s.size_bytes, s.sealed) for s in log.segments] == [(0, 0, False)]
    assert place.files()[named(0)] == b""


def test_append_writes_exactly_one_batch(place: Place) -> None:
    log = place.open()
    assert log.append(b"hello world", timestamp=1000) == 0
    assert place.files()[named(0)] == encode([(b"hello world", None, (), 1000)])


def test_appends_get_consecutive_offsets_from_the_base(place: Place) -> None:
    log = place.open(initial_offset=100)
    assert [log.append(b"x") for _ in range(5)] == [100, 101, 102, 103, 104]
    assert (log.lowest_offset, log.next_offset, len(log)) == (100, 105, 5)
    assert place.bases() == [100]


def test_file_grows_by_what_the_log_says(place: Place) -> None:
    log = place.open()
    for i in range(10):
        log.append(b"x" * i)
        assert len(place.files()[named(0)]) == log.size_bytes == log.segments[0].size_bytes


def test_record_that_is_too_large_is_refused_and_changes_nothing(place: Place) -> None:
    log = place.open(max_record_bytes=1000)
    log.append(b"first")
    before = place.files()
    for attempt in (
        lambda: log.append(b"x" * 1001),
        lambda: log.append(b"x" * 500, key=b"k" * 501),
        lambda: log.append_many([b"fine", b"x" * 1001]),
    ):
        with pytest.raises(RecordTooLarge):
            attempt()
    assert place.files() == before
    assert log.append(b"x" * 1000) == 1


def test_empty_value_and_no_value_are_different(place: Place) -> None:
    log = place.open()
    log.append(b"")
    log.append(None)
    assert values(log) == [b"", None]


@pytest.mark.parametrize("sealed", [False, True])
def test_fetch_gives_what_fits_and_pages_through_the_rest(place: Place, sealed: bool) -> None:
    log = in_segments(place, 10)
    if sealed:
        log.seal()
    assert fetched(log, 0, 10**6) == (expected(0, 10), 10)
    assert fetched(log, 0, 2 * TEN + TEN // 2) == (expected(0, 2), 2)
    assert fetched(log, 2, 2 * TEN) == (expected(2, 4), 4)
    assert fetched(log, 7, 10**6) == (expected(7, 10), 10)
    seen, offset = [], 0
    while offset < log.next_offset:
        found, offset = fetched(log, offset, 3 * TEN)
        seen += found
    assert seen == expected(0, 10)


@pytest.mark.parametrize("max_bytes", [0, 1, TEN - 1, TEN])
def test_fetch_gives_at_least_one_batch_however_little_is_asked_for(place: Place, max_bytes: int) -> None:
    log = in_segments(place, 3)
    assert fetched(log, 1, max_bytes) == (expected(1, 2), 2)
    assert values(log.scan(1, max_bytes=max_bytes)) == expected(1, 2)


# --- index


@pytest.mark.parametrize("interval", [0, 1, TEN - 1, TEN, 3 * TEN, 4096, 10**6])
@pytest.mark.parametrize("sealed", [False, True])
def test_every_offset_is_found_whatever_the_index_holds(place: Place, interval: int, sealed: bool) -> None:
    """Exact, in between, after the last entry, and with no entry at all."""
    log = in_segments(place, 50, index_interval_bytes=interval)
    if sealed:
        log.seal()
    assert [log.read(i).value for i in range(50)] == expected(0, 50)
    for i in range(0, 50, 7):
        assert values(log.scan(i, i + 5)) == expected(i, min(i + 5, 50))
    for outside in (-1, 50, 51, 10**12):
        with pytest.raises(OffsetOutOfRange):
            log.read(outside)
    log.close()
    assert len(place.files()[named(0, INDEX)]) % 8 == 0
    log = place.open(index_interval_bytes=interval)
    assert [log.read(i).value for i in range(50)] == expected(0, 50)


# --- partition


def test_fetch_goes_across_sealed_segments_into_the_active_one(place: Place) -> None:
    log = in_segments(place, 3, 3, 3, 2)
    assert fetched(log, 0, 10**6) == (expected(0, 11), 11)
    for start in range(11):
        assert fetched(log, start, 10**6) == (expected(start, 11), 11)


def test_bytes_left_over_from_sealed_segments_are_used_in_the_active_one(place: Place) -> None:
    log = in_segments(place, 3, 3, 4)
    for most in range(1, 11):
        assert fetched(log, 0, most * TEN) == (expected(0, most), most)
        assert values(log.scan(max_bytes=most * TEN)) == expected(0, most)


def test_fetch_can_start_in_the_active_segment(place: Place) -> None:
    log = in_segments(place, 3, 4)
    assert fetched(log, 4, 10**6) == (expected(4, 7), 7)


def test_fetch_before_the_first_offset_says_where_the_log_begins(place: Place) -> None:
    log = in_segments(place, 3, 3, initial_offset=100)
    with pytest.raises(OffsetOutOfRange) as caught:
        log.fetch(99, 1000)
    assert (caught.value.requested, caught.value.lowest, caught.value.next) == (99, 100, 106)


def test_fetch_at_the_end_is_empty_and_goes_on_where_it_was_asked(place: Place) -> None:
    log = in_segments(place, 3, 3)
    found = log.fetch(6, 1000)
    assert (found.buffers, found.raw, found.size_bytes, found.next_offset) == ((), b"", 0, 6)
    with pytest.raises(OffsetOutOfRange):
        log.fetch(7, 1000)


def test_fetch_of_a_batch_that_began_earlier_gives_the_whole_batch(place: Place) -> None:
    """The consumer drops the records before its offset, as Kafka's consumers do."""
    log = place.open()
    log.append_many(expected(0, 5))
    found = log.fetch(3, 10**6)
    assert values(decode(found.raw)) == expected(0, 5)
    assert found.next_offset == 5


# --- retention


def test_retention_is_off_unless_asked_for(place: Place) -> None:
    log = place.open()
    fill(log, 5, timestamp=1)
    log.seal()
    report = log.apply_retention()
    assert (report.removed_segments, report.removed_records, report.removed_bytes) == (0, 0, 0)
    assert len(log) == 5


def test_retention_by_age_drops_old_segments_once(place: Place) -> None:
    log = place.open(retention_ms=60_000, segment_age_ms=None)
    old, young = now_ms() - 120_000, now_ms()
    for stamp in (old, old + 1, young, young):
        fill(log, 4, timestamp=stamp)
        log.seal()
    report = log.apply_retention()
    assert (report.removed_segments, report.removed_records, report.lowest_offset) == (2, 8, 8)
    assert report.removed_bytes == 8 * TEN
    assert log.apply_retention().removed_records == 0
    log.close()
    log = place.open(retention_ms=60_000)
    assert log.apply_retention().removed_records == 0
    assert (log.lowest_offset, len(log)) == (8, 8)
    assert fetched(log, 8, 10**6)[1] == 16


def test_retention_by_size_keeps_exactly_the_newest(place: Place) -> None:
    log = in_segments(place, 4, 4, 4, 4, 0, retention_bytes=2 * 4 * TEN)
    report = log.apply_retention()
    assert (report.removed_segments, report.removed_records, report.lowest_offset) == (2, 8, 8)
    assert [s.base_offset for s in log.segments] == [8, 12, 16]
    assert log.apply_retention().removed_segments == 0
    assert values(log) == expected(8, 16)


def test_active_segment_survives_retention_by_size_and_takes_records(place: Place) -> None:
    log = in_segments(place, 4, 4, retention_bytes=0)
    log.apply_retention()
    assert values(log) == expected(4, 8)
    assert log.append(b"more") == 8
    assert place.bases() == [4]


def test_size_retention_deletes_no_more_than_it_must(place: Place) -> None:
    """A byte less than two segments are asked for: both are needed to hold them."""
    log = in_segments(place, 4, 4, 4, 0, retention_bytes=4 * TEN + 1)
    log.apply_retention()
    assert log.lowest_offset == 4


# --- index rebuild


def rebuilt(place: Place, count: int) -> tuple[bytes, bytes]:
    log = place.open(LogConfig(durability="os", index_interval_bytes=500))
    if len(log) == 0:
        fill(log, count, timestamp=1000)
        log.seal()
    log.close()
    files = place.files()
    return files[named(0, INDEX)], files[named(0, TIME_INDEX)]


def test_sound_index_is_left_alone(place: Place) -> None:
    before = rebuilt(place, 150)
    log = place.open()
    assert log.recovery.rebuilt_indexes == 0
    log.close()
    assert rebuilt(place, 150) == before


@pytest.mark.parametrize("count", [1, 150, 250])
@pytest.mark.parametrize("damage", ["missing", "short", "one missing"])
def test_index_is_rebuilt_to_the_same_bytes_each_time(place: Place, count: int, damage: str) -> None:
    before = rebuilt(place, count)
    # Kafka's rule: a batch is entered when more than the interval has passed since the last entry
    spacing = 500 // TEN + 1
    assert len(before[0]) == (count - 1) // spacing * 8
    for _ in range(2):
        for suffix in (TIME_INDEX,) if damage == "one missing" else (INDEX, TIME_INDEX):
            if damage == "short":
                place.extend(named(0, suffix), b"\0\0\0")
            else:
                place.remove(named(0, suffix))
        log = place.open(LogConfig(durability="os", index_interval_bytes=500))
        assert log.recovery.rebuilt_indexes == 1
        log.close()
        assert rebuilt(place, count) == before
        assert not [name for name in place.names() if name.endswith(".tmp")]
