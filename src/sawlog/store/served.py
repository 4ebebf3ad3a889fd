"""What a broker needs of a store besides what everybody needs, wherever that is stored: `store.serve()` returns it.

A broker runs an event loop, so each call here either returns at once or says that it may wait: then it is for a thread.
Where something is decided elsewhere, by a commit, a future takes the place of the result.

`service.DirectoryService` is the one of a directory, `sawlog.store.objects.serving.ObjectService` that of object
storage."""

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
from ..log.replica_source import Fetched
from .assignment import Share
from .base import DocumentRegistry
from .committed_offsets import Committed
from .groups import Change, GroupDescription
from .settings import Value


class ServedLog(Protocol):
    """One partition."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    @property
    def closed(self) -> bool:
        """Whether it has to be opened again."""

    @property
    def locked(self) -> bool:
        """Whether this process may write to it."""

    @property
    def writable(self) -> bool:
        """Whether nothing has failed that only opening it again repairs."""

    @property
    def current(self) -> bool:
        """Whether it knows at once what others write; else what it says may be old, but was true."""

    @property
    def lowest_offset(self) -> int:
        """The first offset that there is."""

    @property
    def is_tiered(self) -> bool:
        """Whether a part of it is read from elsewhere."""

    @property
    def local_offset(self) -> int:
        """What is below this is read from elsewhere, and may take long."""

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
        """The bytes that would not."""

    @property
    def visible_offset(self) -> int:
        """Every record below this can be read."""

    @property
    def last_stable_offset(self) -> int:
        """Below this every transaction is decided."""

    @property
    def leader_epoch(self) -> int:
        """The epoch that appends belong to."""

    @property
    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """All epochs with their first offsets."""

    @property
    def size_bytes(self) -> int:
        """How large it is."""

    @property
    def segments(self) -> Sequence[object]:
        """The pieces in which it is stored."""

    @property
    def producer_states(self) -> list[ProducerInfo]:
        """What is known of producers."""

    def position(self, *, isolation: Isolation = "committed") -> tuple[int, int]:
        """The end for a reader, and the leader epoch."""

    def epoch_end(self, leader_epoch: int) -> int:
        """The first offset after an epoch."""

    def offset_at(self, timestamp: int) -> int:
        """The first offset whose record is not older. May wait."""

    def newest(self) -> tuple[int, int] | None:
        """Offset and timestamp of the record with the largest timestamp. May wait."""

    def scan(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[Record]:
        """The records of a range. May wait."""

    def fetch(
        self, start: int, max_bytes: int = 1 << 20, *, isolation: Isolation = "committed"
    ) -> Fetched | Future[Fetched]:
        """Complete batches from the one that contains `start` on, or the promise of them."""

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call back when the visible end may have moved, until the returned function is called."""

    def when_settled(self, offset: int, call: Callable[[BaseException | None], None]) -> None:
        """Call back when an append that ended at `offset` may be acknowledged, or with the error."""

    def _take(self) -> None:
        """Become the writer; `DirectoryLocked` if another process is. May block."""

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
        """End a producer's transaction in this partition. May wait."""

    def sync(self) -> None:
        """Return when everything that was appended is visible. May wait."""

    def trim(self, offset: int) -> int:
        """Drop the records below `offset`. May wait."""


class ServedTopic(Protocol):
    """A topic as it is now. Nothing of it waits but `partition`, the first time, and `append_batches`."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def id(self) -> str:
        """The unique id."""

    @property
    def partitions(self) -> int:
        """How many there are."""

    @property
    def settings(self) -> dict[str, Value]:
        """The settings that differ from their defaults."""

    @property
    def config(self) -> LogConfig:
        """How its partitions are kept."""

    def partition(self, number: int) -> ServedLog:
        """One partition."""

    def append_batches(self, raw: memoryview, partition: int, *, trusted: bool = False) -> range:
        """Append where another process holds the partition."""


class CommittedOffsets(Protocol):
    """What groups have committed."""

    def of(self, group: str) -> dict[Share, Committed]:
        """The offsets of one group, as of now. May wait."""


class Taken(Protocol):
    """A group that this broker coordinates."""

    @property
    def current(self) -> bool:
        """Whether it still does, as far as is known."""

    def release(self) -> None:
        """Let others join the group. May wait."""


class ClaimAttempt(Protocol):
    """A broker's attempts to coordinate one group. All of it may wait."""

    @property
    def may_succeed(self) -> bool:
        """Whether to try again soon."""

    def take(self) -> Taken:
        """Coordinate the group from now on; `GroupActive` if consumers that opened the store are in it."""

    def close(self) -> None:
        """What was taken stays."""


