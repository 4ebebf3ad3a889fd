"""`LockLeases`: partition locks that appends through a topic have taken, and when they are released.

An append through a topic, or a transaction, takes the lock of its partition and keeps it, so that the next append is
fast. To let other processes write, a lock is released

- when another process has asked for it (`Log._want_lock`), between two appends;
- when nothing was appended for `_IDLE_S` seconds, so that a stopped process does not block the others;
- when another process forwards one append after the other and this one appends nothing (`Streak`): the lock moves to
  the writer, because writing directly is faster than forwarding.

A lock is never released while a writer of the log is open or a call is *using* the partition. A lock taken through the
log itself (`topic.partition(n)`, as a broker does) is kept until the log is released or closed.

Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ... import background
from ...clock import Stopwatch
from ...errors import SawlogError
from ...log.log import Log
from ...storage.forking import forkable

#: Maximum time that an append blocks on a partition whose holder accepts no forwarded appends.
LOCK_TIMEOUT_S = 30.0
#: Interval at which the background task checks for waiting processes, and the idle time after which it releases a lock.
_LOOK_S, _IDLE_S = 0.25, 5.0
#: After this many forwarded appends in a row, over this many seconds, the lock moves to the forwarding process.
_STREAK_COUNT, _STREAK_S = 32, 0.05


@dataclass(slots=True)
class _Lease:
    """The lock of one partition, taken by an append."""

    log: Log
    #: The lock as the append took it. If the log holds a different one now, that one was not leased.
    lock: object
    #: End of the log at the last check, and the time since it moved.
    end: int = -1
    since: Stopwatch = field(default_factory=Stopwatch)

    @property
    def is_held(self) -> bool:
        """True if the log still holds this lock."""
        return self.lock is not None and self.log._held_lock is self.lock

    def is_idle(self) -> bool:
        """Return whether nothing was appended for `_IDLE_S` seconds."""
        end = self.log.next_offset
        if end != self.end:
            self.end, self.since = end, Stopwatch()
        return self.since.elapsed_s >= _IDLE_S


class LockLeases:
    """Leased locks of the partitions of one topic. Thread-safe."""

    def __init__(self, ready: MutableMapping[int, Log]) -> None:
        #: Logs that appends use without consulting this class. A log is removed here before its lock is released.
        self._ready = ready
        self._lock = forkable(threading.Lock())
        self._leases: dict[int, _Lease] = {}
        #: Number of calls that are using each partition.
        self._uses: dict[int, int] = {}
        self._task: background.Task | None = None

    def add(self, number: int, log: Log) -> None:
        """Record that an append has locked this partition."""
        with self._lock:
            self._leases[number] = _Lease(log, log._held_lock)
            if self._task is None:
                self._task = background.every(_LOOK_S, self._release_due)

    @contextmanager
    def using(self, *numbers: int) -> Iterator[None]:
        """Keep the locks of these partitions until the block ends."""
        with self._lock:
            for number in numbers:
                self._uses[number] = self._uses.get(number, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                for number in numbers:
                    self._uses[number] -= 1

    def give_back(self, number: int) -> bool:
        """Release the lock of a partition unless it is in use; return whether it was released."""
        with self._lock:
            lease = self._leases.get(number)
            if lease is None or not lease.is_held or self._uses.get(number, 0) or lease.log._is_busy:
                return False
            del self._leases[number]
            self._ready.pop(number, None)
            lease.log._release()
            return True

    def end(self) -> None:
        """Forget all leases: the topic and its logs are being closed."""
        with self._lock:
            self._leases.clear()
            if self._task is not None:
                self._task.cancel()
                self._task = None

    def _release_due(self) -> None:
        """Release locks that are idle or wanted elsewhere. Called by the background task."""
        for number, lease in list(self._leases.items()):
            try:
                if not lease.is_held:
                    with self._lock:
                        self._leases.pop(number, None)
                elif lease.is_idle() or lease.log._wanted:
                    self.give_back(number)
            except (SawlogError, OSError):
                pass  # closed meanwhile, or failed: the next append raises the error


class Streak:
    """Uninterrupted run of appends that one process forwards to another."""

    def __init__(self) -> None:
        self._end = -1
        self._count = 0
        self._since = Stopwatch()

    def placed(self, offsets: range) -> None:
        """Count an append. Starts over if another append came in between."""
        if offsets.start != self._end:
            self._count, self._since = 0, Stopwatch()
        self._count += 1
        self._end = offsets.stop

    def is_long(self, end: int) -> bool:
        """Return whether the forwarding process is the only writer, given the current end of the log, and start over if
        it is."""
        if self._count < _STREAK_COUNT or end != self._end or self._since.elapsed_s < _STREAK_S:
            return False
        self._count, self._since = 0, Stopwatch()
        return True
