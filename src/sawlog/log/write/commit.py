"""Group commit: everyone who waits for the disk shares one fdatasync.

The first who needs a sync becomes the leader and does it; those who come while it runs wait. When it is done, those
whose bytes it covered return, and one of the others leads the next round. Each waiter has a lock of its own to sleep
on: waking all of them through one condition was measured at half the speed.

What is durable only goes back when the log is cut (`retreat`). A leader whose sync had begun before that knows an end
that is not there any more, and must not announce it: new records at those offsets are not synced.

A failed sync is never tried again: the kernel may have dropped the pages and would report success. It ends writing
for good; everyone who waits, and everyone who comes later, gets the error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

from ...errors import LogFailed, SawlogError, SyncFailed
from ...storage.forking import forkable

#: How often an interrupted farewell is tried again.
_PERSISTENCE = 10


class GroupCommit:
    """Knows how far the log is durable, and gets it further on request."""

    def __init__(
        self, sync: Callable[[], int], durable_offset: int, moved: Callable[[int], None] = lambda offset: None
    ) -> None:
        #: Makes everything written so far durable and says up to which offset that is.
        self._sync = sync
        self.durable_offset = durable_offset
        #: Told of every new `durable_offset`, under the mutex: one after the other, and the last one is true.
        self._moved = moved
        #: How often the log was cut; and, by the gate of whoever leads, how often when it began.
        self._retreats = 0
        self._led_at: dict[threading.Lock, int] = {}
        self.failure: BaseException | None = None
        self._mutex = forkable(threading.Lock())
        #: Who syncs now, or has been woken up to: its gate stands for it.
        self._leader: threading.Lock | None = None
        self._leader_thread = 0
        self._waiting: list[tuple[int, threading.Lock]] = []

    @contextmanager
    def ending_on_failed_sync(self) -> Iterator[None]:
        """A failed fsync, of whatever file, ends writing: nobody can say what else the disk has lost."""
        try:
            yield
        except SyncFailed as error:
            self.fail(error)
            raise

    def ensure(self, offset: int) -> None:
        """Return when every record below `offset` is durable; raise if that cannot be had."""
        if self.durable_offset >= offset:
            return
        gate = threading.Lock()
        gate.acquire()
        try:
            if self._wait(gate, offset):
                self._lead(gate)
        except BaseException:  # also an interrupt in the middle of waiting: the others must not wait for us
            for _ in range(_PERSISTENCE):
                try:
                    self._leave(gate)
                    break
                except BaseException:  # interrupted again; this has to be finished all the same
                    continue
            raise

    def _wait(self, gate: threading.Lock, offset: int) -> bool:
        """Until it is durable (False), or it is on us to make it so (True)."""
        with self._mutex:
            if self.durable_offset >= offset:
                return False
            self.check()
            # If we are the leader ourselves, an interrupted call of ours has left that behind.
            if self._leader is None or self._leader_thread == get_ident():
                self._leader, self._leader_thread = gate, get_ident()
                return True
            self._waiting.append((offset, gate))
        gate.acquire()
        with self._mutex:
            if self._leader is gate:
                self._leader_thread = get_ident()
        if self.durable_offset >= offset:
            self._leave(gate)  # we may have been chosen to lead, and served by somebody else before we woke up
            return False
        self.check()
        return True

    def _leave(self, gate: threading.Lock) -> None:
        with self._mutex:
            self._waiting = [each for each in self._waiting if each[1] is not gate]
        self._pass_on(-1, gate)

    def check(self) -> None:
        """Raise if an earlier sync or write ended writing."""
        if self.failure is not None:
            raise LogFailed(
                f"writing stopped after an earlier failure ({str(self.failure) or type(self.failure).__name__}); "
                "reading still works; reopen the log to recover"
            ) from self.failure

    def _lead(self, gate: threading.Lock) -> None:
        self._led_at[gate] = self._retreats
        try:
            reached = self._sync()
        except (SawlogError, OSError) as error:  # not an exception of a signal handler: then nothing has failed
            self.fail(error)
            raise
        self._pass_on(reached, gate)

    def _pass_on(self, reached: int, gate: threading.Lock) -> None:
        """Wake up those who are served, and one more to lead, if there are more. What was reached counts unless the log
        was cut since."""
        with self._mutex:
            if self._led_at.pop(gate, -1) == self._retreats and reached > self.durable_offset:
                self._move(reached)
            if self._leader is not gate:
                return  # a torn write elsewhere has ended writing meanwhile, and woken up everyone
            served = [each for each in self._waiting if each[0] <= self.durable_offset]
            still = [each for each in self._waiting if each[0] > self.durable_offset]
            self._leader, self._leader_thread = (still[0][1] if still else None), 0
            served += still[:1]
            self._waiting = still[1:]
        for _, woken in served:
            woken.release()

    def reached(self, offset: int) -> None:
        """Somebody else (rotation) made everything below `offset` durable."""
        with self._mutex:
            if self.failure is None and offset > self.durable_offset:
                self._move(offset)

    def retreat(self, offset: int) -> None:
        """The log was cut: nothing from `offset` on is there any more."""
        with self._mutex:
            self._retreats += 1
            if offset < self.durable_offset:
                self._move(offset)

    def _move(self, offset: int) -> None:
        """In an order in which an interrupt between the lines costs another sync, and hides nothing that is durable."""
        self.durable_offset = min(self.durable_offset, offset)
        self._moved(offset)
        self.durable_offset = offset

    def fail(self, error: BaseException) -> None:
        """End writing, now and for everyone."""
        with self._mutex:
            if self.failure is None:
                self.failure = error
            self._leader = None
            waiting, self._waiting = self._waiting, []
        for _, gate in waiting:
            gate.release()
