"""Kafka's four compressions of a batch's records, decoded defensively and written for every reader.

    number  name    what is written                               what is read
    0       none    the data itself                               the data itself
    1       gzip    one member                                    members
    2       snappy  xerial's framing, blocks of 32 KiB            xerial's framing, or one bare snappy block
    3       lz4     a frame of independent blocks                 frames: linked blocks, checksums, sizes too
    4       zstd    a frame that declares its size                frames, with or without a size

Kafka's Java client refuses lz4 frames with linked blocks, so ours never are; librdkafka writes bare snappy. Several
members or frames in a row are read as one; skippable frames are skipped. Anything else after the last one is
corruption, and so is empty input: every codec produces at least one byte.

**Bounds.** `decompress` trusts no declared size. What it returns is never longer than

    min(max_bytes, max(RATIO_FREE_BYTES, RATIO_MAX · input bytes))

A size that is declared (zstd, snappy, lz4 if present, the end of a gzip member) is checked before anything is
allocated. Where none is declared, blocks are counted first, and each has a maximum size. The output is allocated once,
at that bound or at the limit, and what was not filled is released. In addition to the output a decoder takes at most
DECODER_BYTES: a window that a zstd frame asks for is counted against `max_bytes`.

**Errors.** Data that does not decompress: `CorruptBatch`. More than is allowed: `DecompressionLimit`, a subclass of it.
Out of memory is `MemoryError`, never reported as corruption. No error of a codec's library escapes.

**The writer keeps the reader's rules.** `compress` returns None if the result would not be smaller, or if `decompress`
would refuse it: the caller then stores the records uncompressed, with codec 0.

Pure functions over buffers, safe from any thread; the libraries release the GIL while they work.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NoReturn

import cramjam
import numpy as np

from ..errors import CorruptBatch, DecompressionLimit, InvalidConfig, UnsupportedCompression

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

#: Name to number, as Kafka's `compression.type` and the attributes of a batch have them.
CODECS: Final[dict[str, int]] = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
_NAMES: Final = tuple(CODECS)
_CHOICES: Final = ", ".join(_NAMES)

#: The levels that each codec takes: Kafka's ranges. For lz4, 13 and above do what 12 does, and None is faster
#: than 1. Snappy has no levels.
LEVELS: Final[dict[int, range]] = {
    NONE: range(0),
    GZIP: range(1, 10),
    SNAPPY: range(0),
    LZ4: range(1, 18),
    ZSTD: range(-131072, 23),
}
_GZIP_LEVEL: Final = 6  # Kafka's default, which is zlib's
_ZSTD_LEVEL: Final = 3  # Kafka's default, which is zstd's

MIB: Final = 1 << 20

#: The default limit for the decompressed size of one batch: a default segment. Whatever fits there uncompressed may
#: also be stored compressed.
DEFAULT_MAX: Final = 1024 * MIB

#: Up to here the ratio does not matter. A batch of 64 MiB is sixty times Kafka's default limit, and a process can be
#: expected to spare 64 MiB; small repetitive batches really do compress 30,000-fold (zstd).
RATIO_FREE_BYTES: Final = 64 * MIB

#: Above that, the maximum ratio. Real records reach a factor of a hundred; gzip at most 1,032. So a gigabyte costs
#: an attacker a megabyte.
RATIO_MAX: Final = 1000

#: What a decoder may take in addition to its output: lz4 keeps two blocks of 4 MiB and some history, zstd its
#: window.
DECODER_BYTES: Final = 16 * MIB

#: Windows up to here are not counted: RFC 8878 asks every decoder for 8 MiB, and zstd needs no more up to level 19.
#: Larger ones count against `max_bytes`.
_ZSTD_WINDOW_FREE: Final = 8 * MIB

#: Blocks are walked in Python, at one or two microseconds each. A million real ones are 32 GiB and more; many
#: millions of empty ones would be an attack on the processor.
BLOCKS_MAX: Final = 1 << 20


def codec_id(codec: str | int) -> int:
    """The number of a codec that is given by name or by number; `InvalidConfig` names the choices."""
    if isinstance(codec, str):
        number = CODECS.get(codec)
    else:
        number = codec if not isinstance(codec, bool) and codec in range(len(_NAMES)) else None
    if number is None:
        raise InvalidConfig(f"compression {codec!r} is unknown; choose one of {_CHOICES}")
    return number


def codec_name(codec: int) -> str:
    """The name of a codec number, for example of the lowest three bits of a batch's attributes."""
    if codec not in range(len(_NAMES)):
        raise UnsupportedCompression(f"compression codec {codec} is undefined; Kafka has 0 to 4: {_CHOICES}")
    return _NAMES[codec]


