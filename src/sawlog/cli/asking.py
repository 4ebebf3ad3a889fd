"""Asking before something is deleted. Where nobody can answer, the answer is no, and how to say yes is said."""

from __future__ import annotations

import sys

import typer

from . import FAILED
from .output import note


def confirm(what: str, yes: bool) -> None:
    """Go on only if a person agrees: by `--yes`, or at the terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"to {what}, say --yes: there is nobody to ask")
    if not typer.confirm(f"{what}?", err=True):
        note("nothing was done")
        raise typer.Exit(FAILED)
