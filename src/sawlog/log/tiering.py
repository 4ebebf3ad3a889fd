"""Tiering: remove local segments that the replica has, by `local.retention.ms` and `local.retention.bytes`.

Two steps, because the replica may respond late or never, and no thread may block on it while it holds a log's lock:

1. `shipped` takes no lock. It checks the oldest sealed segments that exceed the local limits, one after the other, and
   stops at the first one that the replica is not *proven* to have:

       the replica is a copy of this log                    it says so now
       it has all offsets of the segment, all decided       its start, and its last stable offset
       they belong to the same history                      the leader epochs of these offsets
       all records are the same                             the whole segment is read back from the replica, never from
                                                            a cache: the same batches or, if the segment was rewritten
                                                            here, the same records at the same offsets

   Reading the segment back transfers each byte once. A shorter check would not do: a directory that was restored from
   a copy of its files may differ from the replica and still have an equal batch at the end.
2. `remove` checks under the log's lock that these segments are still the first ones, records durably that they are now
   only in the replica, moves the local start in the checkpoint, and deletes the files, oldest first. After a crash in
   between, recovery deletes the rest; or the segments are in both places, and the next run removes them.

The start of the log does not move: `Reader` describes how removed records are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import zip_longest

from ..batch.header import ATTRIBUTES, BASE, CONTROL_BIT, COUNT, CRC, LAST, Rows
from ..batch.kernel import Record
from ..batch.read import records
from ..display import counted
from ..errors import CorruptData, StorageError
from . import retention
from .appender import Appender
from .batches import Chunk
from .epochs import Epochs
from .remote import RemoteLog, RemoteRun, RemoteSegments, RemoteSource, ReplicaStatus
from .retention import drop
from .segment import Segment
from .segments import SegmentSet


@dataclass(frozen=True, slots=True)
class ShippedSegments:
    """Segments that are proven to be in the replica, and why the next one is not."""

    #: (first offset, offset after the last, bytes), oldest first.
    segments: tuple[tuple[int, int, int], ...] = ()
    #: The epochs of these offsets.
    epochs: tuple[tuple[int, int], ...] = ()
    #: Segments that the replica reports, if the local list of removed segments is damaged.
    found: RemoteSegments | None = None
    problem: str = ""

    @property
    def changes_log(self) -> bool:
        """True if `remove` has something to do, and needs the log's lock."""
        return bool(self.segments) or self.found is not None

    @property
    def end(self) -> int:
        """The offset after the last segment."""
        return self.segments[-1][1] if self.segments else 0


@dataclass(frozen=True, slots=True)
class TieringReport:
    """Local segments that were removed, the new local start of the log, and the reason why others were kept."""

    segments: int = 0
    size_bytes: int = 0
    local_offset: int = 0
    problem: str = ""

    def __bool__(self) -> bool:
        return bool(self.segments or self.problem)

    def __str__(self) -> str:
        if not self.segments:
            return f"nothing was removed that should be in the replica only: {self.problem}"
        rest = f"; the rest stays here: {self.problem}" if self.problem else ""
        return (
            f"{counted(self.segments, 'segment')} and {self.size_bytes:,} bytes are only in the replica now; the log "
            f"is here from {self.local_offset:,} on{rest}"
        )


# --- what may be removed


def is_due(segments: SegmentSet) -> bool:
    """Return True if local segments are due for removal, or the tiered part is unknown and the replica has to be asked.
    Takes no lock and sends no request."""
    return bool(_surplus(segments)) or (segments.remote is not None and not segments.remote.is_known)


def _surplus(segments: SegmentSet) -> list[Segment]:
    """Return the oldest sealed segments that exceed the local limits and contain no open transaction."""
    config, end = segments.config, segments.lowest_offset
    if config.local_retention_ms is not None:
        end = max(end, retention.expired_local(segments, config.local_retention_ms))
    if config.local_retention_bytes is not None:
        end = max(end, retention.surplus_local(segments, config.local_retention_bytes))
    end = min(end, segments.end(committed=True))
    found: list[Segment] = []
    for segment in segments.all[:-1]:
        if segment.next_offset > end or not segment.sealed:
            break
        found.append(segment)
    return found


def shipped(segments: SegmentSet, source: RemoteSource) -> ShippedSegments | None:
    """Return the due segments that the replica has, and the reason if some are missing there; None if nothing is due.
    Takes no lock, and asks the replica."""
    segments.refresh()
    if not source.is_recorded or not is_due(segments):
        return None
    try:
        replica = source.open()
        status = replica.status()
        found = None
        if segments.remote is not None and not segments.remote.is_known:
            found = replica.part(segments.lowest_offset)
        proven, problem = _proven(segments, replica, status)
    except (StorageError, CorruptData) as error:
        return ShippedSegments(problem=str(error))
    if not proven and found is None and not problem:
        return None
    shapes = tuple((each.base_offset, each.next_offset, each.size) for each in proven)
    return ShippedSegments(
        shapes, _epochs_between(segments.epochs, shapes[0][0], shapes[-1][1]) if shapes else (), found, problem
    )


def _proven(segments: SegmentSet, replica: RemoteLog, status: ReplicaStatus) -> tuple[list[Segment], str]:
    """Return the segments that the replica has, and why the next one is not proven."""
    found: list[Segment] = []
    for segment in _surplus(segments):
        start, end = max(segment.base_offset, segments.log_start), segment.next_offset
        offsets = f"offsets {start} to {end - 1}"
        if status.lowest_offset > start or status.stable_offset < end:
            has = f"{status.lowest_offset} to {status.stable_offset - 1}"
            has = has if status.lowest_offset < status.stable_offset else "none"
            return found, f"the replica does not have {offsets}, or not as a whole: it has {has}"
        if _epochs_between(segments.epochs, start, end) != _epochs_between(Epochs(status.epochs), start, end):
            return found, f"the replica has {offsets} in other leader epochs, of another history"
        if segment.size and not _is_same(segments, segment, replica, start):
            return found, f"the replica has other records at {offsets}"
        found.append(segment)
    return found, ""


