"""`AsyncStore`: a store for asyncio. See the package's docstring for what runs where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Unpack
from weakref import WeakSet

from ..isolation import Isolation
from ..storage import Directory
from ..store.base import Store, Topic
from ..store.committed_offsets import Start
from ..store.consumer import OnShares
from ..store.consumer_options import KafkaNames
from ..store.directory.store import Store as DirectoryStore
from ..store.directory.topic import Topic as DirectoryTopic
from ..store.opening import open_store
from ..store.position import OnLost
from ..store.queues.queue import Queue
from ..store.settings import TopicChanges, TopicSettings
from .consumer import AsyncConsumer
from .directory import AsyncDirectoryTopic
from .groups import AsyncGroups
from .opening import Opening
from .queue import AsyncQueue
from .topic import AsyncTopic
from .transaction import AsyncTransaction
from .waiting import in_thread, open_in_thread

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
        start: Start = "earliest",
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
        start: Start = "earliest",
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
