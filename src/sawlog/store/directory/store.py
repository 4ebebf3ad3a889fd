"""`DirectoryStore`: topics in a directory. `sawlog.open("data")` returns one.

```python
with sawlog.open("data") as store:
    orders = store.create_topic("orders", partitions=4, retention_ms=7 * 86_400_000)
    orders.append(b"value", key=b"customer 7")
    with store.consumer("billing", ["orders"]) as consumer:
        for record in consumer.drain(): ...
```

An open store holds no lock. Any number of processes can write to one topic: they take turns in each partition
(`sawlog.log.turns`). Mode "r" writes, creates and locks nothing, except batches that a task stages for another process
to publish (`staging`).

Topics created, changed or deleted by other processes are visible at the next call of `topics()` or `topic(name)`. All
methods are thread-safe. A forked child must open its own store.

Locks between threads, in the order they are taken: `_committing` (a transaction commits, a topic is deleted, the store
is closed) -> `_lock` (the topics that are known) -> a topic's -> a log's.
"""

from __future__ import annotations

import errno
import logging
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from os import PathLike
from typing import TYPE_CHECKING, Literal, Unpack

from ...addresses import refuse_address
from ...display import counted
from ...errors import (
    CorruptFile,
    InvalidConfig,
    LogClosed,
    OffsetMismatch,
    ReadOnlyLog,
    SawlogError,
    StoreNotFound,
    TopicExists,
    TopicNotFound,
)
from ...log import retention
from ...log.log import Log
from ...log.maintenance import MaintenanceReport
from ...log.retention import RetentionReport
from ...storage import Directory, FileDirectory
from ...storage.forking import forkable
from .. import base
from ..consumer import Consumer
from ..settings import TopicChanges, TopicSettings, maintenance_config
from . import founding
from .catalog import Catalog
from .documents import DirectoryRegistry
from .groups import DirectoryGroups
from .open_partitions import LOCK_TIMEOUT_S, OpenPartitions
from .replica import Replica, ReplicaAddress
from .service import DirectoryService
from .topic import DirectoryTopic
from .topic_entry import TopicEntry
from .transactions.commits import Intents
from .transactions.staging import Staging
from .transactions.transaction import DirectoryTransaction

if TYPE_CHECKING:
    from ..queues.queue import Queue

_logger = logging.getLogger("sawlog")


