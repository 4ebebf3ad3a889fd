"""`Store`: topics, consumer groups and transactions, with the interfaces of transactions and staging."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack
from weakref import WeakSet

from ... import background
from ...batch.inputs import RecordInput
from ...closing import Closing
from ...config import Isolation
from ...display import render_soon
from ...errors import CorruptFile, InvalidConfig, LogClosed, SawlogError, StorageError, TopicNotFound
from ..descriptions import store_html
from ..settings import TopicChanges, TopicSettings
from .partition import unsupported
from .topic import SliceReader, Topic

if TYPE_CHECKING:
    import pyarrow as pa

    from ...log.maintenance import MaintenanceReport
    from ...log.retention import RetentionReport
    from ...sql.dataset import Wanted
    from ...storage.interface import Buffer
    from ..consumer import Consumer, OnPartitions
    from ..directory.transactions.staging import Intent, Part, PartitionFile, Piece, PlacedOffsets
    from ..groups import Groups, StartPosition
    from ..options import KafkaNames
    from ..position import OnLost
    from ..queues.queue import Queue
    from ..serving import StoreService

_maintenance_logger = logging.getLogger("sawlog.maintenance")


@dataclass(frozen=True, slots=True)
class Document:
    """One version of a document."""

    #: 0 if the document was never stored.
    version: int
    fields: Mapping[str, Any]


class DocumentRegistry(ABC):
    """Small named documents that several processes change."""

    @abstractmethod
    def read(self, name: str) -> Document:
        """Return the current version of a document; version 0 without fields if it was never stored."""

    @abstractmethod
    def change(self, name: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Document:
        """Replace the fields of a document by what `edit` makes of them."""


class Transaction(ABC):
    """Records for several partitions, stored all or not at all. As a `with` block it commits at the end, and aborts if
    the block raises."""

    #: True if this name and sequence, or a later one, are already stored: appended records are then ignored.
    replayed: bool
    #: "open", "committed", "aborted", or "pending" if the records will be stored by another process.
    _state: str

    @abstractmethod
    def append(self, topic: str, value: bytes | None, key: bytes | None = None) -> None:
        """Add one record; its offset is known after the commit."""

    @abstractmethod
    def append_many(self, topic: str, records: Iterable[RecordInput], partition: int | None = None) -> None:
        """Add records, all or none of them. A record is as in `Partition.append_many`."""

    @abstractmethod
    def commit(self) -> PlacedOffsets:
        """Store everything and return the offsets by (topic, partition)."""

    @abstractmethod
    def abort(self) -> None:
        """Discard everything. No-op once the transaction has ended."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
        elif self._state == "open":
            self.commit()


