"""Printing: rows as a table for people, or JSON, NDJSON or CSV for programs.

Data goes to stdout and notes go to stderr, so a pipe contains only data. Every format prints the same rows:

    table    aligned; sizes and times are readable, long cells truncated, control characters escaped; fitted to the
             width of the terminal
    json     one array (or object), numbers as numbers
    ndjson   one object per line, as they arrive
    csv      a header, then one line per row

`fitted` narrows a table step by step until it fits: columns switch to their short form, ranked columns are dropped
(highest rank first), and the widest column is truncated. The other formats always contain everything.

Bytes that are valid UTF-8 are printed as text. Other bytes become `{"base64": "..."}` in JSON and `base64:...` in a
cell. Text that starts with that prefix is encoded too, so the prefix is never ambiguous.

All output goes through one buffered stream; `live` rows are flushed one by one.

`confirm` asks before data is deleted; without a terminal the command fails and names the option --yes. `ProgressBar`
draws on stderr, and only on a terminal.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, islice
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import typer

from ..display import count_text, rate_text, size_text
from . import FAILED

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

GAP = 2
#: Interval between two updates of a progress bar.
_DRAW_EVERY_S = 0.1
#: A column is not truncated below this width.
_NARROWEST = 8


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name (used in every format except table), its title in a table, and how a table shows a value."""

    name: str
    title: str = ""
    shown: Callable[[Any], str] | None = None
    #: Truncate long cells in a table.
    cut: bool = True
    #: The short form, for narrow tables.
    brief: Callable[[Any], str] | None = None
    #: If positive, the column is dropped from narrow tables, highest rank first.
    rank: int = 0
    #: The width that cells are truncated to; 0 is the default.
    width: int = 0

    @property
    def label(self) -> str:
        """The title, or the name in words."""
        return self.title or self.name.replace("_", " ")


#: Columns that look the same in every table.
_USUAL = {
    column.name: column
    for column in (
        Column("batches", shown=count_text),
        Column("records", shown=count_text),
        Column("size_bytes", "size", size_text),
        Column("problems", shown=lambda problems: str(len(problems)) if problems else "none"),
        Column("path", cut=False),
        Column("detail", cut=False),
    )
}


def columns(*given: str | Column) -> list[Column]:
    """Return the columns of a table; a string names plain or usual ones, separated by spaces."""
    found: list[Column] = []
    for each in given:
        found += [each] if isinstance(each, Column) else [_USUAL.get(name, Column(name)) for name in each.split()]
    return found


#: Returns the width that each column needs, headings included.
Measure = Callable[[Sequence[Column]], list[int]]


def fitted(columns: Sequence[Column], measure: Measure, most: int) -> list[Column]:
    """Return the columns in a form that makes the table at most that wide, as far as possible."""
    kept = list(columns)
    if _total(measure(kept)) <= most:
        return kept
    kept = [replace(column, shown=column.brief) if column.brief is not None else column for column in kept]
    for leaving in sorted((column for column in kept if column.rank), key=lambda column: -column.rank):
        if _total(measure(kept)) <= most:
            return kept
        kept.remove(leaving)
    return _cut(kept, measure(kept), most)


def _cut(columns: list[Column], widths: list[int], most: int) -> list[Column]:
    """Truncate the widest column that may be truncated, by the excess width."""
    over = _total(widths) - most
    able = [number for number, column in enumerate(columns) if column.cut and widths[number] > _NARROWEST]
    if over <= 0 or not able:
        return columns
    widest = max(able, key=lambda number: widths[number])
    columns[widest] = replace(columns[widest], width=max(widths[widest] - over, _NARROWEST))
    return columns


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


_BASE64 = "base64:"
#: The maximum width of a table cell; the other formats print everything.
_CELL_MOST = 72
#: The number of rows that determine the column widths; later rows are printed as they arrive.
_SAMPLE_ROWS = 500

#: Types that JSON represents directly; most values have one of them.
_JSON = frozenset({str, int, float, bool})
#: Created once: `json.dumps` creates a new one for every call.
_to_json = json.JSONEncoder(ensure_ascii=False).encode

#: A dictionary by column name, or an object with the columns as attributes.
Row = Any


OutputFormat = Literal["table", "json", "ndjson", "csv"]


def note(text: str) -> None:
    """Print a line for the user on stderr, because it is not data."""
    print(text, file=sys.stderr, flush=True)


def colour_wanted(stream: Any) -> bool:
    """Return whether to use escape sequences: on a terminal, unless NO_COLOR is set."""
    return bool(stream.isatty()) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


# --- values


def plain(value: Any) -> Any:
    """Convert a value to one that JSON can represent."""
    if value is None or type(value) in _JSON:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(raw).decode()}
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return value if isinstance(value, str | int | float) else str(value)


