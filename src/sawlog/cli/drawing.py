"""Writes charts to files: SVG always, PNG if matplotlib is installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from . import FAILED
from .output import note
from .plot import Chart, svg, write_png


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
