"""gzip: one member is written, several are read as one.

Written with zlib: at level 6 it took 0.6 to 0.9 of cramjam's time. Read with cramjam: as fast, and linear
in the number of members, where zlib's objects copy the whole rest for each of them.
"""

from __future__ import annotations

import zlib
from typing import Final

import cramjam

from ...errors import CorruptBatch
from . import attempt, limit_of, run, too_large, u32_le

_LEVEL: Final = 6  # Kafka's default, which is zlib's
_DEFLATE_RATIO: Final = 1032  # 258 bytes for two bits


def compress(view: memoryview, level: int | None) -> bytes:
    """Compress; None is the default level."""
    return zlib.compress(view, _LEVEL if level is None else level, wbits=31)


def decompress(view: memoryview, max_bytes: int) -> memoryview:
    """Decompress into the size stored at the end, then, if that is too small (several members), into the maximum."""
    limit, bound = limit_of(len(view), max_bytes), _DEFLATE_RATIO * len(view)
    (declared,) = u32_le(view, len(view) - 4)
    if declared > bound:
        raise CorruptBatch(f"gzip: {len(view)} bytes cannot hold the declared {declared}")
    if declared > limit:
        raise too_large("gzip", view, declared, limit)
    plain = attempt("gzip", cramjam.gzip.decompress_into, view, declared)
    return plain if plain is not None else run("gzip", cramjam.gzip.decompress_into, view, bound, limit)
