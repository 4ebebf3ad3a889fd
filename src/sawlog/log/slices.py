"""Slices of a log that the tasks of a parallel job read independently, in other processes.

`plan` splits a range of offsets into slices of about equal size, by the sparse index, without reading a record. A slice
has a file, offsets and byte positions, so that a task opens only one file: it need not list the directory, nor scan the
segment that is still being written. `read` checks every batch, like any other read.

**A slice is complete.** It has the leader epoch in which it was planned (see epochs.py). Its reader gets every record
with an offset from its start to its end, or `DataLoss`:

    what `read` finds                                       what it does
    each offset in a batch of its epoch or an earlier one   returns the records; batches emptied by compaction count
    the file is missing, or is another one now              reads the current log, from the offset reached
    the log starts after it                                 `DataLoss`: retention or `trim` has dropped records
    its epoch has ended before the end of the slice         `DataLoss`: truncated there, whatever the log holds now
    a batch that is damaged                                 `CorruptBatch`
    no permission, no file handles, no such directory       `StorageError`: nothing is known about the records

**What is only in the replica** is planned by the replica (`RemoteLog.plan`), and its slices are read from there. One of
a file that is removed here meanwhile is read from the current log, which reads the replica.

**A slice has an isolation**, as reading has. If it is "committed", its end is at most the last stable offset at that
time, so everything in it is decided. It contains what was aborted, as far as this was known without reading batches;
else its reader looks that up in the log when it meets a batch of a transaction.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Never

from ..batch.header import BASE, COUNT, LAST, LEADER_EPOCH, Rows
from ..clock import rechecks
from ..config import Isolation, LogConfig, is_committed
from ..errors import CorruptBatch, DataLoss, OffsetOutOfRange, RemoteUnavailable, StorageError
from ..storage import Directory
from ..store.base import Partition, PlannedSlice, SliceReader
from .batches import Chunk
from .files import TXN_INDEX, file_name
from .followed_segments import FollowedSegmentSet
from .log import Log
from .remote import RemoteSource
from .segment import Segment
from .segments import SegmentSet
from .transactions import AbortedTransaction, aborted_rows

if TYPE_CHECKING:
    import pyarrow as pa

#: Maximum number of restarts because records were dropped meanwhile.
_RESTARTS = 100


@dataclass(frozen=True, slots=True)
class Slice(PlannedSlice):
    """Records with start_offset <= offset < end_offset, in these bytes of that file."""

    name: str
    base_offset: int
    sealed: bool
    start_offset: int
    end_offset: int
    start_position: int
    end_position: int
    #: The leader epoch in which the end was read: no batch of a later one belongs to the slice. -1: unknown.
    epoch: int = -1
    #: Isolation of the reader.
    isolation: Isolation = "committed"
    #: The aborted transactions that may have batches in it; None: not known.
    aborted: tuple[AbortedTransaction, ...] | None = None

    @property
    def size_bytes(self) -> int:
        """About how many bytes have to be read."""
        return self.end_position - self.start_position

    def joined(self, after: object) -> Slice | None:
        """This slice and the next one of the same file as one; None if it is not that."""
        if not isinstance(after, Slice) or (after.name, after.start_offset) != (self.name, self.end_offset):
            return None
        aborted = None
        if self.aborted is not None and after.aborted is not None:
            aborted = tuple(dict.fromkeys((*self.aborted, *after.aborted)))
        end_position = max(self.end_position, after.end_position)
        return replace(self, end_offset=after.end_offset, end_position=end_position, aborted=aborted)


def plan(
    log: Log,
    start: int,
    end: int,
    *,
    epoch: int | None = None,
    target_bytes: int | None = None,
    max_records: int | None = None,
    isolation: Isolation = "committed",
) -> list[PlannedSlice]:
    """Slices for all offsets from `start` to `end`, in order; each at most about `target_bytes`, or that many records.

    `epoch` is the leader epoch in which `end` was read; without it, the current one. `DataLoss` if the log does not
    contain all of that range in this epoch. `OffsetOutOfRange` if some of it is not committed and has to be.
    """
    epoch = log.leader_epoch if epoch is None else epoch
    if start >= end:
        return []
    if (last := proven_end(log, epoch, end)) < end:
        raise _cut_off(log.path, max(start, last), end, last)
    known = log._segment_set
    segments = known.all
    remote_slices: list[PlannedSlice] = []
    if known.remote is not None and start < known.lowest_offset:
        here = min(known.lowest_offset, end)
        if start < (lowest := log.lowest_offset):
            raise _dropped(log.path, start, min(lowest, end))
        remote_slices = log._replica().plan(
            start, here, target_bytes=target_bytes, max_records=max_records, isolation=isolation
        )
        start = here
        if start >= end:
            return remote_slices
    if start < segments[0].base_offset:
        raise _dropped(log.path, start, min(segments[0].base_offset, end))
    found: list[Slice] = []
    # A segment extends to the next one, even if a part is unreadable: reading reports the damage.
    limits = [*(segment.base_offset for segment in segments[1:]), segments[-1].next_offset]
    for segment, limit in zip(segments, limits, strict=True):
        first, last = max(start, segment.base_offset), min(end, limit)
        if first < last:
            found.extend(_cut(segment, first, last, epoch, target_bytes, max_records))
    if limits[-1] < end:
        raise _cut_off(log.path, max(start, limits[-1]), end, limits[-1])
    if not is_committed(isolation):
        return [*remote_slices, *(replace(each, isolation=isolation) for each in found)]
    if (stable := log.last_stable_offset) < end:
        raise OffsetOutOfRange(end, log.lowest_offset, stable, log.path)
    return [*remote_slices, *_with_aborted(log._segment_set, found)]


def _with_aborted(segments: SegmentSet, slices: list[Slice]) -> list[Slice]:
    """Add the aborted transactions to slices whose segments have an index of them."""
    marked = {name.removesuffix(TXN_INDEX) for name in segments.directory.names() if name.endswith(TXN_INDEX)}
    if not marked and not segments.maybe_undecided:
        return slices
    try:
        return [
            replace(each, aborted=tuple(segments.transaction_view.aborted(each.start_offset, each.end_offset - 1)))
            if not each.sealed or file_name(each.base_offset, "") in marked
            else each
            for each in slices
        ]
    except (CorruptBatch, StorageError):
        return slices  # files are just being replaced: readers will look it up


def proven_end(log: Partition, epoch: int, end: int) -> int:
    """Return the end of the offsets below `end` that still belong to a leader epoch.

    An earlier end is checked again before it is trusted, because a log may look shorter for a moment while a writer
    replaces files.
    """
    if log.epoch_end(epoch) >= end:
        return end
    for _ in rechecks():
        if log.epoch_end(epoch) >= end:
            return end
    return min(log.epoch_end(epoch), end)


def _cut_off(path: str, first: int, end: int, at: int) -> DataLoss:
    return DataLoss(
        f"offsets {first} to {end - 1} of {path} are gone: the log has lost its records from offset {at} on since then "
        "(a power cut, or truncate); newer records may have the same offsets"
    )


def _dropped(path: str, first: int, end: int) -> DataLoss:
    return DataLoss(f"offsets {first} to {end - 1} of {path} are gone (retention or trim)")


def _cut(
    segment: Segment, start: int, end: int, epoch: int, target_bytes: int | None, max_records: int | None
) -> Iterator[Slice]:
    whole = (start, end) == (segment.base_offset, segment.next_offset)
    fits = target_bytes is None or segment.size <= target_bytes
    if whole and fits and (max_records is None or end - start <= max_records):
        yield _slice(segment, start, end, epoch, 0, segment.size)
        return
    try:
        found = list(_cut_by_index(segment, start, end, epoch, target_bytes, max_records))
    except StorageError:  # dropped or replaced meanwhile: reading finds the rest
        found = [_slice(segment, start, end, epoch, 0, segment.size)]
    yield from found


def _cut_by_index(
    segment: Segment, start: int, end: int, epoch: int, target_bytes: int | None, max_records: int | None
) -> Iterator[Slice]:
    loaded = segment.is_loaded
    bounds = _boundaries(segment, start, end, target_bytes, max_records)
    for first, last in pairwise(bounds):
        begin = segment.index.bounds(first, segment.size)[0]
        yield _slice(segment, first, last, epoch, begin, segment.index.bounds(last - 1, segment.size)[1])
    if not loaded and segment.sealed:
        segment.unload()


def _boundaries(segment: Segment, start: int, end: int, target_bytes: int | None, max_records: int | None) -> list[int]:
    """Return the offsets at which to split: after an indexed batch, once a slice is large enough."""
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


def _slice(segment: Segment, start: int, end: int, epoch: int, begin: int, stop: int) -> Slice:
    return Slice(segment.name, segment.base_offset, segment.sealed, start, end, begin, stop, epoch)


def fail(loss: DataLoss) -> Never:
    """Raise the loss: the default of `read` for missing records."""
    raise loss


def read(
    directory: Directory,
    planned: PlannedSlice,
    config: LogConfig,
    *,
    columns: Sequence[str],
    batch_rows: int,
    lost: Callable[[DataLoss], None] = fail,
    remote: RemoteSource | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield all records of a slice as Arrow batches, or raise `DataLoss`. If `lost` is given, it is called instead of
    raising, and reading continues with the rest of the slice. Tiered records are read with `remote`."""
    if not isinstance(planned, Slice):
        yield from _read_replica(directory, planned, columns, batch_rows, lost, remote)
        return
    reached = planned.start_offset
    try:
        for batch, following in _read_file(directory, planned, config, columns):
            for first in range(0, batch.num_rows, batch_rows):
                yield batch.slice(first, batch_rows)
            reached = following
        return
    except (StorageError, CorruptBatch):
        pass  # replaced meanwhile, or really damaged: the current log will tell
    if reached < planned.end_offset:
        rest = replace(planned, start_offset=reached)
        yield from _read_log(directory, rest, config, columns, batch_rows, lost, remote)


