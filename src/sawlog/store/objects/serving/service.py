"""`ObjectService`: the broker's view of a store on object storage. See `sawlog.store.served`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from ....errors import TopicNotFound
from ...base import Store
from ..session import StoreSession
from ..snapshots import ObjectRegistry
from .fleet import ObjectBrokers
from .groups import ServedGroups
from .ledger import ObjectTransactionalIds
from .topic import ServedTopic

#: Number of threads for reads and uploads.
_THREADS = 16


class ObjectService:
    """The service of one open store."""

    #: Commits of other processes are discovered by polling.
    is_current = False

    def __init__(self, store: Store, session: StoreSession) -> None:
        self._store = store
        self._session = session
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sawlog-objects")
        self._topics: dict[str, ServedTopic] = {}
        self.path = session.bucket.url
        self.id = store.id
        self.registry = ObjectRegistry(session)
        self.fleet = ObjectBrokers(session)
        self.groups = ServedGroups(session, self.fleet)

    def close(self) -> None:
        """Wait for running reads and uploads."""
        self._threads.shutdown(wait=True)

    def catch_up(self) -> None:
        """Fold everything that others have written until now."""
        self._session.look(lambda state: None, fresh=True)

    def ledger(self) -> ObjectTransactionalIds:
        """Return the transactional ids."""
        return ObjectTransactionalIds(self._session)

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return self._store.topics()

    def topic(self, name: str) -> ServedTopic:
        """Return a topic. Raises `TopicNotFound`."""
        entry = self._session.look(lambda state: state.topic(name))
        if entry is None:
            entry = self._session.look(lambda state: state.topic(name), fresh=True)
        if entry is None:
            raise TopicNotFound(f"no topic {name!r} in {self.path}")
        found = self._topics.get(name)
        if found is None or found.id != entry["id"]:
            found = self._topics[name] = ServedTopic(self._session, self._threads, name, entry)
        return found

    def create_topic(self, name: str, partitions: int, given: Mapping[str, object]) -> ServedTopic:
        self._store.create_topic(name, partitions, **given)  # type: ignore[arg-type]
        return self.topic(name)

    def alter_topic(self, name: str, partitions: int | None, changes: Mapping[str, object]) -> ServedTopic:
        """Add partitions or change settings."""
        self._store.alter_topic(name, partitions, **changes)  # type: ignore[arg-type]
        return self.topic(name)

    def reopen(self, name: str) -> None:
        """No-op: the next batch uses the new settings."""

    def delete_topic(self, name: str) -> None:
        self._store.delete_topic(name)

    def recover(self) -> Iterator[tuple[str, int, object]]:
        """No-op: there is nothing to recover."""
        return iter(())

    def free_bytes(self) -> int | None:
        """Return None: the capacity of a bucket is unknown."""
        return None

    def space(self) -> tuple[int, int]:
        """Return (-1, -1): the capacity of a bucket is unknown."""
        return -1, -1
