"""`AsyncObjectTopic` and `AsyncObjectLog`: topics and partitions on object storage, for asyncio.

Every call may wait for the network, so each runs in a thread; nothing is done in the event loop but handing out records
that are here. Tasks that append at the same time share a commit.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar, cast

from ..batch.given import GivenHeaders, GivenRecord
from ..batch.kernel import Record, RecordCursor
from ..clock import Deadline, Pauses
from ..isolation import Isolation
from ..log.log import Log
from ..log.protocols import LogReader
from ..objects.aio import collected
from ..topics.face import Offsets, Position
from ..topics.settings import Value
from ..topics.topic import Topic
from .log import AsyncLog
from .topic import AsyncTopic
from .waiting import END, End, in_thread, past_recall

if TYPE_CHECKING:
    from ..objects.partition import ObjectPartition
    from ..objects.topic import ObjectTopic

T = TypeVar("T")
#: How many records are taken at a time.
_PORTION = 5000


async def _portions(begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """What an iterator returns, taken in a thread."""
    found = await in_thread(begin)
    while portion := await in_thread(lambda: list(islice(found, _PORTION))):
        for each in portion:
            yield each


class AsyncObjectLog(AsyncLog):
    """One partition on object storage."""

    def __init__(self, partition: ObjectPartition) -> None:
        super().__init__(cast(Log, partition))  # it has the methods that are used here

    async def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset, when it is durable."""
        return await past_recall(self._log.append, value, key, headers, timestamp, expect_offset)

    async def append_many(self, records: Iterable[GivenRecord], expect_offset: int | None = None) -> range:
        """Append records as one batch, all or none, and return their offsets."""
        return await past_recall(self._log.append_many, list(records), expect_offset)

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
        """Append one record whose value comes in pieces, which are collected in memory."""
        value = await collected(chunks, max_bytes)
        return await self.append(value, key, headers, timestamp, expect_offset)

    async def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        """The record at `offset`; `OffsetOutOfRange` if there is none."""
        return await in_thread(partial(self._log.read, offset, isolation=isolation))

    def scan(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> AsyncIterator[Record]:
        """The records with start <= offset < end, in order, as of now; by default all of them."""
        return _portions(partial(self._log.scan, start, end, isolation=isolation))

    async def follow(
        self,
        start: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - ends the iteration, cancels nothing
        *,
        isolation: Isolation = "committed",
    ) -> AsyncIterator[Record]:
        """Records from `start` on, waiting for new ones; ends when none came for `timeout` seconds."""
        partition = cast("ObjectPartition", self._log).patient()
        feed, deadline, pauses = partition._following(start, isolation=isolation), Deadline(timeout), Pauses()
        while not isinstance(cursor := await in_thread(next, feed, END), End):
            if cursor is not None:
                for record in cursor:
                    yield record
                deadline = Deadline(timeout)
                pauses.found()
            elif deadline.passed:
                return
            else:  # here and not in the thread: a task that is cancelled must not wait for a record
                await sleep(deadline.at_most(pauses.next_s()))

    async def offset_at(self, timestamp: int | datetime) -> int:
        """The first offset whose record is not older than `timestamp`."""
        return await in_thread(self._log.offset_at, timestamp)

    async def close(self) -> None:
        """Nothing is open: the store is closed as a whole."""


class AsyncObjectTopic(AsyncTopic):
    """A topic on object storage."""

    def __init__(self, topic: ObjectTopic) -> None:
        super().__init__(cast(Topic, topic))  # it has the methods that are used here
        self._partitions, self._settings = topic.partitions, topic.settings

    @property
    def partitions(self) -> int:
        """The number of partitions when it was asked for."""
        return self._partitions

    @property
    def settings(self) -> dict[str, Value]:
        """The settings that were given, under Kafka's names."""
        return dict(self._settings)

    def partition(self, number: int) -> AsyncLog:
        """One partition."""
        return AsyncObjectLog(cast("ObjectPartition", self._topic.partition(number)))

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
        """Append one record and return its position, when it is durable."""
        call = partial(
            self._topic.append, value, key, headers, timestamp, partition=partition, expect_offset=expect_offset
        )
        return await past_recall(call)

    async def append_many(
        self, records: Iterable[GivenRecord], *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        """Append records, all of them or none, and return their offsets."""
        call = partial(self._topic.append_many, list(records), partition=partition, expect_offset=expect_offset)
        return await past_recall(call)

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
        """Append one record whose value comes in pieces, which are collected in memory."""
        value = await collected(chunks, max_bytes)
        return await self.append(value, key, headers, timestamp, partition=partition, expect_offset=expect_offset)

    async def read(self, position: Position | tuple[int, int], *, isolation: Isolation = "committed") -> Record:
        """The record at a position: (partition, offset)."""
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
        """The current records, partition by partition, each from its start to its end: by default all of them."""
        return _portions(partial(self._topic.scan, start, end, partitions=partitions, isolation=isolation))

    async def _followed(self, numbers: Iterable[int]) -> dict[int, LogReader]:
        def found() -> dict[int, LogReader]:
            return {number: cast("ObjectPartition", self._topic.partition(number)).patient() for number in numbers}

        return await in_thread(found)

    async def _next(self, feed: Iterator[RecordCursor | None]) -> RecordCursor | End | None:
        return await in_thread(next, feed, END)

    async def offsets(self) -> dict[int, Offsets]:
        """What each partition contains."""
        return await in_thread(self._topic.offsets)

    async def offset_at(self, timestamp: int | datetime) -> dict[int, int]:
        """In each partition the first offset whose record is not older than `timestamp`."""
        return await in_thread(self._topic.offset_at, timestamp)
