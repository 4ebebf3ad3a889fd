"""`ObjectService`: a store on object storage, as one of its brokers uses it. See `sawlog.store.served`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from ....errors import TopicNotFound
from ...base import Store
from ..documents import ObjectRegistry
from ..session import Core
from .fleet import ObjectFleet
from .groups import ServedGroups
from .ledger import ObjectLedger
from .topic import ServedTopic

#: Threads that read from the bucket, and upload to it.
_THREADS = 16


class ObjectService:
    """The service of one open store."""

    #: What others write is learnt of by looking.
    is_current = False

    def __init__(self, store: Store, core: Core) -> None:
        self._store = store
        self._core = core
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sawlog-objects")
        self._topics: dict[str, ServedTopic] = {}
        self.path = core.bucket.url
        self.id = store.id
        self.registry = ObjectRegistry(core)
        self.fleet = ObjectFleet(core)
        self.groups = ServedGroups(core, self.fleet)

    def close(self) -> None:
        """Let what has begun end."""
        self._threads.shutdown(wait=True)

    def catch_up(self) -> None:
        """Learn what others have written until now."""
        self._core.look(lambda state: None, fresh=True)

    def ledger(self) -> ObjectLedger:
        """Transactional ids."""
        return ObjectLedger(self._core)

    def topics(self) -> list[str]:
        """The names of all topics."""
        return self._store.topics()

    def topic(self, name: str) -> ServedTopic:
        """The topic of that name; `TopicNotFound`."""
        entry = self._core.look(lambda state: state.topic(name))
        if entry is None:
            entry = self._core.look(lambda state: state.topic(name), fresh=True)
        if entry is None:
            raise TopicNotFound(f"no topic {name!r} in {self.path}")
        found = self._topics.get(name)
        if found is None or found.id != entry["id"]:
            found = self._topics[name] = ServedTopic(self._core, self._threads, name, entry)
        return found

    def create_topic(self, name: str, partitions: int, given: Mapping[str, object]) -> ServedTopic:
        """Create a topic."""
        self._store.create_topic(name, partitions, **given)  # type: ignore[arg-type]
        return self.topic(name)

    def alter_topic(self, name: str, partitions: int | None, changes: Mapping[str, object]) -> ServedTopic:
        """Add partitions or change settings."""
        self._store.alter_topic(name, partitions, **changes)  # type: ignore[arg-type]
        return self.topic(name)

    def reopen(self, name: str) -> None:
        """Settings are used from the next batch on."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self._store.delete_topic(name)

    def recover(self) -> Iterator[tuple[str, int, object]]:
        """Nothing has to be recovered."""
        return iter(())

    def free_bytes(self) -> int | None:
        """Nobody knows."""
        return None

    def space(self) -> tuple[int, int]:
        """Nobody knows."""
        return -1, -1
