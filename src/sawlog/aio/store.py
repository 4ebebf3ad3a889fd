"""`AsyncStore`: a directory of topics, for asyncio. See the package's docstring for what runs where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from os import PathLike
from typing import Any, Literal, Unpack
from weakref import WeakSet

from ..addresses import is_address
from ..isolation import Isolation
from ..opening import open_store
from ..storage import Directory
from ..topics.groups.consumer import OnShares
from ..topics.groups.kafka_names import KafkaNames
from ..topics.groups.offsets import Start
from ..topics.groups.position import OnLost
from ..topics.keywords import TopicChanges, TopicSettings
from ..topics.store import Store
from ..topics.topic import Topic
from .consumer import AsyncConsumer
from .opening import Opening
from .topic import AsyncTopic
from .waiting import in_thread, opened_in_thread


class AsyncStore:
    """A directory of topics. Opened by `sawlog.open_async`."""

    def __init__(self, store: Store, wrap: Callable[[Any], AsyncTopic] | None = None) -> None:
        self._store = store
        #: Makes a topic for asyncio of one on object storage.
        self._wrap = wrap
        self._consumers: WeakSet[AsyncConsumer] = WeakSet()

    @property
    def sync(self) -> Store:
        """The store itself, for everything else. Its calls may block: use `asyncio.to_thread`."""
        return self._store

    @property
    def path(self) -> str:
        """The directory."""
        return self._store.path

    def __repr__(self) -> str:
        return f"<Async{repr(self._store)[1:]}"

    def _repr_html_(self) -> str:
        return self._store._repr_html_()

    # --- topics

    def _found(self, find: Callable[..., Topic], *arguments: Any) -> AsyncTopic:
        found = find(*arguments)
        return AsyncTopic(found) if self._wrap is None else self._wrap(found)

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return await in_thread(self._store.topics)

    async def topic(self, name: str) -> AsyncTopic:
        """The topic of that name; `TopicNotFound` if it does not exist."""
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
        """Read topics as a member of a group: `async with store.consumer(...) as consumer`. It joins when the block
        begins, or with the first record. See `Store.consumer` for the options; `on_assigned` and `on_revoked` are
        ordinary functions, and may be called in another thread."""
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
            waits=self._wrap is not None,
        )
        self._consumers.add(made)
        return made

    # --- closing

    async def close(self) -> None:
        """Close everything that came from it: appends on their way are finished, tasks that wait for records end. Safe
        to call twice."""
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
        if not is_address(path):
            return AsyncStore(await opened_in_thread(open_, Store.close))
        from .remote import AsyncObjectTopic  # with what object storage needs

        return AsyncStore(await opened_in_thread(open_, lambda store: store.close()), AsyncObjectTopic)

    return Opening(opened)
