"""`AsyncTopic`: partitions under one name, for asyncio. See the package's docstring for what runs where.

A partition that this process has locked is written in the event loop. For others a thread takes the lock, or hands over
to the process that holds it; while neither is possible the task sleeps, up to the store's `lock_timeout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import TypeVar

from ..batch.given import GivenHeaders, GivenRecord, GivenTable
from ..batch.kernel import Record, RecordCursor
from ..clock import Deadline
from ..errors import DirectoryLocked, InvalidRecord, LogClosed
from ..isolation import Isolation
from ..log.log import Log
from ..log.protocols import LogReader
from ..topics.appends import Appends
from ..topics.settings import Value
from ..topics.topic import Offsets, Position, Topic
from .log import AsyncLog
from .waiting import END, End, Pace, Waker, in_portions, in_thread, may_wait, past_recall, settled

#: How long to sleep before the next try to get a lock.
_PAUSE_S = 0.01

T = TypeVar("T")


class AsyncTopic:
    """Partitions under one name. Returned by `AsyncStore.topic` and `AsyncStore.create_topic`."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    @property
    def sync(self) -> Topic:
        """The topic itself, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._topic

    @property
    def name(self) -> str:
        """Its name."""
        return self._topic.name

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self._topic.partitions

    @property
    def settings(self) -> dict[str, Value]:
        """The settings that were given, under Kafka's names."""
        return self._topic.settings

    def __repr__(self) -> str:
        return f"<Async{repr(self._topic)[1:]}"

    def _repr_html_(self) -> str:
        return self._topic._repr_html_()

    def partition(self, number: int) -> AsyncLog:
        """The log of one partition."""
        return AsyncLog(self._topic.partition(number), partial(self._topic.holdings.using, number))

    # --- appending

    async def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        *,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> Position:
        """Append one record and return its position. Tasks that do so at the same time share a batch and its fsync.
        `expect_offset` as in `Topic.append`: then it is in a batch of its own."""
        topic = self._topic
        number = topic.router.place_for(value, key, partition)
        if expect_offset is not None:
            with topic.holdings.using(number):
                appends = await self._reach(number)
                entry = (value, key, headers, timestamp, expect_offset)
                return Position(number, await past_recall(appends.append, *entry))
        while True:
            log = topic.holdings.held(number)
            if log is None:
                appends = await self._reach(number)
                if not isinstance(appends, Log):
                    return Position(number, await past_recall(appends.append, value, key, headers, timestamp))
                log = appends
            try:
                return Position(number, await log.append_async(value, key, headers, timestamp))
            except (LogClosed, DirectoryLocked):
                if topic.holdings.held(number) is log:
                    raise
                # Its lock was given back at this moment: nothing is stored.

    async def append_many(
        self, records: Iterable[GivenRecord], *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        """Append records, one batch per partition, and return their offsets. A record is as in `Log.append_many`,
        `expect_offset` as in `Topic.append_many`."""
        topic = self._topic
        parts = topic.router.encoded(list(records), partition)
        if expect_offset is not None and len(parts) > 1:
            raise InvalidRecord("expect_offset is for one partition, and these records go to several: give partition=")
        with topic.holdings.using(*parts):
            targets = {number: topic.holdings.held(number) or await self._reach(number) for number in parts}
            placed: dict[int, range] = {}
            for number, target in targets.items():  # all of them can be reached: from here on it is past recall
                if isinstance(target, Log) and target._is_free:
                    placed[number] = target._place_batches(parts[number], wait=False, expect_offset=expect_offset)
                else:
                    append = partial(target.append_batches, parts[number], expect_offset=expect_offset)
                    placed[number] = await past_recall(append)
            for number, target in targets.items():
                if isinstance(target, Log):
                    await settled(target, placed[number].stop)
        return placed

    async def append_arrow(
        self, table: GivenTable, *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        """Append the rows of an Arrow table, by their keys, and return their offsets; see `Topic.append_arrow`."""
        append = partial(self._topic.append_arrow, table, partition=partition, expect_offset=expect_offset)
        return await past_recall(append)

    async def append_stream(
        self,
        chunks: AsyncIterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> Position:
        """Append one record from an async iterable of chunks without holding it in memory, and return its position. See
        `Topic.append_stream`."""
        holdings = self._topic.holdings
        number = self._topic.router.place_for(b"", key, partition)
        with holdings.using(number):
            log = await self._waiting(holdings.ask_for, number)
            offset = await log.append_stream_async(
                chunks, key, max_bytes, headers=headers, timestamp=timestamp, expect_offset=expect_offset
            )
        return Position(number, offset)

    async def _reach(self, number: int) -> Appends:
        """What appends to a partition; waits if another process has it and takes no requests."""
        return await self._waiting(self._topic.holdings.reach, number)

    async def _waiting(self, reach: Callable[[int], T], number: int) -> T:
        """What `reach` returns, after waiting for a process that holds the lock."""
        timeout_s = self._topic.holdings.lock_timeout_s
        deadline = Deadline(timeout_s)
        while True:
            try:
                return await in_thread(reach, number)
            except DirectoryLocked as error:
                if deadline.passed:
                    raise error.after(timeout_s) from None
                await asyncio.sleep(_PAUSE_S)

    # --- reading

    async def read(self, position: Position | tuple[int, int], *, isolation: Isolation = "committed") -> Record:
        """The record at a position: (partition, offset)."""
        number, offset = position
        log = self._topic.partition(number)
        if may_wait([log]):
            return await in_thread(partial(log.read, offset, isolation=isolation))
        return log.read(offset, isolation=isolation)

    def scan(
        self,
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        *,
        partitions: Iterable[int] | None = None,
        isolation: Isolation = "committed",
    ) -> AsyncIterator[Record]:
        """The current records, partition by partition, each from its start to its end: by default all of them."""
        partitions = None if partitions is None else list(partitions)
        records = self._topic.scan(start, end, partitions=partitions, isolation=isolation)
        numbers = range(self.partitions) if partitions is None else partitions
        return in_portions(records, [self._topic.partition(number) for number in numbers])

    def __aiter__(self) -> AsyncIterator[Record]:
        return self.scan()

    async def follow(
        self,
        start: Mapping[int, int] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - ends the iteration, cancels nothing
        *,
        partitions: Iterable[int] | None = None,
        isolation: Isolation = "committed",
    ) -> AsyncIterator[Record]:
        """Records of all partitions, in the order of offsets in each, and new ones as they come; ends when none came
        for `timeout` seconds, or when the store is closed. Partitions that are added later are not followed."""
        numbers = range(self.partitions) if partitions is None else sorted(set(partitions))
        logs = await self._followed(numbers)
        feeds = {number: log._following((start or {}).get(number), isolation=isolation) for number, log in logs.items()}
        waker, pace, deadline = Waker(), Pace(), Deadline(timeout)
        waker.watch(logs.values())
        try:
            while feeds:
                waker.arm()
                found = False
                for number, feed in list(feeds.items()):
                    waits = may_wait([logs[number]])
                    cursor = await in_thread(next, feed, END) if waits else await self._next(feed)
                    if isinstance(cursor, End):
                        del feeds[number]
                    elif cursor is not None:
                        for record in cursor:
                            yield record
                        if pace.is_due:
                            await asyncio.sleep(0)
                        found = True
                if found:
                    deadline = Deadline(timeout)
                elif deadline.passed:
                    return
                else:
                    await waker.wait(deadline.at_most(1.0))
        finally:
            waker.close()

    async def _followed(self, numbers: Iterable[int]) -> dict[int, LogReader]:
        return {number: self._topic.partition(number) for number in numbers}

    async def _next(self, feed: Iterator[RecordCursor | None]) -> RecordCursor | End | None:
        return next(feed, END)

    async def offsets(self) -> dict[int, Offsets]:
        """What each partition contains."""
        return self._topic.offsets()

    async def offset_at(self, timestamp: int | datetime) -> dict[int, int]:
        """In each partition the first offset whose record is not older than `timestamp`; the next offset if all are."""
        if may_wait(self._topic.partition(number) for number in range(self.partitions)):
            return await in_thread(self._topic.offset_at, timestamp)
        return self._topic.offset_at(timestamp)

    # --- changing

    async def truncate(self, partition: int, offset: int) -> int:
        """Drop the records of a partition from `offset` on and return how many. It needs the partition's lock."""
        return await self.partition(partition).truncate(offset)

    async def trim(self, offsets: Mapping[int, int]) -> int:
        """Drop the records below these offsets and return how many. It needs the locks of these partitions."""
        return await in_thread(self._topic.trim, offsets)
