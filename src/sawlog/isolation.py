"""Isolation levels of a reader."""

from __future__ import annotations

from typing import Literal

from .errors import InvalidConfig

#: "committed" hides the records of open and aborted transactions; "uncommitted" returns every visible record.
Isolation = Literal["committed", "uncommitted"]


def is_committed(isolation: Isolation) -> bool:
    """Return True for "committed", False for "uncommitted"; raise `InvalidConfig` for anything else."""
    if isolation == "committed":
        return True
    if isolation == "uncommitted":
        return False
    raise InvalidConfig(f'isolation must be "committed" or "uncommitted", not {isolation!r}')
