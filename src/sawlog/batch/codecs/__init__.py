"""Shared by Kafka's codecs: the limit on decompressed sizes, and decoding into a buffer of at most that size.

A result is never longer than `limit_of(input bytes, max_bytes)`. The output is allocated once; errors of a codec's
library are converted (see compression.py). Pure functions over buffers, safe from any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import cramjam
import numpy as np

from ...errors import CorruptBatch, DecompressionLimit

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

u32_le, put_u32_le = struct.Struct("<I").unpack_from, struct.Struct("<I").pack_into
i32_be, put_i32_be = struct.Struct(">i").unpack_from, struct.Struct(">i").pack_into
u64_le = struct.Struct("<Q").unpack_from

Decode = Callable[[memoryview, memoryview], int]


def limit_of(packed_bytes: int, max_bytes: int) -> int:
    """Return the maximum size that `packed_bytes` may decompress to."""
    return min(max_bytes, max(RATIO_FREE_BYTES, RATIO_MAX * packed_bytes))


def too_large(name: str, view: memoryview, size_bytes: int | None, limit: int) -> DecompressionLimit:
    """Return the error for data that would exceed the limit when decompressed."""
    size = f"{size_bytes} bytes" if size_bytes is not None else "more"
    return DecompressionLimit(
        f"{name}: {len(view)} bytes would unpack to {size}, {limit} are allowed; "
        "raise the limit on decompressed bytes if you trust the writer"
    )


def too_many_blocks(name: str) -> DecompressionLimit:
    """Return the error for more than `BLOCKS_MAX` blocks."""
    return DecompressionLimit(f"{name}: more than {BLOCKS_MAX} blocks, which no real writer needs")


def filled(room: NDArray[np.uint8], size_bytes: int) -> memoryview:
    """Return the filled part of a buffer without other views, and release the rest if it is large.

    A small rest is kept: malloc learns from the sizes it gets back to keep such buffers at hand. Shrinking them first
    made every batch pay for fresh pages, which tripled the time for 100 KB of lz4.
    """
    if len(room) - size_bytes > MIB:
        room.resize(size_bytes, refcheck=False)
    return room.data[:size_bytes]


def attempt(name: str, decode: Decode, view: memoryview, room_bytes: int) -> memoryview | None:
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
        raise as_ours(name, error) from error
    return filled(room, size)


def run(name: str, decode: Decode, view: memoryview, bound: int, limit: int) -> memoryview:
    """Decode data that cannot legitimately exceed `bound`, and must not exceed `limit`, when decompressed."""
    plain = attempt(name, decode, view, min(bound, limit))
    if plain is not None:
        return plain
    if bound > limit:
        raise too_large(name, view, None, limit)
    raise CorruptBatch(f"{name}: {len(view)} bytes unpack to more than the {bound} that their headers allow")


def as_ours(name: str, error: cramjam.DecompressionError) -> Exception:
    """Convert an error of a codec's library to a `CorruptBatch` or `MemoryError`."""
    text = str(error)
    if "not enough memory" in text or "allocation" in text:
        return MemoryError(f"{name}: {text}")
    return CorruptBatch(f"{name}: the compressed data is corrupt: {text}")


def after_skippable(name: str, view: memoryview, position: int, magic: int) -> int:
    """Return the end of the skippable frame at `position`; lz4 and zstd share that format."""
    if magic & 0xFFFFFFF0 != 0x184D2A50:
        raise CorruptBatch(f"{name}: no frame begins at byte {position} of {len(view)}")
    (length,) = u32_le(view, position + 4)
    return position + 8 + int(length)
