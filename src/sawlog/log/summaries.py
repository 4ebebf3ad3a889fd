"""Summaries of a log from batch headers, without decoding records: counts, oldest and newest timestamps.

A *block* is about a megabyte of neighbouring batches of one segment. Its offsets, its number of records and its largest
timestamp come from the batches' headers; its smallest timestamp, which no header has, from the lengths and timestamps
of its records, and only on request. So a query for a range of time reads only blocks that overlap with it, and
`count(*)`, `min` and `max` need no record at all.

The summary of a sealed segment, which does not change, is kept as long as the log is open. That of the segment that is
still written to is computed again when it has grown. Only structure is checked here, not checksums, as with an index:
what is read afterwards is checked then.

Threads: any. Two may compute the same at the same time; both get the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..batch import kernel
from ..batch.header import ATTRIBUTES, BASE, COMPRESSION_MASK, COUNT, LAST, MAX_TIME, POSITION, Rows
from ..batch.read import MALFORMED, unpack
from ..errors import CorruptBatch
from .log import Log
from .remote import RemoteRun, RemoteSegments
from .segment import Segment

Numbers = npt.NDArray[np.int64]
#: Leader epochs with their first offsets.
LeaderEpochs = tuple[tuple[int, int], ...]

#: Size of a block. One entry per megabyte is small beside the data, and a megabyte is soon read.
BLOCK_BYTES = 1 << 20
#: Bytes of a mapped file per step. Headers are far apart, so a step costs little.
_STEP_BYTES = 64 << 20
#: The smallest timestamp of a block without records.
NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks in the order of their offsets: one number per block in each array."""

    first: Numbers
    last: Numbers
    count: Numbers
    newest: Numbers
    #: True for batches of transactions: the headers do not say which of their records count.
    special: npt.NDArray[np.bool_]
    #: None until somebody asks.
    oldest: Numbers | None = None

    def __len__(self) -> int:
        return len(self.first)

    def within(self, start: int, end: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the blocks with offsets from `start` to `end`."""
        return (self.last >= start) & (self.first < end)


class LogSummary:
    """The blocks of all segments of one log, as far as they were asked for."""

    def __init__(self) -> None:
        self._known: dict[object, Blocks] = {}

    @classmethod
    def of(cls, log: Log) -> LogSummary:
        """Return the summary of a log, which caches its findings for as long as the log exists."""
        return _SUMMARIES.setdefault(log, cls())

    def blocks(
        self, log: Log, start: int, end: int, *, since: int = -1, with_oldest: bool = False, exact: bool = False
    ) -> Iterator[Blocks]:
        """Yield the blocks with offsets from `start` to `end`, segment by segment. Segments whose index shows no record
        as new as `since` are skipped. For the tiered part, yield the runs of removed segments or, if the number of
        records has to be `exact`, one block that extends beyond `start`, so that the caller reads it."""
        segments = log._segment_set
        present, lowest = segments.all, segments.lowest_offset
        if segments.remote is not None and start < lowest:
            yield from _remote(segments.remote, start, min(end, lowest), since, with_oldest, exact)
        epochs = log._leader_epochs
        self._forget({_key(segment, epochs) for segment in present})
        for segment in present:
            if segment.next_offset <= start or segment.base_offset >= end or not segment.size:
                continue
            with segments.using(segment):
                if segment.timestamps()[1] >= since:
                    yield self._of_segment(segment, epochs, with_oldest, log.config.max_decompressed_bytes)

    def _of_segment(self, segment: Segment, epochs: LeaderEpochs, with_oldest: bool, max_bytes: int) -> Blocks:
        key = _key(segment, epochs)
        found = self._known.get(key)
        if found is None or (with_oldest and found.oldest is None):
            found = summarise(segment, max_bytes if with_oldest else None)
            self._known[key] = found
        return found

    def _forget(self, present: set[object]) -> None:
        for key in [key for key in self._known if key not in present]:
            self._known.pop(key, None)


def _remote(
    remote: RemoteSegments, start: int, end: int, since: int, with_oldest: bool, exact: bool
) -> Iterator[Blocks]:
    runs = [RemoteRun(start - 1, end, 0, NEVER)]
    if remote.is_known and remote.end >= end and not exact:
        runs = [each for each in remote.runs if each.next_offset > start and each.base_offset < end]
    made = [each for each in runs if each.max_timestamp >= since]
    if made:
        first, last, newest = (
            np.array([each[at] for each in made], np.int64) - less for at, less in ((0, 0), (1, 1), (3, 0))
        )
        oldest = np.full(len(made), -1, np.int64) if with_oldest else None
        yield Blocks(first, last, last - first + 1, newest, np.ones(len(made), np.bool_), oldest)


_SUMMARIES: weakref.WeakKeyDictionary[Log, LogSummary] = weakref.WeakKeyDictionary()


def _key(segment: Segment, epochs: LeaderEpochs) -> object:
    """Differs for a segment that has grown, for one that was truncated and has grown to the same size again (which
    happens in a later leader epoch), and for another file that has replaced it."""
    epoch = max((epoch for epoch, start in epochs if start < segment.next_offset), default=-1)
    return segment.base_offset, segment.tail, segment.name, segment.identity, segment.sealed, epoch


def summarise(segment: Segment, max_bytes: int | None = None) -> Blocks:
    """The blocks of a segment; with their smallest timestamps, if `max_bytes` is given: as much as a batch may
    decompress to."""
    parts: list[Blocks] = []
    for chunk in segment.chunks(segment.base_offset, segment.next_offset, check=False, chunk_bytes=_STEP_BYTES):
        oldest = None if max_bytes is None else oldest_times(chunk.view, chunk.rows, max_bytes)
        parts.append(_grouped(chunk.rows, chunk.origin, oldest))
    if not parts:
        empty = np.empty(0, np.int64)
        return Blocks(empty, empty, empty, empty, empty.astype(np.bool_), None if max_bytes is None else empty)
    return joined(parts)


def _grouped(rows: Rows, origin: int, oldest: Numbers | None) -> Blocks:
    """Neighbouring batches that begin in the same megabyte become one block."""
    cells = (rows[:, POSITION] + origin) // BLOCK_BYTES
    starts = np.flatnonzero(np.concatenate(([True], np.diff(cells) != 0)))
    ends = np.concatenate((starts[1:], [len(rows)])) - 1
    special = (rows[:, ATTRIBUTES] & (kernel.TRANSACTIONAL_BIT | kernel.CONTROL_BIT)) != 0
    # The timestamp of an empty batch belongs to no record.
    newest = np.where(rows[:, COUNT] > 0, rows[:, MAX_TIME], -1)
    return Blocks(
        rows[starts, BASE],
        rows[ends, LAST],
        np.add.reduceat(rows[:, COUNT], starts),
        np.maximum.reduceat(newest, starts),
        np.logical_or.reduceat(special, starts),
        None if oldest is None else np.minimum.reduceat(oldest, starts),
    )


def joined(parts: list[Blocks]) -> Blocks:
    """All blocks of several parts that follow each other; at least one. With their smallest timestamps only if all
    parts have these."""
    if len(parts) == 1:
        return parts[0]
    names = ("first", "last", "count", "newest", "special")
    made = Blocks(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
    oldest = [part.oldest for part in parts if part.oldest is not None]
    return replace(made, oldest=np.concatenate(oldest)) if len(oldest) == len(parts) else made


def oldest_times(view: memoryview, rows: Rows, max_bytes: int) -> Numbers:
    """The smallest timestamp of each batch."""
    found = np.empty(len(rows), np.int64)
    if not (rows[:, ATTRIBUTES] & COMPRESSION_MASK).any():
        _check(kernel.oldest_times(view, memoryview(rows), len(rows), memoryview(found)))
        return found
    done = 0
    for body, run, error in unpack(view, rows, max_bytes):
        if error is not None:
            raise error
        part = found[done : done + len(run)]
        _check(kernel.oldest_times(body, memoryview(run), len(run), memoryview(part)))
        done += len(run)
    return found


def _check(bad: int) -> None:
    if bad >= 0:
        raise CorruptBatch(MALFORMED)