def cell(value: Any) -> str:
    """Convert a value to the text of a CSV field; see `plain` for bytes."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = _BASE64
        return _BASE64 + base64.b64encode(raw).decode() if text.startswith(_BASE64) else text
    made = plain(value)
    return made if isinstance(made, str) else _to_json(made)


def visible(text: str) -> str:
    """Escape control characters, so that a record cannot control the terminal."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode() for each in text
    )


# --- the printer


class Printer:
    """Prints rows in the requested format."""

    def __init__(self, form: OutputFormat = "table", stream: BinaryIO | None = None, width: int | None = None) -> None:
        self.form = form
        #: The width that a table is fitted to; None is unlimited.
        self.width = width
        if stream is None and width is None and sys.stdout.isatty():
            self.width = shutil.get_terminal_size().columns
        self._stream = stream if stream is not None else sys.stdout.buffer
        self._bold = stream is None and colour_wanted(sys.stdout)

    @property
    def for_people(self) -> bool:
        """True if the output is for a person, so that other text may appear between the rows."""
        return self.form == "table"

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    def line(self, text: str = "") -> None:
        """Write one line."""
        self._stream.write(text.encode("utf-8", "surrogateescape") + b"\n")

    def flush(self) -> None:
        self._stream.flush()

    def rows(self, rows: Iterable[Row], columns: Sequence[Column], *, live: bool = False, empty: str = "") -> None:
        """Print rows. `live` flushes each row. `empty` is the note of an empty table."""
        printers = {
            "table": self._table,
            "json": _json_lines,
            "ndjson": _ndjson_lines,
            "csv": _csv_lines,
        }
        lines = self._table(rows, columns, 0) if live and self.for_people else printers[self.form](rows, columns)
        found, write = False, self._stream.write
        for line in lines:
            found = True
            write(f"{line}\n".encode("utf-8", "surrogateescape"))
            if live:
                self.flush()
        if not found and empty and self.for_people:
            note(empty)
        self.flush()

    def item(self, found: Row, columns: Sequence[Column] = ()) -> None:
        """Print a dictionary or dataclass: a list of fields for people, a JSON object or a row for programs."""
        fields = found
        if dataclasses.is_dataclass(found):
            fields = {each.name: getattr(found, each.name) for each in dataclasses.fields(found)}
        if self.for_people:
            known = {column.name: column for column in columns}
            shown = [(known.get(name, Column(name)), value) for name, value in fields.items()]
            width = max((len(column.label) for column, _ in shown), default=0)
            for column, value in shown:
                self.line(f"{self._strong(column.label.ljust(width))}  {_shown(column, value, cut=False)}".rstrip())
        elif self.form == "csv":
            self.rows([fields], [Column(name) for name in fields])
        else:
            indent = 2 if self.form == "json" else None
            self.line(json.dumps(plain(fields), ensure_ascii=False, indent=indent))
        self.flush()

    def outcome(self, text: str, fields: Row) -> None:
        """Report the result of a command: a note for people, an object for programs."""
        if self.for_people:
            note(text)
        else:
            self.item(fields)

    def object_or_rows(self, whole: Row, rows: Iterable[Row], columns: Sequence[Column], *, empty: str = "") -> None:
        """Print one object as JSON or NDJSON; in the other formats, print rows."""
        if self.form in ("json", "ndjson"):
            self.item(whole)
        else:
            self.rows(rows, columns, empty=empty)

    def remark(self, text: str) -> None:
        """Print a note that programs do not need."""
        if self.for_people:
            note(text)

    def _table(self, rows: Iterable[Row], columns: Sequence[Column], sample_rows: int = _SAMPLE_ROWS) -> Iterator[str]:
        rows = iter(rows)
        sample = list(islice(rows, sample_rows))
        if not sample and sample_rows:
            return
        values = [_getter(row) for row in sample]

        def measure(some: Sequence[Column]) -> list[int]:
            cells = [
                [column.label.upper(), *(_shown(column, value(column.name)) for value in values)] for column in some
            ]
            return [max(map(display_width, each)) for each in cells]

        whole = columns
        if self.width is not None and sample:
            columns = fitted(columns, measure, self.width)
        widths = measure(columns)
        numbers = {int, float, type(None)}
        kinds = [{type(value(column.name)) for value in values} for column in columns]
        right = [bool(sample) and each <= numbers for each in kinds]
        yield self._strong(_aligned([column.label.upper() for column in columns], widths, right))
        for row in chain(sample, rows):
            value = _getter(row)
            yield _aligned([_shown(column, value(column.name)) for column in columns], widths, right)
        if len(columns) < len(whole):
            self.flush()
            known = {column.name for column in columns}
            left_out = ", ".join(column.label for column in whole if column.name not in known)
            note(f"not shown (--output csv has it): {left_out}")

    def _strong(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self._bold else text


def _json_lines(rows: Iterable[Row], columns: Sequence[Column]) -> Iterator[str]:
    before = "["
    for line in _ndjson_lines(rows, columns):
        yield before + line
        before = ","
    yield "]" if before == "," else "[]"


def _ndjson_lines(rows: Iterable[Row], columns: Sequence[Column]) -> Iterator[str]:
    names = [column.name for column in columns]
    for row in rows:
        value = _getter(row)
        yield _to_json({name: plain(value(name)) for name in names})


def _csv_lines(rows: Iterable[Row], columns: Sequence[Column]) -> Iterator[str]:
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="")
    names = [column.name for column in columns]
    for cells in chain([names], ([*map(cell, map(_getter(row), names))] for row in rows)):
        writer.writerow(cells)
        yield line.getvalue()
        line.seek(0)
        line.truncate()


