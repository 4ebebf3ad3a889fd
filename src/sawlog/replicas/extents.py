"""Reads a partition on object storage from an offset on, as batches with their offsets: large pieces of objects,
several at a time, in order. Always from the bucket, and compared with what was committed: a restore takes nothing from
the cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

from ..batch.header import BASE, LAST
from ..errors import ImportMismatch, StorageError
from ..objects.core import Core
from ..objects.extents import Extent
from ..objects.pieces import placed
from ..objects.reading import check
from .batches import Batches, checked

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