def check_level(codec: int, level: int | None) -> None:
    """Raise `InvalidConfig` unless the codec supports the level; None, its default, is always valid."""
    name = codec_name(codec)
    if level is None or level in LEVELS[codec]:
        return
    levels = LEVELS[codec]
    choice = f"has levels {levels.start} to {levels.stop - 1}" if levels else "has no levels"
    raise InvalidConfig(f"compression level {level} is not valid: {name} {choice}")


def compress(
    codec: int, data: Buffer, level: int | None = None, *, max_bytes: int = DEFAULT_MAX
) -> bytes | memoryview | None:
    """The data, compressed; None if that is not smaller, or `decompress` at `max_bytes` would refuse it."""
    check_level(codec, level)
    view = _bytes_of(data)
    if codec == NONE:
        return view
    if len(view) > max_bytes:
        return None
    packed = _ENCODERS[codec](view, level)
    if len(packed) >= len(view) or len(view) > _limit(len(packed), max_bytes):
        return None
    if codec == ZSTD and len(view) > _ZSTD_WINDOW_FREE and not _zstd_window_fits(packed, max_bytes):
        return None
    return packed


def decompress(codec: int, data: Buffer, *, max_bytes: int = DEFAULT_MAX) -> memoryview:
    """The data, decompressed, as contiguous bytes. Codec 0 returns the data itself: no copy, no bound."""
    view = _bytes_of(data)
    if codec == NONE:
        return view
    name = codec_name(codec)
    if not view:
        raise CorruptBatch(f"{name}: the compressed data is empty")
    try:
        return _DECODERS[codec](view, max_bytes)
    except (IndexError, struct.error):  # the data ends within a header
        raise CorruptBatch(f"{name}: the compressed data is cut short at {len(view)} bytes") from None


# --- what the codecs share ----------------------------------------------------------------------------------


_u32_le, _put_u32_le = struct.Struct("<I").unpack_from, struct.Struct("<I").pack_into
_i32_be, _put_i32_be = struct.Struct(">i").unpack_from, struct.Struct(">i").pack_into
_u64_le = struct.Struct("<Q").unpack_from

Decode = Callable[[memoryview, memoryview], int]


def _bytes_of(data: Buffer) -> memoryview:
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 and view.c_contiguous else view.cast("B")


def _limit(packed_bytes: int, max_bytes: int) -> int:
    """The most that `packed_bytes` may unpack to."""
    return min(max_bytes, max(RATIO_FREE_BYTES, RATIO_MAX * packed_bytes))


def _refuse(name: str, view: memoryview, size_bytes: int | None, limit: int) -> NoReturn:
    size = f"{size_bytes} bytes" if size_bytes is not None else "more"
    raise DecompressionLimit(
        f"{name}: {len(view)} bytes would unpack to {size}, {limit} are allowed; "
        "raise the limit on decompressed bytes if you trust the writer"
    )


def _too_many_blocks(name: str) -> NoReturn:
    raise DecompressionLimit(f"{name}: more than {BLOCKS_MAX} blocks, which no real writer needs")


def _filled(room: NDArray[np.uint8], size_bytes: int) -> memoryview:
    """The start of a buffer that nobody else has a view of. The unused rest is released if it is large.

    A small rest is kept: malloc learns from the sizes it gets back to keep such buffers at hand. Shrinking them first
    made every batch pay for fresh pages, which tripled the time for 100 KB of lz4.
    """
    if len(room) - size_bytes > MIB:
        room.resize(size_bytes, refcheck=False)
    return room.data[:size_bytes]


