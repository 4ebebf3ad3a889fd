"""Damage in a segment: errors that locate it, and the search for the next good batch."""

from __future__ import annotations

import struct

from ..batch import kernel
from ..batch.checksum import PartialSums
from ..batch.header import HEADER_BYTES
from ..errors import CorruptBatch
from ..storage import Storage
from .extent import Extent
from .index import MAX_SPAN

_PLACE = struct.Struct(">qii")

BAD_CRC = "the checksum of a batch does not match"
NO_BATCH = "no complete batch that follows the previous one"


def corrupt(
    extent: Extent,
    storage: Storage,
    position: int,
    limit: int,
    least: int,
    reason: str,
) -> CorruptBatch:
    """Return the error for a bad batch, with the next readable offset."""
    _, following = resume(extent, storage, position, limit, least)
    if following is None:
        following = extent.next_offset if extent.sealed else extent.expected_end
    return CorruptBatch(reason, path=extent.path, position=position, next_offset=following)


def unreadable(
    extent: Extent, position: int, last_offset: int, reason: str, kind: type[CorruptBatch] = CorruptBatch
) -> CorruptBatch:
    """Return the error for a batch whose checksum is right but whose records cannot be decoded."""
    return kind(reason, path=extent.path, position=position, next_offset=last_offset + 1)


def resume(extent: Extent, storage: Storage, position: int, limit: int, least: int) -> tuple[int, int | None]:
    """Find the next good batch at or after damage at `position`; return its position and first offset.

    A batch's checksum does not cover its offset, so something else must confirm the offset: the batch after it, the
    known end of the segment, or the header of the damaged batch before it. The candidates, in this order: `position`
    itself (batches may be missing before it), the end of the damaged batch according to its header, then every other
    position. The latter come last, because a record may itself contain bytes that look like a batch.
    """
    view = storage.view(position, limit - position)
    sums = PartialSums(view)
    if len(view) >= HEADER_BYTES:
        end = batch_size(view)
        for at, before in ((0, -1), (end, _PLACE.unpack_from(view)[0] + _span(view, 0))):
            base = _good_batch(extent, sums, view, at, least, before)
            if base is not None:
                return position + at, base
    at = kernel.find_header(view, 1, len(view), least)
    while at >= 0:
        base = _good_batch(extent, sums, view, at, least, -1)
        if base is not None:
            return position + at, base
        at = kernel.find_header(view, at + 1, len(view), least)
    return limit, None


def _good_batch(extent: Extent, sums: PartialSums, view: memoryview, at: int, least: int, before: int) -> int | None:
    """Return the base offset of a complete and confirmed batch at `at`, else None. `before` is the offset where the
    previous batch ended according to its own header. The checksum comes last, and each byte is summed once, however
    many positions look like a batch: a value may be full of them."""
    most = extent.next_offset if extent.sealed else extent.base_offset + MAX_SPAN
    base = _batch_at(view, at, least, most)
    if base is None:
        return None
    following, end = base + _span(view, at), at + batch_size(view[at:])
    if base == before:
        return base if _is_good(sums, view, at) else None
    if end == len(view):
        return base if following == extent.known_end and _is_good(sums, view, at) else None
    if _batch_at(view, end, following, most) != following:
        return None
    return base if _is_good(sums, view, at) and _is_good(sums, view, end) else None


def batch_size(view: memoryview) -> int:
    """Return the size of the batch at the start of `view`, according to its header."""
    size: int = 12 + struct.unpack_from(">i", view, 8)[0]
    return size


def _span(view: memoryview, at: int) -> int:
    """Return the number of offsets that the batch at `at` covers."""
    return 1 + int(struct.unpack_from(">i", view, at + 23)[0])


def _batch_at(view: memoryview, at: int, least: int, most: int) -> int | None:
    """Return the base offset of the batch at `at` if its header is plausible, fits, and lies in `least` to `most`."""
    if not 0 <= at <= len(view) - HEADER_BYTES or kernel.find_header(view, at, len(view), least) != at:
        return None
    base: int = _PLACE.unpack_from(view, at)[0]
    return base if base < most else None


def _is_good(sums: PartialSums, view: memoryview, position: int) -> bool:
    """Return True if the CRC of the batch at `position` is right. Its header must fit."""
    size = batch_size(view[position:])
    crc: int = struct.unpack_from(">I", view, position + 17)[0]
    return sums.of(position + 21, position + size) == crc
