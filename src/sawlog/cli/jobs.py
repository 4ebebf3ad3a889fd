"""Running a job of `sawlog.pipelines` from a command: in the active Spark session or a new local one, with progress.

Spark is imported only when a job starts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from .options import parsed
from .output import note
from .terminal import ProgressBar
from .units import duration_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Every = Annotated[
    str | None,
    typer.Option(
        "--every", metavar="TIME", help="Repeat at this interval, such as 30s or 5m, until Ctrl-C.  [default: run once]"
    ),
]


@contextmanager
def running_job(title: str, total: int | None, unit: str) -> Iterator[tuple[SparkSession, Callable[[int], None]]]:
    """Yield a Spark session and a progress callback. Starting Spark is slow, so call the job's `check_params` first."""
    from ..pipelines import running

    running.check_packages()
    if sys.stderr.isatty():
        note("starting Spark")
    spark = running.session()
    with ProgressBar(title, total, unit) as progress:
        yield spark, progress.advance


def seconds(given: str | None, option: str = "--every") -> float | None:
    """Parse a duration, such as the interval of --every, to seconds."""
    found = parsed(option, given, duration_ms)
    return None if found is None else found / 1000
