"""Places batches: the only code that makes a log grow.

A batch is finished before it gets here. Under the lock it is checked, given its offsets and the leader epoch, written
after the last one and added to the index. When the whole append is placed it counts as written (`appended`); then,
outside the lock, the durability policy decides whether the caller waits. What is visible follows what is durable under
"always", else what is written (see visible.py): a reader that sees the new end finds everything else in place.

    durable_offset <= visible_offset <= written_offset <= next_offset

Within `appending` several placements are one append: none of them counts before all do, and if one fails all are rolled
back. So nothing that may be rolled back is ever durable, visible or written.

An interrupt (a signal handler that raises, Ctrl-C) may come between any two lines. An append records what it is about
to do before it writes (`_unfinished`); if it is interrupted, it is finished if it already counts, else rolled back,
immediately or by the next holder of the lock.

The parts of an appender: the segment that is written to, also when a write fails (active.py), the ends of the log
(marks.py), the checkpoint (checkpointer.py), the encoders (encoders.py) and the turns of upkeep (upkeeping.py).
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
from ..batch.build import NOBODY, Encoded, Producer, Recipe
from ..batch.header import BASE, LAST, MAX_TIME, POSITION, SIZE, Rows
from ..batch.inputs import GivenRecord, refuse
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
from ..storage.forking import forkable, in_children
from .active_segment import Active
from .append_block import Appending, OpenAppends, Settled
from .checkpointer import Checkpointer, History
from .commit import Settling
from .encoding import Encoders, recipe_of
from .files import PRODUCERS
from .index import MAX_SPAN
from .lock import UpkeepTurns
from .maintenance_state import retreat_state
from .producers import ProducerState, after_cut, has_transactions
from .segment import Segment
from .segments import SegmentSet
from .truncation import cut, cut_at, delete_above, epochs_after

if TYPE_CHECKING:
    from .streams import Spool
    from .writer import Writer


class Answer:
    """Where a batch was placed, for a caller that an interrupt may prevent from getting the result."""

    __slots__ = ("placed",)

    def __init__(self) -> None:
        self.placed: range | None = None

    def give(self, placed: range) -> range:
        """It is placed there."""
        self.placed = placed
        return placed


#: The producer of a batch, its first and last offset, and the placement for a caller that may ask again.
_Batch = tuple[Producer, int, int, Answer | None]


def check_expected(expected: int | None, offset: int) -> None:
    """Optimistic concurrency: raise unless the next offset is the expected one."""
    if expected is None:
        return
    if isinstance(expected, bool) or not isinstance(expected, int):
        raise InvalidRecordType(f"expect_offset must be an integer, not {expected!r}")
    if expected != offset:
        raise OffsetMismatch(expected, offset)


_CHANGE: Final = "change"
#: A stream may be this long to be appended like any other record, unless segments are small.
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
        "cuts",
        "directory",
        "encoders",
        "held",
        "history",
        "lock",
        "marks",
        "producers",
        "segments",
        "settling",
        "spools",
        "stream_encoders",
        "streaming",
        "upkeep",
        "usual",
        "writers",
    )
    closed: bool
    #: What `place` is doing: the segment, its tail before, and what to record of the batch. Or `_CHANGE`: files are
    #: being changed in a way that only the next open can finish.
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
        self._know(producers)
        self.held = held
        # A log that is dropped without `close` releases its lock when it is collected.
        weakref.finalize(self, held.release).atexit = False
        #: Re-entrant: a streaming append and a truncation hold it over several steps.
        self.lock = forkable(threading.RLock())
        self.active = Active(directory, config, segments, self.save_if_possible)
        self.marks = self.active.marks
        self.commit = self.marks.commit
        self.checkpoints = Checkpointer(directory, segments, self.marks)
        self.encoders = Encoders(recipe_of(config))
        #: For streams, which are not compressed, and to which the limit for records does not apply.
        self.stream_encoders = Encoders(replace(self.encoders.recipe, codec=0, max_record_bytes=0))
        self.upkeep = UpkeepTurns(directory, self._check_alive, self._is_kept, lent=lent)
        self.history = History(segments, self.marks, self.checkpoints)
        self.settling = Settling(self.commit, self.waits)
        self.blocks = OpenAppends(self.lock, self.take_back, self.appended)
        self._unfinished = None
        self._rolling_back = False
        self.closed = False
        #: How often the log was truncated: upkeep must not record what was true before.
        self.cuts = 0
        #: Held during a streaming append: its chunks come from code that must not change the log. A lock, because no
        #: interrupt can come between the end of its `with` and its release.
        self.streaming = forkable(threading.Lock())
        #: Open writers: closing the log flushes them first.
        self.writers: set[Writer] = set()
        #: Files that collect async streams; closing the log discards them.
        self.spools: set[Spool] = set()
        #: Appends in one call of the kernel, where all is as usual. Not if they wait for the disk, or the storage is
        #: not a file of the system.
        self.usual = self._usual_appends()
        # Nothing is published yet: `take_over` does it when the epoch is known.
        known, end = self.marks.visible.before, self.marks.written[0]
        segments.show(end if known is None else min(known[0], end))
        if isinstance(config.durability, Interval):
            background.every(config.durability.ms / 1000, self._sync_in_time)
        background.every(config.checkpoint_interval_ms / 1000, self._save_in_time)

    def _know(self, producers: ProducerState) -> None:
        """This is what producers have written."""
        self.producers = producers
        transactions = producers.transactions
        self.segments.outlook.replace(transactions)
        if transactions.open or transactions.reached >= 0:
            self.segments.unsettle()

    def _usual_appends(self) -> kernel.UsualAppends | None:
        recipe, policy = self.encoders.recipe, self.config.durability
        on_files = isinstance(self.active.segment.storage, kernel.FileFields)
        if not kernel.COMPILED or policy == "always" or not on_files:
            return None
        builder = kernel.BatchBuilder(refuse, max_total=recipe.max_batch_bytes, capacity=2 * kernel.SMALL_CRC_BYTES)
        made = kernel.UsualAppends(
            self,
            self.marks.visible,
            builder,
            NOBODY,
            recipe.append_time,
            recipe.max_record_bytes if recipe.codec == 0 else -1,
            policy.bytes if isinstance(policy, Interval) else -1,
            self.short_bytes,
        )
        in_children(made)
        return made

    def _is_held(self) -> bool:
        """Whether the calling thread holds the lock."""
        return self.lock._is_owned()  # type: ignore[attr-defined, no-any-return]

    def _is_kept(self) -> bool:
        """As `_is_held`, after ending a block that an interrupt has prevented from releasing the lock."""
        if self._is_held():
            self.check_open()
        return self._is_held()

    @property
    def short_bytes(self) -> int:
        """A stream of up to this many bytes is appended like any other record."""
        return min(_SHORT_BYTES, self.config.segment_bytes // 4)

    @property
    def recipe(self) -> Recipe:
        """How batches for this log are made."""
        return self.encoders.recipe

    def check_failure(self) -> None:
        """Raise if the log has failed."""
        self.commit.check()

    @property
    def _active(self) -> Segment:
        return self.active.segment  # its name before 0.3: scripts use it

    @property
    def is_busy(self) -> bool:
        """Whether something is open or in progress that `close` would end."""
        return (
            bool(self.writers or self.spools)
            or self.streaming.locked()
            or self.blocks.current is not None
            or self.upkeep.is_running
        )

    # --- placing

    def check_open(self) -> None:
        """Raise unless this log may write. The caller holds the lock."""
        self._check_alive()
        if self.streaming.locked():
            self.refuse_in_stream()
        if self._unfinished is not None:
            self._mend()
            self.commit.check()
        if self.active.cut_unsynced:  # an interrupt came while an append was being rolled back
            self.active.sync_now()
        if self.blocks.has_begun:
            if self.blocks.current is not None:
                self.blocks.end_abandoned()
            if self.blocks.current is None:
                self._count_again()

    def _count_again(self) -> None:
        """An interrupt came when a stream was complete but did not count yet, or did and was not visible yet."""
        if self.marks.written[0] < self.active.segment.tail[0]:
            segment = self.active.segment
            segment.use_index(segment.rebuild_index(segment.storage))
            self.appended()
        elif self.marks.shows_written and self.segments.visible_offset < self.marks.written[0]:
            self.marks.show(self.marks.written[0])

    def _check_alive(self) -> None:
        """Raise if the log is closed, belongs to the parent of a fork, or has failed. Needs no lock."""
        if self.closed:
            raise LogClosed(f"the log {self.directory.path} is closed")
        if not self.held.held:
            raise LogClosed(
                f"the log {self.directory.path} was opened by the parent process, before the fork; open it again here"
            )
        if self.commit.failure is not None:
            self.commit.check()

    def refuse_in_stream(self) -> None:
        """Raise if the chunks of a stream come from code that changes the log. The caller holds the lock, so this can
        only be the stream itself."""
        if self.streaming.locked():
            raise InvalidRecord("a stream must not change or close the log that it is appended to")

    def place(
        self,
        batch: Encoded,
        expect_offset: int | None = None,
        producer: Producer = NOBODY,
        answer: Answer | None = None,
    ) -> range:
        """Give one finished batch the next offsets and write it. A caller that would ask again after an interrupt
        passes an `answer`, which has the offsets from the moment at which the batch counts."""
        if self.usual is not None and expect_offset is None and producer.id < 0:
            placed: int = self.usual.place(batch, answer)
            if placed >= 0:
                return range(placed, placed + batch.count)
        data, count, active, marks = batch.data, batch.count, self.active, self.marks
        with self.lock:
            if (
                self.closed
                or self.streaming.locked()
                or self._unfinished is not None
                or active.cut_unsynced
                or self.blocks.current is not None
                or not self.held.held
                or self.commit.failure is not None
            ):
                self.check_open()
            if answer is not None and answer.placed is not None:
                return answer.placed
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
                segment = active.room(len(data), count, batch.max_timestamp)
                before = segment.tail
            size = before[1]
            kernel.patch_place(data, 0, offset, marks.epoch)
            self._unfinished = segment, before, (producer, offset, last, answer)
            try:
                active.put(segment, data, last + 1)
                segment.index.add(last, size, len(data), batch.max_timestamp)
                if self.blocks.current is None:
                    marks.append((last + 1, segment.base_offset, size + len(data)))
                if producer.id >= 0:
                    self.producers.note(producer.id, producer.epoch, producer.sequence, offset, last, now_ms())
                if answer is not None:
                    answer.placed = range(offset, last + 1)
                self._unfinished = None
            except BaseException:
                self._mend()
                raise
        return range(offset, last + 1)

    def place_many(
        self, records: Iterable[GivenRecord], expect_offset: int | None = None, producer: Producer = NOBODY
    ) -> range:
        """Make a batch of these records and place it."""
        encoder = self.encoders.take()
        try:
            return self.place(encoder.many(records, producer), expect_offset, producer)
        finally:
            self.encoders.give_back(encoder)

    def _mend(self) -> None:
        """An append was interrupted: finish it if it counts, else roll it back. Can be interrupted and called again.
        The caller holds the lock."""
        if self._unfinished is None:
            return
        if self._unfinished == _CHANGE:
            self.commit.fail(InterruptedError("a change of the log's files was interrupted"))
            self._unfinished = None
            return
        segment, before, (producer, offset, last, answer) = self._unfinished
        if self.commit.failure is None:
            if self.marks.written[0] > last:
                if producer.id >= 0 and not self.producers.remembers(producer.id, last):
                    self.producers.note(producer.id, producer.epoch, producer.sequence, offset, last, now_ms())
                if answer is not None:
                    answer.placed = range(offset, last + 1)
                if self.marks.shows_written:
                    self.marks.show(self.marks.written[0])
            elif self._rolling_back or segment.tail is not before or segment.storage.size != before[1]:
                self._rolling_back = True  # an interrupt may come before the index is right again
                segment.go_back(before)
                self.active.undo(segment, before[1])
                segment.use_index(segment.rebuild_index(segment.storage))
                if self.producers.remembers(producer.id, last):
                    self._replay(self.segments.all)
        self._rolling_back = False
        self._unfinished = None

    def place_rows(self, data: memoryview, rows: Rows, expect_offset: int | None = None) -> range:
        """Place finished batches that are contiguous in a buffer of ours; all of them or none."""
        with self.appending() as first:
            check_expected(expect_offset, first)
            self.check_sizes(rows)
            start = 0
            while start < len(rows):
                start = self._place_run(data, rows, start)
            return range(first, self.active.segment.tail[0])

    def appending(self) -> Appending:
        """One append of several parts: they count together, when the outermost block ends; if it raises, what was
        placed is rolled back. Returns the next offset; holds the lock."""
        return Appending(self, self.blocks)

    def settled_appending(self) -> Settled:
        """As `appending`; and when it ends the durability policy decides whether the caller waits."""
        return Settled(self, self.blocks)

    def appended(self) -> None:
        """A whole append is placed: it is kept, and counts. The caller holds the lock."""
        if self.blocks.current is not None:
            return
        self.marks.complete(self.active.tail)

    def begin(self) -> None:
        """Everything that had to be done before others may write is done: it counts now."""
        with self.lock:
            self.blocks.begin()
            self.appended()
            self.marks.show_all()

    @property
    def written_offset(self) -> int:
        """The end of the last complete append."""
        return self.marks.written[0]

    @property
    def is_between_appends(self) -> bool:
        """Whether everything that counts is visible, as far as the calling thread is concerned."""
        return self.marks.shows_written and self.blocks.has_begun and not self._is_held()

    def check_sizes(self, rows: Rows) -> None:
        """Raise unless each of these batches fits into a segment."""
        self.check_size(int(rows[:, SIZE].max()))

    def check_size(self, size_bytes: int) -> None:
        """Raise unless a batch of that size fits into a segment."""
        if size_bytes > self.config.segment_bytes:
            raise RecordTooLarge(
                f"a batch of {size_bytes:,} bytes does not fit into a segment of {self.config.segment_bytes:,} bytes; "
                "raise segment_bytes or send smaller batches"
            )

    def _place_run(self, data: memoryview, rows: Rows, start: int) -> int:
        """Place as many of the batches from `start` on as fit into one segment, in one write."""
        spans = rows[start:, LAST] - rows[start:, BASE] + 1
        segment = self.active.room(int(rows[start, SIZE]), int(spans[0]), int(rows[start, MAX_TIME]))
        offset, size = segment.tail
        fits = size + np.cumsum(rows[start:, SIZE]) <= max(self.config.segment_bytes, size + int(rows[start, SIZE]))
        fits &= offset - segment.base_offset + np.cumsum(spans) <= MAX_SPAN
        count = max(int(fits.sum()), 1)
        run = rows[start : start + count].copy()
        following = offset + np.cumsum(spans[:count])
        run[:, LAST], run[:, BASE] = following - 1, following - spans[:count]
        for position, base in run[:, (POSITION, BASE)].tolist():
            kernel.patch_place(data, position, base, self.marks.epoch)
        begin, end = int(run[0, POSITION]), int(run[-1, POSITION] + run[-1, SIZE])
        self.active.put(segment, data[begin:end], int(following[-1]))
        segment.index.add_rows(run, size - begin)
        self.note_rows(run)
        return start + count

    def note_rows(self, rows: Rows) -> None:
        """Take note of what producers have written, before it counts."""
        transactions = self.producers.transactions
        if self.segments.unsettled:
            transactions.see(self.segments.visible_offset)
        self.producers.note_rows(rows, now_ms())
        if transactions.reached >= 0:
            self.segments.unsettle()  # before it is visible

    def _replay(self, segments: Sequence[Segment]) -> None:
        """Something that producers have written is gone."""
        lowest, visible = self.segments.lowest_offset, self.segments.visible_offset
        epochs, expiry_ms = self.segments.epochs, self.config.producer_expiry_ms
        self._know(after_cut(self.directory, epochs, segments, expiry_ms, lowest=lowest, visible=visible))

    def take_back(self, offset: int) -> None:
        """An append of several batches failed half-way: cut off what it had placed."""
        if self.active.segment.tail[0] != offset and self.commit.failure is None:
            try:
                # The first batch of an empty log may begin below its start: see keeping.py.
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

    def waits(self) -> bool:
        """Whether an append waits for the disk by now."""
        policy = self.config.durability
        return policy == "always" or (policy != "os" and self.active.unsynced_bytes >= policy.bytes)

    def settle(self, offset: int) -> None:
        """Do what the policy requires before an append that ended at `offset` is acknowledged."""
        if self.waits() and (self.blocks.current is None or not self._is_held()):  # a part of an append is not
            self.commit.ensure(offset)

    def sync(self) -> None:
        """Make everything durable that is written now; also while another thread streams."""
        self._check_alive()
        self.commit.ensure(self.segments.next_offset)

    def _sync_in_time(self) -> None:
        """Called by the background, for the interval policy."""
        if not self.closed and self.held.held and self.commit.failure is None:
            try:
                self.commit.ensure(self.segments.next_offset)
            except (SawlogError, OSError):
                pass  # the log has failed; the next append raises the error

    # --- the list of segments, and the small files

    def seal(self) -> None:
        """Rotate now, if there is anything to seal."""
        with self.lock:
            self.check_open()
            if self.active.segment.tail[1]:
                self.active.rotate()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Block appends and syncs: for changes of the list of segments."""
        with self.lock, self.active.lock, self.commit.ending_on_failed_sync():
            self.check_open()
            yield

    def begin_change(self) -> None:
        """Files are about to be changed in a way that cannot be undone, only finished at the next open. Said before, so
        that no interrupt can prevent it: whoever finds that the change has not ended ends writing."""
        self._unfinished = _CHANGE

    def end_change(self) -> None:
        """It is complete, or completely undone."""
        self._unfinished = None

    def truncate(self, offset: int) -> int:
        """Keep the records below `offset` and return how many were dropped. See cutting.py."""
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
            point = cut_at(target, offset, self.config)
            replays = self.producers.reaches(offset) or (
                target is not self.active.segment and has_transactions(target, offset)
            )
            self.cuts += 1
            epochs = epochs_after(segments, offset)
            self.begin_change()
            try:
                retreat_state(self.directory, offset)
                self.history.retreat(offset, point.tail, epochs)
            except (SawlogError, OSError):
                self.end_change()  # nothing has changed, or the log has failed
                raise
            kept = list(segments.all)
            kept = kept[: kept.index(target) + 1]
            try:
                # From here on it cannot be undone, only finished at the next open. First hide what will be dropped.
                segments.cut(kept, offset, point.visible)
                delete_above(self.directory, target.base_offset)
                kept[-1] = cut(self.directory, self.config, point)
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
        """Continue with another list of segments, all of it durable; the caller is `exclusive`."""
        self.active.adopt(segments, within_append=self.blocks.current is not None)
        self.save_if_possible()

    def resume(self, held: Lock, active: Segment | None) -> None:
        """Continue under another lock; if other processes wrote meanwhile, with the active segment extended by that,
        all of it durable. Only for a log whose writers take turns: see `shared`."""
        with self.lock, self.active.lock:
            self.held = held
            if active is not None:
                within = self.blocks.current is not None
                self.active.adopt([*self.segments.all[:-1], active], within_append=within)

    def save_producers(self, *, durable: bool = True) -> None:
        """Write the producers' state as of now. Not during an append, which may be rolled back."""
        if self.blocks.current is None:
            self.producers.expire(now_ms())
            content = self.producers.encode(self.active.segment.tail[0], self.marks.epoch)
            self.directory.replace(PRODUCERS, content, durable=durable)

    def save_if_possible(self) -> None:
        """Caches and a watermark: without them the older ones stay valid, and appends will report a full disk."""
        try:
            with self.commit.ending_on_failed_sync():
                self.save_producers()
                self.checkpoints.save(clean=False)
        except SyncFailed:
            raise
        except StorageError as error:
            self.checkpoints.note_error(error)

    def _save_in_time(self) -> None:
        """Called by the background: a watermark that moved is written, also when nothing was appended since."""
        if not self.closed and self.held.held and self.commit.failure is None and self._unfinished != _CHANGE:
            self.checkpoints.save_if_moved()

    def close(self) -> None:
        """Sync, write the indexes of the active segment, and mark the log as closed cleanly."""
        if self.closed:
            self._let_go()  # an interrupt may have prevented it in the first call
            return
        self.upkeep.end()
        with self.lock:
            try:
                for spool in list(self.spools):
                    spool.discard()
                if self.held.held and self.commit.failure is None:
                    self._mend()
                if self.held.held and self.commit.failure is None:
                    self.active.tidy()
                    self.active.unclaim()
                    if self.active.cut_unsynced:
                        self.active.sync_now()
                    self.commit.ensure(self.active.segment.tail[0])
                    # Also what an interrupted append left, complete, at the end.
                    self.active.resume(within_append=self.blocks.current is not None)
                    self.marks.sync(self.active.tail, self.active.tail)
                    self._save_caches()
                    self.checkpoints.save(clean=True)
            finally:
                self.closed = True
                self._let_go()
        self.segments.wake()

    def _let_go(self) -> None:
        """Release the lock first: if an interrupt comes, the rest is released with the object. Safe to call twice."""
        self.held.release()
        self.segments.close()
        self.marks.visible.close()

    def _save_caches(self) -> None:
        """When the log is closed. A power cut that damages them is detected and costs a scan, so nothing is synced: a
        log whose processes take turns is closed often. On a full disk they are omitted."""
        try:
            self.active.segment.write_index(durable=False)
            self.save_producers(durable=False)
        except StorageError as error:
            self.checkpoints.note_error(error)
            self.active.segment.remove_index()

    def abandon(self) -> None:
        """The files are deleted: close everything without writing."""
        self.closed = True
        self.checkpoints.end()
        self._let_go()
