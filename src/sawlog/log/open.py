"""Opening a log: as its writer, as a reader, or as a reader that becomes the writer at its first write.

Opening for writing takes the lock, recovers and returns an `Appender`. Reading takes no lock and follows what another
process writes. A log opened with mode "a" switches between the two: `Access.writable` takes the lock, `Access.release`
releases it. In a forked child a writer becomes a reader.
"""

from __future__ import annotations

import errno
import pathlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from os import PathLike
from typing import TYPE_CHECKING

from .. import background
from ..addresses import refuse_address
from ..clock import Stopwatch
from ..config import LogConfig
from ..errors import CorruptFile, DirectoryLocked, InvalidConfig, LogClosed, LogNotFound, ReadOnlyLog, StorageError
from ..storage import Directory, FileDirectory
from ..storage.forking import forkable, notify_after_fork
from . import checkpoint
from .appender import Appender
from .catching_up import load_producers, replayed
from .checkpoint import Checkpoint, TurnNote
from .epochs import Epochs, store_epochs
from .files import CHECKPOINT, LOCK, PARTITION, STORE, TOPICS, VISIBLE, file_name, is_ours, segment_base
from .followed_segments import FollowedSegmentSet
from .lock import MAINTENANCE_NOTE, take_lock
from .producers import ProducerState
from .reader import Reader
from .recovery import recover
from .recovery_report import RecoveryReport
from .remote import RemoteSource
from .segments import SegmentSet
from .turns import IDLE_S, begin, record_end, take_turn, watch_turn

if TYPE_CHECKING:
    from ..storage import Lock
    from .async_appends import AsyncAppender
    from .durability import Tail

#: Polling interval for watchers of a log that another process writes.
_LOOK_S = 0.01
#: Time for which a process keeps the lock of a log that has failed.
_REST_S = 5.0
#: Maximum wait for a turn to close the log in.
_LAST_TURN_S = 1.0
#: Maximum time that ending a turn waits for an append of another thread.
_LOCK_TIMEOUT_S = 0.001

Path = str | PathLike[str] | Directory
#: Topic and partition that records carry.
TopicPartition = tuple[str | None, int]


def open_to_write(path: Path, config: LogConfig, place: TopicPartition, remote: RemoteSource | None = None) -> Access:
    """Open a log as its writer; created if missing."""
    with ExitStack() as undo:
        directory = _directory(path, undo, create=True)
        _refuse_store(directory)
        appender, report = become_writer(directory, config)
        undo.pop_all()
    return Access(directory, config, appender.segments, appender, report, place, remote=remote)


def open_to_read(
    path: Path,
    config: LogConfig,
    place: TopicPartition,
    *,
    locks_late: bool,
    turn_timeout_s: float | None = None,
    note: bytes = b"",
    remote: RemoteSource | None = None,
) -> Access:
    """Open a log as a reader. With `locks_late` it becomes the writer at its first write and leaves the note in the
    lock file. With `turn_timeout_s` it takes turns with other processes, and waits for so long."""
    with ExitStack() as undo:
        try:
            directory = _directory(path, undo, create=False)
        except OSError as error:
            reason = "no such directory" if error.errno == errno.ENOENT else error.strerror or str(error)
            raise LogNotFound(errno.ENOENT, f"no log in {path}: {reason}") from error
        _refuse_store(directory)
        segments = FollowedSegmentSet(directory, config)
        if not segments.all:
            raise LogNotFound(errno.ENOENT, f"no log in {directory.path}: the directory holds no segment")
        undo.pop_all()
    report = RecoveryReport()
    return Access(
        directory,
        config,
        segments,
        None,
        report,
        place,
        locks_late=locks_late,
        turn_timeout_s=turn_timeout_s,
        note=note,
        remote=remote,
    )


