"""What a broker, Spark and the command line need of a store, wherever that is stored: `Store` is one, a store on object
storage another. What they need of a partition is in `sawlog.log.protocols`.

`sawlog.testing.StoreSuite` has the promises as tests to inherit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack, runtime_checkable

from ..batch.given import GivenHeaders, GivenRecord
from ..batch.kernel import Record
from ..config import LogConfig
from ..isolation import Isolation
from ..log.maintain.retention import RetentionReport
from ..log.protocols import LogReader, PartitionWriter, PlannedSlice, SliceReader
from ..log.read.pages import Fetched
from ..log.read.verify import VerifyReport
from .descriptions import TopicDescription
from .groups.assignment import Share
from .groups.consumer import Consumer
from .groups.groups import GroupDescription
from .groups.offsets import Start
from .keywords import TopicChanges, TopicSettings
from .registry import Document
from .served import StoreService
from .settings import Value
from .tableinfo import TableInfo
from .transactions.staging import Intent, OwnFile, Part, Piece, PlacedOffsets
from .writer import TopicWriter

if TYPE_CHECKING:
    import pyarrow as pa

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

    @property
    def config(self) -> LogConfig:
        """How its partitions are written, with all defaults."""

    @property
    def table(self) -> TableInfo | None:
        """Where its table is; None if it has none."""

    def partition(self, number: int) -> PartitionWriter:
        """One partition."""

    def plan(
        self,
        number: int,
        start: int,
        end: int,
        *,
        epoch: int | None = None,
        target_bytes: int | None = None,
        max_records: int | None = None,
        isolation: Isolation = "committed",
    ) -> Sequence[PlannedSlice]:
        """Parts of a partition that other processes can read (`StoreReader.slice_reader`): all offsets from `start` to
        `end`, in order; each at most about `target_bytes`, and `max_records`. `DataLoss` if some of them are gone."""


@runtime_checkable
class StoredDocuments(Protocol):
    """Small documents of a group, by name; they are deleted with it."""

    def find(self, name: str) -> dict[str, Any] | None:
        """One document; None if it does not exist."""

    def keep(self, name: str, fields: dict[str, Any]) -> None:
        """Write or replace one, durably."""

    def remove(self, name: str) -> None:
        """Remove one, if it exists; durable after `sync`."""

    def sync(self) -> None:
        """Make removals durable."""


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

    def documents(self, name: str) -> AbstractContextManager[StoredDocuments]:
        """What readers with their own progress keep for a group. Of two processes that change the same document at the
        same time, one waits or is refused."""


@runtime_checkable
class StoreTransaction(Protocol):
    """Records for several partitions, stored all or not at all. As a block: committed at its end, aborted if it
    raises."""

    #: Whether its name and sequence, or a later one, are already stored.
    replayed: bool

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
        """Append finished batches of one partition and return where they are, for a `Part`."""

    def own_file(self) -> OwnFile:
        """A new file for the batches of one partition, if they are many."""

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
        lock_timeout_s: float = 60.0,
    ) -> PlacedOffsets:
        """Place what was staged and return the offsets; for a number that was published under that name before,
        nothing is placed again. `lock_timeout_s` is how long to wait for others, where one has to."""

    def discard(self, job: str) -> None:
        """Remove what was staged."""

    def put(self, job: str, data: bytes) -> str:
        """Stage batches separately, durably, and return where, for pieces."""

    def last(self, name: str) -> Intent | None:
        """What was published last under a name; its parts only where they are known."""

    def replay_of(self, job: str, find: Callable[[], Intent | None], *, lock_timeout_s: float = 60.0) -> Intent | None:
        """What was stored before in place of this job, as `find` returns it; then what is now staged for it is
        removed."""

    def forget_names(self) -> None:
        """Forget what was published under names that can no longer be repeated."""


@runtime_checkable
class StoreReader(Protocol):
    """A store that may be read."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""

    @property
    def id(self) -> str:
        """The unique id of this store."""

    def topics(self, *, at: str | None = None) -> list[str]:
        """The names of all topics, sorted; or of those in a snapshot. A store without snapshots refuses `at`."""

    def topic(self, name: str, *, at: str | None = None) -> StoredTopic:
        """The current topic of that name, or as it is in a snapshot; `TopicNotFound` if it does not exist."""

    def __contains__(self, name: object) -> bool:
        """Whether there is a topic of that name."""

    def __iter__(self) -> Iterator[StoredTopic]:
        """All topics."""

    def slice_reader(self, topic: str, topic_id: str, partition: int) -> SliceReader:
        """For slices of a partition that `StoredTopic.plan` has returned, perhaps in another process. `TopicNotFound`,
        now or when it reads, if the topic was deleted or recreated since."""

    @property
    def groups(self) -> StoredGroups:
        """Consumer groups."""

    @property
    def staging(self) -> JobStaging:
        """For jobs of many processes."""

    def close(self) -> None:
        """Close everything that came from it. Safe to call twice."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


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

    def serve(self) -> StoreService:
        """What a broker needs besides, for as long as the store is open."""

    def expire(self, topic: str, partition: int) -> RetentionReport | None:
        """Drop now what exceeds the age or size limit of one partition, without reading it; None if that is nothing."""


# --- as programs use it


@runtime_checkable
class UsedPartition(LogReader, PartitionWriter, Protocol):
    """A partition, as programs use it."""

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset; `OffsetMismatch`, and nothing, if it is not the expected one."""

    def fetch(
        self,
        start: int,
        max_bytes: int = ...,
        *,
        min_bytes: int = 0,
        timeout: float | None = 0.0,
        isolation: Isolation = "committed",
    ) -> Fetched:
        """Complete batches as they are stored."""

    def offset_at(self, timestamp: int | datetime) -> int:
        """The first offset whose record is not older."""

    def follow(
        self, start: int | None = None, timeout: float | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[Record]:
        """Records from `start` on, waiting for new ones."""

    def verify(self) -> VerifyReport:
        """Read and check everything."""

    def __len__(self) -> int: ...
    def __contains__(self, offset: object) -> bool: ...


@runtime_checkable
class UsedTopic(StoredTopic, Protocol):
    """A topic, as programs use it."""

    def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | datetime | None = None,
        *,
        partition: int | None = None,
        expect_offset: int | None = None,
    ) -> tuple[int, int]:
        """Append one record and return its partition and offset."""

    def append_many(
        self, records: Iterable[GivenRecord], *, partition: int | None = None, expect_offset: int | None = None
    ) -> dict[int, range]:
        """Append records and return their offsets by partition."""

    def writer(self, batch_bytes: int = ..., linger_ms: float | None = None) -> TopicWriter:
        """A buffered writer over all partitions."""

    def scan(
        self,
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        *,
        partitions: Iterable[int] | None = None,
        isolation: Isolation = "committed",
    ) -> Iterator[Record]:
        """The current records, partition by partition."""

    def partition(self, number: int) -> UsedPartition:
        """One partition."""

    def trim(self, offsets: Mapping[int, int]) -> int:
        """Drop the records below these offsets."""

    def describe(self) -> TopicDescription:
        """Its settings, and how much it contains."""


