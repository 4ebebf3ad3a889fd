"""Retention removes old and surplus segments, by age, by size and on request, and never more than that."""

from __future__ import annotations

import struct
from datetime import timedelta
from typing import Any

import pytest

from sawlog import Log, RetentionReport
from sawlog.batch.build import encode
from sawlog.errors import InvalidConfig

from ..places import TIME_INDEX, Place, fill, named, now_ms, values

HOUR = 3_600_000


def aged(place: Place, *hours: float, **settings: Any) -> Log:
    """A segment of four records for each age; the last one is active."""
    log = place.open(segment_age_ms=None, **settings)
    for i, age in enumerate(hours):
        if i:
            log.seal()
        fill(log, 4, start=4 * i, timestamp=now_ms() - int(age * HOUR))
    return log


def test_leading_old_segments_go_and_the_first_young_one_stops_it(place: Place) -> None:
    log = aged(place, 5, 4, 1, 5, 0)
    assert log.remove_expired(3 * HOUR) == 8
    assert log.lowest_offset == 8
    assert log.remove_expired(3 * HOUR) == 0
    assert len(log) == 12


def test_active_segment_expires_too_and_offsets_go_on(place: Place) -> None:
    log = aged(place, 5, 4)
    assert log.remove_expired(timedelta(hours=3)) == 8
    assert (log.lowest_offset, log.next_offset, len(log)) == (8, 8, 0)
    assert place.bases() == [8]
    assert log.append(b"x") == 8
    log.close()
    assert values(place.open()) == [b"x"]


def test_newest_record_decides_how_old_a_segment_is(place: Place) -> None:
    log = place.open(segment_age_ms=None)
    log.append(b"old", timestamp=now_ms() - 5 * HOUR)
    log.append(b"young", timestamp=now_ms() - HOUR)
    log.append(b"old", timestamp=now_ms() - 6 * HOUR)
    log.seal()
    log.append(b"active")
    assert log.remove_expired(3 * HOUR) == 0
    assert log.remove_expired(HOUR) == 3


@pytest.mark.parametrize("age", [0, 0.0, timedelta(0)])
def test_age_of_nothing_expires_everything(place: Place, age: Any) -> None:
    log = aged(place, 1, 0.5, 0.001)
    assert log.remove_expired(age) == 12


@pytest.mark.parametrize("age", [-1, "1h", None, True, [], timedelta(seconds=-1)])
def test_age_that_makes_no_sense_is_refused(place: Place, age: Any) -> None:
    log = aged(place, 5)
    with pytest.raises(InvalidConfig):
        log.remove_expired(age)
    assert len(log) == 4


@pytest.mark.parametrize("clean", [True, False])
def test_ages_survive_a_restart(place: Place, clean: bool) -> None:
    log = aged(place, 5, 4, 1)
    if clean:
        log.close()
    log = (place if clean else place.copy()).open(segment_age_ms=None)
    assert log.remove_expired(3 * HOUR) == 8
    assert values(log)[0] is not None
    assert log.lowest_offset == 8


def test_time_from_the_future_is_kept(place: Place) -> None:
    log = place.open(segment_age_ms=None)
    log.append(b"x", timestamp=now_ms() + 1000 * HOUR)
    log.seal()
    fill(log, 3, timestamp=1)
    assert log.remove_expired(0) == 0
    assert len(log) == 4


def test_log_clock_counts_where_it_sets_the_time(place: Place) -> None:
    log = place.open(timestamp_type="append")
    fill(log, 3, timestamp=1)
    log.seal()
    log.append(b"x")
    assert log.remove_expired(HOUR) == 0
    assert log.remove_expired(0) == 4


@pytest.mark.parametrize("state", [b"", b"\0" * 11 + b"\1" + b"\0" * 4, b"junk"])
def test_damaged_time_index_deletes_nothing_that_is_young(place: Place, state: bytes) -> None:
    """A cache must never decide on a deletion."""
    log = aged(place, 5, 1, 0)
    log.close()
    place.write(named(4, TIME_INDEX), state[:12])
    log = place.open(segment_age_ms=None)
    assert log.remove_expired(3 * HOUR) == 4
    assert log.lowest_offset == 4


def test_young_record_behind_damage_keeps_its_segment(place: Place) -> None:
    """A bad batch precedes the record and the time index ends too early, but the record is readable."""
    log = place.open(segment_age_ms=None)
    fill(log, 3, timestamp=1000)
    log.append(b"young")
    log.seal()
    log.append(b"active")
    log.close()
    place.flip(named(0), place.batches()[1].position + 16)
    place.write(named(0, TIME_INDEX), struct.pack(">qI", 1000, 0))
    log = place.open(segment_age_ms=None)
    assert log.remove_expired(HOUR) == 0
    assert log.read(3).value == b"young"


# --- apply_retention


def test_report_says_what_went(place: Place) -> None:
    log = aged(place, 5, 4, 1, 0, retention_ms=3 * HOUR)
    size = sum(segment.size_bytes for segment in log.segments[:2])
    assert log.apply_retention() == RetentionReport(2, 8, size, 8)
    assert log.apply_retention() == RetentionReport(0, 0, 0, 8)


def test_report_counts_the_active_segment(place: Place) -> None:
    log = aged(place, 5, 4, retention_ms=3 * HOUR)
    size = log.size_bytes
    assert log.apply_retention() == RetentionReport(2, 8, size, 8)


def test_age_and_size_work_together(place: Place) -> None:
    each = 4 * len(encode([(b"0123456789", None, (), 1000)]))
    log = aged(place, 5, 1, 1, 1, 0, retention_ms=3 * HOUR, retention_bytes=3 * each)
    assert log.apply_retention().removed_records == 8
    assert log.lowest_offset == 8


def test_size_limit_is_kept_when_the_log_grows(place: Place) -> None:
    each = len(encode([(b"0123456789", None, (), 1000)]))
    log = place.open(segment_bytes=4 * each, retention_bytes=10 * each)
    for i in range(100):
        fill(log, 1, start=i)
        log.apply_retention()
        assert log.size_bytes < 10 * each + 4 * each
        assert len(log) >= min(i + 1, 10)


def test_partly_trimmed_segment_counts_its_remaining_records(place: Place) -> None:
    log = aged(place, 5, 0)
    log.trim(3)
    assert log.remove_expired(HOUR) == 1


def test_retention_of_an_empty_log_is_nothing(place: Place) -> None:
    log = place.open(retention_ms=0, retention_bytes=0)
    assert log.apply_retention() == RetentionReport(0, 0, 0, 0)


@pytest.mark.parametrize(
    "settings",
    [{"retention_ms": -1}, {"retention_bytes": -1}, {"retention_ms": 1.5}, {"retention_bytes": "1"}],
)
def test_limits_that_make_no_sense_are_refused(place: Place, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        place.open(**settings)