def _getter(row: Row) -> Callable[[str], Any]:
    return row.get if isinstance(row, dict) else lambda name: getattr(row, name, None)


def _shown(column: Column, value: Any, *, cut: bool = True) -> str:
    if column.shown is not None:
        text = column.shown(value)
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    else:
        text = cell(value)
    text, most = visible(text), column.width or _CELL_MOST
    return text if len(text) <= most or not (cut and column.cut) else text[: most - 1] + "…"


def _aligned(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = []
    for text, width, to_the_right in zip(cells, widths, right, strict=True):
        space = " " * (width - display_width(text))
        parts.append(space + text if to_the_right else text + space)
    return (" " * GAP).join(parts).rstrip()


def display_width(text: str) -> int:
    """Return the width of a text in terminal columns."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


# --- the terminal


def confirm(what: str, yes: bool) -> None:
    """Return if the user agrees, with `--yes` or at the terminal; otherwise end the command."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"to {what}, give --yes: stdin is not a terminal, so sawlog cannot ask")
    if not typer.confirm(f"{what}?", err=True):
        note("cancelled; nothing was changed")
        raise typer.Exit(FAILED)


class ProgressBar:
    """A progress bar: percentage, amount, rate and remaining time. Without a terminal, the bar is not drawn.

    A `total` of None is unknown. If `size_bytes` is given, the percentage is that of the bytes of the input, whose
    records nobody has counted. `quiet` disables drawing, for input that is typed into the same terminal.
    """

    def __init__(
        self, title: str, total: int | None, unit: str, *, size_bytes: int | None = None, quiet: bool = False
    ) -> None:
        self._title, self._total, self._unit = title, size_bytes or total, unit
        self._by_size = bool(size_bytes)
        self._quiet = quiet
        self._bar: RichProgress | None = None
        self._task: Any = None
        self._began = self._next_draw = 0.0
        self.done = 0

    def __enter__(self) -> ProgressBar:
        if sys.stderr.isatty() and not self._quiet:
            self._began = monotonic()
            self._bar = self._start()
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total, amount=self.amount())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def shown(self) -> bool:
        """True if the bar is drawn."""
        return self._bar is not None

    def advance(self, count: int, position: int | None = None) -> None:
        """Add `count` to the progress. `position` is the number of bytes of the input that were read."""
        self.done += count
        if self._bar is None or (now := monotonic()) < self._next_draw:
            return
        self._next_draw = now + _DRAW_EVERY_S
        reached = position if self._by_size else self.done
        self._bar.update(self._task, completed=reached, amount=self.amount())

    def reach(self, done: int, total: int) -> None:
        """Set the progress, and the total, which may become known only now."""
        if self._bar is not None:
            self._total = total
            self._bar.update(self._task, total=total)
        self.advance(done - self.done)

    def amount(self) -> str:
        """Return the amount done, the total, and the rate since the beginning."""
        shown = size_text if self._unit == "bytes" else count_text
        total = f" of {shown(self._total)}" if self._total and not self._by_size else ""
        unit = "" if self._unit == "bytes" else f" {self._unit}"
        rate = self.done / max(monotonic() - self._began, 1e-3)
        return f"{shown(self.done)}{total}{unit}, {size_text(rate) if self._unit == 'bytes' else rate_text(rate)}/s"

    def _start(self) -> RichProgress:
        from rich import progress
        from rich.console import Console

        known = [progress.BarColumn(), progress.TaskProgressColumn(), progress.TimeRemainingColumn(compact=True)]
        return progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            *(known if self._total is not None else []),
            progress.TextColumn("{task.fields[amount]}"),
            console=Console(stderr=True),
            transient=True,
        )
