"""Copying records of another system's log into one of ours, as Arrow, at the same offsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..batch import kernel
from ..batch.checksum import crc32c
from ..batch.header import HEADER_BYTES
from ..errors import ForeignDamage, OffsetsOutOfOrder
from ..log.log import Log
from .numbering import MAX_JUMP

if TYPE_CHECKING:
    import pyarrow as pa

    from .foreign import ForeignLog, ImportJob

#: The minimum number of bytes to append at once.
APPEND_BYTES = 4 << 20


def copy_records(source: ForeignLog, log: Log, job: ImportJob) -> int:
    """Append the source's records from `log.next_offset` on, as Arrow, and return their number."""
    import pyarrow as pa

    copied = 0
    for tables in _gathered(
        source.tables(log.next_offset, None, ("offset", "value", "headers"), progress=job.progress)
    ):
        table = pa.Table.from_batches(tables)
        offsets = table.column(0).to_numpy()
        for first, last in _runs(offsets):
            _advance(source, log, int(offsets[first]))
            log.append_arrow(_rows(table, first, last, job.timestamp), expect_offset=int(offsets[first]))
        copied += len(offsets)
    return copied


def _advance(source: ForeignLog, log: Log, offset: int) -> None:
    """Skip offsets that the source lacks. At the beginning of the copy they are a gap as well, so that the copy begins
    where the source does, and records that appear later have a place."""
    if offset - log.next_offset > MAX_JUMP:
        raise OffsetsOutOfOrder(
            f"offsets jump from {log.next_offset - 1} to {offset}: the gap is too large for a log",
            source.path,
            0,
            offset,
        )
    if offset > log.next_offset and log.lowest_offset == log.next_offset:
        log.append_kept(_place_holder(log.next_offset))
    log.advance(offset)


def _place_holder(offset: int) -> bytearray:
    """A batch without a record that represents one offset."""
    made = bytearray(HEADER_BYTES)
    view = memoryview(made)
    kernel.write_header(view, 0, offset, HEADER_BYTES, 0, 0, 0, -1, -1, -1, -1, -1, 0)
    kernel.patch_crc(view, 0, crc32c(view[21:]))
    return made


def _gathered(tables: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """A few megabytes at once: a log may have segments of a kilobyte, and an append may wait for the disk. What
    precedes damage is yielded before the error is raised."""
    held: list[pa.RecordBatch] = []
    size = 0
    try:
        for table in tables:
            held.append(table)
            size += table.nbytes
            if size >= APPEND_BYTES:
                yield held
                held, size = [], 0
    except ForeignDamage:
        if held:
            yield held
        raise
    if held:
        yield held


def _runs(offsets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Iterator[tuple[int, int]]:
    """The runs of consecutive offsets."""
    if not len(offsets):
        return
    ends = [*(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
    first = 0
    for last in ends:
        yield first, last
        first = last


def _rows(table: pa.Table, first: int, last: int, timestamp: int | None) -> pa.Table:
    import pyarrow as pa

    part = table.slice(first, last - first)
    names, arrays = ["value"], [part.column(1)]
    if any(len(chunk.flatten()) for chunk in part.column(2).chunks):
        names.append("headers")
        arrays.append(part.column(2))
    if timestamp is not None:
        names.append("timestamp")
        arrays.append(pa.repeat(pa.scalar(timestamp, pa.int64()), part.num_rows))
    return pa.table(arrays, names=names)
