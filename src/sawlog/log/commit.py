"""Telling somebody, instead of letting them wait, that what they appended is as durable as the policy promises.

An event loop places batches and goes on; a background thread makes what is placed durable, with one fdatasync for all
that came meanwhile, and calls back. Those who append in the ordinary way share these syncs (see commit.py).

The visible end: the first offset that may not be read yet.

A record is visible when it can no longer be lost as the policy defines it: under `"always"` when it is durable, under
the other policies when it is written; and not before the whole append that it belongs to is placed, because until then
it may be rolled back. All readers stop there: in the writer's process, which keeps it in `SegmentSet.visible_offset`,
and in others, which learn it, with the leader epoch, from a small file (`visible`, see `sawlog.storage.published`):

    the file contains                        a reader in another process sees
    an offset, since the machine started     everything below it, also after the writer was killed
    nothing, or it is missing or damaged     every complete batch: after a restart of the machine nothing can
                                             be lost any longer; logs of version 0.2 have no such file

The writer publishes; readers never write. What it publishes only decreases before a truncation.

Threads: `show` is called by one thread at a time; the caller ensures that (see `Appender`).

Group commit: all callers that wait for the disk share one fdatasync.

The first that needs a sync becomes the leader and does it; those that come while it runs wait. When it is done, those
whose bytes it covered return, and one of the others leads the next round. Each waiter has its own lock to sleep on:
waking all of them through one condition was measured at half the speed.

What is durable only decreases when the log is cut (`retreat`). A leader whose sync had begun before that knows an end
that no longer exists, and must not announce it: new records at those offsets are not synced.

A failed sync is never retried: the kernel may have dropped the pages and would report success. It ends writing
permanently; all current and later callers get the error.

The ends of a log: durable, visible, written.

    durable_offset <= visible_offset <= written_offset <= next_offset

Each end is a *tail*: (offset, base offset of the segment, position in its file).

    written    the end of the last complete append
    synced     the end of what is synced, complete appends or not
    durable    the end of the last complete append that is synced: the checkpoint's watermark

What is visible follows what is durable under "always", else what is written; readers learn the visible end together
with the leader epoch, atomically (see visible.py).

Threads: everything is called with the log's lock or, where only `synced` and `durable` move, with that of the active
segment (see active.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

from .. import background
from ..batch import kernel
from ..clock import give_way
from ..errors import LogFailed, SawlogError, SyncFailed
from ..storage import Directory, Published, open_published
from ..storage.forking import forkable
from .files import VISIBLE
from .segments import SegmentSet

#: Called with None, or with the error that ended writing.
Call = Callable[[BaseException | None], None]


class Settling:
    """Who waits to be told."""

    def __init__(self, commit: GroupCommit, waits: Callable[[], bool]) -> None:
        self._commit = commit
        #: Whether the policy has an append wait for the disk now.
        self._waits = waits
        self._lock = forkable(threading.Lock())
        self._pending: list[tuple[int, Call]] = []
        self._serving = False

    def when(self, offset: int, call: Call) -> None:
        """Call back when an append that ended at `offset` may be acknowledged: at once, in this thread, if there is
        nothing to wait for; else from a background thread. The callback must not raise, and should not wait."""
        if self._commit.failure is None and (self._commit.durable_offset >= offset or not self._waits()):
            call(None)
            return
        with self._lock:
            self._pending.append((offset, call))
            serving, self._serving = self._serving, True
        if not serving:
            background.soon(self._serve)

    def _serve(self) -> None:
        while True:
            with self._lock:
                pending, self._pending = self._pending, []
                if not pending:
                    self._serving = False
                    return
            error: BaseException | None = None
            try:
                self._commit.ensure(max(offset for offset, _ in pending))
            except (SawlogError, OSError) as failure:
                error = failure
            for _, call in pending:
                call(error)


class VisibleEnd(kernel.VisibleFields):
    """The writer's side: everything below it may be read."""

    __slots__ = ("_published", "_segments", "_store", "before")
    #: Where it is published, if that is a mapped file.
    slots: kernel.Slots | None

    def __init__(self, directory: Directory, segments: SegmentSet) -> None:
        self._segments = segments
        self._published: Published | None = open_published(directory, VISIBLE, create=True)
        self._store = _nowhere if self._published is None else self._published.store
        self.slots = getattr(self._published, "slots", None)
        #: What was published before this writer came; None: readers see every complete batch.
        self.before = None if self._published is None else self._published.load()

    @property
    def offset(self) -> int:
        """What is currently published."""
        return self._segments.visible_offset

    def show(self, offset: int, epoch: int) -> None:
        """Let all readers read up to `offset`, and know the epoch."""
        segments = self._segments
        segments.visible_offset = offset
        self._store(offset, epoch)
        if segments.waiting:
            segments.wake()

    def close(self) -> None:
        """Close the handle; what is published is kept."""
        self._store, self.slots = _nowhere, None
        if self._published is not None:
            self._published.close()


