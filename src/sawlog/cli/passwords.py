"""Passwords: from a file, from the terminal without showing them, or from stdin. Never from the command line, where
every user of the machine could read them."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import typer

from ..errors import InvalidConfig


def new_password(user: str, file: Path | None) -> str:
    """Read the new password of a user: from a file, else from the terminal, twice, else the first line of stdin."""
    if file is not None and str(file) != "-":
        from ..broker.security.tls import read_password

        return read_password(file)
    if file is None and sys.stdin.isatty():
        return str(typer.prompt(f"new password of {user}", hide_input=True, confirmation_prompt=True, err=True))
    return _line()


@cache  # a command that connects twice asks once
def ask_password(user: str) -> str:
    """Ask for the password of a user who connects. Stdin may be data, so it is asked for at a terminal only."""
    if not sys.stdin.isatty():
        raise InvalidConfig(f"the password of {user!r} is not known: set password_file, or use a terminal")
    return str(typer.prompt(f"password of {user}", hide_input=True, err=True))


def _line() -> str:
    line = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not line:
        raise typer.BadParameter("stdin has no password in its first line", param_hint="--password-file")
    return line
