"""Re-encoding of batches during a rewrite: decode, drop records, and join the rest into larger batches.

Batches cover every input offset, even where all records are dropped, and none spans two leader epochs. Batches that
carry producer state (of idempotent producers and transactions) keep their header and their offsets. A large batch that
would not change is copied unchanged. So is the marker that ends a transaction, as long as a batch of that transaction
remains; without it the transaction would seem to be open. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..batch import kernel
from ..batch.checksum import crc32c
from ..batch.compression import compress
from ..batch.header import (
    ABORT_MARKER,
    ATTRIBUTES,
    BASE,
    BASE_SEQUENCE,
    BASE_TIME,
    BODY,
    BODY_END,
    COMMIT_MARKER,
    COMPRESSION_MASK,
    CONTROL_BIT,
    COUNT,
    HEADER_BYTES,
    LAST,
    LEADER_EPOCH,
    MARKER,
    MARKER_MASK,
    MAX_TIME,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SIZE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Rows,
)
from ..batch.kernel import KeyMap
from ..batch.read import MALFORMED, unpack
from ..errors import CorruptBatch
from .batches import MAX_SPAN, Chunk
from .segment import Segment

if TYPE_CHECKING:
    from .rewrite import ReplacementFile

#: Target size of joined batches before compression, the same as a writer's.
BATCH_BYTES = 128 << 10
_SPECIAL = CONTROL_BIT | TRANSACTIONAL_BIT


@dataclass(slots=True)
class MarkerTracker:
    """Tracks which transactions still have batches while a log is rewritten from its start."""

    #: Producers with batches since their last marker.
    alive: set[int] = field(default_factory=set)
    #: True if an earlier part was not rewritten. Nothing is known then, and all markers are kept.
    incomplete: bool = False

    def copy(self) -> MarkerTracker:
        """Return a copy, for an attempt that may be repeated."""
        return MarkerTracker(set(self.alive), self.incomplete)

    def mark_incomplete(self) -> None:
        """Record that a part could not be read, with unknown transactions in it."""
        self.incomplete = True

    def restore(self, other: MarkerTracker) -> None:
        """Take over the state of `other`, after an attempt succeeded or was undone."""
        self.alive, self.incomplete = set(other.alive), other.incomplete

    def keep(self, producer_id: int) -> None:
        """Record that a transactional batch is kept."""
        self.alive.add(producer_id)

    def needed(self, producer_id: int) -> bool:
        """Return True if the next marker of this producer must be kept."""
        was = producer_id in self.alive
        self.alive.discard(producer_id)
        return was or self.incomplete


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """Records that a rewrite keeps, and their compression."""

    #: Last offset of every key: a record is dropped if its key has a later offset.
    keys: KeyMap | None = None
    #: Records below this offset, the log start, are dropped.
    floor: int = 0
    #: Tombstones below this offset are dropped.
    forget_below: int = 0
    #: Codec number for all batches; None: each keeps its own.
    codec: int | None = None
    level: int | None = None
    #: True for a batch (producer id, last offset) that keeps its header even without records, because the producer
    #: state refers to it.
    remembered: Callable[[int, int], bool] = lambda producer_id, last_offset: False
    #: Mask of the batches that belong to aborted transactions, whose records are dropped. None: keep all.
    aborted: Callable[[Rows], npt.NDArray[np.bool_]] | None = None
    #: Decides which markers are kept; None: all of them.
    markers: MarkerTracker | None = None


@dataclass(slots=True)
class RewriteCounts:
    """Numbers of records and bytes that a rewrite read and kept."""

    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    tombstones_dropped: int = 0
    tombstones_kept: int = 0


class Rebatcher:
    """Decodes batches and joins the records that are kept.

    An open batch begins at the first offset that is not covered yet and, when closed, covers everything added since. So
    the offsets of dropped records belong to the surrounding batch, or to the next one.
    """

    def __init__(self, out: ReplacementFile, base: int, wanted: RewriteOptions, max_bytes: int) -> None:
        self._out = out
        self._wanted = wanted
        self._max_bytes = max_bytes
        self.counts = RewriteCounts()
        #: True if a transactional batch or a marker was kept; and the offsets of kept abort markers.
        self.special = False
        self.aborts: set[int] = set()
        #: First offset that no finished batch covers, and first offset after the input so far.
        self._covered = self._taken = base
        #: Newest timestamp since `_covered`: the timestamp of an empty batch for removed records.
        self._passed_time = -1
        self._kind = (0, 0, 0)
        #: Leader epoch of the latest input, and so of the offsets that are not covered yet.
        self._epoch = -1
        self._buffer = bytearray(2 * BATCH_BYTES)
        self._end = HEADER_BYTES
        self._count = 0
        self._base_time = self._max_time = -1

    @property
    def open_bytes(self) -> int:
        """Size of the open batch before compression."""
        return self._end if self._count else 0

    def take(self, chunk: Chunk, segment: Segment) -> None:
        """Add all batches of a chunk."""
        self.counts.records_before += int(chunk.rows[:, COUNT].sum())
        self.counts.bytes_before += int(chunk.rows[:, SIZE].sum())
        done = 0
        aborted = self._wanted.aborted
        gone = aborted(chunk.rows) if chunk.special and aborted is not None else np.zeros(len(chunk.rows), bool)
        for body, run, error in unpack(chunk.view, chunk.rows, self._max_bytes):
            part = slice(done, done + len(run))
            whole = chunk.rows[part]
            stopped = 0 if error is not None else self._take_run(chunk.view, whole, body, run, gone[part])
            if stopped < len(run):
                raise CorruptBatch(
                    MALFORMED if error is None else error.reason,
                    path=segment.path,
                    position=chunk.origin + int(whole[stopped, POSITION]),
                    next_offset=int(whole[stopped, LAST]) + 1,
                )
            done += len(run)

    def _take_run(
        self, view: memoryview, rows: Rows, body: memoryview, unpacked: Rows, gone: npt.NDArray[np.bool_]
    ) -> int:
        """Add decoded batches (`unpacked` in `body`), given also as stored (`rows` in `view`), with a mask of the
        aborted ones. Returns the number of the first that does not parse."""
        kinds = self._kinds(rows)
        at = 0
        while at < len(rows):
            self._enter_epoch(int(rows[at, LEADER_EPOCH]))
            if kinds[at, 0] and gone[at]:
                at, parses = at + 1, self._drop(rows[at])
            elif kinds[at, 0]:
                at, parses = at + 1, self._take_special(view, rows[at], body, unpacked[at : at + 1])
            else:
                different = np.flatnonzero((kinds[at:] != kinds[at]).any(axis=1))
                end = at + int(different[0]) if len(different) else len(rows)
                stopped, parses = self._join(view, rows, body, unpacked, (at, end), kinds[at])
                at = stopped + (not parses)
            if not parses:
                return at - 1
        return at

    def _kinds(self, rows: Rows) -> Rows:
        """Return for each batch: whether it is kept separate, its codec, its timestamp if the log set it, and its
        leader epoch. Neighbours of the same kind are joined."""
        attributes = rows[:, ATTRIBUTES]
        alone = ((attributes & _SPECIAL) != 0) | (rows[:, PRODUCER_ID] >= 0)
        codec = attributes & COMPRESSION_MASK
        if self._wanted.codec is not None:
            codec = np.full_like(codec, self._wanted.codec)
        stamped = attributes & TIMESTAMP_TYPE_BIT
        times = np.where(stamped, rows[:, MAX_TIME], 0)
        return np.stack([alone, codec, stamped, times, rows[:, LEADER_EPOCH]], axis=1)

    def _enter_epoch(self, epoch: int) -> None:
        """Switch to a leader epoch. Covers the offsets of the previous one first."""
        if epoch != self._epoch:
            self._close()
            self._fill(self._taken)
            self._epoch = epoch

    def _join(
        self, view: memoryview, rows: Rows, body: memoryview, unpacked: Rows, span: tuple[int, int], kind: Rows
    ) -> tuple[int, bool]:
        """Join batches of one kind; return (where it stopped, False if a batch does not parse)."""
        wanted, (at, end) = self._wanted, span
        if (made := (int(kind[1]), int(kind[2]), int(kind[3]))) != self._kind:
            self._close()
            self._kind = made
        while at < end:
            row = rows[at]
            if row[LAST] - self._covered >= MAX_SPAN:  # too many offsets for one batch: cover the removed ones first
                self._close()
                self._fill(int(row[BASE]))
            if self._end >= BATCH_BYTES // 2 <= row[SIZE]:
                self._close()  # the next batch may be copied unchanged
            self._make_room(int(unpacked[at, BODY_END] - unpacked[at, BODY]) + 24 * int(row[COUNT]))
            began, fresh = at, self._count == 0
            reach = at + max(int((rows[at:end, LAST] - self._covered < MAX_SPAN).sum()), 1)
            at, kept, self._end, self._base_time, newest, dropped, left, bad = kernel.keep_records(
                body,
                memoryview(unpacked),
                at,
                reach,
                wanted.keys,
                wanted.floor,
                wanted.forget_below,
                memoryview(self._buffer),
                self._end,
                BATCH_BYTES,
                self._covered,
                self._base_time,
                fresh,
            )
            self.counts.tombstones_dropped += dropped
            self.counts.tombstones_kept += left
            self.counts.records_after += kept
            self._count += kept
            self._max_time = max(self._max_time, newest)
            if at > began:
                self._taken = int(rows[at - 1, LAST]) + 1
                self._passed_time = max(self._passed_time, int(rows[began:at, MAX_TIME].max()))
            if bad:
                return at, False
            if fresh and at == began + 1 and self._is_unchanged(row, kept):
                self._reset()
                self._copy(view, row)
            elif self._end >= BATCH_BYTES:
                self._close()
        return at, True

    def _is_unchanged(self, row: Rows, kept: int) -> bool:
        """Return True if a batch that was added alone would not change, so that it can be copied."""
        same_codec = self._wanted.codec in (None, int(row[ATTRIBUTES]) & COMPRESSION_MASK)
        return kept == row[COUNT] > 0 and self._covered == row[BASE] and row[SIZE] >= BATCH_BYTES // 2 and same_codec

    def _take_special(self, view: memoryview, row: Rows, body: memoryview, unpacked: Rows) -> bool:
        """Add a batch that keeps its header and its offsets: with the remaining records, or empty if the producer state
        needs it, or not at all. Returns False if it does not parse."""
        self._close()
        self._kind = (-1, 0, 0)
        wanted, base = self._wanted, int(row[BASE])
        if int(row[ATTRIBUTES]) & CONTROL_BIT:
            self._take_marker(view, row)
            return True
        self._make_room(int(unpacked[0, BODY_END] - unpacked[0, BODY]) + 24 * int(row[COUNT]))
        _, kept, end, _, newest, dropped, left, bad = kernel.keep_records(
            body,
            memoryview(unpacked),
            0,
            1,
            wanted.keys,
            wanted.floor,
            wanted.forget_below,
            memoryview(self._buffer),
            HEADER_BYTES,
            2**62,
            base,
            int(row[BASE_TIME]),
            False,
        )
        if bad:
            return False
        self.counts.tombstones_dropped += dropped
        self.counts.tombstones_kept += left
        self.counts.records_after += kept
        self._put_kept(row, kept, end, newest)
        return True

    def _drop(self, row: Rows) -> bool:
        """Add a batch of an aborted transaction: keep only its header, if the producer state needs it."""
        self._close()
        self._kind = (-1, 0, 0)
        self._put_kept(row, 0, HEADER_BYTES, -1)
        return True

    def _put_kept(self, row: Rows, kept: int, end: int, newest: int) -> None:
        """Write a batch with its header and the kept records, which are in the buffer, unless it can be dropped."""
        producer, last = int(row[PRODUCER_ID]), int(row[LAST])
        self._taken = last + 1
        if not kept and not self._wanted.remembered(producer, last):
            self._passed_time = max(self._passed_time, int(row[MAX_TIME]))
            return
        self._fill(int(row[BASE]))
        self._put_special(row, kept, end, newest)
        if int(row[ATTRIBUTES]) & TRANSACTIONAL_BIT:
            self.special = True
            if self._wanted.markers is not None:
                self._wanted.markers.keep(producer)

    def _take_marker(self, view: memoryview, row: Rows) -> None:
        """Copy a control batch unchanged, or drop it with the last batch of its transaction."""
        producer, last, said = int(row[PRODUCER_ID]), int(row[LAST]), int(row[MARKER]) & MARKER_MASK
        markers = self._wanted.markers
        needed = markers is None or said not in (ABORT_MARKER, COMMIT_MARKER) or markers.needed(producer)
        self._taken = last + 1
        if not needed and not self._wanted.remembered(producer, last):
            self._passed_time = max(self._passed_time, int(row[MAX_TIME]))
            return
        self._fill(int(row[BASE]))
        self._copy(view, row)
        self.special = True
        if said == ABORT_MARKER:
            self.aborts.add(last)

    def _put_special(self, row: Rows, kept: int, end: int, newest: int) -> None:
        attributes = int(row[ATTRIBUTES])
        codec = attributes & COMPRESSION_MASK if self._wanted.codec is None else self._wanted.codec
        keeps_time = attributes & TIMESTAMP_TYPE_BIT or not kept
        data = self._packed(self._buffer, end, codec if kept else 0)
        kernel.write_header(
            data,
            0,
            int(row[BASE]),
            len(data),
            int(row[LEADER_EPOCH]),
            (attributes & ~COMPRESSION_MASK) | self._packed_with,
            int(row[LAST] - row[BASE]),
            int(row[BASE_TIME]),
            int(row[MAX_TIME]) if keeps_time else newest,
            int(row[PRODUCER_ID]),
            int(row[PRODUCER_EPOCH]),
            int(row[BASE_SEQUENCE]),
            kept,
        )
        self._put(data, int(row[LAST]), int(row[MAX_TIME]) if keeps_time else newest, kept)

    def _make_room(self, size: int) -> None:
        if len(self._buffer) - self._end < size:
            used, self._buffer = bytes(memoryview(self._buffer)[: self._end]), bytearray()
            self._buffer = bytearray(self._end + max(size, 2 * BATCH_BYTES))
            self._buffer[: self._end] = used

    def _close(self) -> None:
        """Finish the open batch, unless it is empty."""
        if self._count:
            codec, stamped, stamp = self._kind
            top = stamp if stamped else self._max_time
            self._emit(self._buffer, self._end, self._taken - 1, self._count, codec, stamped, self._base_time, top)
        self._reset()

    def _reset(self) -> None:
        if len(self._buffer) > 32 * BATCH_BYTES:  # shrink after a batch of large values
            self._buffer = bytearray(2 * BATCH_BYTES)
        self._end, self._count = HEADER_BYTES, 0
        self._base_time = self._max_time = -1

    def _fill(self, end: int) -> None:
        """Write empty batches for offsets below `end` whose records were all removed."""
        newest = self._passed_time if end - self._covered <= MAX_SPAN else -1
        while self._covered < end:
            last = min(end, self._covered + MAX_SPAN) - 1
            self._emit(bytearray(HEADER_BYTES), HEADER_BYTES, last, 0, 0, 0, newest, newest)

    def _emit(
        self, buffer: bytearray, end: int, last: int, count: int, codec: int, attributes: int, base: int, top: int
    ) -> None:
        """Write a batch without a producer, from the first uncovered offset to `last`."""
        data = self._packed(buffer, end, codec)
        attributes |= self._packed_with
        first = self._covered
        epoch = max(self._epoch, 0)
        kernel.write_header(data, 0, first, len(data), epoch, attributes, last - first, base, top, -1, -1, -1, count)
        self._put(data, last, top, count)

    def _packed(self, buffer: bytearray, end: int, codec: int) -> memoryview:
        """Return the batch with space for its header, compressed if that helps; sets `_packed_with` to the codec."""
        data = memoryview(buffer)[:end]
        self._packed_with = 0
        if codec:
            packed = compress(codec, data[HEADER_BYTES:], self._wanted.level, max_bytes=self._max_bytes)
            if packed is not None:
                made = bytearray(HEADER_BYTES + len(packed))
                made[HEADER_BYTES:] = packed
                data, self._packed_with = memoryview(made), codec
        return data

    def _put(self, data: memoryview, last: int, top: int, count: int) -> None:
        kernel.patch_crc(data, 0, crc32c(data[21:]))
        self._out.put(data, last, top, count=count)
        self._covered, self._passed_time = last + 1, -1
        self.counts.bytes_after += len(data)

    def _copy(self, view: memoryview, row: Rows) -> None:
        """Copy a batch unchanged."""
        batch = view[int(row[POSITION]) : int(row[POSITION] + row[SIZE])]
        self._out.put(batch, int(row[LAST]), int(row[MAX_TIME]), count=int(row[COUNT]))
        self._covered, self._passed_time = int(row[LAST]) + 1, -1
        self.counts.bytes_after += len(batch)

    def finish(self, end: int) -> None:
        """Write the last batch, which extends to the end of the run."""
        assert self._taken == end, f"taken up to {self._taken}, not to {end}"
        self._close()
        self._fill(end)