def _nowhere(first: int, second: int) -> None:
    """Where nothing can be published, readers in other processes trust every complete batch."""


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


#: How often the ends are read again before they are considered out of order.
_LOOKS = 10_000
#: (offset, base offset of the segment, position in its file)
Tail = tuple[int, int, int]


class Marks(kernel.MarksFields):
    """The three ends of a log, the visible one, and the leader epoch that batches get."""

    __slots__ = ("_show", "commit", "durable", "shows_written", "visible")
    written: Tail
    synced: Tail
    epoch: int

    def __init__(
        self, visible: VisibleEnd, tail: Tail, epoch: int, *, shows_written: bool, sync: Callable[[], int]
    ) -> None:
        self.visible = visible
        self._show = visible.show
        self.epoch = epoch
        #: Whether what is written is visible; else what is durable is.
        self.shows_written = shows_written
        self.written = self.synced = self.durable = tail
        self.commit = GroupCommit(sync, tail[0], self._check if shows_written else self.show)

    def checked(self, segments: SegmentSet) -> tuple[int, int, int, int]:
        """(durable, visible, written, next). Other threads move them concurrently; but if they are out of order on
        every look, something is wrong."""
        for _ in range(_LOOKS):
            ends = self.commit.durable_offset, segments.visible_offset, self.written[0], segments.next_offset
            if ends[0] <= ends[1] <= ends[2] <= ends[3]:
                return ends
            give_way()
        path = segments.directory.path
        raise AssertionError(f"durable, visible, written and next offset of {path} are out of order: {ends}")

    def _check(self, offset: int) -> None:
        """What is durable has moved, and the policy shows what is written."""
        assert offset <= self.written[0], f"{offset} is durable, but only {self.written[0]} is written"

    def show(self, offset: int) -> None:
        """Make everything below this visible."""
        self._check(offset)
        self._show(offset, self.epoch)

    def show_all(self) -> None:
        """Make visible what the policy says; after an interrupt that may have come before it."""
        self.show(self.written[0] if self.shows_written else self.commit.durable_offset)

    def append(self, tail: Tail) -> None:
        """One append that was written in one go ends there."""
        self.written = tail
        if self.shows_written:
            self._show(tail[0], self.epoch)

    def complete(self, tail: Tail) -> None:
        """A complete append ends there, parts of which may already have been synced."""
        self.append(tail)
        if self.synced[0] >= tail[0]:  # it was synced before it was complete
            self.durable = tail
            self.commit.reached(tail[0])
        elif self.shows_written and self.synced > self.durable:  # some of it was, by a rotation
            self.durable = self.synced
            self.commit.reached(self.synced[0])

    def sync(self, written: Tail, tail: Tail) -> None:
        """The file was synced: `written` and `tail` are the ends when that began."""
        self.durable, self.synced = written, tail

    def go_on(self, tail: Tail) -> None:
        """The same offset is now the beginning of the next segment, and durable."""
        self.synced = tail
        if self.written[0] == tail[0]:
            self.written = self.durable = tail

    def begin_epoch(self, epoch: int) -> None:
        """From now on batches get this epoch; readers learn it when the visible end is next shown."""
        self.epoch = epoch

    def lower(self, tail: Tail) -> Tail:
        """Nothing after `tail` counts as durable; returns what did before, for `restore`."""
        before = self.durable
        self.durable = min(tail, before)
        return before

    def restore(self, durable: Tail) -> None:
        """The log is not cut after all."""
        self.durable = durable

    def cut(self, tail: Tail, epoch: int) -> None:
        """Nothing from there on is durable, visible or written, and a leader epoch begins."""
        self.epoch = epoch
        self.commit.retreat(tail[0])
        self.written, self.synced = min(self.written, tail), min(self.synced, tail)
        if self.visible.offset > tail[0]:
            self._show(tail[0], epoch)

    def resume(self, tail: Tail, *, within_append: bool) -> None:
        """Everything is durable, and complete except for what an append in progress has placed."""
        self.synced = tail
        self.written = min(self.written, tail) if within_append else tail
        self.durable = self.written
        self.commit.reached(self.written[0])
        if not within_append and self.commit.failure is None:
            self.show(self.written[0])
