"""zstd: a frame that declares its size is written; frames with or without one are read.

Frame (RFC 8878): magic u32, descriptor u8, [window u8], [dictionary id], [content size], then blocks with a
header u24 (bit 0 last, bits 1-2 type, the rest size), [checksum u32]. Little endian.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import cramjam

from ...errors import DecompressionLimit
from .. import codecs
from . import MIB, after_skippable, limit_of, run, too_large, too_many_blocks, u32_le

_LEVEL: Final = 3  # Kafka's default, which is zstd's
#: Windows up to here are not counted: RFC 8878 asks every decoder for 8 MiB, and zstd needs no more up to level 19.
#: Larger ones count against `max_bytes`.
_WINDOW_FREE: Final = 8 * MIB

_MAGIC: Final = 0xFD2FB528
_WINDOW_MAX: Final = 128 * MIB  # the library refuses more, and only `zstd --long` writes it
_WINDOWS: Final = [(8 + (byte & 7)) << (7 + (byte >> 3)) for byte in range(256)]  # indexed by the header's byte
_BLOCK: Final = 128 * 1024
_DICTIONARY_ID_BYTES: Final = (0, 1, 2, 4)


def compress(view: memoryview, level: int | None) -> memoryview:
    """Compress; None is the default level."""
    return memoryview(cramjam.zstd.compress(view, _LEVEL if level is None else level))


def decompress(view: memoryview, max_bytes: int) -> memoryview:
    """Decompress within the bounds."""
    limit = limit_of(len(view), max_bytes)
    bound, view = _plan(view, limit, max_bytes)
    return run("zstd", cramjam.zstd.decompress_into, view, bound, limit)


def window_fits(packed: memoryview | bytes, size_bytes: int, max_bytes: int) -> bool:
    """Return True if a reader has room for the window of a frame with `size_bytes` of content."""
    if size_bytes <= _WINDOW_FREE:
        return True
    try:
        _plan(memoryview(packed), limit_of(len(packed), max_bytes), max_bytes)
    except DecompressionLimit:
        return False
    return True


def _plan(view: memoryview, limit: int, max_bytes: int) -> tuple[int, memoryview]:
    """Return the maximum decompressed size of the frames, and the frames. In short frames, the windows are reduced to
    that size.

    Java's levels 20 to 22 ask for windows of 32 to 128 MiB however small the batch is. No frame can refer back further
    than its decompressed size, so a window of that size decodes it as well.
    """
    position = bound = blocks = window_max = 0
    narrowed: bytearray | None = None
    while position < len(view):
        (magic,) = u32_le(view, position)
        blocks += 1
        if magic != _MAGIC:
            position = after_skippable("zstd", view, position, magic)
        else:
            start = position + 4
            position, window, declared = _header(view, start)
            if declared is not None and declared > limit:
                raise too_large("zstd", view, declared, limit)
            position, size, count = _blocks(view, position, codecs.BLOCKS_MAX - blocks)
            position += 4 if view[start] & 0x04 else 0  # checksum
            if declared is not None:
                size = min(size, declared)
            if window > _WINDOW_FREE >= len(view) and not view[start] & 0x20:
                narrowed = narrowed or bytearray(view)
                narrowed[start + 1] = min(view[start + 1], _window_byte(size))
                window = _WINDOWS[narrowed[start + 1]]
            blocks += count
            bound += size
            window_max = max(window_max, window)
        if blocks > codecs.BLOCKS_MAX:
            raise too_many_blocks("zstd")
    _check_window(window_max, min(bound, limit), max_bytes)
    return bound, view if narrowed is None else memoryview(narrowed)


def _window_byte(size_bytes: int) -> int:
    """Return the header's byte for the smallest window that holds `size_bytes`, but at least `_WINDOW_FREE`."""
    return bisect_left(_WINDOWS, max(size_bytes, _WINDOW_FREE))


def _check_window(window_bytes: int, output_bytes: int, max_bytes: int) -> None:
    if window_bytes <= _WINDOW_FREE:
        return
    if window_bytes > _WINDOW_MAX or output_bytes + window_bytes > max_bytes + _WINDOW_FREE:
        raise DecompressionLimit(
            f"zstd: a window of {window_bytes} bytes and up to {output_bytes} bytes of output; {max_bytes} are "
            f"allowed for both, and {_WINDOW_MAX} for a window"
        )


def _header(view: memoryview, position: int) -> tuple[int, int, int | None]:
    """Return the start of a frame's blocks, its window in bytes and its declared content size, if any. `position`
    follows the magic."""
    descriptor = view[position]
    position += 1
    single = descriptor & 0x20
    window = 0
    if not single:
        window = _WINDOWS[view[position]]
        position += 1
    position += _DICTIONARY_ID_BYTES[descriptor & 3]
    length = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    if length == 0:
        return position, window, None
    if position + length > len(view):
        raise IndexError
    declared = int.from_bytes(view[position : position + length], "little") + (256 if length == 2 else 0)
    return position + length, declared if single else window, declared


def _blocks(view: memoryview, position: int, blocks_max: int) -> tuple[int, int, int]:
    """Return the end of a frame's last block, the maximum decompressed size of all blocks, and their number. The first
    block is at `position`."""
    bound = 0
    for count in range(1, blocks_max + 1):
        header = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        size, kind = header >> 3, header >> 1 & 3
        # 0: stored, 1: one byte repeated, 2: compressed, 3: reserved, and refused by the decoder.
        bound += min(size, _BLOCK) if kind < 2 else _BLOCK
        position += 3 + (1 if kind == 1 else size)
        if header & 1:
            return position, bound, count
    raise too_many_blocks("zstd")