class TaskStaging(Closing):
    """Batches that one attempt of one task stages."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """True if nothing was written."""

    @abstractmethod
    def write(self, batches: Buffer) -> Piece:
        """Append finished batches of one partition and return their location, for a `Part`."""

    @abstractmethod
    def own_file(self) -> PartitionFile:
        """Create a file for a large number of batches of one partition."""

    @abstractmethod
    def sync(self) -> None:
        """Block until everything written is durable."""

    @abstractmethod
    def abandon(self) -> None:
        """Remove the files of this attempt, which has failed."""

    @abstractmethod
    def close(self) -> None:
        """Close the files. The staged batches are kept."""


class JobStaging(ABC):
    """Batches that many processes of one job stage and one of them publishes, all or nothing."""

    #: Raises if the store is closed or read-only.
    _check_writable: Callable[[], None]

    @abstractmethod
    def task(self, job: str) -> TaskStaging:
        """Return a place for one attempt of one task."""

    @abstractmethod
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
        """Append the staged batches and return the offsets. A sequence that was published under this name before is not
        appended again. `lock_timeout_s` limits how long it blocks for other writers."""

    @abstractmethod
    def discard(self, job: str) -> None:
        """Remove the staged batches."""

    def put(self, job: str, data: bytes) -> str:
        """Stage batches in a file of their own, durably, and return its name."""
        self._check_writable()
        with self.task(job) as staged:
            piece = staged.write(data)
            staged.sync()
        return piece.file

    @abstractmethod
    def last(self, name: str) -> Intent | None:
        """Return the transaction that was published last under a name, completed or not; with its parts only if they
        are known."""

    @abstractmethod
    def replay_of(self, job: str, find: Callable[[], Intent | None], *, lock_timeout_s: float = 60.0) -> Intent | None:
        """Return the stored transaction that this job would repeat, as `find` returns it, and discard the job's staged
        files if there is one."""

    @abstractmethod
    def forget_names(self) -> None:
        """Forget the names that can no longer be replayed."""


class Store(Closing):
    """Topics, consumer groups and transactions. Every method may be called from any thread; a forked child opens its
    own."""

    #: True if `snapshot`, `topic(at=...)` and `Topic.fork` work.
    supports_snapshots: ClassVar[bool] = False
    #: True if a topic can have a table (`Topic.table`).
    supports_tables: ClassVar[bool] = False
    #: True if `Topic.truncate` can drop the newest records of a partition.
    supports_truncation: ClassVar[bool] = False
    #: Session timeout of a consumer that does not give one.
    _session_timeout_ms: ClassVar[int] = 10_000
    #: Consumers, queues and writers, which are closed with the store if they still exist then.
    _kept: WeakSet[Any]
    #: Runs background maintenance, if this store does.
    _maintenance: background.Task | None = None

    # --- the abstract core

    @property
    @abstractmethod
    def path(self) -> str:
        """Directory or address."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Unique id of the store."""

    @property
    @abstractmethod
    def mode(self) -> str:
        """ "w", or "r" if nothing may be changed."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raise `LogClosed` if the store is closed."""

    @abstractmethod
    def topics(self, *, at: str | None = None) -> list[str]:
        """Return the names of all topics, sorted; with `at`, of those in a snapshot (`supports_snapshots`)."""

    @abstractmethod
    def topic(self, name: str, *, at: str | None = None) -> Topic:
        """Return the topic of that name, with `at` as it is in a snapshot; `TopicNotFound`."""

    @abstractmethod
    def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Unpack[TopicSettings]
    ) -> Topic:
        """Create a topic; `TopicExists`. With `exist_ok` an existing one is returned, whatever its partitions and
        settings.

        Settings have Kafka's names with underscores for dots: `retention_ms=86_400_000`; see `sawlog.store.settings`.
        """

    @abstractmethod
    def alter_topic(self, name: str, partitions: int | None = None, **settings: Unpack[TopicChanges]) -> Topic:
        """Add partitions or change settings; None resets a setting to its default."""

    @abstractmethod
    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records. In a directory, `DirectoryLocked` if another process writes to it."""

    @abstractmethod
    def replace_topic(self, name: str, by: str, *, ends: Mapping[int, int] | None = None) -> Topic:
        """Give the topic `by` the name of another, which is deleted, atomically. With `ends` (partition to next
        offset), raise `OffsetMismatch` if the old one has grown beyond them."""

    @property
    @abstractmethod
    def groups(self) -> Groups:
        """Consumer groups: their progress, and moving them."""

    @property
    @abstractmethod
    def _registry(self) -> DocumentRegistry:
        """Small documents next to the topics, such as a broker's users."""

    @property
    @abstractmethod
    def _staging(self) -> JobStaging:
        """Staging area for jobs of many processes."""

    @abstractmethod
    def transaction(self, name: str | None = None, sequence: int | None = None) -> Transaction:
        """Begin a transaction: records for several partitions, stored all or not at all."""

    @abstractmethod
    def _serve(self) -> StoreService:
        """Return the broker's view of this store."""

    @abstractmethod
    def maintain(self) -> list[MaintenanceReport]:
        """Run the maintenance that the settings of all topics ask for, now."""

    @abstractmethod
    def _expire(self, topic: str, partition: int) -> RetentionReport | None:
        """Drop what exceeds the age or size limit of one partition, now; None if that is nothing. Background
        maintenance does this, too. Reads no records."""

    def _patient(self) -> Store:
        """Return this store for consumers and queues, which poll: it may learn of changes with some lag."""
        return self

    # --- topics

    def _slice_reader(self, topic: str, topic_id: str, partition: int) -> SliceReader:
        """Return a reader for slices that `Topic._plan` has returned, perhaps in another process. `TopicNotFound`, now
        or when it reads, if the topic was deleted or recreated since."""
        found = self.topic(topic)
        if found.id != topic_id:
            raise TopicNotFound(f"the topic {topic!r} was deleted and recreated since this job was planned")
        return found._slices(partition)

    def __contains__(self, name: object) -> bool:
        return name in self.topics()

    def __getitem__(self, name: str) -> Topic:
        return self.topic(name)

    def __iter__(self) -> Iterator[Topic]:
        """Yield all topics. A damaged topic does not hide the others: `CorruptFile` is raised last."""
        damaged: CorruptFile | None = None
        for name in self.topics():
            try:
                topic = self.topic(name)
            except TopicNotFound:
                continue  # deleted meanwhile
            except CorruptFile as error:
                damaged = damaged or error
                continue
            yield topic
        if damaged is not None:
            raise damaged

    def _repr_html_(self) -> str:
        """Return the topics and groups as HTML for a notebook. Returns soon, even if a lock is held."""

        def look() -> str:
            names = self.topics()
            return store_html(self.path, names, (self.topic(name).describe() for name in names), self.groups.list())

        return render_soon(self, look)

    # --- snapshots

    def snapshot(self, name: str, topics: Sequence[str] | None = None) -> object:
        """Keep all topics, or some, as they are now, under a name. Only where `supports_snapshots`."""
        raise self._no_snapshots()

    def snapshots(self) -> Sequence[object]:
        """Return all snapshots; none in a directory."""
        return []

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot. Only a store on object storage has any."""
        raise self._no_snapshots()

    def _no_snapshots(self) -> StorageError:
        return unsupported(self.path, "snapshots and forks: only a store on object storage has them")

    # --- background maintenance

    def _maintain_every(self, interval_s: float | None) -> None:
        """Call `maintain` every `interval_s` seconds, one call at a time, until `_maintenance` is cancelled."""
        if interval_s is None:
            return
        check_seconds("maintenance_interval_s", interval_s, " or None")
        self._maintenance = background.every(interval_s, self._maintain_and_log)

    def _maintain_and_log(self) -> None:
        try:
            for report in filter(None, self.maintain()):
                damaged = report.scrub is not None and not report.scrub.ok
                _maintenance_logger.log(logging.ERROR if damaged else logging.INFO, "%s", report)
        except LogClosed:
            pass  # the store is being closed
        except (SawlogError, OSError) as error:
            _maintenance_logger.warning("maintenance failed and will be retried: %s", error)

    # --- SQL

    def sql(
        self,
        query: str,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        *,
        schemas: Mapping[str, Wanted] | None = None,
        isolation: Isolation = "committed",
    ) -> pa.Table:
        """Run a query over topics and files with DuckDB, and return its result as a `pyarrow.Table`.

        A topic is a table with the columns partition, offset, timestamp, key, value and headers; names with dots or
        dashes need double quotes. `schemas` overrides, by topic, the schema that the topic declares. `parameters` are
        for `?` or `$name` in the query. Records that are appended while it runs are not seen.
        """
        from ...sql import engine

        self._check_open()
        return engine.query(self, query, parameters, schemas=schemas, isolation=isolation)

    def sql_reader(
        self,
        query: str,
        parameters: Sequence[object] | Mapping[str, object] | None = None,
        *,
        schemas: Mapping[str, Wanted] | None = None,
        isolation: Isolation = "committed",
    ) -> pa.RecordBatchReader:
        """Run a query and return a stream of batches, for results that do not fit into memory. Close it, or read it to
        the end."""
        from ...sql import engine

        self._check_open()
        return engine.reader(self, query, parameters, schemas=schemas, isolation=isolation)

    # --- consumers and queues

    def consumer(
        self,
        group: str | None,
        topics: str | Iterable[str],
        *,
        start: StartPosition = "earliest",
        on_lost: OnLost = "earliest",
        auto_commit_ms: int | None = 5000,
        session_timeout_ms: int | None = None,
        max_poll_interval_ms: int = 300_000,
        member: str | None = None,
        isolation: Isolation = "committed",
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        **kafka: Unpack[KafkaNames],
    ) -> Consumer:
        """Read topics as a member of a group (None: alone, without committing); see `Consumer`.

        `start` is where a group without committed offsets begins: "earliest", "latest", an offset or a datetime.
        `on_lost` is where to continue if the records at a position are gone: "earliest", "latest", or "error" to raise
        `PositionLost`. Offsets are committed every `auto_commit_ms`; with None only by `commit`. A member loses its
        partitions if it sends no heartbeat for `session_timeout_ms` (10 s; on object storage 45 s, because a heartbeat
        is a commit there) or asks for no record for `max_poll_interval_ms`. `member` is its name for display.
        `on_assigned` and `on_revoked` are called with the partitions that it has got, and is about to give up. Some of
        Kafka's names for these options are accepted with a warning.
        """
        from ..consumer import Consumer
        from ..options import translated

        self._check_open()
        options: dict[str, Any] = {
            "start": start,
            "on_lost": on_lost,
            "auto_commit_ms": auto_commit_ms,
            "session_timeout_ms": self._session_timeout_ms if session_timeout_ms is None else session_timeout_ms,
            "max_poll_interval_ms": max_poll_interval_ms,
            "member": member,
            "isolation": isolation,
            "on_assigned": on_assigned,
            "on_revoked": on_revoked,
        }
        if kafka:
            options |= translated(kafka)
        made = Consumer(self._patient(), group, [topics] if isinstance(topics, str) else list(topics), **options)
        self._kept.add(made)
        return made

    def queue(
        self,
        topic: str,
        group: str,
        *,
        visibility_s: float = 30.0,
        max_deliveries: int | None = 5,
        dead_letters: str | None = None,
        start: StartPosition = "earliest",
        prefetch: int = 2000,
        worker: str | None = None,
        backoff_s: float = 0.0,
        max_backoff_s: float = 3600.0,
    ) -> Queue:
        """Hand out the records of a topic one by one to any number of workers, each of which acknowledges its own; see
        `Queue`.

        A message that is not answered within `visibility_s` seconds is delivered again; after `max_deliveries` it goes
        to the topic `dead_letters` (by default the topic's name with "-dead"). A released message is delivered again
        after `backoff_s` seconds, and later with each further delivery: twice as long, up to `max_backoff_s`.
        """
        from ..options import QueueOptions
        from ..queues.queue import Queue

        self._check_open()
        options = QueueOptions(
            topic, group, visibility_s, max_deliveries, dead_letters, start, prefetch, worker, backoff_s, max_backoff_s
        )
        made = Queue(self._patient(), options)
        self._kept.add(made)
        return made


def check_seconds(name: str, value: object, or_else: str = "") -> None:
    """Raise `InvalidConfig` unless a value is a positive number of seconds. The message names the alternative
    `or_else`, which the caller accepts."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise InvalidConfig(f"{name} must be a number of seconds above 0{or_else}, not {value!r}")
