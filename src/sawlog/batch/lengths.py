"""Batches one after the other by their lengths alone, whatever their offsets and epochs are: somebody may have died
while filling those in."""

from __future__ import annotations

from typing import NamedTuple

from .header import HEADER_BYTES

#: Bytes before what a batch's length counts.
_BEFORE_LENGTH = 12


class Length(NamedTuple):
    """Where a batch is, and how long it is."""

    position: int
    size_bytes: int
    #: How many offsets it covers.
    offsets: int


def lengths(view: memoryview) -> tuple[list[Length], int]:
    """The complete batches at the beginning of these bytes, and the size of the one after them, of which only a part is
    here; 0 if there is none, or what is there is none."""
    found: list[Length] = []
    at, end = 0, len(view)
    while end - at >= HEADER_BYTES:
        size = _BEFORE_LENGTH + int.from_bytes(view[at + 8 : at + 12], "big", signed=True)
        count = 1 + int.from_bytes(view[at + 23 : at + 27], "big", signed=True)
        if size < HEADER_BYTES or count < 1:
            return found, 0
        if size > end - at:
            return found, size
        found.append(Length(at, size, count))
        at += size
    return found, 0
