"""snappy in xerial's framing: magic, version i32, compatible version i32, then blocks [length i32][bare snappy], big
endian. The header is repeated between blocks where streams were concatenated, which xerial also accepts. Versions are
ignored: only one exists, and Redpanda writes it little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import cramjam
import numpy as np

from ...errors import CorruptBatch
from .. import codecs
from . import as_ours, filled, i32_be, limit_of, put_i32_be, run, too_large, too_many_blocks

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024  # xerial's own default
_RATIO: Final = 22  # a copy of 64 bytes takes 3


def compress(view: memoryview, level: int | None) -> memoryview:
    """Compress; snappy has no levels."""
    blocks = range(0, len(view), _XERIAL_BLOCK)
    room = np.empty(len(_XERIAL_HEADER) + len(blocks) * (4 + 32) + len(view) * 7 // 6, np.uint8)
    with room.data as target:
        position = len(_XERIAL_HEADER)
        target[:position] = _XERIAL_HEADER
        for start in blocks:
            plain = view[start : start + _XERIAL_BLOCK]
            size = cramjam.snappy.compress_raw_into(plain, target[position + 4 :])
            put_i32_be(target, position, size)
            position += 4 + size
    return filled(room, position)


def decompress(view: memoryview, max_bytes: int) -> memoryview:
    """Decompress within the bounds."""
    limit, total = limit_of(len(view), max_bytes), sum(map(_size, _blocks(view)))
    if total > limit:
        raise too_large("snappy", view, total, limit)
    return run("snappy", _decode, view, total, limit)


def _decode(view: memoryview, target: memoryview) -> int:
    filled = 0
    for block in _blocks(view):
        filled += cramjam.snappy.decompress_raw_into(block, target[filled:])
    return filled


def _blocks(view: memoryview) -> Iterator[memoryview]:
    """Yield the bare blocks one at a time: a list of a million views would itself exhaust memory."""
    # A bare block cannot begin with the magic: its first element would copy bytes that do not exist yet.
    if bytes(view[:8]) != _XERIAL_MAGIC:
        yield view
        return
    position = len(_XERIAL_HEADER)
    for _ in range(codecs.BLOCKS_MAX):
        if position == len(view):
            return
        (length,) = i32_be(view, position)
        if length < 0 and bytes(view[position : position + 8]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        position += 4
        if not 0 < length <= len(view) - position:
            raise CorruptBatch(f"snappy: a block of {length} bytes where {len(view) - position} are left")
        yield view[position : position + length]
        position += length
    raise too_many_blocks("snappy")


def _size(block: memoryview) -> int:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise as_ours("snappy", error) from error
    if size > _RATIO * len(block):
        raise CorruptBatch(f"snappy: {len(block)} bytes cannot hold the declared {size}")
    return size
