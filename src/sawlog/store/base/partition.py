"""`Partition`: records at consecutive offsets, in a `Log` in files or in extents on object storage."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, overload

from ...batch import kernel
from ...batch import read as batch_read
from ...batch.build import NO_PRODUCER, Encoded, Encoder, EncoderOptions, Producer
from ...batch.header import DEFAULT_COLUMNS, LAST, POSITION, Rows, visible_batches
from ...batch.inputs import HeadersInput, RecordInput, TableInput
from ...batch.kernel import Record
from ...clock import Deadline, PollBackoff, milliseconds, now_ms, pause
from ...config import Isolation, LogConfig, checked_count, is_committed, whole_number
from ...display import html_block, records_html, render_soon
from ...errors import (
    AmbiguousAppend,
    CorruptBatch,
    InvalidConfig,
    InvalidRecord,
    InvalidRecordType,
    LogClosed,
    NotYetVisible,
    OffsetOutOfRange,
    RecordRemoved,
    StorageError,
    StreamAborted,
    StreamTooLong,
)
from ...log.ingest import rows_of
from ...log.producers import ProducerInfo
from ...log.reader import ARROW_ROWS, Fetched
from ...log.transactions import marker
from ...log.verify import VerifyReport
from ...log.writer import BATCH_BYTES, Placement, Writer, recipe_of
from ...storage.words import WaitPoint, wait_any

if TYPE_CHECKING:
    import pyarrow as pa

    from ...typed.serializers import MetadataSerializer, RawHeaders, Serializer
    from ...typed.views import TypedLog
    from .topic import Topic

V = TypeVar("V")
K = TypeVar("K")
M = TypeVar("M")

#: Size of a page of batches when a range is read page by page.
PAGE_BYTES = 4 << 20
#: Largest value of a stream that is collected in memory.
STREAM_BYTES = 256 << 20
#: Number of records shown in a notebook, and their maximum size.
MOST_SHOWN, _SHOWN_BYTES = 5, 1 << 20
#: Number of offsets in the first step of the search for the last record, and the growth factor of later steps.
_FIRST, _TIMES = 16, 8


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Information about one segment or extent."""

    base_offset: int
    next_offset: int
    size_bytes: int
    sealed: bool
    mapped: bool
    path: str


def unsupported(where: str, what: str) -> StorageError:
    """Return the error for an operation that a backend does not have."""
    return StorageError(errno.ENOTSUP, f"{where} does not support {what}")


