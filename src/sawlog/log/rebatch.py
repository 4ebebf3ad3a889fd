"""Makes batches again of those that are kept of a run: decodes them, drops records, joins what is left.

Every offset that was taken is covered by a batch, also where all records are dropped. No batch covers offsets of two
leader epochs. Batches that contain more than records (an idempotent producer's, a transaction's) keep their header and
their place. A large batch that would not change is copied as it is. The marker at the end of a transaction is copied as
it is, as long as a batch of that transaction is left; if it were dropped before, the transaction would seem to be open.
One thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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
from .batches import Chunk
from .index import MAX_SPAN
from .replacement import Replacement
from .segment import Segment

#: Joined batches are about this large, before compression; the same as a writer's.
BATCH_BYTES = 128 << 10
_SPECIAL = CONTROL_BIT | TRANSACTIONAL_BIT


@dataclass(slots=True)
class Markers:
    """Which transactions still have batches, as far as the log was rewritten from its start on."""

    #: Producers with batches since their last marker.
    alive: set[int] = field(default_factory=set)
    #: Whether something before was not rewritten: then nothing is known, and all markers stay.
    blind: bool = False

    def copy(self) -> Markers:
        """The same, for an attempt that may be repeated."""
        return Markers(set(self.alive), self.blind)

    def go_blind(self) -> None:
        """Something could not be read: it is not known which transactions have batches there."""
        self.blind = True

    def become(self, other: Markers) -> None:
        """The attempt has succeeded, or is taken back."""
        self.alive, self.blind = set(other.alive), other.blind

    def keep(self, producer_id: int) -> None:
        """A batch of a transaction stays."""
        self.alive.add(producer_id)

    def needed(self, producer_id: int) -> bool:
        """Whether the next marker of this producer is needed."""
        was = producer_id in self.alive
        self.alive.discard(producer_id)
        return was or self.blind


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is kept of a run, and how it is compressed."""

    #: A record is dropped if its key was written again at a later offset in this table.
    keys: KeyMap | None = None
    #: Records below this offset are dropped: they are already trimmed.
    floor: int = 0
    #: Tombstones below this offset are dropped.
    forget_below: int = 0
    #: The codec's number for all batches; None: each keeps its own.
    codec: int | None = None
    level: int | None = None
    #: Which producers' batches keep their header even if no record is left: those that the log's state contains.
    remembered: Callable[[int, int], bool] = lambda producer_id, last_offset: False
    #: Which batches belong to aborted transactions: their records are dropped. None: all are kept.
    aborted: Callable[[Rows], npt.NDArray[np.bool_]] | None = None
    #: Which markers are needed; None: all of them.
    markers: Markers | None = None


@dataclass(slots=True)
class Counts:
    """What a rewrite read and kept."""

    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    tombstones_dropped: int = 0
    tombstones_kept: int = 0


