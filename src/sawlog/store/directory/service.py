"""`DirectoryService`: a store in a directory, as its broker uses it. See served.py for what that is."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Unpack

from ...config import MIB, LogConfig, UpkeepConfig
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
_UPKEEP = UpkeepConfig(compact=True, delete=False, merge_bytes=0)


class _Host(Protocol):
    """The store itself."""

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
    """The service of one open store."""

    def __init__(self, store: _Host) -> None:
        self._store = store
        self.fleet = Alone()

    @property
    def path(self) -> str:
        """Where it is."""
        return self._store.path

    @property
    def id(self) -> str:
        """Its unique id."""
        return self._store.id

    @property
    def groups(self) -> Groups:
        """Consumer groups."""
        return self._store.groups

    @property
    def registry(self) -> Registry:
        """Small documents."""
        return self._store.registry

    @property
    def is_current(self) -> bool:
        """What other processes write is seen at once."""
        return True

    def catch_up(self) -> None:
        """There is nothing to catch up with."""

    def ledger(self) -> DirectoryLedger:
        """Transactional ids; `DirectoryLocked` if another broker has them."""
        return DirectoryLedger(self._store.directory)

    def topics(self) -> list[str]:
        """The names of all topics."""
        return self._store.topics()

    def topic(self, name: str) -> Topic:
        """The topic of that name; `TopicNotFound`."""
        return self._store.topic(name)

    def create_topic(self, name: str, partitions: int, given: Mapping[str, object]) -> Topic:
        """Create a topic."""
        return self._store.create_topic(name, partitions, **given)  # type: ignore[arg-type]

    def alter_topic(self, name: str, partitions: int | None, changes: Mapping[str, object]) -> Topic:
        """Add partitions or change settings."""
        return self._store.alter_topic(name, partitions, **changes)  # type: ignore[arg-type]

    def reopen(self, name: str) -> None:
        """Open the logs of a topic again, with its settings."""
        self._store.topic(name).holdings.reopen()

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self._store.delete_topic(name)

    def recover(self) -> Iterator[tuple[str, int, object]]:
        """Lock and recover the logs that a killed process has left."""
        for topic in self._store:
            for number, report in topic.holdings.recover().items():
                yield topic.name, number, report

    def free_bytes(self) -> int | None:
        """Free space where it is."""
        return free_bytes(self._store.path)

    def space(self) -> tuple[int, int]:
        """Size and free space of the disk."""
        return space_of(self._store.path)

    def close(self) -> None:
        """Nothing runs for it."""


class Alone:
    """A directory has one broker."""

    def __init__(self) -> None:
        self._nodes: tuple[Node, ...] = ()

    def join(self, node_id: int | None, host: str, port: int) -> int:
        """Under this id, or 1."""
        made = Node(1 if node_id is None else node_id, host, port)
        self._nodes = (made,)
        return made.id

    def listens(self) -> None:
        """Nobody else does."""

    def nodes(self) -> Sequence[Node]:
        """This one."""
        return self._nodes

    def beat(self, timeout_s: float) -> None:
        """Nobody has to know."""

    def leave(self) -> None:
        """Nobody has to know."""


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
        """What is damaged is left out: its clients begin again."""
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
        """What is known of one."""
        return self._known.get(name)

    def all(self) -> Mapping[str, tuple[int, Mapping[str, Any]]]:
        """All of them."""
        return dict(self._known)

    def pending(self, group: str) -> frozenset[Share]:
        """The broker knows: there is only one."""
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
        """Write an entry, or with None delete it; durable when this returns."""
        assert not markers, "they are written one by one"
        assert not offsets, "they are written by the groups"
        self._log.append(None if fields is None else json.dumps(fields).encode(), name.encode())
        if fields is None:
            self._known.pop(name, None)
        else:
            self._known[name] = version + 1, fields
        if len(self._log.segments) > _SEGMENTS and self._log.upkeep_due(_UPKEEP):
            self._log.upkeep(_UPKEEP)

    def refresh(self) -> None:
        """Nobody else changes it."""

    def new_producer_id(self) -> int:
        """61 random bits, so that nothing has to be remembered for it."""
        return secrets.randbits(61)

    def close(self) -> None:
        """Close it."""
        try:
            self._log.close()
        finally:
            self._directory.close()
