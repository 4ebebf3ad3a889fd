"""The codecs: gzip, snappy in xerial's framing, lz4 and zstd; each compresses, and decompresses within bounds.

A result is never longer than `limit_of(input bytes, max_bytes)`. The output is allocated once; errors of a codec's
library are converted (see compression.py). Pure functions over buffers, safe from any thread.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import cramjam
import numpy as np

from ..errors import CorruptBatch, DecompressionLimit

if TYPE_CHECKING:
    from numpy.typing import NDArray


MIB: Final = 1 << 20

#: Default limit for the decompressed size of a batch: the default size of a segment. A batch that fits there
#: uncompressed may also be stored compressed.
DEFAULT_MAX: Final = 1024 * MIB

#: The ratio is not limited up to this size: 64 MiB is sixty times Kafka's default limit, a process can be expected to
#: have that much memory, and small repetitive batches do compress 30,000-fold (zstd).
RATIO_FREE_BYTES: Final = 64 * MIB

#: Maximum ratio above that size. Real records reach a factor of a hundred; gzip at most 1,032. An attacker needs a
#: megabyte per gigabyte.
RATIO_MAX: Final = 1000

#: Memory of a decoder besides its output: two blocks of 4 MiB and some history for lz4, the window for zstd.
DECODER_BYTES: Final = 16 * MIB

#: Maximum number of blocks. They are walked in Python, at one or two microseconds each. A million real blocks hold
#: 32 GiB or more; millions of empty ones would be an attack on the processor.
BLOCKS_MAX: Final = 1 << 20

_u32_le, _put_u32_le = struct.Struct("<I").unpack_from, struct.Struct("<I").pack_into
_i32_be, _put_i32_be = struct.Struct(">i").unpack_from, struct.Struct(">i").pack_into
_u64_le = struct.Struct("<Q").unpack_from

_Decode = Callable[[memoryview, memoryview], int]


def limit_of(packed_bytes: int, max_bytes: int) -> int:
    return min(max_bytes, max(RATIO_FREE_BYTES, RATIO_MAX * packed_bytes))


def _too_large(name: str, view: memoryview, size_bytes: int | None, limit: int) -> DecompressionLimit:
    size = f"{size_bytes} bytes" if size_bytes is not None else "more"
    return DecompressionLimit(
        f"{name}: {len(view)} bytes would unpack to {size}, {limit} are allowed; "
        "raise the limit on decompressed bytes if you trust the writer"
    )


def _too_many_blocks(name: str) -> DecompressionLimit:
    return DecompressionLimit(f"{name}: more than {BLOCKS_MAX} blocks, which no real writer needs")


def _filled(room: NDArray[np.uint8], size_bytes: int) -> memoryview:
    """Return the filled part of a buffer without other views, and release the rest if it is large.

    A small rest is kept: malloc learns from the sizes it gets back to keep such buffers at hand. Shrinking them first
    made every batch pay for fresh pages, which tripled the time for 100 KB of lz4.
    """
    if len(room) - size_bytes > MIB:
        room.resize(size_bytes, refcheck=False)
    return room.data[:size_bytes]


def _attempt(name: str, decode: _Decode, view: memoryview, room_bytes: int) -> memoryview | None:
    """Decode into one new buffer of at most `room_bytes`; None if that was not enough.

    numpy's memory and not a bytearray, which would be zeroed: a declared size alone would cost real pages.
    """
    room = np.empty(room_bytes, np.uint8)
    try:
        with room.data as target:
            size = decode(view, target)
    except cramjam.DecompressionError as error:
        if "failed to write whole buffer" in str(error):  # Rust's message for an output that is full
            return None
        raise _as_ours(name, error) from error
    return _filled(room, size)


def _run(name: str, decode: _Decode, view: memoryview, bound: int, limit: int) -> memoryview:
    """Decode data that cannot legitimately exceed `bound`, and must not exceed `limit`, when decompressed."""
    plain = _attempt(name, decode, view, min(bound, limit))
    if plain is not None:
        return plain
    if bound > limit:
        raise _too_large(name, view, None, limit)
    raise CorruptBatch(f"{name}: {len(view)} bytes unpack to more than the {bound} that their headers allow")


def _as_ours(name: str, error: cramjam.DecompressionError) -> Exception:
    """Convert an error of a codec's library to a `CorruptBatch` or `MemoryError`."""
    text = str(error)
    if "not enough memory" in text or "allocation" in text:
        return MemoryError(f"{name}: {text}")
    return CorruptBatch(f"{name}: the compressed data is corrupt: {text}")


