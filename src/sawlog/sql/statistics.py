"""Record counts and offset and time ranges of a topic, from batch headers; records are read only where those are not
exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..batch.arrow import TIME_TYPE
from ..errors import CorruptBatch, StorageError
from ..log.summaries import NEVER, joined
from .history import HistoryFile
from .past import HistoryReader
from .snapshot import PartitionSpan, TopicSnapshot

SCHEMA = pa.schema(
    {
        "partition": pa.int32(),
        "records": pa.int64(),
        "first_offset": pa.int64(),
        "last_offset": pa.int64(),
        "oldest": TIME_TYPE,
        "newest": TIME_TYPE,
    }
)


@dataclass(slots=True)
class _Counted:
    """Statistics so far; None until a record is seen."""

    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    oldest: int | None = None
    newest: int | None = None

    def add(self, records: int, first: int, last: int, oldest: int, newest: int) -> None:
        """Include more records."""
        if records:
            self.records += records
            self.first_offset = first if self.first_offset is None else min(self.first_offset, first)
            self.last_offset = last if self.last_offset is None else max(self.last_offset, last)
            self.oldest = oldest if self.oldest is None else min(self.oldest, oldest)
            self.newest = newest if self.newest is None else max(self.newest, newest)


def is_known(past: HistoryReader | None) -> bool:
    """Return whether the table has exact statistics for each of its files, so that none has to be read."""
    if past is None:
        return True
    return past.is_whole and all(_is_counted(each) for each in past.history.files)


def _is_counted(file: HistoryFile) -> bool:
    known = not any(each.is_everything for each in (file.bounds.partition, file.bounds.offset, file.bounds.time_ms))
    one = file.bounds.partition.low == file.bounds.partition.high
    return file.rows is not None and not file.beyond and known and one


def table(snapshot: TopicSnapshot, past: HistoryReader | None = None, *, with_oldest: bool) -> pa.Table:
    """Return a row for each partition that has records and for each file of its table; `oldest` is null unless
    requested."""
    rows: list[tuple[int, _Counted, int | None]] = [
        _of_file(each) for each in ([] if past is None else past.history.files) if each.rows
    ]
    for span in snapshot.spans:
        counted = _count(span, snapshot, with_oldest)
        if counted.records:
            oldest = counted.oldest if with_oldest else None
            rows.append((span.partition, counted, oldest))
    columns = [
        pa.array([number for number, _, _ in rows], pa.int32()),
        pa.array([each.records for _, each, _ in rows], pa.int64()),
        pa.array([each.first_offset for _, each, _ in rows], pa.int64()),
        pa.array([each.last_offset for _, each, _ in rows], pa.int64()),
        pa.array([oldest for _, _, oldest in rows], pa.int64()).cast(TIME_TYPE),
        pa.array([each.newest for _, each, _ in rows], pa.int64()).cast(TIME_TYPE),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _of_file(file: HistoryFile) -> tuple[int, _Counted, int]:
    at, times = file.bounds.offset, file.bounds.time_ms
    return file.bounds.partition.low, _Counted(file.rows or 0, at.low, at.high, times.low, times.high), times.low


def _count(span: PartitionSpan, snapshot: TopicSnapshot, with_oldest: bool) -> _Counted:
    if span.start >= span.end:
        return _Counted()
    try:
        found = _from_blocks(span, snapshot, with_oldest)
    except (CorruptBatch, StorageError):  # damaged, or being replaced: reading reports it
        found = _Counted()
        _by_reading(span, snapshot, span.start, span.end, found)
    # A range truncated meanwhile may have been counted with its new records.
    if span.source.proven_end(span.epoch, span.end) < span.end or span.log.lowest_offset > span.start:
        found = _Counted()
        _by_reading(span, snapshot, span.start, span.end, found)
    return found


def _from_blocks(span: PartitionSpan, snapshot: TopicSnapshot, with_oldest: bool) -> _Counted:
    """Count by blocks. Records are read where a block is only partly in the span or may have aborted records, and in
    the first and last block if they have gaps: their first and last offsets may not exist."""
    counted = _Counted()
    known = span.source.blocks(span.start, span.end, with_oldest=with_oldest, exact=True)
    if known is None:
        _by_reading(span, snapshot, span.start, span.end, counted)
        return counted
    found = list(known)
    if not found:
        return counted
    blocks = joined(found)
    filled = blocks.within(span.start, span.end) & (blocks.count > 0)
    usable = filled & (blocks.first >= span.start) & (blocks.last < span.end)
    if snapshot.isolation == "committed":
        usable &= ~blocks.special
    for at in np.flatnonzero(filled)[[0, -1]] if filled.any() else ():
        usable[at] &= blocks.count[at] == blocks.last[at] - blocks.first[at] + 1
    for at in np.flatnonzero(filled & ~usable).tolist():
        first, end = int(blocks.first[at]), int(blocks.last[at]) + 1
        _by_reading(span, snapshot, max(first, span.start), min(end, span.end), counted)
    numbers = np.flatnonzero(usable)
    if len(numbers):
        counted.add(
            int(blocks.count[numbers].sum()),
            int(blocks.first[numbers[0]]),
            int(blocks.last[numbers[-1]]),
            NEVER if blocks.oldest is None else int(blocks.oldest[numbers].min()),
            int(blocks.newest[numbers].max()),
        )
    return counted


def _by_reading(span: PartitionSpan, snapshot: TopicSnapshot, start: int, end: int, counted: _Counted) -> None:
    opened = span.source.open()
    try:
        for part in span.source.plan(start, end, epoch=span.epoch, isolation=snapshot.isolation):
            for batch in opened.read(part, columns=["offset", "timestamp"], batch_rows=1 << 20):
                offsets, times = batch.column(0).to_numpy(), batch.column(1).cast(pa.int64()).to_numpy()
                if len(offsets):
                    counted.add(len(offsets), int(offsets[0]), int(offsets[-1]), int(times.min()), int(times.max()))
    finally:
        opened.close()
