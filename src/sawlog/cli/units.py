"""Parsing and formatting of sizes, durations and times.

Input: `64MiB`, `1.5GB`, `4096` (bytes); `7d`, `1h30m`, `250ms` (durations); ISO dates and times, seconds and
milliseconds since 1970 (times). A time without a zone is local time, as users at a terminal expect.
Each parser raises `ValueError` with valid examples; the options turn it into a usage error.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from ..batch.kernel import MAX_TIMESTAMP
from ..display import size_text, time_text

_SIZES = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("k", "m", "g", "t"), 1)},
}
_DURATIONS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# --- parsing


def size_bytes(text: str) -> int:
    """Parse `64MiB`, `10MB`, `512k` (1024) or a plain number to bytes."""
    found = _SIZE.fullmatch(text.strip().lower())
    if not found or found[2] not in _SIZES:
        raise ValueError(f"{text!r} is not a size; write 4096, 64KiB, 10MB or 1GiB")
    return (
        int(_finite(float(found[1]) * _SIZES[found[2]], text)) if "." in found[1] else int(found[1]) * _SIZES[found[2]]
    )


def duration_ms(text: str) -> int:
    """Parse `7d`, `1h30m`, `250ms` to milliseconds."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration; write 250ms, 10s, 5m, 1h30m, 7d or 2w")
    found = sum(float(number) * _DURATIONS_MS[unit] for number, unit in _DURATION_PART.findall(text))
    return round(_finite(found, text))


def _finite(number: float, text: str) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]!r}… is too large")
    return number


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


# --- formatting

#: Format bytes with a unit: 5 B, 1.2 KiB, 64 MiB.
format_size = size_text


def format_count(number: int | float | None) -> str:
    """Format a count with separators: 1,204,331."""
    return "" if number is None else f"{number:,.0f}"


def format_rate(number: float) -> str:
    """Format a rate, short enough for an axis: 950, 12.5k, 3.1M."""
    value, unit = float(number), ""
    for larger in ("k", "M", "G"):
        if abs(value) < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g}{unit}"


def format_time(ms: int | None) -> str:
    """Format milliseconds since 1970 as local time; empty if there is no time."""
    return "" if ms is None else time_text(ms)


def format_time_short(ms: int | None) -> str:
    """Format milliseconds since 1970 as local time to the minute, without the zone."""
    whole = format_time(ms)
    return whole[:16] if len(whole) > 16 else whole


def format_duration(ms: float | None) -> str:
    """Format milliseconds as a short duration: 250 ms, 1.5 s, 3 h 20 m."""
    if ms is None:
        return ""
    if ms < 1:
        return f"{ms * 1000:.0f} µs"
    if ms < 1000:
        return f"{ms:.3g} ms"
    if ms < 60_000:
        return f"{ms / 1000:.3g} s"
    minutes = round(ms / 60_000)
    if minutes < 60:
        return f"{minutes} m"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} m" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"
