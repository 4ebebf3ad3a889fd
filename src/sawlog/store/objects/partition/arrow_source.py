"""`ObjectSource`: a partition on object storage as a source for tables, read in runs of extents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ....batch import read as batch_read
from ....errors import DataLoss, OffsetOutOfRange
from ....isolation import Isolation, is_committed
from ....log.batches import Chunk
from ....log.slices import SliceAggregate
from ....log.summaries import Blocks
from ..state.extents import Extent
from .partition import ObjectPartition


class Run(NamedTuple):
    """Records with start <= offset < end."""

    start: int
    end: int
    isolation: Isolation


class ObjectSource:
    """One partition. Thread-safe; there is nothing to open."""

    def __init__(self, partition: ObjectPartition) -> None:
        self._partition = partition

    def plan(
        self, start: int, end: int, *, epoch: int, target_bytes: int | None = None, isolation: Isolation = "committed"
    ) -> list[Run]:
        """Plan runs of adjacent extents of about `target_bytes`."""
        self._check(start, end)
        found: list[Run] = []
        first, size = start, 0
        for extent in self._partition.extents(start, end):
            size += extent.size_bytes
            if target_bytes is not None and size >= target_bytes:
                found.append(Run(first, min(extent.next_offset, end), isolation))
                first, size = found[-1].end, 0
        return [*found, Run(first, end, isolation)] if first < end else found

    def _check(self, start: int, end: int) -> None:
        lowest, path = self._partition.lowest_offset, self._partition.path
        if start < min(lowest, end):
            raise DataLoss(f"offsets {start} to {min(lowest, end) - 1} of {path} are gone (retention or trim)")

    def blocks(
        self, start: int, end: int, *, since: int = -1, with_oldest: bool = False, exact: bool = False
    ) -> Iterator[Blocks] | None:
        """Return the offsets and largest timestamps of the extents. Exact record counts are unknown, because records
        may have been compacted away."""
        if exact:
            return None
        extents = [each for each in self._partition.extents(start, end) if each.max_timestamp >= since]
        return iter([_blocks(extents)] if extents else [])

    def proven_end(self, epoch: int, end: int) -> int:
        """Return `end`: commits are never rolled back."""
        return end

    def open(self) -> ObjectSource:
        """Return this source: there is nothing to open."""
        return self

    def close(self) -> None:
        """No-op."""

    def read(self, part: Run, *, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of a run."""
        try:
            yield from self._partition.scan_arrow(
                part.start, part.end, batch_rows, columns=columns, isolation=part.isolation
            )
        except OffsetOutOfRange:
            self._check(part.start, part.end)
            raise

    def fold(self, part: Run, into: SliceAggregate, *, columns: Sequence[str], batch_rows: int) -> None:
        """Fold every record of a run into an aggregate."""
        most = self._partition.config.max_decompressed_bytes
        self._check(part.start, part.end)
        for data, rows in self._partition.pages(part.start, part.end, committed=is_committed(part.isolation)):
            for _, error in batch_read.malformed(data, rows, most):
                raise error
            into.add_chunk(Chunk(data, rows, 0), part.start, part.end, most)


def _blocks(extents: Sequence[Extent]) -> Blocks:
    def numbers(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(values, np.int64)

    return Blocks(
        numbers([each.base_offset for each in extents]),
        numbers([each.next_offset - 1 for each in extents]),
        numbers([each.next_offset - each.base_offset for each in extents]),
        numbers([each.max_timestamp for each in extents]),
        np.ones(len(extents), np.bool_),
    )
