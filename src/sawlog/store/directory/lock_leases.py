"""`Turns`: the partitions that appends through a topic have locked, and when they are given back.

An append through a topic, or a transaction, takes the lock of its partition and leaves it taken: the next one is fast.
So that other processes get their turn, a lock is released

- when a process that waits for it has asked (`Log.want_lock`), between two appends;
- when nothing was appended for `_IDLE_S` seconds: a process that has stopped, or sits in a debugger, blocks nobody;
- when another process hands over one append after the other, and this one appends nothing (`Streak`): the lock
  follows the writer, because writing directly is faster than handing over.

Not while a writer of the log is open, and not while a call *uses* the partition. A lock that was taken through the log
itself (`topic.partition(n)`, as a broker does) is kept until the log is released or closed.

Threads: any.
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

#: How long an append waits for a partition that another process has locked, if it cannot hand over.
LOCK_TIMEOUT_S = 30.0
#: How often the background looks whether somebody waits, and after which time without an append a lock is released.
_LOOK_S, _IDLE_S = 0.25, 5.0
#: So many appends in a row, over so many seconds, and the lock goes to the process that hands them over.
_STREAK_COUNT, _STREAK_S = 32, 0.05


@dataclass(slots=True)
class _Taken:
    """A partition that is locked."""

    log: Log
    #: The lock that an append has taken. If the log has another one now, that was taken by somebody else.
    lock: object
    #: Where the log ended when it was last looked at, and how long that is ago.
    end: int = -1
    since: Stopwatch = field(default_factory=Stopwatch)

    @property
    def is_held(self) -> bool:
        """Whether it still has that lock."""
        return self.lock is not None and self.log._held_lock is self.lock

    def is_idle(self) -> bool:
        """Whether nothing was appended for a while."""
        end = self.log.next_offset
        if end != self.end:
            self.end, self.since = end, Stopwatch()
        return self.since.elapsed_s >= _IDLE_S


class Turns:
    """See the module's docstring."""

    def __init__(self, ready: MutableMapping[int, Log]) -> None:
        #: The logs that appends use without asking here; one whose lock is released is removed first.
        self._ready = ready
        self._lock = forkable(threading.Lock())
        self._taken: dict[int, _Taken] = {}
        #: How many calls use each partition.
        self._uses: dict[int, int] = {}
        self._looking: background.Task | None = None

    def took(self, number: int, log: Log) -> None:
        """An append has locked this partition."""
        with self._lock:
            self._taken[number] = _Taken(log, log._held_lock)
            if self._looking is None:
                self._looking = background.every(_LOOK_S, self._look)

    @contextmanager
    def using(self, *numbers: int) -> Iterator[None]:
        """Their locks are not given back within this block."""
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
        """Release the lock of a partition, unless it is in use; returns whether it is released."""
        with self._lock:
            taken = self._taken.get(number)
            if taken is None or not taken.is_held or self._uses.get(number, 0) or taken.log._is_busy:
                return False
            del self._taken[number]
            self._ready.pop(number, None)
            taken.log._release()
            return True

    def end(self) -> None:
        """The topic is closed, and its logs with it."""
        with self._lock:
            self._taken.clear()
            if self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def _look(self) -> None:
        """Called by the background."""
        for number, taken in list(self._taken.items()):
            try:
                if not taken.is_held:
                    with self._lock:
                        self._taken.pop(number, None)
                elif taken.is_idle() or taken.log._wanted:
                    self.give_back(number)
            except (SawlogError, OSError):
                pass  # closed meanwhile; or it has failed, and the next append raises that


class Streak:
    """Appends that one process hands over to another, one after the other."""

    def __init__(self) -> None:
        self._end = -1
        self._count = 0
        self._since = Stopwatch()

    def placed(self, offsets: range) -> None:
        """One more; if something else was appended since the last one, it is the first."""
        if offsets.start != self._end:
            self._count, self._since = 0, Stopwatch()
        self._count += 1
        self._end = offsets.stop

    def is_long(self, end: int) -> bool:
        """Whether only this process writes, judging by where the log ends now; then it begins again."""
        if self._count < _STREAK_COUNT or end != self._end or self._since.elapsed_s < _STREAK_S:
            return False
        self._count, self._since = 0, Stopwatch()
        return True
