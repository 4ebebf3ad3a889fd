"""Which byte of a damaged batch is wrong: the CRC tells not only that, it often tells where.

A CRC is linear. If one bit, or several bits of one byte, were changed, the difference between the stored and the
computed CRC is what that change alone contributes: the CRC of an error pattern with zeros behind it. So the difference
is taken back over the bytes from the last to the first, one zero byte at a time; where what is left is the CRC of a
single byte, that byte with that pattern explains all of it.

A single flipped bit is found with certainty (the code's distance is 4 at any length that a batch can have). Several
bits of one byte are found unless two places would explain them, which chance makes possible in large batches; then no
place is named rather than a wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
#: Above this nobody wants to wait: a step is a few hundred nanoseconds.
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
