"""Slices of a partition for parallel readers: the threads of a query (SQL), and processes that know nothing else of the
store (Spark).

The counterpart of `sawlog.log.slices`: `cut_into` divides a range of offsets using the extents alone, and
`ObjectSliceReader` reads a slice completely or raises `DataLoss`.

A slice contains its extents, so its reader needs only the bucket, neither commits nor checkpoints. Only if an object is
missing, because it was consolidated and removed since the slice was planned, does the reader look at the state and
continue with the extents that now have these offsets. An extent carries the digest of its batches, so a slice planned
before the bucket was rolled back never returns batches that were committed in the same place later: it raises
`CorruptBatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...batch.header import BASE, COUNT, LAST, Rows
from ...config import Isolation, LogConfig, is_committed
from ...errors import CorruptBatch, DataLoss, StorageError, TopicNotFound
from ...log.ingest import rows_of
from ...log.slices import fail
from ...log.transactions import AbortedTransaction, aborted_rows
from ..base import PlannedSlice, SliceReader
from .extent_reader import CHUNK_BYTES, Part, place_rows
from .session import StoreSession
from .state import State
from .state.commit import Extent, in_runs

if TYPE_CHECKING:
    import pyarrow as pa


#: Smaller parts are copied into one buffer, because each would cost a call otherwise.
_SMALL_BYTES = 256 << 10
#: Maximum number of times extents are looked up again because they were consolidated and removed meanwhile.
_RESTARTS = 10


@dataclass(frozen=True, slots=True)
class ObjectSlice(PlannedSlice):
    """Records with start_offset <= offset < end_offset, and the extents that contain them."""

    start_offset: int
    end_offset: int
    extents: tuple[Extent, ...]
    #: Isolation level of the reader.
    isolation: Isolation = "committed"
    #: The aborted transactions that may have batches in the slice.
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.extents)

    def joined(self, after: object) -> ObjectSlice | None:
        if not isinstance(after, ObjectSlice) or after.start_offset != self.end_offset:
            return None
        extents = tuple(dict.fromkeys((*self.extents, *after.extents)))
        aborted = tuple(dict.fromkeys((*self.aborted, *after.aborted)))
        return replace(self, end_offset=after.end_offset, extents=extents, aborted=aborted)


def cut_into(
    extents: Sequence[Extent], start: int, end: int, *, target_bytes: int | None, max_records: int | None
) -> Iterator[ObjectSlice]:
    """Yield slices for the offsets from `start` to `end`, all of which are in these extents."""
    for run in in_runs(extents, target_bytes):
        yield from _by_records(run, start, end, max_records)


def _by_records(extents: Sequence[Extent], start: int, end: int, max_records: int | None) -> Iterator[ObjectSlice]:
    first, last = max(start, extents[0].base_offset), min(end, extents[-1].next_offset)
    for at in range(first, last, max_records or last - first):
        to = last if max_records is None else min(at + max_records, last)
        inside = tuple(each for each in extents if each.next_offset > at and each.base_offset < to)
        yield ObjectSlice(at, to, inside)


class ObjectSliceReader(SliceReader):
    """Reader for slices of one partition, possibly planned by another process. Thread-safe."""

    def __init__(self, session: StoreSession, topic: str, topic_id: str, number: int, *, cached: bool = True) -> None:
        self._session = session
        self._reader = session.extents if cached else session.uncached
        self._topic, self._id, self._number = topic, topic_id, number

    def read(
        self, planned: object, *, columns: Sequence[str], batch_rows: int, lost: Callable[[DataLoss], None] = fail
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a slice as Arrow batches. If records are missing, raises `DataLoss`, or calls `lost`
        instead, if given, and continues with the rest. Raises `TopicNotFound` if the topic was deleted."""
        from ...batch.arrow import to_arrow

        assert isinstance(planned, ObjectSlice)
        most = LogConfig().max_decompressed_bytes
        for view, rows in self.chunks(planned, lost):
            batch = to_arrow(view, rows, planned.start_offset, planned.end_offset, columns=columns, max_bytes=most)
            for first in range(0, batch.num_rows, batch_rows):
                yield batch.slice(first, batch_rows)

    def chunks(self, piece: ObjectSlice, lost: Callable[[DataLoss], None] = fail) -> Iterator[tuple[memoryview, Rows]]:
        """Yield the verified batches of a slice that have records, with their offsets."""
        extents: Sequence[Extent] = piece.extents
        reached = piece.start_offset
        for _ in range(_RESTARTS):
            try:
                for first, data, end in self._joined(extents):
                    rows = _placed(data, first, end)
                    wanted = _wanted(rows, piece)
                    if wanted[:, COUNT].any():
                        yield data, wanted
                    reached = end
                return
            except (StorageError, CorruptBatch):
                now = self._now(replace(piece, start_offset=min(reached, piece.end_offset)), lost)
                if not now:
                    return
                if now[0] in extents and set(now) <= set(extents):
                    raise  # nothing has moved, so the object is damaged or the bucket does not answer
                if _has_other_history(now, extents):
                    raise
                extents = now
                reached = max(reached, now[0].base_offset)
        raise DataLoss(f"offsets from {reached} on of {self._topic}/{self._number} could not be found")

    def _joined(self, extents: Sequence[Extent]) -> Iterator[tuple[Extent, memoryview, int]]:
        """Yield stored batches, their first extent, and the offset after them. Small extents are joined, because each
        would cost a call, and large parts are split."""
        held = bytearray()
        first = last = extents[0]
        for run, data in _cut_up(self._reader.read_parts(extents)):
            if held and (len(held) + len(data) > CHUNK_BYTES or not _follows(last, run[0])):
                yield first, memoryview(held), last.next_offset
                held = bytearray()
            if not held:
                first = run[0]
            last = run[-1]
            if not held and len(data) > _SMALL_BYTES:
                yield first, data, last.next_offset
            else:
                held += data
        if held:
            yield first, memoryview(held), last.next_offset

    def _now(self, rest: ObjectSlice, lost: Callable[[DataLoss], None]) -> list[Extent]:
        def look(state: State) -> tuple[bool, int, list[Extent]]:
            first, last = rest.start_offset, rest.end_offset
            found = list(state.extents(self._id, self._number, first, last)) if first < last else []
            return state.has(self._id, self._number), state.ends(self._id, self._number)[0], found

        exists, lowest, extents = self._session.look(look, fresh=True)
        if not exists:
            raise TopicNotFound(f"the topic {self._topic!r} was deleted since this was planned")
        if rest.start_offset < min(lowest, rest.end_offset):
            gone = f"offsets {rest.start_offset} to {min(lowest, rest.end_offset) - 1} of {self._topic}/{self._number}"
            lost(DataLoss(f"{gone} are gone (retention or trim)"))
        return [each for each in extents if each.next_offset > lowest]