def create(path: Path, config: LogConfig, leader_epoch: int = 0) -> None:
    """Create an empty log durably, unless there is one, without opening it."""
    with ExitStack() as undo:
        directory = _directory(path, undo, create=True)
        _refuse_store(directory)
        if not any(segment_base(name) is not None for name in directory.names()):
            start = config.initial_offset
            directory.create(file_name(start)).close()
            epochs = Epochs()
            if leader_epoch:
                epochs = Epochs(((leader_epoch, start),))
                store_epochs(directory, epochs)
            checkpoint.store(directory, Checkpoint(True, start, start, 0, start, epochs.current, epochs.crc))


def become_writer(
    directory: Directory, config: LogConfig, note: bytes = b"", turn_timeout_s: float | None = None
) -> tuple[Appender, RecoveryReport]:
    """Take the lock, recover, and mark the checkpoint as in use."""
    with ExitStack() as undo:
        held = take_lock(directory, note) if turn_timeout_s is None else take_turn(directory, note, turn_timeout_s)
        undo.callback(held.release)
        in_order = begin(directory)
        turn = TurnNote.decode(held.found)
        found = recover(directory, config, known_end=0 if turn is None else turn.next_offset)
        segments = SegmentSet.of(directory, config, found.segments, found.lowest_offset, found.epochs, found.remote)
        appender = Appender(directory, config, segments, found.producers, held, lent=note == MAINTENANCE_NOTE)
        undo.callback(appender.durability.close)
        found.report._note_end(clean=in_order or found.report.clean)
        appender.lineage.take_over(clean=found.report.clean, in_order=found.epochs_in_order, stored=found.epochs_stored)
        appender.begin_turn(in_order=in_order)
        undo.pop_all()
    return appender, found.report


class _Patience(threading.local):
    """Limits, in this thread, how long turns are waited for."""

    seconds: float | None = None
    #: False in an event loop: not even for a moment, and no recovery.
    may_block = True

    @contextmanager
    def at_most(self, seconds: float, *, may_block: bool = True) -> Iterator[None]:
        """Wait for at most `seconds` within the block."""
        before = self.seconds, self.may_block
        self.seconds, self.may_block = seconds, may_block
        try:
            yield
        finally:
            self.seconds, self.may_block = before


_patience = _Patience()


def waiting_for(seconds: float | None) -> AbstractContextManager[None]:
    """Wait for turns within the block, in this thread, for at most so long; None: as long as appends do."""
    return nullcontext() if seconds is None else _patience.at_most(seconds)


def without_blocking() -> AbstractContextManager[None]:
    """Take a turn within the block, in this thread, only if that neither waits nor recovers; else `DirectoryLocked`."""
    return _patience.at_most(0.0, may_block=False)


def _nothing() -> None:
    """Called when a log is locked that has nothing to do then."""


class AsyncAppenders:
    """The `AsyncAppender` of each event loop that uses a log. asyncio is imported on first use."""

    def __init__(self) -> None:
        self._of: dict[int, AsyncAppender] = {}
        self._last: AsyncAppender | None = None

    def for_running_loop(self, appender: Appender) -> AsyncAppender:
        """Return the appender of the running loop; created if missing."""
        last = self._last
        if last is not None and last.loop is last.running_loop():
            return last
        return self._find(appender)

    def _find(self, appender: Appender) -> AsyncAppender:
        from .async_appends import AsyncAppender, running_loop

        loop = running_loop()
        found = self._of.get(id(loop))
        if found is None or found.loop is not loop:
            for number, gone in list(self._of.items()):
                if gone.loop.is_closed():
                    del self._of[number]
                    gone.close()
            found = self._of[id(loop)] = AsyncAppender(appender)
        self._last = found
        return found

    def all(self) -> list[AsyncAppender]:
        """Return the appenders of all loops."""
        return list(self._of.values())


