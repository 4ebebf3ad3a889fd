"""`ObjectService`: the broker's view of a store on object storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from ....errors import GroupError, TopicNotFound
from ...base import Store
from ...groups import OffsetChange, check_group_name
from ...serving import StoreService
from ..session import StoreSession
from ..topic import ObjectTopic
from .brokers import ObjectBrokers, ObjectClaim
from .partition import ServingPartition
from .transactions import ObjectTransactionalIds

#: Number of threads for reads and uploads.
_THREADS = 16


class ObjectService(StoreService):
    """Broker's view of one open store. Commits of other processes are discovered by polling."""

    is_current = False
    brokers: ObjectBrokers

    def __init__(self, store: Store, session: StoreSession) -> None:
        super().__init__(store, ObjectBrokers(session))
        self._session = session
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="sawlog-objects")
        self._topics: dict[str, ServingTopic] = {}

    def close(self) -> None:
        """Wait for running reads and uploads."""
        self._threads.shutdown(wait=True)

    def catch_up(self) -> None:
        """Fold everything that others have written until now."""
        self._session.look(lambda state: None, fresh=True)

    def topic(self, name: str) -> ObjectTopic:
        entry = self._session.look(lambda state: state.topic(name))
        if entry is None:
            entry = self._session.look(lambda state: state.topic(name), fresh=True)
        if entry is None:
            raise TopicNotFound(f"no topic {name!r} in {self.path}")
        found = self._topics.get(name)
        if found is None or found.id != entry["id"]:
            found = self._topics[name] = ServingTopic(self._session, self._threads, name, entry)
        return found

    def claim_group(self, name: str, address: str) -> ObjectClaim:
        return ObjectClaim(self._session, self.brokers, check_group_name(name), address)

    def commit_offsets(self, changes: Sequence[OffsetChange]) -> Sequence[GroupError | None]:
        return self.brokers.commit_offsets(changes)

    def transactional_ids(self) -> ObjectTransactionalIds:
        return ObjectTransactionalIds(self._session)


class ServingTopic(ObjectTopic):
    """A topic as of the last folded commit: its properties and partitions never send a request."""

    def __init__(self, session: StoreSession, threads: Executor, name: str, entry: Mapping[str, Any]) -> None:
        super().__init__(session, name, str(entry["id"]))
        self._threads = threads
        self._last_entry = entry
        self._partitions: dict[int, ServingPartition] = {}

    def _entry(self) -> Mapping[str, Any]:
        """Return the entry of the topic; the last known one if the topic was deleted."""
        found = self._session.peek(lambda state: state.topic(self._name))
        if found is not None and found["id"] == self._id:
            self._last_entry = found
        return self._last_entry

    def partition(self, number: int) -> ServingPartition:
        found = self._partitions.get(number)
        if found is None:
            self._check_number(number)
            found = self._partitions.setdefault(number, ServingPartition(self, number, self._threads))
        return found