def _read_replica(
    directory: Directory,
    planned: PlannedSlice,
    columns: Sequence[str],
    batch_rows: int,
    lost: Callable[[DataLoss], None],
    remote: RemoteSource | None,
) -> Iterator[pa.RecordBatch]:
    """The records of a slice that the replica has planned."""
    if remote is None:
        raise RemoteUnavailable(
            errno.ENOENT, f"offsets from {planned.start_offset} on of {directory.path} are only in the replica"
        )
    return remote.open().read_slice(planned, columns=columns, batch_rows=batch_rows, lost=lost)


class DirectorySlices(SliceReader):
    """Reader for slices of the partition in a directory, which is closed with it. Thread-safe."""

    def __init__(self, directory: Directory, config: LogConfig, remote: RemoteSource | None = None) -> None:
        self._directory = directory
        self._config = config
        self._remote = remote

    def read(
        self, planned: PlannedSlice, *, columns: Sequence[str], batch_rows: int, lost: Callable[[DataLoss], None] = fail
    ) -> Iterator[pa.RecordBatch]:
        """Read a slice; see the function `read`."""
        config, remote = self._config, self._remote
        return read(self._directory, planned, config, columns=columns, batch_rows=batch_rows, lost=lost, remote=remote)

    def close(self) -> None:
        """Close the directory."""
        self._directory.close()


