"""`OpenPartitions`: the partitions of one topic that are open in this process.

`Topic` is the public interface; this class is what the rest of the store uses. A partition is opened for reading
without a lock. A write takes a turn, which ends when another process waits or nothing is written (`sawlog.log.turns`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from ...config import LogConfig
from ...errors import DirectoryLocked, LogClosed, StorageError, TopicNotFound
from ...log.log import Log
from ...log.maintenance import MaintenanceReport
from ...log.open import waiting_for
from ...log.recovery_report import RecoveryReport
from ...log.tiering import TieringReport
from ...storage import Directory
from ...storage.forking import forkable
from .. import settings
from ..names import check_partition_number
from ..writer import TopicWriter
from .catalog import Catalog
from .replica import Replica, ReplicaPlace
from .topic_entry import TopicEntry

#: Maximum time that maintenance waits for a turn; the rest is done in a later pass.
_MAINTENANCE_TIMEOUT_S = 1.0
#: Maximum time that a write waits for its turn.
LOCK_TIMEOUT_S = 30.0


class OpenPartitions:
    """Partitions of one topic in this process. Other modules read its fields and never change them."""

    def __init__(
        self,
        catalog: Catalog,
        entry: TopicEntry,
        on_lock: Callable[[TopicEntry, int, Log], None],
        replica: Replica,
        *,
        lock_timeout_s: float,
    ) -> None:
        self._catalog = catalog
        self._config: LogConfig | None = None
        self._adopt(entry)
        self._on_lock = on_lock
        #: The replica of the store.
        self._replica = replica
        #: Maximum time that a write waits for its turn.
        self.lock_timeout_s = lock_timeout_s
        self._lock = forkable(threading.RLock())
        #: Open logs by partition.
        self.logs: dict[int, Log] = {}
        #: Open writers over all partitions.
        self._writers: set[TopicWriter] = set()
        #: Logs that are open for maintenance only.
        self._tended: set[Log] = set()
        #: Error to raise from every call once the topic is closed or deleted.
        self.ended: LogClosed | TopicNotFound | None = None

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self.entry.name

    @property
    def id(self) -> str:
        """Id of the topic."""
        return self.entry.id

    @property
    def config(self) -> LogConfig:
        """Settings for logs that are opened from now on."""
        config = self._config
        if config is None:  # not earlier: a topic with unknown settings can be listed and deleted
            config = self._config = settings.log_config(self.entry.settings)
        return config

    def partition(self, number: int) -> Log:
        """Return the log of one partition. Reads take no lock; the first write takes it."""
        log = self.logs.get(number)
        if log is not None and self.ended is None:
            return log
        with self._lock:
            if self.ended is not None:
                raise self.ended
            self.check_number(number)
            if number not in self.logs:
                self.logs[number] = self._open(number)
            return self.logs[number]

    def directory(self, number: int) -> Directory:
        """Return the directory of one partition, for reading its files directly; `TopicNotFound` if the topic was
        deleted or recreated. The caller closes it."""
        self.check_number(number)
        return self._catalog.partition(self.entry, number)

    @property
    def partitions(self) -> int:
        """Number of partitions, as far as this process knows."""
        return self.entry.partitions

    def check_number(self, number: object) -> None:
        if type(number) is int and 0 <= number < self.entry.partitions:
            return
        if isinstance(number, int):
            self.refresh()  # another process may have added some
        check_partition_number(self.name, number, self.entry.partitions)

    def refresh(self) -> None:
        """Read topic.json again; `TopicNotFound` if the topic was deleted or recreated."""
        self.update(self._catalog.check(self.entry))

    def update(self, entry: TopicEntry) -> None:
        """Adopt a newer topic.json. Open logs keep the settings they were opened with."""
        with self._lock:
            if entry != self.entry:
                self._adopt(entry)

    def _adopt(self, entry: TopicEntry) -> None:
        #: The topic, as topic.json describes it.
        self.entry = entry
        self._config = None
        #: True if every record needs a key: the topic is compacted.
        self.keyed = settings.is_compacted(entry.settings)

    def _open(self, number: int) -> Log:
        entry = self.entry
        return Log.open(
            self._catalog.partition(entry, number),
            self.config,
            mode="a" if self._catalog.mode == "w" else "r",
            on_lock=lambda log: self._on_lock(entry, number, log),
            topic=entry.name,
            partition=number,
            turn_timeout_s=self.lock_timeout_s,
            remote=self.remote(number),
        )

    def remote(self, number: int) -> ReplicaPlace:
        """Return the location of a partition in the replica, if the store has one."""
        return ReplicaPlace(self._replica, self.name, self.id, number, self.config)

    def reopen(self) -> None:
        """Close the open logs. The next use reopens them with the current settings."""
        with self._lock, ExitStack() as last:
            for log in self.logs.values():
                last.callback(log.close)
            self.logs = {}

    def end(self, why: LogClosed | TopicNotFound) -> None:
        """Close everything. From now on every call raises this error."""
        with self._lock, ExitStack() as last:  # close every log, even if one of them raises
            self.ended = self.ended or why
            for log in self.logs.values():
                last.callback(log.close)
            last.callback(self.close_writers)
            self.logs = {}

    def close_writers(self) -> None:
        """Flush and close the writers over all partitions."""
        with ExitStack() as last:
            for writer in list(self._writers):
                last.callback(writer.close)

    # --- writing

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raise `TopicNotFound` from a block that fails because the topic was deleted meanwhile."""
        try:
            yield
        except StorageError:
            self.refresh()
            raise

    @contextmanager
    def holding(self, *numbers: int) -> Iterator[dict[int, Log]]:
        """Take the turns of several partitions, in their order, and keep them until the block ends."""
        with self.writing(), ExitStack() as held:
            logs = {number: self.partition(number) for number in sorted(numbers)}
            for log in logs.values():
                held.enter_context(log._hold())
            yield logs

    def writer(self, batch_bytes: int, linger_ms: float | None) -> TopicWriter:
        """Return a buffered writer over all partitions. It is closed with them."""
        with self.writing():
            logs = [self.partition(number) for number in range(self.entry.partitions)]
            writers = [log.writer(batch_bytes, linger_ms) for log in logs]
        made = TopicWriter(writers, batch_bytes, keyed=self.keyed, on_close=self._writers.discard)
        self._writers.add(made)
        return made

    def roll_forward(self, number: int) -> None:
        """Take and release a partition's lock, which places its committed transactions."""
        with closing(self._open(number)) as log, log._hold():
            pass

    def recover(self) -> dict[int, RecoveryReport]:
        """Lock the partitions that were not closed cleanly, which recovers them, and return the reports. Partitions
        that another process writes are left to that process."""
        reports: dict[int, RecoveryReport] = {}
        for number in range(self.entry.partitions):
            log = self.partition(number)
            if log._is_writable or log._was_closed_cleanly:
                continue
            try:
                with log._hold(0.0):
                    reports[number] = log.recovery
            except DirectoryLocked:
                continue
        return reports

    # --- maintenance

    def maintain(self, number: int) -> MaintenanceReport | None:
        """Run the maintenance of one partition that is due; None if another process is at it, or does not let this one
        have a turn."""
        with waiting_for(_MAINTENANCE_TIMEOUT_S):
            return self._maintain(number)

    def _maintain(self, number: int) -> MaintenanceReport | None:
        config = settings.maintenance_config(self.entry.settings)
        used = self.logs.get(number)
        if self.ended is not None:
            raise self.ended
        if used is not None and used._is_writable:
            try:
                return used.maintain(config, used._shipped())
            except DirectoryLocked:
                return None
        # Opened only for this pass: a store may have more partitions than a process may open files.
        log = self._open(number)
        try:
            shipped = log._shipped()
            due = log._maintenance_due(config) or (shipped is not None and shipped.changes_log)
        except BaseException:
            log.close()
            raise
        if not due:
            # Report why nothing can be removed, without taking the writer's lock.
            problem = None
            if shipped is not None:
                problem = TieringReport(local_offset=log._local_offset, problem=shipped.problem)
            log.close()
            return MaintenanceReport(log.path, tiering=problem)
        with self._lock:
            self._tended.add(log)
        try:
            return log.maintain(config, shipped)
        except DirectoryLocked:
            return None
        finally:
            with self._lock:
                self._tended.discard(log)
            log.close()

    def end_maintenance(self) -> None:
        """Interrupt maintenance that runs in another thread."""
        with self._lock:
            for log in (*self._tended, *self.logs.values()):
                log._end_maintenance()
