"""`AsyncPartition` and `AsyncTopic`: one partition, and partitions under one name, for asyncio. See the package's
docstring for what runs where.

In a directory (`AsyncLog`, `AsyncDirectoryTopic`), partitions are written in the event loop during a turn of this
process; a thread waits for the turn, up to the store's `lock_timeout`. On object storage every call runs in a thread;
the event loop only hands out records that are already decoded. The methods are those of `Partition` and `Topic`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from os import PathLike
from typing import Literal, TypeVar

from ..batch.inputs import HeadersInput, RecordInput
from ..batch.kernel import Record
from ..config import Isolation, LogConfig
from ..errors import LogClosed
from ..log.log import Log
from ..storage import Directory
from ..store.base import Partition, Position, Topic, check_sole, collected
from ..store.directory.topic import DirectoryTopic
from ..store.settings import Value
from .waiting import (
    AsyncView,
    Opening,
    awaited,
    followed,
    in_thread,
    open_in_thread,
    past_recall,
    portions,
    turn,
    until_durable,
)

T = TypeVar("T")


class AsyncPartition(AsyncView[Partition]):
    """One partition. Returned by `AsyncTopic.partition`."""

    @property
    def path(self) -> str:
        """Location, for messages."""
        return self._inner.path

    @property
    def lowest_offset(self) -> int:
        """First offset; in an empty partition, the offset of the next record."""
        return self._inner.lowest_offset

    @property
    def visible_offset(self) -> int:
        """End of the readable records."""
        return self._inner.visible_offset

    def __len__(self) -> int:
        return len(self._inner)

    def __bool__(self) -> bool:
        return True

    def _repr_html_(self) -> str:
        return self._inner._repr_html_()

    async def _lock(self) -> None:
        """Get ready to append, if that takes more than appending does."""

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
        await self._lock()
        return await self._inner.append_async(value, key, headers, timestamp, expect_offset)

    async def append_many(self, records: Iterable[RecordInput], expect_offset: int | None = None) -> range:
        """Append records as one batch, all or none, and return their offsets. Records are as in `Log.append_many`."""
        await self._lock()
        return await self._append_many(list(records), expect_offset)

    async def _append_many(self, records: list[RecordInput], expect_offset: int | None) -> range:
        return await past_recall(self._inner.append_many, records, expect_offset)

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
        await self._lock()
        return await self._inner.append_stream_async(
            chunks, key, max_bytes, headers=headers, timestamp=timestamp, expect_offset=expect_offset
        )

    # --- reading

    read = awaited(Partition.read, reads=True)
    offset_at = awaited(Partition.offset_at, reads=True)

    def scan(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> AsyncIterator[Record]:
        """Return the records with start <= offset < end as of now, in order; by default all of them."""
        return portions(partial(self._inner.scan, start, end, isolation=isolation), self._logs())

    def __aiter__(self) -> AsyncIterator[Record]:
        return self.scan()

    def follow(
        self, start: int | None = None, timeout: float | None = None, *, isolation: Isolation = "committed"
    ) -> AsyncIterator[Record]:
        """Yield records from `start` on, and new ones as they come. Ends when none came for `timeout` seconds, or when
        the partition is closed."""
        return followed({0: self._inner._patient()}, {} if start is None else {0: start}, timeout, isolation)

    # --- changing

    truncate = awaited(Partition.truncate)
    trim = awaited(Partition.trim)

    async def flush(self) -> None:
        """Wait until everything appended so far is durable."""
        await in_thread(self._inner.sync)

    async def close(self) -> None:
        """Close a log that was opened on its own. A store closes its partitions itself."""


class AsyncLog(AsyncPartition):
    """One partition in files. Opened by `sawlog.aio.open_log_async`, or `AsyncTopic.partition`."""

    _inner: Log

    @property
    def sync(self) -> Log:
        """The synchronous log, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._inner

    @property
    def durable_offset(self) -> int:
        """End of the records that survive a power failure."""
        return self._inner.durable_offset

    def _logs(self) -> Sequence[Log]:
        return [self._inner]

    async def read(self, offset: int, *, isolation: Isolation = "committed") -> Record:
        if self._inner._is_tiered:
            return await in_thread(partial(self._inner.read, offset, isolation=isolation))
        return self._inner.read(offset, isolation=isolation)

    async def _lock(self) -> None:
        """Wait for the turn to write to a log. In a thread: it may involve recovery."""
        if not self._inner._locked and not self._inner._is_closed:
            await turn(self._inner)

    async def _append_many(self, records: list[RecordInput], expect_offset: int | None) -> range:
        if not self._inner._is_free:
            return await super()._append_many(records, expect_offset)
        placed = self._inner._place_many(records, expect_offset)
        await until_durable(self._inner, placed.stop)
        return placed

    async def close(self) -> None:
        """Sync, and mark the log as closed cleanly. Safe to call twice."""
        await in_thread(self._inner.close)


