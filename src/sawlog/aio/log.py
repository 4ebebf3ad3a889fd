"""`AsyncLog`: one partition for asyncio. See the package's docstring for what runs where."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from os import PathLike
from typing import Literal

from ..batch.inputs import HeadersInput, RecordInput
from ..batch.kernel import Record, RecordCursor
from ..clock import Deadline
from ..config import LogConfig
from ..isolation import Isolation
from ..log.log import Log
from ..storage import Directory
from .opening import Opening
from .partition import AsyncPartition
from .waiting import END, End, Waker, YieldTimer, in_portions, in_thread, open_in_thread, past_recall, until_durable


class AsyncLog(AsyncPartition):
    """One partition in files. Opened by `sawlog.aio.open_log_async`, or `AsyncTopic.partition`."""

    def __init__(self, log: Log, using: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._log: Log = log
        #: Context in which the lock is not released: see `sawlog.store.directory.lock_leases`.
        self._using = using

    @property
    def sync(self) -> Log:
        """The synchronous log, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._log

    @property
    def durable_offset(self) -> int:
        """End of the records that survive a power failure."""
        return self._log.durable_offset

    # --- appending

    async def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset. Concurrent appends share a batch and its fsync. With
        `expect_offset`, append at that offset, in a batch of its own, or raise `OffsetMismatch`."""
        with self._using():
            await self._lock()
            if expect_offset is not None:
                return await past_recall(self._log.append, value, key, headers, timestamp, expect_offset)
            return await self._log.append_async(value, key, headers, timestamp)

    async def append_many(self, records: Iterable[RecordInput], expect_offset: int | None = None) -> range:
        """Append records as one batch, all or none, and return their offsets. Records are as in `Log.append_many`."""
        with self._using():
            await self._lock()
            if not self._log._is_free:
                return await past_recall(self._log.append_many, list(records), expect_offset)
            placed = self._log._place_many(records, expect_offset)
            await until_durable(self._log, placed.stop)
            return placed

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
        """Append one record from an async iterable of chunks without holding it in memory, and return its offset. See
        `Log.append_stream`."""
        with self._using():
            await self._lock()
            return await self._log.append_stream_async(
                chunks, key, max_bytes, headers=headers, timestamp=timestamp, expect_offset=expect_offset
            )

    async def _lock(self) -> None:
        """Lock a log that is locked by its first write. In a thread: it may involve recovery."""
        if not self._log.locked and not self._log.closed:
            await in_thread(_hold, self._log)

    # --- reading

    async def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        """Return the record at `offset`; `OffsetOutOfRange` if there is none."""
        if self._log.is_tiered:
            return await in_thread(partial(self._log.read, offset, isolation=isolation))
        return self._log.read(offset, isolation=isolation)

    def scan(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> AsyncIterator[Record]:
        """Return the records with start <= offset < end as of now, in order; by default all of them."""
        return in_portions(self._log.scan(start, end, isolation=isolation), [self._log])

    def __aiter__(self) -> AsyncIterator[Record]:
        return self.scan()

    async def follow(
        self,
        start: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - ends the iteration, cancels nothing
        *,
        isolation: Isolation = "committed",
    ) -> AsyncIterator[Record]:
        """Yield records from `start` on, and new ones as they come. Ends when none came for `timeout` seconds, or when
        the log is closed."""
        waker, yield_timer, deadline = Waker(), YieldTimer(), Deadline(timeout)
        waker.watch([self._log])
        waker.arm()
        try:
            feed = self._log._following(start, isolation=isolation)
            while not isinstance(cursor := await _next(self._log, feed), End):
                if cursor is not None:
                    for record in cursor:
                        yield record
                    if yield_timer.is_due:
                        await asyncio.sleep(0)
                    deadline = Deadline(timeout)
                    waker.arm()
                elif deadline.passed:
                    return
                else:
                    await waker.wait(deadline.at_most(1.0))
                    waker.arm()
        finally:
            waker.close()

    async def offset_at(self, timestamp: int | datetime) -> int:
        """Return the first offset whose record is not older than `timestamp`, or `next_offset`."""
        return (
            await in_thread(self._log.offset_at, timestamp) if self._log.is_tiered else self._log.offset_at(timestamp)
        )

    # --- closing

    async def close(self) -> None:
        """Sync, and mark the log as closed cleanly. Safe to call twice."""
        await in_thread(self._log.close)


async def _next(log: Log, feed: Iterator[RecordCursor | None]) -> RecordCursor | End | None:
    """Return the next cursor; in a thread if that may block on the network."""
    return await in_thread(next, feed, END) if log.is_tiered else next(feed, END)


def _hold(log: Log) -> None:
    with log._hold():
        pass


def opening(
    path: str | PathLike[str] | Directory, config: LogConfig | None, *, mode: Literal["w", "r", "a"]
) -> Opening[AsyncLog]:
    """See `open_log_async`."""

    async def open_() -> AsyncLog:
        return AsyncLog(await open_in_thread(partial(Log.open, path, config, mode=mode), Log.close))

    return Opening(open_)
