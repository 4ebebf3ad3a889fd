"""`AsyncPartition` and `AsyncTopic`: one partition, and partitions under one name, for asyncio. See the package's
docstring for what runs where.

In a directory (`AsyncLog`, `AsyncDirectoryTopic`), partitions that this process has locked are written in the event
loop. For others, a thread takes the lock or forwards to the process that holds it; while neither is possible, the task
sleeps, up to the store's `lock_timeout`. On object storage every call runs in a thread; the event loop only hands out
records that are already decoded. The methods are those of `Partition` and `Topic`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from os import PathLike
from typing import Literal, TypeVar

from ..batch.inputs import HeadersInput, RecordInput
from ..batch.kernel import Record
from ..clock import Deadline
from ..config import Isolation, LogConfig
from ..errors import DirectoryLocked, LogClosed
from ..log.log import Log
from ..storage import Directory
from ..store.base import Partition, Position, Topic, check_sole, collected
from ..store.directory.forwarding.forwarder import Forwarder
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
    until_durable,
)

#: Pause between attempts to get a lock.
_PAUSE_S = 0.01

T = TypeVar("T")


class AsyncPartition(AsyncView[Partition]):
    """One partition. Returned by `AsyncTopic.partition`."""

    def __init__(self, partition: Partition, using: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        super().__init__(partition)
        #: Context in which the lock is not released: see `sawlog.store.directory.lock_leases`.
        self._using = using

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
        with self._using():
            await self._lock()
            return await self._inner.append_async(value, key, headers, timestamp, expect_offset)

    async def append_many(self, records: Iterable[RecordInput], expect_offset: int | None = None) -> range:
        """Append records as one batch, all or none, and return their offsets. Records are as in `Log.append_many`."""
        with self._using():
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
        with self._using():
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
        """Lock a log that is locked by its first write. In a thread: it may involve recovery."""
        if not self._inner._locked and not self._inner._is_closed:
            await in_thread(_hold, self._inner)

    async def _append_many(self, records: list[RecordInput], expect_offset: int | None) -> range:
        if not self._inner._is_free:
            return await super()._append_many(records, expect_offset)
        placed = self._inner._place_many(records, expect_offset)
        await until_durable(self._inner, placed.stop)
        return placed

    async def close(self) -> None:
        """Sync, and mark the log as closed cleanly. Safe to call twice."""
        await in_thread(self._inner.close)


def _hold(log: Log) -> None:
    with log._hold():
        pass


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
        return AsyncLog(self._inner.partition(number), partial(self._inner._partitions.using, number))

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
        """Append one record and return its position. Concurrent appends share a batch and its fsync. With
        `expect_offset`, as in `Topic.append`, the record has a batch of its own."""
        open_partitions = self._inner._partitions
        number = self._inner._router.place_for(value, key, partition)
        if expect_offset is not None:
            with open_partitions.using(number):
                appends = await self._reach(number)
                entry = (value, key, headers, timestamp, expect_offset)
                return Position(number, await past_recall(appends.append, *entry))
        while True:
            log, was_ready = open_partitions.held(number), number in open_partitions.ready
            if log is None:
                appends = await self._reach(number)
                if not isinstance(appends, Log):
                    return Position(number, await past_recall(appends.append, value, key, headers, timestamp))
                log = appends
            try:
                offset = await log.append_async(value, key, headers, timestamp)
            except (LogClosed, DirectoryLocked):
                if open_partitions.held(number) is log:
                    raise
                # The lock was released at this moment: nothing is stored.
            else:
                if was_ready and number not in open_partitions.ready:
                    open_partitions.lease(number)
                return Position(number, offset)

    async def append_many(
        self, records: Iterable[RecordInput], *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        open_partitions = self._inner._partitions
        parts = self._inner._router.encoded(list(records), partition)
        if len(parts) > 1:
            check_sole(expect_offset)
        with open_partitions.using(*parts):
            targets = {number: open_partitions.held(number) or await self._reach(number) for number in parts}
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
        open_partitions = self._inner._partitions
        number = self._inner._router.place_for(b"", key, partition)
        with open_partitions.using(number):
            log = await self._waiting(open_partitions.ask_for, number)
            offset = await log.append_stream_async(
                chunks, key, max_bytes, headers=headers, timestamp=timestamp, expect_offset=expect_offset
            )
        return Position(number, offset)

    async def _reach(self, number: int) -> Log | Forwarder:
        """Return the appender of a partition. Waits if another process holds the lock and accepts no forwarded
        appends."""
        return await self._waiting(self._inner._partitions.reach, number)

    async def _waiting(self, reach: Callable[[int], T], number: int) -> T:
        """Call `reach` until no other process holds the lock."""
        timeout_s = self._inner._partitions.lock_timeout_s
        deadline = Deadline(timeout_s)
        while True:
            try:
                return await in_thread(reach, number)
            except DirectoryLocked as error:
                if deadline.passed:
                    raise error.after(timeout_s) from None
                await asyncio.sleep(_PAUSE_S)

    async def read(self, position: Position | tuple[int, int], *, isolation: Isolation = "committed") -> Record:
        number, offset = position
        log = self._inner.partition(number)
        if log._is_tiered:
            return await in_thread(partial(log.read, offset, isolation=isolation))
        return log.read(offset, isolation=isolation)
