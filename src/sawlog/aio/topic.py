"""`AsyncTopic` and `AsyncDirectoryTopic`: partitions under one name, for asyncio. See the package's docstring for what
runs where.

In a directory, partitions are written in the event loop during a turn of this process; a thread waits for the turn, up
to the store's `lock_timeout`. On object storage every call runs in a thread. The methods are those of `Topic`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

from ..batch.inputs import HeadersInput, RecordInput
from ..batch.kernel import Record
from ..config import Isolation
from ..errors import LogClosed
from ..log.log import Log
from ..store.base import Offsets, Position, Topic, check_sole, collected
from ..store.directory.topic import DirectoryTopic
from ..store.settings import Value
from .partition import AsyncLog, AsyncPartition
from .waiting import awaited, followed, in_thread, may_block, past_recall, portions, turn, until_durable

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
        return AsyncLog(self._topic.partition(number))

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
        while True:
            log = topic.partition(number)
            try:
                await turn(log)
                if expect_offset is not None:
                    entry = (value, key, headers, timestamp, expect_offset)
                    return Position(number, await past_recall(log.append, *entry))
                return Position(number, await log.append_async(value, key, headers, timestamp))
            except LogClosed:  # closed at this moment to be opened with other settings: nothing is stored
                if topic.partition(number) is log:
                    raise

    async def _append_many(
        self, records: list[RecordInput], partition: int | None, expect_offset: int | None
    ) -> dict[int, range]:
        topic = self._topic
        parts = topic._router.encoded(records, partition)
        if len(parts) > 1:
            check_sole(expect_offset)
        logs = {number: topic.partition(number) for number in parts}
        for log in logs.values():
            await turn(log)
        if not all(log._locked and log._is_free for log in logs.values()):
            return await past_recall(topic._append_encoded, parts, expect_offset)
        placed = {
            number: log._place_batches(bytearray(parts[number]), wait=False, expect_offset=expect_offset)
            for number, log in logs.items()
        }
        for number, log in logs.items():
            await until_durable(log, placed[number].stop)
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
        number = self._topic._router.place_for(b"", key, partition)
        log = self._topic.partition(number)
        await turn(log)
        offset = await log.append_stream_async(
            chunks, key, max_bytes, headers=headers, timestamp=timestamp, expect_offset=expect_offset
        )
        return Position(number, offset)

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
