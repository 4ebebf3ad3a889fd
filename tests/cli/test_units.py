"""Sizes, durations and times are read as people write them, and shown as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sawlog.cli.parsing import time_ms
from sawlog.display import count_text, duration_text, rate_text, size_text, time_text
from sawlog.units import duration_ms, size_bytes

from ..looping import for_each


@for_each(
    ("text", "expected"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64KiB", 65536),
        ("64 kib", 65536),
        ("10MB", 10_000_000),
        ("512k", 512 * 1024),
        ("1.5GiB", 3 << 29),
        ("2g", 2 << 30),
    ],
)
def test_sizes_have_units(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@for_each("text", ["", "x", "-1", "10 XB", "1e3", "KiB"])
def test_an_invalid_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="64KiB"):
        size_bytes(text)


@for_each(
    ("text", "expected"),
    [
        ("250ms", 250),
        ("10s", 10_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("0.5s", 500),
        ("2w", 1_209_600_000),
    ],
)
def test_durations_have_units(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@for_each("text", ["", "10", "h", "-1h", "1y", "1h 30m"])
def test_an_invalid_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="1h30m"):
        duration_ms(text)


@for_each(
    ("text", "expected"),
    [
        ("2026-11-01T08:30:00Z", datetime(2026, 11, 1, 8, 30, tzinfo=UTC)),
        ("2026-11-01T08:30+02:00", datetime(2026, 11, 1, 6, 30, tzinfo=UTC)),
        ("2026-11-01T08:30", datetime(2026, 11, 1, 8, 30).astimezone()),
        ("2026-11-01", datetime(2026, 11, 1).astimezone()),
        ("1793520000", datetime.fromtimestamp(1793520000, UTC)),
        ("1793520000123", datetime.fromtimestamp(1793520000, UTC) + timedelta(milliseconds=123)),
    ],
)
def test_times_are_iso_or_numbers_and_local_unless_they_name_a_zone(text: str, expected: datetime) -> None:
    assert time_ms(text) == round(expected.timestamp() * 1000)


@for_each("text", ["", "now", "12:30", "20261101", "123", "2026-13-01", "2026-11-01T08:30:"])
def test_an_invalid_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="2026-11-01T08:30"):
        time_ms(text)


@given(some.integers(0, 4_000_000_000_000))
def test_a_printed_time_parses_to_the_same_time(ms: int) -> None:
    assert time_ms(time_text(ms)) == ms


def test_a_time_beyond_the_calendar_is_shown_as_its_number() -> None:
    assert time_text(2**62) == str(2**62)
    assert time_text(-1) == ""


@for_each(
    ("number", "shown"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (200 << 20, "200 MiB"), (3 << 30, "3.0 GiB")]
)
def test_sizes_are_shown_with_a_unit(number: int, shown: str) -> None:
    assert size_text(number) == shown


def test_counts_rates_and_durations_are_short() -> None:
    assert count_text(1204331) == "1,204,331"
    assert rate_text(12500) == "12.5k"
    assert [duration_text(ms) for ms in (0.25, 12.5, 1500, 120_000, 5_400_000, 90_000_000)] == [
        *("250 µs", "12.5 ms", "1.5 s", "2 m", "1 h 30 m", "1 d 1 h"),
    ]
