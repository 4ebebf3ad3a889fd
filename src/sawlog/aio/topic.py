"""`AsyncTopic`: partitions under one name, for asyncio, whatever stores them. Every call runs in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial

from ..batch.inputs import HeadersInput, RecordInput, TableInput
from ..batch.kernel import Record, RecordCursor
from ..clock import Deadline
from ..isolation import Isolation
from ..store.base import Offsets, Partition, Position, Topic, collected
from ..store.settings import Value
from .partition import AsyncPartition, portions
from .waiting import END, End, Waker, YieldTimer, in_thread, may_block, past_recall


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
        """Append one record and return its position when it is durable."""
        call = partial(
            self._topic.append, value, key, headers, timestamp, partition=partition, expect_offset=expect_offset
        )
        return await past_recall(call)

    async def append_many(
        self, records: Iterable[RecordInput], *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        """Append records, one batch per partition, and return their offsets; see `Topic.append_many`."""
        call = partial(self._topic.append_many, list(records), partition=partition, expect_offset=expect_offset)
        return await past_recall(call)

    async def append_arrow(
        self, table: TableInput, *, partition: int | None = None, expect_offset: int | None = None
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
        headers: HeadersInput = (),
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> Position:
        """Append one record whose value arrives in chunks. The value is collected in memory."""
        value = await collected(chunks, max_bytes)
        return await self.append(value, key, headers, timestamp, partition=partition, expect_offset=expect_offset)

    # --- reading

    async def read(self, position: Position | tuple[int, int], *, isolation: Isolation = "committed") -> Record:
        """Return the record at a position: (partition, offset)."""
        number, offset = position
        return await in_thread(lambda: self._topic.partition(number).read(offset, isolation=isolation))

    def scan(
        self,
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        *,
        partitions: Iterable[int] | None = None,
        isolation: Isolation = "committed",
    ) -> AsyncIterator[Record]:
        """Return the current records, partition by partition, each from its start to its end; by default all."""
        return portions(partial(self._topic.scan, start, end, partitions=partitions, isolation=isolation))

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
        logs = await self._followed(numbers)
        feeds = {number: log._following((start or {}).get(number), isolation=isolation) for number, log in logs.items()}
        waker, yield_timer, deadline = Waker(), YieldTimer(), Deadline(timeout)
        waker.watch(logs.values())
        try:
            while feeds:
                waker.arm()
                found = False
                for number, feed in list(feeds.items()):
                    waits = may_block([logs[number]])
                    cursor = await in_thread(next, feed, END) if waits else await self._next(feed)
                    if isinstance(cursor, End):
                        del feeds[number]
                    elif cursor is not None:
                        for record in cursor:
                            yield record
                        if yield_timer.is_due:
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

    async def _followed(self, numbers: Iterable[int]) -> Mapping[int, Partition]:
        return await in_thread(lambda: {number: self._topic.partition(number).patient() for number in numbers})

    async def _next(self, feed: Iterator[RecordCursor | None]) -> RecordCursor | End | None:
        return await in_thread(next, feed, END)

    async def offsets(self) -> dict[int, Offsets]:
        """Return the range of offsets of each partition."""
        return await in_thread(self._topic.offsets)

    async def offset_at(self, timestamp: int | datetime) -> dict[int, int]:
        """Return the first offset in each partition whose record is not older than `timestamp`, or the end."""
        return await in_thread(self._topic.offset_at, timestamp)

    # --- changing

    async def truncate(self, partition: int, offset: int) -> int:
        """Drop the records of a partition from `offset` on and return the number of offsets dropped. Only where
        `Partition.supports_truncation`."""
        return await self.partition(partition).truncate(offset)

    async def trim(self, offsets: Mapping[int, int]) -> int:
        """Drop the records below these offsets and return the number of offsets dropped."""
        return await in_thread(self._topic.trim, offsets)