class DirectoryStore(base.Store):
    """A directory of topics. Created by `sawlog.open`."""

    supports_tables = True
    supports_truncation = True

    def __init__(
        self,
        directory: Directory,
        catalog: Catalog,
        *,
        owns_directory: bool,
        lock_timeout_s: float,
    ) -> None:
        self._directory = directory
        self._owns_directory = owns_directory
        self._catalog = catalog
        self._committing = forkable(threading.RLock())
        self._lock = forkable(threading.RLock())
        self._intents = Intents(directory, self.topic)
        self._lock_timeout_s = lock_timeout_s
        self._replica = Replica(directory, catalog.id)
        self._topics: dict[str, DirectoryTopic] = {}
        self._transactions: set[DirectoryTransaction] = set()
        self._kept: weakref.WeakSet[Consumer | Queue] = weakref.WeakSet()
        self._groups: DirectoryGroups | None = None
        self._closed = False

    # --- opening and closing

    @classmethod
    def open(
        cls,
        path: str | PathLike[str] | Directory,
        mode: Literal["w", "r"] = "w",
        *,
        maintenance_interval_s: float | None = 60.0,
        lock_timeout: float = LOCK_TIMEOUT_S,
        create: bool = True,
        filling: bool = False,
    ) -> DirectoryStore:
        """Open the store in a directory; with mode "w" (the default) create it if the directory is missing or empty,
        unless `create` is False.

        While other processes write to a partition, a write waits up to `lock_timeout` seconds for its turn, then raises
        `DirectoryLocked`; with 0 it does not wait. `filling` opens a directory that is being filled from another store
        (`sawlog.store.directory.founding`), which is refused otherwise.
        """
        if mode not in ("w", "r"):
            raise InvalidConfig(f'mode must be "w" or "r", not {mode!r}')
        with ExitStack() as undo:
            directory, owned = path, False
            if isinstance(path, (str, PathLike)):
                directory, owned = cls._open_directory(path, mode if create else "r"), True
                undo.callback(directory.close)
            assert not isinstance(directory, (str, PathLike))
            if not filling:
                founding.admit(directory, mode)
            catalog = Catalog(directory, mode, create=create)
            undo.callback(catalog.close)
            if lock_timeout != 0:
                base.check_seconds("lock_timeout", lock_timeout, " or 0")
            store = cls(
                directory,
                catalog,
                owns_directory=owned,
                lock_timeout_s=lock_timeout,
            )
            if mode == "w":
                store._recover()
                store._maintain_every(maintenance_interval_s)
            undo.pop_all()
        return store

    @staticmethod
    def _open_directory(path: str | PathLike[str], mode: str) -> Directory:
        refuse_address(path, 'use sawlog.open("{address}")')
        try:
            return FileDirectory(path, create=mode == "w")
        except FileNotFoundError as error:
            raise StoreNotFound(errno.ENOENT, f"no store in {path}: no such directory") from error
        except OSError as error:
            if mode == "r" and error.errno in (errno.ENOENT, errno.ENOTDIR):
                reason = "a file, not a directory" if error.errno == errno.ENOTDIR else "no such directory"
                raise StoreNotFound(errno.ENOENT, f"no store in {path}: {reason}") from error
            if error.errno in (errno.EEXIST, errno.ENOTDIR):
                raise StoreNotFound(errno.ENOTDIR, f"no store in {path}: a file, not a directory") from error
            raise

    def _recover(self) -> None:
        """Complete the committed transactions of dead processes and remove their uncommitted batches.

        A failure does not prevent opening the store: the next write to an affected partition retries and raises.
        """
        for step in (self._complete_all, self._intents.staging.sweep):
            try:
                step()
            except SawlogError as error:
                _logger.warning("%s: postponed to the next open or write: %s", self.path, error)

    def _complete_all(self) -> None:
        self._intents.complete_all(self.path)

    def close(self) -> None:
        """Close the store with its consumers, transactions, writers and logs. Safe to call twice."""
        if self._closed:
            return
        if self._maintenance is not None:
            self._maintenance.cancel()
            for topic in list(self._topics.values()):
                topic._partitions.end_maintenance()
            self._maintenance.wait()
        with ExitStack() as last:  # runs every step, last one first, even if some raise
            if self._owns_directory:
                last.callback(self._directory.close)
            last.callback(self._catalog.close)
            last.callback(self._replica.close)
            last.callback(self._intents.close)
            last.callback(self._close_topics)
            for topic in list(self._topics.values()):
                last.callback(topic._partitions.close_writers)
            if self._groups is not None:
                last.callback(self._groups._close)
            for transaction in list(self._transactions):
                last.callback(transaction.abort)
            for consumer in list(self._kept):
                last.callback(consumer.close)

    def _close_topics(self) -> None:
        with self._committing, self._lock, ExitStack() as last:
            self._closed = True
            for topic in self._topics.values():
                last.callback(topic._partitions.end, LogClosed(f"the store {self.path} is closed"))

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed(f"the store {self.path} is closed")

    def _check_writable(self) -> None:
        self._check_open()
        if self.mode == "r":
            raise ReadOnlyLog(f'the store {self.path} was opened with mode="r"')

    def __repr__(self) -> str:
        if self._closed:
            return f"<Store {self.path} closed>"
        try:
            return f"<Store {self.path}: {counted(len(self.topics()), 'topic')}>"
        except SawlogError as error:
            return f"<Store {self.path}: {error}>"

    # --- properties

    @property
    def path(self) -> str:
        return self._directory.path

    @property
    def id(self) -> str:
        return self._catalog.id

    @property
    def mode(self) -> str:
        return self._catalog.mode

    @property
    def replica(self) -> ReplicaAddress | None:
        """Address of the replica, as recorded by `sawlog replicate`; None if there is none."""
        self._check_open()
        return self._replica.address

    def topics(self, *, at: str | None = None) -> list[str]:
        if at is not None:
            raise self._no_snapshots()
        self._check_open()
        return self._catalog.names()

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[DirectoryTopic]: ...
        def __getitem__(self, name: str) -> DirectoryTopic: ...

    def topic(self, name: str, *, at: str | None = None) -> DirectoryTopic:
        if at is not None:
            raise self._no_snapshots()
        with self._lock:
            self._check_open()
            try:
                return self._known(self._catalog.load(name))
            except TopicNotFound as error:
                self._drop(name, error)
                raise

    def _known(self, entry: TopicEntry) -> DirectoryTopic:
        """Return the `Topic` of an entry: the open one, unless that is an earlier topic of the same name."""
        found = self._topics.get(entry.name)
        if found is not None and found.id == entry.id:
            found._partitions.update(entry)
            return found
        self._drop(entry.name, TopicNotFound(f"the topic {entry.name!r} was deleted and recreated"))
        open_partitions = OpenPartitions(
            self._catalog,
            entry,
            self._locked,
            self._replica,
            lock_timeout_s=self._lock_timeout_s,
        )
        made = self._topics[entry.name] = DirectoryTopic(self._catalog, open_partitions, self)
        return made

    def _drop(self, name: str, why: TopicNotFound) -> None:
        gone = self._topics.pop(name, None)
        if gone is not None:
            gone._partitions.end(why)

    def _locked(self, entry: TopicEntry, number: int, log: Log) -> None:
        """Called when a partition was locked for writing: check that it still belongs to the topic, and append
        committed transactions."""
        self._catalog.check(entry)
        self._catalog.settle()
        self._intents.placement.roll_forward(entry.id, number, log)

    # --- changing

    def create_topic(
        self, name: str, partitions: int = 1, *, exist_ok: bool = False, **settings: Unpack[TopicSettings]
    ) -> DirectoryTopic:
        with self._lock:
            self._check_writable()
            try:
                return self._known(self._catalog.create(name, partitions, settings))
            except TopicExists:
                if not exist_ok or name not in self.topics():
                    raise
                return self.topic(name)

    def _copy_topic(self, name: str, topic_id: str, partitions: int, settings: Mapping[str, object]) -> DirectoryTopic:
        """Create a copy of a topic of another store. It has the same id, so offsets that groups have committed there
        are valid here."""
        with self._lock:
            self._check_writable()
            return self._known(self._catalog.create(name, partitions, settings, topic_id=topic_id))

    def alter_topic(self, name: str, partitions: int | None = None, **settings: Unpack[TopicChanges]) -> DirectoryTopic:
        """Add partitions or change settings; None resets a setting to its default.

        A partition that is open, here or in another process, keeps the settings it was opened with.
        """
        with self._lock:
            self._check_writable()
            return self._known(self._catalog.alter(name, partitions, settings))

    def delete_topic(self, name: str) -> None:
        if (open_topic := self._topics.get(name)) is not None:
            open_topic._partitions.close_writers()  # they may wait for other processes, so before a lock is taken
        with self._committing, self._lock:
            self._check_writable()
            self._catalog.load(name)
            # Our own locks must be released first. If another process holds one, the topic is reopened when it is
            # used.
            self._drop(name, TopicNotFound(f"the topic {name!r} was closed to be deleted"))
            self._catalog.delete(name)

    def replace_topic(self, name: str, by: str, *, ends: Mapping[int, int] | None = None) -> DirectoryTopic:
        """Give the topic `by` the name of another, which is deleted, atomically even if the process dies.

        Waits for the turns of other processes, whose next append to either raises `TopicNotFound`. With `ends`
        (partition to next offset), `OffsetMismatch` if the old topic has grown beyond them. The topic keeps the id of
        `by`, so offsets committed for the old one do not apply to it.
        """
        with self._committing, self._lock:
            self._check_writable()
            if name == by:
                raise InvalidConfig(f"the topic {name!r} cannot replace itself")
            entries = self._catalog.load(name), self._catalog.load(by)
            with ExitStack() as held:
                for entry in entries:
                    topic = self._known(entry)
                    for number in range(topic.partitions):
                        log = topic.partition(number)
                        held.enter_context(log._hold())
                        log._disown()
                        if ends is not None and entry is entries[0] and log.next_offset != ends.get(number, 0):
                            raise OffsetMismatch(ends.get(number, 0), log.next_offset)
                try:
                    gone = self._catalog.replace(*entries)
                finally:  # in any case, their names may have changed
                    held.close()
                    self._drop(by, TopicNotFound(f"the topic {by!r} has replaced {name!r}"))
                    self._drop(name, TopicNotFound(f"the topic {name!r} was replaced; ask the store for it again"))
            self._catalog.discard(gone)  # takes some time, so after the locks are released
            return self.topic(name)

    def maintain(self) -> list[MaintenanceReport]:
        """Run the maintenance that the settings of all topics ask for and return a report per partition. Damaged topics
        (`CorruptFile`) are skipped and logged in `sawlog`."""
        self._check_writable()
        reports: list[MaintenanceReport] = []
        try:
            self._complete_all()
            for topic in self:
                reports += topic.maintain()
            self._staging.forget_names()
        except CorruptFile as error:
            _logger.error("no maintenance: %s", error)
        return reports

    def _expire(self, topic: str, partition: int) -> RetentionReport | None:
        found = self.topic(topic)
        if not maintenance_config(found.settings).delete:
            return None
        log = found.partition(partition)
        return log.apply_retention() if retention.is_due(log._segment_set) else None

    # --- transactions

    def transaction(
        self, name: str | None = None, sequence: int | None = None, *, lock_timeout_s: float = 5.0
    ) -> DirectoryTransaction:
        """Begin a transaction: records for several topics and partitions, stored all or not at all; see `Transaction`.

        The commit waits up to `lock_timeout_s` seconds for its turns in the partitions.
        """
        self._check_writable()
        made = DirectoryTransaction(
            self._intents,
            self.topic,
            self._committing,
            name=name,
            sequence=sequence,
            lock_timeout_s=lock_timeout_s,
            on_end=self._transactions.discard,
        )
        self._transactions.add(made)
        return made

    @property
    def _staging(self) -> Staging:
        """Staging area for jobs of many processes: they stage batches, and one of them publishes all or none. Also
        available with mode "r", for processes that only stage."""
        self._check_open()
        return Staging(self._intents, self.topic, self._topic_ids, self._committing, self._check_writable)

    def _topic_ids(self) -> set[str]:
        return {self._catalog.load(name).id for name in self._catalog.names()}

    # --- consumers

    @property
    def groups(self) -> DirectoryGroups:
        with self._lock:
            self._check_open()
            if self._groups is None:
                self._groups = DirectoryGroups(self, self._directory)
            return self._groups

    @property
    def _registry(self) -> DirectoryRegistry:
        self._check_open()
        return DirectoryRegistry(self._directory, self.mode)

    def _serve(self) -> DirectoryService:
        return DirectoryService(self)
