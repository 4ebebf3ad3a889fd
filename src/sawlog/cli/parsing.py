"""Parsing of the values that options accept: times, offsets and ranges; `sawlog.units` parses sizes and durations.

A time is an ISO date or time, or seconds (10 digits) or milliseconds (13 or more) since 1970; without a zone it is
local time, as users at a terminal expect. Each parser raises `ValueError` with valid examples; the options turn it into
a usage error.

The grammar for offsets and ranges is the same in every command:

```
start          from the first record
end            from the end: new records only
N              from offset N                     500
+N             from the N-th after the start     +10
-N             the last N                        -100
@T             records of time T and later       @2026-11-01T08:30   @-1h   @1793520000000
A:B            from A up to, not including, B    100:200   -200:-100   @-2h:@-1h
A:             from A on                         @-1h:
:B             from the start up to B            :500
@T1:T2         between two times; the second one needs no @
@T:+1h         one hour from T on
```

T is a time, or a duration before now: `-1h`, `-90s`, `-7d`, `-1h30m`. The parser tries each colon as the
separator: exactly one choice leaves a valid time on each side.

`parse` returns a `Span`, which is independent of any log; `resolve` turns it into two offsets of a given log.
Timestamps need not be in the order of offsets. The offsets enclose all records of a range of times, and `Span.has`
tells which of the records between them belong to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING

from ..batch.kernel import MAX_TIMESTAMP
from ..clock import now_ms
from ..units import duration_ms

if TYPE_CHECKING:
    from ..store.base import Partition
    from .stores import NamedLog

# --- times

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_ms(text: str) -> int:
    """Parse an ISO date or time (local unless it has a zone), or seconds or ms since 1970, to milliseconds."""
    if text.isascii() and text.isdigit() and (len(text) == 10 or 13 <= len(text) <= len(str(MAX_TIMESTAMP))):
        found_ms = int(text) * (1000 if len(text) == 10 else 1)
        if found_ms > MAX_TIMESTAMP:
            raise ValueError(f"{text!r} is after the last timestamp that a record can have, {MAX_TIMESTAMP}")
        return found_ms
    try:
        # Python reads 8 digits as a date as well; here that would be a short number of milliseconds.
        found = datetime.fromisoformat(text) if not text.isdigit() else None
    except ValueError:
        found = None
    if found is None:
        raise ValueError(
            f"{text!r} is not a time; write 2026-11-01, 2026-11-01T08:30, 2026-11-01T08:30:00Z, or seconds (10 digits) "
            "or milliseconds (13 or more) since 1970"
        )
    try:
        return (found.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
    except (OverflowError, ValueError):  # in the first or last year of the calendar, and outside it in another zone
        raise ValueError(f"{text!r} is outside the supported range of times") from None


# --- offsets and ranges

_NUMBER = re.compile(r"[+-]?\d+")
#: Later than every timestamp.
_NO_TIME = 2**63

GRAMMAR = "write start, end, 500, -100 (the last 100), 100:200, @2026-11-01T08:30, @-1h: or @-2h:-1h"


class Anchor(Enum):
    """Reference point of a bound's number."""

    OFFSET = "offset"
    START = "start"
    END = "end"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a span: a number relative to an anchor (an offset, a distance, or milliseconds since 1970)."""

    anchor: Anchor
    number: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` up to, not including, `end`; an `end` of None is the end of the log."""

    start: Bound
    end: Bound | None = None

    @property
    def times(self) -> tuple[int, int] | None:
        """Half-open range of timestamps in milliseconds, or None if neither end is a time."""
        since = self.start.number if self.start.anchor is Anchor.TIME else None
        until = self.end.number if self.end is not None and self.end.anchor is Anchor.TIME else None
        if since is None and until is None:
            return None
        return -1 if since is None else max(since, 0), _NO_TIME if until is None else until

    def has(self, timestamp: int) -> bool:
        """Return whether a record with this timestamp belongs to the range."""
        times = self.times
        return times is None or times[0] <= timestamp < times[1]


START, END = Bound(Anchor.START), Bound(Anchor.END)
EVERYTHING = Span(START)


# --- parsing


