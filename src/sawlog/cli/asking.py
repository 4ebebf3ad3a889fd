"""Asks for confirmation before data is deleted. Without a terminal the command fails and names the option --yes."""

from __future__ import annotations

import sys

import typer

from .codes import FAILED
from .output import note


def confirm(what: str, yes: bool) -> None:
    """Return only if the user agrees, with `--yes` or at the terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"to {what}, give --yes: stdin is not a terminal, so sawlog cannot ask")
    if not typer.confirm(f"{what}?", err=True):
        note("cancelled; nothing was changed")
        raise typer.Exit(FAILED)
