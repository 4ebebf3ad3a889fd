"""`AsyncTopic` and `AsyncDirectoryTopic`: partitions under one name, for asyncio. See the package's docstring for what
runs where.

In a directory, partitions that this process has locked are written in the event loop. For others, a thread takes the
lock or forwards to the process that holds it; while neither is possible, the task sleeps, up to the store's
`lock_timeout`. On object storage every call runs in a thread. The methods are those of `Topic`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

from ..batch.inputs import HeadersInput, RecordInput
from ..batch.kernel import Record
from ..clock import Deadline
from ..config import Isolation
from ..errors import DirectoryLocked, LogClosed
from ..log.log import Log
from ..store.base import Offsets, Position, Topic, check_sole, collected
from ..store.directory.forwarding.forwarder import Forwarder
from ..store.directory.topic import DirectoryTopic
from ..store.settings import Value
from .partition import AsyncLog, AsyncPartition
from .waiting import awaited, followed, in_thread, may_block, past_recall, portions, until_durable

#: Pause between attempts to get a lock.
_PAUSE_S = 0.01

T = TypeVar("T")


class AsyncTopic:
    """Partitions under one name. Returned by `AsyncStore.topic` and `AsyncStore.create_topic`."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._partitions, self._settings = topic.partitions, topic.settings

    @property
    def sync(self) -> Topic:
        """The synchronous topic, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._topic

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self._topic.name

    @property
    def partitions(self) -> int:
        """Number of partitions when the topic was looked up."""
        return self._partitions

    @property
    def settings(self) -> dict[str, Value]:
        """Settings that differ from their defaults, by Kafka's names."""
        return dict(self._settings)

    def __repr__(self) -> str:
        return f"<Async{repr(self._topic)[1:]}"

    def _repr_html_(self) -> str:
        return self._topic._repr_html_()

    def partition(self, number: int) -> AsyncPartition:
        """Return one partition."""
        return AsyncPartition(self._topic.partition(number))

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
        """Append one record and return its position. Concurrent appends share a batch and its fsync, or a commit. With
        `expect_offset`, as in `Topic.append`, the record has a batch of its own."""
        return await self._append(value, key, headers, timestamp, partition, expect_offset)

    async def _append(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersInput,
        timestamp: int | datetime | None,
        partition: int | None,
        expect_offset: int | None,
    ) -> Position:
        record = value, key, headers, timestamp
        return await past_recall(partial(self._topic.append, *record, partition=partition, expect_offset=expect_offset))

    async def append_many(
        self, records: Iterable[RecordInput], *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        """Append records, one batch per partition, and return their offsets; see `Topic.append_many`."""
        return await self._append_many(list(records), partition, expect_offset)

    async def _append_many(
        self, records: list[RecordInput], partition: int | None, expect_offset: int | None
    ) -> dict[int, range]:
        append = partial(self._topic.append_many, records, partition=partition, expect_offset=expect_offset)
        return await past_recall(append)

    append_arrow = awaited(Topic.append_arrow, recallable=False)

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
        """Append one record from an async iterable of chunks and return its position; see `Topic.append_stream`. On
        object storage, the value is collected in memory."""
        value = await collected(chunks, max_bytes)
        return await self.append(value, key, headers, timestamp, partition=partition, expect_offset=expect_offset)

    # --- reading

    async def _reading(self, call: Callable[[], T]) -> T:
        """Run a call that reads."""
        return await in_thread(call)

    async def read(self, position: Position | tuple[int, int], *, isolation: Isolation = "committed") -> Record:
        """Return the record at a position: (partition, offset)."""
        return await self._reading(partial(self._topic.read, position, isolation=isolation))

    def scan(
        self,
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        *,
        partitions: Iterable[int] | None = None,
        isolation: Isolation = "committed",
    ) -> AsyncIterator[Record]:
        """Return the current records, partition by partition, each from its start to its end; by default all."""
        numbers = None if partitions is None else list(partitions)
        return self._portions(partial(self._topic.scan, start, end, partitions=numbers, isolation=isolation), numbers)

    def _portions(
        self, scan: Callable[[], Iterator[Record]], partitions: Sequence[int] | None
    ) -> AsyncIterator[Record]:
        return portions(scan, None)

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
        """Yield the records of all partitions, in offset order within each, and new ones as they come. Ends when none
        came for `timeout` seconds, or when the store is closed. Partitions added later are not followed."""
        numbers = range(self.partitions) if partitions is None else sorted(set(partitions))
        logs = await self._reading(lambda: {number: self._topic.partition(number)._patient() for number in numbers})
        async for record in followed(logs, start or {}, timeout, isolation):
            yield record

    async def offsets(self) -> dict[int, Offsets]:
        """Return the range of offsets of each partition."""
        return await self._reading(self._topic.offsets)

    async def offset_at(self, timestamp: int | datetime) -> dict[int, int]:
        """Return the first offset in each partition whose record is not older than `timestamp`, or the end."""
        return await self._reading(partial(self._topic.offset_at, timestamp))

    # --- changing

    truncate = awaited(Topic.truncate)
    trim = awaited(Topic.trim)


class AsyncDirectoryTopic(AsyncTopic):
    """A topic in a directory."""

    _topic: DirectoryTopic

    @property
    def sync(self) -> DirectoryTopic:
        """The synchronous topic, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._topic

    @property
    def partitions(self) -> int:
        return self._topic.partitions

    @property
    def settings(self) -> dict[str, Value]:
        return self._topic.settings

    def partition(self, number: int) -> AsyncLog:
        return AsyncLog(self._topic.partition(number), partial(self._topic._partitions.using, number))

    async def _append(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersInput,
        timestamp: int | datetime | None,
        partition: int | None,
        expect_offset: int | None,
    ) -> Position:
        topic = self._topic
        number = topic._router.place_for(value, key, partition)
        if expect_offset is not None:
            with topic._partitions.using(number):
                appends = await self._reach(number)
                entry = (value, key, headers, timestamp, expect_offset)
                return Position(number, await past_recall(appends.append, *entry))
        while True:
            log, was_ready = topic._partitions.held(number), number in topic._partitions.ready
            if log is None:
                appends = await self._reach(number)
                if not isinstance(appends, Log):
                    return Position(number, await past_recall(appends.append, value, key, headers, timestamp))
                log = appends
            try:
                offset = await log.append_async(value, key, headers, timestamp)
            except (LogClosed, DirectoryLocked):
                if topic._partitions.held(number) is log:
                    raise
                # The lock was released at this moment: nothing is stored.
            else:
                if was_ready and number not in topic._partitions.ready:
                    topic._partitions.lease(number)
                return Position(number, offset)

    async def _append_many(
        self, records: list[RecordInput], partition: int | None, expect_offset: int | None
    ) -> dict[int, range]:
        topic = self._topic
        parts = topic._router.encoded(records, partition)
        if len(parts) > 1:
            check_sole(expect_offset)
        with topic._partitions.using(*parts):
            targets = {number: topic._partitions.held(number) or await self._reach(number) for number in parts}
            placed: dict[int, range] = {}
            # Every target is reachable: from here on the append cannot be recalled.
            for number, target in targets.items():
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
        open_partitions = self._topic._partitions
        number = self._topic._router.place_for(b"", key, partition)
        with open_partitions.using(number):
            log = await self._waiting(open_partitions.ask_for, number)
            offset = await log.append_stream_async(
                chunks, key, max_bytes, headers=headers, timestamp=timestamp, expect_offset=expect_offset
            )
        return Position(number, offset)

    async def _reach(self, number: int) -> Log | Forwarder:
        """Return the appender of a partition. Waits if another process holds the lock and accepts no forwarded
        appends."""
        return await self._waiting(self._topic._partitions.reach, number)

    async def _waiting(self, reach: Callable[[int], T], number: int) -> T:
        """Call `reach` until no other process holds the lock."""
        timeout_s = self._topic._partitions.lock_timeout_s
        deadline = Deadline(timeout_s)
        while True:
            try:
                return await in_thread(reach, number)
            except DirectoryLocked as error:
                if deadline.passed:
                    raise error.after(timeout_s) from None
                await asyncio.sleep(_PAUSE_S)

    async def _reading(self, call: Callable[[], T]) -> T:
        return await in_thread(call) if may_block(self._logs(None)) else call()

    async def read(self, position: Position | tuple[int, int], *, isolation: Isolation = "committed") -> Record:
        number, offset = position
        log = self._topic.partition(number)
        if log._is_tiered:
            return await in_thread(partial(log.read, offset, isolation=isolation))
        return log.read(offset, isolation=isolation)

    def _portions(
        self, scan: Callable[[], Iterator[Record]], partitions: Sequence[int] | None
    ) -> AsyncIterator[Record]:
        records = scan()
        return portions(lambda: records, self._logs(partitions))

    def _logs(self, partitions: Sequence[int] | None) -> list[Log]:
        numbers = range(self.partitions) if partitions is None else partitions
        return [self._topic.partition(number) for number in numbers]
