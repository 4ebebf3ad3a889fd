"""`LockLeases`: partition locks that appends through a topic have taken, and when they are released.

An append through a topic, or a transaction, takes the lock of its partition and keeps it, so that the next append is
fast. To let other processes write, a lock is released

- when another process has asked for it (`Log._want_lock`), between two appends. A background task looks for requests.
  If it finds the partition in use, the call that uses it releases the lock as it ends. The other process gets a moment
  to take the lock before this one takes it again;
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
from ...clock import Deadline, Stopwatch
from ...errors import SawlogError
from ...log.log import Log
from ...storage.forking import forkable

#: Maximum time that an append blocks on a partition whose holder accepts no forwarded appends.
LOCK_TIMEOUT_S = 30.0
#: Interval at which the background task checks for waiting processes, and the idle time after which it releases a lock.
_LOOK_S, _IDLE_S = 0.25, 5.0
#: Time for another process to take a lock that was released for it; waiting processes try every 10 ms.
_YIELD_S = 0.1
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
        #: Partitions that another process waits for and that were in use when it was noticed.
        self._wanted: set[int] = set()
        #: Deadlines for other processes to take a released lock first, by partition.
        self._yielding: dict[int, Deadline] = {}
        self._task: background.Task | None = None

    def add(self, number: int, log: Log) -> None:
        """Record that an append has locked this partition, unless it is recorded."""
        with self._lock:
            known = self._leases.get(number)
            if known is None or not known.is_held:
                self._leases[number] = _Lease(log, log._held_lock)
            if self._task is None:
                self._task = background.every(_LOOK_S, self._release_due)

    @contextmanager
    def using(self, *numbers: int) -> Iterator[None]:
        """Keep the locks of these partitions until the block ends, and release those that other processes have asked
        for meanwhile."""
        with self._lock:
            for number in numbers:
                self._uses[number] = self._uses.get(number, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                for number in numbers:
                    self._uses[number] -= 1
            if self._wanted:
                for number in self._wanted.intersection(numbers):
                    self._hand_over(number)

    def give_back(self, number: int, *, own_uses: int = 0) -> bool:
        """Release the lock of a partition unless it is in use by other calls than the caller's own; return whether it
        was released."""
        with self._lock:
            lease = self._leases.get(number)
            if lease is None or not lease.is_held or self._uses.get(number, 0) > own_uses or lease.log._is_busy:
                return False
            del self._leases[number]
            self._ready.pop(number, None)
            self._wanted.discard(number)
            try:
                lease.log._release()
            finally:
                self._yielding[number] = Deadline(_YIELD_S)
            return True

    def yield_turn(self, number: int, log: Log) -> None:
        """Before taking a lock: if it was released and another process wants it, let that one take it first. Blocks
        briefly."""
        deadline = self._yielding.pop(number, None)
        while deadline is not None and log._wanted and deadline.retry():  # the next holder removes the request
            pass

    def end(self) -> None:
        """Forget all leases: the topic and its logs are being closed."""
        with self._lock:
            self._leases.clear()
            self._wanted.clear()
            if self._task is not None:
                self._task.cancel()
                self._task = None

    def _release_due(self) -> None:
        """Release locks that are idle or wanted elsewhere. Called by the background task."""
        for number, lease in list(self._leases.items()):
            try:
                if not lease.is_held:
                    with self._lock:
                        if self._leases.get(number) is lease:  # the lock may have been taken again just now
                            del self._leases[number]
                elif lease.log._wanted:
                    self._hand_over(number)
                elif lease.is_idle():
                    self.give_back(number)
            except (SawlogError, OSError):
                pass  # closed meanwhile, or failed: the next append raises the error

    def _hand_over(self, number: int) -> None:
        """Release a lock that another process waits for: now, or at the end of the call that uses it."""
        self._wanted.add(number)
        try:
            self.give_back(number)
        except (SawlogError, OSError):
            pass  # released all the same: the next append raises what is wrong with the log


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