def _read_log(
    directory: Directory,
    planned: Slice,
    config: LogConfig,
    columns: Sequence[str],
    batch_rows: int,
    lost: Callable[[DataLoss], None],
    remote: RemoteSource | None,
) -> Iterator[pa.RecordBatch]:
    """The records of a slice from the current log.

    An epoch's end only ever decreases. So if it is not below the slice's end after everything was read, nothing was
    truncated before or meanwhile.
    """
    log = Log.open(directory, config, mode="r", remote=remote)
    segments = log._segment_set
    reached, last = planned.start_offset, planned.end_offset
    try:
        for _ in range(_RESTARTS):
            reached, last = _remaining(log, planned, reached, lost)
            if reached >= last:
                return
            try:
                yield from log.scan_arrow(reached, last, batch_rows, columns=columns, isolation=planned.isolation)
                break
            except OffsetOutOfRange as error:  # dropped or truncated while it was read
                reached = max(error.requested, reached)
        else:
            raise _dropped(log.path, reached, last)
        if (end := proven_end(log, planned.epoch, last)) < last:
            lost(_cut_off(log.path, end, last, end))
    finally:
        segments.close()  # not the log, which would close the caller's directory


def _remaining(log: Log, planned: Slice, reached: int, lost: Callable[[DataLoss], None]) -> tuple[int, int]:
    """Return the range (first, end) that the log still contains of a slice from `reached` on."""
    last = proven_end(log, planned.epoch, planned.end_offset)
    if last < planned.end_offset:
        lost(_cut_off(log.path, max(reached, last), planned.end_offset, last))
    first = max(reached, log.lowest_offset)
    if reached < min(first, last):
        lost(_dropped(log.path, reached, min(first, last)))
    return first, last