def _attempt(name: str, decode: Decode, view: memoryview, room_bytes: int) -> memoryview | None:
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


def _run(name: str, decode: Decode, view: memoryview, bound: int, limit: int) -> memoryview:
    """Decode what cannot legitimately decompress to more than `bound`, and must not decompress to more than `limit`."""
    plain = _attempt(name, decode, view, min(bound, limit))
    if plain is not None:
        return plain
    if bound > limit:
        _refuse(name, view, None, limit)
    raise CorruptBatch(f"{name}: {len(view)} bytes unpack to more than the {bound} that their headers allow")


def _as_ours(name: str, error: cramjam.DecompressionError) -> Exception:
    text = str(error)
    if "not enough memory" in text or "allocation" in text:
        return MemoryError(f"{name}: {text}")
    return CorruptBatch(f"{name}: the compressed data is corrupt: {text}")


# --- gzip ---------------------------------------------------------------------------------------------------
# Written with zlib: at level 6 it took 0.6 to 0.9 of cramjam's time. Read with cramjam: as fast, and linear
# in the number of members, where zlib's objects copy the whole rest for each of them.

_DEFLATE_RATIO: Final = 1032  # 258 bytes for two bits


def _gzip_compress(view: memoryview, level: int | None) -> bytes:
    return zlib.compress(view, _GZIP_LEVEL if level is None else level, wbits=31)


def _gzip_decompress(view: memoryview, max_bytes: int) -> memoryview:
    """First into the size that is stored at the end; if there are several members, that is too small."""
    limit, bound = _limit(len(view), max_bytes), _DEFLATE_RATIO * len(view)
    (declared,) = _u32_le(view, len(view) - 4)
    if declared > bound:
        raise CorruptBatch(f"gzip: {len(view)} bytes cannot hold the declared {declared}")
    if declared > limit:
        _refuse("gzip", view, declared, limit)
    plain = _attempt("gzip", cramjam.gzip.decompress_into, view, declared)
    return plain if plain is not None else _run("gzip", cramjam.gzip.decompress_into, view, bound, limit)


# --- snappy -------------------------------------------------------------------------------------------------
# xerial's framing: magic, version i32, compatible version i32, then blocks [length i32][bare snappy], big
# endian. The header may come again between blocks, where streams were put one behind the other; xerial reads
# that, too. Versions are not looked at: there has only been one, and Redpanda writes it little endian.

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024  # xerial's own default
_SNAPPY_RATIO: Final = 22  # a copy of 64 bytes takes 3


def _snappy_compress(view: memoryview, level: int | None) -> memoryview:
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


def _snappy_decompress(view: memoryview, max_bytes: int) -> memoryview:
    limit, total = _limit(len(view), max_bytes), sum(map(_snappy_size, _snappy_blocks(view)))
    if total > limit:
        _refuse("snappy", view, total, limit)
    return _run("snappy", _snappy_decode, view, total, limit)


def _snappy_decode(view: memoryview, target: memoryview) -> int:
    filled = 0
    for block in _snappy_blocks(view):
        filled += cramjam.snappy.decompress_raw_into(block, target[filled:])
    return filled


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    """The bare blocks, one at a time: a list of a million views would be a bomb of its own."""
    # No bare block begins like the magic: its first element would be a copy of what is not there yet.
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
    _too_many_blocks("snappy")


def _snappy_size(block: memoryview) -> int:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise _as_ours("snappy", error) from error
    if size > _SNAPPY_RATIO * len(block):
        raise CorruptBatch(f"snappy: {len(block)} bytes cannot hold the declared {size}")
    return size


# --- lz4 ----------------------------------------------------------------------------------------------------
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


def _lz4_compress(view: memoryview, level: int | None) -> memoryview:
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
    """The library's own frames, of 64 KiB with block checksums: its functions for blocks ignore the level."""
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(view))  # it takes nothing else
    return memoryview(compressor.finish())


