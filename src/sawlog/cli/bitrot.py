"""Finds the damaged byte of a batch from its CRC.

A CRC is linear. If one bit, or several bits of one byte, were changed, the difference between the stored and the
computed CRC is the CRC of an error pattern followed by zeros. So we undo one zero byte at a time, from the last byte
to the first. Where the remainder is the CRC of a single byte, that byte with that pattern explains the difference.

A single flipped bit is always found (the code's distance is 4 at every possible batch length). Several changed bits of
one byte are found unless two positions would explain them, which can happen by chance in large batches; then no
position is reported rather than a wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
#: Larger batches would take too long: a step takes a few hundred nanoseconds.
SEARCH_BYTES = 4 << 20


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()
#: The highest byte of each entry is different, so a step can be undone.
_BACK = {entry >> 24: (byte, entry) for byte, entry in enumerate(_TABLE)}
_BYTE_OF = {entry: byte for byte, entry in enumerate(_TABLE) if byte}


@dataclass(frozen=True, slots=True)
class Change:
    """A byte that explains a wrong CRC: `index` counts from the first byte that the CRC covers (negative: the CRC's own
    bytes, -4 to -1), `mask` has the bits that were changed."""

    index: int
    mask: int


def find_change(stored: int, computed: int, size_bytes: int) -> Change | None:
    """The one changed byte that explains why the CRC of `size_bytes` bytes is wrong, if there is exactly one."""
    difference = stored ^ computed
    own = [Change(i - 4, difference >> 8 * (3 - i) & 0xFF) for i in range(4) if not difference & ~(0xFF << 8 * (3 - i))]
    if own and own[0].mask.bit_count() == 1:
        return own[0]
    found = list(own)
    for index in range(size_bytes - 1, max(size_bytes - SEARCH_BYTES, 0) - 1, -1):
        mask = _BYTE_OF.get(difference)
        if mask is not None:
            change = Change(index, mask)
            if mask.bit_count() == 1:
                return change
            found.append(change)
        byte, entry = _BACK[difference >> 24]
        difference = (difference ^ entry) << 8 & 0xFFFFFFFF | byte
    return found[0] if len(found) == 1 and size_bytes <= SEARCH_BYTES else None
