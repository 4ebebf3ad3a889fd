"""laminarmq's own tests, on our log: every guarantee of that crate for its segmented log holds here too.

Its fixture: 20 fixed records of 129 bytes, an initial offset of 42, segments that hold exactly 20 records, 10 segments.
Its storage suite is `sawlog.testing.StorageSuite`; store, index and segment are not separate things to a user here,
so their promises are stated about the log.
"""

from __future__ import annotations

import pytest

from sawlog import Log, LogConfig
from sawlog.batch.build import encode
from sawlog.errors import InvalidConfig, OffsetMismatch, OffsetOutOfRange, StreamTooLong

from .places import INDEX, TIME_INDEX, Place, named, now_ms, values

RECORD_BYTES = 129
RECORDS = [bytes([33 + i]) * RECORD_BYTES for i in range(20)]
BATCH_BYTES = len(encode([(RECORDS[0], None, (), 0)]))
SEGMENT = 20
INITIAL = 42
CONFIG = LogConfig(
    segment_bytes=SEGMENT * BATCH_BYTES, segment_overflow_bytes=0, initial_offset=INITIAL, durability="os"
)


def filled(place: Place, segments: int = 10, config: LogConfig = CONFIG) -> Log:
    log = place.open(config)
    for _ in range(segments):
        for value in RECORDS:
            log.append(value, timestamp=1000)
    return log


def test_segment_takes_exactly_what_it_has_room_for(place: Place) -> None:
    log = filled(place, 1)
    assert [(s.base_offset, s.next_offset, s.size_bytes) for s in log.segments] == [
        (INITIAL, INITIAL + 20, CONFIG.segment_bytes)
    ]
    log.append(RECORDS[0], timestamp=1000)
    assert [(s.base_offset, s.sealed) for s in log.segments] == [(INITIAL, True), (INITIAL + 20, False)]


def test_store_reads_back_each_record_after_reopening(place: Place) -> None:
    log = place.open(CONFIG)
    with pytest.raises(OffsetOutOfRange):
        log.read(INITIAL)
    offsets = [log.append(value, timestamp=1000) for value in RECORDS]
    assert offsets == list(range(INITIAL, INITIAL + 20))
    log.close()
    log = place.open(CONFIG)
    assert [log.read(offset).value for offset in offsets] == RECORDS
    log.truncate(INITIAL + 10)
    assert [log.read(offset).value for offset in offsets[:10]] == RECORDS[:10]
    for offset in offsets[10:]:
        with pytest.raises(OffsetOutOfRange):
            log.read(offset)


def test_index_finds_each_record_from_memory_from_file_and_rebuilt(place: Place) -> None:
    log = place.open(CONFIG, index_interval_bytes=0)
    with pytest.raises(OffsetOutOfRange):
        log.read(INITIAL)
    for value in RECORDS:
        log.append(value)

    def check() -> None:
        assert [log.read(INITIAL + i).value for i in range(20)] == RECORDS

    check()
    log.close()
    log = place.open(CONFIG, index_interval_bytes=0)
    check()
    log.close()
    for suffix in (INDEX, TIME_INDEX):
        place.remove(named(INITIAL, suffix))
    log = place.open(CONFIG, index_interval_bytes=0)
    check()
    log.truncate(INITIAL + 10)
    assert len(log) == 10
    assert values(log) == RECORDS[:10]


def test_segment_truncated_in_the_middle_takes_records_again(place: Place) -> None:
    log = filled(place, 1)
    log.close()
    log = place.open(CONFIG)
    assert values(log) == RECORDS
    assert log.truncate(INITIAL + 10) == 10
    assert len(log) == 10
    assert values(log) == RECORDS[:10]
    assert log.segments[-1].size_bytes < CONFIG.segment_bytes
    assert log.append(RECORDS[10], timestamp=1000, expect_offset=INITIAL + 10) == INITIAL + 10
    with pytest.raises(OffsetMismatch):
        log.append(RECORDS[10], expect_offset=INITIAL + 10)
    assert len(log.segments) == 1


def test_removed_log_is_empty_when_opened_again(place: Place) -> None:
    log = filled(place, 2)
    log.remove()
    assert place.files() == {}
    log = place.open(CONFIG)
    assert (log.lowest_offset, log.next_offset, len(log)) == (INITIAL, INITIAL, 0)


def test_segmented_log_is_consistent_through_its_whole_life(place: Place) -> None:
    """segmented_log_read_append_truncate_consistency."""
    log = filled(place)
    assert len(log) > 180
    assert len(log.segments) == 10
    log.close()
    log = place.open(CONFIG)
    assert (log.lowest_offset, log.next_offset) == (INITIAL, INITIAL + 200)
    assert values(log) == RECORDS * 10
    assert [record.offset for record in log] == list(range(INITIAL, INITIAL + 200))
    assert values(log.scan(end=INITIAL + 20)) == RECORDS
    assert values(log.scan()) == values(log.scan(INITIAL, log.next_offset)) == RECORDS * 10

    # from batch to batch by the offset that fetch says is next
    offset, hops = INITIAL, 0
    while offset < log.next_offset:
        offset, hops = log.fetch(offset, 1).next_offset, hops + 1
    assert (offset, hops) == (log.next_offset, 200)

    middle_of_sixth = INITIAL + 5 * SEGMENT + SEGMENT // 2
    assert log.truncate(middle_of_sixth) == 90
    assert len(log) == 110
    assert log.append(RECORDS[0]) == middle_of_sixth
    before = place.files()
    with pytest.raises(StreamTooLong):
        log.append_stream(RECORDS * 2)
    assert place.files() == before
    assert log.truncate(middle_of_sixth) == 1
    length = len(log)
    log.close()
    log = place.open(CONFIG)
    assert len(log) == length == 110
    assert values(log) == (RECORDS * 6)[:110]
    log.remove()
    assert len(place.open(CONFIG)) == 0