def _lz4_decompress(view: memoryview, max_bytes: int) -> memoryview:
    limit = _limit(len(view), max_bytes)
    bound = _lz4_bound(view, limit)
    decode: Decode = cramjam.lz4.decompress_into
    if bound <= limit and bytes(view[:7]) in _LZ4_PLAIN:
        decode = _lz4_decode_plain
    return _run("lz4", decode, view, bound, limit)


def _lz4_decode_plain(view: memoryview, target: memoryview) -> int:
    """What cramjam's frame decoder does, without its copies: 20 % faster on the frames that Kafka writes.

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
    """The maximum that the frames can decompress to. The decoder checks them; this only reads as far as it must."""
    position = bound = blocks = 0
    while position < len(view):
        (magic,) = _u32_le(view, position)
        blocks += 1
        if magic != _LZ4_MAGIC:
            position = _skipped("lz4", view, position, magic)
        else:
            position, size, count = _lz4_frame(view, position + 4, limit, BLOCKS_MAX - blocks)
            bound += size
            blocks += count
        if blocks > BLOCKS_MAX:
            _too_many_blocks("lz4")
    return bound


def _lz4_frame(view: memoryview, position: int, limit: int, blocks_max: int) -> tuple[int, int, int]:
    """From after a frame's magic: where it ends, the maximum that it decompresses to, and how many blocks it has."""
    flags, block_max = view[position], _LZ4_BLOCK_SIZES.get(view[position + 1] >> 4 & 7)
    if block_max is None:
        raise CorruptBatch("lz4: the frame's block size is not one that the format defines")
    position += 2
    content_bytes = 0  # which the format treats as unknown
    if flags & 0x08:
        (content_bytes,) = _u64_le(view, position)
        position += 8
        if content_bytes > limit:
            _refuse("lz4", view, content_bytes, limit)
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
    _too_many_blocks("lz4")


def _skipped(name: str, view: memoryview, position: int, magic: int) -> int:
    """Where the skippable frame at `position` ends; lz4 and zstd share them."""
    if magic & 0xFFFFFFF0 != 0x184D2A50:
        raise CorruptBatch(f"{name}: no frame begins at byte {position} of {len(view)}")
    (length,) = _u32_le(view, position + 4)
    return position + 8 + int(length)


# --- zstd ---------------------------------------------------------------------------------------------------
# Frame (RFC 8878): magic u32, descriptor u8, [window u8], [dictionary id], [content size], then blocks with a
# header u24 (bit 0 last, bits 1-2 type, the rest size), [checksum u32]. Little endian.

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_WINDOW_MAX: Final = 128 * MIB  # more is refused by the library, and made by nothing but `zstd --long`
_ZSTD_WINDOWS: Final = [(8 + (byte & 7)) << (7 + (byte >> 3)) for byte in range(256)]  # by the header's byte
_ZSTD_BLOCK: Final = 128 * 1024
_ZSTD_DICTIONARY_ID_BYTES: Final = (0, 1, 2, 4)


def _zstd_compress(view: memoryview, level: int | None) -> memoryview:
    return memoryview(cramjam.zstd.compress(view, _ZSTD_LEVEL if level is None else level))


def _zstd_decompress(view: memoryview, max_bytes: int) -> memoryview:
    limit = _limit(len(view), max_bytes)
    bound, view = _zstd_plan(view, limit, max_bytes)
    return _run("zstd", cramjam.zstd.decompress_into, view, bound, limit)


def _zstd_window_fits(packed: memoryview | bytes, max_bytes: int) -> bool:
    try:
        _zstd_plan(memoryview(packed), _limit(len(packed), max_bytes), max_bytes)
    except DecompressionLimit:
        return False
    return True


