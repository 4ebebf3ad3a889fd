"""`AsyncStore`, and its groups, queues and transactions, for asyncio. See the package's docstring for what runs where.

Every exchange with the store runs in a thread. The methods are those of the synchronous classes.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack
from weakref import WeakSet

from ..batch.inputs import HeadersInput, RecordInput
from ..clock import Deadline, PollBackoff
from ..errors import LogClosed
from ..isolation import Isolation
from ..storage import Directory
from ..store.base import Position, Store, Topic, TopicPartition, Transaction
from ..store.consumer import OnShares
from ..store.consumer_options import KafkaNames
from ..store.directory.store import DirectoryStore
from ..store.directory.topic import DirectoryTopic
from ..store.directory.transactions.staging import PlacedOffsets
from ..store.groups import GroupDescription, Groups, StartPosition
from ..store.opening import open_store
from ..store.position import OnLost
from ..store.queues.message import Message
from ..store.queues.queue import Queue
from ..store.settings import TopicChanges, TopicSettings
from .consumer import AsyncConsumer
from .topic import AsyncDirectoryTopic, AsyncTopic
from .waiting import Opening, in_thread, open_in_thread, past_recall

if TYPE_CHECKING:
    import pyarrow as pa

    from ..sql.dataset import Wanted


class AsyncStore:
    """A store. Opened by `sawlog.open_async`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._consumers: WeakSet[AsyncConsumer] = WeakSet()

    @property
    def sync(self) -> Store:
        """The synchronous store, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._store

    @property
    def path(self) -> str:
        """Directory or address."""
        return self._store.path

    def __repr__(self) -> str:
        return f"<Async{repr(self._store)[1:]}"

    def _repr_html_(self) -> str:
        return self._store._repr_html_()

    # --- topics

    def _found(self, find: Callable[..., Topic], *arguments: Any) -> AsyncTopic:
        found = find(*arguments)
        return AsyncDirectoryTopic(found) if isinstance(found, DirectoryTopic) else AsyncTopic(found)

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return await in_thread(self._store.topics)

    async def topic(self, name: str) -> AsyncTopic:
        """Return a topic; `TopicNotFound` if it does not exist."""
        return await in_thread(self._found, self._store.topic, name)

    async def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Unpack[TopicSettings]
    ) -> AsyncTopic:
        """Create a topic; see `Store.create_topic`."""
        create = partial(self._store.create_topic, name, partitions, exist_ok=exist_ok, **settings)
        return await in_thread(self._found, create)

    async def alter_topic(
        self, name: str, partitions: int | None = None, **settings: Unpack[TopicChanges]
    ) -> AsyncTopic:
        """Add partitions or change settings; see `Store.alter_topic`."""
        return await in_thread(self._found, partial(self._store.alter_topic, name, partitions, **settings))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""
        await in_thread(self._store.delete_topic, name)

    # --- consumers

    def consumer(
        self,
        group: str | None,
        topics: str | Iterable[str],
        *,
        start: StartPosition = "earliest",
        on_lost: OnLost = "earliest",
        auto_commit_ms: int | None = 5000,
        session_timeout_ms: int | None = None,
        max_poll_interval_ms: int = 300_000,
        member: str | None = None,
        isolation: Isolation = "committed",
        on_assigned: OnShares | None = None,
        on_revoked: OnShares | None = None,
        **kafka: Unpack[KafkaNames],
    ) -> AsyncConsumer:
        """Read topics as a member of a group: `async with store.consumer(...) as consumer`. It joins on entering the
        block, or with the first record. See `Store.consumer` for the options; `on_assigned` and `on_revoked` are
        ordinary functions and may be called in another thread."""
        made = AsyncConsumer(
            partial(
                self._store.consumer,
                group,
                topics if isinstance(topics, str) else list(topics),
                start=start,
                on_lost=on_lost,
                auto_commit_ms=auto_commit_ms,
                session_timeout_ms=session_timeout_ms,
                max_poll_interval_ms=max_poll_interval_ms,
                member=member,
                isolation=isolation,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
                **kafka,
            ),
            waits=not isinstance(self._store, DirectoryStore),
        )
        self._consumers.add(made)
        return made

    def queue(
        self,
        topic: str,
        group: str,
        *,
        visibility_s: float = 30.0,
        max_deliveries: int | None = 5,
        dead_letters: str | None = None,
        start: StartPosition = "earliest",
        prefetch: int = 2000,
        worker: str | None = None,
    ) -> Opening[AsyncQueue]:
        """Deliver the records of a topic one by one: `async with store.queue(...) as queue`. See `Store.queue`."""
        open_ = partial(
            self._store.queue,
            topic,
            group,
            visibility_s=visibility_s,
            max_deliveries=max_deliveries,
            dead_letters=dead_letters,
            start=start,
            prefetch=prefetch,
            worker=worker,
        )

        async def opened() -> AsyncQueue:
            return AsyncQueue(await open_in_thread(open_, Queue.close))

        return Opening(opened)

    # --- groups, transactions and SQL

    @property
    def groups(self) -> AsyncGroups:
        """Consumer groups of the store."""
        return AsyncGroups(lambda: self._store.groups)

    def transaction(self, name: str | None = None, sequence: int | None = None) -> AsyncTransaction:
        """Begin a transaction with `async with`: records for several partitions, stored all or not at all."""
        return AsyncTransaction(partial(self._store.transaction, name, sequence))

    async def sql(
        self,
        query: str,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        *,
        schemas: Mapping[str, Wanted] | None = None,
        isolation: Isolation = "committed",
    ) -> pa.Table:
        """Run a query over topics with DuckDB, in a thread, and return its result; see `Store.sql`."""
        return await in_thread(partial(self._store.sql, query, parameters, schemas=schemas, isolation=isolation))

    # --- closing

    async def close(self) -> None:
        """Close the store and everything opened from it: appends in progress finish, tasks that wait for records end.
        Safe to call twice."""
        try:
            for consumer in list(self._consumers):
                await consumer.close()
        finally:
            await in_thread(self._store.close)


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

    def __init__(self, groups: Callable[[], Groups]) -> None:
        #: Called in a thread: a directory opens its groups on first use.
        self._groups = groups

    async def list(self) -> builtins.list[str]:
        """Return the names of all groups."""
        return await in_thread(lambda: self._groups().list())

    async def describe(self, name: str) -> GroupDescription:
        """Return the members of a group and its progress; `GroupNotFound`."""
        return await in_thread(lambda: self._groups().describe(name))

    async def commit(
        self,
        name: str,
        offsets: Mapping[TopicPartition, int],
        *,
        metadata: str = "",
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit offsets durably; `GroupActive` if a live member owns one of the partitions."""
        await in_thread(lambda: self._groups().commit(name, offsets, metadata=metadata, epochs=epochs))

    async def seek(self, name: str, offsets: Mapping[TopicPartition, StartPosition]) -> dict[TopicPartition, int]:
        """Move a group without live members; `GroupActive`, `GroupNotFound`."""
        return await in_thread(lambda: self._groups().seek(name, offsets))

    async def delete(self, name: str) -> None:
        """Delete a group and its offsets; `GroupActive` if it has live members."""
        await in_thread(lambda: self._groups().delete(name))


