"""Placing batches: the only code that makes a log grow.

A batch arrives encoded. Under the log's lock, `Appender.place` checks it, assigns its offsets and leader epoch, writes
it at the end of the active segment and indexes it. Once the whole append is placed it counts as written
(`complete_append`); then, outside the lock, the durability policy decides whether the caller blocks until the bytes are
synced. Records become visible when they are durable under "always", otherwise when they are written (see commit.py). A
reader that sees the new end finds everything else in place.

    durable_offset <= visible_offset <= written_offset <= next_offset

Within `appending`, several placements form one append: they count together, and if one fails all are rolled back. So a
record that may still be rolled back is never durable, visible or written.

An interrupt (a signal handler that raises, Ctrl-C) may come between any two lines. An append records its intention
before it writes (`_unfinished`). An interrupted append is completed if it already counts as written and rolled back
otherwise, immediately or by the next holder of the lock.

Next: the active segment and failed writes (active_segment.py), watermarks and group commit (commit.py), the checkpoint
(checkpointer.py), encoders (encoding.py), blocks of several placements (append_block.py), the maintenance lock
(lock.py).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from .. import background
from ..batch import kernel
from ..batch.build import NO_PRODUCER, Encoded, EncoderOptions, Producer
from ..batch.header import BASE, LAST, MAX_TIME, POSITION, SIZE, Rows
from ..batch.inputs import RecordInput, record_error
from ..clock import now_ms
from ..config import Interval, LogConfig
from ..errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidRecordType,
    LogClosed,
    OffsetMismatch,
    OffsetOutOfRange,
    RecordTooLarge,
    SawlogError,
    StorageError,
    SyncFailed,
)
from ..storage import Directory, Lock
from ..storage.forking import forkable, notify_after_fork
from .active_segment import ActiveSegment
from .append_block import AppendBlock, AppendBlocks, DurableAppendBlock
from .checkpointer import Checkpointer, LogLineage
from .commit import DurabilityCallbacks
from .encoding import EncoderPool, recipe_of
from .files import PRODUCERS
from .index import MAX_SPAN
from .lock import MaintenanceLock
from .maintenance_state import truncate_state
from .producers import ProducerState, after_cut, has_transactions
from .segment import Segment
from .segments import SegmentSet
from .truncation import delete_above, epochs_after, find_cut_point, truncate_segment

if TYPE_CHECKING:
    from .streams import Spool
    from .writer import Writer


class Placement:
    """Offsets of a placed batch, for a caller that an interrupt may prevent from receiving the result."""

    __slots__ = ("placed",)

    def __init__(self) -> None:
        self.placed: range | None = None

    def give(self, placed: range) -> range:
        """Record the offsets and return them."""
        self.placed = placed
        return placed


#: Producer of a batch, its first and last offset, and the placement of a caller that may retry.
_Batch = tuple[Producer, int, int, Placement | None]


def check_expected(expected: int | None, offset: int) -> None:
    """Raise `OffsetMismatch` unless the next offset is the expected one (optimistic concurrency)."""
    if expected is None:
        return
    if isinstance(expected, bool) or not isinstance(expected, int):
        raise InvalidRecordType(f"expect_offset must be an integer, not {expected!r}")
    if expected != offset:
        raise OffsetMismatch(expected, offset)


_CHANGE: Final = "change"
#: Streams up to this length are appended like any other record, unless segments are small.
_SHORT_BYTES = 16 << 10


class Appender(kernel.AppenderFields):
    """The writing half of a log."""

    __slots__ = (
        "_rolling_back",
        "active",
        "blocks",
        "checkpoints",
        "commit",
        "config",
        "directory",
        "durability_callbacks",
        "encoders",
        "fast_path",
        "held",
        "lineage",
        "lock",
        "maintenance_lock",
        "producers",
        "segments",
        "spools",
        "stream_encoders",
        "streaming",
        "truncations",
        "watermarks",
        "writers",
    )
    closed: bool
    #: State of an unfinished `place`: the segment, its tail before the write, and the batch to record. Or `_CHANGE`: a
    #: change of the log's files is in progress that only the next open can finish.
    _unfinished: tuple[Segment, tuple[int, int], _Batch] | Literal["change"] | None

    def __init__(
        self,
        directory: Directory,
        config: LogConfig,
        segments: SegmentSet,
        producers: ProducerState,
        held: Lock,
        *,
        lent: bool = False,
    ) -> None:
        self.directory = directory
        self.config = config
        self.segments = segments
        self._set_producers(producers)
        self.held = held
        # A log that is dropped without `close` releases its lock when it is garbage-collected.
        weakref.finalize(self, held.release).atexit = False
        #: Re-entrant: streaming appends and truncations hold it over several steps.
        self.lock = forkable(threading.RLock())
        self.active = ActiveSegment(directory, config, segments, self.save_if_possible)
        self.watermarks = self.active.watermarks
        self.commit = self.watermarks.commit
        self.checkpoints = Checkpointer(directory, segments, self.watermarks)
        self.encoders = EncoderPool(recipe_of(config))
        #: For streams, which are not compressed and are exempt from `max_record_bytes`.
        self.stream_encoders = EncoderPool(replace(self.encoders.recipe, codec=0, max_record_bytes=0))
        self.maintenance_lock = MaintenanceLock(directory, self._check_alive, self._holds_lock, lent=lent)
        self.lineage = LogLineage(segments, self.watermarks, self.checkpoints)
        self.durability_callbacks = DurabilityCallbacks(self.commit, self.must_sync)
        self.blocks = AppendBlocks(self.lock, self.roll_back_to, self.complete_append)
        self._unfinished = None
        self._rolling_back = False
        self.closed = False
        #: Number of truncations. Maintenance compares it so as not to record outdated state.
        self.truncations = 0
        #: Held while a stream is read: the code that produces its chunks must not change the log. A lock and not a
        #: flag, because no interrupt can come between the end of its `with` and its release.
        self.streaming = forkable(threading.Lock())
        #: Open writers, which closing the log flushes first.
        self.writers: set[Writer] = set()
        #: Buffers of async streams, which closing the log discards.
        self.spools: set[Spool] = set()
        #: Compiled fast path for the common case. None if appends wait for the disk, or if the storage is not an
        #: operating-system file.
        self.fast_path = self._new_fast_appender()
        # Nothing is published yet: `LogLineage.take_over` does that once the epoch is known.
        known, end = self.watermarks.visible.previous, self.watermarks.written[0]
        segments.set_visible(end if known is None else min(known[0], end))
        if isinstance(config.durability, Interval):
            background.every(config.durability.ms / 1000, self._sync_in_time)
        background.every(config.checkpoint_interval_ms / 1000, self._save_in_time)

    def _set_producers(self, producers: ProducerState) -> None:
        """Use this producer state from now on."""
        self.producers = producers
        transactions = producers.transactions
        self.segments.transaction_view.replace(transactions)
        if transactions.open or transactions.reached >= 0:
            self.segments.mark_undecided()

    def _new_fast_appender(self) -> kernel.FastAppender | None:
        recipe, policy = self.encoders.recipe, self.config.durability
        on_files = isinstance(self.active.segment.storage, kernel.FileFields)
        if not kernel.COMPILED or policy == "always" or not on_files:
            return None
        builder = kernel.BatchBuilder(
            record_error, max_total=recipe.max_batch_bytes, capacity=2 * kernel.SMALL_CRC_BYTES
        )
        made = kernel.FastAppender(
            self,
            self.watermarks.visible,
            builder,
            NO_PRODUCER,
            recipe.append_time,
            recipe.max_record_bytes if recipe.codec == 0 else -1,
            policy.bytes if isinstance(policy, Interval) else -1,
            self.short_bytes,
        )
        notify_after_fork(made)
        return made

    def _owns_lock(self) -> bool:
        """Whether the calling thread owns the lock."""
        return self.lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def _holds_lock(self) -> bool:
        """As `_owns_lock`, after ending a block whose release of the lock was interrupted."""
        if self._owns_lock():
            self.check_open()
        return self._owns_lock()

    @property
    def short_bytes(self) -> int:
        """Length in bytes up to which a stream is appended like any other record."""
        return min(_SHORT_BYTES, self.config.segment_bytes // 4)

    @property
    def recipe(self) -> EncoderOptions:
        """Encoding settings for batches of this log."""
        return self.encoders.recipe

    def check_failure(self) -> None:
        """Raise `LogFailed` if the log has failed."""
        self.commit.check()

    @property
    def is_busy(self) -> bool:
        """Whether a writer, stream, append block or maintenance task is active that `close` would end."""
        return (
            bool(self.writers or self.spools)
            or self.streaming.locked()
            or self.blocks.current is not None
            or self.maintenance_lock.is_running
        )

    # --- placing

    def check_open(self) -> None:
        """Raise unless this log may write. The caller holds the lock."""
        self._check_alive()
        if self.streaming.locked():
            self.refuse_in_stream()
        if self._unfinished is not None:
            self._resolve_unfinished()
            self.commit.check()
        if self.active.needs_sync:  # an interrupt came while an append was being rolled back
            self.active.sync_now()
        if self.blocks.has_begun:
            if self.blocks.current is not None:
                self.blocks.end_abandoned()
            if self.blocks.current is None:
                self._finish_interrupted()

    def _finish_interrupted(self) -> None:
        """Finish a complete stream that an interrupt kept from being counted or from becoming visible."""
        if self.watermarks.written[0] < self.active.segment.tail[0]:
            segment = self.active.segment
            segment.use_index(segment.rebuild_index(segment.storage))
            self.complete_append()
        elif self.watermarks.publishes_written and self.segments.visible_offset < self.watermarks.written[0]:
            self.watermarks.publish(self.watermarks.written[0])

    def _check_alive(self) -> None:
        """Raise if the log is closed, was inherited through a fork, or has failed. Needs no lock."""
        if self.closed:
            raise LogClosed(f"the log {self.directory.path} is closed")
        if not self.held.held:
            raise LogClosed(
                f"the log {self.directory.path} was opened by the parent process, before the fork; open it again here"
            )
        if self.commit.failure is not None:
            self.commit.check()

    def refuse_in_stream(self) -> None:
        """Raise if a stream is being appended. The caller holds the lock, so it can only be the code that produces the
        stream's chunks."""
        if self.streaming.locked():
            raise InvalidRecord("a stream must not change or close the log that it is appended to")

    def place(
        self,
        batch: Encoded,
        expect_offset: int | None = None,
        producer: Producer = NO_PRODUCER,
        placement: Placement | None = None,
    ) -> range:
        """Assign the next offsets to an encoded batch and write it. A caller that retries after an interrupt passes a
        `placement`, which holds the offsets as soon as the batch counts as written."""
        if self.fast_path is not None and expect_offset is None and producer.id < 0:
            placed: int = self.fast_path.place(batch, placement)
            if placed >= 0:
                return range(placed, placed + batch.count)
        data, count, active, watermarks = batch.data, batch.count, self.active, self.watermarks
        with self.lock:
            if (
                self.closed
                or self.streaming.locked()
                or self._unfinished is not None
                or active.needs_sync
                or self.blocks.current is not None
                or not self.held.held
                or self.commit.failure is not None
            ):
                self.check_open()
            if placement is not None and placement.placed is not None:
                return placement.placed
            segment = active.segment
            before = segment.tail
            offset = before[0]
            if expect_offset is not None:
                check_expected(expect_offset, offset)
            if producer.id >= 0:
                known = self.producers.duplicate(producer.id, producer.epoch, producer.sequence, count)
                if known is not None:
                    return known
            last = offset + count - 1
            if not active.has_room(len(data), last, batch.max_timestamp):
                segment = active.segment_for(len(data), count, batch.max_timestamp)
                before = segment.tail
            size = before[1]
            kernel.patch_place(data, 0, offset, watermarks.epoch)
            self._unfinished = segment, before, (producer, offset, last, placement)
            try:
                active.write(segment, data, last + 1)
                segment.index.add(last, size, len(data), batch.max_timestamp)
                if self.blocks.current is None:
                    watermarks.advance((last + 1, segment.base_offset, size + len(data)))
                if producer.id >= 0:
                    self.producers.note(producer.id, producer.epoch, producer.sequence, offset, last, now_ms())
                if placement is not None:
                    placement.placed = range(offset, last + 1)
                self._unfinished = None
            except BaseException:
                self._resolve_unfinished()
                raise
        return range(offset, last + 1)

    def place_many(
        self, records: Iterable[RecordInput], expect_offset: int | None = None, producer: Producer = NO_PRODUCER
    ) -> range:
        """Encode these records as one batch and place it."""
        encoder = self.encoders.take()
        try:
            return self.place(encoder.many(records, producer), expect_offset, producer)
        finally:
            self.encoders.give_back(encoder)

    def _resolve_unfinished(self) -> None:
        """Complete an interrupted append that already counts as written, or roll it back. Can be interrupted and
        called again. The caller holds the lock."""
        if self._unfinished is None:
            return
        if self._unfinished == _CHANGE:
            self.commit.fail(InterruptedError("a change of the log's files was interrupted"))
            self._unfinished = None
            return
        segment, before, (producer, offset, last, placement) = self._unfinished
        if self.commit.failure is None:
            if self.watermarks.written[0] > last:
                if producer.id >= 0 and not self.producers.remembers(producer.id, last):
                    self.producers.note(producer.id, producer.epoch, producer.sequence, offset, last, now_ms())
                if placement is not None:
                    placement.placed = range(offset, last + 1)
                if self.watermarks.publishes_written:
                    self.watermarks.publish(self.watermarks.written[0])
            elif self._rolling_back or segment.tail is not before or segment.storage.size != before[1]:
                self._rolling_back = True  # an interrupt may come before the index is rebuilt
                segment.truncate_to(before)
                self.active.roll_back(segment, before[1])
                segment.use_index(segment.rebuild_index(segment.storage))
                if self.producers.remembers(producer.id, last):
                    self._replay(self.segments.all)
        self._rolling_back = False
        self._unfinished = None

    def place_rows(self, data: memoryview, rows: Rows, expect_offset: int | None = None) -> range:
        """Place encoded batches, contiguous in a buffer that this call may modify; all of them or none."""
        with self.appending() as first:
            check_expected(expect_offset, first)
            self.check_sizes(rows)
            start = 0
            while start < len(rows):
                start = self._place_run(data, rows, start)
            return range(first, self.active.segment.tail[0])

    def appending(self) -> AppendBlock:
        """Group several placements into one append: they count when the outermost block ends, and are rolled back if it
        raises. The block holds the lock and yields the next offset."""
        return AppendBlock(self, self.blocks)

    def durable_appending(self) -> DurableAppendBlock:
        """As `appending`, but the end of the block waits for the disk if the durability policy requires it."""
        return DurableAppendBlock(self, self.blocks)

    def complete_append(self) -> None:
        """Count everything placed as written, unless a block is open. The caller holds the lock."""
        if self.blocks.current is not None:
            return
        self.watermarks.complete(self.active.tail)

    def begin(self) -> None:
        """Open the log to other writers: count and publish what `on_lock` has appended."""
        with self.lock:
            self.blocks.begin()
            self.complete_append()
            self.watermarks.publish_current()

    @property
    def written_offset(self) -> int:
        """End of the last complete append."""
        return self.watermarks.written[0]

    @property
    def is_between_appends(self) -> bool:
        """Whether `written_offset` is the end of the log for the calling thread: it has no append open, and written
        records are visible."""
        return self.watermarks.publishes_written and self.blocks.has_begun and not self._owns_lock()

    def check_sizes(self, rows: Rows) -> None:
        """Raise `RecordTooLarge` unless every batch fits into a segment."""
        self.check_size(int(rows[:, SIZE].max()))

    def check_size(self, size_bytes: int) -> None:
        """Raise `RecordTooLarge` unless a batch of this size fits into a segment."""
        if size_bytes > self.config.segment_bytes:
            raise RecordTooLarge(
                f"a batch of {size_bytes:,} bytes does not fit into a segment of {self.config.segment_bytes:,} bytes; "
                "raise segment_bytes or send smaller batches"
            )

    def _place_run(self, data: memoryview, rows: Rows, start: int) -> int:
        """Place as many batches from `start` on as fit into one segment, in one write; return the next one to place."""
        spans = rows[start:, LAST] - rows[start:, BASE] + 1
        segment = self.active.segment_for(int(rows[start, SIZE]), int(spans[0]), int(rows[start, MAX_TIME]))
        offset, size = segment.tail
        fits = size + np.cumsum(rows[start:, SIZE]) <= max(self.config.segment_bytes, size + int(rows[start, SIZE]))
        fits &= offset - segment.base_offset + np.cumsum(spans) <= MAX_SPAN
        count = max(int(fits.sum()), 1)
        run = rows[start : start + count].copy()
        following = offset + np.cumsum(spans[:count])
        run[:, LAST], run[:, BASE] = following - 1, following - spans[:count]
        for position, base in run[:, (POSITION, BASE)].tolist():
            kernel.patch_place(data, position, base, self.watermarks.epoch)
        begin, end = int(run[0, POSITION]), int(run[-1, POSITION] + run[-1, SIZE])
        self.active.write(segment, data[begin:end], int(following[-1]))
        segment.index.add_rows(run, size - begin)
        self.note_rows(run)
        return start + count

    def note_rows(self, rows: Rows) -> None:
        """Update the producer state from placed batches, before they count as written."""
        transactions = self.producers.transactions
        if self.segments.maybe_undecided:
            transactions.see(self.segments.visible_offset)
        self.producers.note_rows(rows, now_ms())
        if transactions.reached >= 0:
            self.segments.mark_undecided()  # before the batches become visible

    def _replay(self, segments: Sequence[Segment]) -> None:
        """Rebuild the producer state after batches of producers were removed."""
        lowest, visible = self.segments.lowest_offset, self.segments.visible_offset
        epochs, expiry_ms = self.segments.epochs, self.config.producer_expiry_ms
        self._set_producers(after_cut(self.directory, epochs, segments, expiry_ms, lowest=lowest, visible=visible))

    def roll_back_to(self, offset: int) -> None:
        """Truncate what a failed append has placed from `offset` on."""
        if self.active.segment.tail[0] != offset and self.commit.failure is None:
            try:
                # The first batch of an empty log may begin below its start: see ingest.py.
                self.truncate(max(offset, self.segments.lowest_offset))
            except (SawlogError, OSError) as error:
                self.commit.fail(error)

    # --- durability

    @property
    def is_free(self) -> bool:
        """Whether no other thread has the lock."""
        if not self.lock.acquire(blocking=False):
            return False
        self.lock.release()
        return True

    def must_sync(self) -> bool:
        """Whether the policy requires an append to wait for the disk now."""
        policy = self.config.durability
        return policy == "always" or (policy != "os" and self.active.unsynced_bytes >= policy.bytes)

    def settle(self, offset: int) -> None:
        """Block until an append that ended at `offset` may be acknowledged under the durability policy."""
        if self.must_sync() and (self.blocks.current is None or not self._owns_lock()):
            self.commit.ensure_durable(offset)

    def sync(self) -> None:
        """Block until everything written so far is durable. Does not wait for a stream of another thread."""
        self._check_alive()
        self.commit.ensure_durable(self.segments.next_offset)

    def _sync_in_time(self) -> None:
        """Sync for the interval policy. Runs in a background thread."""
        if not self.closed and self.held.held and self.commit.failure is None:
            try:
                self.commit.ensure_durable(self.segments.next_offset)
            except (SawlogError, OSError):
                pass  # the log has failed; the next append raises the error

    # --- the list of segments, and the small files

    def seal(self) -> None:
        """Rotate now, unless the active segment is empty."""
        with self.lock:
            self.check_open()
            if self.active.segment.tail[1]:
                self.active.rotate()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Block appends and syncs while the list of segments changes."""
        with self.lock, self.active.lock, self.commit.failing_on_sync_error():
            self.check_open()
            yield

    def begin_change(self) -> None:
        """Announce a change of the log's files that cannot be undone, only finished by the next open. If an interrupt
        prevents `end_change`, the next holder of the lock stops writing."""
        self._unfinished = _CHANGE

    def end_change(self) -> None:
        """Record that the change is complete, or completely undone."""
        self._unfinished = None

    def truncate(self, offset: int) -> int:
        """Drop the records from `offset` on and return the number of offsets dropped. See truncation.py."""
        with self.exclusive():
            segments = self.segments
            lowest, following = segments.lowest_offset, segments.next_offset
            if segments.log_start <= offset < lowest:
                raise InvalidConfig(
                    f"the log {self.directory.path} cannot be truncated to offset {offset}: what is below offset "
                    f"{lowest} is only in its replica, which is never truncated"
                )
            if not lowest <= offset <= following:
                raise OffsetOutOfRange(offset, lowest, following, self.directory.path)
            if offset == following:
                return 0
            target = segments.find(offset)
            point = find_cut_point(target, offset, self.config)
            replays = self.producers.reaches(offset) or (
                target is not self.active.segment and has_transactions(target, offset)
            )
            self.truncations += 1
            epochs = epochs_after(segments, offset)
            self.begin_change()
            try:
                truncate_state(self.directory, offset)
                self.lineage.record_truncation(offset, point.tail, epochs)
            except (SawlogError, OSError):
                self.end_change()  # either nothing has changed or the log has failed
                raise
            kept = list(segments.all)
            kept = kept[: kept.index(target) + 1]
            try:
                # From here on the truncation can only be finished, by the next open. Hide the dropped part first.
                segments.cut(kept, offset, point.visible)
                delete_above(self.directory, target.base_offset)
                kept[-1] = truncate_segment(self.directory, self.config, point)
                if replays:
                    self._replay(kept)
                else:
                    self.producers.transactions.begin_segment(target.base_offset)
                self.adopt(kept)
            except BaseException as error:
                self.commit.fail(error)
                raise
            self.end_change()
        segments.wake()
        return following - offset

    def adopt(self, segments: Iterable[Segment]) -> None:
        """Continue with these segments, all of them durable. The caller is `exclusive`."""
        self.active.adopt(segments, within_append=self.blocks.current is not None)
        self.save_if_possible()

    def resume(self, held: Lock, active: Segment | None) -> None:
        """Continue under a newly taken lock. `active` is the active segment with the batches that other processes have
        appended, all of them durable; None if there are none. Only for logs whose writers take turns: see
        shared.py."""
        with self.lock, self.active.lock:
            self.held = held
            if active is not None:
                within = self.blocks.current is not None
                self.active.adopt([*self.segments.all[:-1], active], within_append=within)

    def save_producers(self, *, durable: bool = True) -> None:
        """Write the current producer state. No-op during an append, which may be rolled back."""
        if self.blocks.current is None:
            self.producers.expire(now_ms())
            content = self.producers.encode(self.active.segment.tail[0], self.watermarks.epoch)
            self.directory.replace(PRODUCERS, content, durable=durable)

    def save_if_possible(self) -> None:
        """Write the producer state and the checkpoint. Best effort: the older files stay valid, and appends report a
        full disk."""
        try:
            with self.commit.failing_on_sync_error():
                self.save_producers()
                self.checkpoints.save(clean=False)
        except SyncFailed:
            raise
        except StorageError as error:
            self.checkpoints.note_error(error)

    def _save_in_time(self) -> None:
        """Write the durable watermark if it has moved. Runs in a background thread."""
        if not self.closed and self.held.held and self.commit.failure is None and self._unfinished != _CHANGE:
            self.checkpoints.save_if_moved()

    def close(self) -> None:
        """Sync, write the indexes of the active segment, and mark the log as closed cleanly."""
        if self.closed:
            self._release()  # an interrupt may have prevented it in the first call
            return
        self.maintenance_lock.end()
        with self.lock:
            try:
                for spool in list(self.spools):
                    spool.discard()
                if self.held.held and self.commit.failure is None:
                    self._resolve_unfinished()
                if self.held.held and self.commit.failure is None:
                    self.active.truncate_leftover()
                    self.active.unclaim()
                    if self.active.needs_sync:
                        self.active.sync_now()
                    self.commit.ensure_durable(self.active.segment.tail[0])
                    # Including a complete batch that an interrupted append left at the end.
                    self.active.resume(within_append=self.blocks.current is not None)
                    self.watermarks.mark_synced(self.active.tail, self.active.tail)
                    self._save_caches()
                    self.checkpoints.save(clean=True)
            finally:
                self.closed = True
                self._release()
        self.segments.wake()

    def _release(self) -> None:
        """Release the writer's lock first: after an interrupt, the rest is released with the object. Safe to call
        twice."""
        self.held.release()
        self.segments.close()
        self.watermarks.visible.close()

    def _save_caches(self) -> None:
        """Write the index and the producer state on close, without syncing them: damage after a power cut is detected
        and costs a scan, and shared logs are closed often. Skipped on a full disk."""
        try:
            self.active.segment.write_index(durable=False)
            self.save_producers(durable=False)
        except StorageError as error:
            self.checkpoints.note_error(error)
            self.active.segment.remove_index()

    def abandon(self) -> None:
        """Close everything without writing: the files are deleted, or closing cleanly failed."""
        self.closed = True
        self.checkpoints.end()
        self._release()