def parse(text: str, at_ms: int | None = None) -> Span:
    """Parse a span; `ValueError` if it is invalid."""
    now = now_ms() if at_ms is None else at_ms
    text = text.strip()
    alone = _bound(text, now)
    if alone is not None:
        return Span(alone)
    readings = [span for at, each in enumerate(text) if each == ":" and (span := _split(text, at, now)) is not None]
    if not readings:
        raise ValueError(f"{text!r} is not an offset or a range; {GRAMMAR}")
    return readings[0]


def parse_bound(text: str, at_ms: int | None = None) -> Bound:
    """Parse a single position instead of a span, for `groups seek --to`."""
    now = now_ms() if at_ms is None else at_ms
    found = _bound(text.strip(), now)
    if found is None:
        raise ValueError(f"{text!r} is not a single offset; write start, end, 500, -100, +10, @2026-11-01 or @-1h")
    return found


def _split(text: str, at: int, now: int) -> Span | None:
    """Parse `text` with the colon at `at` as the separator, if that is valid."""
    left, right = text[:at], text[at + 1 :]
    start = START if not left else _bound(left, now)
    if start is None:
        return None
    if not right:
        return Span(start) if left else None
    end = _bound(right, now)
    if start.anchor is Anchor.TIME and not right.startswith("@") and right not in ("start", "end"):
        end = _time_after(start, right, now)
    return None if end is None else Span(start, end)


def _bound(text: str, now: int) -> Bound | None:
    if text in ("start", "earliest", "end", "latest"):
        return START if text in ("start", "earliest") else END
    if text.startswith("@"):
        return _time(text[1:], now)
    if not _NUMBER.fullmatch(text):
        return None
    if text[0] == "+":
        return Bound(Anchor.START, int(text))
    return Bound(Anchor.END if text[0] == "-" else Anchor.OFFSET, int(text))


def _time(text: str, now: int) -> Bound | None:
    try:
        if text.startswith("-"):
            return Bound(Anchor.TIME, now - duration_ms(text[1:]))
        return Bound(Anchor.TIME, now if text == "now" else time_ms(text))
    except ValueError:
        return None


def _time_after(start: Bound, text: str, now: int) -> Bound | None:
    """Parse the end of a span that begins at a time: another time, or a duration after it."""
    if not text.startswith("+"):
        return _time(text, now)
    try:
        return Bound(Anchor.TIME, start.number + duration_ms(text[1:]))
    except ValueError:
        return None


# --- resolving against a log


def offset_of(bound: Bound, log: Partition | NamedLog) -> int:
    """Return the offset of a bound in this log, limited to the log's range."""
    return min(max(_asked_offset(bound, log), log.lowest_offset), log.next_offset)


def _asked_offset(bound: Bound, log: Partition | NamedLog) -> int:
    """Return the offset of a bound, even if it is outside the log's range."""
    if bound.anchor is Anchor.TIME:
        return log.offset_at(max(bound.number, 0))
    since = {Anchor.OFFSET: 0, Anchor.START: log.lowest_offset, Anchor.END: log.next_offset}[bound.anchor]
    return since + bound.number


def outside(bound: Bound, log: Partition | NamedLog) -> str:
    """Return a message if a bound names an offset outside the log, else an empty string.

    Times, and "the last N" of fewer than N records, name no offset, so they get no message.
    """
    if bound.anchor not in (Anchor.OFFSET, Anchor.START):
        return ""
    return outside_text(_asked_offset(bound, log), log.lowest_offset, log.next_offset)


def outside_text(asked: int, lowest: int, next_offset: int) -> str:
    """Return the message of `outside` for an offset and the bounds of a log."""
    if asked > next_offset:
        return f"offset {asked} is beyond the end; using the end, {next_offset}"
    if asked < lowest:
        return f"offset {asked} is before the first record; using the start, {lowest}"
    return ""


def resolve(span: Span, log: Partition | NamedLog) -> tuple[int, int]:
    """Return (from, to) of a span in the current log; `to` is never below `from`.

    The time index finds the first record at or after a time, and no earlier record is in the range. Records with
    earlier timestamps may follow anywhere, so a range that ends at a time extends to the end of the log.
    """
    start = offset_of(span.start, log)
    end = log.next_offset if span.end is None or span.end.anchor is Anchor.TIME else offset_of(span.end, log)
    return start, max(start, end)
