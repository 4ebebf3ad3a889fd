"""Interaction with the terminal: confirmations, a progress bar, passwords.

`confirm` asks before data is deleted; without a terminal the command fails and names the option --yes. `ProgressBar`
draws on stderr, and only on a terminal. Passwords come from a file, from the terminal without echo, or from stdin, and
never from the command line, where every user of the machine could read them.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer

from ..errors import InvalidConfig
from .codes import FAILED
from .output import note

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


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
    """A progress bar. Without a terminal it only counts. A `total` of None is unknown.

    `quiet` disables drawing, for input that is typed into the same terminal.
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
        """Add `count` to the progress."""
        self.done += count
        if self._bar is not None:
            self._bar.advance(self._task, count)

    def reach(self, done: int, total: int) -> None:
        """Set the progress, and the total, which may become known only now."""
        if self._bar is not None:
            self._bar.update(self._task, total=total)
        self.advance(done - self.done)

    def _start(self) -> RichProgress:
        from rich import progress
        from rich.console import Console

        amount: list[progress.ProgressColumn] = (
            [progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn()]
            if self._unit == "bytes"
            else [progress.MofNCompleteColumn(), progress.TextColumn(self._unit)]
        )
        bar = [progress.BarColumn(), *amount, progress.TimeRemainingColumn()] if self._total is not None else amount
        return progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            *bar,
            console=Console(stderr=True),
            transient=True,
        )


def new_password(user: str, file: Path | None) -> str:
    """Read a user's new password from a file, else twice from the terminal, else from the first line of stdin."""
    if file is not None and str(file) != "-":
        from ..broker.security.tls import read_password

        return read_password(file)
    if file is None and sys.stdin.isatty():
        return str(typer.prompt(f"new password of {user}", hide_input=True, confirmation_prompt=True, err=True))
    return _line()


@cache  # ask once, even if a command connects twice
def ask_password(user: str) -> str:
    """Ask for the password of a connecting user. Stdin may carry data, so only a terminal is asked."""
    if not sys.stdin.isatty():
        raise InvalidConfig(f"the password of {user!r} is not known: set password_file, or use a terminal")
    return str(typer.prompt(f"password of {user}", hide_input=True, err=True))


def _line() -> str:
    line = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not line:
        raise typer.BadParameter("stdin has no password in its first line", param_hint="--password-file")
    return line
