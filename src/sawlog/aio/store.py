"""`AsyncStore`, and its consumers, groups, queues and transactions, for asyncio. See the package's docstring for what
runs where.

Every exchange with the store runs in a thread. The methods are those of the synchronous classes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from os import PathLike
from typing import Any, Literal, Self
from weakref import WeakSet

from ..batch.inputs import RecordInput
from ..batch.kernel import Record, RecordCursor, handed_out
from ..clock import Deadline, PollBackoff
from ..errors import LogClosed
from ..storage import Directory
from ..store.base import Store, Topic, TopicPartition, Transaction
from ..store.consumer import Consumer
from ..store.directory.store import DirectoryStore
from ..store.directory.topic import DirectoryTopic
from ..store.groups import Groups
from ..store.opening import open_store
from ..store.queues.message import Message
from ..store.queues.queue import _DRAIN_WAIT_S, Queue
from .topic import AsyncDirectoryTopic, AsyncTopic
from .waiting import (
    END,
    AsyncView,
    End,
    Opening,
    Waker,
    YieldTimer,
    awaited,
    calling,
    direct,
    in_thread,
    may_block,
    open_in_thread,
    past_recall,
)

#: Maximum wait before checking the group again.
_GROUP_CHECK_S = 0.25


def _async_topic(topic: Topic) -> AsyncTopic:
    return AsyncDirectoryTopic(topic) if isinstance(topic, DirectoryTopic) else AsyncTopic(topic)


class AsyncStore(AsyncView[Store]):
    """A store. Opened by `sawlog.open_async`."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._consumers: WeakSet[AsyncConsumer] = WeakSet()

    @property
    def path(self) -> str:
        """Directory or address."""
        return self._inner.path

    def _repr_html_(self) -> str:
        return self._inner._repr_html_()

    # --- topics

    topics = awaited(Store.topics)
    topic = awaited(Store.topic, _async_topic)
    create_topic = awaited(Store.create_topic, _async_topic)
    alter_topic = awaited(Store.alter_topic, _async_topic)
    delete_topic = awaited(Store.delete_topic)

    # --- consumers

    @calling(Store.consumer)
    def consumer(self, join: Callable[[], Consumer]) -> AsyncConsumer:
        """Read topics as a member of a group: `async with store.consumer(...) as consumer`. It joins on entering the
        block, or with the first record. See `Store.consumer` for the options; `on_assigned` and `on_revoked` are
        ordinary functions and may be called in another thread."""
        made = AsyncConsumer(join, waits=not isinstance(self._inner, DirectoryStore))
        self._consumers.add(made)
        return made

    @calling(Store.queue)
    def queue(self, open_: Callable[[], Queue]) -> Opening[AsyncQueue]:
        """Deliver the records of a topic one by one: `async with store.queue(...) as queue`. See `Store.queue`."""

        async def opened() -> AsyncQueue:
            return AsyncQueue(await open_in_thread(open_, Queue.close))

        return Opening(opened)

    # --- groups, transactions and SQL

    @property
    def groups(self) -> AsyncGroups:
        """Consumer groups of the store."""
        return AsyncGroups(self._inner)

    @calling(Store.transaction)
    def transaction(self, begin: Callable[[], Transaction]) -> AsyncTransaction:
        """Begin a transaction with `async with`: records for several partitions, stored all or not at all."""
        return AsyncTransaction(begin)

    sql = awaited(Store.sql)

    # --- closing

    async def close(self) -> None:
        """Close the store and everything opened from it: appends in progress finish, tasks that wait for records end.
        Safe to call twice."""
        try:
            for consumer in list(self._consumers):
                await consumer.close()
        finally:
            await in_thread(self._inner.close)


def opening(
    path: str | PathLike[str] | Directory, mode: Literal["w", "r"], options: Mapping[str, Any]
) -> Opening[AsyncStore]:
    """See `open_async`."""
    open_ = partial(open_store, path, mode, **options)

    async def opened() -> AsyncStore:
        return AsyncStore(await open_in_thread(open_, Store.close))

    return Opening(opened)


