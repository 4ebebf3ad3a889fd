"""Tell object storage addresses (`s3://bucket/store`) from paths (`data`, `C:/data`).

Functions that open a local directory reject an address: it would otherwise create a directory called "s3:".
"""

from __future__ import annotations

import re
from typing import TypeGuard

from .errors import InvalidConfig

#: Schemes of supported buckets.
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "memory", "file")
#: Any address, including one that `pathlib` normalized to a single slash. A drive, as in C:/data, has one letter.
_ANY_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
#: An address after `pathlib` dropped one of its slashes.
_NORMALIZED = re.compile(f"({'|'.join(SCHEMES)}):/(?!/)")


def is_address(place: object) -> TypeGuard[str]:
    """Return whether this is an address, of a supported scheme or not."""
    return isinstance(place, str) and _ADDRESS.match(place) is not None


def check_local(place: object, what: str) -> None:
    """Raise `InvalidConfig` for an address, file:// included, where a local path is needed. `what` names the path in
    the error."""
    text = str(place)
    if _ANY_ADDRESS.match(text):
        address = text if is_address(text) else text.replace(":/", "://", 1)
        raise InvalidConfig(
            f"{what} must be a path on this machine, not the address {address}. Write to a local directory, and copy it"
        )


def refuse_address(place: object, instead: str) -> None:
    """Raise `InvalidConfig` for an address where a directory is needed. `instead` says what to call; `{address}` in it
    is replaced."""
    text = str(place)
    if _NORMALIZED.match(text):
        text = text.replace(":/", "://", 1)
    if is_address(text):
        hint = instead.format(address=text)
        raise InvalidConfig(f"{place} is an address of object storage and not a directory: {hint}")