class Access:
    """State of a log that a process has open. `Log` reads these fields; only this class changes them."""

    def __init__(
        self,
        directory: Directory,
        config: LogConfig,
        segments: SegmentSet,
        appender: Appender | None,
        report: RecoveryReport,
        place: TopicPartition = (None, -1),
        *,
        locks_late: bool = False,
        turn_timeout_s: float | None = None,
        note: bytes = b"",
        remote: RemoteSource | None = None,
    ) -> None:
        self.directory = directory
        self.config = config
        self.segments = segments
        #: None for a reader.
        self.appender = appender
        self.closed = False
        self._place = place
        #: Source of its replica.
        self.remote = remote
        self.reader = self._reader_of(segments)
        self.async_appenders = AsyncAppenders()
        self._watchers: tuple[Callable[[], None], ...] = ()
        #: Whether the log has ever been watched, and the task that polls it while other processes may write it. The
        #: task continues after the last watcher has stopped.
        self._is_watched = False
        self._looking: background.Task | None = None
        #: End and epoch at the last poll.
        self._seen: tuple[int, int] | None = None
        #: Report of the recovery when the log was opened.
        self.recovery = report
        self._locks_late = locks_late
        #: Maximum time to wait for a turn; None if the lock is kept until it is released.
        self.turn_timeout_s = turn_timeout_s
        #: The appender between two turns of this process.
        self.waiting: Appender | None = None
        #: The segments between two turns, as every reader sees them.
        self._followed: FollowedSegmentSet | None = None
        #: The end of the log when its turn was last looked at, and the time since that moved.
        self._turn_end = -1
        self._turn_moved = Stopwatch()
        #: Called when this process locks the log.
        self._on_lock: Callable[[], None] = _nothing
        #: Note for the lock file while the lock is held.
        self._note = note
        self._locking = forkable(threading.RLock())
        #: True if a fork copied this from a parent process that writes. It is then read-only.
        self._inherited = False
        if appender is not None:
            notify_after_fork(self)

    def _reader_of(self, segments: SegmentSet) -> Reader:
        return Reader(segments, self.config, lambda: not self.closed, self._place, self.remote)

    def after_fork(self) -> None:
        """Become a reader in a forked child: the parent continues to write, and its knowledge of the files becomes
        outdated here."""
        if (self.appender is None and self.waiting is None) or self.closed:
            return
        if self.waiting is not None:
            self.waiting.forget_turns()
        self._inherited, self.appender, self.waiting = True, None, None
        self.async_appenders = AsyncAppenders()
        self._watchers, self._is_watched, self._looking = (), False, None
        self._use(FollowedSegmentSet(self.directory, self.config, late=True))

    # --- who may do what

    def readable(self) -> Reader:
        """Return the reader; `LogClosed` if the log is closed."""
        if self.closed:
            raise LogClosed(f"the log {self.directory.path} is closed")
        return self.reader

    @property
    def _timeout_s(self) -> float | None:
        """Time to wait for a turn in this thread; None if this log takes no turns."""
        return self.turn_timeout_s if None in (self.turn_timeout_s, _patience.seconds) else _patience.seconds

    def writable(self, on_lock: Callable[[], None]) -> Appender:
        """Return the appender. Takes the lock if necessary and then calls `on_lock` before anything else is
        appended."""
        if self.closed:
            raise LogClosed(f"the log {self.directory.path} is closed")
        if self.appender is not None and not (self.appender.closed and self._locks_late):
            return self.appender
        waiting = self.waiting
        if waiting is not None:
            with waiting.lock:
                if waiting.parked:
                    self.rejoin(waiting)
            return self.writable(on_lock) if waiting.closed else waiting
        if self.appender is not None:  # another thread is releasing it, or an interrupt came during that
            with self._locking:
                if self.appender is not None and self.appender.closed:
                    self._become_reader()
        if self._inherited:
            raise LogClosed(
                f"the log {self.directory.path} was opened by the parent process, before the fork; open it again here"
            )
        if not self._locks_late:
            raise ReadOnlyLog(f'the log {self.directory.path} was opened with mode="r"')
        return self._become_writer(on_lock)

    def is_released(self, appender: Appender) -> bool:
        """Return whether another thread has released the lock of this appender, so that it can be taken again."""
        return appender.closed and self._locks_late and not self.closed

    def producers(self) -> ProducerState:
        """Return the producer state: the writer's, or one loaded from the files."""
        if self.appender is not None:
            return self.appender.producers
        segments = self.readable().segments
        segments.refresh()
        try:
            found = load_producers(self.directory, segments.epochs, segments.next_offset)
        except CorruptFile:
            found = None
        return replayed(segments.all, self.config.producer_expiry_ms, found, lowest=segments.lowest_offset)

    def _become_writer(self, on_lock: Callable[[], None]) -> Appender:
        with self._locking:
            if self.appender is not None:  # another thread was faster, or `on_lock` is the caller
                return self.appender
            self._on_lock = on_lock
            appender, self.recovery = become_writer(self.directory, self.config, self._note, self._timeout_s)
            with appender.lock:  # no other thread appends before `on_lock` returns
                try:
                    self._use(appender.segments)
                    self.appender = appender
                    self._look_if_needed()
                    notify_after_fork(self)
                    on_lock()
                    appender.begin()
                    if self.turn_timeout_s is not None:
                        appender.take_turns(self)
                        watch_turn(self)
                except BaseException:
                    try:
                        appender.close()
                    finally:
                        self._become_reader()
                    raise
            return appender

    def _become_reader(self) -> None:
        self.async_appenders = AsyncAppenders()
        before = self.segments
        self._use(FollowedSegmentSet(self.directory, self.config))
        self.appender = self.waiting = None
        self._look_if_needed()
        before.continue_in(self.segments)

    # --- turns

    def park(self, appender: Appender) -> None:
        """Read as every other process does, until the next turn."""
        before = self.segments
        if self._followed is None:
            self._followed = FollowedSegmentSet(self.directory, self.config, late=True)
        self.waiting = appender
        self._use(self._followed)
        self.appender = None
        self._look_if_needed()
        before.continue_in(self.segments)

    def rejoin(self, appender: Appender) -> None:
        """Wait for this process's turn and continue as the writer. The caller holds the appender's lock."""
        words = appender.durability.words
        timeout_s = self._timeout_s
        if self.closed or self._inherited or words is None or timeout_s is None:
            raise LogClosed(f"the log {self.directory.path} is closed, or was opened by the parent process")
        appender.held.release()  # an interrupt may have prevented it
        if not appender.can_rejoin(at_once=not _patience.may_block):
            raise DirectoryLocked(self.directory.path)
        held = take_turn(self.directory, self._note, timeout_s, words)
        try:
            visible = self.directory.identity(VISIBLE) == appender.durability.identity
            in_order = visible and words.is_in_order
            words.begin()
            if in_order and not (words.is_known(appender.durability.generation, appender.active.segment.base_offset)):
                in_order = words.await_syncs()
            if not (in_order and appender.continue_turn(held)):
                self._reopen(appender, held, words.end if in_order else None)
            self._resume(appender)
        except BaseException:
            held.release()  # the turn is unfinished: the next one recovers
            appender.abandon()
            self._become_reader()
            raise
        watch_turn(self)

    def _reopen(self, appender: Appender, held: Lock, end: Tail | None) -> None:
        """Read the files again: more has happened than appends. `end` is where the last turn ended in order."""
        in_order = end is not None and record_end(self.directory, end)
        found = recover(self.directory, self.config)
        found.report._note_end(clean=in_order or found.report.clean)
        appender.reopen(held, found, in_order=in_order)
        self.recovery = found.report
        self._resume(appender)
        if not in_order:
            self._on_lock()
        appender.begin()

    def _resume(self, appender: Appender) -> None:
        if self.appender is not appender:
            before = self.segments
            self._use(appender.segments)
            self.appender, self.waiting = appender, None
            self._look_if_needed()
            before.continue_in(self.segments)

    def look_at_turn(self) -> None:
        """End a turn that another process waits for, or in which nothing is appended. Runs in a background thread."""
        appender = self.appender
        if self.closed or appender is None:
            return
        if (end := appender.segments.next_offset) != self._turn_end:
            self._turn_end = end
            self._turn_moved.restart()
        words, idle_s = appender.durability.words, self._turn_moved.elapsed_s
        if appender.durability.failure is not None:
            if idle_s > _REST_S:
                self.release()
        elif words is None:  # other processes cannot say that they wait
            if idle_s >= IDLE_S and not self.is_busy:
                self.release()
        elif words.is_wanted or idle_s >= IDLE_S:
            self.end_turn()

    def end_turn(self) -> bool:
        """Give the lock to other processes until the next write, unless it is in use; return whether it was given."""
        appender = self.appender
        if appender is None or not appender.lock.acquire(timeout=_LOCK_TIMEOUT_S):
            return False
        try:
            return appender.end_turn()
        finally:
            appender.lock.release()

    def lend_to_maintenance(self) -> None:
        """Let other writers wait for the lock instead of being refused. Call before the first write."""
        self._note = MAINTENANCE_NOTE

    # --- watching

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """See `Log._watch`."""
        with self._locking:
            self._watchers = (*self._watchers, call)
            self.segments.on_change(self._moved)
            self._is_watched = True
            self._look_if_needed()

        def stop() -> None:
            with self._locking:
                self._watchers = tuple(each for each in self._watchers if each is not call)

        return stop

    def _look_if_needed(self) -> None:
        """Poll the log for its watchers, except in the writer, which notifies them. (With four partitions, polling
        without need woke two threads of a broker 400 times a second.)"""
        needed = self._is_watched and self.appender is None and not self.closed
        if needed and self._looking is None:
            self._looking = background.every(_LOOK_S, self._look)
        elif not needed and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _moved(self) -> None:
        for call in self._watchers:
            call()

    def _use(self, segments: SegmentSet) -> None:
        """Use these segments from now on."""
        segments.continue_here()
        self.segments = segments
        self.reader = self._reader_of(segments)
        if self._watchers:
            segments.on_change(self._moved)

    def _look(self) -> None:
        """Notify the watchers if another process has moved the end. Runs in a background thread."""
        if self.appender is not None or self.closed or not self._watchers:
            return
        segments, seen = self.segments, self._seen
        try:
            segments.refresh()
        except StorageError:
            return  # the next read raises the error
        self._seen = segments.position()
        if self._seen != seen:
            self._moved()

    # --- releasing and closing

    @property
    def is_locked(self) -> bool:
        """True if this process holds the writer's lock."""
        appender = self.appender
        return appender is not None and not self.closed and appender.held.held

    @property
    def is_busy(self) -> bool:
        """True if a writer, append or maintenance task is active that `release` would end."""
        appender = self.appender
        return appender is not None and (
            appender.is_busy or any(appends.is_busy for appends in self.async_appenders.all())
        )

    def release(self) -> None:
        """Release the writer's lock cleanly and keep reading."""
        with self._locking:
            if self.closed or self.appender is None:
                return  # between two turns, the lock is not held, and the log was left in order
            if not self._locks_late:
                raise InvalidConfig('only a log that was opened with mode="a" can release its lock and stay open')
            appender = self.appender
            with appender.lock:
                appender.refuse_in_stream()
            with ExitStack() as last:
                last.callback(self._become_reader)
                last.callback(appender.abandon)  # in case an interrupt prevents a clean close
                self._close_cleanly(appender, last)

    def close(self) -> None:
        """Flush open writers, sync, and mark the log as closed cleanly. Safe to call twice."""
        if self.closed:
            if self.appender is not None:
                self.appender.abandon()  # an interrupt may have prevented it in the first call
            return
        self._take_last_turn()
        appender = self.appender
        if appender is not None:
            with appender.lock:
                appender.refuse_in_stream()
        with ExitStack() as last:
            last.callback(self._release_all)
            if appender is not None:
                self._close_cleanly(appender, last)

    def _take_last_turn(self) -> None:
        """Take a turn to close the log cleanly. If that is not possible at once, it is enough that everything appended
        here is durable: another process is writing, or somebody has deleted the log or has to recover it."""
        appender = self.appender or self.waiting
        if appender is None or appender.owner is None:
            return
        words = appender.durability.words
        try:
            with waiting_for(_LAST_TURN_S), appender.lock:
                if appender.parked and words is not None and words.allows(appender.durability.generation):
                    self.rejoin(appender)
                if not appender.parked:
                    appender.take_turns(None)  # this turn lasts until the log is closed
        except (DirectoryLocked, StorageError):
            pass
        if appender.parked and appender.durability.failure is None:
            with suppress(DirectoryLocked), waiting_for(_LAST_TURN_S):
                appender.durability.ensure_durable(appender.durability.written[0])

    def _close_cleanly(self, appender: Appender, last: ExitStack) -> None:
        """Register the steps of a clean close: first the writers, then the appender. Each runs whatever the others
        raise."""
        last.callback(appender.close)
        for appends in self.async_appenders.all():
            last.callback(appends.close)
        for writer in list(appender.writers):
            last.callback(writer.close)

    def _release_all(self) -> None:
        """Release everything, even if an interrupt prevented the appender from closing cleanly."""
        self.closed = True
        self._look_if_needed()
        for appender in (self.appender, self.waiting):
            if appender is not None:
                appender.abandon()
        if self.appender is None:
            self.segments.close()
        if self._followed is not None:
            self._followed.close()
        self.segments.wake()
        self.directory.close()

    def remove(self, appender: Appender) -> None:
        """Close the log and delete it: all its files, and the directory if it contains nothing else."""
        directory = self.directory
        appender.maintenance_lock.end()
        with appender.lock:
            appender.check_open()
            for writer in list(appender.writers):
                writer.close()
            for name in (CHECKPOINT, VISIBLE):  # first: without segments these files would report data loss
                directory.remove(name)
            directory.sync()
            for name in directory.names():
                if is_ours(name) and name != LOCK:
                    directory.remove(name)
            directory.remove(LOCK)
            directory.sync()
            appender.abandon()
        self.closed = True
        directory.dispose()
        directory.close()


