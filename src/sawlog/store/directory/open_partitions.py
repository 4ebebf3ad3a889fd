"""`OpenPartitions`: the partitions of one topic that are open in this process, with their locks.

`Topic` is the public interface; this class is what the rest of the store uses. A partition is opened for reading
without a lock. An append takes the lock and keeps it as a lease (`sawlog.store.directory.lock_leases`). If another
process holds the lock, appends are forwarded to it (`sawlog.store.directory.forwarding`) or block until it is released.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, TypeVar

from ...clock import Deadline
from ...config import LogConfig
from ...errors import DirectoryLocked, LogClosed, StorageError, TopicNotFound
from ...log.log import Log
from ...log.maintenance import MaintenanceReport
from ...log.recovery_report import RecoveryReport
from ...log.tiering import TieringReport
from ...storage import Directory
from ...storage.forking import forkable
from .. import settings
from ..names import check_partition_number
from ..writer import TopicWriter
from .catalog import Catalog
from .lock_leases import LockLeases
from .replica import Replica, ReplicaPlace
from .topic_entry import TopicEntry

if TYPE_CHECKING:
    from .forwarding.forwarder import Forwarder, Forwarding

T = TypeVar("T")


class OpenPartitions:
    """Partitions of one topic in this process. Other modules read its fields and never change them."""

    def __init__(
        self,
        catalog: Catalog,
        entry: TopicEntry,
        on_lock: Callable[[TopicEntry, int, Log], None],
        forwarding: Forwarding,
        replica: Replica,
        *,
        lock_timeout_s: float,
    ) -> None:
        self._catalog = catalog
        self._config: LogConfig | None = None
        self._adopt(entry)
        self._on_lock = on_lock
        self._forwarding = forwarding
        #: The replica of the store.
        self._replica = replica
        #: Maximum time that an append blocks on a partition whose holder accepts no forwarded appends.
        self.lock_timeout_s = lock_timeout_s
        #: Forwarders for partitions that other processes hold.
        self._forwarders: dict[int, Forwarder] = {}
        self._lock = forkable(threading.RLock())
        #: Open logs by partition.
        self.logs: dict[int, Log] = {}
        #: Logs that a write has locked. A log that has released its lock since then locks itself again on the next
        #: write.
        self.ready: dict[int, Log] = {}
        self._leases = LockLeases(self.ready)
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
            note=self._forwarding.note,
            remote=self.remote(number),
        )

    def remote(self, number: int) -> ReplicaPlace:
        """Return the location of a partition in the replica, if the store has one."""
        return ReplicaPlace(self._replica, self.name, self.id, number, self.config)

    def reopen(self) -> None:
        """Close the open logs. The next use reopens them with the current settings."""
        with self._lock, ExitStack() as last:
            self._leases.end()
            self.ready.clear()
            for log in self.logs.values():
                last.callback(log.close)
            self.logs = {}

    def end(self, why: LogClosed | TopicNotFound) -> None:
        """Close everything. From now on every call raises this error."""
        with self._lock, ExitStack() as last:  # close every log, even if one of them raises
            self.ended = self.ended or why
            self._leases.end()
            self.ready.clear()
            for log in self.logs.values():
                last.callback(log.close)
            last.callback(self.close_writers)
            self.logs = {}

    def close_writers(self) -> None:
        """Flush and close the forwarding writers and the writers over all partitions."""
        with ExitStack() as last:
            for forwarder in list(self._forwarders.values()):
                last.callback(forwarder.close_writers)
            for writer in list(self._writers):
                last.callback(writer.close)

    def held(self, number: int) -> Log | None:
        """Return the log of a partition if this process holds its write lock, else None. Opens nothing."""
        log = self.logs.get(number)
        return log if log is not None and log._locked and self.ended is None else None

    @contextmanager
    def using_held(self, number: int) -> Iterator[Log | None]:
        """Yield the same as `held`, and keep the lock until the block ends."""
        with self._leases.using(number):
            yield self.held(number)

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
            if log._locked or log._was_closed_cleanly:
                continue
            try:
                reports[number] = self.take(number).recovery
            except DirectoryLocked:
                continue
        return reports

    def appends(self, number: int) -> Log | Forwarder:
        """Return the locked log of a partition, or a `Forwarder` if the process that holds the lock accepts requests;
        otherwise block until the lock is free. Use the result inside a `using` block."""
        return self._waiting(self.reach, number)

    def reach(self, number: int) -> Log | Forwarder:
        """Like `appends`, without blocking: if another process holds the lock and accepts no requests, ask it to
        release the lock and raise `DirectoryLocked`."""
        log = self.partition(number)
        if log._locked:
            return log
        known = self._forwarders.get(number)
        if known is not None:
            return known  # it takes the lock once the other process has released it
        try:
            return self.take(number)
        except DirectoryLocked:
            forwarder = self._forwarding.forwarder(self, number, log)
            if forwarder is None:
                log._want_lock()
                raise
            return self._forwarders.setdefault(number, forwarder)

    def take(self, number: int) -> Log:
        """Return the log of a partition, locked until another process wants to write (see
        `sawlog.store.directory.lock_leases`). `DirectoryLocked` if another process writes to it."""
        with self.lending(number):
            return self._writable(number)

    def ask_for(self, number: int) -> Log:
        """Like `take`, and ask the process that holds the lock to release it."""
        try:
            return self.take(number)
        except DirectoryLocked:
            self.partition(number)._want_lock()
            raise

    def wait_for(self, number: int) -> Log:
        """Like `take`, but block until the process that holds the lock releases it: for operations that cannot be
        forwarded."""
        return self._waiting(self.ask_for, number)

    def _waiting(self, reach: Callable[[int], T], number: int) -> T:
        """Call `reach` until it succeeds or `lock_timeout_s` has passed."""
        deadline: Deadline | None = None
        while True:
            try:
                return reach(number)
            except DirectoryLocked as error:
                deadline = deadline or Deadline(self.lock_timeout_s)
                deadline.pause(or_raise=error.after(self.lock_timeout_s))

    @contextmanager
    def lending(self, *numbers: int) -> Iterator[None]:
        """Lease the locks that are taken within this block, as appends do."""
        before = [self._held_lock(number) for number in numbers]
        try:
            yield
        finally:
            for number, lock in zip(numbers, before, strict=True):
                log = self.logs.get(number)
                if log is not None and log._held_lock not in (None, lock):
                    self._leases.add(number, log)

    def _held_lock(self, number: int) -> object | None:
        log = self.logs.get(number)
        return None if log is None else log._held_lock

    def lease(self, number: int) -> None:
        """Lease the lock that an append has taken because it was released after the append had found the log
        locked."""
        log = self.held(number)
        if log is not None:
            self._leases.add(number, log)

    def not_ready(self, number: int) -> None:
        """Take a log off the fast path: it has lost its lock, and another process may hold it."""
        self.ready.pop(number, None)

    def writer(self, batch_bytes: int, linger_ms: float | None) -> TopicWriter:
        """Return a buffered writer over all partitions. It is closed with them."""
        numbers = range(self.entry.partitions)
        with self._leases.using(*numbers):
            logs = [self.appends(number) for number in numbers]
            writers = [log.writer(batch_bytes, linger_ms) for log in logs]
        made = TopicWriter(writers, batch_bytes, keyed=self.keyed, on_close=self._writers.discard)
        self._writers.add(made)
        return made

    def using(self, *numbers: int) -> AbstractContextManager[None]:
        """Keep the locks of these partitions until the block ends."""
        return self._leases.using(*numbers)

    def give_back(self, number: int, *, own_uses: int = 0) -> bool:
        """Release a leased lock unless it is in use by other calls than the caller's own; return whether it was
        released."""
        return self._leases.give_back(number, own_uses=own_uses)

    def _writable(self, number: int) -> Log:
        """Return the locked log of a partition; `DirectoryLocked` if another process writes to it."""
        log = self.partition(number)
        if not log._locked:
            self._leases.yield_turn(number, log)
            try:
                with log._hold():
                    pass
            except StorageError:
                self.refresh()  # raises TopicNotFound if the topic was deleted meanwhile
                raise
        self.ready[number] = log
        if self.ended is not None:
            self.ready.clear()
        return log

    def maintain(self, number: int) -> MaintenanceReport | None:
        config = settings.maintenance_config(self.entry.settings)
        used = self.logs.get(number)
        if self.ended is not None:
            raise self.ended
        # Before `using`: it may be slow, and other processes may want the lock.
        shipped = used._shipped() if used is not None and used._locked else None
        with self.using(number):
            if used is not None and used._locked:
                return used.maintain(config, shipped)
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
        log._lend_to_maintenance()
        with self._lock:
            self._tended.add(log)
        try:
            return log.maintain(config, shipped)
        except DirectoryLocked:
            return None
        except LogClosed:
            if self.ended is None and log._wanted:
                return None  # a writer wants the lock: the rest is done in a later pass
            raise
        finally:
            with self._lock:
                self._tended.discard(log)
            log.close()

    def end_maintenance(self) -> None:
        """Interrupt maintenance that runs in another thread."""
        with self._lock:
            for log in (*self._tended, *self.logs.values()):
                log._end_maintenance()
