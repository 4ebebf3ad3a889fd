"""The output of the tour: headings, checks, bars, a chart, and the table at the end.

A terminal gets colour and a moving bar; other outputs get the same text without control characters. Where the encoding
has no block characters, similar ASCII characters are used.
"""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

WIDTH = 96
_MARGIN = 3
_EIGHTHS_ACROSS, _EIGHTHS_UP = " ▏▎▍▌▋▊▉█", " ▁▂▃▄▅▆▇█"
_NEAREST = str.maketrans("✓✗µ·─▏▎▍▌▋▊▉█▁▂▃▄▅▆▇", "+!u,-   #####   ####")


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """Replace a character that the encoding lacks by a similar one of the same width."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end].translate(_NEAREST)
    return lacking.encode("ascii", "replace").decode(), error.end


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table at the end."""

    what: str
    count: int
    unit: str
    seconds: float

    @property
    def per_second(self) -> float:
        """The rate."""
        return self.count / max(self.seconds, 1e-9)


class Progressing:
    """A counter, shown in a terminal."""

    def __init__(self, bar: Progress | None, total: int) -> None:
        self._bar, self._began, self._done = bar, perf_counter(), 0
        self._task = bar.add_task("", total=total, rate="") if bar else None

    def advance(self, count: int) -> None:
        """Add to the count."""
        self._done += count
        if self._bar is not None and self._task is not None:
            rate = self._done / (perf_counter() - self._began)
            self._bar.update(self._task, completed=self._done, rate=f"{rate:,.0f} a second")


class Screen:
    """All output of the tour, and the checks that decide its exit code."""

    def __init__(self) -> None:
        codecs.register_error("nearest", _nearest)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="nearest")
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._console.width = min(self._console.width, WIDTH)
        #: A pipe gets no animation, even if colour is requested.
        self._moves = sys.stdout.isatty() and not self._console.is_dumb_terminal
        self._acts = 0
        #: When each part began.
        self.marks: list[tuple[str, float]] = []
        self.results: list[Result] = []
        self.failed: list[str] = []
        self.checks = 0

    @property
    def width(self) -> int:
        """Return the width of a line without the margin."""
        return self._console.width - 2 * _MARGIN

    # --- words

    def print(self, text: str | Text = "", style: str = "") -> None:
        """Print a paragraph inside the margin, wrapped."""
        self._show(Padding(Text(text, style) if isinstance(text, str) else text, (0, _MARGIN)))

    def _show(self, what: RenderableType) -> None:
        """Print; without a terminal, strip the blanks with which rich pads lines."""
        if self._moves:
            self._console.print(what)
            return
        with self._console.capture() as captured:
            self._console.print(what)
        self._console.file.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())
        self._console.file.flush()

    def line(self) -> None:
        """Print an empty line."""
        self._show("")

    def head(self, text: str, below: str) -> None:
        """Print the first two lines."""
        self.line()
        self.print(text, "bold cyan")
        self.print(below, "dim")

    def act(self, title: str, about: str) -> None:
        """Begin a new part."""
        self._acts += 1
        self.marks.append((title, perf_counter()))
        self.line()
        self._show(Rule(Text(f"{self._acts}  {title}", "bold"), align="left", style="cyan"))
        self.print(about, "dim")
        self.line()

    def check(self, true: bool, text: str) -> None:
        """Show a check; if it does not hold, the tour fails."""
        self.checks += 1
        if not true:
            self.failed.append(text)
        mark = Text("✓ ", "bold green") if true else Text("✗ ", "bold red")
        table = Table.grid()
        table.add_row(mark, Text(text, "" if true else "red"))
        self._show(Padding(table, (0, _MARGIN)))

    def facts(self, *facts: tuple[str, str | Text]) -> None:
        """Print names on the left and their values on the right."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts:
            table.add_row(name, value)
        self._show(Padding(table, (0, _MARGIN)))
        self.line()

    # --- numbers

    def result(self, what: str, count: int, unit: str, seconds: float) -> Result:
        """Record a measurement for the table at the end."""
        made = Result(what, count, unit, seconds)
        self.results.append(made)
        return made

    @contextmanager
    def progress(self, total: int) -> Iterator[Progressing]:
        """A bar that fills while the block runs; without a terminal, nothing."""
        if not self._moves:
            yield Progressing(None, total)
            return
        columns = (
            TextColumn(" " * (_MARGIN - 1)),
            BarColumn(bar_width=min(40, self.width // 2), complete_style="cyan", finished_style="green"),
            TextColumn("{task.completed:>11,.0f}"),
            TextColumn("{task.fields[rate]}", style="dim"),
        )
        with Progress(*columns, console=self._console) as bar:
            yield Progressing(bar, total)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show a spinner while there is no progress to show."""
        if not self._moves:
            self.print(f"{text.strip(' .')} ...", "dim")
            yield
            return
        with self._console.status(Text(text, "dim"), spinner_style="cyan"):
            yield

    def bars(self, title: str, values: Mapping[str, float], labels: Sequence[str]) -> None:
        """Print a bar for each value; the largest fills the line."""
        room = self.width - max(map(len, values)) - max(map(len, labels)) - 4
        most = max(values.values(), default=0) or 1
        self.print(title)
        for (name, value), label in zip(values.items(), labels, strict=True):
            bar = Text(f"{name}  ")
            bar.append(self._bar(value / most, room).ljust(room), "cyan")
            bar.append(f"  {label.rjust(max(map(len, labels)))}")
            self.print(bar)

    @staticmethod
    def _bar(part: float, room: int) -> str:
        eighths = round(part * room * 8)
        return "█" * (eighths // 8) + _EIGHTHS_ACROSS[eighths % 8].strip()

    def skyline(self, title: str, values: Sequence[int], left: str, right: str, *, height: int = 4) -> None:
        """Print a sparkline of several rows, with the first and the last time below it."""
        most = max(values, default=0) or 1
        self.print(title)
        levels = [round(value / most * height * 8) for value in values]
        for row in reversed(range(height)):
            cells = [min(max(level - row * 8, 0), 8) for level in levels]
            text = "".join(_EIGHTHS_UP[cell] for cell in cells)
            self.print(text.rstrip() or " ", "cyan")
        self.print(left + right.rjust(len(values) - len(left)), "dim")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table: text on the left, numbers on the right."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", border_style="cyan")
        for i, name in enumerate(head):
            table.add_column(name, justify="right" if i else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._show(Padding(table, (0, _MARGIN)))
        self.line()

    def summary(self) -> None:
        """Print all measurements."""
        rows = [
            (each.what, f"{each.count:,} {each.unit}", duration(each.seconds), f"{each.per_second:,.0f}/s")
            for each in self.results
        ]
        self.table(("what", "how many", "how long", "rate"), rows)


def duration(seconds: float) -> str:
    """Format a number with three significant digits and its unit."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.{2 if seconds * factor < 10 else 1 if seconds * factor < 100 else 0}f} {unit}"
    raise AssertionError


def size(size_bytes: float) -> str:
    """Format a size with its unit."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.1f} {unit}"
    return f"{size_bytes:,.0f} bytes"
