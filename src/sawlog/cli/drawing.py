"""Charts as files, for every command that draws: SVG always, PNG where matplotlib is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from . import FAILED
from .output import note
from .plot import Chart, svg, write_png


def draw(charts: Sequence[Chart], plot: Path) -> None:
    """Write the picture in the format that the file's name asks for, and say so."""
    if plot.suffix == ".svg":
        plot.write_text(svg(charts), encoding="utf-8")
    else:
        try:
            write_png(charts, plot)
        except ImportError as error:
            note(f"sawlog: PNG needs matplotlib ({error}); ask for {plot.with_suffix('.svg')} instead")
            raise typer.Exit(FAILED) from None
    note(f"{plot}: {len(charts)} charts")
