"""Durability and visibility of a log: group commit, watermarks, and the callbacks of appends that do not block.

    durable_offset <= visible_offset <= written_offset <= next_offset

`Durability` holds the ends of a log. Each end is a *tail*: (offset, base offset of the segment, position in its file).

    written    end of the last complete append
    synced     end of the synced bytes, including parts of an incomplete append
    durable    end of the last complete append that is synced: the watermark in the checkpoint

A record becomes visible when the durability policy no longer allows it to be lost: under `"always"` when it is durable,
under the other policies when it is written, and never before the whole append that contains it is placed, because until
then it may be rolled back. Every reader stops at the visible offset. Readers in the writer's process take it from
`SegmentSet.visible_offset`; readers in other processes take it, atomically with the leader epoch, from a small file
(`visible`, see `sawlog.storage.published`):

    contents of the file                     records visible to a reader in another process
    an offset, written since the last boot   all records below it, even if the writer was killed
    nothing, missing or damaged              every complete batch: after a reboot nothing more can be lost

Only writers publish. Several processes that write (turns.py) sync side by side: each publishes what it has synced, and
the largest offset counts. The published offset decreases only before a truncation.

**Group commit.** All callers that wait for the disk share one fdatasync. The first caller that needs a sync becomes
the leader and runs it; callers that arrive meanwhile block. When the sync returns, the leader wakes every caller it
covered and one of the others, which leads the next round. Each waiter blocks on its own lock: waking all of them
through one condition variable ran at half the speed.

**A failed sync is final.** It is never retried, because the kernel may have dropped the dirty pages and would then
report success. It stops writing permanently; all current and later callers get the error.

**Truncation** is the only change that lowers the durable offset. A leader whose sync began before the truncation must
not publish the offset it reached: new records at those offsets are not synced.

`DurabilityCallbacks` serves event loops, which place batches without blocking. A background thread syncs and then calls
back; it shares its syncs with blocking appends.

Threads: callers hold the log's lock or, where only `synced` and `durable` change, the lock of the active segment (see
active_segment.py). Visible offsets are published by one thread at a time: under the mutex if durable records are
visible, otherwise under the log's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident

from .. import background
from ..batch import kernel
from ..clock import yield_thread
from ..errors import DirectoryLocked, LogFailed, SawlogError, SyncFailed
from ..storage import Directory, open_published
from ..storage.forking import forkable
from .files import VISIBLE
from .segments import SegmentSet
from .turns import TurnWords

#: Called with None, or with the error that stopped writing.
DurabilityCallback = Callable[[BaseException | None], None]


#: Attempts to finish a cleanup that is interrupted again and again.
_CLEANUP_ATTEMPTS = 10
#: Attempts to read the ends in order before they count as inconsistent.
_READ_ATTEMPTS = 10_000
#: Maximum wait for a process that is stopped while it publishes.
_EXCLUSIVE_S = 30.0
#: (offset, base offset of the segment, position in its file)
Tail = tuple[int, int, int]


class Durability(kernel.DurabilityFields):
    """Written, visible and durable end of a log; makes more of it durable on request."""

    __slots__ = (
        "_leader",
        "_leader_thread",
        "_led_after",
        "_losses",
        "_mutex",
        "_published",
        "_sync",
        "_truncations",
        "_waiting",
        "durable",
        "durable_offset",
        "generation",
        "identity",
        "in_turn",
        "is_shared",
        "previous",
        "words",
    )
    written: Tail
    synced: Tail
    #: Leader epoch of new batches.
    epoch: int
    #: The error that stopped writing.
    failure: BaseException | None
    #: True if records become visible when they are written; otherwise when they are durable.
    publishes_written: bool
    _segments: SegmentSet

    def __init__(
        self,
        directory: Directory,
        segments: SegmentSet,
        tail: Tail,
        sync: Callable[[], int],
        *,
        publishes_written: bool,
    ) -> None:
        self._segments = segments
        self.epoch = segments.epochs.current
        self.publishes_written = publishes_written
        self.written = self.synced = self.durable = tail
        self.durable_offset = tail[0]
        self.failure = None
        #: Syncs all written bytes and returns the end of the complete appends among them.
        self._sync = sync
        self._mutex = forkable(threading.Lock())
        #: Number of truncations; and, by the gate of each leader, that number when its sync began.
        self._truncations = 0
        self._led_after: dict[threading.Lock, int] = {}
        #: Number of times that other processes have lost records that were written and not durable.
        self._losses = 0
        #: Gate of the leader that is syncing, or has been woken to sync.
        self._leader: threading.Lock | None = None
        self._leader_thread = 0
        self._waiting: list[tuple[int, threading.Lock]] = []
        #: True if other processes take turns with this one. Then each of them syncs and publishes.
        self.is_shared = False
        #: True if no other process may append.
        self.in_turn = True
        #: Generation of the log that this process knows (see turns.py).
        self.generation = 0
        self.open_published(directory)

    def open_published(self, directory: Directory) -> None:
        """Open the published file, which another process may have removed."""
        self._published = found = open_published(directory, VISIBLE, create=True)
        #: Identity of the file when it was opened.
        self.identity = directory.identity(VISIBLE)
        self._store = _discard if found is None else found.store
        self._slots = getattr(found, "slots", None)
        #: Words that processes share which take turns; None if they cannot.
        self.words = None if found is None or found.words is None else TurnWords(found.words)
        #: Offset and epoch published by the previous writer; None if readers see every complete batch.
        self.previous = None if found is None else found.load()

    def sync_with(self, sync: Callable[[], int]) -> None:
        """Sync by this call from now on."""
        self._sync = sync

    def leave_turn(self) -> None:
        """Other processes may append from now on."""
        self.in_turn = False

    def enter_turn(self) -> None:
        """No other process may append from now on."""
        self.in_turn = True
        self.learn()

    def share(self) -> None:
        """Publish together with other processes from now on."""
        self.is_shared = True
        if not self.publishes_written:
            self._segments.learn_by(self.learn)

    def close(self, *, last: bool = True) -> None:
        """Close the published file. The published offset stays valid. `last`: this process has published it."""
        self._store, self._slots, self.words = _discard, None, None
        self._segments.learn_by(None)
        if self._published is not None:
            self._published.close(last=last)

    # --- the ends

    def consistent_ends(self) -> tuple[int, int, int, int]:
        """Return the durable, visible, written and next offset, in increasing order. Other threads move them, so a
        single read may find them out of order; if every attempt does, an invariant is broken."""
        segments = self._segments
        for _ in range(_READ_ATTEMPTS):
            ends = self.durable_offset, segments.visible_offset, self.written[0], segments.next_offset
            if ends[0] <= ends[1] <= ends[2] <= ends[3]:
                return ends
            yield_thread()
        path = segments.directory.path
        raise AssertionError(f"durable, visible, written and next offset of {path} are out of order: {ends}")

    def _check(self, offset: int) -> None:
        assert offset <= self.written[0], f"{offset} is durable or visible, but only {self.written[0]} is written"

    def publish(self, offset: int) -> None:
        """Make the records below `offset` visible."""
        self._check(offset)
        self._show(offset)

    def _show(self, offset: int, *, lower: bool = False) -> None:
        """Make the records below `offset` visible. Of several processes that publish what they have synced, the largest
        end counts, unless this one is to `lower` it."""
        words, published = self.words, self._published
        if not self.is_shared or self.publishes_written or words is None or published is None:
            self._publish(offset)
            return
        with published.exclusive(_EXCLUSIVE_S):
            if words.generation != self.generation:
                return  # what this process has synced has been truncated or recovered
            end, epoch = published.load() or (offset, self.epoch)
            if lower or end <= offset or epoch != self.epoch or (self.in_turn and end > self.written[0]):
                self._publish(offset)
            else:
                self._segments.set_visible(min(end, self.written[0]))

    def learn(self) -> None:
        """Learn what other processes have made durable."""
        words, published = self.words, self._published
        if not self.is_shared or self.publishes_written or words is None or published is None:
            return
        offset, epoch = published.load() or (0, 0)
        # A generation begins before its ends are published, so this end is of this generation. An older file with an
        # end that was truncated has another epoch.
        if offset <= self.durable_offset or epoch != self.epoch or words.generation != self.generation:
            return
        with self._mutex:
            if not self.in_turn:
                offset = min(offset, self.written[0])
            if self.durable_offset < offset <= self.written[0]:
                self._segments.set_visible(offset)
                self.durable_offset = offset
                if self._segments.waiting:
                    self._segments.wake()

    def sync_among_others(self, sync: Callable[[], int]) -> int:
        """Run this sync while other processes may append and sync; return the end that it has reached, or -1 if the log
        has been truncated, recovered, or has to be recovered."""
        words, published = self.words, self._published
        assert words is not None
        assert published is not None
        with published.exclusive(_EXCLUSIVE_S):
            begun = words.begin_sync(self.generation)
        if begun is None:
            return -1
        generation, failed = self.generation, True
        try:
            reached = sync()
            failed = False
        finally:
            with published.exclusive(_EXCLUSIVE_S):
                words.end_sync(begun, failed=failed)
        return reached if words.allows_sync(generation) else -1

    def begin_generation(self, *, recovered: bool = False) -> None:
        """Tell other processes that they know another log: before its ends are lowered."""
        words, published = self.words, self._published
        if words is None or published is None:
            return
        with published.exclusive(_EXCLUSIVE_S):
            words.recovered() if recovered else words.next_generation()
        self.know_generation()

    def know_generation(self) -> None:
        """Record that this process knows the log as it is now."""
        if self.words is not None:
            self.generation = self.words.generation

    def publish_current(self) -> None:
        """Publish the offset that the policy makes visible."""
        self.publish(self.written[0] if self.publishes_written else self.durable_offset)

    def complete(self, tail: Tail) -> None:
        """Record the end of a complete append, parts of which may already be synced."""
        self.advance(tail)
        if self.synced[0] >= tail[0]:  # it was synced before it was complete
            self.durable = tail
            self.mark_durable(tail[0])
        elif self.publishes_written and self.synced > self.durable:  # a rotation synced a part of it
            self.durable = self.synced
            self.mark_durable(self.synced[0])

    def mark_synced(self, written: Tail, tail: Tail) -> None:
        """Record a sync. `written` and `tail` are the ends from before it began."""
        self.durable, self.synced = written, tail

    def start_segment(self, tail: Tail) -> None:
        """Continue at the start of the next segment; everything before it is durable."""
        self.synced = tail
        if self.written[0] == tail[0]:
            self.written = self.durable = tail

    def begin_epoch(self, epoch: int) -> None:
        """Give new batches this epoch. Readers learn it with the next published offset."""
        self.epoch = epoch

    def lower_durable(self, tail: Tail) -> Tail:
        """Lower the durable end to `tail` before a truncation; return the old one for `restore_durable`."""
        before = self.durable
        self.durable = min(tail, before)
        return before

    def restore_durable(self, durable: Tail) -> None:
        """Undo `lower_durable`: the log is not truncated after all."""
        self.durable = durable

    def truncate(self, tail: Tail, epoch: int) -> None:
        """Lower every end to `tail` and begin a leader epoch."""
        self.epoch = epoch
        self._truncate(tail[0])
        self.written, self.synced = min(self.written, tail), min(self.synced, tail)
        if self._segments.visible_offset > tail[0]:
            self._show(tail[0], lower=True)

    def resume(self, tail: Tail, *, within_append: bool) -> None:
        """Continue at `tail`, with everything durable. Parts of an append in progress do not count as written."""
        self.synced = tail
        self.written = min(self.written, tail) if within_append else tail
        self.durable = self.written
        self.mark_durable(self.written[0])
        if not within_append and self.failure is None:
            self.publish(self.written[0])

    def catch_up(self, tail: Tail) -> None:
        """Continue at the end to which other processes have appended. Everything below its segment is durable; if they
        sync within their turns, everything is."""
        if not self.is_shared and not self.publishes_written:
            self.resume(tail, within_append=False)
            return
        self.advance(tail)
        if self.synced[1] != tail[1]:
            self.synced = self.durable = tail[1], tail[1], 0
            self.mark_durable(tail[1])

    def restart(self, tail: Tail, epoch: int, *, recovered: bool) -> None:
        """Continue with a log that was opened again, at an end up to which it is durable. `recovered`: another process
        has left it unfinished, so records above that end are lost and not truncated."""
        with self._mutex:
            self.in_turn = True
            self._truncations += 1
            self._losses += recovered and tail[0] < self.written[0]
            self.epoch = epoch
            self.written = self.synced = self.durable = tail
            self.durable_offset = tail[0]

    # --- group commit

    @contextmanager
    def failing_on_sync_error(self) -> Iterator[None]:
        """Stop writing if the block raises `SyncFailed`, for any file: the disk may have lost other writes too."""
        try:
            yield
        except SyncFailed as error:
            self.fail(error)
            raise

    def ensure_durable(self, offset: int) -> None:
        """Block until every record below `offset` is durable. Raises if writing has failed."""
        if self.durable_offset < offset:
            self.learn()
        if self.durable_offset >= offset:
            return
        losses = self._losses
        gate = threading.Lock()
        gate.acquire()
        try:
            if self._wait(gate, offset):
                self._lead(gate)
        except BaseException:  # including an interrupt while waiting: other threads must not wait for this one
            for _ in range(_CLEANUP_ATTEMPTS):
                try:
                    self._leave(gate)
                    break
                except BaseException:  # interrupted again: the cleanup must still finish
                    continue
            raise
        if self._losses != losses:
            raise LogFailed("another process could not sync the log, and records that were not durable are lost")

    def _wait(self, gate: threading.Lock, offset: int) -> bool:
        """Block until `offset` is durable (returns False) or this thread has to lead the next sync (returns True)."""
        with self._mutex:
            if self.durable_offset >= offset:
                return False
            self.check()
            # A leader with our thread id is left over from an interrupted call of this thread.
            if self._leader is None or self._leader_thread == get_ident():
                self._leader, self._leader_thread = gate, get_ident()
                return True
            self._waiting.append((offset, gate))
        gate.acquire()
        with self._mutex:
            if self._leader is gate:
                self._leader_thread = get_ident()
        if self.durable_offset >= offset:
            self._leave(gate)  # chosen to lead, but another leader has synced this offset since
            return False
        self.check()
        return True

    def _leave(self, gate: threading.Lock) -> None:
        with self._mutex:
            self._waiting = [each for each in self._waiting if each[1] is not gate]
        self._hand_over(-1, gate)

    def check(self) -> None:
        """Raise `LogFailed` if an earlier failure stopped writing."""
        if self.failure is not None:
            raise LogFailed(
                f"writing stopped after an earlier failure ({str(self.failure) or type(self.failure).__name__}); "
                "reading still works; reopen the log to recover"
            ) from self.failure

    def _lead(self, gate: threading.Lock) -> None:
        self._led_after[gate] = self._truncations
        try:
            reached = self._sync()
        except DirectoryLocked:
            raise  # it was not this process's turn: nothing was synced
        except (SawlogError, OSError) as error:  # an exception from a signal handler is not a failed sync
            self.fail(error)
            raise
        self._hand_over(reached, gate)

    def _hand_over(self, reached: int, gate: threading.Lock) -> None:
        """Wake the waiters whose offsets are durable, and one more to lead the next sync. `reached` is ignored if the
        log was truncated after the sync began."""
        with self._mutex:
            if self._led_after.pop(gate, -1) == self._truncations and reached > self.durable_offset:
                self._move(reached)
            if self._leader is not gate:
                return  # a torn write stopped writing meanwhile and woke all waiters
            served = [each for each in self._waiting if each[0] <= self.durable_offset]
            still = [each for each in self._waiting if each[0] > self.durable_offset]
            self._leader, self._leader_thread = (still[0][1] if still else None), 0
            served += still[:1]
            self._waiting = still[1:]
        for _, woken in served:
            woken.release()

    def mark_durable(self, offset: int) -> None:
        """Record that everything below `offset` was synced elsewhere, such as by a rotation."""
        with self._mutex:
            if self.failure is None and offset > self.durable_offset:
                self._move(offset)

    def _truncate(self, offset: int) -> None:
        with self._mutex:
            self._truncations += 1
            if offset < self.durable_offset:
                self._move(offset)

    def _move(self, offset: int) -> None:
        """Set the durable offset. An interrupt between the lines costs another sync but hides no durable record."""
        self.durable_offset = min(self.durable_offset, offset)
        if self.publishes_written:
            self._check(offset)
        else:
            self.publish(offset)
        self.durable_offset = offset

    def fail(self, error: BaseException) -> None:
        """Stop writing permanently and wake all waiters, which raise."""
        with self._mutex:
            if self.failure is None:
                self.failure = error
            if self.words is not None:
                self.words.fail()
            self._leader = None
            waiting, self._waiting = self._waiting, []
        for _, gate in waiting:
            gate.release()


def _discard(first: int, second: int) -> None:
    """Publish nothing: readers in other processes then see every complete batch."""


class DurabilityCallbacks:
    """Callbacks of appends that are not durable yet."""

    def __init__(self, durability: Durability, waits: Callable[[], bool]) -> None:
        self._durability = durability
        #: Returns whether the policy requires an append to wait for the disk now.
        self._waits = waits
        self._lock = forkable(threading.Lock())
        self._pending: list[tuple[int, DurabilityCallback]] = []
        self._serving = False

    def when(self, offset: int, call: DurabilityCallback) -> None:
        """Call back when an append that ended at `offset` may be acknowledged: immediately, in this thread, if the
        policy does not wait for the disk; otherwise from a background thread. The callback must not raise and should
        not block."""
        if self._durability.failure is None and (self._durability.durable_offset >= offset or not self._waits()):
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
                self._durability.ensure_durable(max(offset for offset, _ in pending))
            except (SawlogError, OSError) as failure:
                error = failure
            for _, call in pending:
                call(error)
