"""Placing batches: the only code that makes a log grow.

A batch arrives encoded. Under the log's lock, `Appender.place` checks it, assigns its offsets and leader epoch, writes
it at the end of the active segment and indexes it. Once the whole append is placed it counts as written
(`complete_append`); then, outside the lock, the durability policy decides whether the caller blocks until the bytes are
synced. Records become visible when they are durable under "always", otherwise when they are written (see
durability.py). A reader that sees the new end finds everything else in place.

    durable_offset <= visible_offset <= written_offset <= next_offset

Within `appending`, several placements form one append: they count together, and if one fails all are rolled back. So a
record that may still be rolled back is never durable, visible or written.

**Failures and interrupts.** An exception may come between any two lines: a full disk, Ctrl-C, another signal handler
that raises. There is one rule. A change records the previous end of the log before it begins
(`ActiveSegment.unfinished`) and clears it when it is complete. If it is still recorded when the change is over, or when
the next caller takes the lock, `Appender.recover` brings the log to a defined state: an append that counts as written
stays, any other is removed durably, and what describes the tail in memory is rebuilt from the file.

Next: the compiled part of placing (batch/kernel/placing.py), the active segment (active_segment.py), group commit and
visibility (durability.py), the checkpoint (checkpointer.py), encoders and writers (writer.py), the maintenance lock
(lock.py).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import FrameType, GeneratorType, TracebackType
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from .. import background
from ..batch import kernel
from ..batch.build import NO_PRODUCER, Encoded, EncoderOptions, Producer
from ..batch.header import BASE, LAST, MAX_TIME, POSITION, SIZE, Rows
from ..batch.inputs import RecordInput, record_error
from ..clock import Deadline, Stopwatch, now_ms
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
from .active_segment import (
    CHANGE,
    ActiveSegment,
    delete_above,
    epochs_after,
    find_cut_point,
    truncate_segment,
)
from .batches import MAX_SPAN
from .catching_up import after_cut, catch_up
from .checkpointer import Checkpointer, LogLineage
from .durability import DurabilityCallbacks, Tail
from .files import PRODUCERS
from .lock import MaintenanceLock
from .maintenance_state import truncate_state
from .producers import ProducerState, has_transactions
from .segment import Segment
from .segments import SegmentSet
from .turns import TURN_S, WANTED_AT, let_others_go_first
from .writer import EncoderPool, Placement, Writer, recipe_of

if TYPE_CHECKING:
    from .recovery import Recovered
    from .streams import Spool


def check_expected(expected: int | None, offset: int) -> None:
    """Raise `OffsetMismatch` unless the next offset is the expected one (optimistic concurrency)."""
    if expected is None:
        return
    if isinstance(expected, bool) or not isinstance(expected, int):
        raise InvalidRecordType(f"expect_offset must be an integer, not {expected!r}")
    if expected != offset:
        raise OffsetMismatch(expected, offset)


#: Appends of `on_lock`, before the log is opened to other writers.
_BEGINNING = "beginning"
_CONTEXTLIB = contextlib.__file__
#: Time for which a sync that needs a turn waits for the log's lock before it looks again.
_LOCK_RETRY_S = 0.001
#: Time for which a process that has seen others write expects them to go on.
_CONTENTION_S = 0.1


class TurnOwner(Protocol):
    """What takes the lock of a log for the next turn of its `Appender`. Both calls are made under the log's lock."""

    def park(self, appender: Appender) -> None:
        """Called at the end of a turn, before the lock is released."""

    def rejoin(self, appender: Appender) -> None:
        """Wait for the lock and continue."""


