"""`Log`: one partition, append-only, segmented, durable. The public interface of this package.

```python
with Log.open("data/orders") as log:
    offset = log.append(b"value", key=b"key")
    log.append_many([b"one", b"two", (b"three", b"key")])
    log.read(offset).value
    for record in log.scan(offset): ...
```

Offsets are consecutive, from `lowest_offset` to `next_offset - 1`. One process writes; any number of threads and
processes (`mode="r"`) read up to `visible_offset`. Every method may be called from any thread.

Invariants, asserted where they could break: `durable_offset <= visible_offset <= written_offset <= next_offset`; a
batch is visible as a whole or not at all; an acknowledged record survives what its durability policy promises.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime, timedelta
from os import PathLike
from typing import TYPE_CHECKING, Literal

from ..batch import kernel
from ..batch.build import NO_PRODUCER, Producer
from ..batch.header import DEFAULT_COLUMNS, Rows
from ..batch.inputs import HeadersInput, RecordInput, TableInput
from ..batch.kernel import Record
from ..clock import milliseconds, now_ms
from ..closing import Closing
from ..config import DAY_MS, MAX_OFFSET, Isolation, LogConfig, MaintenanceConfig, is_committed, whole_number
from ..display import counted, size_text
from ..errors import CorruptFile, InvalidConfig, InvalidRecordType, LogClosed, SawlogError
from ..storage import Directory, MemoryDirectory
from ..storage.words import WaitPoint
from ..store.base import Partition, SegmentInfo, unsupported
from . import checkpoint, compaction, ingest, maintenance, retention, tiering
from . import open as access
from . import streams as streaming
from .appender import Appender
from .byte_reader import ByteReader
from .compaction import CompactionReport
from .ingest import NumberedFile
from .lock import is_release_requested, read_lock_note, request_release
from .maintenance import MaintenanceReport, MergeReport, RecompressionReport, ScrubReport
from .open import Access
from .producers import ProducerInfo
from .reader import ARROW_ROWS, Fetched, Reader
from .recovery import RecoveryReport
from .remote import RemoteLog, RemoteSource
from .retention import RetentionReport
from .segments import SegmentSet
from .tiering import ShippedSegments
from .transactions import OpenTransaction, marker
from .verify import VerifyReport, verify
from .writer import BATCH_BYTES, Writer

if TYPE_CHECKING:
    import pyarrow as pa


class Log(Partition, Closing):
    """One partition in files. Created by `Log.open` or `Log.in_memory`."""

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
        turn_timeout_s: float | None = None,
        note: bytes = b"",
        remote: RemoteSource | None = None,
    ) -> Log:
        """Open the log in a directory; with mode "w" (the default) create it if missing.

        A writer holds the directory's lock until it is closed; a second writer gets `DirectoryLocked` at once. Mode "r"
        writes and locks nothing: the log reads next to a running writer and sees its appends. Mode "a" is like "r"
        until the first write, which takes the lock, writes `note` to the lock file, recovers if necessary and calls
        `on_lock` with the log. With `turn_timeout_s` it takes turns with other processes that do the same
        (see turns.py): a write waits for so long, then raises `DirectoryLocked`. Records carry this `topic` and
        `partition`. Segments that were removed locally are read from `remote`, the replica of the store.
        """
        config = LogConfig() if config is None else config
        if mode not in ("w", "r", "a"):
            raise InvalidConfig(f'mode must be "w", "r" or "a", not {mode!r}')
        place = topic, partition
        if mode != "w":
            late = mode == "a"
            opened = access.open_to_read(
                path, config, place, locks_late=late, turn_timeout_s=turn_timeout_s, note=note, remote=remote
            )
            return cls(opened, on_lock)
        made = cls(access.open_to_write(path, config, place, remote), on_lock)
        with ExitStack() as undo:
            undo.callback(made.close)
            made._call_on_lock()
            made._writable().begin()
            undo.pop_all()
        return made

    @classmethod
    def _create(
        cls, path: str | PathLike[str] | Directory, config: LogConfig | None = None, *, leader_epoch: int = 0
    ) -> None:
        """Create an empty log, durably, without opening it. A log that takes the place of another begins in a later
        leader epoch."""
        access.create(path, LogConfig() if config is None else config, leader_epoch)

    @classmethod
    def in_memory(cls, config: LogConfig | None = None) -> Log:
        """Create a log in memory. It is lost with the process."""
        return cls.open(MemoryDirectory(), config)

    def close(self) -> None:
        """Flush open writers, sync, and mark the log as closed cleanly. Safe to call twice."""
        self._access.close()

    def remove(self) -> None:
        """Close the log and delete it: all its files, and the directory if it contains nothing else."""
        self._access.remove(self._writable())

    def _appending(self) -> AbstractContextManager[int]:
        """Group the appends of a `with` block into one: readers see all of them when the block ends, and none if it
        raises. Appends inside do not wait for the disk; the end of the block does, as the durability policy requires.
        Other threads are blocked meanwhile. Yields the offset of the first record."""
        return self._writable().durable_appending()

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
        """Settings that the log was opened with."""
        return self._access.config

    @property
    def recovery(self) -> RecoveryReport:
        """Report of the recovery when the log was opened."""
        return self._access.recovery

    @property
    def _was_closed_cleanly(self) -> bool:
        """True if the last writer closed the log cleanly, according to the checkpoint; False while a writer is open."""
        try:
            saved = checkpoint.load(self._access.directory)
        except CorruptFile:
            return False
        return saved is not None and saved.clean

    @property
    def _is_writable(self) -> bool:
        """True if this is the writer and no write has failed."""
        appender = self._access.appender or self._access.waiting
        return not self._access.closed and appender is not None and appender.durability.failure is None

    @property
    def _is_closed(self) -> bool:
        """True if the log is closed."""
        return self._access.closed

    @property
    def _current(self) -> bool:
        """True if the log sees the writes of other processes immediately. Always true for a log in files."""
        return True

    @property
    def _locked(self) -> bool:
        """True if this process holds the writer's lock."""
        return self._access.is_locked

    @property
    def lowest_offset(self) -> int:
        """First offset, including tiered segments; in an empty log, the offset of the next record."""
        segments = self._known_segments()
        return segments.lowest_offset if segments.remote is None else self._access.reader.lowest_offset

    @property
    def _local_offset(self) -> int:
        """First offset that is stored locally. Records between `lowest_offset` and this one are read from the replica;
        see docs/replicas.md."""
        return self._fresh_segments().lowest_offset

    @property
    def _is_tiered(self) -> bool:
        """True if a part of the log is known to exist only in the replica, where reading may be slow."""
        return self._known_segments().remote is not None

    def _tier(self, lowest_offset: int) -> tuple[int, int]:
        return self._local_offset, self._remote_bytes

    @property
    def _remote_bytes(self) -> int:
        """Size of the batches that are known to exist only in the replica."""
        remote = self._known_segments().remote
        return 0 if remote is None else sum(run.size_bytes for run in remote.below(self._local_offset))

    def _fresh_segments(self) -> SegmentSet:
        """Return the segments as they are now: a reader looks for changes, the writer knows them."""
        segments = self._access.segments
        segments.refresh()
        return segments

    def _known_segments(self) -> SegmentSet:
        """Return the segments as last read. A forked child may never have read them, and what this process has changed
        in its last turn must be known between two."""
        segments = self._access.segments
        if self._access.waiting is not None or not segments.all:
            segments.refresh()
        return segments

    @property
    def next_offset(self) -> int:
        """Offset of the next record; for a reader, `visible_offset`."""
        appender = self._access.appender
        if appender is None:
            return self.visible_offset
        # If written records are visible, an unfinished append of another thread does not count yet.
        return appender.written_offset if appender.is_between_appends else self._access.segments.next_offset

    @property
    def written_offset(self) -> int:
        """End of the complete appends: every record below this offset survives the end of this process."""
        appender, waiting = self._access.appender, self._access.waiting
        if appender is not None:
            return appender.written_offset
        # What this process has appended may not be visible yet, whatever others have appended since.
        return max(self.visible_offset, waiting.written_offset if waiting is not None else 0)

    @property
    def visible_offset(self) -> int:
        """End of the readable records, for every reader in every process. With durability "always" visible records are
        durable; with the other policies they are written. See docs/visibility.md."""
        return self._fresh_segments().visible_offset

    @property
    def last_stable_offset(self) -> int:
        """First offset of the earliest open transaction, or `visible_offset`: where readers with isolation "committed"
        stop."""
        return self._fresh_segments().end(committed=True)

    @property
    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """Open transactions of producers, in the order in which they began."""
        return self._fresh_segments().transaction_view.open

    @property
    def _producer_states(self) -> list[ProducerInfo]:
        """State of the idempotent and transactional producers, by id."""
        return self._access.producers().describe()

    @property
    def durable_offset(self) -> int:
        """End of the durable records: every record below this offset survives a power cut. A reader gets the offset
        that the writer last recorded."""
        appender = self._access.appender
        if appender is not None and not appender.has_begun:  # on_lock is running: nothing is visible yet
            return min(appender.durability.durable_offset, self._access.segments.visible_offset)
        if appender is not None:
            return appender.durability.consistent_ends()[0]
        try:
            saved = checkpoint.load(self._access.directory)
        except CorruptFile:
            saved = None
        waiting = self._access.waiting
        known = 0 if waiting is None else waiting.durability.durable_offset
        # The two files were written at different times: use the lower offset.
        return self._local_offset if saved is None else min(max(saved.durable_offset, known), self.visible_offset)

    @property
    def _durable_lag_bytes(self) -> int:
        """Size of the batches that a power cut could still lose, of this process; 0 for a reader."""
        appender = self._access.appender or self._access.waiting
        if appender is None:
            return 0
        _, segment, position = appender.durability.durable
        later = sum(each.size for each in appender.segments.all if each.base_offset >= segment)
        return max(later - position, 0)

    @property
    def leader_epoch(self) -> int:
        """Current leader epoch, which new batches carry. -1 for a reader that does not know it, because the checkpoint
        is missing. See docs/visibility.md."""
        return self._fresh_segments().current_epoch

    @property
    def _leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """(epoch, its first offset), oldest first."""
        return self._fresh_segments().epochs.entries

    def epoch_end(self, leader_epoch: int) -> int:
        """Return the first offset after a leader epoch. A reader whose position was read in that epoch and lies beyond
        this offset has to go back to it: the records from there on are gone or different. For the current epoch and
        for -1 (a position without an epoch), return `visible_offset`."""
        return self._fresh_segments().epoch_end(leader_epoch)

    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        """Return where a reader that has read everything continues: the offset and its leader epoch, read atomically.
        The offset is `last_stable_offset`, or `visible_offset` with isolation "uncommitted"."""
        return self._fresh_segments().position(committed=is_committed(isolation))

    @property
    def size_bytes(self) -> int:
        """Size of all batches that are stored locally."""
        return self._known_segments().size_bytes

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """Segments, oldest first; the last one is active."""
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
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset. With `expect_offset`, append it there or raise `OffsetMismatch`."""
        appender = self._access.appender or self._writable()
        offset: int = appender.placer.append(value, key, headers, timestamp, expect_offset)
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
        self, records: Iterable[RecordInput], expect_offset: int | None = None, *, producer: Producer = NO_PRODUCER
    ) -> range:
        """Append records as one batch, all or none even across a crash, and return their offsets.

        A record is bytes (a value), a `Record`, a dict, or a tuple in the order of `append`'s parameters. With
        `producer` the batch is idempotent: a repeated batch is recognised, and the same offsets are returned.
        """
        appender = self._access.appender or self._writable()
        placed = appender.place_many(records, expect_offset, producer)
        appender.settle(placed.stop)
        return placed

    def append_arrow(self, table: TableInput, expect_offset: int | None = None) -> range:
        """Append the rows of an Arrow table: `value`, and optionally `key`, `timestamp`, `headers`.

        The rows become batches of about 128 KiB. All of them are appended or none, except that a crash in the middle
        may keep the first ones.
        """
        appender = self._access.appender or self._writable()
        placed = ingest.append_table(appender, table, expect_offset)
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
        """Append encoded batches unchanged, all of them or none, and return their offsets.

        Their structure, checksums and records are checked first. The records of `trusted` batches, which this library
        has encoded, are not: decompressing them costs more than everything else. A producer's batch that is already
        stored is recognised; if all are, their first offsets are returned. With `expect_offset` the others are
        appended there, or `OffsetMismatch` is raised. With `wait=False` the call does not wait for the disk; call
        `sync` before acknowledging them.
        """
        if not isinstance(raw, (bytes, bytearray, memoryview)):
            raise InvalidRecordType(f"append_batches expects encoded batches as bytes, not {type(raw).__name__}")
        return self._place_batches(bytearray(raw), trusted=trusted, wait=wait, expect_offset=expect_offset)

    def append_marker(
        self, producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0, wait: bool = True
    ) -> int:
        """End a producer's transaction: append Kafka's control batch and return its offset, even if no transaction is
        open. Batches of earlier producer epochs are refused from then on. `ProducerFenced` if a later epoch is
        known."""
        appender = self._access.appender or self._writable()
        data = memoryview(marker(producer_id, epoch, coordinator_epoch, now_ms(), commit=commit))
        with appender.hold():
            appender.producers.check_epoch(producer_id, epoch)
            placed = appender.place_rows(data, ingest.rows_of(data)).start
        if wait:
            appender.settle(placed + 1)
        return placed

    def _when_settled(self, offset: int, call: Callable[[BaseException | None], None]) -> None:
        """Call back with None when an append that ended at `offset` is as durable as the policy promises, or with the
        error that prevents it. The callback runs immediately, in this thread, if there is nothing to wait for,
        otherwise in a background thread. It must not raise and should return quickly."""
        self._known_appender().durability_callbacks.when(whole_number(offset), call)

    def _append_at_offsets(
        self, raw: bytes | bytearray | memoryview, rows: Rows | None = None, *, wait: bool = True
    ) -> range:
        """Append encoded batches at the offsets and leader epochs that they carry, all of them or none.

        They begin at `next_offset` or later, in increasing order; gaps are filled with an empty batch. A leader epoch
        below the current one is raised to it; a higher one begins. Structure and checksums are checked unless the
        caller has done so and passes the headers as `rows`; records are not parsed. With `wait=False` it does not wait
        for the disk: call `sync`.
        """
        appender = self._access.appender or self._writable()
        data = memoryview(raw)
        placed = ingest.place_at_offsets(appender, data, ingest.checked_rows(data) if rows is None else rows)
        if wait:
            appender.settle(placed.stop)
        return placed

    def _advance(self, offset: int, *, leader_epoch: int = 0, wait: bool = True) -> int:
        """Move `next_offset` forward and return the number of offsets skipped, which never get a record. An empty log
        then begins there. With `wait=False` it does not wait for the disk."""
        if whole_number(offset) > MAX_OFFSET:
            raise InvalidConfig(f"the next offset of a log can be at most {MAX_OFFSET}, not {offset}")
        appender = self._writable()
        passed = ingest.advance(appender, offset, leader_epoch)
        if wait:
            appender.settle(offset)
        return passed

    def append_stream(
        self,
        chunks: Iterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record from an iterable of chunks without holding it in memory, and return its offset. Up to
        16 KiB it costs as much as `append`.

        Raises `StreamTooLong` if the value exceeds `max_bytes` or does not fit into a segment, and `StreamAborted` if
        the iterable raises; the log is then unchanged. Other appends block until the stream ends.
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
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record from an async iterable of chunks. A slow stream blocks no other append, and a cancelled one
        leaves nothing behind."""
        from .async_appends import in_thread, past_recall

        return await streaming.append_stream_async(
            self._known_appender(),
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
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record without blocking the event loop. Concurrent tasks share a batch and its fdatasync. With
        `expect_offset`, append at that offset, in a batch of its own, or raise `OffsetMismatch`.

        An append that has begun is finished; a later cancellation is delivered after it returns. So if it raises
        `CancelledError`, nothing was stored."""
        if expect_offset is not None:
            from .async_appends import past_recall

            return await past_recall(self.append, value, key, headers, timestamp, expect_offset)
        appends = self._access.async_appenders.for_running_loop(self._known_appender())
        return await appends.append(value, key, headers, timestamp if timestamp is None else milliseconds(timestamp))

    def writer(self, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None) -> Writer:
        """Return a buffered writer: the fast way to append records one by one. See `Writer`."""
        return Writer(self._writable(), batch_bytes, linger_ms)

    # --- reading

    def _readable(self) -> Reader:
        return self._access.readable()

    def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        """Return the record at `offset`; `OffsetOutOfRange` if there is none, `NotYetVisible` if it is not durable
        or not committed yet."""
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
        """Return the records with start <= offset < end as of now, in order; by default all of them."""
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
        """Return the same records as Arrow record batches; `columns` may also include `headers` and `timestamp_type`.

        With `views`, keys and values are binary_view arrays that point into the mapped segments, without a copy.
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
        """Return whole batches as stored, from the one that contains `start`, up to `max_bytes` but at least one.

        At the end of the log the page is empty and its `next_offset` is `start`. With `min_bytes` it blocks for up to
        `timeout` seconds until there are that many, and returns what there is then; `OffsetOutOfRange` if the log is
        truncated meanwhile. With isolation "committed" the page ends at the last stable offset and lists the aborted
        transactions in it (`aborted`). Batches are not filtered, markers included; `records()` of the page yields what
        `scan` yields.
        """
        committed = is_committed(isolation)
        if not min_bytes:
            return self._readable().fetch(start, max_bytes, committed=committed)
        return self._readable().fetch_when_available(start, max_bytes, min_bytes, timeout, committed=committed)

    def reader(self) -> io.BufferedReader:
        """Return the bytes of all batches that are visible now, as one file to read, seek in and close.

        They are the stored batches, whole and unfiltered, from the one that contains `lowest_offset`. `append_batches`
        appends them to another log, all at once or some whole batches at a time. The files of the segments stay open,
        with a descriptor each, so nothing that happens to the log meanwhile disturbs the reader.
        """
        segments = self._readable().segments
        if self._is_tiered:  # also refreshes what is outdated between two turns
            raise unsupported(self.path, "reader() while a part of it is only in the replica; use fetch()")
        return io.BufferedReader(ByteReader(segments))

    def _watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever `visible_offset` may have moved. Returns a function that stops the calls. In the writer's
        process the call comes at once, in the thread that moved it and while the log is locked: the callback must not
        raise, block or use the log (use `loop.call_soon_threadsafe`). In other processes the log is polled every 10 ms,
        and the callback runs in a background thread."""
        return self._access.watch(call)

    def follow(
        self, start: int | None = None, timeout: float | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[Record]:
        """Return records from `start` on, and new ones as they arrive. Ends when none arrived for `timeout` seconds.
        Raises `OffsetOutOfRange`, with the end of the leader epoch, if the log was truncated below the last record."""
        return self._readable().follow(start, timeout, committed=is_committed(isolation))

    def offset_at(self, timestamp: int | datetime) -> int:
        """Return the first offset whose record is not older than `timestamp`, or `next_offset`."""
        found = whole_number(milliseconds(timestamp), "a timestamp")
        return self._readable().offset_at(min(max(found, 0), kernel.MAX_TIMESTAMP + 1))

    def _newest(self) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record with the largest timestamp; None in an empty log."""
        return self._readable().newest()

    # --- maintenance

    def truncate(self, offset: int) -> int:
        """Drop the records from `offset` on and return the number of offsets dropped. The next record gets `offset`."""
        return self._writable().truncate(whole_number(offset))

    def trim(self, offset: int) -> int:
        """Drop the records below `offset` and return the number of offsets dropped. Deletes segments that are entirely
        below it."""
        return retention.trim(self._writable(), whole_number(offset))

    def remove_expired(self, max_age: timedelta | float) -> int:
        """Drop leading segments whose newest record is at least this old (timedelta, or milliseconds), and return the
        number of records dropped."""
        return retention.remove_expired(self._writable(), max_age)

    def apply_retention(self) -> RetentionReport:
        """Drop the segments that exceed `retention_ms` or `retention_bytes`."""
        return retention.apply_retention(self._writable())

    def compact(self, delete_retention_ms: int = DAY_MS) -> CompactionReport:
        """Keep only the last record of each key in the sealed segments, and remove tombstones older than
        `delete_retention_ms`."""
        return compaction.compact(self._writable(), delete_retention_ms=delete_retention_ms)

    def _merge_segments(self, below_bytes: int | None = None) -> MergeReport:
        """Merge neighbouring sealed segments smaller than `below_bytes` (by default `segment_bytes`)."""
        return maintenance.merge_segments(self._writable(), below_bytes)

    def _recompress(self, compression: str = "zstd", level: int | None = None) -> RecompressionReport:
        """Recompress the sealed segments that use another compression."""
        return maintenance.recompress(self._writable(), compression, level=level)

    def _scrub(self) -> ScrubReport:
        """Read and check every sealed segment. The report lists the damage; nothing is raised for it."""
        return maintenance.scrub(self._writable())

    def maintain(
        self, config: MaintenanceConfig | None = None, shipped: ShippedSegments | None = None
    ) -> MaintenanceReport:
        """Run the maintenance that these settings ask for: retention, compaction, merging, recompression, scrubbing.
        Also removes local segments that are proven to be in the replica (`shipped`)."""
        return maintenance.maintain(self._writable(), MaintenanceConfig() if config is None else config, shipped)

    def _shipped(self) -> ShippedSegments | None:
        """Return the segments that `local_retention_ms` and `local_retention_bytes` would remove and that are proven to
        be in the replica, and the reason if some are not; None if nothing is due. Reads the replica without a lock,
        which may take long."""
        source, reader = self._access.remote, self._readable()
        return None if source is None else tiering.shipped(reader.segments, source)

    def _maintenance_due(self, config: MaintenanceConfig | None = None) -> bool:
        """Return whether `maintain` would find something to do. Takes no lock and writes nothing."""
        self._readable().segments.refresh()
        return maintenance.is_due(self._access.segments, MaintenanceConfig() if config is None else config)

    def sync(self) -> None:
        """Block until everything appended so far is durable."""
        self._writable().sync()

    def seal(self) -> None:
        """Seal the active segment and continue in a new one."""
        self._writable().seal()

    def verify(self) -> VerifyReport:
        """Read and check everything. The report lists the damage; nothing is raised for it."""
        return verify(self._readable().segments, self._access.config.max_decompressed_bytes)

    # --- internal: the lock

    def _release(self) -> None:
        """Release the writer's lock cleanly and keep reading; the next write takes it again. Closes the open writers.
        Only for a log that was opened with mode "a"."""
        self._access.release()

    @contextmanager
    def _hold(self, timeout_s: float | None = None) -> Iterator[None]:
        """Block appends, truncation and trimming by other threads; the holder may do all three. Takes the lock if
        necessary, and keeps the turn; waits for it up to `timeout_s`, or as long as an append does. Hold it briefly,
        and not around maintenance: `compact` and similar calls refuse to run inside."""
        while True:
            with access.waiting_for(timeout_s):
                appender = self._writable()
            with appender.lock, ExitStack() as held:
                if self._access.is_released(appender):  # just now: take the lock again
                    continue
                with access.waiting_for(timeout_s):
                    held.enter_context(appender.hold())
                yield
                return

    def _settle(self, offset: int) -> None:
        """Block until an append that ended at `offset` is as durable as the policy promises."""
        self._known_appender().settle(offset)

    def _known_appender(self) -> Appender:
        """Return the appender of the last append, which need not be in its turn."""
        return self._access.appender or self._access.waiting or self._writable()

    def _end_turn(self) -> bool:
        """Give the lock to other processes until the next write, unless it is in use; return whether it was given."""
        return self._access.end_turn()

    def _disown(self) -> None:
        """Leave this turn unfinished: every other process examines the log before it writes, and calls its `on_lock`.
        Within `_hold`, before the directory is moved or deleted."""
        self._writable().disown()

    def _take(self) -> None:
        """Take the writer's lock unless this process has it; `DirectoryLocked` if another process does."""
        with self._hold():
            pass

    def _lend_to_maintenance(self) -> None:
        """Before the first write in mode "a": let other writers wait for the release instead of refusing them. For
        maintenance, which ends soon."""
        self._access.lend_to_maintenance()

    @property
    def _turn_timeout_s(self) -> float | None:
        """Time that a write waits for its turn; None if the log takes no turns."""
        return self._access.turn_timeout_s

    @property
    def _lock_note(self) -> bytes:
        """Note that the current or last holder of the writer's lock left in the lock file."""
        return read_lock_note(self._access.directory)

    def _leave_note(self, note: bytes) -> None:
        """Replace the note in the lock file. Best effort: a failed write keeps the old one."""
        self._writable().held.leave(note)

    @property
    def _wanted(self) -> bool:
        """True if a writer waits for the lock."""
        return is_release_requested(self._access.directory)

    def _want_lock(self) -> None:
        """Ask the process that holds the writer's lock to release it. Maintenance and idle stores do."""
        request_release(self._access.directory)

    @property
    def _is_busy(self) -> bool:
        """True while the writer's lock has to be kept: a writer is open, or an append or maintenance runs."""
        return self._access.is_busy

    @property
    def _is_free(self) -> bool:
        """True if no other thread is appending right now; a stream can take long."""
        appender = self._access.appender
        return appender is None or appender.is_free

    @property
    def _held_lock(self) -> object | None:
        """Writer's lock if this process holds it: a new object each time it is taken."""
        appender = self._access.appender
        return appender.held if appender is not None and appender.held.held and not self._access.closed else None

    def _end_maintenance(self) -> None:
        """Stop maintenance that runs in another thread: it raises `LogClosed` there."""
        if self._access.appender is not None:
            self._access.appender.maintenance_lock.cancel()

    def _fail(self, error: BaseException) -> None:
        """Stop writing because of an external failure: appends raise `LogFailed`, reads still work."""
        self._writable().durability.fail(error)

    @property
    def _segment_set(self) -> SegmentSet:
        """Current segments, for code that plans how to read them."""
        self._readable()
        return self._fresh_segments()

    @property
    def _remote(self) -> RemoteSource | None:
        """Source of the replica; None if the log has none."""
        return self._access.remote

    def _replica(self) -> RemoteLog:
        """Return this log in its replica, which has the offsets below `_local_offset`."""
        return self._readable().replica()

    # --- internal: appending without waiting for the disk

    def _place_many(self, records: Iterable[RecordInput], expect_offset: int | None = None) -> range:
        """Append records as `append_many` does, without waiting for the disk; see `_when_settled`."""
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
        placed = ingest.place(appender, memoryview(raw), trusted, expect_offset, max_decompressed_bytes)
        if wait:
            appender.settle(placed.stop)
        return placed

    def _submit(
        self, raw: bytearray | memoryview, *, trusted: bool = True, max_decompressed_bytes: int | None = None
    ) -> range:
        """Append encoded batches from a buffer that the caller gives away, without waiting for the disk."""
        return self._place_batches(raw, trusted=trusted, wait=False, max_decompressed_bytes=max_decompressed_bytes)

    def _check_batches(self, raw: bytes | bytearray | memoryview) -> None:
        """Raise what appending these batches would raise: for their structure, checksums or size."""
        self._writable().check_sizes(ingest.checked_rows(memoryview(raw)))

    def _number_file(self, directory: Directory, name: str, offset: int) -> NumberedFile | None:
        """Assign offsets from `offset` on to the batches in a file elsewhere. Then `sync` the result, in any thread,
        and pass it to `_adopt_file`. None if the file cannot become a segment. The caller holds the log."""
        return ingest.number(self._writable(), directory, name, offset)

    def _check_file(self, directory: Directory, name: str) -> int:
        """Return the number of offsets in a file of batches. Raises what their headers show would prevent appending
        them."""
        return ingest.check(self._writable(), directory, name)

    def _adopt_file(self, file: NumberedFile) -> range | None:
        """Make a numbered file the next segment without copying it, and return its offsets. The file keeps its other
        name and must not change. None if the file system has no hard links. Inside `_appending`, or alone."""
        return ingest.adopt(self._writable(), file)

    def _copy_batches(self, data: memoryview, rows: Rows) -> range:
        """Like `_append_at_offsets(wait=False)`, for batches of another log whose checksums were verified. They may be
        larger than a segment."""
        return ingest.place_at_offsets(self._writable(), data, rows, any_size=True)

    def _retract_epochs(self, epoch: int) -> None:
        """Drop the leader epochs after this one that have no batch. For a log that copies another: an interrupted copy
        begins such epochs, and the next batches have to keep theirs."""
        ingest.retract_epochs(self._writable(), epoch)

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
        return self._readable().cursors(start, end, committed=is_committed(isolation))

    def _wait_point(self) -> WaitPoint | None:
        """See `Partition._wait_point`."""
        return self._access.segments.wait_point()

    def _following(
        self, start: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[kernel.RecordCursor | None]:
        """Follow as cursors, with None where there is nothing new: the caller waits (`_watch`). Ends when the log is
        closed."""
        return self._readable().following(start, committed=is_committed(isolation))
