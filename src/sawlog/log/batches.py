"""Sequential access to the batches of a segment, verified and in order, and the search for the next after damage."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..batch import kernel
from ..batch.checksum import PartialSums
from ..batch.header import BASE, HEADER_BYTES, LAST, POSITION, SIZE, Rows, new_rows
from ..batch.read import first_bad_crc
from ..errors import CorruptBatch
from ..storage import Storage

if TYPE_CHECKING:
    from .index import SegmentIndex

#: Most offsets that a segment spans: they are relative and 32-bit in its index, and Kafka reads them as signed.
MAX_SPAN = 2**31 - 1
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


def find_good_batch(view: memoryview, start: int, least: int) -> int | None:
    """Return the position of the first batch at or after `start` whose CRC is right and whose offset is at least
    `least`."""
    sums = PartialSums(view)
    at: int = kernel.find_header(view, start, len(view), least)
    while at >= 0 and not _is_good(sums, view, at):
        at = kernel.find_header(view, at + 1, len(view), least)
    return at if at >= 0 else None


#: Bytes per step of a scan: large enough to amortise a call, small enough for the CPU caches.
CHUNK_BYTES = 1 << 21
#: Maximum number of headers in one step.
CHUNK_ROWS = 1024


class Extent(kernel.ExtentFields):
    """The range of offsets and bytes of one segment."""

    __slots__ = ("expected_end", "path")
    base_offset: int
    sealed: bool
    #: True if each batch begins where the previous one ended. Holds for our own logs, but not for Kafka's.
    dense: bool
    #: Committed (next offset, size) as one value, so that readers never see a torn pair.
    tail: tuple[int, int]

    def __init__(
        self,
        base_offset: int,
        next_offset: int,
        size: int,
        path: str,
        *,
        sealed: bool = True,
        expected_end: int | None = None,
        dense: bool = True,
    ) -> None:
        self.base_offset = base_offset
        self.tail = (next_offset, size)
        self.sealed = sealed
        #: The offset where the segment should end, if recovery knows it; see `known_end`.
        self.expected_end = expected_end
        self.dense = dense
        self.path = path

    def reach(self, next_offset: int, size: int) -> None:
        """Move the end forward."""
        self.tail = next_offset, size

    def unseal(self) -> None:
        """Mark the segment as growing: its end is not known yet."""
        self.sealed = False

    def seal_at(self, next_offset: int, size: int) -> None:
        """Set the final end."""
        self.tail, self.sealed = (next_offset, size), True

    def truncate_to(self, tail: tuple[int, int]) -> None:
        """Move the end back: the rest was rolled back, or is about to be cut."""
        self.tail = tail

    def expect(self, next_offset: int, size: int) -> None:
        """Require the segment to extend to this end: anything unreadable below it is damage."""
        self.expected_end = next_offset
        self.tail = next_offset, size

    @property
    def next_offset(self) -> int:
        """First offset after the segment."""
        return self.tail[0]

    @property
    def size(self) -> int:
        """Committed bytes."""
        return self.tail[1]

    @property
    def known_end(self) -> int | None:
        """First offset after the segment, if known."""
        if self.expected_end is not None:
            return self.expected_end
        return self.next_offset if self.next_offset > self.base_offset else None


@dataclass(slots=True)
class Chunk:
    """Complete batches in a buffer. Positions in `rows` are relative to the buffer, which begins at byte `origin` of
    the file."""

    view: memoryview
    rows: Rows
    origin: int
    #: Records below this offset were already returned. They can share a batch with later records if the segment was
    #: replaced during a scan.
    start: int = 0
    #: True if a batch may be transactional or a control batch.
    special: bool = False

    def keep(self, rows: Rows) -> None:
        """Restrict the chunk to these batches."""
        self.rows = rows

    def good(self, rows: Rows) -> Rows:
        """Return the batches among these whose checksum is right."""
        while (bad := first_bad_crc(self.view, rows)) >= 0:
            rows = np.delete(rows, bad, axis=0)
        return rows

    def skip_below(self, offset: int) -> None:
        """Exclude records below this offset, which were already returned."""
        self.start = offset


@dataclass(frozen=True, slots=True)
class Walk:
    """Result of a walk: the offset and position after the last good batch, the damage there, if any, and the position
    where good batches resume (the limit, if none do)."""

    next_offset: int
    position: int
    damage: CorruptBatch | None
    resume_position: int


class Batches(Extent):
    """A segment as a sequence of batches, independent of its storage."""

    __slots__ = ()

    def batches(
        self,
        storage: Storage,
        position: int,
        limit: int,
        least: int,
        *,
        check: bool = True,
        skip_below: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
        first_bytes: int = CHUNK_BYTES,
    ) -> Iterator[Chunk]:
        """Yield all complete batches from `position` to `limit`; raise `CorruptBatch` at anything else.

        The content of batches completely below `skip_below` is not verified. The first chunk has about `first_bytes`
        bytes if that is less than `chunk_bytes`.
        """
        want = min(chunk_bytes, max(first_bytes, HEADER_BYTES))
        room = new_rows(CHUNK_ROWS)
        view = memoryview(b"")
        while position < limit:
            if not view:
                view = storage.view(position, min(want, limit - position))
            end = len(view)
            n, stopped, why, special = kernel.scan_batches(view, 0, end, end, least, memoryview(room), self.dense)
            rows = room[:n].copy()
            if n == 0:
                if why == kernel.SCAN_SHORT and position + len(view) < limit:
                    # The rest of a view may be too short for a header.
                    want = batch_size(view) if len(view) >= HEADER_BYTES else min(chunk_bytes, limit - position)
                    if want <= limit - position:
                        view = view[:0]
                        continue
                raise corrupt(self, storage, position, limit, max(least, self.base_offset), NO_BATCH)
            if check:
                bad = _first_bad(view, rows, skip_below)
                if bad >= 0:
                    if bad:
                        yield Chunk(view, rows[:bad], position, 0, special)
                        least = int(rows[bad - 1, LAST]) + 1
                    at = position + int(rows[bad, POSITION])
                    raise corrupt(self, storage, at, limit, int(rows[bad, BASE]), BAD_CRC)
            yield Chunk(view, rows, position, 0, special)
            least = int(rows[-1, LAST]) + 1
            position += stopped
            view = view[stopped:] if n == CHUNK_ROWS else view[:0]  # the view may hold more batches than CHUNK_ROWS
            want = chunk_bytes

    def chunks_in(
        self,
        storage: Storage,
        index: SegmentIndex,
        offset: int,
        end: int,
        *,
        check: bool = True,
        chunk_bytes: int = CHUNK_BYTES,
        behind: int = -1,
    ) -> Iterator[Chunk]:
        """Yield the batches with offsets from `offset` to `end`, in order, verified; raise at the first bad one.

        The first may start below `offset` and the last may end after `end`. `behind` is the position of a batch known
        to be bad, which is skipped.
        """
        end = min(end, self.next_offset)  # anything after that is uncommitted, or belongs to the next segment
        limit = self.size
        start, _, wanted = index.bounds(offset, limit)
        if behind >= 0:
            start, wanted = self.resume(storage, behind, limit, self.base_offset)[0], -1
        if wanted >= 0 and not names_batch(storage, start, wanted):
            start = 0
        # A short scan requests no more than it needs, as far as the index tells.
        first_bytes = index.bounds(end - 1, limit)[1] - start if end < self.next_offset else chunk_bytes
        least = -1 if start else self.base_offset
        hops = True
        while True:
            try:
                skip_below = offset if hops else 0
                for chunk in self._from(
                    storage, start, limit, least, offset, end, check or not hops, skip_below, chunk_bytes, first_bytes
                ):
                    if hops and not check and _first_bad(chunk.view, chunk.rows[-1:], 0) >= 0:
                        break  # the next batch confirms each one, except for the last
                    reached = int(chunk.rows[-1, LAST]) + 1  # first: the consumer may drop rows
                    yield chunk
                    offset = reached
                if offset >= end or not hops:
                    return
                hops = False
            except CorruptBatch as damage:
                if hops:
                    # A skipped batch may be the damaged one, with a wrong length: verify every batch now.
                    hops = False
                    continue
                # Damage completely below the next offset cost this reader no record: continue after it.
                if damage.position is None or damage.next_offset is None or damage.next_offset > offset:
                    raise
                at, base = self.resume(storage, damage.position, limit, max(least, self.base_offset))
                if base is None or base > offset or (at, base) == (start, least):
                    raise
                start, least = at, base

    def _from(
        self,
        storage: Storage,
        start: int,
        limit: int,
        least: int,
        offset: int,
        end: int,
        check: bool,
        skip_below: int,
        chunk_bytes: int,
        first_bytes: int,
    ) -> Iterator[Chunk]:
        for chunk in self.batches(
            storage,
            start,
            limit,
            least,
            check=check,
            skip_below=skip_below,
            chunk_bytes=chunk_bytes,
            first_bytes=first_bytes,
        ):
            rows = chunk.rows
            if rows[0, LAST] < offset:
                first = int((rows[:, LAST] < offset).sum())
                if first == len(rows):
                    continue
                rows = rows[first:]
            if rows[-1, BASE] >= end:
                rows = rows[: int((rows[:, BASE] < end).sum())]
                if len(rows):
                    chunk.keep(rows)
                    yield chunk
                return
            chunk.keep(rows)
            yield chunk
            if rows[-1, LAST] + 1 >= end:
                return  # the rest may be damaged, and was not requested

    def walk(self, storage: Storage, position: int, limit: int, index: SegmentIndex, *, resumed: bool = False) -> Walk:
        """Verify every batch from `position` and add it to `index`, up to the end or the first bad one.

        `resumed`: `resume` found the batch at `position`, so its offset need not continue a previous batch.
        """
        following = -1 if resumed else self.base_offset
        end = position
        try:
            for chunk in self.batches(storage, position, limit, following):
                index.add_rows(chunk.rows, chunk.origin)
                last = chunk.rows[-1]
                following, end = int(last[LAST]) + 1, chunk.origin + int(last[POSITION] + last[SIZE])
        except CorruptBatch as damage:
            at, _ = self.resume(storage, end, limit, max(following, self.base_offset))
            return Walk(following, end, damage, at)
        return Walk(following, end, None, limit)

    def resume(self, storage: Storage, position: int, limit: int, least: int) -> tuple[int, int | None]:
        """Find the next good batch at or after damage at `position`; return its position and first offset."""
        return resume(self, storage, position, limit, least)


def _first_bad(view: memoryview, rows: Rows, skip_below: int) -> int:
    if skip_below <= rows[0, LAST]:
        return first_bad_crc(view, rows)
    skipped = int((rows[:, LAST] < skip_below).sum())
    bad = first_bad_crc(view, rows[skipped:])
    return bad if bad < 0 else bad + skipped


def names_batch(storage: Storage, position: int, last_offset: int) -> bool:
    """Return True if the batch at an indexed position is the one that the index names."""
    try:
        header = storage.view(position, HEADER_BYTES)
    except OSError:
        return False
    base, _, _ = _PLACE.unpack_from(header)
    return bool(header[16] == 2 and base + struct.unpack_from(">i", header, 23)[0] == last_offset)