class Appender(kernel.AppenderFields):
    """The writing half of a log."""

    __slots__ = (
        "_contended",
        "_gives_way",
        "_past",
        "_saved",
        "_turns",
        "active",
        "checkpoints",
        "config",
        "directory",
        "disowned",
        "durability",
        "durability_callbacks",
        "encoders",
        "has_begun",
        "held",
        "lineage",
        "lock",
        "maintenance_lock",
        "owner",
        "parked",
        "pinned",
        "placer",
        "producers",
        "segments",
        "spools",
        "stream_encoders",
        "streaming",
        "truncations",
        "turn",
        "writers",
    )
    closed: bool
    #: The append that has not placed all of its parts: an `OpenBlock`; before `begin`, what `on_lock` appends; or None.
    block: object

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
        self.durability = self.active.durability
        self.durability.sync_with(self._sync)
        self.checkpoints = Checkpointer(directory, segments, self.durability)
        self.encoders = EncoderPool(recipe_of(config))
        #: For streams, which are not compressed and are exempt from `max_record_bytes`.
        self.stream_encoders = EncoderPool(replace(self.encoders.recipe, codec=0, max_record_bytes=0))
        self.maintenance_lock = MaintenanceLock(
            directory, self._check_alive, self._holds_lock, lambda: self.owner is not None, lent=lent
        )
        self.lineage = LogLineage(segments, self.durability, self.checkpoints)
        self.durability_callbacks = DurabilityCallbacks(self.durability, self.must_sync)
        #: True if the log is open to other writers than `on_lock`.
        self.has_begun = False
        self.block = _BEGINNING
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
        #: What ends and begins the turns of this process; None if the lock is kept until the log is closed.
        self.owner: TurnOwner | None = None
        #: True between two turns: another process may have the lock, and the log may have grown.
        self.parked = False
        #: True if the last turn was ended for another process, and the number of such turns then.
        self._gives_way, self._turns = False, 0
        #: True if other processes have to examine the files after this turn.
        self.disowned = False
        #: Held, within the lock, by a caller that needs the turn to last.
        self.pinned = forkable(threading.RLock())
        #: What has to stay the same for other processes to catch up, the time since the start of the turn and since the
        #: last checkpoint of a turn, and when this process stops expecting others to write.
        self._past: object = None
        self._contended = Deadline(0.0)
        self.turn, self._saved = Stopwatch(), Stopwatch()
        self.placer = self._new_placer()
        self._show_known()
        if isinstance(config.durability, Interval):
            background.every(config.durability.ms / 1000, self._sync_in_time)
        background.every(config.checkpoint_interval_ms / 1000, self._save_in_time)

    def _show_known(self) -> None:
        """Show what the previous writer has published. `LogLineage.take_over` publishes once the epoch is known."""
        known, end = self.durability.previous, self.durability.written[0]
        self.segments.set_visible(end if known is None else min(known[0], end))

    def _set_producers(self, producers: ProducerState) -> None:
        """Use this producer state from now on."""
        self.producers = producers
        transactions = producers.transactions
        self.segments.transaction_view.replace(transactions)
        if transactions.open or transactions.reached >= 0:
            self.segments.mark_undecided()

    def _new_placer(self) -> kernel.Placer:
        recipe, policy = self.encoders.recipe, self.config.durability
        builder = kernel.BatchBuilder(
            record_error, max_total=recipe.max_batch_bytes, capacity=2 * kernel.SMALL_CRC_BYTES
        )
        made = kernel.Placer(
            self,
            builder,
            recipe.append_time,
            recipe.max_record_bytes if recipe.codec == 0 else -1,
            policy.bytes if isinstance(policy, Interval) else 0 if policy == "always" else -1,
            self.config.segment_bytes // 4,
        )
        notify_after_fork(made)
        return made

    def owns_lock(self) -> bool:
        """Return True if the calling thread owns the lock."""
        return self.lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def _holds_lock(self) -> bool:
        """As `owns_lock`, after ending a block whose release of the lock was interrupted."""
        if self.owns_lock():
            self.check_open()
        return self.owns_lock()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Block other threads, and processes that take turns, until the block ends."""
        with self.lock:
            self.check_open()
            with self.pinned:
                yield

    @property
    def recipe(self) -> EncoderOptions:
        """Encoding settings for batches of this log."""
        return self.encoders.recipe

    def check_failure(self) -> None:
        """Raise `LogFailed` if the log has failed."""
        self.durability.check()

    @property
    def is_busy(self) -> bool:
        """True if a writer, stream, append block or maintenance task is active that `close` would end."""
        return (
            bool(self.writers or self.spools)
            or self.streaming.locked()
            or self.block is not None
            or self.maintenance_lock.is_running
        )

    # --- placing

    def check_open(self) -> None:
        """Raise unless this log may write. The caller holds the lock."""
        if self.owner is not None:
            self._take_turn(self.owner)
        self._check_alive()
        if self.streaming.locked():
            self.refuse_in_stream()
        if self.block is not None:
            self._end_abandoned()
        if self.active.unfinished is not None:
            self.recover()
            self.durability.check()

    def _end_abandoned(self) -> None:
        """Roll back blocks whose `__exit__` an interrupt has prevented."""
        while isinstance(self.block, OpenBlock) and not self.block.is_running():
            self.roll_back(self.block)

    def _check_alive(self) -> None:
        """Raise if the log is closed, was inherited through a fork, or has failed. Needs no lock."""
        if self.closed:
            raise LogClosed(f"the log {self.directory.path} is closed")
        if not self.held.held and not self.parked:
            raise LogClosed(
                f"the log {self.directory.path} was opened by the parent process, before the fork; open it again here"
            )
        if self.durability.failure is not None:
            self.durability.check()

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
        placer = self.placer
        if expect_offset is None and producer.id < 0:
            first: int = placer.place(batch, placement)
            if first >= 0:
                return range(first, first + batch.count)
        with self.lock:
            self.check_open()
            if placement is not None and placement.placed is not None:
                return placement.placed
            check_expected(expect_offset, self.active.segment.tail[0])
            noted = None
            if producer.id >= 0:
                known = self.producers.duplicate(producer.id, producer.epoch, producer.sequence, batch.count)
                if known is not None:
                    return known
                noted = producer
            try:
                first = placer.write(batch, placement, noted, False)
                if first < 0:
                    self.active.make_room(len(batch.data), batch.count, batch.max_timestamp)
                    first = placer.write(batch, placement, noted, True)
            except BaseException as error:
                self.recover(error)
                raise
        return range(first, first + batch.count)

    def note_producer(self, producer: Producer, first: int, last: int) -> None:
        """Record a producer's batch, before it counts as written."""
        self.producers.note(producer.id, producer.epoch, producer.sequence, first, last, now_ms())

    def place_many(
        self, records: Iterable[RecordInput], expect_offset: int | None = None, producer: Producer = NO_PRODUCER
    ) -> range:
        """Encode these records as one batch and place it."""
        encoder = self.encoders.take()
        try:
            return self.place(encoder.many(records, producer), expect_offset, producer)
        finally:
            self.encoders.give_back(encoder)

    def recover(self, error: BaseException | None = None) -> None:
        """Complete a failed or interrupted change if it counts as written; otherwise roll it back. Can be interrupted
        and called again. The caller holds the lock."""
        active, durability = self.active, self.durability
        if isinstance(error, StorageError) and error.torn:
            durability.fail(error)
        unfinished = active.unfinished
        if unfinished == CHANGE:
            durability.fail(InterruptedError("a change of the log's files was interrupted"))
        elif unfinished is not None and durability.failure is None:
            offset, position, placement, reindex = (*unfinished, None, False)[:4]
            if durability.written[0] > offset:
                if durability.publishes_written:
                    durability.publish(durability.written[0])
            else:
                if placement is not None:
                    placement.withdraw()
                self._return_to(offset, position, placement, reindex=reindex)
        active.unfinished = None

    def _return_to(self, offset: int, position: int, placement: Placement | None, *, reindex: bool) -> None:
        """Remove everything from `offset` on, of which `position` is the place in its segment."""
        active, lowest = self.active, self.segments.lowest_offset
        try:
            with active.lock:
                if offset < active.segment.base_offset or offset < lowest < self.segments.next_offset:
                    # The first batch of an empty log may begin below its start: see ingest.py.
                    self._cut(max(offset, lowest))
                    return
                if offset == active.segment.base_offset:
                    position = 0  # a rotation came in between
                reindex = reindex or active.segment.tail != (offset, position)
                active.unfinished = offset, position, placement, reindex
                active.roll_back(offset, position, reindex=reindex)
                if self.producers.reaches(offset):
                    self._replay(self.segments.all)
        except (SawlogError, OSError) as error:
            self.durability.fail(error)

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
        return AppendBlock(self)

    def durable_appending(self) -> AppendBlock:
        """As `appending`, but the end of the block waits for the disk if the durability policy requires it."""
        return AppendBlock(self, settles=True)

    def complete_append(self) -> None:
        """Count everything placed as written, unless a block is open. The caller holds the lock."""
        if self.block is None:
            self.durability.complete(self.active.tail)

    def enter(self, block: OpenBlock) -> None:
        """Begin a block, which holds the lock until it ends."""
        self.block = block
        block.hold()

    def complete(self, block: OpenBlock) -> None:
        """End a block whose parts are all placed. The outermost one then counts as written."""
        try:
            if self.active.unfinished is not None:
                self.recover()
                self.durability.check()
            self.active.unfinished, self.block = block.tail, block.outer
            self.complete_append()
            self.active.unfinished = None
        except BaseException:
            self.block = block.outer
            self.recover()
            raise
        finally:
            block.release()

    def roll_back(self, block: OpenBlock) -> None:
        """Roll back and end a block."""
        left = self.active.unfinished
        if left != CHANGE:
            self.active.unfinished = (*block.tail, *(left or ())[2:])
        self.block = block.outer
        try:
            self.recover()
        finally:
            block.release()

    def abandon_block(self, block: OpenBlock) -> None:
        """Roll back a block that will never exit. Only in its own thread, which holds the lock."""
        if self.block is block and self.owns_lock():
            self.roll_back(block)

    def begin(self) -> None:
        """Open the log to other writers: count and publish what `on_lock` has appended."""
        with self.lock:
            self.block, self.has_begun = None, True
            self.complete_append()
            self.durability.publish_current()

    @property
    def written_offset(self) -> int:
        """End of the last complete append."""
        return self.durability.written[0]

    @property
    def is_between_appends(self) -> bool:
        """True if `written_offset` is the end of the log for the calling thread: it has no append open, and written
        records are visible."""
        return self.durability.publishes_written and self.has_begun and not self.owns_lock()

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
            kernel.patch_place(data, position, base, self.durability.epoch)
        begin, end = int(run[0, POSITION]), int(run[-1, POSITION] + run[-1, SIZE])
        self.active.write(data[begin:end], int(following[-1]))
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

    # --- durability

    @property
    def is_free(self) -> bool:
        """True if no other thread has the lock, and it is this process's turn."""
        if self.parked or not self.lock.acquire(blocking=False):
            return False
        self.lock.release()
        return True

    def must_sync(self) -> bool:
        """Return True if the policy requires an append to wait for the disk now."""
        return bool(self.placer.must_sync())

    def settle(self, offset: int) -> None:
        """Block until an append that ended at `offset` may be acknowledged under the durability policy."""
        if self.must_sync() and (self.block is None or not self.owns_lock()):
            self.durability.ensure_durable(offset)

    def sync(self) -> None:
        """Block until everything written so far is durable. Does not wait for a stream of another thread."""
        self._check_alive()
        self.durability.ensure_durable(self.segments.next_offset)

    def _sync_in_time(self) -> None:
        """Sync for the interval policy. Runs in a background thread."""
        if not self.closed and (self.held.held or self.parked) and self.durability.failure is None:
            try:
                self.durability.ensure_durable(self.segments.next_offset)
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
        with self.lock:
            self.check_open()
            with self.active.lock, self.durability.failing_on_sync_error():
                self.durability.check()  # again: a sync may have failed while this thread waited for it
                yield

    def begin_change(self) -> None:
        """Announce a change of the log's files that cannot be undone, only finished by the next open. If an interrupt
        prevents `end_change`, the next holder of the lock stops writing."""
        self.active.unfinished = CHANGE
        if self.owner is not None:
            self.durability.begin_generation()

    def end_change(self) -> None:
        """Record that the change is complete, or completely undone."""
        self.active.unfinished = None

    def truncate(self, offset: int) -> int:
        """Drop the records from `offset` on and return the number of offsets dropped. See active_segment.py."""
        with self.exclusive():
            segments = self.segments
            lowest, following = segments.lowest_offset, segments.next_offset
            if segments.log_start <= offset < lowest:
                raise InvalidConfig(
                    f"the log {self.directory.path} cannot be truncated to offset {offset}: the records below "
                    f"offset {lowest} are only in its replica, which is never truncated"
                )
            if not lowest <= offset <= following:
                raise OffsetOutOfRange(offset, lowest, following, self.directory.path)
            if offset == following:
                return 0
            self._cut(offset)
        segments.wake()
        return following - offset

    def _cut(self, offset: int) -> None:
        """Truncate the log, across segments. The caller is `exclusive`."""
        segments = self.segments
        if offset == segments.next_offset:
            return
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
            self.durability.fail(error)
            raise
        self.end_change()

    def adopt(self, segments: Iterable[Segment]) -> None:
        """Continue with these segments, all of them durable. The caller is `exclusive`."""
        self.active.adopt(segments, within_append=self.block is not None)
        self.save_if_possible()

    def resume(self, held: Lock, end: Tail) -> bool:
        """Continue under a newly taken lock, at the end to which other processes have appended; all of it is durable.
        Return False, without taking over the lock, if the log has to be opened again. Only for logs whose writers take
        turns: see shared.py."""
        with self.lock, self.active.lock:
            if self.active.tail != end and not self._catch_up(end):
                return False
            self.held = held
            self.placer.resume()
        return True

    def _catch_up(self, end: Tail) -> bool:
        """Learn what other processes have appended. The caller holds both locks."""
        segments, transactions = self.segments, self.producers.transactions
        if segments.maybe_undecided:
            transactions.see(segments.visible_offset)
        found = catch_up(segments.all, segments.epochs, self.producers, end)
        if found is None:
            return False
        if transactions.reached >= 0:
            segments.mark_undecided()  # before the batches become visible
        if found.epochs != segments.epochs:
            segments.begin_epoch(found.epochs)
            self.durability.begin_epoch(found.epochs.current)
        self.active.catch_up(found.segments)
        return True

    # --- turns

    def take_turns(self, owner: TurnOwner | None) -> None:
        """Take turns from now on; None: keep the lock until the log is closed."""
        self.owner = owner
        if owner is not None and self.durability.words is not None:
            self.durability.share()

    def forget_turns(self) -> None:
        """In a forked child: the turns are the parent's."""
        self.parked = False

    def disown(self) -> None:
        """Leave this turn unfinished."""
        self.disowned = True

    def begin_turn(self, *, in_order: bool) -> None:
        """Continue in the log as it was just opened. `in_order`: its last turn had ended."""
        words = self.durability.words
        if words is not None:
            if not in_order:
                self.durability.begin_generation(recovered=True)
            words.mark_in_use()
            self.durability.know_generation()
            self.placer.watch(words.view, WANTED_AT)
        self._past = self._state()
        self.turn.restart()

    def _state(self) -> object:
        """Return a value that appends and rotations do not change."""
        segments = self.segments
        return segments.version - self.active.rotations, segments.lowest_offset, segments.remote, segments.epochs

    def _take_turn(self, owner: TurnOwner) -> None:
        """Wait for this process's turn if it is between two; give way if another process waits and the turn has lasted
        long enough. The caller holds the lock."""
        words = self.durability.words
        if words is not None and words.is_wanted and self.turn.elapsed_s >= TURN_S:
            self.end_turn()
        if self.parked:
            owner.rejoin(self)

    def can_rejoin(self, *, at_once: bool) -> bool:
        """Wait until this process may compete for its next turn: others that it has ended the last one for go first,
        and its own fsync ends before it keeps them waiting again. With `at_once`, return False instead of waiting, and
        where the log has to be recovered."""
        words = self.durability.words
        if words is None or (at_once and (self._gives_way or not words.allows(self.durability.generation))):
            return False
        if not self.active.lock.acquire(blocking=not at_once):
            return False
        self.active.lock.release()
        if self._gives_way:
            let_others_go_first(words, self._turns)
        return True

    def end_turn(self) -> bool:
        """Give the lock back until the next append; return False if it is in use. The caller holds the lock."""
        words, owner = self.durability.words, self.owner
        if words is None or owner is None or self.parked or self.block is not None or self._is_pinned():
            return False
        if self.closed or not self.held.held or self.streaming.locked():
            return False
        if self.active.unfinished is not None or self.durability.failure is not None:
            return False
        try:
            self.active.truncate_leftover()
            if self._saved.elapsed_s * 1000 >= self.config.checkpoint_interval_ms:
                self._saved.restart()
                self.checkpoints.save_if_moved()
            self.durability.check()
        except (SawlogError, OSError):
            return False  # the log has failed: the next append raises the error
        if not self.active.lock.acquire(blocking=False):
            return False  # being synced: the background task, which looks at all turns, must not wait for the disk
        try:
            self.checkpoints.pause()
            self.placer.pause()
            self._gives_way, self._turns = words.is_wanted, words.turns
            self.parked = True
            self.durability.leave_turn()
            owner.park(self)
            self._finish_turn()
            self.held.release()
            if self._gives_way:
                words.announce_end()
        finally:
            self.active.lock.release()
        return True

    def _is_pinned(self) -> bool:
        return self.pinned._is_owned()  # type: ignore[attr-defined, no-any-return]

    def _finish_turn(self, *, clean: bool = False) -> None:
        """Tell other processes that everything is in order."""
        words = self.durability.words
        if words is not None and not self.disowned:
            if self._state() != self._past:
                self.durability.begin_generation()
            words.finish(self.active.tail, clean=clean)

    def continue_turn(self, held: Lock) -> bool:
        """Continue under a lock that was taken for another turn; return False if the log has to be opened again. The
        caller holds the lock of the log."""
        words = self.durability.words
        if words is None or words.generation != self.durability.generation:
            return False
        if words.end != self.active.tail:
            self._expect_others()
        if not self.resume(held, words.end):
            return False
        self.durability.enter_turn()
        self.checkpoints.resume(self.segments.epochs)
        if words.is_clean:
            self.checkpoints.save(clean=False)
            words.mark_in_use()
        self._past = self._state()
        self.turn.restart()
        self.parked = self._gives_way = False
        return True

    def reopen(self, held: Lock, found: Recovered, *, in_order: bool) -> None:
        """Continue with a log that was opened again under a lock that was taken for another turn. The caller holds the
        lock of the log, and calls `begin` once it has appended what has to come first."""
        segments, before = self.segments, self.segments.all
        with self.active.lock:
            self.held = held
            segments.set(found.segments)
            segments.set_remote(found.remote)
            segments.set_start(found.lowest_offset)
            segments.begin_epoch(found.epochs)
            self._set_producers(found.producers)
            self.truncations += 1
            self.active.restart(found.epochs.current, recovered=not in_order)
            self.durability.open_published(self.directory)
            self._show_known()
        for each in before:
            each.close()
        self.block, self.has_begun = _BEGINNING, False
        self.checkpoints.resume(found.epochs)
        self.lineage.take_over(clean=found.report.clean, in_order=found.epochs_in_order, stored=found.epochs_stored)
        self.begin_turn(in_order=in_order)
        self.parked = self._gives_way = False
        self.placer.resume()

    def _sync(self) -> int:
        """Sync the active segment for group commit, in a turn or between two. If other processes write too, end the
        turn first, so that they need not wait for the disk."""
        if self.owner is None or self.durability.words is None:
            return self.active.sync()
        if not self.parked and (self.durability.words.is_wanted or not self._contended.passed):
            self._end_turn_soon()
        while True:
            with self.active.lock:
                reached = self.durability.sync_among_others(self.active.sync)
            if reached >= 0:
                return reached
            # Learn in a turn what has become of the log. Another thread that has the lock may wait for this sync.
            if self.lock.acquire(timeout=_LOCK_RETRY_S):
                try:
                    self.end_turn()
                    self.check_open()
                finally:
                    self.lock.release()

    def _end_turn_soon(self) -> None:
        """End the turn, unless another thread is appending."""
        if self.lock.acquire(blocking=False):
            try:
                if self.durability.words is not None and self.durability.words.is_wanted:
                    self._expect_others()
                self.end_turn()
            finally:
                self.lock.release()

    def _expect_others(self) -> None:
        """Expect other processes to write soon."""
        self._contended = Deadline(_CONTENTION_S)

    def pause(self) -> None:
        """Refuse to append until `resume`: the lock is about to be released."""
        with self.lock:
            self.placer.pause()

    def save_producers(self, *, durable: bool = True) -> None:
        """Write the current producer state. No-op during an append, which may be rolled back."""
        if self.block is None:
            self.producers.expire(now_ms())
            content = self.producers.encode(self.active.segment.tail[0], self.durability.epoch)
            self.directory.replace(PRODUCERS, content, durable=durable)

    def save_if_possible(self) -> None:
        """Write the producer state and the checkpoint. Best effort: the older files stay valid, and appends report a
        full disk."""
        try:
            with self.durability.failing_on_sync_error():
                self.save_producers()
                self.checkpoints.save(clean=False)
        except SyncFailed:
            raise
        except StorageError as error:
            self.checkpoints.note_error(error)

    def _save_in_time(self) -> None:
        """Write the durable watermark if it has moved. Runs in a background thread."""
        if not self.closed and self.held.held and self.durability.failure is None and self.active.unfinished != CHANGE:
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
                if self.held.held:
                    self._end_abandoned()
                    self.recover()
                if self.held.held and self.durability.failure is None:
                    self.active.truncate_leftover()
                    self.active.unclaim()
                    self.durability.ensure_durable(self.active.segment.tail[0])
                    self.active.resume(within_append=self.block is not None)
                    self.durability.mark_synced(self.active.tail, self.active.tail)
                    self._save_caches()
                    self.checkpoints.save(clean=True)
                    self._finish_turn(clean=True)
            finally:
                self.closed = True
                self._release()
        self.segments.wake()

    def _release(self) -> None:
        """Release the writer's lock first: after an interrupt, the rest is released with the object. Safe to call
        twice."""
        self.held.release()
        self.segments.close()
        self.placer.watch(None, 0)
        self.durability.close(last=not self.parked)

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


