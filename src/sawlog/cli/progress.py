"""A progress bar on stderr, shown only on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class ProgressBar:
    """Shows progress; without a terminal it only counts. A `total` of None means that the total is unknown.

    With `quiet` it also only counts: for input that is typed into the same terminal.
    """

    def __init__(self, title: str, total: int | None, unit: str, *, quiet: bool = False) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._quiet = quiet
        self._bar: RichProgress | None = None
        self._task: Any = None
        self.done = 0

    def __enter__(self) -> ProgressBar:
        if sys.stderr.isatty() and not self._quiet:
            self._bar = self._start()
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total, rate="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int) -> None:
        """Count `count` more."""
        self.done += count
        if self._bar is not None:
            self._bar.advance(self._task, count)

    def _start(self) -> RichProgress:
        from rich import progress
        from rich.console import Console

        amount: list[progress.ProgressColumn] = (
            [progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn()]
            if self._unit == "bytes"
            else [progress.MofNCompleteColumn(), progress.TextColumn(self._unit)]
        )
        bar = [progress.BarColumn(), *amount, progress.TimeRemainingColumn()] if self._total else [*amount]
        return progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            *bar,
            console=Console(stderr=True),
            transient=True,
        )
