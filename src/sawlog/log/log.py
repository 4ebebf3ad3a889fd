"""`Log`: one partition, append-only, segmented, durable. The public interface of this package.

```python
with Log.open("data/orders") as log:
    offset = log.append(b"value", key=b"key")
    log.append_many([b"one", b"two", (b"three", b"key")])
    log.read(offset).value
    for record in log.scan(offset): ...
```

Offsets are consecutive numbers from `lowest_offset` to `next_offset - 1`. One process writes, any number read, in it
and in others (`mode="r"`), up to `visible_offset`. Every method may be called from any thread.

Invariants, asserted where they could break: `durable_offset <= visible_offset <= written_offset <= next_offset`; a
batch is visible completely or not at all; what was acknowledged under a policy survives what the policy survives.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from ..batch import kernel
from ..batch.build import NOBODY, Producer
from ..batch.header import DEFAULT_COLUMNS, Rows
from ..batch.kernel import Record
from ..config import DAY_MS, MAX_OFFSET, LogConfig, UpkeepConfig, whole_number
from ..errors import CorruptFile, InvalidConfig, InvalidRecord, InvalidRecordType, LogClosed, LogNotFound, ReadOnlyLog
from ..storage import Directory, FileDirectory, MemoryDirectory
from ..storage.forking import forkable, in_children
from .files import checkpoint
from .files.checkpoint import Checkpoint
from .files.epochs import Epochs
from .files.locking import UPKEEP_NOTE, is_wanted, take_lock
from .files.names import LOCK, STORE, file_name, is_ours, segment_base
from .maintain import compaction, retention, upkeep
from .maintain import trimming as truncation
from .maintain.compaction import CompactionReport
from .maintain.recovery import RecoveryReport, recover
from .maintain.retention import RetentionReport
from .maintain.upkeep import MergeReport, RecompressionReport, ScrubReport, UpkeepReport
from .read.reader import ARROW_ROWS, Fetched, Reader
from .read.verify import VerifyReport, verify
from .segment.segments import FollowedSet, SegmentSet
from .write import incoming, keeping
from .write import streams as streaming
from .write.appender import Appender
from .write.appending import Settled
from .write.writer import BATCH_BYTES, Writer

if TYPE_CHECKING:
    import pyarrow as pa

    from .write.aio import AsyncAppends

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: How much of a table is encoded before it is placed; a larger one holds the log's lock while it is encoded.
_TABLE_BYTES = 8 << 20
#: How often the ends are read again before they are considered out of order.
_LOOKS = 10_000


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Information about one segment."""

    base_offset: int
    next_offset: int
    size_bytes: int
    sealed: bool
    mapped: bool
    path: str


