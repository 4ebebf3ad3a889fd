"""Rewriting extents: consolidation and compaction.

*Consolidation* turns many small extents of a partition into one segment, as Kafka batches with their final offsets.

```
segments/<topic id>/<partition>/<commits known>-<base offset>-<uuid>.log
```

Batches arrive in commits and staged objects, a few at a time and mixed with those of other partitions. A segment holds
contiguous batches of one partition, so that a scan reads few objects, and commits and staged objects can be collected.
The extents in the state are its index: about one per MiB.

The new segment is uploaded first. Then a commit replaces exactly the extents that were read, or is rejected if one of
them has changed. So any number of processes may consolidate at once, and can be stopped anywhere.

*Compaction* keeps only the last of all records with the same key. It works as in a directory and shares the rewriting
of batches with `sawlog.log.compaction`: offsets do not change, every offset stays covered by a batch, and tombstones
are kept for a while. Only consolidated segments are compacted. Progress is part of the state, so any process can
continue.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ...batch.header import BASE, LAST, Rows
from ...batch.kernel import KeyMap
from ...batch.read import MALFORMED, unpack
from ...clock import now_ms
from ...config import MaintenanceConfig
from ...errors import CorruptBatch
from ...log.batches import Chunk
from ...log.compaction import CompactionReport
from ...log.ingest import checked_rows
from ...log.maintenance import MergeReport
from ...log.rebatch import Rebatcher, RewriteCounts, RewriteOptions
from ...log.rewrite import ReplacementFile
from ...log.segment import Segment
from ...log.transactions import AbortedTransaction, aborted_rows
from .extent_reader import place_batches
from .session import StoreSession
from .state.commit import SEGMENTS, STAGED, Extent, described, in_runs
from .state.entries import CompactionState

#: Maximum size of a segment, approximately; a topic's `segment.bytes` may reduce it.
SEGMENT_BYTES = 64 << 20
#: Maximum number of extents that one commit replaces, since it lists each of them.
_MOST_EXTENTS = 4096
#: Number of extents outside of segments that are worth a segment.
_LEAST_EXTENTS = 16


#: Called between requests. Raises if the store is being closed, so that closing does not wait for long work.
Check = Callable[[], None]


@dataclass(frozen=True, slots=True)
class PartitionId:
    """One partition of a topic."""

    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class ExtentRun:
    """Adjacent extents that are replaced together."""

    place: PartitionId
    extents: tuple[Extent, ...]

    @property
    def size_bytes(self) -> int:
        """Size of the batches."""
        return sum(each.size_bytes for each in self.extents)

    def action(self, new: Sequence[Sequence[object]]) -> dict[str, object]:
        """Return the action that replaces these extents."""
        return {
            "do": "replace",
            "topic": self.place.topic_id,
            "partition": self.place.partition,
            "base": self.extents[0].base_offset,
            "end": self.extents[-1].next_offset,
            "old": [[each.base_offset, each.key, each.position] for each in self.extents],
            "new": new,
        }


def small_runs(
    place: PartitionId, extents: Iterable[Extent], *, segment_bytes: int = SEGMENT_BYTES, old_commits: int = 0
) -> Iterator[ExtentRun]:
    """Yield runs of extents that are worth a segment: many that are in none, or some in commits below `old_commits`,
    which can be collected afterwards. Preceding segments that are not larger are included, so that few remain."""
    objects = [tuple(group) for _, group in groupby(extents, key=lambda each: each.key)]
    at = 0
    while at < len(objects):
        if is_settled(objects[at], segment_bytes):
            at += 1
            continue
        end, size, count = at, 0, 0
        while end < len(objects) and not is_settled(objects[end], segment_bytes) and count < _MOST_EXTENTS:
            if size and size + _size(objects[end]) > segment_bytes:
                break
            size += _size(objects[end])
            count += len(objects[end])
            end += 1
        is_full = end < len(objects) and size > segment_bytes // 2
        if count >= _LEAST_EXTENTS or is_full or _is_old(objects[at], old_commits):
            while at and _is_segment(objects[at - 1]) and _size(objects[at - 1]) <= min(size, segment_bytes - size):
                at -= 1
                size += _size(objects[at])
            yield ExtentRun(place, tuple(each for group in objects[at:end] for each in group))
        at = end


def is_settled(extents: Sequence[Extent], segment_bytes: int) -> bool:
    """Return whether the batches of a partition in one object stay there: a segment, or a staged object large enough to
    serve as one. Commits are never settled, because they are collected."""
    return _is_segment(extents) or (extents[0].key.startswith(STAGED) and _size(extents) > segment_bytes // 2)


def _is_segment(extents: Sequence[Extent]) -> bool:
    return extents[0].key.startswith(SEGMENTS)


def _size(extents: Sequence[Extent]) -> int:
    return sum(each.size_bytes for each in extents)


def _is_old(extents: Sequence[Extent], commits: int) -> bool:
    """Return whether an object was created when fewer commits were known."""
    number = extents[0].key.rpartition("/")[2].partition("-")[0]
    return number.isdigit() and int(number) < commits


def consolidate(session: StoreSession, run: ExtentRun, check: Check = lambda: None) -> MergeReport | None:
    """Merge a run into one segment. Return None if another process was faster. Raises `CorruptBatch`, and changes
    nothing, if a batch is damaged."""
    known = session.known()
    data = bytearray()
    for _, batches in read(session, run.extents, check):
        data += batches
    if not replace(session, run, known, data):
        return None
    return MergeReport(len({each.key for each in run.extents}), 1, len(data))


def read(session: StoreSession, extents: Iterable[Extent], check: Check) -> Iterator[tuple[Extent, memoryview]]:
    """Yield the batches of extents with their offsets. Raises `CorruptBatch` unless all of them are valid. Bypasses the
    cache, because the result is written to the bucket."""
    check()
    for extent, data in session.maintenance.read_all(extents):
        place_batches(data, extent.base_offset, extent.leader_epoch)
        _check(checked_rows(data), extent.base_offset, extent.next_offset, extent.key)
        yield extent, data
        check()


def _check(rows: Rows, base: int, end: int, key: str) -> None:
    if int(rows[0, BASE]) != base or int(rows[-1, LAST]) + 1 != end:
        raise CorruptBatch(f"{key} has other offsets than {base} to {end}")


def replace(session: StoreSession, run: ExtentRun, known: int, data: bytes | bytearray) -> bool:
    """Upload batches and replace a run by them; return whether that succeeded."""
    base = run.extents[0].base_offset
    rows = checked_rows(memoryview(data))
    _check(rows, base, run.extents[-1].next_offset, "what replaces it")
    key = f"{SEGMENTS}{run.place.topic_id}/{run.place.partition}/{known:020}-{base:020}-{uuid.uuid4().hex}.log"
    session.bucket.put(key, bytes(data))
    outcome = session.submit([run.action([[key, *each] for each in described(rows).extents])]).result()
    return "ok" in outcome


#: Maximum size of the key table. More keys are compacted in several rounds.
_KEY_BYTES = 128 << 20
_SLOT_BYTES, _LEAST_SLOTS = 24, 1 << 10


class Compactable(NamedTuple):
    """The compactable part of a partition, and the state of its compaction."""

    place: PartitionId
    lowest_offset: int
    extents: Sequence[Extent]
    clean: CompactionState
    #: The aborted transactions: their records are dropped and supersede nothing.
    aborted: Sequence[AbortedTransaction] = ()

    def is_aborted(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return which of these batches belong to an aborted transaction."""
        return aborted_rows(rows, lambda first, last: self.aborted)


