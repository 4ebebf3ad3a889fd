"""Reads a partition on object storage from an offset on, as batches with their offsets: large pieces of objects,
several at a time, in order. Always from the bucket, and compared with what was committed: a restore takes nothing from
the cache.

Batches on their way from one store to the other: read at an offset, cut where they overlap, filled where offsets are
missing. Their bytes do not change, except where a batch must be cut.
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
from ...log.rebatch import Rebatch, Wanted
from ...log.replacement import Replacement
from ...log.segment import Segment
from ..objects.extent_reader import check
from ..objects.partition.pieces import placed
from ..objects.session import Core
from ..objects.state.extents import Extent

#: What is read with one request, at most, and how many of them are on their way.
PIECE_BYTES, AHEAD = 8 << 20, 4


def pieces(extents: Iterable[Extent]) -> Iterator[list[Extent]]:
    """Extents that follow each other in one object, to be read at once."""
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


def read_ahead(core: Core, pool: ThreadPoolExecutor, extents: Iterable[Extent]) -> Iterator[Batches]:
    """The batches of extents, in order; the next ones are read meanwhile."""
    coming: deque[Future[Batches]] = deque()
    waiting = pieces(extents)
    for run in chain(waiting, [None] * AHEAD):
        if run is not None:
            coming.append(pool.submit(_read, core, run))
        while coming and (run is None or len(coming) > AHEAD):
            yield coming.popleft().result()


def _read(core: Core, run: list[Extent]) -> Batches:
    first, last = run[0], run[-1]
    size = last.position + last.size_bytes - first.position
    data = bytearray(core.bucket.get_range(first.key, first.position, size))
    if len(data) != size:
        raise StorageError(None, f"{first.key}: {size} bytes expected, {len(data)} read")
    view = memoryview(data)
    for each in run:
        part = view[each.position - first.position :][: each.size_bytes]
        check(each, part)
        placed(part, each.base_offset, each.leader_epoch)
    return checked(data)


def between(batches: Batches, start: int, end: int, where: str) -> Batches | None:
    """Those that contain offsets from `start` on and are below `end`; None if there are none. `ImportMismatch` if one
    goes beyond the end: it was compacted since, with records that were written later."""
    rows = batches.rows[(batches.rows[:, LAST] >= start) & (batches.rows[:, BASE] < end)]
    if not len(rows):
        return None
    if int(rows[-1, LAST]) >= end:
        raise ImportMismatch(
            f"{where} was compacted since: offset {end}, where it ended at that moment, is inside a batch now, and "
            "what was there before is gone"
        )
    return Batches(batches.data, rows)


class Batches(NamedTuple):
    """Complete batches that follow each other without a gap, and their headers."""

    data: memoryview
    rows: Rows

    @property
    def base_offset(self) -> int:
        """The first offset."""
        return int(self.rows[0, BASE])

    @property
    def next_offset(self) -> int:
        """The first offset after them."""
        return int(self.rows[-1, LAST]) + 1

    def epochs(self) -> Iterator[tuple[int, Batches]]:
        """The same in pieces, one for each leader epoch. Batches of version 0.2 have none, and are in epoch 0."""
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
    """Batches after their structure and their checksums were checked."""
    view = memoryview(data)
    return Batches(view, checked_rows(view))


def cut_below(batches: Batches, offset: int, max_bytes: int) -> Batches:
    """The same from an offset on, if it is inside the first batch: where they come from, batches were joined since the
    last ones were copied."""
    if batches.base_offset >= offset:
        return batches
    out = _Out()
    rows = batches.rows[batches.rows[:, LAST] >= offset]
    if int(rows[0, BASE]) < offset:
        made = Rebatch(cast("Replacement", out), offset, Wanted(floor=offset), max_bytes)
        made.take(Chunk(batches.data, rows[:1], 0), cast("Segment", _Named("the source")))
        made.finish(int(rows[0, LAST]) + 1)
        rows = rows[1:]
    if len(rows):
        out.data += batches.data[int(rows[0, POSITION]) : int(rows[-1, POSITION] + rows[-1, SIZE])]
    return checked(out.data)


def filled(raw: bytes, start: int, end: int, epoch: int) -> Batches:
    """Batches from `start` on: one without records stands for the offsets that are missing before them; if there are
    none, for those up to `end`."""
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
    """Whether two batches that contain an offset are the same one: byte for byte but for the leader epoch; or, if one
    was rewritten by compaction, whether the record at the offset is the same, where both have it."""
    if one[:12] == other[:12] and one[16:HEADER_BYTES] == other[16:HEADER_BYTES]:
        return True
    mine, theirs = decode(one, offset, offset + 1), decode(other, offset, offset + 1)
    if not mine or not theirs:
        return True
    return [(each.timestamp, each.key, each.value, each.headers) for each in mine] == [
        (each.timestamp, each.key, each.value, each.headers) for each in theirs
    ]


class _Out:
    """Where `Rebatch` puts what is left."""

    def __init__(self) -> None:
        self.data = bytearray()

    def put(self, batch: memoryview, last_offset: int, max_timestamp: int, *, count: int) -> None:
        self.data += batch


class _Named(NamedTuple):
    """What `Rebatch` says is damaged."""

    path: str
