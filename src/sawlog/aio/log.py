"""`AsyncLog`: one partition for asyncio. See the package's docstring for what runs where."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from os import PathLike
from typing import Literal

from ..batch.inputs import GivenHeaders, GivenRecord
from ..batch.kernel import Record, RecordCursor
from ..clock import Deadline
from ..config import LogConfig
from ..isolation import Isolation
from ..log.log import Log
from ..storage import Directory
from .opening import Opening
from .partition import AsyncPartition
from .waiting import END, End, Pace, Waker, in_portions, in_thread, opened_in_thread, past_recall, settled


class AsyncLog(AsyncPartition):
    """One partition in files. Opened by `sawlog.aio.open_log_async`, or `AsyncTopic.partition`."""

    def __init__(self, log: Log, using: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._log: Log = log
        #: A block within which its lock is not given back: see `sawlog.store.directory.lock_leases`.
        self._using = using

    @property
    def sync(self) -> Log:
        """The log itself, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._log

    @property
    def durable_offset(self) -> int:
        """Every record below this survives a power cut."""
        return self._log.durable_offset

    # --- appending

    async def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset. Tasks that do so at the same time share a batch and its fsync. With
        `expect_offset`: at that offset, in a batch of its own, or `OffsetMismatch` and nothing."""
        with self._using():
            await self._lock()
            if expect_offset is not None:
                return await past_recall(self._log.append, value, key, headers, timestamp, expect_offset)
            return await self._log.append_async(value, key, headers, timestamp)

    async def append_many(self, records: Iterable[GivenRecord], expect_offset: int | None = None) -> range:
        """Append records as one batch, all or none, and return their offsets. A record is as in `Log.append_many`."""
        with self._using():
            await self._lock()
            if not self._log._is_free:
                return await past_recall(self._log.append_many, list(records), expect_offset)
            placed = self._log._place_many(records, expect_offset)
            await settled(self._log, placed.stop)
            return placed

    async def append_stream(
        self,
        chunks: AsyncIterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: GivenHeaders = (),
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
        """A log that is locked by its first write: taking the lock may mean recovery."""
        if not self._log.locked and not self._log.closed:
            await in_thread(_hold, self._log)

    # --- reading

    async def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        """The record at `offset`; `OffsetOutOfRange` if there is none."""
        if self._log.is_tiered:
            return await in_thread(partial(self._log.read, offset, isolation=isolation))
        return self._log.read(offset, isolation=isolation)

    def scan(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> AsyncIterator[Record]:
        """The records with start <= offset < end, in order, as of now; by default all of them."""
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
        """Records from `start` on, waiting for new ones; ends when none came for `timeout` seconds, or when the log is
        closed."""
        waker, pace, deadline = Waker(), Pace(), Deadline(timeout)
        waker.watch([self._log])
        waker.arm()
        try:
            feed = self._log._following(start, isolation=isolation)
            while not isinstance(cursor := await _next(self._log, feed), End):
                if cursor is not None:
                    for record in cursor:
                        yield record
                    if pace.is_due:
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
        """The first offset whose record is not older than `timestamp`; `next_offset` if all are."""
        return (
            await in_thread(self._log.offset_at, timestamp) if self._log.is_tiered else self._log.offset_at(timestamp)
        )

    # --- closing

    async def close(self) -> None:
        """Sync, and mark the log as closed cleanly. Safe to call twice."""
        await in_thread(self._log.close)


async def _next(log: Log, feed: Iterator[RecordCursor | None]) -> RecordCursor | End | None:
    """The next cursor; in a thread if that may wait for the network."""
    return await in_thread(next, feed, END) if log.is_tiered else next(feed, END)


def _hold(log: Log) -> None:
    with log._hold():
        pass


def opening(
    path: str | PathLike[str] | Directory, config: LogConfig | None, *, mode: Literal["w", "r", "a"]
) -> Opening[AsyncLog]:
    """See `open_log_async`."""

    async def open_() -> AsyncLog:
        return AsyncLog(await opened_in_thread(partial(Log.open, path, config, mode=mode), Log.close))

    return Opening(open_)
