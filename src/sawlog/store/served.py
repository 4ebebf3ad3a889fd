"""The broker's view of a store. `store.serve()` returns a `StoreService`.

A broker runs an event loop, so each method either returns immediately or its docstring says "Blocks": the broker calls
those in a thread. Methods whose result depends on a commit return a future.

`DirectoryService` implements it for a directory, `sawlog.store.objects.serving.ObjectService` for object storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from ..batch.kernel import Record
from ..config import LogConfig
from ..errors import GroupError
from ..isolation import Isolation
from ..log.producers import ProducerInfo
from ..log.reader import Fetched
from .assignment import Share
from .base import DocumentRegistry
from .committed_offsets import Committed
from .groups import Change, GroupDescription
from .settings import Value


class ServedLog(Protocol):
    """One partition."""

    @property
    def path(self) -> str:
        """Path or address, for messages."""

    @property
    def closed(self) -> bool:
        """Whether the log has to be reopened."""

    @property
    def locked(self) -> bool:
        """Whether this process may write to it."""

    @property
    def writable(self) -> bool:
        """Whether no failure has occurred that only reopening repairs."""

    @property
    def current(self) -> bool:
        """Whether writes of other processes are visible at once; otherwise answers may be stale."""

    @property
    def lowest_offset(self) -> int:
        """First offset of the log."""

    @property
    def is_tiered(self) -> bool:
        """Whether a part of the log is read from the replica."""

    @property
    def local_offset(self) -> int:
        """Records below this offset are read from the replica, which may be slow."""

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""

    @property
    def written_offset(self) -> int:
        """Everything below this is written."""

    @property
    def durable_offset(self) -> int:
        """Everything below this survives a power cut."""

    @property
    def durable_lag_bytes(self) -> int:
        """Bytes that would not survive a power cut."""

    @property
    def visible_offset(self) -> int:
        """Every record below this can be read."""

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every transaction is decided."""

    @property
    def leader_epoch(self) -> int:
        """Epoch of new appends."""

    @property
    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """All epochs with their first offsets."""

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""

    @property
    def segments(self) -> Sequence[object]:
        """Segments of the log."""

    @property
    def producer_states(self) -> list[ProducerInfo]:
        """State of the known producers."""

    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        """Return the end for a reader, and the leader epoch."""

    def epoch_end(self, leader_epoch: int) -> int:
        """Return the first offset after an epoch."""

    def offset_at(self, timestamp: int) -> int:
        """Return the first offset whose record is not older. Blocks."""

    def newest(self) -> tuple[int, int] | None:
        """Return offset and timestamp of the record with the largest timestamp. Blocks."""

    def scan(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[Record]:
        """Yield the records of a range. Blocks."""

    def fetch(
        self, start: int, max_bytes: int = 1 << 20, *, isolation: Isolation = "committed"
    ) -> Fetched | Future[Fetched]:
        """Return complete batches, starting with the one that contains `start`, or a future of them."""

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call back when the visible end may have moved, until the returned function is called."""

    def when_settled(self, offset: int, call: Callable[[BaseException | None], None]) -> None:
        """Call back when an append that ended at `offset` may be acknowledged, or with the error."""

    def _take(self) -> None:
        """Become the writer; `DirectoryLocked` if another process is. Blocks."""

    def _place_batches(
        self,
        raw: bytearray | memoryview,
        *,
        trusted: bool = True,
        wait: bool = True,
        max_decompressed_bytes: int | None = None,
    ) -> range | Future[range]:
        """Append encoded batches and return their offsets, or a future where a commit decides them. With `wait=False`
        it does not block."""

    def append_marker(self, producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0) -> int:
        """End a producer's transaction in this partition. Blocks."""

    def sync(self) -> None:
        """Return when everything that was appended is visible. Blocks."""

    def trim(self, offset: int) -> int:
        """Drop the records below `offset`. Blocks."""


class ServedTopic(Protocol):
    """A topic in its current state. Only the first call of `partition` and `append_batches` block."""

    @property
    def name(self) -> str:
        """Name of the topic."""

    @property
    def id(self) -> str:
        """Unique id."""

    @property
    def partitions(self) -> int:
        """Number of partitions."""

    @property
    def settings(self) -> dict[str, Value]:
        """Settings that differ from their defaults."""

    @property
    def config(self) -> LogConfig:
        """Settings of the partitions' logs."""

    def partition(self, number: int) -> ServedLog:
        """Return one partition."""

    def append_batches(self, raw: memoryview, partition: int, *, trusted: bool = False) -> range:
        """Append to a partition that another process holds."""


class CommittedOffsets(Protocol):
    """Committed offsets of groups."""

    def of(self, group: str) -> dict[Share, Committed]:
        """Return the current offsets of one group. Blocks."""


class Taken(Protocol):
    """Group that this broker coordinates."""

    @property
    def current(self) -> bool:
        """Whether this broker still coordinates the group, as far as it knows."""

    def release(self) -> None:
        """Stop coordinating the group, so that other members can join. Blocks."""


class ClaimAttempt(Protocol):
    """Attempts of a broker to coordinate one group. All methods block."""

    @property
    def may_succeed(self) -> bool:
        """Whether to retry soon."""

    def take(self) -> Taken:
        """Become the group's coordinator; `GroupActive` if consumers that opened the store are in it."""

    def close(self) -> None:
        """Stop trying. A group that was taken stays taken."""


class ServedGroups(Protocol):
    """Consumer groups. All methods block."""

    @property
    def offsets(self) -> CommittedOffsets:
        """Committed offsets."""

    def list(self) -> list[str]:
        """Return the names of all groups."""

    def describe(self, name: str) -> GroupDescription:
        """Return the members that opened the store, and the progress."""

    def claim(self, name: str, address: str) -> ClaimAttempt:
        """Begin attempts to coordinate a group, for a broker at that address."""

    def commit_together(self, changes: Sequence[Change]) -> Sequence[GroupError | None]:
        """Commit for several groups. A refused change has its error at its index in the result: `GroupActive`,
        `NotCoordinator`."""

    def delete(self, name: str) -> None:
        """Delete a group and its offsets; `GroupActive`."""


@dataclass(frozen=True, slots=True)
class Marking:
    """A marker that ends a transaction in one partition."""

    topic_id: str
    partition: int
    producer_id: int
    epoch: int
    commit: bool


#: Topic, partition, offset, leader epoch, metadata.
StagedOffset = tuple[str, int, int, int, str]


class Ledger(Protocol):
    """State of transactional ids."""

    @property
    def is_shared(self) -> bool:
        """Whether several brokers change it. If so, `get` may be stale and `save` refuses changes based on stale data,
        a transaction ends in one step, and the store itself refuses batches outside a transaction."""

    def get(self, name: str) -> tuple[int, Mapping[str, Any]] | None:
        """Return version and fields; the same object as long as nothing changes."""

    def all(self) -> Mapping[str, tuple[int, Mapping[str, Any]]]:
        """Return all transactional ids."""

    def pending(self, group: str) -> frozenset[Share]:
        """Return the partitions whose offsets an open transaction will change. Only if the ledger is shared."""

    def save(
        self,
        name: str,
        version: int,
        fields: Mapping[str, Any] | None,
        *,
        markers: Sequence[Marking] = (),
        offsets: Mapping[str, Sequence[StagedOffset]] | None = None,
    ) -> None:
        """Replace an entry, or delete it if `fields` is None, durably; `Conflict` unless it has that version (0: none).
        A shared ledger writes markers and group offsets in the same step. Blocks."""

    def refresh(self) -> None:
        """Read changes of other brokers. Blocks."""

    def new_producer_id(self) -> int:
        """Return an unused producer id. Blocks."""

    def close(self) -> None:
        """Close the ledger. Blocks."""


@dataclass(frozen=True, slots=True)
class Node:
    """Address of a broker, as clients see it."""

    id: int
    host: str
    port: int


class Fleet(Protocol):
    """Brokers that serve a store."""

    def join(self, node_id: int | None, host: str, port: int) -> int:
        """Register this broker under `node_id` or an unused id, and return the id. Blocks."""

    def listens(self) -> None:
        """Announce that clients reach this broker at its address, and deregister an earlier broker with the same
        address. Blocks."""

    def nodes(self) -> Sequence[Node]:
        """Return all known brokers by id, including this one if it has joined."""

    def beat(self, timeout_s: float) -> None:
        """Send a heartbeat, and deregister brokers that sent none for `timeout_s`. Blocks."""

    def leave(self) -> None:
        """Deregister this broker. Blocks."""


class StoreService(Protocol):
    """Store as its broker uses it."""

    @property
    def path(self) -> str:
        """Path or address."""

    @property
    def id(self) -> str:
        """Unique id."""

    @property
    def groups(self) -> ServedGroups:
        """Consumer groups."""

    @property
    def registry(self) -> DocumentRegistry:
        """Small versioned documents."""

    @property
    def fleet(self) -> Fleet:
        """Brokers that serve the store."""

    @property
    def is_current(self) -> bool:
        """Whether writes of other processes are visible at once; otherwise call `catch_up`."""

    def catch_up(self) -> None:
        """Read what other processes have written until now. Blocks."""

    def ledger(self) -> Ledger:
        """Open the transactional ids; `DirectoryLocked` if another broker holds them. Blocks."""

    def topics(self) -> list[str]:
        """Return the names of all topics. Blocks."""

    def topic(self, name: str) -> ServedTopic:
        """Return the topic of that name; `TopicNotFound`. Blocks."""

    def create_topic(self, name: str, partitions: int, given: Mapping[str, object]) -> ServedTopic:
        """Create a topic. Blocks."""

    def alter_topic(self, name: str, partitions: int | None, changes: Mapping[str, object]) -> ServedTopic:
        """Add partitions or change settings. Blocks."""

    def reopen(self, name: str) -> None:
        """Apply the current settings of a topic. Blocks."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Blocks."""

    def recover(self) -> Iterator[tuple[str, int, object]]:
        """Recover logs that were not closed cleanly; yield topic, partition and report, which is false if records are
        damaged or lost. Blocks."""

    def free_bytes(self) -> int | None:
        """Return the free space; None if unknown."""

    def space(self) -> tuple[int, int]:
        """Return the size of the disk and its free space; -1 if unknown. Blocks."""

    def close(self) -> None:
        """Stop serving. The store stays open."""
