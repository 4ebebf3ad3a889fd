"""`AsyncStore`, and its groups, queues and transactions, for asyncio. See the package's docstring for what runs where.

Every exchange with the store runs in a thread. The methods are those of the synchronous classes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from os import PathLike
from typing import Any, Literal, Self
from weakref import WeakSet

from ..batch.inputs import RecordInput
from ..clock import Deadline, PollBackoff
from ..errors import LogClosed
from ..storage import Directory
from ..store.base import Store, Topic, Transaction
from ..store.consumer import Consumer
from ..store.directory.store import DirectoryStore
from ..store.directory.topic import DirectoryTopic
from ..store.groups import Groups
from ..store.opening import open_store
from ..store.queues.message import Message
from ..store.queues.queue import _DRAIN_WAIT_S, Queue
from .consumer import AsyncConsumer
from .topic import AsyncDirectoryTopic, AsyncTopic
from .waiting import AsyncView, Opening, awaited, calling, in_thread, open_in_thread, past_recall


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