def test_stored_log_below_the_initial_offset_is_refused(place: Place) -> None:
    """Such a setting would contradict the data; a higher start is the result of retention."""
    log = filled(place, 2)
    log.trim(INITIAL + 20)
    log.close()
    for initial in (0, INITIAL, INITIAL + 20):
        log = place.open(CONFIG, initial_offset=initial)
        assert log.lowest_offset == INITIAL + 20
        log.close()
    with pytest.raises(InvalidConfig, match="initial_offset"):
        place.open(CONFIG, initial_offset=INITIAL + 21)


def test_expired_segments_go_and_offsets_do_not(place: Place) -> None:
    """segmented_log_remove_expired_segments, with timestamps instead of waiting."""
    log = place.open(CONFIG)
    old, young = now_ms() - 10_000, now_ms() + 60_000
    for _ in range(5):
        for value in RECORDS:
            log.append(value, timestamp=old)
    log.append(RECORDS[0], timestamp=old)
    highest_before = log.next_offset
    for value in RECORDS:
        log.append(value, timestamp=young)
    assert log.remove_expired(10_000) == 5 * SEGMENT
    assert INITIAL + 5 * SEGMENT <= log.lowest_offset <= highest_before
    assert log.next_offset == INITIAL + 6 * SEGMENT + 1
    assert log.segments[0].base_offset == log.lowest_offset
    log.truncate(highest_before)
    assert log.remove_expired(10_000) == 1
    assert (len(log), log.lowest_offset, log.next_offset) == (0, highest_before, highest_before)
    assert log.append(RECORDS[0]) == highest_before


# --- the LRU of mapped segments


def mapped(log: Log) -> list[int]:
    return [i for i, segment in enumerate(log.segments) if segment.mapped]


def first_of(log: Log, i: int) -> int:
    return log.segments[i].base_offset


def test_at_most_five_segments_stay_mapped_and_the_oldest_goes_first(place: Place) -> None:
    """segmented_log_segment_index_caching: the write segment is always open; a sixth one evicts the first."""
    log = filled(place, 10, CONFIG.with_(max_mapped_segments=5))
    log.close()
    log = place.open(CONFIG, max_mapped_segments=5)
    assert mapped(log) == [9]
    for i in range(5):
        log.read(first_of(log, i))
    assert mapped(log) == [0, 1, 2, 3, 4, 9]
    log.read(first_of(log, 5))
    assert mapped(log) == [1, 2, 3, 4, 5, 9]
    log.read(first_of(log, 0))
    assert mapped(log) == [0, 2, 3, 4, 5, 9]
    log.read(first_of(log, 2))
    log.read(first_of(log, 6))
    assert mapped(log) == [0, 2, 4, 5, 6, 9]


def test_freshly_sealed_segments_are_not_mapped(place: Place) -> None:
    log = filled(place, 10, CONFIG.with_(max_mapped_segments=5))
    assert mapped(log) == [9]


@pytest.mark.parametrize("kept", [0, 1, 2, 5, None])
def test_a_whole_scan_keeps_no_more_segments_mapped_than_allowed(place: Place, kept: int | None) -> None:
    log = filled(place, 10, CONFIG.with_(max_mapped_segments=kept))
    most = 0
    for record in log.scan():
        assert record.value == RECORDS[(record.offset - INITIAL) % 20]
        most = max(most, len(mapped(log)) - 1)
    assert most <= (9 if kept is None else max(kept, 1))
    assert len(mapped(log)) - 1 == (9 if kept is None else kept)


def test_with_none_kept_only_the_write_segment_is_open(place: Place) -> None:
    log = filled(place, 10, CONFIG.with_(max_mapped_segments=0))
    for i in range(10):
        log.read(first_of(log, i))
        assert mapped(log) == [9]
    log.offset_at(0)
    log.verify()
    log.fetch(INITIAL, 10_000)
    assert mapped(log) == [9]


def test_truncation_and_expiry_keep_the_mapped_segments_straight(place: Place) -> None:
    """laminarmq keys its cache by position, so that expiry makes it point at the wrong segments (L4)."""
    log = place.open(CONFIG, max_mapped_segments=3)
    old = now_ms() - 100_000
    for i in range(10):
        for value in RECORDS:
            log.append(value, timestamp=old if i < 4 else None)
    for i in range(9):
        log.read(first_of(log, i))
    assert mapped(log) == [6, 7, 8, 9]
    assert log.remove_expired(50_000) == 4 * SEGMENT
    assert mapped(log) == [2, 3, 4, 5]
    log.truncate(first_of(log, 4) + 3)
    assert len(log.segments) == 5
    for _ in range(3):
        for i in range(5):
            assert log.read(first_of(log, i)).value == RECORDS[0]
            assert len(mapped(log)) <= 4
    assert values(log) == (RECORDS * 5)[:83]