class Partition(ABC):
    """One partition: records at consecutive offsets. Every method may be called from any thread.

    With isolation "committed", the default, a reader stops at the last stable offset and skips the records of aborted
    transactions; with "uncommitted" it gets everything that is visible. No reader gets transaction markers.
    """

    # --- the abstract core

    @property
    @abstractmethod
    def path(self) -> str:
        """Location, for messages."""

    @property
    @abstractmethod
    def config(self) -> LogConfig:
        """Settings of the partition."""

    @property
    @abstractmethod
    def _is_closed(self) -> bool:
        """True if the partition was closed."""

    @property
    @abstractmethod
    def lowest_offset(self) -> int:
        """First offset; in an empty partition, the offset of the next record."""

    @abstractmethod
    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        """Return where a reader that has read everything continues: the offset and its leader epoch, read
        atomically."""

    @property
    @abstractmethod
    def segments(self) -> Sequence[SegmentInfo]:
        """Segments or extents, oldest first."""

    @abstractmethod
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
        Blocks for up to `timeout` seconds until there are `min_bytes`."""

    @abstractmethod
    def append_batches(
        self,
        raw: bytes | bytearray | memoryview,
        *,
        trusted: bool = False,
        wait: bool = True,
        expect_offset: int | None = None,
    ) -> range:
        """Append encoded batches unchanged, all of them or none, and return their offsets."""

    @abstractmethod
    def _watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever the visible end may have moved. Returns a function that stops the calls."""

    def _wait_point(self) -> WaitPoint | None:
        """Return a point to sleep at until there may be more records, after reading found none; None: poll."""
        return None

    @abstractmethod
    def offset_at(self, timestamp: int | datetime) -> int:
        """Return the first offset whose record is not older than `timestamp`, or the end."""

    @abstractmethod
    def epoch_end(self, leader_epoch: int) -> int:
        """Return the first offset after a leader epoch."""

    @abstractmethod
    def trim(self, offset: int) -> int:
        """Drop the records below `offset` and return the number of offsets dropped."""

    @abstractmethod
    def verify(self) -> VerifyReport:
        """Read and check everything. The report lists the damage; nothing is raised for it."""

    @abstractmethod
    def _newest(self) -> tuple[int, int] | None:
        """Return offset and timestamp of the record with the largest timestamp; None if there is none."""

    # --- ends

    @property
    def visible_offset(self) -> int:
        """End of the readable records: every record below this offset can be read."""
        return self.position(isolation="uncommitted")[0]

    @property
    def last_stable_offset(self) -> int:
        """First offset of the earliest open transaction, or `visible_offset`."""
        return self.position()[0]

    @property
    def leader_epoch(self) -> int:
        """Current leader epoch, which new batches carry."""
        return self.position(isolation="uncommitted")[1]

    @property
    def _leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """The known leader epochs with their first offsets, oldest first; at least the current one."""
        return ((self.leader_epoch, self.lowest_offset),)

    # --- state of a writer; the defaults are for partitions without files, whose appends are durable on return

    @property
    def next_offset(self) -> int:
        return self.visible_offset

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.segments)

    @property
    def _locked(self) -> bool:
        """True if this process may write to the partition."""
        return True

    @property
    def _is_writable(self) -> bool:
        """False after a failure that only reopening repairs."""
        return True

    @property
    def _current(self) -> bool:
        """True if writes of other processes are visible at once; otherwise answers may be stale."""
        return True

    @property
    def written_offset(self) -> int:
        """Every record below this offset is written."""
        return self.visible_offset

    @property
    def durable_offset(self) -> int:
        """Every record below this offset survives a power cut."""
        return self.visible_offset

    @property
    def _durable_lag_bytes(self) -> int:
        """Bytes that would not survive a power cut."""
        return 0

    @property
    def _is_tiered(self) -> bool:
        """True if a part of the partition is read from a replica, over the network."""
        return False

    @property
    def _local_offset(self) -> int:
        """Records below this offset are read from the replica, which may be slow."""
        return self.lowest_offset

    # --- serving: methods for a broker's event loop, besides `_watch` and `_when_settled`. Only a partition of a
    # `StoreService` is guaranteed not to block in `_submit` and `_peek`.

    def _when_settled(self, offset: int, call: Callable[[BaseException | None], None]) -> None:
        """Call back when an append that ended at `offset` may be acknowledged, or with its error."""
        call(None)

    @property
    def _producer_states(self) -> list[ProducerInfo]:
        """State of the known producers."""
        return []

    def _take(self) -> None:
        """Become the writer; `DirectoryLocked` if another process is. Blocks."""

    def _submit(
        self, raw: bytearray | memoryview, *, trusted: bool = True, max_decompressed_bytes: int | None = None
    ) -> range | Future[range]:
        """Append encoded batches from a buffer that the caller gives away. Return their offsets, which `_when_settled`
        acknowledges, or a future where a commit assigns them. `max_decompressed_bytes` may lower the limit of the
        settings."""
        return self.append_batches(raw, trusted=trusted)

    def _peek(
        self, start: int, max_bytes: int = 1 << 20, *, isolation: Isolation = "committed"
    ) -> Fetched | Future[Fetched]:
        """Return what `fetch` returns, or a future of it if that takes a request over the network."""
        return self.fetch(start, max_bytes, isolation=isolation)

    def append_marker(self, producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0) -> int:
        """End a producer's transaction in this partition, and return the offset of the marker. Blocks."""
        data = marker(producer_id, epoch, coordinator_epoch, now_ms(), commit=commit)
        return self.append_batches(data, trusted=True).start

    # --- as a sequence

    def _repr_html_(self) -> str:
        """Return offsets, size and the last records as HTML for a notebook. Returns soon, even if a lock is held."""
        return render_soon(self, lambda: html_block(repr(self), records_html(self._to_show())))

    def _to_show(self) -> list[Record]:
        """Return the last records, or none if they are too large to show."""
        end = self.last_stable_offset
        start = max(end - MOST_SHOWN, self.lowest_offset)
        if start >= end or sum(len(each) for each in self.fetch(start, 1).buffers) > _SHOWN_BYTES:
            return []
        return list(self.scan(start, end, _SHOWN_BYTES))

    def __len__(self) -> int:
        return self.visible_offset - self.lowest_offset

    def __bool__(self) -> bool:
        return True  # an empty partition is still a partition: `if log:` checks for None

    @overload
    def __getitem__(self, which: int) -> Record: ...

    @overload
    def __getitem__(self, which: slice) -> list[Record]: ...

    def __getitem__(self, which: int | slice) -> Record | list[Record]:
        """Return `log[offset]`. `log[-1]` is the last record, `log[-2]` the one two offsets before the end; `log[a:b]`
        is a list of the records with a <= offset < b."""
        if isinstance(which, slice):
            if which.step not in (None, 1):
                raise InvalidRecordType("a slice of a log cannot have a step")
            return list(self._slice(which.start, which.stop))
        which = whole_number(which)
        try:
            return self.read(which if which >= 0 else self.last_stable_offset + which)
        except RecordRemoved:
            if which == -1 and (found := self._last()) is not None:
                return found
            raise

    def _slice(self, start: int | None, stop: int | None) -> Iterator[Record]:
        lowest, end = self.lowest_offset, self.last_stable_offset
        start = lowest if start is None else start + end if start < 0 else start
        stop = end if stop is None else stop + end if stop < 0 else stop
        return self.scan(min(max(start, lowest), end), max(stop, 0))

    def __iter__(self) -> Iterator[Record]:
        return self.scan()

    def __contains__(self, offset: object) -> bool:
        """Return whether there is a record at this offset: `5 in log`."""
        if isinstance(offset, bool) or not isinstance(offset, SupportsIndex):
            raise InvalidRecordType(f"`in` expects an offset, not {type(offset).__name__}")
        try:
            self.read(index(offset))
        except LookupError:
            return False
        return True

    # --- appending

    @property
    def _recipe(self) -> EncoderOptions:
        return recipe_of(self.config)

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset. With `expect_offset`, append it there or raise `OffsetMismatch`."""
        batch = Encoder(self._recipe).one(value, key, headers, milliseconds(timestamp))
        return self.append_batches(bytes(batch.data), trusted=True, expect_offset=expect_offset).start

    def append_many(
        self, records: Iterable[RecordInput], expect_offset: int | None = None, *, producer: Producer = NO_PRODUCER
    ) -> range:
        """Append records as one batch, all or none, and return their offsets.

        A record is bytes (a value), a `Record`, a dict, or a tuple in the order of `append`'s parameters. With
        `producer` the batch is idempotent: sent again, it is recognised and the same offsets are returned.
        """
        batch = Encoder(self._recipe).many(records, producer)
        return self.append_batches(bytes(batch.data), trusted=True, expect_offset=expect_offset)

    def append_arrow(self, table: TableInput, expect_offset: int | None = None) -> range:
        """Append the rows of an Arrow table and return their offsets. Columns: `value`, and optionally `key`,
        `timestamp`, `headers`."""
        return self.append_batches(encoded_table(self._recipe, table), trusted=True, expect_offset=expect_offset)

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
        """Append one record whose value comes in chunks, and return its offset. The value is collected in memory.
        Raises `StreamTooLong` above `max_bytes` or 256 MiB, and `StreamAborted` if the iterable raises."""
        value = _collected(chunks, STREAM_BYTES if max_bytes is None else min(max_bytes, STREAM_BYTES))
        return self.append(value, key, headers, timestamp, expect_offset)

    async def append_async(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record without blocking the event loop, and return its offset."""
        from ...log.async_appends import past_recall

        return await past_recall(self.append, value, key, headers, timestamp, expect_offset)

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
        """Append one record from an async iterable of chunks, as `append_stream` does."""
        from ...log.async_appends import past_recall

        value = await collected(chunks, max_bytes)
        return await past_recall(self.append, value, key, headers, timestamp, expect_offset)

    def sync(self) -> None:
        """Block until everything appended so far is durable."""

    def writer(self, batch_bytes: int = BATCH_BYTES, linger_ms: float | None = None) -> Writer:
        """Return a buffered writer: the fast way to append records one by one. See `Writer`."""
        return Writer(_BatchTarget(self), batch_bytes, linger_ms)

    # --- reading

    def _span(self, start: int | None, end: int | None, isolation: Isolation) -> tuple[int, int]:
        """Return the checked start and end of a scan; the end is not later than now."""
        last, _ = self.position(isolation=isolation)
        lowest = self.lowest_offset
        first = lowest if start is None else whole_number(start)
        if not lowest <= first <= self.visible_offset:
            raise OffsetOutOfRange(first, lowest, self.visible_offset, self.path)
        return first, last if end is None else min(whole_number(end), last)

    def _pages(
        self, start: int, end: int, max_bytes: int | None, *, committed: bool, page_bytes: int = PAGE_BYTES
    ) -> Iterator[tuple[memoryview, Rows]]:
        """Yield checked batches page by page, with the rows of the batches that a reader sees."""
        at, left = start, max_bytes
        isolation: Isolation = "committed" if committed else "uncommitted"
        while at < end and (left is None or left > 0):
            page = self.fetch(at, page_bytes if left is None else min(left, page_bytes), isolation=isolation)
            if page.next_offset <= at:
                return
            data = memoryview(page.raw)
            rows = visible_batches(_checked(data), page.aborted if committed else ())
            if len(rows):
                yield data, rows
            at = page.next_offset
            left = None if left is None else left - len(data)

    def _cursors(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[kernel.RecordCursor]:
        """Scan as cursors, to be iterated over one after the other. A cursor has the offset after the last record that
        it returned (`next_offset`), and another thread may `stop` it."""
        first, last = self._span(start, end, isolation)
        return self._cursors_in(first, last, None, committed=is_committed(isolation))

    def _cursors_in(
        self, start: int, end: int, max_bytes: int | None, *, committed: bool, page_bytes: int = PAGE_BYTES
    ) -> Iterator[kernel.RecordCursor]:
        topic, number = self._origin
        for data, rows in self._pages(start, end, max_bytes, committed=committed, page_bytes=page_bytes):
            done = 0
            for body, run, error in batch_read.unpack(data, rows, self.config.max_decompressed_bytes):
                if error is not None:
                    raise self._located(error, rows, done)
                cursor = kernel.RecordCursor(body, memoryview(run), start, end, topic, number)
                yield cursor
                if cursor.stopped:
                    return
                if cursor.bad >= 0:
                    raise self._located(CorruptBatch(batch_read.MALFORMED), rows, done + cursor.bad)
                done += len(run)

    @property
    def _origin(self) -> tuple[str | None, int]:
        """Topic and partition number that records carry."""
        return None, -1

    def _located(self, error: CorruptBatch, rows: Rows, number: int) -> CorruptBatch:
        return error.at(self.path, int(rows[number, POSITION]), int(rows[number, LAST]) + 1)

    def _following(
        self, start: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[kernel.RecordCursor | None]:
        """Follow as cursors, with None where there is nothing new: the caller waits (`_watch`). Ends when the partition
        is closed."""
        at, _ = self._span(start, None, isolation)
        while not self._is_closed:
            try:
                end, _ = self.position(isolation=isolation)
            except LogClosed:
                return
            for cursor in self._cursors_in(at, end, None, committed=is_committed(isolation)):
                yield cursor
                at = max(at, int(cursor.next_offset))
            at = max(at, end)
            yield None

    def scan(
        self,
        start: int | None = None,
        end: int | None = None,
        max_bytes: int | None = None,
        *,
        isolation: Isolation = "committed",
    ) -> Iterator[Record]:
        """Return the records with start <= offset < end as of now, in order; by default all of them."""
        first, last = self._span(start, end, isolation)
        return chain.from_iterable(self._cursors_in(first, last, max_bytes, committed=is_committed(isolation)))

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
        """Return the same records as Arrow record batches; `columns` may also include `headers` and
        `timestamp_type`."""
        from ...batch.arrow import schema

        if batch_rows < 1:
            raise InvalidConfig(f"batch_rows must be at least 1, not {batch_rows}")
        schema(columns, views=views)  # refuses unknown columns before anything is read
        first, last = self._span(start, end, isolation)
        return self._arrow(first, last, batch_rows, columns, views, committed=is_committed(isolation))

    def _arrow(
        self, start: int, end: int, batch_rows: int, columns: Sequence[str], views: bool, *, committed: bool
    ) -> Iterator[pa.RecordBatch]:
        from ...batch.arrow import to_arrow

        most = self.config.max_decompressed_bytes
        for data, rows in self._pages(start, end, None, committed=committed):
            batch = to_arrow(data, rows, start, end, columns=columns, views=views, max_bytes=most)
            for first in range(0, batch.num_rows, batch_rows):
                yield batch.slice(first, batch_rows)

    def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        """Return the record at `offset`; `OffsetOutOfRange` if there is none, `NotYetVisible` if it is not committed
        yet."""
        wanted = whole_number(offset)
        end, _ = self.position(isolation=isolation)
        if end <= wanted < self.visible_offset:
            end, _ = self.position(isolation=isolation)  # read last: the record may have been appended just now
            if end <= wanted:
                raise NotYetVisible(wanted, self.lowest_offset, end, self.path, in_transaction=True)
        if not self.lowest_offset <= wanted < end:
            raise OffsetOutOfRange(wanted, self.lowest_offset, end, self.path)
        found = next(self._one(wanted, wanted + 1, isolation), None)
        if found is None:
            following = next(self._one(wanted, end, isolation), None)
            raise RecordRemoved(wanted, self.lowest_offset, end, end if following is None else following.offset)
        return found

    def _one(self, start: int, end: int, isolation: Isolation) -> Iterator[Record]:
        """Return records for a caller that takes only the first: pages are as small as possible."""
        return chain.from_iterable(self._cursors_in(start, end, None, committed=is_committed(isolation), page_bytes=1))

    def _last(self) -> Record | None:
        """Return the last record, if the offset before the end has none."""
        lowest, stop = self.lowest_offset, self.last_stable_offset
        step = _FIRST
        while lowest < stop:
            start = max(stop - step, lowest)
            if found := deque(self.scan(start, stop), maxlen=1):
                return found[0]
            stop, step = start, step * _TIMES
        return None

    def _tier(self, lowest_offset: int) -> tuple[int, int]:
        """Return the first offset that is stored here, and the bytes that are only in the replica."""
        return lowest_offset, 0

    def _patient(self) -> Partition:
        """Return this partition for a caller that polls: it may learn of new records with some lag, at less cost."""
        return self

    def follow(
        self, start: int | None = None, timeout: float | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[Record]:
        """Return records from `start` on, and new ones as they come. Ends when none came for `timeout` seconds."""
        return chain.from_iterable(_paced(self._patient()._following(start, isolation=isolation), timeout, [self]))

    # --- dropping records

    def truncate(self, offset: int) -> int:
        """Drop the records from `offset` on and return the number of offsets dropped. Only where
        `Store.supports_truncation`."""
        raise unsupported(self.path, "truncate(); trim() drops old records")

    # --- as objects

    @overload
    def typed(
        self, value: Serializer[V], *, errors_to: Topic | Partition | None = None
    ) -> TypedLog[V, bytes, RawHeaders]: ...

    @overload
    def typed(
        self, value: Serializer[V], *, metadata: MetadataSerializer[M], errors_to: Topic | Partition | None = None
    ) -> TypedLog[V, bytes, M]: ...

    @overload
    def typed(
        self, value: Serializer[V], key: Serializer[K], *, errors_to: Topic | Partition | None = None
    ) -> TypedLog[V, K, RawHeaders]: ...

    @overload
    def typed(
        self,
        value: Serializer[V],
        key: Serializer[K],
        *,
        metadata: MetadataSerializer[M],
        errors_to: Topic | Partition | None = None,
    ) -> TypedLog[V, K, M]: ...

    def typed(
        self,
        value: Serializer[Any],
        key: Serializer[Any] | None = None,
        *,
        metadata: MetadataSerializer[Any] | None = None,
        errors_to: Topic | Partition | None = None,
    ) -> TypedLog[Any, Any, Any]:
        """Return a view in which values, keys and metadata are objects: `log.typed(value=JSON(Order), key=Utf8())`.

        A record that does not parse raises `DecodeFailed`, which has the record; with `errors_to`, another log or a
        topic, it is copied there and skipped.
        """
        from ...typed.views import typed_log

        return typed_log(self, value, key, metadata, errors_to)


class _BatchTarget:
    """Destination of one writer's batches: a partition that is written with `append_batches`."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.writers: set[Writer] = set()
        #: Set after an append with an unknown outcome: sent again, the batch could be stored twice.
        self._doubt: AmbiguousAppend | None = None

    @property
    def recipe(self) -> EncoderOptions:
        return self._partition._recipe

    def place(
        self,
        batch: Encoded,
        expect_offset: int | None = None,
        producer: Producer = NO_PRODUCER,
        placement: Placement | None = None,
    ) -> range:
        self.check_failure()
        if placement is not None and placement.placed is not None:
            return placement.placed
        try:
            placed = self._partition.append_batches(bytes(batch.data), trusted=True, expect_offset=expect_offset)
        except AmbiguousAppend as error:
            self._doubt = error
            raise
        return placed if placement is None else placement.give(placed)

    def settle(self, offset: int) -> None:
        """Return at once: `append_batches` has waited."""

    def check_failure(self) -> None:
        """Raise if it is unknown whether an earlier batch was stored."""
        if self._doubt is not None:
            raise AmbiguousAppend(f"this writer cannot continue: {self._doubt}") from self._doubt


def encoded_table(recipe: EncoderOptions, table: TableInput) -> bytes:
    data = b"".join(bytes(batch.data) for batch in Encoder(recipe).table(table, BATCH_BYTES))
    if not data:
        raise InvalidRecord("no record to append")
    return data


def _collected(chunks: Iterable[bytes], most: int) -> bytes:
    checked_count("max_bytes", most, 0, "a number of bytes")
    value = bytearray()
    pieces = iter(chunks)
    while True:
        try:
            chunk = next(pieces)
        except StopIteration:
            return bytes(value)
        except Exception as error:
            raise StreamAborted(f"the stream raised {type(error).__name__}: {error}; nothing was stored") from error
        value += chunk
        if len(value) > most:
            raise StreamTooLong(f"the stream exceeds {most:,} bytes; nothing was stored")


async def collected(chunks: AsyncIterable[bytes], max_bytes: int | None) -> bytes:
    """Collect the value of a stream in memory."""
    most = STREAM_BYTES if max_bytes is None else min(max_bytes, STREAM_BYTES)
    value = bytearray()
    try:
        async for chunk in chunks:
            value += chunk
            if len(value) > most:
                raise StreamTooLong(f"the stream exceeds {most:,} bytes; nothing was stored")
    except StreamTooLong:
        raise
    except Exception as error:
        raise StreamAborted(f"the stream raised {type(error).__name__}: {error}; nothing was stored") from error
    return bytes(value)


def sleep_until_growth(partitions: Iterable[Partition], seconds: float) -> None:
    """Sleep until one of these partitions may have more records, for at most `seconds`. Call this after looking."""
    points = [each._wait_point() for each in partitions]
    known = [each for each in points if each is not None]
    if known and len(known) == len(points):
        wait_any(known, seconds)
    else:
        pause(seconds)


def _paced(
    cursors: Iterator[kernel.RecordCursor | None], timeout: float | None, partitions: Sequence[Partition]
) -> Iterator[kernel.RecordCursor]:
    """Yield the cursors of `_following` of these partitions, and sleep while there is none."""
    deadline, pauses = Deadline(timeout), PollBackoff()
    pauses.look()
    for cursor in cursors:
        if cursor is not None:
            yield cursor
            deadline = Deadline(timeout)
            pauses.found()
        elif deadline.passed:
            return
        else:
            sleep_until_growth(partitions, deadline.at_most(pauses.next_s()))
        pauses.look()


def _checked(data: memoryview) -> Rows:
    """Return the headers of these batches; `CorruptBatch` if a checksum is wrong."""
    rows = rows_of(data)
    bad = batch_read.first_bad_crc(data, rows)
    if bad >= 0:
        raise CorruptBatch(f"the checksum of the batch at byte {rows[bad, POSITION]} does not match")
    return rows
