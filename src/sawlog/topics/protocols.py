"""What a broker, Spark and the command line need of a store, wherever that is stored: `Store` is one, a store on object
storage another. What they need of a partition is in `sawlog.log.protocols`.

`sawlog.testing.StoreSuite` has the promises as tests to inherit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Unpack, runtime_checkable

from ..batch.given import GivenRecord
from ..log.protocols import PartitionWriter
from .groups.assignment import Share
from .groups.groups import GroupDescription
from .keywords import TopicChanges, TopicSettings
from .settings import Value
from .transactions.staging import Part, Piece, PlacedOffsets

if TYPE_CHECKING:
    from ..storage.interface import Buffer
    from .store import Store


@runtime_checkable
class StoredTopic(Protocol):
    """Partitions under one name."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def id(self) -> str:
        """The unique id: differs from that of an earlier topic of the same name."""

    @property
    def partitions(self) -> int:
        """How many there are; they are numbered from 0."""

    @property
    def settings(self) -> Mapping[str, Value]:
        """The settings that differ from their defaults, by Kafka's names."""

    def partition(self, number: int) -> PartitionWriter:
        """One partition."""


@runtime_checkable
class StoredGroups(Protocol):
    """Consumer groups and their committed offsets."""

    def list(self) -> list[str]:
        """The names of all groups."""

    def describe(self, name: str) -> GroupDescription:
        """The members of a group and its progress; `GroupNotFound` if it does not exist."""

    def commit(
        self,
        name: str,
        offsets: Mapping[Share, int],
        *,
        metadata: str = "",
        epochs: Mapping[Share, int] | None = None,
    ) -> None:
        """Commit offsets durably; `GroupActive` if a live member owns one of the partitions."""

    def delete(self, name: str) -> None:
        """Delete a group and its offsets; `GroupActive` if it has live members."""


@runtime_checkable
class StoreTransaction(Protocol):
    """Records for several partitions, stored all or not at all. As a block: committed at its end, aborted if it
    raises."""

    def append(self, topic: str, value: bytes | None, key: bytes | None = None) -> None:
        """Add one record; its offset is known after the commit."""

    def append_many(self, topic: str, records: Iterable[GivenRecord], partition: int | None = None) -> None:
        """Add many records, all or none of them."""

    def commit(self) -> PlacedOffsets:
        """Store everything and return the offsets by (topic, partition)."""

    def abort(self) -> None:
        """Store nothing."""

    def __enter__(self) -> StoreTransaction: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class TaskStaging(Protocol):
    """What one attempt of one task stages."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written."""

    def write(self, batches: Buffer) -> Piece:
        """Append finished batches and return where they are, for a `Part`."""

    def sync(self) -> None:
        """Return when everything written survives a power cut, once it is published."""

    def abandon(self) -> None:
        """This attempt failed: remove what it has written."""

    def close(self) -> None:
        """What is staged is kept."""


@runtime_checkable
class JobStaging(Protocol):
    """Batches that many processes of one job make, and one of them stores, all or nothing."""

    def task(self, job: str) -> TaskStaging:
        """A place for one attempt of one task."""

    def publish(
        self,
        job: str,
        parts: Iterable[Part],
        *,
        data: bytes = b"",
        name: str | None = None,
        sequence: int | None = None,
    ) -> PlacedOffsets:
        """Place what was staged and return the offsets; for a number that was published under that name before,
        nothing is placed again."""

    def discard(self, job: str) -> None:
        """Remove what was staged."""


@runtime_checkable
class StoreReader(Protocol):
    """A store that may be read."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    @property
    def id(self) -> str:
        """The unique id of this store."""

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""

    def topic(self, name: str) -> StoredTopic:
        """The current topic of that name; `TopicNotFound` if it does not exist."""

    @property
    def groups(self) -> StoredGroups:
        """Consumer groups."""

    @property
    def staging(self) -> JobStaging:
        """For jobs of many processes."""

    def close(self) -> None:
        """Close everything that came from it. Safe to call twice."""


@runtime_checkable
class StoreWriter(StoreReader, Protocol):
    """A store that may be changed."""

    def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Unpack[TopicSettings]
    ) -> StoredTopic:
        """Create a topic; `TopicExists`."""

    def alter_topic(self, name: str, partitions: int | None = None, **settings: Unpack[TopicChanges]) -> StoredTopic:
        """Add partitions or change settings; None resets a setting to its default."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""

    def transaction(self, name: str | None = None, sequence: int | None = None) -> StoreTransaction:
        """Records for several topics and partitions, stored all or not at all."""


if TYPE_CHECKING:

    def _fulfilled_by(store: Store) -> StoreWriter:
        """mypy compares the signatures, which `isinstance` does not."""
        return store