def _after_skippable(name: str, view: memoryview, position: int, magic: int) -> int:
    """Return the end of the skippable frame at `position`; lz4 and zstd share that format."""
    if magic & 0xFFFFFFF0 != 0x184D2A50:
        raise CorruptBatch(f"{name}: no frame begins at byte {position} of {len(view)}")
    (length,) = _u32_le(view, position + 4)
    return position + 8 + int(length)


# --- gzip: one member is written, several are read as one.
#
# Written with zlib: at level 6 it took 0.6 to 0.9 of cramjam's time. Read with cramjam: as fast, and linear
# in the number of members, where zlib's objects copy the whole rest for each of them.

_GZIP_LEVEL: Final = 6  # Kafka's default, which is zlib's
_DEFLATE_RATIO: Final = 1032  # 258 bytes for two bits


def gzip_compress(view: memoryview, level: int | None) -> bytes:
    return zlib.compress(view, _GZIP_LEVEL if level is None else level, wbits=31)


def gzip_decompress(view: memoryview, max_bytes: int) -> memoryview:
    """Decompress into the size stored at the end, then, if that is too small (several members), into the maximum."""
    limit, bound = limit_of(len(view), max_bytes), _DEFLATE_RATIO * len(view)
    (declared,) = _u32_le(view, len(view) - 4)
    if declared > bound:
        raise CorruptBatch(f"gzip: {len(view)} bytes cannot hold the declared {declared}")
    if declared > limit:
        raise _too_large("gzip", view, declared, limit)
    plain = _attempt("gzip", cramjam.gzip.decompress_into, view, declared)
    return plain if plain is not None else _run("gzip", cramjam.gzip.decompress_into, view, bound, limit)


# --- snappy in xerial's framing: magic, version i32, compatible version i32, then blocks [length i32][bare snappy], big
# endian. The header is repeated between blocks where streams were concatenated, which xerial also accepts. Versions are
# ignored: only one exists, and Redpanda writes it little endian.

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024  # xerial's own default
_SNAPPY_RATIO: Final = 22  # a copy of 64 bytes takes 3


