"""What a reader sees of transactions."""

from __future__ import annotations

from typing import Literal

from .errors import InvalidConfig

#: What a reader sees of transactions: those that are committed, or all records that are visible.
Isolation = Literal["committed", "uncommitted"]


def is_committed(isolation: Isolation) -> bool:
    """Whether only what is committed is to be read; `InvalidConfig` if it is neither of the two."""
    if isolation == "committed":
        return True
    if isolation == "uncommitted":
        return False
    raise InvalidConfig(f'isolation must be "committed" or "uncommitted", not {isolation!r}')
