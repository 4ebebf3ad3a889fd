"""`Engine`: what topics, transactions and servers need of a log, and those who append and read do not: its lock and who
wants it, placing without waiting for the disk, files that become segments, and cursors.

`log.engine` is one; it has no state of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ..batch import kernel
from ..batch.given import GivenRecord
from ..batch.header import Rows
from ..isolation import Isolation, is_committed
from ..storage import Directory
from .access import Access
from .files.locking import is_wanted, note_in, want
from .read.remote import RemoteLog, RemoteSource
from .segment.segments import SegmentSet
from .write import adopting, incoming, keeping
from .write.adopting import Numbered
from .write.appender import Appender


class Engine:
    """The inside of one log. Every method may be called from any thread."""

    __slots__ = ("_access", "_writable")

    def __init__(self, access: Access, writable: Callable[[], Appender]) -> None:
        self._access = access
        #: Takes the lock if necessary.
        self._writable = writable

    # --- the lock

    def release(self) -> None:
        """Release the writer's lock cleanly and keep reading; the next write takes it again. Open writers of this log
        are closed. Only for a log that was opened with mode "a"."""
        self._access.release()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Prevent others from appending, truncating or trimming while this is held; the holder may. Takes the lock if
        necessary. For a short time, and not around upkeep: `compact` and similar calls refuse to run inside."""
        appender = self._writable()
        with appender.lock:
            appender.check_open()
            yield

    def take(self) -> None:
        """Take the lock, if it is not held; `DirectoryLocked` if another process holds it."""
        with self.hold():
            pass

    def lend_to_upkeep(self) -> None:
        """Before the first write of a log that was opened with mode "a": other writers wait until this one is released
        or closed, instead of being refused. For work that ends soon."""
        self._access.lend_to_upkeep()

    @property
    def lock_note(self) -> bytes:
        """What the process that holds the writer's lock, or held it last, has left in the lock's file for others."""
        return note_in(self._access.directory)

    def leave_note(self, note: bytes) -> None:
        """Replace the note in the lock's file. It is for information: if it cannot be written, the old one may stay."""
        self._writable().held.leave(note)

    @property
    def wanted(self) -> bool:
        """Whether a writer waits for the lock."""
        return is_wanted(self._access.directory)

    def want_lock(self) -> None:
        """Ask the process that holds the writer's lock to release it: upkeep does so, and a store whose topics have
        locked it."""
        want(self._access.directory)

    @property
    def is_busy(self) -> bool:
        """Whether this process should keep the writer's lock for now: a writer is open, an append or upkeep runs."""
        return self._access.is_busy

    @property
    def is_free(self) -> bool:
        """Whether no other thread is appending at this moment: a stream can take long."""
        appender = self._access.appender
        return appender is None or appender.is_free

    @property
    def held_lock(self) -> object | None:
        """The writer's lock, if this process holds it: another object each time it is taken."""
        return self._access.appender.held if self._access.appender is not None and self._access.is_locked else None

    def end_upkeep(self) -> None:
        """Stop upkeep that is running in another thread (it raises `LogClosed` there)."""
        if self._access.appender is not None:
            self._access.appender.upkeep.cancel()

    def fail(self, error: BaseException) -> None:
        """End writing because of an external failure: appends raise `LogFailed`, reads still work."""
        self._writable().commit.fail(error)

    @property
    def segment_set(self) -> SegmentSet:
        """The current segments, for code of this package that plans how to read them."""
        self._access.readable().segments.refresh()
        return self._access.segments

    @property
    def remote(self) -> RemoteSource | None:
        """Where its replica is found; None if nobody has said that."""
        return self._access.remote

    def replica(self) -> RemoteLog:
        """The same log in its replica, which has what is below `Log.local_offset`."""
        return self._access.readable().replica()

    # --- placing

    def place_many(self, records: Iterable[GivenRecord], expect_offset: int | None = None) -> range:
        """As `append_many`, without waiting for the disk: see `when_settled`."""
        return (self._access.appender or self._writable()).place_many(records, expect_offset)

    def place_batches(
        self,
        raw: bytearray | memoryview,
        *,
        trusted: bool = True,
        wait: bool = True,
        expect_offset: int | None = None,
        max_decompressed_bytes: int | None = None,
    ) -> range:
        """As `append_batches`, for a buffer that the caller no longer uses. For the check, `max_decompressed_bytes` can
        be a lower limit than the log's."""
        appender = self._access.appender or self._writable()
        placed = incoming.place(appender, memoryview(raw), trusted, expect_offset, max_decompressed_bytes)
        if wait:
            appender.settle(placed.stop)
        return placed

    def check_batches(self, raw: bytes | bytearray | memoryview) -> None:
        """Raise what `place_batches` would raise because of the batches themselves: structure, checksums, and whether
        each fits into a segment."""
        self._writable().check_sizes(incoming.checked_rows(memoryview(raw)))

    def number_file(self, directory: Directory, name: str, offset: int) -> Numbered | None:
        """Give finished batches in a file elsewhere the offsets from `offset` on; then `sync` what is returned, which
        any thread may do, and `adopt_file`. None if the file cannot become a segment of this log. The caller holds the
        log: nobody may append meanwhile."""
        return adopting.number(self._writable(), directory, name, offset)

    def check_file(self, directory: Directory, name: str) -> int:
        """The number of offsets of the finished batches in a file; raises what would prevent them from being placed, as
        far as their headers show it."""
        return adopting.check(self._writable(), directory, name)

    def adopt_file(self, file: Numbered) -> range | None:
        """Make a numbered file the next segment, without copying it, and return its offsets. It keeps its other name,
        and nobody may change it. None if the disk gives no file a second name. Within `appending`, or alone."""
        return adopting.adopt(self._writable(), file)

    def copy_batches(self, data: memoryview, rows: Rows) -> range:
        """As `Log.append_kept` without waiting for the disk, for batches of another log whose checksums were verified;
        also those that are larger than a segment of this log should be."""
        return keeping.place_kept(self._writable(), data, rows, any_size=True)

    def retract_epochs(self, epoch: int) -> None:
        """For a log that is a copy of another: forget the leader epochs after this one that have no batch, which begin
        if a process that copied was killed. The next batches then keep theirs."""
        keeping.retract_epochs(self._writable(), epoch)

    def claim(self, size_bytes: int) -> None:
        """Make sure that there is space on the disk for that many bytes of batches, or raise `StorageFull`; the space
        is reserved until they are appended or `unclaim` is called, as far as the file system can do that."""
        self._writable().active.claim(size_bytes)

    def unclaim(self) -> None:
        """Release what was claimed and is not needed."""
        self._writable().active.unclaim()

    # --- reading

    def cursors(
        self, start: int | None = None, end: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[kernel.RecordCursor]:
        """As `scan`, for code that passes records on: cursors to iterate over one after the other. Each knows the
        offset after the last record that it returned (`next_offset`), and another thread may `stop` it."""
        return self._access.readable().cursors(start, end, committed=is_committed(isolation))

    def following(
        self, start: int | None = None, *, isolation: Isolation = "committed"
    ) -> Iterator[kernel.RecordCursor | None]:
        """As `follow`, for code that waits elsewhere (`watch`): cursors to iterate over one after the other, and None
        where there is nothing new at the moment. Ends when the log is closed."""
        return self._access.readable().following(start, committed=is_committed(isolation))
