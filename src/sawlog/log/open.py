"""Opening a log: as its writer, as a reader, or as a reader that becomes the writer at its first write.

Opening for writing takes the lock, recovers and returns an `Appender`. Reading takes no lock and follows what another
process writes. A log opened with mode "a" switches between the two: `Access.writable` takes the lock, `Access.release`
releases it. In a forked child a writer becomes a reader.
"""

from __future__ import annotations

import errno
import pathlib
import threading
from collections.abc import Callable
from contextlib import ExitStack
from os import PathLike
from typing import TYPE_CHECKING

from .. import background
from ..addresses import refuse_address
from ..config import LogConfig
from ..errors import CorruptFile, InvalidConfig, LogClosed, LogNotFound, ReadOnlyLog, StorageError
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

if TYPE_CHECKING:
    from .async_appends import AsyncAppender

#: Polling interval for watchers of a log that another process writes.
_LOOK_S = 0.01

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
    note: bytes = b"",
    remote: RemoteSource | None = None,
) -> Access:
    """Open a log as a reader. With `locks_late` it becomes the writer at its first write and leaves the note in the
    lock file."""
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
    return Access(directory, config, segments, None, report, place, locks_late=locks_late, note=note, remote=remote)


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


def become_writer(directory: Directory, config: LogConfig, note: bytes = b"") -> tuple[Appender, RecoveryReport]:
    """Take the lock, recover, and mark the checkpoint as in use."""
    with ExitStack() as undo:
        held = take_lock(directory, note)
        undo.callback(held.release)
        turn = TurnNote.decode(held.found)
        found = recover(directory, config, known_end=0 if turn is None else turn.next_offset)
        segments = SegmentSet.of(directory, config, found.segments, found.lowest_offset, found.epochs, found.remote)
        appender = Appender(directory, config, segments, found.producers, held, lent=note == MAINTENANCE_NOTE)
        undo.callback(appender.durability.close)
        appender.lineage.take_over(clean=found.report.clean, in_order=found.epochs_in_order, stored=found.epochs_stored)
        undo.pop_all()
    return appender, found.report


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
        if self.appender is None or self.closed:
            return
        self._inherited, self.appender = True, None
        self.async_appenders = AsyncAppenders()
        self._watchers, self._is_watched, self._looking = (), False, None
        self._use(FollowedSegmentSet(self.directory, self.config, late=True))

    # --- who may do what

    def readable(self) -> Reader:
        """Return the reader; `LogClosed` if the log is closed."""
        if self.closed:
            raise LogClosed(f"the log {self.directory.path} is closed")
        return self.reader

    def writable(self, on_lock: Callable[[], None]) -> Appender:
        """Return the appender. Takes the lock if necessary and then calls `on_lock` before anything else is
        appended."""
        if self.closed:
            raise LogClosed(f"the log {self.directory.path} is closed")
        if self.appender is not None and not (self.appender.closed and self._locks_late):
            return self.appender
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
            appender, self.recovery = become_writer(self.directory, self.config, self._note)
            with appender.lock:  # no other thread appends before `on_lock` returns
                try:
                    self._use(appender.segments)
                    self.appender = appender
                    self._look_if_needed()
                    notify_after_fork(self)
                    on_lock()
                    appender.begin()
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
        self.appender = None
        self._look_if_needed()
        before.continue_in(self.segments)

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
                return
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
        if self.appender is not None:
            with self.appender.lock:
                self.appender.refuse_in_stream()
        with ExitStack() as last:
            last.callback(self._release_all)
            if self.appender is not None:
                self._close_cleanly(self.appender, last)

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
        if self.appender is not None:
            self.appender.abandon()
        else:
            self.segments.close()
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