def _zstd_plan(view: memoryview, limit: int, max_bytes: int) -> tuple[int, memoryview]:
    """The maximum that the frames can decompress to, and the frames, with windows no larger than that if they are
    short.

    Java's levels 20 to 22 ask for windows of 32 to 128 MiB however small the batch is. No frame can refer back further
    than its decompressed size, so a window of that size decodes it as well.
    """
    position = bound = blocks = window_max = 0
    narrowed: bytearray | None = None
    while position < len(view):
        (magic,) = _u32_le(view, position)
        blocks += 1
        if magic != _ZSTD_MAGIC:
            position = _skipped("zstd", view, position, magic)
        else:
            start = position + 4
            position, window, declared = _zstd_header(view, start)
            if declared is not None and declared > limit:
                _refuse("zstd", view, declared, limit)
            position, size, count = _zstd_blocks(view, position, BLOCKS_MAX - blocks)
            position += 4 if view[start] & 0x04 else 0  # checksum
            if declared is not None:
                size = min(size, declared)
            if window > _ZSTD_WINDOW_FREE >= len(view) and not view[start] & 0x20:
                narrowed = narrowed or bytearray(view)
                narrowed[start + 1] = min(view[start + 1], _zstd_window_byte(size))
                window = _ZSTD_WINDOWS[narrowed[start + 1]]
            blocks += count
            bound += size
            window_max = max(window_max, window)
        if blocks > BLOCKS_MAX:
            _too_many_blocks("zstd")
    _check_zstd_window(window_max, min(bound, limit), max_bytes)
    return bound, view if narrowed is None else memoryview(narrowed)


def _zstd_window_byte(size_bytes: int) -> int:
    """The header's byte for the smallest window that holds `size_bytes`, at least the size that is not counted."""
    return bisect_left(_ZSTD_WINDOWS, max(size_bytes, _ZSTD_WINDOW_FREE))


def _check_zstd_window(window_bytes: int, output_bytes: int, max_bytes: int) -> None:
    if window_bytes <= _ZSTD_WINDOW_FREE:
        return
    if window_bytes > _ZSTD_WINDOW_MAX or output_bytes + window_bytes > max_bytes + _ZSTD_WINDOW_FREE:
        raise DecompressionLimit(
            f"zstd: a window of {window_bytes} bytes and up to {output_bytes} bytes of output; {max_bytes} are "
            f"allowed for both, and {_ZSTD_WINDOW_MAX} for a window"
        )


def _zstd_header(view: memoryview, position: int) -> tuple[int, int, int | None]:
    """From after a frame's magic: where its blocks begin, its window in bytes, its content size if declared."""
    descriptor = view[position]
    position += 1
    single = descriptor & 0x20
    window = 0
    if not single:
        window = _ZSTD_WINDOWS[view[position]]
        position += 1
    position += _ZSTD_DICTIONARY_ID_BYTES[descriptor & 3]
    length = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    if length == 0:
        return position, window, None
    if position + length > len(view):
        raise IndexError
    declared = int.from_bytes(view[position : position + length], "little") + (256 if length == 2 else 0)
    return position + length, declared if single else window, declared


def _zstd_blocks(view: memoryview, position: int, blocks_max: int) -> tuple[int, int, int]:
    """From a frame's first block: where the last one ends, the maximum that all decompress to, and their count."""
    bound = 0
    for count in range(1, blocks_max + 1):
        header = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        size, kind = header >> 3, header >> 1 & 3
        # 0: stored, 1: one byte repeated, 2: compressed, 3: reserved, which the decoder will refuse.
        bound += min(size, _ZSTD_BLOCK) if kind < 2 else _ZSTD_BLOCK
        position += 3 + (1 if kind == 1 else size)
        if header & 1:
            return position, bound, count
    _too_many_blocks("zstd")


_ENCODERS: Final[dict[int, Callable[[memoryview, int | None], bytes | memoryview]]] = {
    GZIP: _gzip_compress,
    SNAPPY: _snappy_compress,
    LZ4: _lz4_compress,
    ZSTD: _zstd_compress,
}
_DECODERS: Final[dict[int, Callable[[memoryview, int], memoryview]]] = {
    GZIP: _gzip_decompress,
    SNAPPY: _snappy_decompress,
    LZ4: _lz4_decompress,
    ZSTD: _zstd_decompress,
}
