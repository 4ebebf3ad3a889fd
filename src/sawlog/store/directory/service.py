"""`DirectoryService`: the broker's view of a store in a directory. `sawlog.store.served` documents the interface."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Unpack

from ...config import MIB, LogConfig, MaintenanceConfig
from ...errors import CorruptBatch
from ...log.log import Log
from ...storage import Directory
from ...storage.system import free_bytes, space_of
from ..assignment import Share
from ..groups import Groups
from ..served import Marking, Node, StagedOffset
from ..settings import TopicChanges, TopicSettings
from .documents import Registry
from .topic import Topic

NAME = "transactions"
_CONFIG = LogConfig(segment_bytes=MIB)
#: The log is compacted when it has more segments than this.
_SEGMENTS = 4
_MAINTENANCE = MaintenanceConfig(compact=True, delete=False, merge_bytes=0)


class _Host(Protocol):
    """Part of `Store` that the service uses."""

    @property
    def id(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def directory(self) -> Directory: ...

    @property
    def groups(self) -> Groups: ...

    @property
    def registry(self) -> Registry: ...

    def __iter__(self) -> Iterator[Topic]: ...

    def topic(self, name: str) -> Topic: ...

    def topics(self) -> list[str]: ...

    def create_topic(self, name: str, partitions: int = 1, **settings: Unpack[TopicSettings]) -> Topic: ...

    def alter_topic(self, name: str, partitions: int | None = None, **settings: Unpack[TopicChanges]) -> Topic: ...

    def delete_topic(self, name: str) -> None: ...


class DirectoryService:
    """Broker's view of one open store."""

    def __init__(self, store: _Host) -> None:
        self._store = store
        self.fleet = Alone()

    @property
    def path(self) -> str:
        """Directory of the store."""
        return self._store.path

    @property
    def id(self) -> str:
        """Unique id of the store."""
        return self._store.id

    @property
    def groups(self) -> Groups:
        """Consumer groups."""
        return self._store.groups

    @property
    def registry(self) -> Registry:
        """Small versioned documents."""
        return self._store.registry

    @property
    def is_current(self) -> bool:
        """Always true: writes of other processes are visible immediately."""
        return True

    def catch_up(self) -> None:
        """No-op: reads are always current."""

    def ledger(self) -> DirectoryLedger:
        """Open the transactional ids; `DirectoryLocked` if another broker holds them."""
        return DirectoryLedger(self._store.directory)

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return self._store.topics()

    def topic(self, name: str) -> Topic:
        """Return the topic of that name; `TopicNotFound`."""
        return self._store.topic(name)

    def create_topic(self, name: str, partitions: int, given: Mapping[str, object]) -> Topic:
        """Create a topic."""
        return self._store.create_topic(name, partitions, **given)  # type: ignore[arg-type]

    def alter_topic(self, name: str, partitions: int | None, changes: Mapping[str, object]) -> Topic:
        """Add partitions or change settings."""
        return self._store.alter_topic(name, partitions, **changes)  # type: ignore[arg-type]

    def reopen(self, name: str) -> None:
        """Reopen the logs of a topic with its current settings."""
        self._store.topic(name).open_partitions.reopen()

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self._store.delete_topic(name)

    def recover(self) -> Iterator[tuple[str, int, object]]:
        """Lock and recover the logs that a killed process left behind; yield topic, partition and report."""
        for topic in self._store:
            for number, report in topic.open_partitions.recover().items():
                yield topic.name, number, report

    def free_bytes(self) -> int | None:
        """Return the free space on the store's file system."""
        return free_bytes(self._store.path)

    def space(self) -> tuple[int, int]:
        """Return the size and the free space of the store's file system."""
        return space_of(self._store.path)

    def close(self) -> None:
        """No-op: the service runs nothing in the background."""


class Alone:
    """Broker registry of a directory, which has a single broker."""

    def __init__(self) -> None:
        self._nodes: tuple[Node, ...] = ()

    def join(self, node_id: int | None, host: str, port: int) -> int:
        """Register this broker under `node_id`, or 1, and return the id."""
        made = Node(1 if node_id is None else node_id, host, port)
        self._nodes = (made,)
        return made.id

    def listens(self) -> None:
        """No-op: a directory has a single broker."""

    def nodes(self) -> Sequence[Node]:
        """Return this broker, if it has joined."""
        return self._nodes

    def beat(self, timeout_s: float) -> None:
        """No-op: a directory has a single broker."""

    def leave(self) -> None:
        """No-op: a directory has a single broker."""


class DirectoryLedger:
    """Transactional ids, durable in `transactions/`, a compacted log beside the topics.

    ```
    key     the transactional id
    value   its fields as JSON; without a value it is deleted
    ```

    The last record of a key is valid. One process has the ledger at a time: a second broker on the same store has no
    transactions.
    """

    is_shared = False

    def __init__(self, root: Directory) -> None:
        self._directory = root.child(NAME, create=True)
        self._log = Log.open(self._directory, _CONFIG)
        self._known = self._load()

    def _load(self) -> dict[str, tuple[int, Mapping[str, Any]]]:
        """Read the log. Damaged entries are skipped: their clients start over."""
        found: dict[str, tuple[int, Mapping[str, Any]]] = {}
        position = self._log.lowest_offset
        while position < self._log.visible_offset:
            try:
                for record in self._log.scan(position):
                    position = record.offset + 1
                    name = (record.key or b"").decode("utf-8", "replace")
                    if record.value is None:
                        found.pop(name, None)
                    else:
                        found[name] = 1, json.loads(record.value)
                break
            except CorruptBatch as error:
                position = self._log.visible_offset if error.next_offset is None else error.next_offset
        return found

    def get(self, name: str) -> tuple[int, Mapping[str, Any]] | None:
        """Return version and fields of a transactional id; None if it is unknown."""
        return self._known.get(name)

    def all(self) -> Mapping[str, tuple[int, Mapping[str, Any]]]:
        """Return all transactional ids."""
        return dict(self._known)

    def pending(self, group: str) -> frozenset[Share]:
        """Return nothing: the only broker already knows its open transactions."""
        return frozenset()

    def save(
        self,
        name: str,
        version: int,
        fields: Mapping[str, Any] | None,
        *,
        markers: Sequence[Marking] = (),
        offsets: Mapping[str, Sequence[StagedOffset]] | None = None,
    ) -> None:
        """Write an entry, or delete it if `fields` is None. Durable on return."""
        assert not markers, "they are written one by one"
        assert not offsets, "they are written by the groups"
        self._log.append(None if fields is None else json.dumps(fields).encode(), name.encode())
        if fields is None:
            self._known.pop(name, None)
        else:
            self._known[name] = version + 1, fields
        if len(self._log.segments) > _SEGMENTS and self._log._maintenance_due(_MAINTENANCE):
            self._log.maintain(_MAINTENANCE)

    def refresh(self) -> None:
        """No-op: there is no other writer."""

    def new_producer_id(self) -> int:
        """Return 61 random bits: unique without any stored state."""
        return secrets.randbits(61)

    def close(self) -> None:
        """Close the log."""
        try:
            self._log.close()
        finally:
            self._directory.close()