class Log:
    """One partition's log. Created by `Log.open` or `Log.in_memory`."""

    def __init__(
        self,
        directory: Directory,
        config: LogConfig,
        segments: SegmentSet,
        appender: Appender | None,
        report: RecoveryReport,
        place: tuple[str | None, int] = (None, -1),
    ) -> None:
        self._directory = directory
        self._config = config
        self._segments = segments
        self._appender = appender
        self._closed = False
        self._place = place
        self._reader = self._reader_of(segments)
        self._loops: dict[int, AsyncAppends] = {}
        self._appends: AsyncAppends | None = None
        #: Whether the first write takes the lock (mode "a"), and what is called then.
        self._locks_late = False
        self._on_lock: Callable[[Log], None] | None = None
        #: The note in the lock's file while it is held.
        self._lock_note = b""
        self._locking = forkable(threading.RLock())
        #: What opening found and did.
        self.recovery = report
        #: Whether this was inherited from a parent process that writes: then it only reads.
        self._inherited = False
        if appender is not None:
            in_children(self)

    def after_fork(self) -> None:
        """In a forked child: the parent continues to write, and this reads like another process. What the parent knew
        of its files becomes outdated."""
        if self._appender is None or self._closed:
            return
        self._inherited, self._appender = True, None
        self._loops, self._appends = {}, None
        self._segments = FollowedSet(self._directory, self._config, late=True)
        self._reader = self._reader_of(self._segments)

    def _reader_of(self, segments: SegmentSet) -> Reader:
        return Reader(segments, self._config, lambda: not self._closed, self._place)

    # --- opening and closing

    @classmethod
    def open(
        cls,
        path: str | PathLike[str] | Directory,
        config: LogConfig | None = None,
        *,
        mode: Literal["w", "r", "a"] = "w",
        on_lock: Callable[[Log], None] | None = None,
        topic: str | None = None,
        partition: int = -1,
    ) -> Log:
        """Open the log in a directory; with mode "w" (the default) create it if it does not exist.

        A writer holds the directory's lock until it is closed; a second one gets `DirectoryLocked` immediately. With
        mode "r" nothing is written or locked: it reads next to a running writer and sees what that appends. Mode "a" is
        like "r" until the first write, which takes the lock, recovers if necessary, calls `on_lock` with the log, and
        continues. Records that are read have this `topic` and `partition`.
        """
        config = LogConfig() if config is None else config
        if mode in ("r", "a"):
            made = cls._open_reader(path, config, (topic, partition))
            made._locks_late, made._on_lock = mode == "a", on_lock
            return made
        if mode != "w":
            raise InvalidConfig(f'mode must be "w", "r" or "a", not {mode!r}')
        with ExitStack() as undo:
            directory = _directory(path, undo, create=True)
            _refuse_store(directory)
            appender, report = cls._lock(directory, config)
            undo.pop_all()
        made = cls(directory, config, appender.segments, appender, report, (topic, partition))
        with ExitStack() as undo:
            undo.callback(made.close)
            if on_lock is not None:
                on_lock(made)
            appender.begin()
            undo.pop_all()
        return made

    @staticmethod
    def _lock(directory: Directory, config: LogConfig, note: bytes = b"") -> tuple[Appender, RecoveryReport]:
        """Become the writer: take the lock, recover, mark the checkpoint as in use."""
        with ExitStack() as undo:
            held = take_lock(directory, note)
            undo.callback(held.release)
            found = recover(directory, config)
            segments = SegmentSet(directory, config)
            segments.set(found.segments)
            segments.lowest_offset = found.lowest_offset
            segments.epochs = found.epochs
            appender = Appender(directory, config, segments, found.producers, held, lent=note == UPKEEP_NOTE)
            undo.callback(appender.marks.visible.close)
            appender.take_over(clean=found.report.clean, in_order=found.epochs_in_order, stored=found.epochs_stored)
            undo.pop_all()
        return appender, found.report

    @classmethod
    def create(cls, path: str | PathLike[str] | Directory, config: LogConfig | None = None) -> None:
        """Create an empty log where there is none, durably, without opening it."""
        config = LogConfig() if config is None else config
        with ExitStack() as undo:
            directory = _directory(path, undo, create=True)
            _refuse_store(directory)
            if not any(segment_base(name) is not None for name in directory.names()):
                start, epochs = config.initial_offset, Epochs()
                directory.create(file_name(start)).close()
                checkpoint.store(directory, Checkpoint(True, start, start, 0, start, epochs.current, epochs.crc))

    @classmethod
    def _open_reader(
        cls, path: str | PathLike[str] | Directory, config: LogConfig, place: tuple[str | None, int]
    ) -> Log:
        with ExitStack() as undo:
            try:
                directory = _directory(path, undo, create=False)
            except OSError as error:
                raise LogNotFound(errno.ENOENT, f"no log in {path}: {error}") from error
            _refuse_store(directory)
            segments = FollowedSet(directory, config)
            if not segments.all:
                raise LogNotFound(errno.ENOENT, f"no log in {directory.path}: the directory holds no segment")
            undo.pop_all()
        return cls(directory, config, segments, None, RecoveryReport(), place)

    @classmethod
    def in_memory(cls, config: LogConfig | None = None) -> Log:
        """A log in memory, which is lost with the process."""
        return cls.open(MemoryDirectory(), config)

    def close(self) -> None:
        """Flush open writers, sync, and mark the log as closed cleanly. Safe to call twice."""
        if self._closed:
            if self._appender is not None:
                self._appender.abandon()  # an interrupt may have prevented it in the first call
            return
        if self._appender is not None:
            with self._appender.lock:
                self._appender.refuse_in_stream()
        with ExitStack() as last:  # each step is executed, whatever the others raise
            last.callback(self._let_go)
            if self._appender is None:
                return
            last.callback(self._appender.close)
            for appends in self._loops.values():
                last.callback(appends.close)
            for writer in list(self._appender.writers):
                last.callback(writer.close)

    def _let_go(self) -> None:
        """Release everything, also if an interrupt has prevented the appender from closing cleanly."""
        self._closed = True
        if self._appender is not None:
            self._appender.abandon()
        else:
            self._segments.close()
        self._segments.wake()
        self._directory.close()

    def remove(self) -> None:
        """Close the log and delete it: all its files, and the directory if it contains nothing else."""
        appender = self._writable()
        appender.upkeep.end()
        with appender.lock:
            appender.check_open()
            for writer in list(appender.writers):
                writer.close()
            for name in self._directory.names():
                if is_ours(name) and name != LOCK:
                    self._directory.remove(name)
            self._directory.remove(LOCK)
            self._directory.sync()
            appender.abandon()
        self._closed = True
        self._directory.dispose()
        self._directory.close()

    def release(self) -> None:
        """Release the writer's lock cleanly and keep reading; the next write takes it again. Open writers of this log
        are closed. Only for a log that was opened with mode "a"."""
        with self._locking:
            if self._closed or self._appender is None:
                return
            if not self._locks_late:
                raise InvalidConfig('only a log that was opened with mode="a" can release its lock and stay open')
            appender = self._appender
            with appender.lock:
                appender.refuse_in_stream()
            with ExitStack() as last:
                last.callback(self._become_reader)
                last.callback(appender.abandon)  # if an interrupt prevents it from closing cleanly
                last.callback(appender.close)
                for appends in self._loops.values():
                    last.callback(appends.close)
                for writer in list(appender.writers):
                    last.callback(writer.close)

    def _become_reader(self) -> None:
        self._loops, self._appends = {}, None
        before, self._segments = self._segments, FollowedSet(self._directory, self._config)
        self._reader = self._reader_of(self._segments)
        self._appender = None
        before.successor = self._segments
        before.wake()

    def _become_writer(self) -> Appender:
        with self._locking:
            if self._appender is not None:  # another thread was first, or this is `on_lock` itself
                return self._appender
            appender, self.recovery = self._lock(self._directory, self._config, self._lock_note)
            with appender.lock:  # nobody appends before `on_lock` has
                try:
                    self._segments = appender.segments
                    self._reader = self._reader_of(self._segments)
                    self._appender = appender
                    in_children(self)
                    if self._on_lock is not None:
                        self._on_lock(self)
                    appender.begin()
                except BaseException:
                    try:
                        appender.close()
                    finally:
                        self._become_reader()
                    raise
            return appender

    def appending(self) -> AbstractContextManager[int]:
        """As `hold`; and everything that is appended inside is one append: readers see all of it when the block ends,
        and if the block raises nothing of it is kept. An append inside does not wait for the disk; the end of the block
        does what the durability policy requires. Returns the offset that the first record gets."""
        return Settled(self._writable())

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Prevent others from appending, truncating or trimming while this is held; the holder may. Takes the lock if
        necessary. For a short time, and not around upkeep: `compact` and similar calls refuse to run inside."""
        appender = self._writable()
        with appender.lock:
            appender.check_open()
            yield

    def lend_to_upkeep(self) -> None:
        """Before the first write of a log that was opened with mode "a": other writers wait until this one is released
        or closed, instead of being refused. For work that ends soon."""
        self._lock_note = UPKEEP_NOTE

    @property
    def wanted(self) -> bool:
        """Whether a writer waits for a log whose lock upkeep holds."""
        return is_wanted(self._directory)

    def end_upkeep(self) -> None:
        """Stop upkeep that is running in another thread (it raises `LogClosed` there)."""
        if self._appender is not None:
            self._appender.upkeep.cancel()

    def fail(self, error: BaseException) -> None:
        """End writing because of an external failure: appends raise `LogFailed`, reads still work."""
        self._writable().commit.fail(error)

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"offsets {self.lowest_offset}..{self.next_offset}"
        return f"<Log {self.path} {state}>"

    # --- properties

    @property
    def path(self) -> str:
        """The directory."""
        return self._directory.path

    @property
    def config(self) -> LogConfig:
        """The settings it was opened with."""
        return self._config

    @property
    def writable(self) -> bool:
        """Whether this is the writer, and may still write."""
        return not self._closed and self._appender is not None and self._appender.commit.failure is None

    @property
    def locked(self) -> bool:
        """Whether this process currently holds the writer's lock of this log."""
        return not self._closed and self._appender is not None and self._appender.held.held

    @property
    def lowest_offset(self) -> int:
        """The first offset (in an empty log: the offset that the first record would have)."""
        return self._known_segments().lowest_offset

    def _known_segments(self) -> SegmentSet:
        """The segments as last read; in a forked child, that may be never."""
        if not self._segments.all:
            self._segments.refresh()
        return self._segments

    @property
    def next_offset(self) -> int:
        """The offset that the next record will get. For a log that only reads: `visible_offset`."""
        appender = self._appender
        if appender is None:
            return self.visible_offset
        # If what is written is visible, an append in progress in another thread does not count yet.
        return appender.written_offset if appender.is_between_appends else self._segments.next_offset

    @property
    def written_offset(self) -> int:
        """Every record below this is written, complete appends only: it survives the end of this process."""
        appender = self._appender
        return self.visible_offset if appender is None else appender.written_offset

    @property
    def visible_offset(self) -> int:
        """Every record below this can be read, here and in other processes, and none from here on. With durability
        "always" what is visible is durable; with the others it is written. See docs/visibility.md."""
        if self._appender is None:
            self._segments.refresh()
        return self._segments.visible_offset

    @property
    def durable_offset(self) -> int:
        """Every record below this survives a power cut. For a reader: as far as the writer has recorded it."""
        appender = self._appender
        if appender is not None and not appender.has_begun:  # on_lock is running: nothing is visible yet
            return min(appender.commit.durable_offset, self._segments.visible_offset)
        if appender is not None:
            return self._checked_ends(appender)[0]
        try:
            saved = checkpoint.load(self._directory)
        except CorruptFile:
            saved = None
        # Of two files that were written at different moments, the older is used.
        return self.lowest_offset if saved is None else min(saved.durable_offset, self.visible_offset)

    def _checked_ends(self, appender: Appender) -> tuple[int, int, int, int]:
        """(durable, visible, written, next). Other threads move them meanwhile; but if they are out of order each time,
        something is wrong."""
        for _ in range(_LOOKS):
            ends = (
                appender.commit.durable_offset,
                self._segments.visible_offset,
                appender.written_offset,
                self._segments.next_offset,
            )
            if ends[0] <= ends[1] <= ends[2] <= ends[3]:
                return ends
            time.sleep(0)
        raise AssertionError(f"durable, visible, written and next offset of {self.path} are out of order: {ends}")

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch, to which appends belong. -1 for a reader of a log of version 0.2, which has none.
        See docs/visibility.md."""
        if self._appender is None:
            self._segments.refresh()
        return self._segments.current_epoch

    @property
    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, its first offset), oldest first."""
        if self._appender is None:
            self._segments.refresh()
        return self._segments.epochs.entries

    def epoch_end(self, leader_epoch: int) -> int:
        """The first offset after a leader epoch: a position that was read in it and is beyond that goes back to it,
        because the records from there on are gone or different now. For the current epoch, and for -1 (a position
        without one): `visible_offset`."""
        if self._appender is None:
            self._segments.refresh()
        return self._segments.epoch_end(leader_epoch)

    def position(self) -> tuple[int, int]:
        """(`visible_offset`, leader epoch) at one moment: where a reader that has read everything continues."""
        if self._appender is None:
            self._segments.refresh()
        return self._segments.position()

    def __len__(self) -> int:
        return self.visible_offset - self.lowest_offset

    def __bool__(self) -> bool:
        return True  # an empty log is still a log: `if log:` checks for None

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return self._known_segments().size_bytes

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """The segments, oldest first; the last one is active."""
        return tuple(
            SegmentInfo(each.base_offset, each.next_offset, each.size, each.sealed, each.is_loaded, each.path)
            for each in self._known_segments().all
        )

    @property
    def segment_set(self) -> SegmentSet:
        """The current segments, for code of this package that plans how to read them."""
        self._readable().segments.refresh()
        return self._segments

    # --- appending

    def _writable(self) -> Appender:
        if self._closed:
            raise LogClosed(f"the log {self.path} is closed")
        if self._appender is not None and not (self._appender.closed and self._locks_late):
            return self._appender
        if self._appender is not None:  # an interrupt came when it was released
            with self._locking:
                self._become_reader()
        if self._inherited:
            raise LogClosed(
                f"the log {self.path} was opened by the parent process, before the fork; open it again here"
            )
        if not self._locks_late:
            raise ReadOnlyLog(f'the log {self.path} was opened with mode="r"')
        return self._become_writer()

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Any = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset. With `expect_offset`: at that offset, or `OffsetMismatch` and
        nothing."""
        appender = self._appender or self._writable()
        encoder = appender.encoders.take()
        try:
            batch = encoder.one(value, key, headers, timestamp if timestamp is None else _stamp(timestamp))
            offset = appender.place(batch, expect_offset).start
        finally:
            appender.encoders.give_back(encoder)
        appender.settle(offset + 1)
        return offset

    def append_many(
        self, records: Iterable[Any], expect_offset: int | None = None, *, producer: Producer = NOBODY
    ) -> range:
        """Append records as one batch, all or none, also across a crash, and return their offsets.

        A record is bytes (a value), a `Record`, a dict, or a tuple in the order of `append`'s parameters. With
        `producer` the batch is idempotent: sent again, it is recognised and the same offsets are returned.
        """
        appender = self._appender or self._writable()
        encoder = appender.encoders.take()
        try:
            placed = appender.place(encoder.many(records, producer), expect_offset, producer)
        finally:
            appender.encoders.give_back(encoder)
        appender.settle(placed.stop)
        return placed

    def append_arrow(self, table: pa.Table | pa.RecordBatch, expect_offset: int | None = None) -> range:
        """Append the rows of an Arrow table: `value`, and optionally `key`, `timestamp`, `headers`.

        It becomes batches of about 128 KiB, all of them or none, except that a crash in the middle may keep the first
        ones.
        """
        appender = self._appender or self._writable()
        encoder = appender.encoders.take()
        try:
            batches = encoder.table(table, min(BATCH_BYTES, self._config.segment_bytes // 2 + 1))
            group, more = _group(batches)
            if not more:
                placed = self._place_group(appender, group, expect_offset)
            else:
                placed = self._place_groups(appender, group, batches, expect_offset)
        finally:
            appender.encoders.give_back(encoder)
        appender.settle(placed.stop)
        return placed

    @staticmethod
    def _place_group(appender: Appender, group: bytearray, expect_offset: int | None) -> range:
        if not group:
            raise InvalidRecord("no record to append")
        return appender.place_rows(memoryview(group), incoming.rows_of(memoryview(group)), expect_offset)

    def _place_groups(
        self, appender: Appender, group: bytearray, batches: Iterator[Any], expect_offset: int | None
    ) -> range:
        with appender.appending() as first:
            placed = self._place_group(appender, group, expect_offset)
            more = True
            while more:
                group, more = _group(batches)
                if group:
                    placed = self._place_group(appender, group, None)
            return range(first, placed.stop)

    def append_batches(self, raw: bytes | bytearray | memoryview, *, trusted: bool = False) -> range:
        """Place encoded batches unchanged, giving them the next offsets. All of them or none.

        They are checked first: structure, checksums, and that their records parse (not if they are `trusted`, because
        this library has made them: decoding compressed ones costs more than all the rest). A producer's batch that is
        already stored is recognised; if all of them are, the offsets they got the first time are returned.
        """
        if not isinstance(raw, (bytes, bytearray, memoryview)):
            raise InvalidRecordType(f"append_batches expects encoded batches as bytes, not {type(raw).__name__}")
        return self.place_batches(bytearray(raw), trusted=trusted)

    def place_batches(self, raw: bytearray | memoryview, *, trusted: bool = True) -> range:
        """As `append_batches`, for a buffer that the caller no longer uses."""
        appender = self._appender or self._writable()
        placed = incoming.place(appender, memoryview(raw), trusted=trusted)
        appender.settle(placed.stop)
        return placed

    def append_kept(self, raw: bytes | bytearray | memoryview, rows: Rows | None = None, *, wait: bool = True) -> range:
        """Place encoded batches at the offsets that they have, with their leader epochs. All of them or none.

        They begin at `next_offset` or after it, in increasing order; missing offsets are filled with a batch without
        records. A leader epoch below the current one is raised to it; a later one begins. They are checked as in
        `append_batches`, but their records are not parsed; not if `rows` are given: then the caller has scanned the
        headers and verified the checksums. With `wait=False` it does not wait for the disk: what is placed is durable,
        and under "always" visible, after `sync`.
        """
        appender = self._appender or self._writable()
        data = memoryview(raw)
        placed = keeping.place_kept(appender, data, incoming.checked_rows(data) if rows is None else rows)
        if wait:
            appender.settle(placed.stop)
        return placed

    def advance(self, offset: int, *, leader_epoch: int = 0, wait: bool = True) -> int:
        """Let the next record have this offset, `next_offset` or a later one, and return how many offsets are skipped,
        which never get a record. An empty log then begins there. With `wait=False` it does not wait for the disk."""
        if whole_number(offset) > MAX_OFFSET:
            raise InvalidConfig(f"the next offset of a log can be at most {MAX_OFFSET}, not {offset}")
        appender = self._writable()
        passed = keeping.advance(appender, offset, leader_epoch)
        if wait:
            appender.settle(offset)
        return passed

    def claim(self, size_bytes: int) -> None:
        """Make sure that there is space on the disk for that many bytes of batches, or raise `StorageFull`; the space
        is reserved until they are appended or `unclaim` is called, as far as the file system can do that."""
        self._writable().active.claim(size_bytes)

    def unclaim(self) -> None:
        """Release what was claimed and is not needed."""
        self._writable().active.unclaim()

    def append_stream(
        self,
        chunks: Iterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: Any = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record from an iterable of chunks without holding it in memory, and return its offset.

        If it exceeds `max_bytes` or the space in the segment: `StreamTooLong`. If the iterable raises: `StreamAborted`
        from its error. In each case the log does not change. Other appends wait until it is done.
        """
        return streaming.append_stream(
            self._writable(),
            chunks,
            key=key,
            headers=headers,
            timestamp=_stamp(timestamp),
            max_bytes=max_bytes,
            expect_offset=expect_offset,
        )

    async def append_stream_async(
        self,
        chunks: AsyncIterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: Any = (),
        timestamp: int | datetime | None = None,
    ) -> int:
        """As `append_stream`, from an async iterable. A slow stream delays nobody; cancelling it leaves nothing."""
        from .write.aio import in_thread, past_recall

        return await streaming.append_stream_async(
            self._writable(),
            chunks,
            in_thread,
            past_recall,
            key=key,
            headers=headers,
            timestamp=_stamp(timestamp),
            max_bytes=max_bytes,
        )

    async def append_async(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Any = (),
        timestamp: int | datetime | None = None,
    ) -> int:
        """As `append`, without blocking the event loop: concurrent tasks share a batch and its fdatasync."""
        appends = self._appends
        if appends is None or appends.loop is not appends.running_loop():
            appends = self._appends_of_this_loop()
        return await appends.add(value, key, headers, timestamp if timestamp is None else _stamp(timestamp))

    def _appends_of_this_loop(self) -> AsyncAppends:
        from .write.aio import AsyncAppends, running_loop

        appender = self._writable()
        loop = running_loop()
        found = self._loops.get(id(loop))
        if found is None or found.loop is not loop:
            for number, gone in list(self._loops.items()):
                if gone.loop.is_closed():
                    del self._loops[number]
                    gone.close()
            found = self._loops[id(loop)] = AsyncAppends(appender)
        self._appends = found
        return found

    def writer(self, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None) -> Writer:
        """A buffered writer: the fast way to append records one by one. See `Writer`."""
        return Writer(self._writable(), batch_bytes, linger_ms)

    # --- reading

    def _readable(self) -> Reader:
        if self._closed:
            raise LogClosed(f"the log {self.path} is closed")
        return self._reader

    def read(self, offset: int) -> Record:
        """The record at `offset`; `OffsetOutOfRange` if there is none."""
        if self._closed:
            raise LogClosed(f"the log {self.path} is closed")
        return self._reader.read(offset)

    @overload
    def __getitem__(self, which: int) -> Record: ...

    @overload
    def __getitem__(self, which: slice) -> list[Record]: ...

    def __getitem__(self, which: int | slice) -> Record | list[Record]:
        """`log[offset]`; `log[-1]` is the last record; `log[a:b]` a list of those with a <= offset < b."""
        if isinstance(which, slice):
            if which.step not in (None, 1):
                raise InvalidRecordType("a slice of a log cannot have a step")
            return list(self._slice(which.start, which.stop))
        which = whole_number(which)
        return self.read(which if which >= 0 else self.visible_offset + which)

    def _slice(self, start: int | None, stop: int | None) -> Iterator[Record]:
        lowest, end = self.lowest_offset, self.visible_offset
        start = lowest if start is None else start + end if start < 0 else start
        stop = end if stop is None else stop + end if stop < 0 else stop
        return self.scan(min(max(start, lowest), end), max(stop, 0))

    def __iter__(self) -> Iterator[Record]:
        return self.scan()

    def scan(self, start: int | None = None, end: int | None = None, max_bytes: int | None = None) -> Iterator[Record]:
        """The records with start <= offset < end, in order, as of now; by default all of them."""
        return self._readable().scan(start, end, max_bytes)

    def cursors(self, start: int | None = None, end: int | None = None) -> Iterator[kernel.RecordCursor]:
        """As `scan`, for code that passes records on: cursors to iterate over one after the other. Each knows the
        offset after the last record that it returned (`following`), and another thread may `stop` it."""
        return self._readable().cursors(start, end)

    def scan_arrow(
        self,
        start: int | None = None,
        end: int | None = None,
        batch_rows: int = ARROW_ROWS,
        *,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        views: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches; `columns` may also include `headers` and `timestamp_type`.

        With `views` keys and values are binary_view arrays that point into the mapped log: nothing is copied.
        """
        if batch_rows < 1:
            raise InvalidConfig(f"batch_rows must be at least 1, not {batch_rows}")
        return self._readable().scan_arrow(start, end, batch_rows, columns, views)

    def fetch(self, start: int, max_bytes: int = 1 << 20) -> Fetched:
        """Complete batches as stored, from the one that contains `start` on, up to `max_bytes` but at least one.

        At the end it is empty and `next_offset` is `start`.
        """
        return self._readable().fetch(start, max_bytes)

    def follow(self, start: int | None = None, timeout: float | None = None) -> Iterator[Record]:
        """Records from `start` on, waiting for new ones; ends when none came for `timeout` seconds. `OffsetOutOfRange`,
        with the end of the leader epoch, if the log was truncated below what was returned."""
        return self._readable().follow(start, timeout)

    def offset_at(self, timestamp: int | datetime) -> int:
        """The first offset whose record is not older than `timestamp`; `next_offset` if all are."""
        found = whole_number(_stamp(timestamp), "a timestamp")
        return self._readable().offset_at(min(max(found, 0), kernel.MAX_TIMESTAMP + 1))

    # --- upkeep

    def truncate(self, offset: int) -> int:
        """Drop the records from `offset` on and return how many. The next record gets that offset."""
        return self._writable().truncate(whole_number(offset))

    def trim(self, offset: int) -> int:
        """Drop the records below `offset` and return how many. Files are deleted when a whole segment is below."""
        return truncation.trim(self._writable(), whole_number(offset))

    def remove_expired(self, max_age: timedelta | float) -> int:
        """Drop leading segments whose newest record is at least that old (timedelta, or ms); returns how many
        records."""
        return retention.remove_expired(self._writable(), max_age)

    def apply_retention(self) -> RetentionReport:
        """Drop what exceeds `retention_ms` and `retention_bytes`."""
        return retention.apply_retention(self._writable())

    def compact(self, delete_retention_ms: int = DAY_MS) -> CompactionReport:
        """Keep only the last record of each key in the sealed segments; tombstones are removed when they are old
        enough."""
        return compaction.compact(self._writable(), delete_retention_ms=delete_retention_ms)

    def merge_segments(self, below_bytes: int | None = None) -> MergeReport:
        """Merge neighbouring sealed segments that are smaller than that (by default, than a segment may be)."""
        return upkeep.merge_segments(self._writable(), below_bytes)

    def recompress(self, compression: str = "zstd", level: int | None = None) -> RecompressionReport:
        """Compress the sealed segments that were not compressed in this way before."""
        return upkeep.recompress(self._writable(), compression, level=level)

    def scrub(self) -> ScrubReport:
        """Read every sealed segment and check it; damage is listed in the report, not raised."""
        return upkeep.scrub(self._writable())

    def upkeep(self, config: UpkeepConfig | None = None) -> UpkeepReport:
        """Do what is due by these settings: retention, compaction, merging, recompression, scrubbing."""
        return upkeep.upkeep(self._writable(), UpkeepConfig() if config is None else config)

    def upkeep_due(self, config: UpkeepConfig | None = None) -> bool:
        """Whether `upkeep` would find something to do; takes no lock and writes nothing."""
        self._readable().segments.refresh()
        return upkeep.is_due(self._segments, UpkeepConfig() if config is None else config)

    def sync(self) -> None:
        """Return when everything appended so far survives a power cut."""
        self._writable().sync()

    def seal(self) -> None:
        """Close the active segment now and continue in a new one."""
        self._writable().seal()

    def verify(self) -> VerifyReport:
        """Read and check everything; damage is listed in the report, not raised."""
        return verify(self._readable().segments, self._config.max_decompressed_bytes)


def _directory(path: str | PathLike[str] | Directory, undo: ExitStack, *, create: bool) -> Directory:
    """The directory to work in; one that is opened here is closed by `undo`."""
    if isinstance(path, (str, PathLike)):
        made: Directory = FileDirectory(path, create=create)
        undo.callback(made.close)
    else:
        made = path
    return made


def _refuse_store(made: Directory) -> None:
    """Raise for the directory of a store: a log there would not be found."""
    if made.exists(STORE):
        raise InvalidConfig(
            f"{made.path} is a store of topics, not a log: use sawlog.open({made.path!r}), or open one partition of it "
            f"({made.path}/topics/TOPIC/partition-0)"
        )


def _stamp(timestamp: Any) -> Any:
    """A datetime as milliseconds; anything else unchanged."""
    if isinstance(timestamp, datetime):
        return (timestamp.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
    return timestamp


def _group(batches: Iterator[Any]) -> tuple[bytearray, bool]:
    """The next batches, contiguous, up to a size; and whether there may be more."""
    group = bytearray()
    for batch in batches:
        group += batch.data
        if len(group) >= _TABLE_BYTES:
            return group, True
    return group, False
