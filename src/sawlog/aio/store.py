"""`AsyncStore`: a directory of topics, for asyncio. See the package's docstring for what runs where."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from os import PathLike
from typing import Literal, Unpack
from weakref import WeakSet

from ..isolation import Isolation
from ..storage import Directory
from ..topics.groups.consumer import OnShares
from ..topics.groups.kafka_names import KafkaNames
from ..topics.groups.offsets import Start
from ..topics.groups.position import OnLost
from ..topics.store import Store
from .consumer import AsyncConsumer
from .opening import Opening
from .topic import AsyncTopic
from .waiting import in_thread, opened_in_thread


class AsyncStore:
    """A directory of topics. Opened by `sawlog.open_async`."""

    def __init__(self, store: Store) -> None:
        self._store = store
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

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return await in_thread(self._store.topics)

    async def topic(self, name: str) -> AsyncTopic:
        """The topic of that name; `TopicNotFound` if it does not exist."""
        return AsyncTopic(await in_thread(self._store.topic, name))

    async def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: object
    ) -> AsyncTopic:
        """Create a topic; see `Store.create_topic`."""
        create = partial(self._store.create_topic, name, partitions, exist_ok=exist_ok, **settings)
        return AsyncTopic(await in_thread(create))

    async def alter_topic(self, name: str, partitions: int | None = None, **settings: object) -> AsyncTopic:
        """Add partitions or change settings; see `Store.alter_topic`."""
        return AsyncTopic(await in_thread(partial(self._store.alter_topic, name, partitions, **settings)))

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
        session_timeout_ms: int = 10_000,
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
            )
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
    path: str | PathLike[str] | Directory,
    mode: Literal["w", "r"],
    *,
    upkeep_interval_s: float | None,
    handover_timeout_s: float,
    lock_timeout: float,
) -> Opening[AsyncStore]:
    """See `open_async`."""
    open_ = partial(
        Store.open,
        path,
        mode,
        upkeep_interval_s=upkeep_interval_s,
        handover_timeout_s=handover_timeout_s,
        lock_timeout=lock_timeout,
    )

    async def opened() -> AsyncStore:
        return AsyncStore(await opened_in_thread(open_, Store.close))

    return Opening(opened)
