"""Batches on their way between a directory and object storage: read at an offset, cut where they overlap, and filled
where offsets are missing. Their bytes do not change, except where a batch must be cut.

Reads from object storage request large ranges, several at a time, in order. They bypass the cache and verify the
committed digests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import NamedTuple, cast

from ...batch.header import BASE, HEADER_BYTES, LAST, LEADER_EPOCH, MAX_TIME, POSITION, SIZE, Rows
from ...batch.read import decode
from ...errors import ImportMismatch, StorageError
from ...log.batches import Chunk
from ...log.ingest import checked_rows, fillers, rows_of
from ...log.rebatch import Rebatcher, RewriteOptions
from ...log.replacement import ReplacementFile
from ...log.segment import Segment
from ..objects.extent_reader import check_extent, place_batches
from ..objects.session import StoreSession
from ..objects.state.extents import Extent

#: Maximum size of a request, and the number of requests in flight.
PIECE_BYTES, AHEAD = 8 << 20, 4


def pieces(extents: Iterable[Extent]) -> Iterator[list[Extent]]:
    """Yield runs of adjacent extents in one object, each of which is one request."""
    run: list[Extent] = []
    for each in extents:
        if run and (
            each.key != run[-1].key
            or each.position != run[-1].position + run[-1].size_bytes
            or each.position + each.size_bytes - run[0].position > PIECE_BYTES
        ):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def read_ahead(session: StoreSession, pool: ThreadPoolExecutor, extents: Iterable[Extent]) -> Iterator[Batches]:
    """Yield the batches of extents, in order, with read-ahead."""
    coming: deque[Future[Batches]] = deque()
    waiting = pieces(extents)
    for run in chain(waiting, [None] * AHEAD):
        if run is not None:
            coming.append(pool.submit(_read, session, run))
        while coming and (run is None or len(coming) > AHEAD):
            yield coming.popleft().result()


def _read(session: StoreSession, run: list[Extent]) -> Batches:
    first, last = run[0], run[-1]
    size = last.position + last.size_bytes - first.position
    data = bytearray(session.bucket.get_range(first.key, first.position, size))
    if len(data) != size:
        raise StorageError(None, f"{first.key}: {size} bytes expected, {len(data)} read")
    view = memoryview(data)
    for each in run:
        part = view[each.position - first.position :][: each.size_bytes]
        check_extent(each, part)
        place_batches(part, each.base_offset, each.leader_epoch)
    return checked(data)


def between(batches: Batches, start: int, end: int, where: str) -> Batches | None:
    """Return the batches with offsets from `start` to `end`; None if there are none. Raises `ImportMismatch` if a batch
    extends beyond the end, because it was compacted since with records that were written later."""
    rows = batches.rows[(batches.rows[:, LAST] >= start) & (batches.rows[:, BASE] < end)]
    if not len(rows):
        return None
    if int(rows[-1, LAST]) >= end:
        raise ImportMismatch(
            f"{where} was compacted since: offset {end}, where it ended at that moment, is inside a batch now, and "
            "the earlier records are gone"
        )
    return Batches(batches.data, rows)


class Batches(NamedTuple):
    """Contiguous batches and their headers."""

    data: memoryview
    rows: Rows

    @property
    def base_offset(self) -> int:
        """First offset."""
        return int(self.rows[0, BASE])

    @property
    def next_offset(self) -> int:
        """The first offset after the batches."""
        return int(self.rows[-1, LAST]) + 1

    def epochs(self) -> Iterator[tuple[int, Batches]]:
        """Yield the batches of each leader epoch. Batches without an epoch belong to epoch 0."""
        start = 0
        for at in range(1, len(self.rows) + 1):
            if at == len(self.rows) or self.rows[at, LEADER_EPOCH] != self.rows[start, LEADER_EPOCH]:
                yield max(int(self.rows[start, LEADER_EPOCH]), 0), self._part(start, at)
                start = at

    def _part(self, start: int, end: int) -> Batches:
        rows = self.rows[start:end].copy()
        first, last = int(rows[0, POSITION]), int(rows[-1, POSITION] + rows[-1, SIZE])
        rows[:, POSITION] -= first
        return Batches(self.data[first:last], rows)


def checked(data: bytes | bytearray | memoryview) -> Batches:
    """Return batches after verifying their structure and checksums."""
    view = memoryview(data)
    return Batches(view, checked_rows(view))


def cut_below(batches: Batches, offset: int, max_bytes: int) -> Batches:
    """Return the batches from an offset on, even if it is inside the first batch: the source may have merged batches
    since the last ones were copied."""
    if batches.base_offset >= offset:
        return batches
    out = _Out()
    rows = batches.rows[batches.rows[:, LAST] >= offset]
    if int(rows[0, BASE]) < offset:
        made = Rebatcher(cast("ReplacementFile", out), offset, RewriteOptions(floor=offset), max_bytes)
        made.take(Chunk(batches.data, rows[:1], 0), cast("Segment", _Named("the source")))
        made.finish(int(rows[0, LAST]) + 1)
        rows = rows[1:]
    if len(rows):
        out.data += batches.data[int(rows[0, POSITION]) : int(rows[-1, POSITION] + rows[-1, SIZE])]
    return checked(out.data)


def filled(raw: bytes, start: int, end: int, epoch: int) -> Batches:
    """Return batches that start at `start`. An empty batch fills missing offsets before them or, if there are none, the
    offsets up to `end`."""
    if not raw:
        return checked(fillers(start, end, -1, epoch))
    batches = checked(raw)
    if batches.base_offset <= start:
        return batches
    first = batches.rows[0]
    before = fillers(start, batches.base_offset, int(first[MAX_TIME]), max(int(first[LEADER_EPOCH]), 0))
    made = memoryview(bytes(before) + bytes(batches.data))
    return Batches(made, rows_of(made))


def same_at(one: bytes, other: bytes, offset: int) -> bool:
    """Return whether two batches that contain an offset are the same: byte for byte except for the leader epoch or, if
    one was rewritten by compaction, whether both have the same record at the offset, where both have it."""
    if one[:12] == other[:12] and one[16:HEADER_BYTES] == other[16:HEADER_BYTES]:
        return True
    mine, theirs = decode(one, offset, offset + 1), decode(other, offset, offset + 1)
    if not mine or not theirs:
        return True
    return [(each.timestamp, each.key, each.value, each.headers) for each in mine] == [
        (each.timestamp, each.key, each.value, each.headers) for each in theirs
    ]


class _Out:
    """In-memory output of `Rebatcher`."""

    def __init__(self) -> None:
        self.data = bytearray()

    def put(self, batch: memoryview, last_offset: int, max_timestamp: int, *, count: int) -> None:
        self.data += batch


class _Named(NamedTuple):
    """Origin of a chunk, for error messages of `Rebatcher`."""

    path: str
