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

from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from os import PathLike
from typing import TYPE_CHECKING, Literal

from ..batch import kernel
from ..batch.build import NOBODY, Producer
from ..batch.given import GivenHeaders, GivenRecord, GivenTable
from ..batch.header import DEFAULT_COLUMNS, Rows
from ..batch.kernel import Record
from ..clock import milliseconds
from ..closing import Closing
from ..config import DAY_MS, MAX_OFFSET, LogConfig, UpkeepConfig, whole_number
from ..display import counted, size_text
from ..errors import CorruptFile, InvalidConfig, InvalidRecordType, LogClosed, SawlogError
from ..isolation import Isolation, is_committed
from ..storage import Directory, MemoryDirectory
from ..topics.base import Partition
from . import access
from .access import Access
from .files import checkpoint
from .files.locking import is_wanted, note_in, want
from .files.producers import OpenTransaction
from .maintain import compaction, retention, tiering, upkeep
from .maintain import trimming as truncation
from .maintain.compaction import CompactionReport
from .maintain.recovery import RecoveryReport
from .maintain.retention import RetentionReport
from .maintain.tiering import Shipped
from .maintain.upkeep import MergeReport, RecompressionReport, ScrubReport, UpkeepReport
from .read.last import last_record
from .read.pages import Fetched
from .read.reader import ARROW_ROWS, Reader
from .read.remote import RemoteLog, RemoteSource
from .read.verify import VerifyReport, verify
from .segment.segments import SegmentSet
from .write import adopting, incoming, keeping, markers
from .write import streams as streaming
from .write.adopting import Numbered
from .write.appender import Appender
from .write.producers import ProducerInfo
from .write.tables import append_table
from .write.writer import BATCH_BYTES, Writer

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Information about one segment."""

    base_offset: int
    next_offset: int
    size_bytes: int
    sealed: bool
    mapped: bool
    path: str


class Log(Partition, Closing):
    """One partition in files. Created by `Log.open` or `Log.in_memory`."""

    supports_truncation = True

    def __init__(self, access: Access, on_lock: Callable[[Log], None] | None = None) -> None:
        self._access = access
        self._on_lock = on_lock

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
        note: bytes = b"",
        remote: RemoteSource | None = None,
    ) -> Log:
        """Open the log in a directory; with mode "w" (the default) create it if it does not exist.

        A writer holds the directory's lock until it is closed; a second one gets `DirectoryLocked` immediately. With
        mode "r" nothing is written or locked: it reads next to a running writer and sees what that appends. Mode "a" is
        like "r" until the first write, which takes the lock, leaves the `note` in its file, recovers if necessary,
        calls `on_lock` with the log, and continues. Records that are read have this `topic` and `partition`. What was
        removed here is read from `remote`, which a store that has a replica gives.
        """
        config = LogConfig() if config is None else config
        if mode not in ("w", "r", "a"):
            raise InvalidConfig(f'mode must be "w", "r" or "a", not {mode!r}')
        place = topic, partition
        if mode != "w":
            late = mode == "a"
            return cls(access.open_to_read(path, config, place, locks_late=late, note=note, remote=remote), on_lock)
        made = cls(access.open_to_write(path, config, place, remote), on_lock)
        with ExitStack() as undo:
            undo.callback(made.close)
            made._call_on_lock()
            made._writable().begin()
            undo.pop_all()
        return made

    @classmethod
    def create(
        cls, path: str | PathLike[str] | Directory, config: LogConfig | None = None, *, leader_epoch: int = 0
    ) -> None:
        """Create an empty log where there is none, durably, without opening it. Its first leader epoch is the given
        one: a log that takes the place of another begins in a later one than that."""
        access.create(path, LogConfig() if config is None else config, leader_epoch)

    @classmethod
    def in_memory(cls, config: LogConfig | None = None) -> Log:
        """A log in memory, which is lost with the process."""
        return cls.open(MemoryDirectory(), config)

    def close(self) -> None:
        """Flush open writers, sync, and mark the log as closed cleanly. Safe to call twice."""
        self._access.close()

    def remove(self) -> None:
        """Close the log and delete it: all its files, and the directory if it contains nothing else."""
        self._access.remove(self._writable())

    def appending(self) -> AbstractContextManager[int]:
        """As `hold`; and everything that is appended inside is one append: readers see all of it when the block ends,
        and if the block raises nothing of it is kept. An append inside does not wait for the disk; the end of the block
        does what the durability policy requires. Returns the offset that the first record gets."""
        return self._writable().settled_appending()

    def __repr__(self) -> str:
        if self._access.closed:
            return f"<Log {self.path} closed>"
        try:
            size = f"{size_text(self.size_bytes)} in {counted(len(self._known_segments().all), 'segment')}"
            return f"<Log {self.path} offsets {self.lowest_offset}..{self.next_offset}, {size}>"
        except SawlogError as error:
            return f"<Log {self.path}: {error}>"

    # --- properties

    @property
    def path(self) -> str:
        """The directory."""
        return self._access.directory.path

    @property
    def config(self) -> LogConfig:
        """The settings it was opened with."""
        return self._access.config

    @property
    def recovery(self) -> RecoveryReport:
        """What opening found and did."""
        return self._access.recovery

    @property
    def was_closed_cleanly(self) -> bool:
        """Whether the last writer closed it, according to its checkpoint; False while there is one."""
        try:
            saved = checkpoint.load(self._access.directory)
        except CorruptFile:
            return False
        return saved is not None and saved.clean

    @property
    def writable(self) -> bool:
        """Whether this is the writer, and may still write."""
        appender = self._access.appender
        return not self._access.closed and appender is not None and appender.commit.failure is None

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._access.closed

    @property
    def current(self) -> bool:
        """Whether it sees at once what other processes write: a log always does."""
        return True

    @property
    def locked(self) -> bool:
        """Whether this process currently holds the writer's lock of this log."""
        return self._access.is_locked

    @property
    def lowest_offset(self) -> int:
        """The first offset (in an empty log: the offset that the first record would have)."""
        segments = self._known_segments()
        return segments.lowest_offset if segments.remote is None else self._access.reader.lowest_offset

    @property
    def local_offset(self) -> int:
        """The first offset that is stored here. What is between `lowest_offset` and this is only in the replica, and
        read from there: see docs/replicas.md."""
        if self._access.appender is None:
            self._access.segments.refresh()
        return self._access.segments.lowest_offset

    @property
    def is_tiered(self) -> bool:
        """Whether a part of it is only in the replica, as far as it is known here: reading that may take long."""
        return self._access.segments.remote is not None

    def _tier(self, lowest_offset: int) -> tuple[int, int]:
        return self.local_offset, self.remote_bytes

    @property
    def remote_bytes(self) -> int:
        """Bytes of the batches that are only in the replica, as far as it is known without asking it."""
        segments = self._known_segments()
        return 0 if segments.remote is None else sum(run.size_bytes for run in segments.remote.below(self.local_offset))

    def _known_segments(self) -> SegmentSet:
        """The segments as last read; in a forked child, that may be never."""
        if not self._access.segments.all:
            self._access.segments.refresh()
        return self._access.segments

    @property
    def next_offset(self) -> int:
        """The offset that the next record will get. For a log that only reads: `visible_offset`."""
        appender = self._access.appender
        if appender is None:
            return self.visible_offset
        # If what is written is visible, an append in progress in another thread does not count yet.
        return appender.written_offset if appender.is_between_appends else self._access.segments.next_offset

    @property
    def written_offset(self) -> int:
        """Every record below this is written, complete appends only: it survives the end of this process."""
        appender = self._access.appender
        return self.visible_offset if appender is None else appender.written_offset

    @property
    def visible_offset(self) -> int:
        """Every record below this can be read, here and in other processes, and none from here on. With durability
        "always" what is visible is durable; with the others it is written. See docs/visibility.md."""
        if self._access.appender is None:
            self._access.segments.refresh()
        return self._access.segments.visible_offset

    @property
    def last_stable_offset(self) -> int:
        """Below this every transaction is committed or aborted: where readers with isolation "committed" stop. The
        first offset of the earliest open transaction, or `visible_offset` if there is none."""
        if self._access.appender is None:
            self._access.segments.refresh()
        return self._access.segments.end(committed=True)

    @property
    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """Transactions of producers without a marker so far, in the order in which they began."""
        if self._access.appender is None:
            self._access.segments.refresh()
        return self._access.segments.outlook.open

    @property
    def producer_states(self) -> list[ProducerInfo]:
        """What the log knows of idempotent and transactional producers, by id."""
        return self._access.producers().describe()

    @property
    def durable_offset(self) -> int:
        """Every record below this survives a power cut. For a reader: as far as the writer has recorded it."""
        appender = self._access.appender
        if appender is not None and not appender.blocks.has_begun:  # on_lock is running: nothing is visible yet
            return min(appender.commit.durable_offset, self._access.segments.visible_offset)
        if appender is not None:
            return appender.marks.checked(appender.segments)[0]
        try:
            saved = checkpoint.load(self._access.directory)
        except CorruptFile:
            saved = None
        # Of two files that were written at different moments, the older is used.
        return self.local_offset if saved is None else min(saved.durable_offset, self.visible_offset)

    @property
    def durable_lag_bytes(self) -> int:
        """Bytes of batches that a power cut could still take back. 0 for a reader, which does not know."""
        appender = self._access.appender
        if appender is None:
            return 0
        _, segment, position = appender.marks.durable
        later = sum(each.size for each in appender.segments.all if each.base_offset >= segment)
        return max(later - position, 0)

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch, to which appends belong. -1 for a reader of a log of version 0.2, which has none.
        See docs/visibility.md."""
        if self._access.appender is None:
            self._access.segments.refresh()
        return self._access.segments.current_epoch

    @property
    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, its first offset), oldest first."""
        if self._access.appender is None:
            self._access.segments.refresh()
        return self._access.segments.epochs.entries

    def epoch_end(self, leader_epoch: int) -> int:
        """The first offset after a leader epoch: a position that was read in it and is beyond that goes back to it,
        because the records from there on are gone or different now. For the current epoch, and for -1 (a position
        without one): `visible_offset`."""
        if self._access.appender is None:
            self._access.segments.refresh()
        return self._access.segments.epoch_end(leader_epoch)

    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        """(`last_stable_offset`, leader epoch) at one moment, or (`visible_offset`, leader epoch) for a reader with
        isolation "uncommitted": where a reader that has read everything continues."""
        if self._access.appender is None:
            self._access.segments.refresh()
        return self._access.segments.position(committed=is_committed(isolation))

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches that are stored here."""
        return self._known_segments().size_bytes

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """The segments, oldest first; the last one is active."""
        return tuple(
            SegmentInfo(each.base_offset, each.next_offset, each.size, each.sealed, each.is_loaded, each.path)
            for each in self._known_segments().all
        )

    # --- appending

    def _writable(self) -> Appender:
        return self._access.writable(self._call_on_lock)

    def _call_on_lock(self) -> None:
        if self._on_lock is not None:
            self._on_lock(self)

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset. With `expect_offset`: at that offset, or `OffsetMismatch` and
        nothing."""
        appender = self._access.appender or self._writable()
        if appender.usual is not None:
            offset: int = appender.usual.append(value, key, headers, timestamp, expect_offset)
            if offset >= 0:
                return offset
        encoder = appender.encoders.take()
        try:
            batch = encoder.one(value, key, headers, timestamp if timestamp is None else milliseconds(timestamp))
            offset = appender.place(batch, expect_offset).start
        finally:
            appender.encoders.give_back(encoder)
        appender.settle(offset + 1)
        return offset

    def append_many(
        self, records: Iterable[GivenRecord], expect_offset: int | None = None, *, producer: Producer = NOBODY
    ) -> range:
        """Append records as one batch, all or none, also across a crash, and return their offsets.

        A record is bytes (a value), a `Record`, a dict, or a tuple in the order of `append`'s parameters. With
        `producer` the batch is idempotent: sent again, it is recognised and the same offsets are returned.
        """
        appender = self._access.appender or self._writable()
        placed = appender.place_many(records, expect_offset, producer)
        appender.settle(placed.stop)
        return placed

    def append_arrow(self, table: GivenTable, expect_offset: int | None = None) -> range:
        """Append the rows of an Arrow table: `value`, and optionally `key`, `timestamp`, `headers`.

        It becomes batches of about 128 KiB, all of them or none, except that a crash in the middle may keep the first
        ones.
        """
        appender = self._access.appender or self._writable()
        placed = append_table(appender, table, expect_offset)
        appender.settle(placed.stop)
        return placed

    def append_batches(
        self,
        raw: bytes | bytearray | memoryview,
        *,
        trusted: bool = False,
        wait: bool = True,
        expect_offset: int | None = None,
    ) -> range:
        """Place encoded batches unchanged, giving them the next offsets. All of them or none.

        They are checked first: structure, checksums, and that their records parse (not if they are `trusted`, because
        this library has made them: decoding compressed ones costs more than all the rest). A producer's batch that is
        already stored is recognised; if all of them are, the offsets they got the first time are returned. With
        `expect_offset` the others are placed at that offset, or `OffsetMismatch` is raised. With `wait=False` it does
        not wait for the disk: `when_settled` says when they may be acknowledged.
        """
        if not isinstance(raw, (bytes, bytearray, memoryview)):
            raise InvalidRecordType(f"append_batches expects encoded batches as bytes, not {type(raw).__name__}")
        return self._place_batches(bytearray(raw), trusted=trusted, wait=wait, expect_offset=expect_offset)

    def append_marker(
        self, producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0, wait: bool = True
    ) -> int:
        """End the producer's transaction: append the control batch that Kafka writes, and return its offset. It is
        written even if no transaction is open. From then on batches of an earlier epoch are refused; `ProducerFenced`
        if a later one is known."""
        appender = self._access.appender or self._writable()
        placed = markers.append_marker(appender, producer_id, epoch, coordinator_epoch, commit=commit)
        if wait:
            appender.settle(placed + 1)
        return placed

    def when_settled(self, offset: int, call: Callable[[BaseException | None], None]) -> None:
        """Call back when an append that ended at `offset` is as durable as the policy promises, with None; or with the
        error that prevents it. At once, in this thread, if there is nothing to wait for; else from a background thread.
        The callback must not raise, and should return soon."""
        self._writable().settling.when(whole_number(offset), call)

    def append_kept(self, raw: bytes | bytearray | memoryview, rows: Rows | None = None, *, wait: bool = True) -> range:
        """Place encoded batches at the offsets that they have, with their leader epochs. All of them or none.

        They begin at `next_offset` or after it, in increasing order; missing offsets are filled with a batch without
        records. A leader epoch below the current one is raised to it; a later one begins. They are checked as in
        `append_batches`, but their records are not parsed; not if `rows` are given: then the caller has scanned the
        headers and verified the checksums. With `wait=False` it does not wait for the disk: what is placed is durable,
        and under "always" visible, after `sync`.
        """
        appender = self._access.appender or self._writable()
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

    def append_stream(
        self,
        chunks: Iterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record from an iterable of chunks without holding it in memory, and return its offset. If it ends
        within 16 KiB, that costs what `append` costs.

        If it exceeds `max_bytes` or the space in the segment: `StreamTooLong`. If the iterable raises: `StreamAborted`
        from its error. In each case the log does not change. Other appends wait until it is done.
        """
        return streaming.append_stream(
            self._access.appender or self._writable(),
            chunks,
            key,
            max_bytes,
            headers,
            timestamp if timestamp is None else milliseconds(timestamp),
            expect_offset,
        )

    async def append_stream_async(
        self,
        chunks: AsyncIterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
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
            timestamp=milliseconds(timestamp),
            max_bytes=max_bytes,
            expect_offset=expect_offset,
        )

    async def append_async(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
    ) -> int:
        """As `append`, without blocking the event loop: concurrent tasks share a batch and its fdatasync.

        Once it has begun it is finished: a cancellation that comes later is delivered after the offset. So if it raises
        `CancelledError`, nothing is stored."""
        appends = self._access.loops.appends(self._access.appender or self._writable())
        return await appends.append(value, key, headers, timestamp if timestamp is None else milliseconds(timestamp))

    def writer(self, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None) -> Writer:
        """A buffered writer: the fast way to append records one by one. See `Writer`."""
        return Writer(self._writable(), batch_bytes, linger_ms)

    # --- reading

    def _readable(self) -> Reader:
        return self._access.readable()

    def _last(self) -> Record | None:
        return last_record(self._readable())

    # Who reads with isolation "committed" sees nothing from the last stable offset on, and no record of an aborted
    # transaction; with "uncommitted", everything that is visible. Markers are records for nobody. In a log without
    # transactions there is no difference.

    def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        """The record at `offset`; `OffsetOutOfRange` if there is none."""
        if self._access.closed:
            raise LogClosed(f"the log {self.path} is closed")
        return self._access.reader.read(offset, isolation == "committed" or is_committed(isolation))

    def scan(
        self,
        start: int | None = None,
        end: int | None = None,
        max_bytes: int | None = None,
        *,
        isolation: Isolation = "committed",
    ) -> Iterator[Record]:
        """The records with start <= offset < end, in order, as of now; by default all of them."""
        return self._readable().scan(start, end, max_bytes, committed=is_committed(isolation))

    def scan_arrow(
        self,
        start: int | None = None,
        end: int | None = None,
        batch_rows: int = ARROW_ROWS,
        *,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        views: bool = False,
        isolation: Isolation = "committed",
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches; `columns` may also include `headers` and `timestamp_type`.

        With `views` keys and values are binary_view arrays that point into the mapped log: nothing is copied.
        """
        if batch_rows < 1:
            raise InvalidConfig(f"batch_rows must be at least 1, not {batch_rows}")
        committed = is_committed(isolation)
        return self._readable().scan_arrow(start, end, batch_rows, columns, views, committed=committed)

    def fetch(
        self,
        start: int,
        max_bytes: int = 1 << 20,
        *,
        min_bytes: int = 0,
        timeout: float | None = 0.0,
        isolation: Isolation = "committed",
    ) -> Fetched:
        """Complete batches as stored, from the one that contains `start` on, up to `max_bytes` but at least one.

        At the end it is empty and `next_offset` is `start`; with `min_bytes` it waits for up to `timeout` seconds until
        there are that many, and returns what there is then. `OffsetOutOfRange` if the log is truncated meanwhile. With
        isolation "committed" the end is the last stable offset, and the page lists the aborted transactions in it
        (`aborted`). The batches are not filtered, and markers are batches like others; `records()` of the page decodes
        them and yields what `scan` yields.
        """
        committed = is_committed(isolation)
        if not min_bytes:
            return self._readable().fetch(start, max_bytes, committed=committed)
        return self._readable().fetch_patiently(start, max_bytes, min_bytes, timeout, committed=committed)

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever `visible_offset` may have moved, until the function that is returned is called. In the
        writer's process that happens at once, in the thread that moves it and while the log is locked: the callback
        must not raise, wait or use the log (`loop.call_soon_threadsafe` is what it is for). Elsewhere the log is looked
        at every 10 ms, and the callback runs in a background thread."""
        return self._access.watch(call)

    def follow(
        self, start: int | None = None, timeout: float | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[Record]:
        """Records from `start` on, waiting for new ones; ends when none came for `timeout` seconds. `OffsetOutOfRange`,
        with the end of the leader epoch, if the log was truncated below what was returned."""
        return self._readable().follow(start, timeout, committed=is_committed(isolation))

    def offset_at(self, timestamp: int | datetime) -> int:
        """The first offset whose record is not older than `timestamp`; `next_offset` if all are."""
        found = whole_number(milliseconds(timestamp), "a timestamp")
        return self._readable().offset_at(min(max(found, 0), kernel.MAX_TIMESTAMP + 1))

    def newest(self) -> tuple[int, int] | None:
        """Offset and timestamp of the record with the largest timestamp, the first of them; None if there is none."""
        return self._readable().newest()

    # --- upkeep

    def truncate(self, offset: int) -> int:
        """Drop the records from `offset` on and return how many offsets that are. The next record gets that offset."""
        return self._writable().truncate(whole_number(offset))

    def trim(self, offset: int) -> int:
        """Drop the records below `offset` and return how many offsets that are. Files are deleted when a whole segment
        is below."""
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

    def upkeep(self, config: UpkeepConfig | None = None, shipped: Shipped | None = None) -> UpkeepReport:
        """Do what is due by these settings: retention, compaction, merging, recompression, scrubbing; and remove here
        what is proven to be in the replica (`shipped`)."""
        return upkeep.upkeep(self._writable(), UpkeepConfig() if config is None else config, shipped)

    def shipped(self) -> Shipped | None:
        """What `local_retention_ms` and `local_retention_bytes` would remove here and is proven to be in the replica,
        and why it is not all of it; None if nothing is to be removed. Asks the replica, so it takes no lock, and may
        take long."""
        source, reader = self._access.remote, self._readable()
        return None if source is None else tiering.shipped(reader.segments, source)

    def upkeep_due(self, config: UpkeepConfig | None = None) -> bool:
        """Whether `upkeep` would find something to do; takes no lock and writes nothing."""
        self._readable().segments.refresh()
        return upkeep.is_due(self._access.segments, UpkeepConfig() if config is None else config)

    def sync(self) -> None:
        """Return when everything appended so far survives a power cut."""
        self._writable().sync()

    def seal(self) -> None:
        """Close the active segment now and continue in a new one."""
        self._writable().seal()

    def verify(self) -> VerifyReport:
        """Read and check everything; damage is listed in the report, not raised."""
        return verify(self._readable().segments, self._access.config.max_decompressed_bytes)

    # --- internal: the lock

    def _release(self) -> None:
        """Release the writer's lock cleanly and keep reading; the next write takes it again. Closes the open writers.
        Only for a log that was opened with mode "a"."""
        self._access.release()

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """Block appends, truncation and trimming by other threads; the holder may do all three. Takes the lock if
        necessary. Hold it briefly, and not around maintenance: `compact` and similar calls refuse to run inside."""
        appender = self._writable()
        with appender.lock:
            appender.check_open()
            yield

    def _take(self) -> None:
        """Take the writer's lock unless this process has it; `DirectoryLocked` if another process does."""
        with self._hold():
            pass

    def _lend_to_upkeep(self) -> None:
        """Before the first write in mode "a": let other writers wait for the release instead of refusing them. For
        maintenance, which ends soon."""
        self._access.lend_to_upkeep()

    @property
    def _lock_note(self) -> bytes:
        """Note that the current or last holder of the writer's lock left in the lock file."""
        return note_in(self._access.directory)

    def _leave_note(self, note: bytes) -> None:
        """Replace the note in the lock file. Best effort: a failed write keeps the old one."""
        self._writable().held.leave(note)

    @property
    def _wanted(self) -> bool:
        """Whether a writer waits for the lock."""
        return is_wanted(self._access.directory)

    def _want_lock(self) -> None:
        """Ask the process that holds the writer's lock to release it. Maintenance and idle stores do."""
        want(self._access.directory)

    @property
    def _is_busy(self) -> bool:
        """Whether to keep the writer's lock for now: a writer is open, or an append or maintenance runs."""
        return self._access.is_busy

    @property
    def _is_free(self) -> bool:
        """Whether no other thread is appending right now; a stream can take long."""
        appender = self._access.appender
        return appender is None or appender.is_free

    @property
    def _held_lock(self) -> object | None:
        """Writer's lock if this process holds it: a new object each time it is taken."""
        return self._access.appender.held if self._access.appender is not None and self._access.is_locked else None

    def _end_upkeep(self) -> None:
        """Stop maintenance that runs in another thread: it raises `LogClosed` there."""
        if self._access.appender is not None:
            self._access.appender.upkeep.cancel()

    def _fail(self, error: BaseException) -> None:
        """Stop writing because of an external failure: appends raise `LogFailed`, reads still work."""
        self._writable().commit.fail(error)

    @property
    def _segment_set(self) -> SegmentSet:
        """Current segments, for code that plans how to read them."""
        self._access.readable().segments.refresh()
        return self._access.segments

    @property
    def _remote(self) -> RemoteSource | None:
        """Source of the replica; None if the log has none."""
        return self._access.remote

    def _replica(self) -> RemoteLog:
        """Return this log in its replica, which has the offsets below `local_offset`."""
        return self._access.readable().replica()

    # --- internal: appending without waiting for the disk

    def _place_many(self, records: Iterable[GivenRecord], expect_offset: int | None = None) -> range:
        """Append records as `append_many` does, without waiting for the disk; see `when_settled`."""
        return (self._access.appender or self._writable()).place_many(records, expect_offset)

    def _place_batches(
        self,
        raw: bytearray | memoryview,
        *,
        trusted: bool = True,
        wait: bool = True,
        expect_offset: int | None = None,
        max_decompressed_bytes: int | None = None,
    ) -> range:
        """Append encoded batches from a buffer that the caller gives away. `max_decompressed_bytes` may lower the
        log's limit."""
        appender = self._access.appender or self._writable()
        placed = incoming.place(appender, memoryview(raw), trusted, expect_offset, max_decompressed_bytes)
        if wait:
            appender.settle(placed.stop)
        return placed

    def _check_batches(self, raw: bytes | bytearray | memoryview) -> None:
        """Raise what appending these batches would raise: for their structure, checksums or size."""
        self._writable().check_sizes(incoming.checked_rows(memoryview(raw)))

    def _number_file(self, directory: Directory, name: str, offset: int) -> Numbered | None:
        """Assign offsets from `offset` on to the batches in a file elsewhere. Then `sync` the result, in any thread,
        and pass it to `_adopt_file`. None if the file cannot become a segment. The caller holds the log."""
        return adopting.number(self._writable(), directory, name, offset)

    def _check_file(self, directory: Directory, name: str) -> int:
        """Return the number of offsets in a file of batches. Raises what their headers show would prevent appending
        them."""
        return adopting.check(self._writable(), directory, name)

    def _adopt_file(self, file: Numbered) -> range | None:
        """Make a numbered file the next segment without copying it, and return its offsets. The file keeps its other
        name and must not change. None if the file system has no hard links. Inside `appending`, or alone."""
        return adopting.adopt(self._writable(), file)

    def _copy_batches(self, data: memoryview, rows: Rows) -> range:
        """Append batches of another log whose checksums were verified, as `append_kept` does, without waiting for the
        disk. They may be larger than a segment."""
        return keeping.place_kept(self._writable(), data, rows, any_size=True)

    def _retract_epochs(self, epoch: int) -> None:
        """Drop the leader epochs after this one that have no batch. For a log that copies another: an interrupted copy
        begins such epochs, and the next batches have to keep theirs."""
        keeping.retract_epochs(self._writable(), epoch)

    def _claim(self, size_bytes: int) -> None:
        """Reserve disk space for this many bytes of batches until they are appended or `_unclaim` is called, as far as
        the file system supports it; `StorageFull`."""
        self._writable().active.claim(size_bytes)

    def _unclaim(self) -> None:
        """Release reserved space that is no longer needed."""
        self._writable().active.unclaim()

    # --- internal: reading

    def _cursors(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[kernel.RecordCursor]:
        """Scan as cursors, to be iterated over one after the other. A cursor has the offset after the last record that
        it returned (`next_offset`), and another thread may `stop` it."""
        return self._access.readable().cursors(start, end, committed=is_committed(isolation))

    def _following(
        self, start: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[kernel.RecordCursor | None]:
        """Follow as cursors, with None where there is nothing new: the caller waits (`watch`). Ends when the log is
        closed."""
        return self._access.readable().following(start, committed=is_committed(isolation))
