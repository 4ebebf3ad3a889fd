"""Charts in the terminal (block characters), as SVG, or as PNG if matplotlib is installed.

There are two kinds: values over time (`TimeChart`) and one value per name (`BarChart`). All three outputs have a
title, a unit, an axis with round numbers, a light grid, and the largest value as text. `show_charts` is the entry
point for commands, with the options `Plot` and `NoPlot`.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import Annotated

import typer

from ..display import rate_text
from ..units import ROUND_STEPS_MS
from . import FAILED
from .options import flag, option
from .output import Printer, note

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The latest time that can be shown as a date in every time zone.
LATEST_MS = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp()) * 1000
_ACROSS, _UP = " ▏▎▍▌▋▊▉█", " ▁▂▃▄▅▆▇█"
_HEIGHT_ROWS, _AXIS_COLUMNS = 8, 9


@dataclass(frozen=True, slots=True)
class TimeChart:
    """Values for equal steps of time."""

    title: str
    unit: str
    start_ms: int
    step_ms: int
    values: Sequence[float]
    shown: Callable[[float], str] = rate_text

    @property
    def end_ms(self) -> int:
        """The end of the last step."""
        return self.start_ms + self.step_ms * len(self.values)


@dataclass(frozen=True, slots=True)
class BarChart:
    """One value per name."""

    title: str
    unit: str
    names: Sequence[str]
    values: Sequence[float]
    shown: Callable[[float], str] = rate_text
    #: Use KiB and MiB on the axis, with round numbers in these units.
    binary: bool = False


Chart = TimeChart | BarChart


# --- axes


def axis_of(chart: Chart) -> list[float]:
    """Return the grid lines of a chart: round numbers from 0 to at least its largest value."""
    most = max(chart.values, default=0)
    unit = 1
    while isinstance(chart, BarChart) and chart.binary and most >= unit * 1024:
        unit *= 1024
    return [step * unit for step in round_steps(most / unit)]


def round_steps(most: float, count: int = 4) -> list[float]:
    """Return about `count` round numbers from 0 to at least `most`."""
    if most < 1e-9:  # effectively zero
        return [0.0, 1.0]
    rough = most / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough), 10 * power)
    steps = [0.0]
    while steps[-1] < most:
        steps.append(steps[-1] + step)
    return steps


def time_steps(start_ms: int, end_ms: int, count: int = 8) -> list[tuple[int, str]]:
    """Return at most about `count` round times between two times, each with its label (local time)."""
    span = max(end_ms - start_ms, 1)
    longest = ROUND_STEPS_MS[-1]
    step = next((each for each in ROUND_STEPS_MS if span / each <= count), -(-span // (count * longest)) * longest)
    offset = (_when(start_ms).utcoffset() or timedelta()) // timedelta(milliseconds=1)
    first = -(-(start_ms + offset) // step) * step - offset
    pattern = "%H:%M:%S" if step < 60_000 else "%H:%M" if step < 86_400_000 else "%Y-%m-%d"
    if pattern == "%H:%M" and span > 86_400_000:
        pattern = "%d %b %H:%M"
    return [(at, _when(at).strftime(pattern)) for at in range(first, end_ms + 1, step)]


def _when(ms: int) -> datetime:
    return (_EPOCH + timedelta(milliseconds=min(ms, LATEST_MS))).astimezone()


def _span_text(chart: TimeChart) -> str:
    first, last = _when(chart.start_ms), _when(chart.end_ms)
    if first.date() == last.date():
        return f"{first:%Y-%m-%d %H:%M:%S} to {last:%H:%M:%S %Z}"
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M %Z}"


# --- the terminal


def text_lines(chart: Chart, width: int) -> Iterator[str]:
    """Yield the chart as lines of at most `width` columns."""
    yield f"{chart.title}, {chart.unit}"
    if not len(chart.values):
        yield "  nothing to show"
    elif isinstance(chart, TimeChart):
        yield from _time_lines(chart, columns_wanted(width))
    else:
        yield from _bar_lines(chart, width)


def columns_wanted(width: int) -> int:
    """Return how many time steps a chart of that width can show."""
    return max(width - _AXIS_COLUMNS - 2, 16)


def _time_lines(chart: TimeChart, columns: int) -> Iterator[str]:
    values = list(chart.values)[-columns:]
    top = axis_of(chart)[-1]
    for row in range(_HEIGHT_ROWS, 0, -1):
        share = {_HEIGHT_ROWS: 1.0, _HEIGHT_ROWS // 2: 0.5}.get(row)
        label = "" if share is None else chart.shown(top * share)
        line = "".join(_block(value / top * _HEIGHT_ROWS - (row - 1), _UP) for value in values)
        yield f"{label:>{_AXIS_COLUMNS}} {'┤' if share else '│'}{line}".rstrip()
    yield f"{'0':>{_AXIS_COLUMNS}} └{'─' * len(values)}"
    yield f"{'':>{_AXIS_COLUMNS}}  {_time_labels(chart, len(values), columns)}".rstrip()
    yield f"{'':>{_AXIS_COLUMNS}}  {_span_text(chart)}"


def _time_labels(chart: TimeChart, columns: int, most: int) -> str:
    """Return the time labels below an axis of that many columns, without overlap, in at most `most` columns."""
    line = ""
    span = chart.end_ms - chart.start_ms
    for at, label in time_steps(chart.start_ms, chart.end_ms, max(columns // 14, 1)):
        column = round((at - chart.start_ms) / span * columns)
        if column >= len(line) + (1 if line else 0) and column + len(label) <= min(columns + 6, most):
            line = line.ljust(column) + label
    return line


def _bar_lines(chart: BarChart, width: int) -> Iterator[str]:
    most = max(chart.values) or 1
    shown = [chart.shown(value) for value in chart.values]
    # Truncate long names before bars become shorter than this.
    most_name = max(width - max(map(len, shown)) - 6 - 16, 12)
    labels = [name if len(name) <= most_name else name[: most_name - 1] + "…" for name in chart.names]
    names = max(map(len, labels))
    room = max(width - names - max(map(len, shown)) - 6, 8)
    for name, value, text in zip(labels, chart.values, shown, strict=True):
        length = value / most * room
        bar = "█" * int(length) + _block(length - int(length), _ACROSS).strip()
        yield f"  {name:<{names}}  {bar} {text}"


def _block(fill: float, blocks: str) -> str:
    return blocks[min(max(round(fill * 8), 0), 8)]


# --- SVG

_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP, _BOTTOM = 960, 320, 84, 24, 56, 48
_INK, _FAINT, _GRID = "#1f2933", "#6b7785", "#e4e8ed"
_COLOURS = ("#2f6f9f", "#c2703d")


def svg(charts: Sequence[Chart]) -> str:
    """Return all charts, one below the other, as an SVG document."""
    height = _PANEL * len(charts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, chart in enumerate(charts):
        parts.append(f'<g transform="translate(0 {number * _PANEL})">')
        parts += _panel(chart, _COLOURS[number % len(_COLOURS)])
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(chart: Chart, colour: str) -> Iterator[str]:
    wide, high = _WIDTH - _LEFT - _RIGHT, _PANEL - _TOP - _BOTTOM
    steps = axis_of(chart)
    top = steps[-1]
    yield _text(_LEFT, 26, chart.title, fill=_INK, extra='font-size="16" font-weight="600"')
    about = chart.unit if isinstance(chart, BarChart) else f"{chart.unit}; {_span_text(chart)}"
    yield _text(_LEFT, 44, about, fill=_FAINT)
    for step in steps:
        y = _TOP + high - step / top * high
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + wide}" y2="{y:.1f}" stroke="{_GRID}"/>'
        yield _text(_LEFT - 8, y + 4, chart.shown(step), fill=_FAINT, anchor="end")
    if isinstance(chart, TimeChart):
        yield from _time_panel(chart, colour, wide, high, top)
    else:
        yield from _bar_panel(chart, colour, wide, high, top)
    yield f'<line x1="{_LEFT}" y1="{_TOP + high}" x2="{_LEFT + wide}" y2="{_TOP + high}" stroke="{_FAINT}"/>'


def _time_panel(chart: TimeChart, colour: str, wide: int, high: int, top: float) -> Iterator[str]:
    floor = _TOP + high
    span = max(chart.end_ms - chart.start_ms, 1)
    for at, label in time_steps(chart.start_ms, chart.end_ms):
        x = _LEFT + (at - chart.start_ms) / span * wide
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{floor + 5}" stroke="{_GRID}"/>'
        yield _text(x, floor + 20, label, fill=_FAINT, anchor="middle")
    step = wide / max(len(chart.values), 1)
    points = [f"M{_LEFT} {floor}"]
    for number, value in enumerate(chart.values):  # a staircase: a value holds for its whole step
        y = floor - value / top * high
        points.append(f"L{_LEFT + number * step:.1f} {y:.1f} L{_LEFT + (number + 1) * step:.1f} {y:.1f}")
    points.append(f"L{_LEFT + wide} {floor} Z")
    yield f'<path d="{" ".join(points)}" fill="{colour}" fill-opacity="0.25" stroke="{colour}" stroke-width="1.2"/>'


def _bar_panel(chart: BarChart, colour: str, wide: int, high: int, top: float) -> Iterator[str]:
    floor = _TOP + high
    step = wide / max(len(chart.names), 1)
    bar = min(step * 0.7, 72)
    every = max(-(-len(chart.names) * 60 // wide), 1)  # a label needs about 60 points
    for number, (name, value) in enumerate(zip(chart.names, chart.values, strict=True)):
        x, y = _LEFT + (number + 0.5) * step, floor - value / top * high
        yield (
            f'<rect x="{x - bar / 2:.1f}" y="{y:.1f}" width="{bar:.1f}" height="{max(floor - y, 0):.1f}" rx="2" '
            f'fill="{colour}"><title>{escape(name)}: {escape(chart.shown(value))}</title></rect>'
        )
        if number % every == 0:
            yield _text(x, floor + 20, name if len(name) <= 18 else name[:17] + "…", fill=_FAINT, anchor="middle")
            if step > 50:
                yield _text(x, y - 6, chart.shown(value), fill=_INK, anchor="middle")


def _text(x: float, y: float, text: str, *, fill: str, anchor: str = "start", extra: str = "") -> str:
    more = f" {extra}" if extra else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


# --- PNG


def write_png(charts: Sequence[Chart], path: Path) -> None:
    """Draw the charts with matplotlib. Raises `ImportError` if it is not installed."""
    import matplotlib as mpl  # type: ignore[import-not-found,unused-ignore]

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter  # type: ignore[import-not-found,unused-ignore]

    figure, panels = pyplot.subplots(len(charts), 1, figsize=(9.6, 3.2 * len(charts)), squeeze=False)
    for number, chart in enumerate(charts):
        panel, colour = panels[number][0], _COLOURS[number % len(_COLOURS)]
        panel.set_title(chart.title, loc="left", fontweight="bold")
        panel.set_ylabel(chart.unit)
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _, chart=chart: chart.shown(value)))
        panel.set_axisbelow(True)
        panel.grid(axis="y", color=_GRID)
        panel.spines[["top", "right"]].set_visible(False)
        if isinstance(chart, TimeChart):
            edges = [chart.start_ms + chart.step_ms * each for each in range(len(chart.values) + 1)]
            panel.stairs(chart.values, edges, fill=True, color=colour, alpha=0.5)
            ticks = time_steps(chart.start_ms, chart.end_ms)
            panel.set_xticks([at for at, _ in ticks], [label for _, label in ticks])
            panel.set_xlim(chart.start_ms, chart.end_ms)
            panel.set_xlabel(_span_text(chart))
        else:
            panel.bar(list(chart.names), list(chart.values), color=colour, width=0.7)
        panel.set_yticks(axis_of(chart))
        panel.set_ylim(0, axis_of(chart)[-1])
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


Plot = Annotated[Path | None, option("--plot FILE", "Draw the charts to this .svg or .png file.", ...)]
NoPlot = Annotated[bool, flag("--no-plot", "Print only the table, without charts.", ...)]


def check_plot(plot: Path | None) -> None:
    """Raise a usage error unless the file is an .svg or a .png."""
    if plot is not None and plot.suffix not in (".svg", ".png"):
        raise typer.BadParameter(f"{plot.name} is neither .svg nor .png", param_hint="--plot")


def terminal_columns() -> int:
    """Return the width of charts in the terminal."""
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def show_charts(charts: Sequence[Chart], printer: Printer, plot: Path | None, *, no_plot: bool) -> None:
    """Write the charts to the file; without a file, draw them in the terminal if the output is for people."""
    if plot is not None:
        draw(charts, plot)
    elif printer.for_people and not no_plot:
        width = terminal_columns()
        for chart in charts:
            printer.line()
            for line in text_lines(chart, width):
                printer.line(line)
        printer.flush()


def draw(charts: Sequence[Chart], plot: Path) -> None:
    """Write the charts in the format of the file's suffix."""
    if plot.suffix == ".svg":
        plot.write_text(svg(charts), encoding="utf-8")
    else:
        try:
            write_png(charts, plot)
        except ImportError as error:
            note(f"sawlog: PNG needs matplotlib ({error}); use {plot.with_suffix('.svg')} instead")
            raise typer.Exit(FAILED) from None
    note(f"{plot}: {len(charts)} charts")
