"""Parts of a log that can be read by themselves, in other processes: what a parallel job hands to its tasks.

`plan` cuts a range of offsets into slices of about equal size, by the sparse index, without reading a record. A slice
names a file, offsets and byte positions, so that a task opens one file and nothing else: it need not list the
directory, nor walk through the segment that is still being written. `read` checks every batch, as all reading does.

A slice is a promise about offsets; the file is a hint. If the segment was replaced or is gone since (compaction,
merging, trimming), `read` goes through the log as it is now, from the offset that it had reached: the same records, or
`OffsetOutOfRange` if they were dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ..batch.header import BASE, COUNT, LAST
from ..config import LogConfig
from ..errors import CorruptBatch, StorageError
from ..storage import Directory
from .log import Log
from .segment import Chunk, Segment

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Slice:
    """Records with start_offset <= offset < end_offset, in these bytes of that file."""

    name: str
    base_offset: int
    sealed: bool
    start_offset: int
    end_offset: int
    start_position: int
    end_position: int

    @property
    def size_bytes(self) -> int:
        """About how much is to be read."""
        return self.end_position - self.start_position


def plan(
    log: Log, start: int, end: int, *, target_bytes: int | None = None, max_records: int | None = None
) -> list[Slice]:
    """Slices for all offsets from `start` to `end`, in order; each at most about `target_bytes`, or so many records."""
    found: list[Slice] = []
    for segment in log.segment_set.all:
        first, last = max(start, segment.base_offset), min(end, segment.next_offset)
        if first < last:
            found.extend(_cut(segment, first, last, target_bytes, max_records))
    return found


def _cut(segment: Segment, start: int, end: int, target_bytes: int | None, max_records: int | None) -> Iterator[Slice]:
    whole = (start, end) == (segment.base_offset, segment.next_offset)
    fits = target_bytes is None or segment.size <= target_bytes
    if whole and fits and (max_records is None or end - start <= max_records):
        yield _slice(segment, start, end, 0, segment.size)
        return
    try:
        found = list(_cut_by_index(segment, start, end, target_bytes, max_records))
    except StorageError:  # dropped or replaced since the log was looked at: reading will find out what is left of it
        found = [_slice(segment, start, end, 0, segment.size)]
    yield from found


def _cut_by_index(
    segment: Segment, start: int, end: int, target_bytes: int | None, max_records: int | None
) -> Iterator[Slice]:
    loaded = segment.is_loaded
    bounds = _boundaries(segment, start, end, target_bytes, max_records)
    for first, last in pairwise(bounds):
        begin = segment.index.bounds(first, segment.size)[0]
        yield _slice(segment, first, last, begin, segment.index.bounds(last - 1, segment.size)[1])
    if not loaded and segment.sealed:
        segment.unload()


def _boundaries(segment: Segment, start: int, end: int, target_bytes: int | None, max_records: int | None) -> list[int]:
    """Where to cut: behind batches that the index knows, as soon as there is enough."""
    index, size = segment.index, segment.size
    bounds = [start]
    position = index.bounds(start, size)[0]
    while target_bytes is not None:
        at = bisect_left(index.positions, position + target_bytes)
        if at >= min(len(index.offsets), len(index.positions)):
            break
        position, behind = index.positions[at], segment.base_offset + index.offsets[at] + 1
        if behind >= end:
            break
        if behind > bounds[-1]:
            bounds.append(behind)
    bounds.append(end)
    if max_records is None:
        return bounds
    finer: list[int] = []
    for first, last in pairwise(bounds):
        finer.extend(range(first, last, max_records))
    return [*finer, end]


def _slice(segment: Segment, start: int, end: int, begin: int, stop: int) -> Slice:
    return Slice(segment.name, segment.base_offset, segment.sealed, start, end, begin, stop)


def read(
    directory: Directory, piece: Slice, config: LogConfig, *, columns: Sequence[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """The records of a slice as Arrow batches."""
    reached = piece.start_offset
    try:
        for batch, following in _read_file(directory, piece, config, columns):
            for first in range(0, batch.num_rows, batch_rows):
                yield batch.slice(first, batch_rows)
            reached = following
        return
    except (StorageError, CorruptBatch):
        pass  # replaced since, or really damaged: the log as it is now will tell
    if reached < piece.end_offset:
        log = Log.open(directory, config, mode="r")
        yield from log.scan_arrow(reached, piece.end_offset, batch_rows, columns=columns)


def _read_file(
    directory: Directory, piece: Slice, config: LogConfig, columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    from ..batch.arrow import to_arrow

    storage = directory.open_sealed(piece.name) if piece.sealed else directory.open_shared(piece.name)
    try:
        segment = Segment(
            directory, piece.base_offset, piece.end_offset, piece.end_position, config.index_interval_bytes
        )
        least = -1 if piece.start_position else piece.base_offset
        reached, passed = piece.start_offset, piece.start_position
        for chunk in segment.batches(
            storage, piece.start_position, piece.end_position, least, skip_below=piece.start_offset
        ):
            wanted = _wanted(chunk, piece)
            if wanted is None:
                continue
            if int(wanted.rows[0, BASE]) > reached:
                raise CorruptBatch(f"offset {reached} is not where it was", path=segment.path, position=chunk.origin)
            reached = int(wanted.rows[-1, LAST]) + 1
            if wanted.rows[:, COUNT].any():
                yield (
                    to_arrow(
                        wanted.view,
                        wanted.rows,
                        piece.start_offset,
                        piece.end_offset,
                        columns=columns,
                        max_bytes=config.max_decompressed_bytes,
                    ),
                    reached,
                )
            if reached >= piece.end_offset:
                return
            storage.forget(passed, chunk.origin - passed)
            passed = chunk.origin
        if reached < piece.end_offset:
            raise CorruptBatch(f"offset {reached} is not where it was", path=segment.path, position=piece.end_position)
    finally:
        storage.close()


def _wanted(chunk: Chunk, piece: Slice) -> Chunk | None:
    """Only the batches of a chunk that reach into the slice."""
    rows = chunk.rows
    rows = rows[(rows[:, LAST] >= piece.start_offset) & (rows[:, BASE] < piece.end_offset)]
    return Chunk(chunk.view, rows, chunk.origin) if len(rows) else None