def _directory(path: Path, undo: ExitStack, *, create: bool) -> Directory:
    """Return the log's directory: the given one, or one opened at a path, which `undo` closes. Raises `InvalidConfig`
    for a URL and, with `create`, for a path inside a store that is not a partition."""
    if isinstance(path, (str, PathLike)):
        refuse_address(path, 'use sawlog.open("{address}"), which has topics; a single log is always in a directory')
        if create:
            _refuse_inside_store(path)
        made: Directory = FileDirectory(path, create=create)
        undo.callback(made.close)
    else:
        made = path
    return made


def _refuse_inside_store(path: str | PathLike[str]) -> None:
    """Refuse a directory among the topics of a store, unless it is an existing partition: a log there would look like
    a damaged topic."""
    place = pathlib.Path(path).resolve()
    for topics in (each for each in (place, *place.parents) if each.name == TOPICS):
        inside = place.relative_to(topics).parts
        is_partition = len(inside) == 2 and inside[1].startswith(PARTITION) and place.is_dir()
        if not is_partition and (topics.parent / STORE).is_file():
            store = str(topics.parent)
            raise InvalidConfig(
                f"{path} is inside the store {store}, which has topics, not logs: use sawlog.open({store!r}) and "
                "create_topic; of a store, only an existing partition (topics/TOPIC/partition-0) can be opened as a log"
            )


def _refuse_store(made: Directory) -> None:
    """Refuse the directory of a store: no topic would list a log created there."""
    if made.exists(STORE):
        raise InvalidConfig(
            f"{made.path} is a store of topics, not a log: use sawlog.open({made.path!r}), or open one partition of it "
            f"({made.path}/topics/TOPIC/partition-0)"
        )