def _epochs_between(epochs: Epochs, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return the leader epochs of a range: the epoch at its first offset, and all that begin after it."""
    first = [epoch for epoch, begun in epochs.entries if begun <= start]
    at_start = ((max(first[-1], 0), start),) if first else ()
    return (*at_start, *(each for each in epochs.entries if start < each[1] < end))


def _is_same(segments: SegmentSet, segment: Segment, replica: RemoteLog, start: int) -> bool:
    """Return True if the replica has every record of a segment from `start` on. Reads all of it back. The batches must
    be the same, except for the leader epoch, which a copy of a log of version 0.2 has raised. In a segment that was
    rewritten here, the records must be the same, and so must the committed records of transactions."""
    end = segment.next_offset
    has_transactions = any(chunk.special for chunk, _ in _local_batches(segments, segment, start, committed=False))
    for committed in (False, True) if has_transactions else (False,):
        mine = _digest(rows for _, rows in _local_batches(segments, segment, start, committed=committed))
        if mine == _digest(rows for _, rows in _replica_batches(replica, start, end, committed=committed)):
            continue
        if has_transactions:
            return False
        here = ((chunk.view, rows) for chunk, rows in _local_batches(segments, segment, start, committed=committed))
        most, there = segments.config.max_decompressed_bytes, _replica_batches(replica, start, end, committed=committed)
        pairs = zip_longest(_decoded(here, start, end, most), _decoded(there, start, end, most))
        if not all(one == other for one, other in pairs):
            return False
    return True


def _local_batches(
    segments: SegmentSet, segment: Segment, start: int, *, committed: bool
) -> Iterator[tuple[Chunk, Rows]]:
    """Yield the batches with records of a segment."""
    segments.use(segment)
    try:
        for chunk in segment.chunks(start, segment.next_offset):
            rows = segments.transaction_view.committed(chunk.rows) if committed else chunk.rows
            yield chunk, _nonempty(rows, start)
    finally:
        segments.done(segment)


def _replica_batches(replica: RemoteLog, start: int, end: int, *, committed: bool) -> Iterator[tuple[memoryview, Rows]]:
    for view, rows in replica.chunks(start, end, committed=committed, cached=False):
        yield view, _nonempty(rows, start)


def _nonempty(rows: Rows, start: int) -> Rows:
    """Drop markers, batches that compaction has emptied, and batches below the start."""
    found: Rows = rows[(rows[:, COUNT] > 0) & (rows[:, LAST] >= start) & (rows[:, ATTRIBUTES] & CONTROL_BIT == 0)]
    return found


def _digest(found: Iterable[Rows]) -> bytes:
    """Return a digest of offsets and checksums that does not depend on how batches are divided into chunks."""
    made = blake2b(digest_size=32)
    for rows in found:
        made.update(rows[:, [BASE, LAST, CRC]].tobytes())
    return made.digest()


def _decoded(found: Iterable[tuple[memoryview, Rows]], start: int, end: int, most_bytes: int) -> Iterator[object]:
    """Yield the records one by one, and None where a batch does not parse."""
    for view, rows in found:
        made: list[Record] = []
        bad = records(view, rows, start, end, made, most_bytes)
        for each in made:
            yield each.offset, each.timestamp, each.key, each.value, list(each.headers)
        if bad >= 0:
            yield None
            return


# --- removing


def remove(appender: Appender, found: ShippedSegments) -> TieringReport:
    """Remove the local segments that were proven to be in the replica and have not changed since."""
    if not found.changes_log:
        return TieringReport(local_offset=appender.segments.lowest_offset, problem=found.problem)
    with appender.maintenance_lock.hold(), appender.exclusive():
        segments = appender.segments
        listed = segments.all
        gone = list(listed[: len(found.segments)])
        part = segments.remote if found.found is None else found.found
        shapes = tuple((each.base_offset, each.next_offset, each.size) for each in gone)
        changed = shapes != found.segments or len(gone) == len(listed) or (part is not None and not part.is_known)
        if gone and not changed:
            changed = _epochs_between(segments.epochs, found.segments[0][0], found.end) != found.epochs
        if found.found is not None and segments.remote is not None and not segments.remote.is_known:
            appender.lineage.set_remote(found.found if found.found.runs else None)
        if not gone or changed or found.end > segments.end(committed=True):
            return TieringReport(local_offset=segments.lowest_offset, problem=found.problem)
        if part is None or not part.runs:
            part = RemoteSegments(max(segments.lowest_offset, gone[0].base_offset), (), ())
        runs = [_run(segments, segment) for segment in gone]
        appender.lineage.set_remote(part.grown(runs, segments.epochs))
        appender.lineage.move_start(found.end)
        drop(appender, list(listed[len(gone) :]), gone)
    return TieringReport(len(gone), sum(run.size_bytes for run in runs), found.end, found.problem)


def _run(segments: SegmentSet, segment: Segment) -> RemoteRun:
    segments.use(segment)
    try:
        newest = segment.timestamps()[1] if segment.size else -1
    finally:
        segments.done(segment)
    return RemoteRun(segment.base_offset, segment.next_offset, segment.size, newest)
