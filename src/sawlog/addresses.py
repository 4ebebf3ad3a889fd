"""Which texts are addresses of object storage and not paths: `s3://bucket/store` is one, `data` and `C:/data` are not.

Whoever opens a directory refuses an address: otherwise it would create a directory that is called "s3:".
"""

from __future__ import annotations

import re

from .errors import InvalidConfig

#: The kinds of addresses that are buckets.
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "memory", "file")
#: An address, also as `pathlib` writes it, which drops a slash. A drive, as in C:/data, has one letter.
_ANY_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
#: What an address begins with. A path that was made of one has lost a slash, as `pathlib` does it.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_CRIPPLED = re.compile(f"({'|'.join(SCHEMES)}):/(?!/)")


def is_address(place: object) -> bool:
    """Whether a place is an address, also one of a kind that is not supported."""
    return isinstance(place, str) and _ADDRESS.match(place) is not None


def check_local(place: object, what: str) -> None:
    """Raise `InvalidConfig` for an address, file:// included, where files are written through the file system: it would
    become a directory that is called "s3:". `what` names the path in the error."""
    text = str(place)
    if _ANY_ADDRESS.match(text):
        address = text if is_address(text) else text.replace(":/", "://", 1)
        raise InvalidConfig(
            f"{what} must be a path on this machine, not the address {address}. Write to a local directory, and copy it"
        )


def refuse_address(place: object, instead: str) -> None:
    """Raise `InvalidConfig` for an address where a directory is needed; `instead` says what to call, with
    {address} where that is."""
    text = str(place)
    if _CRIPPLED.match(text):
        text = text.replace(":/", "://", 1)
    if is_address(text):
        hint = instead.format(address=text)
        raise InvalidConfig(f"{place} is an address of object storage and not a directory: {hint}")
