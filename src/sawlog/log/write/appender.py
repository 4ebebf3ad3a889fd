"""Placing batches: the only code that makes a log grow.

A batch is finished before it gets here. Under the lock it is checked, given its offsets and the leader epoch, written
after the last one and entered into the index. When the whole append is placed it counts as written (`appended`); then,
outside the lock, the durability policy decides whether the caller waits. What is visible follows what is durable under
"always", else what is written (see visible.py): a reader that sees the new end finds everything else in place.

    durable_offset <= visible_offset <= written_offset <= next_offset

Within `appending` several placements are one append: none of them counts before all do, and if one fails all are taken
back. So nothing that may be taken back is ever durable, visible or written.

An interrupt (a signal handler that raises, Ctrl-C) may come between any two lines. An append notes what it is about to
do before it writes (`_unfinished`); if it does not get to its end, it is finished if it counts already, else taken
back, at once or by whoever holds the lock next.

If the write fails, what it left behind is cut off again, durably, and the log goes on. If that fails too, or an fsync
fails, the log has *failed*: appends raise, reads go on, and reopening recovers.

Rotation: sync the segment, write its indexes, note what is durable, create the next segment, sync the directory.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ...batch import kernel
from ...batch.build import MAX_BATCH_BYTES, NOBODY, Encoded, Encoder, Producer, Recipe
from ...batch.compression import codec_id
from ...batch.header import BASE, LAST, MAX_TIME, POSITION, SIZE, Rows
from ...config import MAX_SEGMENT_BYTES, Interval, LogConfig
from ...errors import (
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
from ...storage import Directory, Lock
from ...storage.forking import forkable
from ..files import checkpoint
from ..files.checkpoint import Checkpoint
from ..files.epochs import Epochs, store_epochs
from ..files.locking import is_wanted
from ..files.names import PRODUCERS, file_name
from ..files.state import retreat_state
from ..segment.index import MAX_SPAN, TIME_ENTRY_BYTES
from ..segment.segment import Segment
from ..segment.segments import SegmentSet
from . import background
from .appending import Appending, Open
from .commit import GroupCommit
from .cutting import cut, cut_at, delete_above, epochs_after
from .producers import ProducerState, replayed
from .visible import VisibleEnd

if TYPE_CHECKING:
    from .streams import Spool
    from .writer import Writer


class Answer:
    """Where a batch was placed, for somebody whom an interrupt may keep from being told."""

    __slots__ = ("placed",)

    def __init__(self) -> None:
        self.placed: range | None = None


#: What stands for an append that is no block: what is done before others may write, and taking one back.
_BEGINNING, _ENDING = "beginning", "ending"

#: Whose batch, its first and last offset, and who may ask for it again.
_Batch = tuple[Producer, int, int, Answer | None]


def _now() -> int:
    return time.time_ns() // 1_000_000


def check_expected(expected: int | None, offset: int) -> None:
    """Optimistic concurrency: raise unless the next offset is the expected one."""
    if expected is None:
        return
    if isinstance(expected, bool) or not isinstance(expected, int):
        raise InvalidRecordType(f"expect_offset is a number, not {expected!r}")
    if expected != offset:
        raise OffsetMismatch(expected, offset)


def recipe_of(config: LogConfig) -> Recipe:
    """How batches for a log with these settings are made."""
    codec = codec_id(config.compression)
    return Recipe(
        codec,
        config.compression_level,
        config.timestamp_type == "append",
        config.max_record_bytes or 0,
        # Compressed, a batch may start larger than a segment; how large it ends is seen when it is placed.
        MAX_BATCH_BYTES if codec else min(MAX_BATCH_BYTES, config.segment_bytes),
        config.max_decompressed_bytes,
    )


class Appender:
    """The writing half of a log."""

    def __init__(
        self,
        directory: Directory,
        config: LogConfig,
        segments: SegmentSet,
        producers: ProducerState,
        held: Lock,
    ) -> None:
        self.directory = directory
        self.config = config
        self.segments = segments
        self.producers = producers
        self.held = held
        # A log that is dropped without `close` lets the next writer in when it is collected.
        weakref.finalize(self, held.release).atexit = False
        #: Re-entrant: a streaming append and a truncation hold it over several steps.
        self.lock = forkable(threading.RLock())
        self.recipe = recipe_of(config)
        self._policy = config.durability
        self._shows_written = config.durability != "always"
        moved = self._show_written if self._shows_written else self._show
        self.commit = GroupCommit(self._sync_active, segments.next_offset, moved)
        self.visible = VisibleEnd(directory, segments)
        self._show_now = self.visible.show
        #: The leader epoch that batches get; `segments.epochs` has all of them.
        self.epoch = segments.epochs.current
        #: Those that the checkpoint names.
        self._noted = segments.epochs
        #: The append that is under way and has not placed all of its parts, if there is one. What `Log` does before
        #: anybody else may write (`on_lock`) is the first of them: `begin` ends it.
        self.open_append: object = _BEGINNING
        self._began = False
        #: What `place` is doing: the segment, its tail before, and what there is to be noted of the batch.
        self._unfinished: tuple[Segment, tuple[int, int], _Batch] | None = None
        #: Whether bytes were cut off that a power cut may bring back.
        self._cut_unsynced = False
        self.closed = False
        #: One piece of upkeep at a time; taken before `lock`, never while it is held.
        self.upkeep_lock = forkable(threading.Lock())
        #: Set when the log is about to close: upkeep ends where it is.
        self.closing = False
        #: Whether this only does upkeep, and ends that when somebody wants to write.
        self.lent = False
        #: How often the log was truncated: upkeep must not note down what was true before.
        self.cuts = 0
        #: Whether a streaming append is under way.
        self.streaming = False
        #: Open writers: closing the log flushes them first.
        self.writers: set[Writer] = set()
        #: Files that collect async streams; closing the log discards them.
        self.spools: set[Spool] = set()
        self._encoders: list[Encoder] = []
        #: Held while the active segment is synced or replaced: nobody closes a file that is being synced.
        self._sync_lock = forkable(threading.RLock())
        self._synced_bytes = 0
        self._written_bytes = 0
        #: The segment that has room for every batch that makes it no larger than this, and is no younger than that.
        self._roomy: tuple[Segment | None, int, int] = None, 0, 0
        self._saved = (-1, -1)
        self._saving = forkable(threading.Lock())
        self._ended = False
        #: Why the last watermark could not be written, if so. It costs nothing but the precision of recovery.
        self.checkpoint_error: StorageError | None = None
        self._active = segments.active
        #: Not where every append is synced: there, writing into reserved blocks was measured slower.
        self._reserves = config.durability != "always"
        #: (offset, segment, position): the end of the last whole append; of what is synced, whole or not; of what is
        #: both.
        self._written = self._synced = self._durable_tail = self._tail()
        # Nothing is published yet: `take_over` does, when it is known in which epoch.
        known = self.visible.before
        segments.visible_offset = self._written[0] if known is None else min(known[0], self._written[0])
        if isinstance(self._policy, Interval):
            background.every(self._policy.ms / 1000, self._sync_in_time)
        background.every(config.checkpoint_interval_ms / 1000, self._save_in_time)

    # --- encoders, kept because their buffers are warm

    def encoder(self) -> Encoder:
        """One to use and to give back with `keep`."""
        try:
            return self._encoders.pop()
        except IndexError:
            return Encoder(self.recipe)

    def keep(self, encoder: Encoder) -> None:
        """Back for the next one."""
        if len(self._encoders) < 8:
            self._encoders.append(encoder)

    # --- placing

    def check_open(self) -> None:
        """Raise unless this log may write. The caller holds the lock."""
        self._check_alive()
        if self.streaming:
            self.refuse_in_stream()
        if self._unfinished is not None:
            self._mend()
        if self._cut_unsynced:  # an interrupt came while an append was being taken back
            self.sync_held()
        if self.open_append is not None and self._began:
            self._end_abandoned()
        if self.open_append is None and self._began:
            self._count_again()

    def _count_again(self) -> None:
        """An interrupt came when a stream was whole and did not count yet, or did and was not shown yet."""
        if self._written[0] < self._active.tail[0]:
            self._active.use_index(self._active.rebuild_index(self._active.storage))
            self.appended()
        elif self._shows_written and self.segments.visible_offset < self._written[0]:
            self._show(self._written[0])

    def check_upkeep(self) -> None:
        """Raise if upkeep should not go on: the log is closed, closing or has failed."""
        self._check_alive()
        if self.closing:
            raise LogClosed(f"the log {self.directory.path} is being closed")
        if self.lent and is_wanted(self.directory):
            raise LogClosed(f"upkeep of {self.directory.path} ended early: somebody wants to write")

    @contextmanager
    def upkeeping(self) -> Iterator[None]:
        """One piece of upkeep. Not for who holds the log still: others' upkeep waits for that, and this for them."""
        if self.lock._is_owned():  # type: ignore[attr-defined]
            raise InvalidConfig("upkeep cannot be done while the log is held: call it outside `hold`")
        with self.upkeep_lock:
            self.check_upkeep()
            try:
                yield
            except StorageError:
                self.check_upkeep()  # the files of a log that was closed or removed meanwhile are no failure
                raise

    def end_upkeep(self) -> None:
        """Before the log is closed: let upkeep end, and wait until it has."""
        self.closing = True
        with self.upkeep_lock:
            pass

    def _check_alive(self) -> None:
        """Raise if the log is closed, belongs to the parent of a fork, or has failed. Needs no lock."""
        if self.closed:
            raise LogClosed(f"the log {self.directory.path} is closed")
        if not self.held.held:
            raise LogClosed(
                f"the log {self.directory.path} was opened by the process that this one was forked from; open it anew"
            )
        if self.commit.failure is not None:
            self.commit.check()

    def refuse_in_stream(self) -> None:
        """A stream's own chunks must not come from code that changes the log. The caller holds the lock, so that only
        the stream itself can be meant."""
        if self.streaming and self.held.held:  # not in a forked child, where that stream never ends
            raise InvalidRecord("a stream that is being appended must not change or close the log that it goes to")

    def place(
        self,
        batch: Encoded,
        expect_offset: int | None = None,
        producer: Producer = NOBODY,
        answer: Answer | None = None,
    ) -> range:
        """Give one finished batch the next offsets and write it. Who would ask again after an interrupt gives an
        `answer`, which has the offsets from the moment on at which the batch counts."""
        data, count = batch.data, batch.count
        with self.lock:
            if (
                self.closed
                or self.streaming
                or self._unfinished is not None
                or self._cut_unsynced
                or self.open_append is not None
                or not self.held.held
                or self.commit.failure is not None
            ):
                self.check_open()
            if answer is not None and answer.placed is not None:
                return answer.placed
            offset = self._active.tail[0]
            if expect_offset is not None:
                check_expected(expect_offset, offset)
            if producer.id >= 0:
                known = self.producers.duplicate(producer.id, producer.epoch, producer.sequence, count)
                if known is not None:
                    return known
            segment, last = self._active, offset + count - 1
            roomy, most_bytes, newest = self._roomy
            if (
                segment is not roomy
                or segment.tail[1] + len(data) > most_bytes
                or batch.max_timestamp > newest
                or last - segment.base_offset >= MAX_SPAN
            ):
                segment = self._room(len(data), count, batch.max_timestamp)
            before = segment.tail
            size = before[1]
            kernel.patch_place(data, 0, offset, self.epoch)
            self._unfinished = segment, before, (producer, offset, last, answer)
            try:
                self.put(segment, data, last + 1)
                segment.index.add(last, size, len(data), batch.max_timestamp)
                if self.open_append is None:
                    self._written = last + 1, segment.base_offset, size + len(data)
                    if self._shows_written:
                        self._show_now(last + 1, self.epoch)
                if producer.id >= 0:
                    self.producers.note(producer.id, producer.epoch, producer.sequence, offset, last, _now())
                if answer is not None:
                    answer.placed = range(offset, last + 1)
                self._unfinished = None
            except BaseException:
                self._mend()
                raise
        return range(offset, last + 1)

    def _mend(self) -> None:
        """An append did not get to its end: finish it if it counts, else take it back. Can be interrupted and called
        again. The caller holds the lock."""
        if self._unfinished is None:
            return
        segment, before, (producer, offset, last, answer) = self._unfinished
        if self.commit.failure is None:
            if self._written[0] > last:
                if producer.id >= 0 and not self.producers.remembers(producer.id, last):
                    self.producers.note(producer.id, producer.epoch, producer.sequence, offset, last, _now())
                if answer is not None:
                    answer.placed = range(offset, last + 1)
                if self._shows_written:
                    self._show(self._written[0])
            elif segment.tail is not before or segment.storage.size != before[1]:
                segment.tail = before
                self.undo(segment, before[1])
                segment.use_index(segment.rebuild_index(segment.storage))
                if self.producers.remembers(producer.id, last):
                    self.producers = replayed(list(self.segments.all), self.config.producer_expiry_ms)
        self._unfinished = None

    def place_rows(self, data: memoryview, rows: Rows, expect_offset: int | None = None) -> range:
        """Place finished batches that stand back to back in a buffer of ours; all of them or none."""
        with self.appending() as first:
            check_expected(expect_offset, first)
            self.check_sizes(rows)
            start = 0
            while start < len(rows):
                start = self._place_run(data, rows, start)
            return range(first, self._active.tail[0])

    def appending(self) -> Appending:
        """One append of several parts: they count together, when the outermost of these ends; if it raises, what was
        placed is taken back. Gives the next offset; holds the lock."""
        return Appending(self)

    def _end_abandoned(self) -> None:
        """Take back what blocks have placed whose end an interrupt has prevented. The caller holds the lock."""
        while isinstance(self.open_append, Open) and not self.open_append.is_running():
            self.end_abandoned(self.open_append)

    def end_abandoned(self, block: Open) -> None:
        """Take back what a block has placed that nobody will end. Only in its own thread: it holds the lock."""
        if self.open_append is not block or not self.lock._is_owned():  # type: ignore[attr-defined]
            return
        self.take_back_of(block)

    def take_back_of(self, block: Open) -> None:
        """Take back what a block has placed, and end it. If an interrupt prevents that the block stays, abandoned, and
        keeps the lock: the next call takes it back."""
        self.open_append = _ENDING
        try:
            self.take_back(block.first)
        except BaseException:
            block.frame, self.open_append = None, block
            raise
        self.open_append = block.around
        self.lock.release()  # the block's

    def appended(self) -> None:
        """A whole append is placed: it stays, and counts. The caller holds the lock."""
        if self.open_append is not None:
            return
        segment = self._active
        offset, size = segment.tail
        self._written = offset, segment.base_offset, size
        if self._shows_written:
            self.visible.show(offset, self.epoch)
        if self._synced[0] >= offset:  # it was synced before it was whole
            self._durable_tail = self._written
            self.commit.reached(offset)
        elif self._shows_written and self._synced > self._durable_tail:  # some of it was, by a rotation
            self._durable_tail = self._synced
            self.commit.reached(self._synced[0])

    def begin(self) -> None:
        """Everything that had to be done before others may write is done: what is there counts."""
        with self.lock:
            self.open_append, self._began = None, True
            self.appended()
            self._show(self._written[0] if self._shows_written else self.commit.durable_offset)

    def _show(self, offset: int) -> None:
        assert offset <= self._written[0], f"{offset} is durable, and only {self._written[0]} is written"
        self.visible.show(offset, self.epoch)

    def _show_written(self, offset: int) -> None:
        """What is durable moved, and the policy shows what is written."""
        assert offset <= self._written[0], f"{offset} is durable, and only {self._written[0]} is written"

    @property
    def written_offset(self) -> int:
        """The end of the last whole append."""
        return self._written[0]

    @property
    def is_between_appends(self) -> bool:
        """Whether all that counts is visible, as far as the calling thread is concerned."""
        return self._shows_written and self._began and not self.lock._is_owned()  # type: ignore[attr-defined]

    @property
    def has_begun(self) -> bool:
        """Whether everything that had to be done before others may write is done."""
        return self._began

    def check_sizes(self, rows: Rows) -> None:
        """Raise unless each of these batches fits into a segment."""
        largest = int(rows[:, SIZE].max())
        if largest > self.config.segment_bytes:
            raise RecordTooLarge(
                f"a batch of {largest:,} bytes does not fit into a segment of {self.config.segment_bytes:,}; "
                "raise segment_bytes or send smaller batches"
            )

    def _place_run(self, data: memoryview, rows: Rows, start: int) -> int:
        """Place as many of the batches from `start` on as fit into one segment, in one write."""
        spans = rows[start:, LAST] - rows[start:, BASE] + 1
        segment = self._room(int(rows[start, SIZE]), int(spans[0]), int(rows[start, MAX_TIME]))
        offset, size = segment.tail
        fits = size + np.cumsum(rows[start:, SIZE]) <= max(self.config.segment_bytes, size + int(rows[start, SIZE]))
        fits &= offset - segment.base_offset + np.cumsum(spans) <= MAX_SPAN
        count = max(int(fits.sum()), 1)
        run = rows[start : start + count].copy()
        following = offset + np.cumsum(spans[:count])
        run[:, LAST], run[:, BASE] = following - 1, following - spans[:count]
        for position, base in run[:, (POSITION, BASE)].tolist():
            kernel.patch_place(data, position, base, self.epoch)
        begin, end = int(run[0, POSITION]), int(run[-1, POSITION] + run[-1, SIZE])
        self.put(segment, data[begin:end], int(following[-1]))
        segment.index.add_rows(run, size - begin)
        self.producers.note_rows(run, _now())
        return start + count

    def take_back(self, offset: int) -> None:
        """An append of several batches failed half-way: cut off what it had placed."""
        if self._active.tail[0] != offset and self.commit.failure is None:
            try:
                # The first batch of an empty log may begin below its start: see keeping.py.
                self.truncate(max(offset, self.segments.lowest_offset))
            except (SawlogError, OSError) as error:
                self.commit.fail(error)

    def put(self, segment: Segment, data: memoryview, following: int) -> None:
        """Write bytes behind the segment's end and make them part of it; or leave it as it was."""
        before = segment.tail
        storage = segment.storage
        if storage.size != before[1]:  # an interrupt came while an earlier append was being taken back
            self.cut_back(segment, before[1])
        if self._reserves:
            storage.reserve(len(data))
        try:
            at = storage.append(data)
            assert at == before[1], f"{segment.path} ended at {at}, not at {before[1]}: somebody else writes to it"
            segment.tail = following, at + len(data)
        except BaseException as error:
            if isinstance(error, StorageError) and error.torn:
                self.commit.fail(error)
            elif segment.tail is before:  # also after an interrupt: the bytes may be there already
                self.undo(segment, before[1])
            raise
        self._written_bytes += len(data)

    def undo(self, segment: Segment, size: int) -> None:
        """After an append that failed, whatever the reason: take back what it left, durably. No power cut may bring
        back what somebody is about to be told is not stored."""
        self._cut_unsynced = True
        self.cut_back(segment, size)
        try:
            self.sync_held()
        except (SawlogError, OSError):
            pass  # writing has ended; what is raised is what came first

    def cut_back(self, segment: Segment, size: int) -> None:
        """Take back bytes that were written behind the segment's end; if that fails, writing ends."""
        try:
            if segment.storage.size > size:
                segment.storage.truncate(size)
        except StorageError as error:
            self.commit.fail(error)

    def _room(self, size_bytes: int, count: int, timestamp: int) -> Segment:
        """The active segment, after rotation if this batch does not belong into it any more."""
        segment = self._active
        offset, size = segment.tail
        config = self.config
        if size_bytes > config.segment_bytes:
            raise RecordTooLarge(
                f"a batch of {size_bytes:,} bytes does not fit into a segment of {config.segment_bytes:,}; raise "
                "segment_bytes, append fewer records at once, or stream the record with append_stream"
            )
        if size == 0:
            return segment
        age = config.segment_age_ms
        if (
            size + size_bytes > config.segment_bytes
            or (
                age is not None
                and timestamp - segment.index.first_timestamp > age
                and segment.index.first_timestamp >= 0
            )
            or segment.index.size_bytes + 12 > config.max_index_bytes
            or offset - segment.base_offset + count > MAX_SPAN
        ):
            return self.rotate()
        # An index has at most one entry for so many bytes, so its size need not be looked at every time.
        entries = config.max_index_bytes // TIME_ENTRY_BYTES - 4
        newest = kernel.MAX_TIMESTAMP if age is None else max(segment.index.first_timestamp, 0) + age
        self._roomy = segment, min(config.segment_bytes, entries * config.index_interval_bytes), newest
        return segment

    def note_written(self, size_bytes: int) -> None:
        """Count bytes that were placed by a streaming append."""
        self._written_bytes += size_bytes

    def room_for_stream(self, timestamp: int) -> tuple[Segment, int]:
        """The active segment and how many bytes a streamed batch of that time may add to it."""
        segment = self._active
        if segment.tail[1] >= self.config.segment_bytes:
            segment = self.rotate()
        if segment.tail[1]:
            segment = self._room(1, 1, timestamp)
        size = segment.tail[1]
        allowed = self.config.segment_bytes - size + self.config.overflow_bytes
        return segment, min(allowed, MAX_SEGMENT_BYTES - size)

    # --- durability

    def settle(self, offset: int) -> None:
        """Do what the policy asks for before an append that ended at `offset` is acknowledged."""
        policy = self._policy
        if policy == "os" or (self.open_append is not None and self.lock._is_owned()):  # type: ignore[attr-defined]
            return  # a part of an append is not acknowledged
        if policy == "always" or self._written_bytes - self._synced_bytes >= policy.bytes:
            self.commit.ensure(offset)

    def sync(self) -> None:
        """Make everything durable that is written now; also while somebody else streams."""
        self._check_alive()
        self.commit.ensure(self.segments.next_offset)

    def _tail(self) -> tuple[int, int, int]:
        """(offset, segment, position) of the end."""
        segment = self._active
        offset, size = segment.tail
        return offset, segment.base_offset, size

    def _sync_active(self) -> int:
        with self._sync_lock:
            self.commit.check()
            whole, tail, written = self._written, self._tail(), self._written_bytes
            self._sync(self._active)
            self._durable_tail, self._synced, self._synced_bytes = whole, tail, written
            self._cut_unsynced = False
        return whole[0]

    def sync_held(self) -> None:
        """Make everything durable that is written. For who holds the lock: waiting for others' syncs might not end."""
        self.commit.reached(self._sync_active())

    def _sync(self, segment: Segment) -> None:
        """fsync, once: if it fails, everyone knows before the next one can try. The caller holds the sync lock."""
        try:
            segment.storage.sync()
        except (SawlogError, OSError) as error:
            self.commit.fail(error)
            raise

    def _sync_in_time(self) -> None:
        """The background's turn, for the interval policy."""
        if not self.closed and self.held.held and self.commit.failure is None:
            try:
                self.commit.ensure(self.segments.next_offset)
            except (SawlogError, OSError):
                pass  # the log has failed; the next append says so

    # --- rotation and checkpoints

    def rotate(self) -> Segment:
        """Seal the active segment and go on in a new one. The caller holds the lock; the segment is not empty."""
        old = self._active
        offset = old.tail[0]
        with self._sync_lock:
            self.commit.check()
            old.storage.release()
            self._sync(old)
            self._synced_bytes = self._written_bytes
            self._synced, self._durable_tail = self._tail(), self._written
            self._cut_unsynced = False
            self.commit.reached(self._written[0])
            with self.ending_on_failed_sync():
                made = self._switch(old, offset)
                old.seal()
            self._synced = self._tail()
            if self._written[0] == offset:
                self._written = self._durable_tail = self._synced
        self.save_if_possible()
        return made

    def _switch(self, old: Segment, offset: int) -> Segment:
        """Go on in a new segment; if that does not come about, nothing of it may stay: an empty file with that number
        would hide what is appended to the old segment."""
        try:
            made = self._create(offset)
            self.segments.set([*self.segments.all, made])
            self._active = made
            return made
        except BaseException:
            if self._active is old:
                self.segments.set([each for each in self.segments.all if each.base_offset < offset or each is old])
                try:
                    self.directory.remove(file_name(offset))
                    self.directory.sync()  # else a power cut brings it back, beside what is appended meanwhile
                except StorageError as error:
                    self.commit.fail(error)
            raise

    def _create(self, offset: int) -> Segment:
        """A new segment; an empty file of that name is what an earlier try left behind."""
        name = file_name(offset)
        if self.directory.exists(name) and self.directory.size(name) == 0:
            self.directory.remove(name)
        return Segment.create(self.directory, offset, self.config.index_interval_bytes)

    @contextmanager
    def ending_on_failed_sync(self) -> Iterator[None]:
        """A failed fsync, of whatever file, ends writing: nobody can say what else the disk has lost."""
        try:
            yield
        except SyncFailed as error:
            self.commit.fail(error)
            raise

    def seal(self) -> None:
        """Rotate now, if there is anything to seal."""
        with self.lock:
            self.check_open()
            if self._active.tail[1]:
                self.rotate()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Nobody appends and nobody syncs: for what changes the list of segments."""
        with self.lock, self._sync_lock, self.ending_on_failed_sync():
            self.check_open()
            yield

    def truncate(self, offset: int) -> int:
        """Keep the records below `offset`; how many were dropped. See cutting.py."""
        with self.exclusive():
            segments = self.segments
            lowest, following = segments.lowest_offset, segments.next_offset
            if not lowest <= offset <= following:
                raise OffsetOutOfRange(offset, lowest, following, self.directory.path)
            if offset == following:
                return 0
            target = segments.find(offset)
            point = cut_at(target, offset, self.config)
            self.cuts += 1
            retreat_state(self.directory, offset)
            self.retreat(offset, point.tail, epochs_after(segments, offset))
            kept = list(segments.all)
            kept = kept[: kept.index(target) + 1]
            try:
                # From here on there is no way back, only forward at the next open. Hide first what is going to go.
                target.pinned = True
                segments.set(kept)
                target.tail = offset, point.visible
                segments.version += 1  # for a reader that looked between the two lines above
                delete_above(self.directory, target.base_offset)
                kept[-1] = cut(self.directory, self.config, point)
                if self.producers.reaches(offset):
                    self.producers = replayed(kept, self.config.producer_expiry_ms)
                self.adopt(kept)
            except BaseException as error:
                self.commit.fail(error)
                raise
        segments.wake()
        return following - offset

    def move_start(self, offset: int) -> None:
        """Write down where the log starts now; or leave it where it started. The caller holds the lock."""
        before, self.segments.lowest_offset = self.segments.lowest_offset, offset
        try:
            self.save(clean=False)
        except BaseException:
            self.segments.lowest_offset = before
            raise

    def retreat(self, offset: int, tail: tuple[int, int, int], epochs: Epochs) -> None:
        """Before the log is cut at `offset`: write down that no batch after `tail` counts as durable (if a batch is cut
        through, it is one of these), and the leader epochs from now on; then let nobody read beyond `offset`. If this
        raises, everything is as it was, except that the watermark on disk may be lower; or the log has failed. The
        caller is `exclusive`."""
        before = self._durable_tail
        self._durable_tail = min(tail, before)
        try:
            if epochs != self._noted:
                self._note(epochs)
            elif tail < before:
                self.save(clean=False)
        except BaseException:
            self._durable_tail = before
            raise
        try:
            self.epoch = epochs.current
            self._hide(offset, (offset, *tail[1:]))
            self.segments.epochs = epochs  # after that: a position beyond the cut is one of an earlier epoch
        except BaseException as error:
            self.commit.fail(error)  # only forward: the next one who opens the log finishes the cut
            raise

    def _hide(self, offset: int, cut: tuple[int, int, int]) -> None:
        """Nothing from `offset` on is durable, visible or written."""
        self.commit.retreat(offset)
        self._written, self._synced = min(self._written, cut), min(self._synced, cut)
        if self.segments.visible_offset > offset:
            self.visible.show(offset, self.epoch)

    def adopt(self, segments: Iterable[Segment]) -> None:
        """Go on with another list of segments, all of it durable; the caller is `exclusive`."""
        self.segments.set(segments)
        self._resume_at_end()
        self.save_if_possible()

    def _resume_at_end(self) -> None:
        """All that is there is durable, and whole but for what an append that is under way has placed."""
        self._active = self.segments.active
        self._synced = self._tail()
        self._written = min(self._written, self._synced) if self.open_append is not None else self._synced
        self._durable_tail = self._written
        self.commit.reached(self._written[0])
        if self.open_append is None and self.commit.failure is None:
            self._show(self._written[0])

    def begin_epoch(self, epochs: Epochs) -> None:
        """From now on batches belong to the last of these epochs; it is written down, durably, before that. The caller
        holds the lock, or nobody else can have it."""
        self._note(epochs)
        self.segments.epochs, self.epoch = epochs, epochs.current

    def _note(self, epochs: Epochs) -> None:
        """Write these epochs down, durably: they count when the checkpoint names them. If it raises, those from before
        do, or the log has failed."""
        before = self._noted
        try:
            store_epochs(self.directory, epochs)
            self._noted = epochs
            self.save(clean=False)
        except BaseException as error:
            self._noted = before
            self._note_again(error)
            raise

    def _note_again(self, error: BaseException) -> None:
        """Other epochs could not be written down: let the checkpoint name those that it named before."""
        try:
            found = checkpoint.load(self.directory)
            if found is None or found.epochs_crc != self._noted.crc:
                self.save(clean=False)
        except BaseException:
            self.commit.fail(error)
            return
        try:
            store_epochs(self.directory, self._noted)
        except StorageError as again:
            self.checkpoint_error = again  # the list on disk is not the one that is named: it is made anew when needed

    def take_over(self, *, clean: bool, in_order: bool, stored: bool) -> None:
        """Go on after whoever wrote before. If the log was not closed cleanly, somebody may have read what it has lost:
        begin a new epoch at its end. Not if the current one began there, and nobody was shown more of it since the
        machine was started. `in_order`: the epochs of the batches go up; `stored`: the list is on disk as it is."""
        epochs, end = self.segments.epochs.trimmed(self.segments.lowest_offset), self._active.tail[0]
        before = self.visible.before
        unseen = epochs.entries[-1][1] == end and before == (end, epochs.current)
        # If the files that know the epochs are lost, the readers may still know of one that no batch is left of.
        last = epochs.current if before is None else max(epochs.current, before[1])
        if not in_order:
            self.begin_epoch(Epochs(((last + 1, end),)))
        elif not clean and not unseen:
            self.begin_epoch(epochs.begun(last + 1, end))
        elif not stored:
            self.begin_epoch(self.segments.epochs)
        else:
            self.save(clean=False)
        if before is None:  # readers see every whole batch already; what is placed from now on they do not
            self._show(self._written[0])

    def claim(self, size_bytes: int) -> None:
        """Make sure that there is room on the disk for so much, or raise `StorageFull`. A storage of somebody else's
        kind that cannot tell is believed to have it."""
        claim: Callable[[int], None] | None = getattr(self._active.storage, "claim", None)
        if claim is not None:
            claim(size_bytes)

    def unclaim(self) -> None:
        """What was claimed is not needed."""
        self._active.storage.release()

    def resume(self, held: Lock, active: Segment | None) -> None:
        """Go on under another lock; if other processes wrote meanwhile, with the active segment grown by that, all of
        it durable. Only for a log whose writers take turns: see `shared`."""
        with self.lock, self._sync_lock:
            self.held = held
            if active is not None:
                self.segments.set([*self.segments.all[:-1], active])
                self._resume_at_end()

    def save_producers(self, *, durable: bool = True) -> None:
        """Write the producers' state as of now. Not in the middle of an append, which may be taken back."""
        if self.open_append is None:
            self.producers.expire(_now())
            content = self.producers.encode(self._active.tail[0], self.epoch)
            self.directory.replace(PRODUCERS, content, durable=durable)

    def save(self, *, clean: bool) -> None:
        """Replace the checkpoint by what is durable now."""
        with self._saving:
            if self._ended:
                return  # the background came late: the log is closed and marked so
            epochs = self._noted  # before the watermark, which is lowered before they change: see `retreat`
            offset, segment, position = self._durable_tail
            start = self.segments.lowest_offset
            made = Checkpoint(clean, offset, segment, position, start, epochs.current, epochs.crc)
            checkpoint.store(self.directory, made)
            self._saved = (offset, start)
            self._ended = clean

    def save_if_possible(self) -> None:
        """Caches and a watermark: without them the older ones stay true, and a full disk is met soon enough."""
        try:
            with self.ending_on_failed_sync():
                self.save_producers()
                self.save(clean=False)
        except SyncFailed:
            raise
        except StorageError as error:
            self.checkpoint_error = error

    def _save_in_time(self) -> None:
        """The background's turn: a watermark that moved is written, also when the log has gone quiet since."""
        if not self.closed and self.held.held and self.commit.failure is None:
            self.save_if_moved()

    def save_if_moved(self) -> None:
        """Write the watermark, unless it is written already. If that fails, recovery is less precise, and no more."""
        if self._saved != (self._durable_tail[0], self.segments.lowest_offset):
            try:
                with self.ending_on_failed_sync():
                    self.save(clean=False)
            except StorageError as error:
                self.checkpoint_error = error

    def close(self) -> None:
        """Sync, write the indexes of the active segment, and mark the log as closed in order."""
        if self.closed:
            self._let_go()  # an interrupt may have kept the first call from it
            return
        self.end_upkeep()
        with self.lock:
            try:
                for spool in list(self.spools):
                    spool.discard()
                if self.held.held and self.commit.failure is None:
                    self._mend()
                    self._active.storage.release()
                    if self._cut_unsynced:
                        self.sync_held()
                    self.commit.ensure(self._active.tail[0])
                    self._resume_at_end()  # also what an interrupted append left, whole, at the end
                    self._durable_tail = self._tail()
                    self._save_caches()
                    self.save(clean=True)
            finally:
                self.closed = True
                self._let_go()
        self.segments.wake()

    def _let_go(self) -> None:
        """Of the lock first: if an interrupt comes, the rest goes with the object. Safe to call twice."""
        self.held.release()
        self.segments.close()
        self.visible.close()

    def _save_caches(self) -> None:
        """When the log is closed. A power cut that damages them is noticed and costs a scan, so nothing is synced:
        where processes take turns a log is closed often. On a full disk it does without them."""
        try:
            self._active.write_index(durable=False)
            self.save_producers(durable=False)
        except StorageError as error:
            self.checkpoint_error = error
            self._active.remove_index()

    def abandon(self) -> None:
        """The files are gone: let go of everything without writing."""
        self._ended = self.closed = True
        self._let_go()
