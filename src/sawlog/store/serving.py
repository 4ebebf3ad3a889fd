"""`StoreService`: the broker's view of a store, returned by `Store._serve`.

A broker runs an event loop. Methods that may block say "Blocks", and the broker calls those in a thread; all others
return at once. Partitions are used without blocking through `Partition._submit`, `_peek`, `_watch` and `_when_settled`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import GroupError
from .base import DocumentRegistry, Store, Topic, TopicPartition
from .groups import CoordinatorClaim, Groups, OffsetChange


@dataclass(frozen=True, slots=True)
class Node:
    """Address of a broker, as clients see it."""

    id: int
    host: str
    port: int


class BrokerRegistry:
    """The brokers of a store. This class is the registry of a store that has a single broker."""

    #: This broker, once it has joined.
    node: Node | None = None

    def join(self, node_id: int | None, host: str, port: int) -> int:
        """Register this broker under `node_id` or an unused id, and return the id. Blocks."""
        self.node = Node(1 if node_id is None else node_id, host, port)
        return self.node.id

    def listens(self) -> None:
        """Announce that clients reach this broker at its address, and deregister an earlier broker with the same
        address. Blocks."""

    def nodes(self) -> Sequence[Node]:
        """Return all known brokers by id, including this one if it has joined."""
        return () if self.node is None else (self.node,)

    def beat(self, timeout_s: float) -> None:
        """Send a heartbeat, and deregister brokers that sent none for `timeout_s`. Blocks."""

    def leave(self) -> None:
        """Deregister this broker. Blocks."""


@dataclass(frozen=True, slots=True)
class TransactionMarker:
    """Marker that ends a transaction in one partition."""

    topic_id: str
    partition: int
    producer_id: int
    epoch: int
    commit: bool


#: Topic, partition, offset, leader epoch, metadata.
StagedOffset = tuple[str, int, int, int, str]


class TransactionalIds(ABC):
    """State of the transactional ids of a store."""

    #: True if several brokers change it. If so, `get` may be stale and `save` refuses changes based on stale data, a
    #: transaction ends in one step, and the store itself refuses batches outside a transaction.
    is_shared: bool

    @abstractmethod
    def get(self, name: str) -> tuple[int, Mapping[str, Any]] | None:
        """Return version and fields; the same object as long as nothing changes."""

    @abstractmethod
    def all(self) -> Mapping[str, tuple[int, Mapping[str, Any]]]:
        """Return version and fields of all transactional ids."""

    def pending(self, group: str) -> frozenset[TopicPartition]:
        """Return the partitions whose offsets an open transaction will change. Only if `is_shared`: otherwise the only
        broker already knows its open transactions."""
        return frozenset()

    @abstractmethod
    def save(
        self,
        name: str,
        version: int,
        fields: Mapping[str, Any] | None,
        *,
        markers: Sequence[TransactionMarker] = (),
        offsets: Mapping[str, Sequence[StagedOffset]] | None = None,
    ) -> None:
        """Replace an entry, or delete it if `fields` is None, durably; `Conflict` unless it has that version (0: none).
        If `is_shared`, markers and group offsets are written in the same step. Blocks."""

    def refresh(self) -> None:
        """Read changes of other brokers. Blocks."""

    @abstractmethod
    def new_producer_id(self) -> int:
        """Return an unused producer id. Blocks."""

    def close(self) -> None:
        """Close the files. Blocks."""


class StoreService(ABC):
    """Broker's view of one open store."""

    #: True if writes of other processes are visible at once; otherwise call `catch_up`.
    is_current = True

    def __init__(self, store: Store, brokers: BrokerRegistry) -> None:
        self._store = store
        #: Brokers that serve the store.
        self.brokers = brokers

    @property
    def path(self) -> str:
        """Path or address of the store."""
        return self._store.path

    @property
    def id(self) -> str:
        """Unique id of the store."""
        return self._store.id

    @property
    def registry(self) -> DocumentRegistry:
        """Small versioned documents."""
        return self._store._registry

    def catch_up(self) -> None:
        """Read what other processes have written until now. Blocks."""

    # --- topics

    def topics(self) -> list[str]:
        """Return the names of all topics. Blocks."""
        return self._store.topics()

    def topic(self, name: str) -> Topic:
        """Return the topic of that name; `TopicNotFound`. Blocks, as does the first call of its `partition`."""
        return self._store.topic(name)

    def create_topic(self, name: str, partitions: int, given: Mapping[str, object]) -> Topic:
        """Create a topic. Blocks."""
        self._store.create_topic(name, partitions, **given)  # type: ignore[arg-type]
        return self.topic(name)

    def alter_topic(self, name: str, partitions: int | None, changes: Mapping[str, object]) -> Topic:
        """Add partitions or change settings. Blocks."""
        self._store.alter_topic(name, partitions, **changes)  # type: ignore[arg-type]
        return self.topic(name)

    def reopen(self, name: str) -> None:
        """Apply the current settings of a topic to its open partitions. Blocks."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Blocks."""
        self._store.delete_topic(name)

    # --- groups and transactions

    @property
    def groups(self) -> Groups:
        """Consumer groups. All of its methods block."""
        return self._store.groups

    @abstractmethod
    def claim_group(self, name: str, address: str) -> CoordinatorClaim:
        """Return a claim to coordinate a group, for a broker at that address."""

    @abstractmethod
    def commit_offsets(self, changes: Sequence[OffsetChange]) -> Sequence[GroupError | None]:
        """Commit for several groups. A refused change has its error at its index in the result: `GroupActive`,
        `NotCoordinator`. Blocks."""

    @abstractmethod
    def transactional_ids(self) -> TransactionalIds:
        """Open the transactional ids; `DirectoryLocked` if another broker has them. Blocks."""

    # --- the process and its disk

    def recover(self) -> Iterator[tuple[str, int, object]]:
        """Recover logs that were not closed cleanly; yield topic, partition and report, which is false if records are
        damaged or lost. Blocks."""
        return iter(())

    def free_bytes(self) -> int | None:
        """Return the free space; None if unknown."""
        return None

    def space(self) -> tuple[int, int]:
        """Return the size of the disk and its free space; -1 if unknown. Blocks."""
        return -1, -1

    def close(self) -> None:
        """Stop serving. The store stays open. Blocks."""