class AsyncConsumer:
    """A member of a consumer group: `async with store.consumer(...) as consumer`.

    It wraps `Consumer` and gives the same guarantees: at least once; a returned record counts as processed when the
    next one is requested. Records are read in the event loop. Joining, committing, and the group's work between two
    records run in a thread; when there is nothing new, the task sleeps until a log has grown. A block left by an
    exception, including a cancellation, commits without the current record.
    """

    def __init__(self, join: Callable[[], Consumer], *, waits: bool = False) -> None:
        self._join = join
        #: Reads may block on the network, so they run in a thread.
        self._waits = waits
        self._joined: Consumer | None = None
        self._waker: Waker | None = None
        self._closed = False

    async def __aenter__(self) -> AsyncConsumer:
        await self._consumer()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._close(everything=kind is None, quiet=kind is not None)

    async def _consumer(self) -> Consumer:
        if self._closed:
            raise LogClosed("the consumer is closed")
        if self._joined is None:
            self._joined = await open_in_thread(self._join, Consumer.close)
        return self._joined

    @property
    def sync(self) -> Consumer:
        """The synchronous consumer. Its calls may block: use `asyncio.to_thread`."""
        if self._joined is None:
            raise LogClosed("the consumer has not joined yet: use `async with`")
        return self._joined

    # --- reading

    def __aiter__(self) -> AsyncIterator[Record]:
        """Yield records as they arrive, until `close`."""
        return self._records(drain=False)

    def drain(self) -> AsyncIterator[Record]:
        """Yield records up to the end that each owned partition had when it was first read."""
        return self._records(drain=True)

    def _records(self, *, drain: bool) -> AsyncIterator[Record]:
        yield_timer, feeds = YieldTimer(), list[Iterator[RecordCursor | None]]()

        async def step() -> RecordCursor | None:
            """Return the next cursor as soon as there is one; None at the end."""
            consumer = await self._consumer()
            if not feeds:
                feeds.append(consumer._feed(drain=drain))
            elif yield_timer.is_due:
                await asyncio.sleep(0)
            while (cursor := await _step(consumer, feeds[0], waits=self._waits or may_block(consumer._logs))) is None:
                await self._wait(consumer, _GROUP_CHECK_S)
            return None if isinstance(cursor, End) else cursor

        made: AsyncIterator[Record] = handed_out(step)
        return made

    async def poll(self, timeout_s: float = 1.0, max_records: int = 500) -> list[Record]:
        """Return the next records as soon as there are any, at most `max_records`; an empty list after `timeout_s`."""
        consumer, deadline = await self._consumer(), Deadline(timeout_s)
        while True:
            self._get_waker().arm()
            if consumer._is_due:
                await in_thread(consumer._go_on)
            if self._waits or may_block(consumer._logs):
                records = await in_thread(consumer.poll, 0.0, max_records)
            else:
                records = consumer.poll(0.0, max_records)
            if records or deadline.passed or consumer._is_closed:
                return records
            await self._wait(consumer, deadline.at_most(_GROUP_CHECK_S))

    def _get_waker(self) -> Waker:
        if self._waker is None:
            self._waker = Waker()
        return self._waker

    async def _wait(self, consumer: Consumer, seconds: float) -> None:
        waker = self._get_waker()
        if not self._waits:
            waker.watch(consumer._logs)
        await (waker.wait(seconds) if waker.is_armed else asyncio.sleep(0))
        waker.arm()  # the caller looks again: records may have come before this

    # --- committing, inspecting and moving

    async def commit(self, positions: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit everything returned so far, or these positions: {(topic, partition): next offset to read}.

        Durable when it returns. If the task is cancelled, the commit may or may not have happened; repeating it does no
        harm.
        """
        await in_thread((await self._consumer()).commit, positions)

    @property
    def assignment(self) -> set[TopicPartition]:
        """Partitions assigned to this member: {(topic, partition)}."""
        return self.sync.assignment

    @property
    def positions_lost(self) -> int:
        """Number of times a position was no longer in the log."""
        return self.sync.positions_lost

    position = direct(Consumer.position)
    committed = awaited(Consumer.committed)
    lag = direct(Consumer.lag)
    seek = direct(Consumer.seek)
    pause = direct(Consumer.pause)

    def resume(self, *partitions: TopicPartition) -> None:
        """Resume reading these partitions where they were paused; without arguments, all paused partitions."""
        self.sync.resume(*partitions)
        if self._waker is not None:
            self._waker.wake()

    @property
    def paused(self) -> set[TopicPartition]:
        """Paused partitions."""
        return self.sync.paused

    # --- closing

    async def close(self) -> None:
        """Commit the processed records, without the current one, and leave the group. Safe to call twice, and from any
        task: a task that waits for records ends."""
        await self._close(everything=False, quiet=False)

    async def _close(self, *, everything: bool, quiet: bool) -> None:
        self._closed = True
        consumer = self._joined
        if consumer is None:
            return
        try:
            await in_thread(partial(consumer._finish, everything=everything, quiet=quiet))
        finally:
            if self._waker is not None:
                self._waker.wake()
                self._waker.close()


async def _step(consumer: Consumer, feed: Iterator[RecordCursor | None], *, waits: bool) -> RecordCursor | End | None:
    """Return the next cursor; in a thread if the consumer has group work to do, or may block on the network."""
    if waits or consumer._is_due:
        return await in_thread(next, feed, END)
    return next(feed, END)


class AsyncGroups:
    """Consumer groups of a store: list, inspect, move and delete them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def sync(self) -> Groups:
        """The synchronous groups. A directory opens them on first use, which may block: use `asyncio.to_thread`."""
        return self._store.groups

    list = awaited(Groups.list)
    describe = awaited(Groups.describe)
    commit = awaited(Groups.commit)
    seek = awaited(Groups.seek)
    delete = awaited(Groups.delete)


class AsyncQueue(AsyncView[Queue]):
    """Records of a topic, handed out one by one. Created by `AsyncStore.queue`; see `Queue`."""

    _closed = False

    async def receive(self, max_messages: int = 1, timeout_s: float = 1.0) -> list[Message]:
        """Return the next messages as soon as there are any, at most `max_messages`; an empty list after `timeout_s`. A
        cancelled task waits for the exchange in progress, whose messages are delivered again later."""
        return await self._receive(max_messages, Deadline(timeout_s))

    async def _receive(self, max_messages: int, deadline: Deadline) -> list[Message]:
        pauses = PollBackoff()
        while not self._closed:
            pauses.look()
            found = await past_recall(self._inner.receive, max_messages, 0.0)
            if found or deadline.passed:
                return found
            await asyncio.sleep(deadline.at_most(pauses.next_s()))
        return []

    def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages as they come, until `close`."""
        return self._messages(None)

    async def drain(self, *, wait: bool = False) -> AsyncIterator[Message]:
        """Yield messages until none is deliverable now. With `wait`, until every message is finished or dead: also wait
        for delayed messages, for retries, and for messages that are with a worker."""
        async for each in self._messages(0.0):
            yield each
        while wait and not self._closed and (await self.counts()).unfinished:
            for found in await self._receive(1, Deadline(_DRAIN_WAIT_S)):
                yield found
                async for each in self._messages(0.0):
                    yield each

    async def _messages(self, timeout_s: float | None) -> AsyncIterator[Message]:
        while found := await self._receive(1, Deadline(timeout_s)):
            yield found[0]

    counts = awaited(Queue.counts)

    ack = awaited(Queue.ack)
    release = awaited(Queue.release)
    reject = awaited(Queue.reject)
    extend = awaited(Queue.extend)
    flush = awaited(Queue.flush)
    put = awaited(Queue.put, recallable=False)

    async def close(self) -> None:
        """Write all acknowledgements, return the other messages to the queue, and leave. Safe to call twice."""
        self._closed = True
        await in_thread(self._inner.close)


class AsyncTransaction:
    """A transaction: `async with store.transaction() as transaction`. It commits at the end of the block, and aborts if
    the block raises. Created by `AsyncStore.transaction`."""

    def __init__(self, begin: Callable[[], Transaction]) -> None:
        self._begin = begin
        self._begun: Transaction | None = None

    @property
    def sync(self) -> Transaction:
        """The synchronous transaction. Its calls may block: use `asyncio.to_thread`."""
        if self._begun is None:
            raise LogClosed("the transaction has not begun: use `async with`")
        return self._begun

    @property
    def replayed(self) -> bool:
        """This name and sequence, or a later one, are already stored."""
        return self.sync.replayed

    append = awaited(Transaction.append)
    commit = awaited(Transaction.commit, recallable=False)
    abort = awaited(Transaction.abort)

    async def append_many(self, topic: str, records: Iterable[RecordInput], partition: int | None = None) -> None:
        """Add records, all or none of them."""
        await in_thread(self.sync.append_many, topic, list(records), partition)

    async def __aenter__(self) -> Self:
        self._begun = await in_thread(self._begin)
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await in_thread(self.sync.__exit__, *raised)
