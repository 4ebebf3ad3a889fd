"""Group commit: all callers that wait for the disk share one fdatasync.

The first that needs a sync becomes the leader and does it; those that come while it runs wait. When it is done, those
whose bytes it covered return, and one of the others leads the next round. Each waiter has its own lock to sleep on:
waking all of them through one condition was measured at half the speed.

What is durable only decreases when the log is cut (`retreat`). A leader whose sync had begun before that knows an end
that no longer exists, and must not announce it: new records at those offsets are not synced.

A failed sync is never retried: the kernel may have dropped the pages and would report success. It ends writing
permanently; all current and later callers get the error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

from ...batch import kernel
from ...errors import LogFailed, SawlogError, SyncFailed
from ...storage.forking import forkable

#: How often an interrupted cleanup is retried.
_PERSISTENCE = 10


class GroupCommit(kernel.CommitFields):
    """Knows how far the log is durable, and makes more durable on request."""

    __slots__ = (
        "_leader",
        "_leader_thread",
        "_led_at",
        "_moved",
        "_mutex",
        "_retreats",
        "_sync",
        "_waiting",
        "durable_offset",
    )
    #: Why writing has ended.
    failure: BaseException | None

    def __init__(
        self, sync: Callable[[], int], durable_offset: int, moved: Callable[[int], None] = lambda offset: None
    ) -> None:
        #: Makes everything written so far durable and returns up to which offset that is.
        self._sync = sync
        self.durable_offset = durable_offset
        #: Called with every new `durable_offset`, under the mutex: in order, and the last one is current.
        self._moved = moved
        #: How often the log was cut; and, by the gate of each leader, how often when it began.
        self._retreats = 0
        self._led_at: dict[threading.Lock, int] = {}
        self.failure = None
        self._mutex = forkable(threading.Lock())
        #: The leader that syncs now, or has been woken up to do so: its gate identifies it.
        self._leader: threading.Lock | None = None
        self._leader_thread = 0
        self._waiting: list[tuple[int, threading.Lock]] = []

    @contextmanager
    def ending_on_failed_sync(self) -> Iterator[None]:
        """A failed fsync, of any file, ends writing: nobody can say what else the disk has lost."""
        try:
            yield
        except SyncFailed as error:
            self.fail(error)
            raise

    def ensure(self, offset: int) -> None:
        """Return when every record below `offset` is durable; raise if that is impossible."""
        if self.durable_offset >= offset:
            return
        gate = threading.Lock()
        gate.acquire()
        try:
            if self._wait(gate, offset):
                self._lead(gate)
        except BaseException:  # also an interrupt while waiting: the others must not wait for us
            for _ in range(_PERSISTENCE):
                try:
                    self._leave(gate)
                    break
                except BaseException:  # interrupted again; this must be finished anyway
                    continue
            raise

    def _wait(self, gate: threading.Lock, offset: int) -> bool:
        """Wait until it is durable (False), or this thread must make it so (True)."""
        with self._mutex:
            if self.durable_offset >= offset:
                return False
            self.check()
            # If we are the leader ourselves, this is left from an interrupted call of ours.
            if self._leader is None or self._leader_thread == get_ident():
                self._leader, self._leader_thread = gate, get_ident()
                return True
            self._waiting.append((offset, gate))
        gate.acquire()
        with self._mutex:
            if self._leader is gate:
                self._leader_thread = get_ident()
        if self.durable_offset >= offset:
            self._leave(gate)  # we may have been chosen to lead, and served by another leader before we woke up
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
        """Wake up those that are served, and one more to lead, if there are more. What was reached counts unless the
        log was cut since."""
        with self._mutex:
            if self._led_at.pop(gate, -1) == self._retreats and reached > self.durable_offset:
                self._move(reached)
            if self._leader is not gate:
                return  # a torn write elsewhere has ended writing meanwhile, and has woken up everyone
            served = [each for each in self._waiting if each[0] <= self.durable_offset]
            still = [each for each in self._waiting if each[0] > self.durable_offset]
            self._leader, self._leader_thread = (still[0][1] if still else None), 0
            served += still[:1]
            self._waiting = still[1:]
        for _, woken in served:
            woken.release()

    def reached(self, offset: int) -> None:
        """Everything below `offset` was made durable elsewhere (by rotation)."""
        with self._mutex:
            if self.failure is None and offset > self.durable_offset:
                self._move(offset)

    def retreat(self, offset: int) -> None:
        """The log was cut: nothing from `offset` on exists any longer."""
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
        """End writing, permanently and for everyone."""
        with self._mutex:
            if self.failure is None:
                self.failure = error
            self._leader = None
            waiting, self._waiting = self._waiting, []
        for _, gate in waiting:
            gate.release()