def open_log(
    path: str | PathLike[str] | Directory, config: LogConfig | None, *, mode: Literal["w", "r", "a"]
) -> Opening[AsyncLog]:
    """See `open_log_async`."""

    async def open_() -> AsyncLog:
        log: Log = await open_in_thread(partial(Log.open, path, config, mode=mode), Log.close)
        return AsyncLog(log)

    return Opening(open_)


class AsyncTopic(AsyncView[Topic]):
    """Partitions under one name. Returned by `AsyncStore.topic` and `AsyncStore.create_topic`."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(topic)
        self._partitions, self._settings = topic.partitions, topic.settings

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self._inner.name

    @property
    def partitions(self) -> int:
        """Number of partitions when the topic was looked up."""
        return self._partitions

    @property
    def settings(self) -> dict[str, Value]:
        """Settings that differ from their defaults, by Kafka's names."""
        return dict(self._settings)

    def _repr_html_(self) -> str:
        return self._inner._repr_html_()

    def partition(self, number: int) -> AsyncPartition:
        """Return one partition."""
        return AsyncPartition(self._inner.partition(number))

    def _logs(self, partitions: Sequence[int] | None = None) -> Sequence[Log] | None:
        return None

    # --- appending

    append = awaited(Topic.append, recallable=False)
    append_arrow = awaited(Topic.append_arrow, recallable=False)

    async def append_many(
        self, records: Iterable[RecordInput], *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        """Append records, one batch per partition, and return their offsets; see `Topic.append_many`."""
        append = partial(self._inner.append_many, list(records), partition=partition, expect_offset=expect_offset)
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
        """Append one record from an async iterable of chunks and return its position; see `Topic.append_stream`. On
        object storage, the value is collected in memory."""
        value = await collected(chunks, max_bytes)
        return await self.append(value, key, headers, timestamp, partition=partition, expect_offset=expect_offset)

    # --- reading

    read = awaited(Topic.read, reads=True)
    offsets = awaited(Topic.offsets, reads=True)
    offset_at = awaited(Topic.offset_at, reads=True)

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
        scan = partial(self._inner.scan, start, end, partitions=numbers, isolation=isolation)
        return portions(scan, self._logs(numbers))

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
        """Yield the records of all partitions, in offset order within each, and new ones as they come. A partition that
        `start` does not name begins at its lowest offset. Ends when no record came for `timeout` seconds, or when the
        store is closed. Partitions added later are not followed."""
        numbers = range(self.partitions) if partitions is None else sorted(set(partitions))
        logs = await self._reading(lambda: {number: self._inner.partition(number)._patient() for number in numbers})
        async for record in followed(logs, start or {}, timeout, isolation):
            yield record

    # --- changing

    truncate = awaited(Topic.truncate)
    trim = awaited(Topic.trim)


class AsyncDirectoryTopic(AsyncTopic):
    """A topic in a directory."""

    _inner: DirectoryTopic

    @property
    def sync(self) -> DirectoryTopic:
        """The synchronous topic, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._inner

    @property
    def partitions(self) -> int:
        return self._inner.partitions

    @property
    def settings(self) -> dict[str, Value]:
        return self._inner.settings

    def partition(self, number: int) -> AsyncLog:
        return AsyncLog(self._inner.partition(number))

    def _logs(self, partitions: Sequence[int] | None = None) -> list[Log]:
        numbers = range(self.partitions) if partitions is None else partitions
        return [self._inner.partition(number) for number in numbers]

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
        number = self._inner._router.place_for(value, key, partition)
        while True:
            log = self._inner.partition(number)
            try:
                await turn(log)
                return Position(number, await log.append_async(value, key, headers, timestamp, expect_offset))
            except LogClosed:  # closed at this moment to be opened with other settings: nothing is stored
                if self._inner.partition(number) is log:
                    raise

    async def append_many(
        self, records: Iterable[RecordInput], *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        parts = self._inner._router.encoded(list(records), partition)
        if len(parts) > 1:
            check_sole(expect_offset)
        logs = {number: self._inner.partition(number) for number in parts}
        for log in logs.values():
            await turn(log)
        if not all(log._locked and log._is_free for log in logs.values()):
            return await past_recall(self._inner._append_encoded, parts, expect_offset)
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
        number = self._inner._router.place_for(b"", key, partition)
        log = self._inner.partition(number)
        await turn(log)
        offset = await log.append_stream_async(
            chunks, key, max_bytes, headers=headers, timestamp=timestamp, expect_offset=expect_offset
        )
        return Position(number, offset)

    async def read(self, position: Position | tuple[int, int], *, isolation: Isolation = "committed") -> Record:
        number, offset = position
        log = self._inner.partition(number)
        if log._is_tiered:
            return await in_thread(partial(log.read, offset, isolation=isolation))
        return log.read(offset, isolation=isolation)