def settled(
    extents: Sequence[Extent], segment_bytes: int, *, before_ms: int | None = None, stable: int | None = None
) -> list[Extent]:
    """Return the leading extents that are consolidated, not newer than `before_ms`, and below the last stable offset:
    records of an open transaction supersede nothing."""
    found: list[Extent] = []
    for _, each in groupby(extents, key=lambda extent: extent.key):
        group = tuple(each)
        if not is_settled(group, segment_bytes):
            break
        if before_ms is not None and max(extent.max_timestamp for extent in group) > before_ms:
            break
        if stable is not None and group[-1].next_offset > stable:
            break
        found += group
    return found


def is_due(what: Compactable, config: MaintenanceConfig) -> bool:
    """Return whether enough was written since the last round, or tombstones are old enough to be dropped."""
    total = sum(each.size_bytes for each in what.extents)
    dirty = sum(each.size_bytes for each in what.extents if each.next_offset > what.clean.offset)
    return bool(dirty and dirty >= total * config.min_dirty_ratio) or _droppable(what.clean, config) > 0


def _droppable(clean: CompactionState, config: MaintenanceConfig) -> int:
    """Return the offset below which tombstones may be dropped now; 0 if there are none to drop."""
    below = clean.below(now_ms() - config.delete_retention_ms) if clean.tombstones else 0
    return below if below > clean.dropped_below else 0


