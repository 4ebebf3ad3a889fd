"""Text and HTML for prompts and notebooks: sizes, bytes, times, tables. Rendering in a notebook has a time limit."""

from __future__ import annotations

import codecs
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any

#: `bytes_text` truncates to this length.
_MOST_CHARACTERS = 120
#: Time limit of `render_soon`.
_RENDER_S = 1.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_utf8 = codecs.getincrementaldecoder("utf-8")
#: Types of right-aligned cells.
_NUMBERS = (int, float)


def size_text(number: int | float | None) -> str:
    """Format a size with its unit: 5 B, 1.2 KiB, 64 MiB."""
    if number is None:
        return ""
    value, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def count_text(number: int | float | None) -> str:
    """Format a count with separators: 1,204,331."""
    return "" if number is None else f"{number:,.0f}"


def rate_text(number: float) -> str:
    """Format a rate, short enough for an axis: 950, 12.5k, 3.1M."""
    value, unit = float(number), ""
    for larger in ("k", "M", "G"):
        if abs(value) < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g}{unit}"


def duration_text(ms: float | None) -> str:
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
    days, hours, minutes = minutes // 1440, minutes // 60, minutes % 60
    if days:
        return f"{days} d {hours % 24} h" if hours % 24 else f"{days} d"
    if hours:
        return f"{hours} h {minutes} m" if minutes else f"{hours} h"
    return f"{minutes} m"


def counted(number: int, what: str, plural: str | None = None) -> str:
    """Format a number with its noun: 1 topic, 1,204 topics. `plural` is for nouns that take more than an s."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {plural or what + 's'}"


def missing_text(start: int, end: int) -> str:
    """Say that the offsets from `start` up to but not including `end` are missing."""
    if end - start == 1:
        return f"offset {start} is missing"
    return f"offsets {start} to {end - 1} are missing"


def bytes_text(data: bytes | None) -> str:
    """Format bytes as text if they are printable UTF-8, else as hexadecimal digits; truncated if long."""
    if data is None:
        return ""
    cut = bytes(data[: 4 * _MOST_CHARACTERS])
    try:
        text = _utf8().decode(cut, final=len(cut) == len(data))
    except UnicodeDecodeError:
        text = "\0"
    if not all(each.isprintable() or each in "\n\t" for each in text):
        text = cut.hex(" ")
    return text if len(text) <= _MOST_CHARACTERS and len(data) == len(cut) else text[:_MOST_CHARACTERS] + "…"


def time_text(ms: int | None) -> str:
    """Format milliseconds since 1970 as local time; empty for None and for a negative number, which means no
    timestamp."""
    if ms is None or ms < 0:
        return ""
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).astimezone().isoformat(" ", "milliseconds")
    except (OverflowError, ValueError):
        return str(ms)  # outside the calendar, but stored


def html_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Build an HTML table; numbers are right-aligned with thousands separators."""
    head = "".join(f'<th style="text-align:left">{escape(each)}</th>' for each in headings)
    body = "".join(f"<tr>{''.join(_cell(each) for each in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        return f'<td style="text-align:right">{value:,}</td>'
    return f'<td style="text-align:left"><code>{escape(str(value))}</code></td>'


def record_html(record: Any) -> str:
    """Build an HTML table of the fields of a `Record`."""
    place = [("topic", record.topic), ("partition", record.partition)] if record.topic is not None else []
    headers = [(f"header {name}", bytes_text(value)) for name, value in record.headers]
    size = "" if record.value is None else f" ({size_text(len(record.value))})"
    return html_table(
        ("Record", ""),
        [
            *place,
            ("offset", record.offset),
            ("timestamp", time_text(record.timestamp)),
            ("key", "none" if record.key is None else bytes_text(record.key)),
            (f"value{size}", "none" if record.value is None else bytes_text(record.value)),
            *headers,
        ],
    )


def records_html(records: Iterable[Any]) -> str:
    """Build an HTML table of `Record`s, one per row; empty without records."""
    rows = [
        (each.partition, each.offset, time_text(each.timestamp), bytes_text(each.key), bytes_text(each.value))
        for each in records
    ]
    return html_table(("partition", "offset", "time", "key", "value"), rows) if rows else ""


def html_block(title: str, *parts: str) -> str:
    """Build a block of HTML with a title."""
    return f"<div><b>{escape(title)}</b>{''.join(parts)}</div>"


def html_line(text: str) -> str:
    """Build one line of HTML; empty for empty text."""
    return f"<div>{escape(text)}</div>" if text else ""


def render_soon(thing: object, make: Callable[[], str]) -> str:
    """Return the HTML that `make` builds, or the thing's `repr` with the reason if `make` fails or takes too long,
    because of a held lock or a slow disk: a notebook must neither hang nor raise."""
    made: list[str] = []

    def run() -> None:
        try:
            made.append(make())
        except Exception as error:  # displayed instead
            made.append(html_block(repr(thing), html_line(f"{type(error).__name__}: {error}")))

    thread = threading.Thread(target=run, name="sawlog-display", daemon=True)
    thread.start()
    thread.join(_RENDER_S)
    return made[0] if made else html_block(repr(thing), html_line("busy: it took too long to look"))