class AsyncQueue:
    """Records of a topic, handed out one by one. Created by `AsyncStore.queue`; see `Queue`."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._closed = False

    @property
    def sync(self) -> Queue:
        """The synchronous queue. Its calls may block: use `asyncio.to_thread`."""
        return self._queue

    async def receive(self, max_messages: int = 1, timeout_s: float = 1.0) -> list[Message]:
        """Return the next messages as soon as there are any, at most `max_messages`; an empty list after `timeout_s`. A
        cancelled task waits for the exchange in progress, whose messages are delivered again later."""
        return await self._receive(max_messages, Deadline(timeout_s))

    async def _receive(self, max_messages: int, deadline: Deadline) -> list[Message]:
        pauses = PollBackoff()
        while not self._closed:
            pauses.look()
            found = await past_recall(self._queue.receive, max_messages, 0.0)
            if found or deadline.passed:
                return found
            await asyncio.sleep(deadline.at_most(pauses.next_s()))
        return []

    def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages as they come, until `close`."""
        return self._messages(None)

    def drain(self) -> AsyncIterator[Message]:
        """Yield messages until there is none to deliver now, without waiting for delayed messages or those of other
        workers."""
        return self._messages(0.0)

    async def _messages(self, timeout_s: float | None) -> AsyncIterator[Message]:
        while found := await self._receive(1, Deadline(timeout_s)):
            yield found[0]

    async def ack(self, message: Message) -> None:
        """Finish a message: it is not delivered again."""
        await in_thread(self._queue.ack, message)

    async def release(self, message: Message, delay_s: float = 0.0) -> None:
        """Return a message to the queue: it is delivered again, after `delay_s`."""
        await in_thread(self._queue.release, message, delay_s)

    async def reject(self, message: Message, reason: str = "rejected") -> None:
        """Move a message to the dead letters."""
        await in_thread(self._queue.reject, message, reason)

    async def extend(self, message: Message, visibility_s: float | None = None) -> None:
        """Extend the visibility timeout of a message."""
        await in_thread(self._queue.extend, message, visibility_s)

    async def flush(self) -> None:
        """Write all acknowledgements now."""
        await in_thread(self._queue.flush)

    async def put(
        self, value: bytes | None, key: bytes | None = None, headers: HeadersInput = (), *, delay_s: float = 0.0
    ) -> Position:
        """Append a message to the topic, to be delivered after `delay_s` seconds, and return its position."""
        return await past_recall(partial(self._queue.put, value, key, headers, delay_s=delay_s))

    async def close(self) -> None:
        """Write all acknowledgements, return the other messages to the queue, and leave. Safe to call twice."""
        self._closed = True
        await in_thread(self._queue.close)

    def __repr__(self) -> str:
        return f"<Async{repr(self._queue)[1:]}"


class AsyncTransaction:
    """A transaction: `async with store.transaction() as transaction`. It commits at the end of the block, and aborts if
    the block raises. Created by `AsyncStore.transaction`."""

    def __init__(self, begin: Callable[[], Transaction]) -> None:
        self._begin = begin
        self._begun: Transaction | None = None

    @property
    def _transaction(self) -> Transaction:
        if self._begun is None:
            raise LogClosed("the transaction has not begun: use `async with`")
        return self._begun

    @property
    def replayed(self) -> bool:
        """This name and sequence, or a later one, are already stored."""
        return self._transaction.replayed

    async def append(self, topic: str, value: bytes | None, key: bytes | None = None) -> None:
        """Add one record; its offset is known after the commit."""
        await in_thread(self._transaction.append, topic, value, key)

    async def append_many(self, topic: str, records: Iterable[RecordInput], partition: int | None = None) -> None:
        """Add records, all or none of them."""
        await in_thread(self._transaction.append_many, topic, list(records), partition)

    async def commit(self) -> PlacedOffsets:
        """Store everything and return the offsets by (topic, partition). A commit in progress finishes even if the task
        is cancelled."""
        return await past_recall(self._transaction.commit)

    async def abort(self) -> None:
        """Discard everything."""
        await in_thread(self._transaction.abort)

    async def __aenter__(self) -> Self:
        self._begun = await in_thread(self._begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await in_thread(self._transaction.__exit__, kind, error, trace)