class ServedGroups(Protocol):
    """Consumer groups. All of it may wait."""

    @property
    def offsets(self) -> CommittedOffsets:
        """What they have committed."""

    def list(self) -> list[str]:
        """The names of all groups."""

    def describe(self, name: str) -> GroupDescription:
        """The members that opened the store, and the progress."""

    def claim(self, name: str, address: str) -> ClaimAttempt:
        """For a broker at that address: coordinate a group."""

    def commit_together(self, changes: Sequence[Change]) -> Sequence[GroupError | None]:
        """Commit for several groups; what was refused has its error at its place: `GroupActive`, `NotCoordinator`."""

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
    """What brokers know of transactional ids."""

    @property
    def is_shared(self) -> bool:
        """Whether several brokers change it. Then what `get` says may be old, and `save` refuses what relied on it;
        a transaction ends in one step; and the store itself refuses batches that no transaction includes."""

    def get(self, name: str) -> tuple[int, Mapping[str, Any]] | None:
        """Version and fields; the same object as long as nothing changes."""

    def all(self) -> Mapping[str, tuple[int, Mapping[str, Any]]]:
        """All of them."""

    def pending(self, group: str) -> frozenset[Share]:
        """Whose offsets a transaction that is going on will change. Only if it is shared."""

    def save(
        self,
        name: str,
        version: int,
        fields: Mapping[str, Any] | None,
        *,
        markers: Sequence[Marking] = (),
        offsets: Mapping[str, Sequence[StagedOffset]] | None = None,
    ) -> None:
        """Replace an entry, or with None delete it, durably; `Conflict` unless it has that version (0: none). If it is
        shared: together with markers, and offsets of groups. May wait."""

    def refresh(self) -> None:
        """Learn what other brokers have stored. May wait."""

    def new_producer_id(self) -> int:
        """An id that nobody has. May wait."""

    def close(self) -> None:
        """Close it. May wait."""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker, as clients see it."""

    id: int
    host: str
    port: int


class Fleet(Protocol):
    """The brokers that serve a store."""

    def join(self, node_id: int | None, host: str, port: int) -> int:
        """Be one of them, under this id or one that nobody has; the id. May wait."""

    def listens(self) -> None:
        """Clients reach this one at its address: whoever has joined with that before is gone. May wait."""

    def nodes(self) -> Sequence[Node]:
        """All of them, by id, as far as is known; with this one, if it has joined."""

    def beat(self, timeout_s: float) -> None:
        """Give a sign of life, and remove those that gave none for this long. May wait."""

    def leave(self) -> None:
        """Be none of them any more. May wait."""


class StoreService(Protocol):
    """A store, as its broker uses it."""

    @property
    def path(self) -> str:
        """Where it is."""

    @property
    def id(self) -> str:
        """Its unique id."""

    @property
    def groups(self) -> ServedGroups:
        """Consumer groups."""

    @property
    def registry(self) -> DocumentRegistry:
        """Small documents."""

    @property
    def fleet(self) -> Fleet:
        """The brokers that serve it."""

    @property
    def is_current(self) -> bool:
        """Whether it knows at once what others write; else `catch_up`."""

    def catch_up(self) -> None:
        """Learn what others have written until now. May wait."""

    def ledger(self) -> Ledger:
        """Transactional ids; `DirectoryLocked` if another broker has them for itself. May wait."""

    def topics(self) -> list[str]:
        """The names of all topics. May wait."""

    def topic(self, name: str) -> ServedTopic:
        """The topic of that name; `TopicNotFound`. May wait."""

    def create_topic(self, name: str, partitions: int, given: Mapping[str, object]) -> ServedTopic:
        """Create a topic. May wait."""

    def alter_topic(self, name: str, partitions: int | None, changes: Mapping[str, object]) -> ServedTopic:
        """Add partitions or change settings. May wait."""

    def reopen(self, name: str) -> None:
        """Let new settings be used. May wait."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic. May wait."""

    def recover(self) -> Iterator[tuple[str, int, object]]:
        """Recover what was not closed cleanly: topic, partition, what was found; false if that is bad. May wait."""

    def free_bytes(self) -> int | None:
        """How much can still be stored; None if nobody knows."""

    def space(self) -> tuple[int, int]:
        """How large the disk is, and how much of it is free; -1 if nobody knows. May wait."""

    def close(self) -> None:
        """End what serves it. The store stays open."""
