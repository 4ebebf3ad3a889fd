"""`AsyncDirectoryTopic`: a topic in a directory, for asyncio. See the package's docstring for what runs where.

Partitions that this process has locked are written in the event loop. For others, a thread takes the lock or forwards
to the process that holds it; while neither is possible, the task sleeps, up to the store's `lock_timeout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import TypeVar

from ..batch.inputs import HeadersInput, RecordInput
from ..batch.kernel import Record, RecordCursor
from ..clock import Deadline
from ..errors import DirectoryLocked, InvalidRecord, LogClosed
from ..isolation import Isolation
from ..log.log import Log
from ..store.base import Offsets, Partition, Position
from ..store.directory.appends import AppendTarget
from ..store.directory.topic import Topic
from ..store.settings import Value
from .log import AsyncLog
from .topic import AsyncTopic
from .waiting import END, End, in_portions, in_thread, may_block, past_recall, until_durable

#: Pause between attempts to get a lock.
_PAUSE_S = 0.01

T = TypeVar("T")


class AsyncDirectoryTopic(AsyncTopic):
    """A topic in a directory."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(topic)
        self._topic: Topic = topic

    @property
    def sync(self) -> Topic:
        """The synchronous topic, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._topic

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return self._topic.partitions

    @property
    def settings(self) -> dict[str, Value]:
        """Settings that were given, by Kafka's names."""
        return self._topic.settings

    def partition(self, number: int) -> AsyncLog:
        """Return the log of one partition."""
        return AsyncLog(self._topic.partition(number), partial(self._topic.open_partitions.using, number))

    # --- appending

    async def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        *,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> Position:
        """Append one record and return its position. Concurrent appends share a batch and its fsync. With
        `expect_offset`, as in `Topic.append`, the record has a batch of its own."""
        topic = self._topic
        number = topic.router.place_for(value, key, partition)
        if expect_offset is not None:
            with topic.open_partitions.using(number):
                appends = await self._reach(number)
                entry = (value, key, headers, timestamp, expect_offset)
                return Position(number, await past_recall(appends.append, *entry))
        while True:
            log = topic.open_partitions.held(number)
            if log is None:
                appends = await self._reach(number)
                if not isinstance(appends, Log):
                    return Position(number, await past_recall(appends.append, value, key, headers, timestamp))
                log = appends
            try:
                return Position(number, await log.append_async(value, key, headers, timestamp))
            except (LogClosed, DirectoryLocked):
                if topic.open_partitions.held(number) is log:
                    raise
                # The lock was released at this moment: nothing is stored.

    async def append_many(
        self, records: Iterable[RecordInput], *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        """Append records, one batch per partition, and return their offsets. Records are as in `Log.append_many`,
        `expect_offset` as in `Topic.append_many`."""
        topic = self._topic
        parts = topic.router.encoded(list(records), partition)
        if expect_offset is not None and len(parts) > 1:
            raise InvalidRecord("expect_offset is for one partition, and these records go to several: give partition=")
        with topic.open_partitions.using(*parts):
            targets = {number: topic.open_partitions.held(number) or await self._reach(number) for number in parts}
            placed: dict[int, range] = {}
            for (
                number,
                target,
            ) in targets.items():  # every target is reachable: from here on the append cannot be recalled
                if isinstance(target, Log) and target._is_free:
                    placed[number] = target._place_batches(parts[number], wait=False, expect_offset=expect_offset)
                else:
                    append = partial(target.append_batches, parts[number], expect_offset=expect_offset)
                    placed[number] = await past_recall(append)
            for number, target in targets.items():
                if isinstance(target, Log):
                    await until_durable(target, placed[number].stop)
        return placed

    async def append_stream(
        self,
        chunks: AsyncIterable[bytes],
        key: bytes | None = None,
        max_bytes: int | None = None,
        *,
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> Position:
        """Append one record from an async iterable of chunks without holding it in memory, and return its position. See
        `Topic.append_stream`."""
        open_partitions = self._topic.open_partitions
        number = self._topic.router.place_for(b"", key, partition)
        with open_partitions.using(number):
            log = await self._waiting(open_partitions.ask_for, number)
            offset = await log.append_stream_async(
                chunks, key, max_bytes, headers=headers, timestamp=timestamp, expect_offset=expect_offset
            )
        return Position(number, offset)

    async def _reach(self, number: int) -> AppendTarget:
        """Return the appender of a partition. Waits if another process holds the lock and accepts no forwarded
        appends."""
        return await self._waiting(self._topic.open_partitions.reach, number)

    async def _waiting(self, reach: Callable[[int], T], number: int) -> T:
        """Call `reach` until no other process holds the lock."""
        timeout_s = self._topic.open_partitions.lock_timeout_s
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
        """Return the record at a position: (partition, offset)."""
        number, offset = position
        log = self._topic.partition(number)
        if may_block([log]):
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
        """Return the current records, partition by partition, each from its start to its end; by default all."""
        partitions = None if partitions is None else list(partitions)
        records = self._topic.scan(start, end, partitions=partitions, isolation=isolation)
        numbers = range(self.partitions) if partitions is None else partitions
        return in_portions(records, [self._topic.partition(number) for number in numbers])

    async def _followed(self, numbers: Iterable[int]) -> dict[int, Partition]:
        return {number: self._topic.partition(number) for number in numbers}

    async def _next(self, feed: Iterator[RecordCursor | None]) -> RecordCursor | End | None:
        return next(feed, END)

    async def offsets(self) -> dict[int, Offsets]:
        """Return the range of offsets of each partition."""
        return self._topic.offsets()

    async def offset_at(self, timestamp: int | datetime) -> dict[int, int]:
        """Return the first offset in each partition whose record is not older than `timestamp`, or the end."""
        if may_block(self._topic.partition(number) for number in range(self.partitions)):
            return await in_thread(self._topic.offset_at, timestamp)
        return self._topic.offset_at(timestamp)