def _read_file(
    directory: Directory, planned: Slice, config: LogConfig, columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    from ..batch.arrow import to_arrow

    bounds, most = (planned.start_offset, planned.end_offset), config.max_decompressed_bytes
    for chunk, following in _chunks(directory, planned, config):
        yield to_arrow(chunk.view, chunk.rows, *bounds, columns=columns, max_bytes=most), following


def _chunks(directory: Directory, planned: Slice, config: LogConfig) -> Iterator[tuple[Chunk, int]]:
    """The checked batches of a slice that have records, in chunks, each with the offset after it."""
    storage = directory.open_sealed(planned.name) if planned.sealed else directory.open_shared(planned.name)
    try:
        segment = Segment(
            directory, planned.base_offset, planned.end_offset, planned.end_position, config.index_interval_bytes
        )
        least = -1 if planned.start_position else planned.base_offset
        reached, passed = planned.start_offset, planned.start_position
        aborted = planned.aborted
        for chunk in segment.batches(
            storage, planned.start_position, planned.end_position, least, skip_below=planned.start_offset
        ):
            wanted = _wanted(chunk, planned)
            if wanted is None:
                continue
            if int(wanted.rows[0, BASE]) > reached or _is_later(wanted, planned):
                raise CorruptBatch(
                    f"offset {reached} is no longer at its planned position", path=segment.path, position=chunk.origin
                )
            reached = int(wanted.rows[-1, LAST]) + 1
            if chunk.special and planned.isolation == "committed":
                aborted = _aborted(directory, planned, config) if aborted is None else aborted
                wanted.keep(_without(wanted.rows, aborted))
            if wanted.rows[:, COUNT].any():
                yield wanted, reached
            if reached >= planned.end_offset:
                return
            storage.forget(passed, chunk.origin - passed)
            passed = chunk.origin
        if reached < planned.end_offset:
            raise CorruptBatch(
                f"offset {reached} is no longer at its planned position",
                path=segment.path,
                position=planned.end_position,
            )
    finally:
        storage.close()


def _without(rows: Rows, aborted: tuple[AbortedTransaction, ...]) -> Rows:
    gone = aborted_rows(rows, lambda *_: aborted)
    return rows[~gone]


def _aborted(directory: Directory, planned: Slice, config: LogConfig) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions of a slice that has met one, from the current log."""
    segments = FollowedSegmentSet(directory, config)
    try:
        return tuple(segments.transaction_view.aborted(planned.start_offset, planned.end_offset - 1))
    finally:
        segments.close()


def _wanted(chunk: Chunk, planned: Slice) -> Chunk | None:
    """Only the batches of a chunk that overlap the slice."""
    rows = chunk.rows
    rows = rows[(rows[:, LAST] >= planned.start_offset) & (rows[:, BASE] < planned.end_offset)]
    return Chunk(chunk.view, rows, chunk.origin) if len(rows) else None


def _is_later(chunk: Chunk, planned: Slice) -> bool:
    """Return True if a batch was appended in a leader epoch after that of the slice."""
    return planned.epoch >= 0 and bool(chunk.rows[:, LEADER_EPOCH].max() > planned.epoch)
