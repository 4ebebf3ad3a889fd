"""CRC-32C, the checksum of a record batch, and its combination for adjacent parts.

`crc32c(data, value=0)` is the `crc32c` package's own function, re-exported: it uses the processor's instruction,
accepts bytes, bytearray, memoryview and mmap without copying, and continues from `value`. A wrapper would cost more
than the checksum of a small batch.

`combine(crc_a, crc_b, length_b)` is the CRC-32C of A followed by B. Streamed records need it: their bytes are summed
while they arrive, before the header in front of them is known.

A CRC is a polynomial over GF(2), reduced by Castagnoli's. Appending n bytes to A multiplies its CRC by x^(8n), and B
adds its own CRC. The powers x^(8·2^k) come from squaring; the bits of n select the powers to use. Multiplication by a
fixed power is linear, so each power is stored as eight tables of sixteen entries, one table per hexadecimal digit of a
CRC, computed on first use: about thirty short steps for 2 GiB.

Pure functions, safe from any thread.
"""

from __future__ import annotations

from functools import cache

from crc32c import crc32c

__all__ = ["PartialSums", "combine", "crc32c"]

# Castagnoli's polynomial with the bits reflected, as the CRC has them: bit 31 is x^0, bit 0 is x^31.
_POLYNOMIAL = 0x82F63B78
_X_TO_THE_8 = 1 << (31 - 8)


def combine(crc_a: int, crc_b: int, length_b: int) -> int:
    """Return the CRC-32C of A + B, given the CRC of A, the CRC of B and the length of B in bytes."""
    if length_b < 0:
        raise ValueError(f"a length cannot be negative: {length_b}")
    crc, power = crc_a, 0
    while length_b:
        if length_b & 1:
            t0, t1, t2, t3, t4, t5, t6, t7 = _tables(power)
            crc = (
                t0[crc & 15]
                ^ t1[crc >> 4 & 15]
                ^ t2[crc >> 8 & 15]
                ^ t3[crc >> 12 & 15]
                ^ t4[crc >> 16 & 15]
                ^ t5[crc >> 20 & 15]
                ^ t6[crc >> 24 & 15]
                ^ t7[crc >> 28]
            )
        length_b >>= 1
        power += 1
    return crc ^ crc_b


class PartialSums:
    """Computes the CRC-32C of any part of a buffer in constant time: a search for batches in untrusted bytes must not
    sum the same bytes again for every position that looks like a batch.

    The CRC of the bytes before each block is computed on first use and kept; the CRC of a part follows from two of
    these.
    """

    _BLOCK_BYTES = 16 << 10

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._before = [0]

    def of(self, start: int, end: int) -> int:
        if end - start <= 2 * self._BLOCK_BYTES:
            return crc32c(self._data[start:end])
        return self._up_to(end) ^ combine(self._up_to(start), 0, end - start)

    def _up_to(self, position: int) -> int:
        block = self._BLOCK_BYTES
        while len(self._before) <= position // block:
            at = (len(self._before) - 1) * block
            self._before.append(crc32c(self._data[at : at + block], self._before[-1]))
        at = position // block
        return crc32c(self._data[at * block : position], self._before[at])


def _times_x(a: int) -> int:
    return a >> 1 ^ (_POLYNOMIAL if a & 1 else 0)


def _multiply(a: int, b: int) -> int:
    """Multiply modulo Castagnoli's polynomial."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = _times_x(b)
    return product


@cache
def _power(k: int) -> int:
    """Return x^(8·2^k), the factor for 2^k more bytes."""
    if k == 0:
        return _X_TO_THE_8
    root = _power(k - 1)
    return _multiply(root, root)


@cache
def _tables(k: int) -> tuple[tuple[int, ...], ...]:
    """Return the tables for multiplication by x^(8·2^k): entry v of table d is the product of a CRC that is zero
    except for v as digit d."""
    products = [0] * 32  # of each single bit
    product = _power(k)
    for bit in range(31, -1, -1):
        products[bit] = product
        product = _times_x(product)
    return tuple(_sums(products[digit : digit + 4]) for digit in range(0, 32, 4))


def _sums(products: list[int]) -> tuple[int, ...]:
    """Return a table whose entry v is the sum, in GF(2), of the products whose bits are set in v."""
    sums = [0]
    for product in products:
        sums += [product ^ other for other in sums]
    return tuple(sums)
