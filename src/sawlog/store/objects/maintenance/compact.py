"""Compaction of a partition on object storage: of all records with the same key, only the last is kept.

It works as in a directory and shares the rewriting of batches with `sawlog.log.compaction`: offsets do not change,
every offset stays covered by a batch, and tombstones are kept for a while. Only consolidated segments are compacted.
Progress is part of the state, so any process can continue.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ....batch.header import LAST, Rows
from ....batch.kernel import KeyMap
from ....batch.read import MALFORMED, unpack
from ....clock import now_ms
from ....config import MaintenanceConfig
from ....errors import CorruptBatch
from ....log.batches import Chunk
from ....log.compaction import CompactionReport
from ....log.ingest import checked_rows
from ....log.rebatch import Rebatcher, RewriteCounts, RewriteOptions
from ....log.replacement import ReplacementFile
from ....log.segment import Segment
from ....log.transaction_index import AbortedTransaction
from ....log.transactions import aborted_rows
from ..session import StoreSession
from ..state.extents import Extent
from ..state.records import CompactionState
from .consolidate import Check, Place, Run, is_settled, read, replace

#: Maximum size of the key table. More keys are compacted in several rounds.
_KEY_BYTES = 128 << 20
_SLOT_BYTES, _LEAST_SLOTS = 24, 1 << 10


class Compactable(NamedTuple):
    """The compactable part of a partition, and the state of its compaction."""

    place: Place
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
    for run in _runs(what, max(end, what.clean.offset), segment_bytes):
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


def _runs(what: Compactable, end: int, segment_bytes: int) -> Iterator[Run]:
    """Yield the extents to rewrite, in runs that become one segment each."""
    taken: list[Extent] = []
    size = 0
    for extent in what.extents:
        if extent.base_offset >= end:
            break
        if taken and size + extent.size_bytes > segment_bytes:
            yield Run(what.place, tuple(taken))
            taken, size = [], 0
        taken.append(extent)
        size += extent.size_bytes
    if taken:
        yield Run(what.place, tuple(taken))


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


class _Batches:
    """In-memory output of `Rebatcher`."""

    def __init__(self) -> None:
        self.data = bytearray()

    def put(self, batch: memoryview, last_offset: int, max_timestamp: int, *, count: int) -> None:
        self.data += batch


class _Source(NamedTuple):
    """Origin of a chunk, for error messages of `Rebatcher`."""

    path: str


def _rewritten(
    session: StoreSession, run: Run, wanted: RewriteOptions, max_bytes: int, check: Check
) -> tuple[bytearray, RewriteCounts]:
    """Return the batches of a run without superseded records."""
    out = _Batches()
    made = Rebatcher(cast("ReplacementFile", out), run.extents[0].base_offset, wanted, max_bytes)
    for extent, data in read(session, run.extents, check):
        chunk = Chunk(data, checked_rows(data), 0, special=wanted.aborted is not None)
        made.take(chunk, cast("Segment", _Source(extent.key)))
    made.finish(run.extents[-1].next_offset)
    return out.data, made.counts