def _has_other_history(now: Iterable[Extent], before: Iterable[Extent]) -> bool:
    """Return whether other batches were committed in the same place since: the bucket was rolled back, and continuing
    would mix records of two histories."""
    digests = {(each.key, each.position): each.digest for each in before}
    return any(digests.get((each.key, each.position), each.digest) != each.digest for each in now)


def _cut_up(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield parts of about `CHUNK_BYTES` whose extents are contiguous and in one leader epoch."""
    for part in parts:
        position = 0
        for run in in_runs(part.extents, CHUNK_BYTES, _follows):
            size = sum(each.size_bytes for each in run)
            yield Part(run, part.data[position : position + size])
            position += size


def _follows(one: Extent, other: Extent) -> bool:
    return other.base_offset == one.next_offset and other.leader_epoch == one.leader_epoch


def _placed(data: memoryview, first: Extent, end: int) -> Rows:
    """Return the headers of batches with their offsets. Raises `CorruptBatch` unless they end as planned."""
    rows = rows_of(data)
    place_rows(rows, first.base_offset, first.leader_epoch)
    if not len(rows) or int(rows[-1, LAST]) + 1 != end:
        raise CorruptBatch(f"the batches at offset {first.base_offset} are not the planned ones")
    return rows


def _wanted(rows: Rows, piece: ObjectSlice) -> Rows:
    """Return the batches that overlap a slice, without those of aborted transactions."""
    rows = rows[(rows[:, LAST] >= piece.start_offset) & (rows[:, BASE] < piece.end_offset)]
    if piece.aborted and is_committed(piece.isolation):
        rows = rows[~aborted_rows(rows, lambda *_: piece.aborted)]
    return rows