class OpenBlock:
    """State of an entered block."""

    __slots__ = ("_frame", "_holding", "outer", "tail")

    def __init__(
        self, tail: tuple[int, int], outer: object, frame: FrameType | None, lock: AbstractContextManager[bool, None]
    ) -> None:
        #: End of the active segment when the block began.
        self.tail = tail
        #: The enclosing append.
        self.outer = outer
        self._frame = frame
        self._holding = cast("GeneratorType[None, None, None]", _holding(lock))

    def hold(self) -> None:
        """Take the log's lock until `release`, or until this object is garbage-collected."""
        next(self._holding)

    def release(self) -> None:
        """Release the lock if it is held."""
        self._holding.close()

    def is_running(self) -> bool:
        """Return True if the calling thread may be executing the block."""
        if not self._holding.gi_suspended:
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self._frame:
            frame = frame.f_back
        return frame is not None


class AppendBlock:
    """Context manager of several placements as one append, created by `Appender.appending` and used once.

    An interrupt may come just as the block ends, so that `__exit__` never runs. The append is then *abandoned* and has
    to be rolled back before any other append is acknowledged: when this object is garbage-collected, which is immediate
    unless it is referenced elsewhere (by a traceback, for example); otherwise at the next use of the log in this thread
    once the frame that entered the block no longer runs (`Appender.check_open`).
    """

    __slots__ = ("_appender", "_open", "_settles")

    def __init__(self, appender: Appender, *, settles: bool = False) -> None:
        self._appender = appender
        #: True if the end of the block waits for the disk if the durability policy requires it.
        self._settles = settles
        self._open: OpenBlock | None = None

    def __enter__(self) -> int:
        appender = self._appender
        with appender.lock:
            appender.check_open()
            tail = appender.active.segment.tail
            self._open = OpenBlock(tail, appender.block, _outside(sys._getframe(1)), appender.lock)
            appender.enter(self._open)
        return tail[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened = self._open
        if opened is None or self._appender.block is not opened:
            return  # abandoned, and already rolled back
        if kind is not None:
            self._appender.roll_back(opened)
            return
        self._appender.complete(opened)
        if self._settles:
            self._appender.settle(self._appender.written_offset)

    def __del__(self) -> None:
        opened = getattr(self, "_open", None)
        if opened is not None and not sys.is_finalizing():
            self._appender.abandon_block(opened)


def _holding(lock: AbstractContextManager[bool, None]) -> Generator[None]:
    """Hold a lock from the first `next` to `close`. A `with` in a generator, because no interrupt can come between the
    `with` and its lock, so that the state of the lock is always known."""
    with lock:
        yield


def _outside(frame: FrameType | None) -> FrameType | None:
    """Return the frame that entered a block, skipping `ExitStack`, which enters it for its caller."""
    while frame is not None and frame.f_code.co_filename == _CONTEXTLIB:
        frame = frame.f_back
    return frame
