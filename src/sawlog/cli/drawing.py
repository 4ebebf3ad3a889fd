"""Shows charts: in the terminal, or in a file: SVG always, PNG if matplotlib is installed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .codes import FAILED
from .output import Output, note
from .plot import Chart, svg, text_lines, write_png

Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw the charts to this .svg or .png file.")]
NoPlot = Annotated[bool, typer.Option("--no-plot", help="Print only the table, without charts.")]


def check_plot(plot: Path | None) -> None:
    """Refuse a file that no chart can be written to."""
    if plot is not None and plot.suffix not in (".svg", ".png"):
        raise typer.BadParameter(f"{plot.name} is neither .svg nor .png", param_hint="--plot")


def terminal_columns() -> int:
    """The width of charts in the terminal."""
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def show_charts(charts: Sequence[Chart], printer: Output, plot: Path | None, *, no_plot: bool) -> None:
    """Write the charts to the file; without one, draw them in the terminal if people read the output."""
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
    """Write the charts in the format of the file's suffix, and report it."""
    if plot.suffix == ".svg":
        plot.write_text(svg(charts), encoding="utf-8")
    else:
        try:
            write_png(charts, plot)
        except ImportError as error:
            note(f"sawlog: PNG needs matplotlib ({error}); use {plot.with_suffix('.svg')} instead")
            raise typer.Exit(FAILED) from None
    note(f"{plot}: {len(charts)} charts")