@runtime_checkable
class UsedGroups(StoredGroups, Protocol):
    """Consumer groups, as programs use them."""

    def seek(self, name: str, offsets: Mapping[Share, Start]) -> dict[Share, int]:
        """Move a group without live members; `GroupActive`, `GroupNotFound`."""


@runtime_checkable
class StoredRegistry(Protocol):
    """Small named documents that several processes change."""

    def read(self, name: str) -> Document:
        """A document as it is now."""

    def change(self, name: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Document:
        """Replace the fields of a document by what `edit` makes of them."""


@runtime_checkable
class UsedStore(StoreWriter, Protocol):
    """A store, as programs use it: `sawlog.open` returns one, wherever it is."""

    def topic(self, name: str, *, at: str | None = None) -> UsedTopic:
        """The current topic of that name, or the one in a snapshot."""

    def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Unpack[TopicSettings]
    ) -> UsedTopic:
        """Create a topic."""

    @property
    def groups(self) -> UsedGroups:
        """Consumer groups."""

    @property
    def registry(self) -> StoredRegistry:
        """Small documents beside the topics."""

    @property
    def consumer(self) -> Callable[..., Consumer]:
        """Read topics as a member of a group: called with the group, the topics, and options."""

    def sql(self, query: str) -> pa.Table:
        """Run a query over topics."""


if TYPE_CHECKING:

    def _fulfilled_by(store: Store) -> UsedStore:
        """mypy compares the signatures, which `isinstance` does not."""
        return store
