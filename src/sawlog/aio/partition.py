"""`AsyncPartition` and `AsyncLog`: one partition for asyncio. See the package's docstring for what runs where.

On object storage every call may block, so each runs in a thread; the event loop only hands out records that are already
decoded. The methods are those of `Partition`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from os import PathLike
from typing import Literal, TypeVar

from ..batch.inputs import HeadersInput, RecordInput
from ..batch.kernel import Record
from ..config import Isolation, LogConfig
from ..log.log import Log
from ..storage import Directory
from ..store.base import Partition
from .waiting import Opening, awaited, followed, in_thread, open_in_thread, past_recall, portions, until_durable

T = TypeVar("T")


class AsyncPartition:
    """One partition. Returned by `AsyncTopic.partition`."""

    _log: Partition

    def __init__(self, partition: Partition, using: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._log = partition
        #: Context in which the lock is not released: see `sawlog.store.directory.lock_leases`.
        self._using = using

    @property
    def sync(self) -> Partition:
        """The synchronous partition, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._log

    @property
    def path(self) -> str:
        """Location, for messages."""
        return self._log.path

    @property
    def lowest_offset(self) -> int:
        """First offset; in an empty partition, the offset of the next record."""
        return self._log.lowest_offset

    @property
    def visible_offset(self) -> int:
        """End of the readable records."""
        return self._log.visible_offset

    def __len__(self) -> int:
        return len(self._log)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Async{repr(self._log)[1:]}"

    def _repr_html_(self) -> str:
        return self._log._repr_html_()

    async def _lock(self) -> None:
        """Get ready to append, if that takes more than appending does."""

    async def _reading(self, call: Callable[[], T]) -> T:
        """Run a call that reads."""
        return await in_thread(call)

    # --- appending

    async def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset. Concurrent appends share a batch and its fsync, or a commit. With
        `expect_offset`, append at that offset, in a batch of its own, or raise `OffsetMismatch`."""
        with self._using():
            await self._lock()
            return await self._log.append_async(value, key, headers, timestamp, expect_offset)

    async def append_many(self, records: Iterable[RecordInput], expect_offset: int | None = None) -> range:
        """Append records as one batch, all or none, and return their offsets. Records are as in `Log.append_many`."""
        with self._using():
            await self._lock()
            return await self._append_many(records, expect_offset)

    async def _append_many(self, records: Iterable[RecordInput], expect_offset: int | None) -> range:
        return await past_recall(self._log.append_many, list(records), expect_offset)

    async def append_stream(
        self,
        chunks: AsyncIterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record from an async iterable of chunks and return its offset; see `append_stream` of the
        synchronous partition. In files, the value is never in memory as a whole."""
        with self._using():
            await self._lock()
            return await self._log.append_stream_async(
                chunks, key, max_bytes, headers=headers, timestamp=timestamp, expect_offset=expect_offset
            )

    # --- reading

    async def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        """Return the record at `offset`; `OffsetOutOfRange` if there is none."""
        return await self._reading(partial(self._log.read, offset, isolation=isolation))

    def scan(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> AsyncIterator[Record]:
        """Return the records with start <= offset < end as of now, in order; by default all of them."""
        return portions(partial(self._log.scan, start, end, isolation=isolation), None)

    def __aiter__(self) -> AsyncIterator[Record]:
        return self.scan()

    def follow(
        self,
        start: int | None = None,
        timeout: float | None = None,
        *,
        isolation: Isolation = "committed",
    ) -> AsyncIterator[Record]:
        """Yield records from `start` on, and new ones as they come. Ends when none came for `timeout` seconds, or when
        the partition is closed."""
        return followed({0: self._log._patient()}, {} if start is None else {0: start}, timeout, isolation)

    async def offset_at(self, timestamp: int | datetime) -> int:
        """Return the first offset whose record is not older than `timestamp`, or the end."""
        return await self._reading(partial(self._log.offset_at, timestamp))

    # --- changing

    truncate = awaited(Partition.truncate)
    trim = awaited(Partition.trim)

    async def flush(self) -> None:
        """Wait until everything appended so far is durable."""
        await in_thread(self._log.sync)

    async def close(self) -> None:
        """Close a log that was opened on its own. A store closes its partitions itself."""


class AsyncLog(AsyncPartition):
    """One partition in files. Opened by `sawlog.aio.open_log_async`, or `AsyncTopic.partition`."""

    _log: Log

    @property
    def sync(self) -> Log:
        """The synchronous log, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._log

    @property
    def durable_offset(self) -> int:
        """End of the records that survive a power failure."""
        return self._log.durable_offset

    async def _lock(self) -> None:
        """Lock a log that is locked by its first write. In a thread: it may involve recovery."""
        if not self._log._locked and not self._log._is_closed:
            await in_thread(_hold, self._log)

    async def _reading(self, call: Callable[[], T]) -> T:
        return await in_thread(call) if self._log._is_tiered else call()

    async def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        if self._log._is_tiered:
            return await super().read(offset, isolation=isolation)
        return self._log.read(offset, isolation=isolation)

    async def _append_many(self, records: Iterable[RecordInput], expect_offset: int | None) -> range:
        if not self._log._is_free:
            return await past_recall(self._log.append_many, list(records), expect_offset)
        placed = self._log._place_many(records, expect_offset)
        await until_durable(self._log, placed.stop)
        return placed

    def scan(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> AsyncIterator[Record]:
        records = self._log.scan(start, end, isolation=isolation)
        return portions(lambda: records, [self._log])

    async def close(self) -> None:
        """Sync, and mark the log as closed cleanly. Safe to call twice."""
        await in_thread(self._log.close)


def _hold(log: Log) -> None:
    with log._hold():
        pass


def opening(
    path: str | PathLike[str] | Directory, config: LogConfig | None, *, mode: Literal["w", "r", "a"]
) -> Opening[AsyncLog]:
    """See `open_log_async`."""

    async def open_() -> AsyncLog:
        log: Log = await open_in_thread(partial(Log.open, path, config, mode=mode), Log.close)
        return AsyncLog(log)

    return Opening(open_)
