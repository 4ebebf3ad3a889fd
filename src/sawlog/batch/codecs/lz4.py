"""lz4: a frame of independent blocks is written; frames with linked blocks, checksums and sizes are read too.

Frame: magic u32, FLG u8, BD u8, [content size u64], [dictionary id u32], header checksum u8, then blocks
[size u32, highest bit: stored as it is][bytes][checksum u32 if FLG says so], size 0 ends, [checksum u32].
Little endian.

Blocks are 256 KiB, measured on JSON-like batches: against 64 KiB 0.5 to 0.8 % smaller and read 15 % faster,
while 1 and 4 MiB gain 0.4 % at best and cost every reader buffers of that size. A batch that fits 64 KiB
says so, again for the reader's buffers.
"""

from __future__ import annotations

from typing import Final

import cramjam
import numpy as np

from ...errors import CorruptBatch
from .. import codecs
from . import (
    MIB,
    Decode,
    after_skippable,
    filled,
    limit_of,
    put_u32_le,
    run,
    too_large,
    too_many_blocks,
    u32_le,
    u64_le,
)

_MAGIC: Final = 0x184D2204
_BLOCK_SIZES: Final = {4: 64 * 1024, 5: 256 * 1024, 6: MIB, 7: 4 * MIB}
#: The headers of plain frames, with their block sizes: FLG 0x60 (version 1, independent blocks, no more), BD,
#: and the header checksum, which is bits 8 to 15 of the xxHash-32 of those two.
_PLAIN: Final = {
    bytes.fromhex("04224d18 60 40 82"): 64 * 1024,
    bytes.fromhex("04224d18 60 50 fb"): 256 * 1024,
    bytes.fromhex("04224d18 60 60 51"): MIB,
    bytes.fromhex("04224d18 60 70 73"): 4 * MIB,
}
_SMALL_HEADER, _HEADER, *_ = _PLAIN
_SMALL: Final = _PLAIN[_SMALL_HEADER]
_BLOCK: Final = _PLAIN[_HEADER]
_STORED: Final = 1 << 31
_RATIO: Final = 255


def compress(view: memoryview, level: int | None) -> memoryview:
    """Compress; None is the default level."""
    if level is not None:
        return _compress_at(view, level)
    blocks = range(0, len(view), _BLOCK)
    room = np.empty(len(_HEADER) + len(blocks) * (4 + 17) + len(view) * 256 // 255 + 4, np.uint8)
    with room.data as target:
        position = len(_HEADER)
        target[:position] = _SMALL_HEADER if len(view) <= _SMALL else _HEADER
        for start in blocks:
            plain = view[start : start + _BLOCK]
            size = cramjam.lz4.compress_block_into(plain, target[position + 4 :], store_size=False)
            if size < len(plain):
                put_u32_le(target, position, size)
            else:
                size = len(plain)
                put_u32_le(target, position, size | _STORED)
                target[position + 4 : position + 4 + size] = plain
            position += 4 + size
        put_u32_le(target, position, 0)
    return filled(room, position + 4)


def _compress_at(view: memoryview, level: int) -> memoryview:
    """Compress into the library's own frames, of 64 KiB with block checksums: its block functions ignore the level."""
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(view))  # accepts only bytes
    return memoryview(compressor.finish())


def decompress(view: memoryview, max_bytes: int) -> memoryview:
    """Decompress within the bounds."""
    limit = limit_of(len(view), max_bytes)
    bound = _bound(view, limit)
    decode: Decode = cramjam.lz4.decompress_into
    if bound <= limit and bytes(view[:7]) in _PLAIN:
        decode = _decode_plain
    return run("lz4", decode, view, bound, limit)


def _decode_plain(view: memoryview, target: memoryview) -> int:
    """Decode as cramjam's frame decoder does, without its copies: 20 % faster on the frames that Kafka writes.

    `_bound` has checked the frames: every block is within the view, and `target` has space for it.
    """
    position, filled, block_max = 7, 0, _PLAIN[bytes(view[:7])]
    while word := u32_le(view, position)[0]:
        size = word & ~_STORED
        block = view[position + 4 : position + 4 + size]
        if word & _STORED:
            target[filled : filled + size] = block
            filled += size
        else:
            room = target[filled : filled + block_max]
            filled += cramjam.lz4.decompress_block_into(block, room, output_len=len(room))
        position += 4 + size
    if position + 4 < len(view):  # another frame
        return cramjam.lz4.decompress_into(view, target)
    return filled


def _bound(view: memoryview, limit: int) -> int:
    """Return the maximum decompressed size of the frames. Reads only the necessary fields; the decoder checks them."""
    position = bound = blocks = 0
    while position < len(view):
        (magic,) = u32_le(view, position)
        blocks += 1
        if magic != _MAGIC:
            position = after_skippable("lz4", view, position, magic)
        else:
            position, size, count = _frame(view, position + 4, limit, codecs.BLOCKS_MAX - blocks)
            bound += size
            blocks += count
        if blocks > codecs.BLOCKS_MAX:
            raise too_many_blocks("lz4")
    return bound


def _frame(view: memoryview, position: int, limit: int, blocks_max: int) -> tuple[int, int, int]:
    """Return the end of a frame, its maximum decompressed size and number of blocks. `position` follows the magic."""
    flags, block_max = view[position], _BLOCK_SIZES.get(view[position + 1] >> 4 & 7)
    if block_max is None:
        raise CorruptBatch("lz4: the frame's block size is not one that the format defines")
    position += 2
    content_bytes = 0  # 0 means unknown in the format
    if flags & 0x08:
        (content_bytes,) = u64_le(view, position)
        position += 8
        if content_bytes > limit:
            raise too_large("lz4", view, content_bytes, limit)
    position += 5 if flags & 0x01 else 1  # dictionary id, header checksum
    bound, block_extra_bytes = 0, 4 if flags & 0x10 else 0
    for count in range(blocks_max):
        (word,) = u32_le(view, position)
        if word == 0:
            position += 8 if flags & 0x04 else 4
            return position, min(bound, content_bytes) if content_bytes else bound, count
        size = word & ~_STORED
        if size > block_max:
            raise CorruptBatch(f"lz4: a block of {size} bytes in a frame of blocks up to {block_max}")
        bound += min(block_max, size if word & _STORED else _RATIO * size)
        position += 4 + size + block_extra_bytes
    raise too_many_blocks("lz4")