def compact(
    session: StoreSession,
    what: Compactable,
    config: MaintenanceConfig,
    check: Check,
    *,
    segment_bytes: int,
    max_decompressed_bytes: int,
) -> CompactionReport | None:
    """Run one round. Return None if another process has changed the partition meanwhile; replaced segments are kept."""
    known = session.known()
    keys, end = _keys(session, what, max_decompressed_bytes, check)
    wanted = RewriteOptions(
        keys=keys,
        floor=what.lowest_offset,
        forget_below=max(_droppable(what.clean, config), what.clean.dropped_below),
        aborted=what.is_aborted if what.aborted else None,
    )
    report = CompactionReport(clean_offset=end)
    tombstones = 0
    clean_below = max(end, what.clean.offset)
    extents = [each for each in what.extents if each.base_offset < clean_below]
    for run in (ExtentRun(what.place, tuple(each)) for each in in_runs(extents, segment_bytes)):
        data, counts = _rewritten(session, run, wanted, max_decompressed_bytes, check)
        report.segments_before += len({each.key for each in run.extents})
        report.segments_after += 1
        report.bytes_read += counts.bytes_before
        tombstones += counts.tombstones_kept
        if counts.records_after == counts.records_before:
            continue
        if not replace(session, run, known, data):
            return None
        report.records_removed += counts.records_before - counts.records_after
        report.bytes_removed += counts.bytes_before - counts.bytes_after
        report.tombstones_removed += counts.tombstones_dropped
    session.commit(
        [
            {
                "do": "compacted",
                "topic": what.place.topic_id,
                "partition": what.place.partition,
                "offset": end,
                "time_ms": now_ms(),
                "tombstones": tombstones,
                "dropped_below": wanted.forget_below,
            }
        ]
    )
    return report


def _keys(session: StoreSession, what: Compactable, max_bytes: int, check: Check) -> tuple[KeyMap, int]:
    """Return the last offset of every key written since the last round, and the offset up to which keys were read."""
    start = what.clean.offset
    dirty = [each for each in what.extents if each.next_offset > start]
    keys = KeyMap(_table(sum(each.next_offset - each.base_offset for each in dirty)), secrets.token_bytes(16))
    end = start
    for extent, data in read(session, dirty, check):
        rows = checked_rows(data)
        rows = rows[~what.is_aborted(rows)] if what.aborted else rows
        for body, unpacked, error in unpack(data, rows[rows[:, LAST] >= start], max_bytes):
            if error is not None:
                raise error
            taken, bad = keys.note(body, memoryview(unpacked))
            if bad:
                raise CorruptBatch(MALFORMED, path=extent.key)
            if taken:
                end = int(unpacked[taken - 1, LAST]) + 1
            if taken < len(unpacked):
                return keys, end
        end = extent.next_offset
    return keys, end


def _table(records: int) -> np.ndarray:
    slots = _LEAST_SLOTS
    while slots * 7 // 8 < records and 2 * slots * _SLOT_BYTES <= _KEY_BYTES:
        slots *= 2
    return np.zeros((slots, 3), np.uint64)


class RewriteBuffer:
    """In-memory output of `Rebatcher`."""

    def __init__(self) -> None:
        self.data = bytearray()

    def put(self, batch: memoryview, last_offset: int, max_timestamp: int, *, count: int) -> None:
        self.data += batch


class ChunkOrigin(NamedTuple):
    """Origin of a chunk, for error messages of `Rebatcher`."""

    path: str


def _rewritten(
    session: StoreSession, run: ExtentRun, wanted: RewriteOptions, max_bytes: int, check: Check
) -> tuple[bytearray, RewriteCounts]:
    """Return the batches of a run without superseded records."""
    out = RewriteBuffer()
    made = Rebatcher(cast("ReplacementFile", out), run.extents[0].base_offset, wanted, max_bytes)
    for extent, data in read(session, run.extents, check):
        chunk = Chunk(data, checked_rows(data), 0, special=wanted.aborted is not None)
        made.take(chunk, cast("Segment", ChunkOrigin(extent.key)))
    made.finish(run.extents[-1].next_offset)
    return out.data, made.counts
