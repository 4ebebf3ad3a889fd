"""Kafka's four compression codecs: decode defensively, and encode for every Kafka client.

    number  name    written                                       read
    0       none    the data itself                               the data itself
    1       gzip    one member                                    members
    2       snappy  xerial's framing, blocks of 32 KiB            xerial's framing, or one bare snappy block
    3       lz4     a frame of independent blocks                 frames: linked blocks, checksums, sizes too
    4       zstd    a frame that declares its size                frames, with or without a size

Kafka's Java client rejects lz4 frames with linked blocks, so sawlog writes none; librdkafka writes bare snappy. Several
members or frames in a row are read as one; skippable frames are skipped. Anything else after the last one is
corruption, and so is empty input: every codec produces at least one byte.

**Bounds.** `decompress` trusts no declared size. Its result is never longer than

    min(max_bytes, max(RATIO_FREE_BYTES, RATIO_MAX · input bytes))

A size that is declared (zstd, snappy, lz4 if present, the end of a gzip member) is checked before anything is
allocated. Where none is declared, blocks are counted first, and each has a maximum size. The output is allocated once,
at that bound or at the limit, and the unused rest is released. In addition to the output a decoder takes at most
DECODER_BYTES: the window of a zstd frame counts against `max_bytes`.

**Errors.** Data that does not decompress: `CorruptBatch`. More than is allowed: `DecompressionLimit`, a subclass of it.
Out of memory is `MemoryError`, never reported as corruption. No error of a codec's library escapes.

**Writers obey the readers' limits.** `compress` returns None if the result would not be smaller, or if `decompress`
would reject it: the caller then stores the records uncompressed, with codec 0.

The codecs are in `codecs`. Pure functions over buffers, safe from any thread; the libraries release the GIL while they
work.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..errors import CorruptBatch, InvalidConfig, UnsupportedCompression
from . import codecs
from .codecs import DEFAULT_MAX, limit_of, zstd_window_fits

if TYPE_CHECKING:
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

#: Levels of each codec, as in Kafka. For lz4, levels above 12 equal 12, and None is faster than 1. Snappy has no
#: levels.
LEVELS: Final[dict[int, range]] = {
    NONE: range(0),
    GZIP: range(1, 10),
    SNAPPY: range(0),
    LZ4: range(1, 18),
    ZSTD: range(-131072, 23),
}


def codec_id(codec: str | int) -> int:
    """Return the number of a codec given by name or number; raise `InvalidConfig`, which lists the choices."""
    if isinstance(codec, str):
        number = CODECS.get(codec)
    else:
        number = codec if not isinstance(codec, bool) and codec in range(len(_NAMES)) else None
    if number is None:
        raise InvalidConfig(f"compression {codec!r} is unknown; choose one of {_CHOICES}")
    return number


def codec_name(codec: int) -> str:
    """Return the name of a codec number, for example the lowest three bits of a batch's attributes."""
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
    """Compress the data; return None if the result is not smaller, or `decompress` at `max_bytes` would reject it."""
    check_level(codec, level)
    view = _bytes_of(data)
    if codec == NONE:
        return view
    if len(view) > max_bytes:
        return None
    packed = _ENCODERS[codec](view, level)
    if len(packed) >= len(view) or len(view) > limit_of(len(packed), max_bytes):
        return None
    if codec == ZSTD and not zstd_window_fits(packed, len(view), max_bytes):
        return None
    return packed


def decompress(codec: int, data: Buffer, *, max_bytes: int = DEFAULT_MAX) -> memoryview:
    """Decompress the data to contiguous bytes. Codec 0 returns the data itself: no copy, no bound."""
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


def _bytes_of(data: Buffer) -> memoryview:
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 and view.c_contiguous else view.cast("B")


_ENCODERS: Final[dict[int, Callable[[memoryview, int | None], bytes | memoryview]]] = {
    GZIP: codecs.gzip_compress,
    SNAPPY: codecs.snappy_compress,
    LZ4: codecs.lz4_compress,
    ZSTD: codecs.zstd_compress,
}
_DECODERS: Final[dict[int, Callable[[memoryview, int], memoryview]]] = {
    GZIP: codecs.gzip_decompress,
    SNAPPY: codecs.snappy_decompress,
    LZ4: codecs.lz4_decompress,
    ZSTD: codecs.zstd_decompress,
}