def snappy_compress(view: memoryview, level: int | None) -> memoryview:
    blocks = range(0, len(view), _XERIAL_BLOCK)
    room = np.empty(len(_XERIAL_HEADER) + len(blocks) * (4 + 32) + len(view) * 7 // 6, np.uint8)
    with room.data as target:
        position = len(_XERIAL_HEADER)
        target[:position] = _XERIAL_HEADER
        for start in blocks:
            plain = view[start : start + _XERIAL_BLOCK]
            size = cramjam.snappy.compress_raw_into(plain, target[position + 4 :])
            _put_i32_be(target, position, size)
            position += 4 + size
    return _filled(room, position)


def snappy_decompress(view: memoryview, max_bytes: int) -> memoryview:
    limit, total = limit_of(len(view), max_bytes), sum(map(_snappy_size, _snappy_blocks(view)))
    if total > limit:
        raise _too_large("snappy", view, total, limit)
    return _run("snappy", _decode_snappy, view, total, limit)


def _decode_snappy(view: memoryview, target: memoryview) -> int:
    filled = 0
    for block in _snappy_blocks(view):
        filled += cramjam.snappy.decompress_raw_into(block, target[filled:])
    return filled


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    """Yield the bare blocks one at a time: a list of a million views would itself exhaust memory."""
    # A bare block cannot begin with the magic: its first element would copy bytes that do not exist yet.
    if bytes(view[:8]) != _XERIAL_MAGIC:
        yield view
        return
    position = len(_XERIAL_HEADER)
    for _ in range(BLOCKS_MAX):
        if position == len(view):
            return
        (length,) = _i32_be(view, position)
        if length < 0 and bytes(view[position : position + 8]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        position += 4
        if not 0 < length <= len(view) - position:
            raise CorruptBatch(f"snappy: a block of {length} bytes where {len(view) - position} are left")
        yield view[position : position + length]
        position += length
    raise _too_many_blocks("snappy")


def _snappy_size(block: memoryview) -> int:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise _as_ours("snappy", error) from error
    if size > _SNAPPY_RATIO * len(block):
        raise CorruptBatch(f"snappy: {len(block)} bytes cannot hold the declared {size}")
    return size


# --- lz4: a frame of independent blocks is written; frames with linked blocks, checksums and sizes are read too.
#
# Frame: magic u32, FLG u8, BD u8, [content size u64], [dictionary id u32], header checksum u8, then blocks
# [size u32, highest bit: stored as it is][bytes][checksum u32 if FLG says so], size 0 ends, [checksum u32].
# Little endian.
#
# Blocks are 256 KiB, measured on JSON-like batches: against 64 KiB 0.5 to 0.8 % smaller and read 15 % faster,
# while 1 and 4 MiB gain 0.4 % at best and cost every reader buffers of that size. A batch that fits 64 KiB
# says so, again for the reader's buffers.

_LZ4_MAGIC: Final = 0x184D2204
_LZ4_BLOCK_SIZES: Final = {4: 64 * 1024, 5: 256 * 1024, 6: MIB, 7: 4 * MIB}
#: The headers of plain frames, with their block sizes: FLG 0x60 (version 1, independent blocks, no more), BD,
#: and the header checksum, which is bits 8 to 15 of the xxHash-32 of those two.
_LZ4_PLAIN: Final = {
    bytes.fromhex("04224d18 60 40 82"): 64 * 1024,
    bytes.fromhex("04224d18 60 50 fb"): 256 * 1024,
    bytes.fromhex("04224d18 60 60 51"): MIB,
    bytes.fromhex("04224d18 60 70 73"): 4 * MIB,
}
_LZ4_SMALL_HEADER, _LZ4_HEADER, *_ = _LZ4_PLAIN
_LZ4_SMALL: Final = _LZ4_PLAIN[_LZ4_SMALL_HEADER]
_LZ4_BLOCK: Final = _LZ4_PLAIN[_LZ4_HEADER]
_LZ4_STORED: Final = 1 << 31
_LZ4_RATIO: Final = 255


def lz4_compress(view: memoryview, level: int | None) -> memoryview:
    if level is not None:
        return _lz4_compress_at(view, level)
    blocks = range(0, len(view), _LZ4_BLOCK)
    room = np.empty(len(_LZ4_HEADER) + len(blocks) * (4 + 17) + len(view) * 256 // 255 + 4, np.uint8)
    with room.data as target:
        position = len(_LZ4_HEADER)
        target[:position] = _LZ4_SMALL_HEADER if len(view) <= _LZ4_SMALL else _LZ4_HEADER
        for start in blocks:
            plain = view[start : start + _LZ4_BLOCK]
            size = cramjam.lz4.compress_block_into(plain, target[position + 4 :], store_size=False)
            if size < len(plain):
                _put_u32_le(target, position, size)
            else:
                size = len(plain)
                _put_u32_le(target, position, size | _LZ4_STORED)
                target[position + 4 : position + 4 + size] = plain
            position += 4 + size
        _put_u32_le(target, position, 0)
    return _filled(room, position + 4)


def _lz4_compress_at(view: memoryview, level: int) -> memoryview:
    """Compress into the library's own frames, of 64 KiB with block checksums: its block functions ignore the level."""
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(view))  # accepts only bytes
    return memoryview(compressor.finish())


def lz4_decompress(view: memoryview, max_bytes: int) -> memoryview:
    limit = limit_of(len(view), max_bytes)
    bound = _lz4_bound(view, limit)
    decode: _Decode = cramjam.lz4.decompress_into
    if bound <= limit and bytes(view[:7]) in _LZ4_PLAIN:
        decode = _decode_lz4
    return _run("lz4", decode, view, bound, limit)


def _decode_lz4(view: memoryview, target: memoryview) -> int:
    """Decode as cramjam's frame decoder does, without its copies: 20 % faster on the frames that Kafka writes.

    `_lz4_bound` has checked the frames: every block is within the view, and `target` has space for it.
    """
    position, filled, block_max = 7, 0, _LZ4_PLAIN[bytes(view[:7])]
    while word := _u32_le(view, position)[0]:
        size = word & ~_LZ4_STORED
        block = view[position + 4 : position + 4 + size]
        if word & _LZ4_STORED:
            target[filled : filled + size] = block
            filled += size
        else:
            room = target[filled : filled + block_max]
            filled += cramjam.lz4.decompress_block_into(block, room, output_len=len(room))
        position += 4 + size
    if position + 4 < len(view):  # another frame
        return cramjam.lz4.decompress_into(view, target)
    return filled


def _lz4_bound(view: memoryview, limit: int) -> int:
    """Return the maximum decompressed size of the frames. Reads only the necessary fields; the decoder checks them."""
    position = bound = blocks = 0
    while position < len(view):
        (magic,) = _u32_le(view, position)
        blocks += 1
        if magic != _LZ4_MAGIC:
            position = _after_skippable("lz4", view, position, magic)
        else:
            position, size, count = _lz4_frame(view, position + 4, limit, BLOCKS_MAX - blocks)
            bound += size
            blocks += count
        if blocks > BLOCKS_MAX:
            raise _too_many_blocks("lz4")
    return bound


def _lz4_frame(view: memoryview, position: int, limit: int, blocks_max: int) -> tuple[int, int, int]:
    """Return the end of a frame, its maximum decompressed size and number of blocks. `position` follows the magic."""
    flags, block_max = view[position], _LZ4_BLOCK_SIZES.get(view[position + 1] >> 4 & 7)
    if block_max is None:
        raise CorruptBatch("lz4: the frame's block size is not one that the format defines")
    position += 2
    content_bytes = 0  # 0 means unknown in the format
    if flags & 0x08:
        (content_bytes,) = _u64_le(view, position)
        position += 8
        if content_bytes > limit:
            raise _too_large("lz4", view, content_bytes, limit)
    position += 5 if flags & 0x01 else 1  # dictionary id, header checksum
    bound, block_extra_bytes = 0, 4 if flags & 0x10 else 0
    for count in range(blocks_max):
        (word,) = _u32_le(view, position)
        if word == 0:
            position += 8 if flags & 0x04 else 4
            return position, min(bound, content_bytes) if content_bytes else bound, count
        size = word & ~_LZ4_STORED
        if size > block_max:
            raise CorruptBatch(f"lz4: a block of {size} bytes in a frame of blocks up to {block_max}")
        bound += min(block_max, size if word & _LZ4_STORED else _LZ4_RATIO * size)
        position += 4 + size + block_extra_bytes
    raise _too_many_blocks("lz4")


# --- zstd: a frame that declares its size is written; frames with or without one are read.
#
# Frame (RFC 8878): magic u32, descriptor u8, [window u8], [dictionary id], [content size], then blocks with a
# header u24 (bit 0 last, bits 1-2 type, the rest size), [checksum u32]. Little endian.

_ZSTD_LEVEL: Final = 3  # Kafka's default, which is zstd's
#: Windows up to here are not counted: RFC 8878 asks every decoder for 8 MiB, and zstd needs no more up to level 19.
#: Larger ones count against `max_bytes`.
_WINDOW_FREE: Final = 8 * MIB

_ZSTD_MAGIC: Final = 0xFD2FB528
_WINDOW_MAX: Final = 128 * MIB  # the library refuses more, and only `zstd --long` writes it
_WINDOWS: Final = [(8 + (byte & 7)) << (7 + (byte >> 3)) for byte in range(256)]  # indexed by the header's byte
_ZSTD_BLOCK: Final = 128 * 1024
_DICTIONARY_ID_BYTES: Final = (0, 1, 2, 4)


def zstd_compress(view: memoryview, level: int | None) -> memoryview:
    return memoryview(cramjam.zstd.compress(view, _ZSTD_LEVEL if level is None else level))


def zstd_decompress(view: memoryview, max_bytes: int) -> memoryview:
    limit = limit_of(len(view), max_bytes)
    bound, view = _zstd_plan(view, limit, max_bytes)
    return _run("zstd", cramjam.zstd.decompress_into, view, bound, limit)


def zstd_window_fits(packed: memoryview | bytes, size_bytes: int, max_bytes: int) -> bool:
    """Return True if a reader has room for the window of a frame with `size_bytes` of content."""
    if size_bytes <= _WINDOW_FREE:
        return True
    try:
        _zstd_plan(memoryview(packed), limit_of(len(packed), max_bytes), max_bytes)
    except DecompressionLimit:
        return False
    return True


def _zstd_plan(view: memoryview, limit: int, max_bytes: int) -> tuple[int, memoryview]:
    """Return the maximum decompressed size of the frames, and the frames. In short frames, the windows are reduced to
    that size.

    Java's levels 20 to 22 ask for windows of 32 to 128 MiB however small the batch is. No frame can refer back further
    than its decompressed size, so a window of that size decodes it as well.
    """
    position = bound = blocks = window_max = 0
    narrowed: bytearray | None = None
    while position < len(view):
        (magic,) = _u32_le(view, position)
        blocks += 1
        if magic != _ZSTD_MAGIC:
            position = _after_skippable("zstd", view, position, magic)
        else:
            start = position + 4
            position, window, declared = _zstd_header(view, start)
            if declared is not None and declared > limit:
                raise _too_large("zstd", view, declared, limit)
            position, size, count = _zstd_blocks(view, position, BLOCKS_MAX - blocks)
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
        if blocks > BLOCKS_MAX:
            raise _too_many_blocks("zstd")
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


def _zstd_header(view: memoryview, position: int) -> tuple[int, int, int | None]:
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


def _zstd_blocks(view: memoryview, position: int, blocks_max: int) -> tuple[int, int, int]:
    """Return the end of a frame's last block, the maximum decompressed size of all blocks, and their number. The first
    block is at `position`."""
    bound = 0
    for count in range(1, blocks_max + 1):
        header = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        size, kind = header >> 3, header >> 1 & 3
        # 0: stored, 1: one byte repeated, 2: compressed, 3: reserved, and refused by the decoder.
        bound += min(size, _ZSTD_BLOCK) if kind < 2 else _ZSTD_BLOCK
        position += 3 + (1 if kind == 1 else size)
        if header & 1:
            return position, bound, count
    raise _too_many_blocks("zstd")
