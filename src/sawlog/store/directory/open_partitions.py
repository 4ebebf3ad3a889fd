"""`Holdings`: the partitions of one topic in this process: opened, locked, lent, handed over, tended, closed.

`Topic` is what programs use; this is what the rest of the store uses of it. A partition is opened for reading without a
lock. An append locks it and leaves it locked until it is given back (turns.py). If another process holds the lock, it
is reached through an outlet (`sawlog.store.directory.forwarding`), or waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, TypeVar

from ...clock import Deadline
from ...config import LogConfig
from ...errors import DirectoryLocked, LogClosed, StorageError, TopicNotFound
from ...log.log import Log
from ...log.maintenance import UpkeepReport
from ...log.recovery_report import RecoveryReport
from ...log.tiering import TieringReport
from ...storage import Directory
from ...storage.forking import forkable
from .. import settings
from ..writer import TopicWriter
from .appends import Appends, Outlet
from .catalog import Catalog
from .lock_leases import LOCK_TIMEOUT_S, Turns
from .replica import Replica, ReplicaPlace
from .topic_entry import TopicEntry

T = TypeVar("T")


class Elsewhere(Protocol):
    """The processes that hold partitions of the store: see `sawlog.store.directory.forwarding`."""

    @property
    def note(self) -> bytes:
        """For the LOCK files of this process: where it is reached."""

    def outlet(self, topic: Holdings, number: int, log: Log) -> Outlet | None:
        """For appends to a partition whose lock another process holds; None if that takes no requests."""


class Holdings:
    """See the module's docstring. Its fields are changed only here."""

    def __init__(
        self,
        catalog: Catalog,
        entry: TopicEntry,
        on_lock: Callable[[TopicEntry, int, Log], None],
        elsewhere: Elsewhere | None = None,
        replica: Replica | None = None,
        *,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
    ) -> None:
        self._catalog = catalog
        #: The topic, as topic.json describes it.
        self.entry = entry
        #: Whether every record needs a key.
        self.keyed = settings.is_compacted(entry.settings)
        self._on_lock = on_lock
        self._elsewhere = elsewhere
        #: The replica of the store.
        self._replica = replica
        #: How long an append waits for a partition that another process has locked, if it cannot hand over.
        self.lock_timeout_s = lock_timeout_s
        #: For partitions that other processes hold.
        self._outlets: dict[int, Outlet] = {}
        self._lock = forkable(threading.RLock())
        #: Those that are open.
        self.logs: dict[int, Log] = {}
        #: Those of them that were locked by a write. One that has released its lock since takes it again by itself.
        self.ready: dict[int, Log] = {}
        self._turns = Turns(self.ready)
        #: Open writers over all partitions.
        self._writers: set[TopicWriter] = set()
        #: Logs that were opened for upkeep only.
        self._tended: set[Log] = set()
        #: Why it can no longer be used.
        self.ended: LogClosed | TopicNotFound | None = None

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.entry.name

    @property
    def id(self) -> str:
        """The topic's id."""
        return self.entry.id

    @property
    def config(self) -> LogConfig:
        """How its logs are opened from now on."""
        return settings.log_config(self.entry.settings)

    def partition(self, number: int) -> Log:
        """The log of one partition: it reads without a lock, and its first write takes the lock."""
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
        """The directory of one partition, for reading its files directly; `TopicNotFound` if the topic was deleted or
        recreated. The caller closes it."""
        self.check_number(number)
        return self._catalog.partition(self.entry, number)

    @property
    def partitions(self) -> int:
        """How many there are, as far as this process knows."""
        return self.entry.partitions

    def check_number(self, number: object) -> None:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TopicNotFound(f"a partition must be an integer, not {number!r}")
        if not 0 <= number < self.entry.partitions:
            self.refresh()  # another process may have added some
        if not 0 <= number < self.entry.partitions:
            most = self.entry.partitions - 1
            raise TopicNotFound(f"the topic {self.name!r} has partitions 0 to {most}, not {number}")

    def refresh(self) -> None:
        """Read topic.json again; `TopicNotFound` if the topic was deleted or recreated."""
        self.update(self._catalog.check(self.entry))

    def update(self, entry: TopicEntry) -> None:
        """Read topic.json again. Logs that are open keep the settings they were opened with."""
        with self._lock:
            self.entry = entry
            self.keyed = settings.is_compacted(entry.settings)

    def _open(self, number: int) -> Log:
        entry = self.entry
        return Log.open(
            self._catalog.partition(entry, number),
            settings.log_config(entry.settings),
            mode="a" if self._catalog.mode == "w" else "r",
            on_lock=lambda log: self._on_lock(entry, number, log),
            topic=entry.name,
            partition=number,
            note=b"" if self._elsewhere is None else self._elsewhere.note,
            remote=self.remote(number),
        )

    def remote(self, number: int) -> ReplicaPlace | None:
        """Where the replica of a partition is found."""
        entry = self.entry
        if self._replica is None:
            return None
        return ReplicaPlace(self._replica, entry.name, entry.id, number, settings.log_config(entry.settings))

    def reopen(self) -> None:
        """Close the open logs; the next use opens them again, with the current settings."""
        with self._lock, ExitStack() as last:
            self._turns.end()
            self.ready.clear()
            for log in self.logs.values():
                last.callback(log.close)
            self.logs = {}

    def end(self, why: LogClosed | TopicNotFound) -> None:
        """Close everything; from now on it only raises this error."""
        with self._lock, ExitStack() as last:  # each is closed, whatever the others raise
            self.ended = self.ended or why
            self._turns.end()
            self.ready.clear()
            for log in self.logs.values():
                last.callback(log.close)
            last.callback(self.close_writers)
            self.logs = {}

    def close_writers(self) -> None:
        """Flush and close the writers that have batches for other processes, and those over all partitions."""
        with ExitStack() as last:
            for outlet in list(self._outlets.values()):
                last.callback(outlet.close_writers)
            for writer in list(self._writers):
                last.callback(writer.close)

    def held(self, number: int) -> Log | None:
        """The log of a partition if this process holds its lock to write to it; else None. Opens nothing."""
        log = self.logs.get(number)
        return log if log is not None and log.locked and self.ended is None else None

    def roll_forward(self, number: int) -> None:
        """Take a partition's lock, which places committed transactions, and release it again."""
        log = self._open(number)
        try:
            with log._hold():
                pass
        finally:
            log.close()

    def recover(self) -> dict[int, RecoveryReport]:
        """Lock the partitions that were not closed cleanly, which recovers them; what that found. Those that another
        process writes are left to it."""
        reports: dict[int, RecoveryReport] = {}
        for number in range(self.entry.partitions):
            log = self.partition(number)
            if log.locked or log.was_closed_cleanly:
                continue
            try:
                reports[number] = self.take(number).recovery
            except DirectoryLocked:
                continue
        return reports

    def appends(self, number: int) -> Appends:
        """The log of a partition, locked; or, if another process holds the lock and takes requests, what hands over to
        it. If it takes none, wait for the lock. What is returned is for a block of `using`."""
        return self._waiting(self.reach, number)

    def reach(self, number: int) -> Appends:
        """The same without waiting: `DirectoryLocked` if another process holds the lock and takes no requests; it is
        asked to give it back."""
        log = self.partition(number)
        if log.locked:
            return log
        known = self._outlets.get(number)
        if known is not None:
            return known  # it takes the lock when the other process has released it
        try:
            return self.take(number)
        except DirectoryLocked:
            outlet = None if self._elsewhere is None else self._elsewhere.outlet(self, number, log)
            if outlet is None:
                log._want_lock()
                raise
            return self._outlets.setdefault(number, outlet)

    def take(self, number: int) -> Log:
        """The log of a partition, locked until others want to write (see `sawlog.store.directory.lock_leases`).
        `DirectoryLocked` if another process writes to it."""
        with self.lending(number):
            return self._writable(number)

    def ask_for(self, number: int) -> Log:
        """As `take`; a process that holds the lock is asked to give it back."""
        try:
            return self.take(number)
        except DirectoryLocked:
            self.partition(number)._want_lock()
            raise

    def wait_for(self, number: int) -> Log:
        """As `take`, after waiting until the process that holds the lock gives it back: for what cannot be handed
        over."""
        return self._waiting(self.ask_for, number)

    def _waiting(self, reach: Callable[[int], T], number: int) -> T:
        """What `reach` returns, after waiting for a process that holds the lock."""
        deadline: Deadline | None = None
        while True:
            try:
                return reach(number)
            except DirectoryLocked as error:
                deadline = deadline or Deadline(self.lock_timeout_s)
                deadline.pause(or_raise=error.after(self.lock_timeout_s))

    @contextmanager
    def lending(self, *numbers: int) -> Iterator[None]:
        """The locks that are taken within this block are given back like those of appends."""
        before = [self._held_lock(number) for number in numbers]
        try:
            yield
        finally:
            for number, lock in zip(numbers, before, strict=True):
                log = self.logs.get(number)
                if log is not None and log._held_lock not in (None, lock):
                    self._turns.took(number, log)

    def _held_lock(self, number: int) -> object | None:
        log = self.logs.get(number)
        return None if log is None else log._held_lock

    def not_ready(self, number: int) -> None:
        """The log of a partition does not have its lock: another process may have it."""
        self.ready.pop(number, None)

    def writer(self, batch_bytes: int, linger_ms: float | None) -> TopicWriter:
        """A buffered writer over all partitions, closed with them."""
        numbers = range(self.entry.partitions)
        with self._turns.using(*numbers):
            logs = [self.appends(number) for number in numbers]
            writers = [log.writer(batch_bytes, linger_ms) for log in logs]
        made = TopicWriter(writers, batch_bytes, keyed=self.keyed, on_close=self._writers.discard)
        self._writers.add(made)
        return made

    def using(self, *numbers: int) -> AbstractContextManager[None]:
        """The locks of these partitions are not given back within this block."""
        return self._turns.using(*numbers)

    def give_back(self, number: int) -> bool:
        """Release a lock that `take` has taken, unless it is in use; returns whether it is released."""
        return self._turns.give_back(number)

    def _writable(self, number: int) -> Log:
        """The log of a partition, locked: raises here if another process writes to it."""
        log = self.partition(number)
        if not log.locked:
            try:
                with log._hold():
                    pass
            except StorageError:
                self.refresh()  # if the topic was deleted meanwhile, raise that
                raise
        self.ready[number] = log
        if self.ended is not None:
            self.ready.clear()
        return log

    def upkeep(self, number: int) -> UpkeepReport | None:
        config = settings.upkeep_config(self.entry.settings)
        used = self.logs.get(number)
        if self.ended is not None:
            raise self.ended
        shipped = used.shipped() if used is not None and used.locked else None  # not while others wait for the lock
        with self.using(number):
            if used is not None and used.locked:
                return used.upkeep(config, shipped)
        # Not one that stays open: a store may have more partitions than a process may open files.
        log = self._open(number)
        try:
            shipped = log.shipped()
            due = log.upkeep_due(config) or (shipped is not None and shipped.changes_log)
        except BaseException:
            log.close()
            raise
        if not due:
            # Report why nothing can be removed, without taking the writer's lock.
            problem = None if shipped is None else TieringReport(local_offset=log.local_offset, problem=shipped.problem)
            log.close()
            return UpkeepReport(log.path, tiering=problem)
        log._lend_to_upkeep()
        with self._lock:
            self._tended.add(log)
        try:
            return log.upkeep(config, shipped)
        except DirectoryLocked:
            return None
        except LogClosed:
            if self.ended is None and log._wanted:
                return None  # a writer is waiting: the rest is done later
            raise
        finally:
            with self._lock:
                self._tended.discard(log)
            log.close()

    def end_upkeep(self) -> None:
        """Stop upkeep that is running in another thread."""
        with self._lock:
            for log in (*self._tended, *self.logs.values()):
                log._end_upkeep()