class Rebatch:
    """Decodes batches and joins what is kept of them.

    An open batch begins at the first offset that is not covered yet, and covers everything that was added when it is
    closed: so where records are dropped, their offsets belong to the batch around them, or to the next one.
    """

    def __init__(self, out: Replacement, base: int, wanted: Wanted, max_bytes: int) -> None:
        self._out = out
        self._wanted = wanted
        self._max_bytes = max_bytes
        self.counts = Counts()
        #: Whether a batch of a transaction or a marker was kept, and the offsets of markers that say abort.
        self.special = False
        self.aborts: set[int] = set()
        #: The first offset that no finished batch covers, and the first one after what was added.
        self._covered = self._taken = base
        #: The newest timestamp since then: the timestamp of a batch without records for those that are removed.
        self._passed_time = -1
        self._kind = (0, 0, 0)
        #: The leader epoch of what was added last, and so of what is not covered yet.
        self._epoch = -1
        self._buffer = bytearray(2 * BATCH_BYTES)
        self._end = HEADER_BYTES
        self._count = 0
        self._base_time = self._max_time = -1

    @property
    def open_bytes(self) -> int:
        """What the open batch will add to the file, before compression."""
        return self._end if self._count else 0

    def take(self, chunk: Chunk, segment: Segment) -> None:
        """All batches of a chunk, in order."""
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
        """Batches that can be decoded, and how they are in the file (`rows` in `view`), and which of them are aborted;
        returns the number of the first that does not parse."""
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
        """For each batch: whether it is kept separate, its codec, its timestamp if the log set it, and its leader
        epoch. Neighbours of the same kind are joined."""
        attributes = rows[:, ATTRIBUTES]
        alone = ((attributes & _SPECIAL) != 0) | (rows[:, PRODUCER_ID] >= 0)
        codec = attributes & COMPRESSION_MASK
        if self._wanted.codec is not None:
            codec = np.full_like(codec, self._wanted.codec)
        stamped = attributes & TIMESTAMP_TYPE_BIT
        times = np.where(stamped, rows[:, MAX_TIME], 0)
        return np.stack([alone, codec, stamped, times, rows[:, LEADER_EPOCH]], axis=1)

    def _enter_epoch(self, epoch: int) -> None:
        """What comes next is of this leader epoch: what was added of another one is covered first."""
        if epoch != self._epoch:
            self._close()
            self._fill(self._taken)
            self._epoch = epoch

    def _join(
        self, view: memoryview, rows: Rows, body: memoryview, unpacked: Rows, span: tuple[int, int], kind: Rows
    ) -> tuple[int, bool]:
        """Batches of one kind; returns (where it stopped, whether that was the end)."""
        wanted, (at, end) = self._wanted, span
        if (made := (int(kind[1]), int(kind[2]), int(kind[3]))) != self._kind:
            self._close()
            self._kind = made
        while at < end:
            row = rows[at]
            if row[LAST] - self._covered >= MAX_SPAN:  # no batch covers so many offsets: cover the missing ones first
                self._close()
                self._fill(int(row[BASE]))
            if self._end >= BATCH_BYTES // 2 <= row[SIZE]:
                self._close()  # the next one may not need decoding at all
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
            if fresh and at == began + 1 and self._as_it_was(row, kept):
                self._reset()
                self._copy(view, row)
            elif self._end >= BATCH_BYTES:
                self._close()
        return at, True

    def _as_it_was(self, row: Rows, kept: int) -> bool:
        """Whether a batch that was added alone would not change: then it is copied instead."""
        same_codec = self._wanted.codec in (None, int(row[ATTRIBUTES]) & COMPRESSION_MASK)
        return kept == row[COUNT] > 0 and self._covered == row[BASE] and row[SIZE] >= BATCH_BYTES // 2 and same_codec

    def _take_special(self, view: memoryview, row: Rows, body: memoryview, unpacked: Rows) -> bool:
        """A batch that keeps its header and its place: with the remaining records; or empty, if its producer's state
        needs it; or dropped. False if it does not parse."""
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
        self._leave(row, kept, end, newest)
        return True

    def _drop(self, row: Rows) -> bool:
        """A batch of an aborted transaction: nothing of it is kept but its header, if its producer's state needs it."""
        self._close()
        self._kind = (-1, 0, 0)
        self._leave(row, 0, HEADER_BYTES, -1)
        return True

    def _leave(self, row: Rows, kept: int, end: int, newest: int) -> None:
        """The records of a batch that are kept are in the buffer: write them with its header, if it is needed."""
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
        """A control batch: copied as it is, or dropped with the last batch of its transaction."""
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
        """Finish the open batch, if there is anything in it."""
        if self._count:
            codec, stamped, stamp = self._kind
            top = stamp if stamped else self._max_time
            self._emit(self._buffer, self._end, self._taken - 1, self._count, codec, stamped, self._base_time, top)
        self._reset()

    def _reset(self) -> None:
        if len(self._buffer) > 32 * BATCH_BYTES:  # it was for a batch of large values
            self._buffer = bytearray(2 * BATCH_BYTES)
        self._end, self._count = HEADER_BYTES, 0
        self._base_time = self._max_time = -1

    def _fill(self, end: int) -> None:
        """Batches without records, for offsets below `end` whose records are all removed."""
        newest = self._passed_time if end - self._covered <= MAX_SPAN else -1
        while self._covered < end:
            last = min(end, self._covered + MAX_SPAN) - 1
            self._emit(bytearray(HEADER_BYTES), HEADER_BYTES, last, 0, 0, 0, newest, newest)

    def _emit(
        self, buffer: bytearray, end: int, last: int, count: int, codec: int, attributes: int, base: int, top: int
    ) -> None:
        """A batch without a producer, from the first offset that is not covered to `last`."""
        data = self._packed(buffer, end, codec)
        attributes |= self._packed_with
        first = self._covered
        epoch = max(self._epoch, 0)
        kernel.write_header(data, 0, first, len(data), epoch, attributes, last - first, base, top, -1, -1, -1, count)
        self._put(data, last, top, count)

    def _packed(self, buffer: bytearray, end: int, codec: int) -> memoryview:
        """Records after space for a header, compressed if that helps; returns the codec."""
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
        """A batch, unchanged."""
        batch = view[int(row[POSITION]) : int(row[POSITION] + row[SIZE])]
        self._out.put(batch, int(row[LAST]), int(row[MAX_TIME]), count=int(row[COUNT]))
        self._covered, self._passed_time = int(row[LAST]) + 1, -1
        self.counts.bytes_after += len(batch)

    def finish(self, end: int) -> None:
        """The last batch; it extends to the end of the run."""
        assert self._taken == end, f"taken up to {self._taken}, not to {end}"
        self._close()
        self._fill(end)
