"""The grammar for offsets and ranges: the meaning of each expression, and refusal of invalid ones."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sawlog.cli.parsing import END, START, Anchor, Bound, Span, offset_of, parse, parse_bound, resolve

from ..looping import for_each

NOW = 1_793_520_000_000
HOUR = 3_600_000


def at(ms: int) -> Bound:
    return Bound(Anchor.TIME, ms)


def utc(text: str) -> Bound:
    return at(round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000))


@for_each(
    ("text", "span"),
    [
        ("start", Span(START)),
        ("end", Span(END)),
        ("500", Span(Bound(Anchor.OFFSET, 500))),
        ("+10", Span(Bound(Anchor.START, 10))),
        ("-100", Span(Bound(Anchor.END, -100))),
        ("100:200", Span(Bound(Anchor.OFFSET, 100), Bound(Anchor.OFFSET, 200))),
        ("100:", Span(Bound(Anchor.OFFSET, 100))),
        (":500", Span(START, Bound(Anchor.OFFSET, 500))),
        (":end", Span(START, END)),
        ("start:-10", Span(START, Bound(Anchor.END, -10))),
        ("-200:-100", Span(Bound(Anchor.END, -200), Bound(Anchor.END, -100))),
        ("@-1h", Span(at(NOW - HOUR))),
        ("@-1h:", Span(at(NOW - HOUR))),
        ("@-2h:-1h", Span(at(NOW - 2 * HOUR), at(NOW - HOUR))),
        ("@-2h:@-1h", Span(at(NOW - 2 * HOUR), at(NOW - HOUR))),
        ("@-1h:now", Span(at(NOW - HOUR), at(NOW))),
        ("@-1h:end", Span(at(NOW - HOUR), END)),
        (":@-1h", Span(START, at(NOW - HOUR))),
        ("500:@-1h", Span(Bound(Anchor.OFFSET, 500), at(NOW - HOUR))),
        ("@1793520000000:+1h30m", Span(at(NOW), at(NOW + HOUR + HOUR // 2))),
        ("@2026-11-01T08:30Z", Span(utc("2026-11-01T08:30"))),
        ("@2026-11-01T08:30:15Z", Span(utc("2026-11-01T08:30:15"))),
        ("@2026-11-01T08:30Z:2026-11-02T09:00Z", Span(utc("2026-11-01T08:30"), utc("2026-11-02T09:00"))),
        ("@2026-11-01T08:30+01:00:", Span(utc("2026-11-01T07:30"))),
        (
            "@2026-11-01T08:30:00+01:00:2026-11-01T09:00:00+01:00",
            Span(utc("2026-11-01T07:30"), utc("2026-11-01T08:00")),
        ),
        ("@1793520000:1793523600", Span(at(NOW), at(NOW + HOUR))),
        ("@10000000000000:", Span(at(10**13))),
        ("@9223372036854775:", Span(at(9223372036854775))),
        ("@99999999999999:+1h", Span(at(10**14 - 1), at(10**14 - 1 + HOUR))),
    ],
)
def test_an_expression_is_parsed_to_its_span(text: str, span: Span) -> None:
    assert parse(text, NOW) == span


@for_each(
    "text",
    [
        *["", ":", "wat", "1.5", "@", "@yesterday", "@-1", "@-1h:wat", "1:2:3", "a:b", "--5", "@12:30", "100-200"],
        *["@9223372036854776", "@99999999999"],
    ],
)
def test_an_invalid_expression_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(ValueError, match="the last 100"):
        parse(text, NOW)


@for_each("text", ["100:200", "", "@-1h:", ":5"])
def test_a_span_is_refused_where_an_offset_is_needed(text: str) -> None:
    with pytest.raises(ValueError, match="a single offset"):
        parse_bound(text, NOW)


#: In every way that people write it: with and without seconds, fractions, zones, or as a number.
WAYS = ["minutes", "seconds", "microseconds"]
times = some.datetimes(datetime(2001, 9, 10), datetime(2286, 1, 1)).map(lambda found: found.replace(microsecond=0))  # noqa: DTZ001
written = some.tuples(times, some.sampled_from(WAYS), some.sampled_from(["Z", "+05:30", "-11:00", ""]))


def as_written(when: tuple[datetime, str, str]) -> tuple[str, int]:
    moment, way, zone = when
    text = moment.isoformat(timespec=way) + zone
    return text, round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)


@given(written, written)
def test_two_times_around_a_colon_are_separated_correctly(
    first: tuple[datetime, str, str], second: tuple[datetime, str, str]
) -> None:
    (one, one_ms), (two, two_ms) = as_written(first), as_written(second)
    assert parse(f"@{one}:{two}", NOW) == Span(at(one_ms), at(two_ms))
    assert parse(f"@{one}:@{two}", NOW) == Span(at(one_ms), at(two_ms))
    assert parse(f"@{one}", NOW) == parse(f"@{one}:", NOW) == Span(at(one_ms))


@dataclass
class Ten:
    """Offsets 10 to 19; the record at offset n has time 1000 n."""

    lowest_offset: int = 10
    next_offset: int = 20

    def offset_at(self, timestamp: int) -> int:
        return max(10, min(-(-timestamp // 1000), 20))


@for_each(
    ("text", "expected"),
    [
        ("start", (10, 20)),
        ("end", (20, 20)),
        ("12", (12, 20)),
        ("+3", (13, 20)),
        ("-3", (17, 20)),
        ("12:15", (12, 15)),
        (":15", (10, 15)),
        ("-5:-2", (15, 18)),
        ("0", (10, 20)),
        ("-100", (10, 20)),
        ("100", (20, 20)),
        ("15:12", (15, 15)),
    ],
)
def test_span_is_found_in_a_log_and_kept_inside_it(text: str, expected: tuple[int, int]) -> None:
    assert resolve(parse(text, NOW), Ten()) == expected


def test_times_are_resolved_by_the_log() -> None:
    assert resolve(Span(at(12_500), at(15_000)), Ten()) == (13, 20)  # records of earlier times may follow
    assert offset_of(at(-5), Ten()) == 10
    assert offset_of(at(10**15), Ten()) == 20


def test_relative_times_count_from_now() -> None:
    before = datetime.now(UTC) - timedelta(hours=1)
    found = parse("@-1h").start.number
    assert before.timestamp() * 1000 - 1 <= found <= (datetime.now(UTC) - timedelta(hours=1)).timestamp() * 1000 + 1
