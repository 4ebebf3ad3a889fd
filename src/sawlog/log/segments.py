"""The ordered list of a log's segments, the cache of their mappings, and the search by time.

The list is replaced as a whole, so that readers, which take no lock, always see a consistent one. A sealed segment is
mapped when it is read, and unmapped when the log's cache policy evicts it (`CachePolicy`).

`SegmentSet` belongs to the writing process. `FollowedSegmentSet` (followed_segments.py) belongs to a reader in another
process. Readers of either never go beyond `visible_offset`.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from ..batch import kernel
from ..batch.header import ATTRIBUTES, BASE, CONTROL_BIT, COUNT, LAST, MAX_TIME
from ..config import LRU, CachedSegment, CachePolicy, LogConfig
from ..errors import CorruptBatch, NotYetVisible, OffsetOutOfRange, StorageError
from ..storage import Directory
from ..storage.forking import forkable
from ..storage.system import most_descriptors
from ..storage.words import WaitPoint
from .epochs import Epochs
from .remote import RemoteSegments
from .segment import Segment
from .transactions import TransactionView

T = TypeVar("T")
#: Maximum number of retries of a read that makes no progress because the segments keep changing.
RETRIES = 100


def _policy(config: LogConfig) -> CachePolicy:
    if config.segment_cache is not None:
        return config.segment_cache()
    most = config.max_mapped_segments
    # A mapping holds a file descriptor: stay well below the process limit.
    return LRU(None if most is None else min(most, most_descriptors() // 4))


class SegmentSet(kernel.SegmentSetFields):
    """The segments of a log, as its writer knows them. Never empty once filled; the last one is active."""

    __slots__ = (
        "_learn",
        "_mapped",
        "_mapped_lock",
        "_on_change",
        "_policy",
        "changed",
        "config",
        "directory",
        "epochs",
        "epochs_known",
        "remote",
        "successor",
        "transaction_view",
        "version",
    )
    #: First local offset. It is the log start, unless earlier segments are only in the replica.
    lowest_offset: int
    #: First offset that may not be read yet.
    visible_offset: int
    #: False as long as the log is known to have no transactions: everything visible is then stable.
    maybe_undecided: bool
    #: Number of threads that wait for `changed`, plus one for a registered callback.
    waiting: int
    _list: tuple[tuple[Segment, ...], list[int]]
    #: The most recently used segment, if it is mapped.
    _newest: Segment | None

    def __init__(self, directory: Directory, config: LogConfig) -> None:
        self.directory = directory
        self.config = config
        self.lowest_offset = 0
        self.visible_offset = 0
        #: Segments that are only in the replica: see remote.py.
        self.remote: RemoteSegments | None = None
        #: The leader epochs up to the current one, and whether they are known. A log of version 0.2 does not record
        #: them.
        self.epochs = Epochs()
        self.epochs_known = True
        self.transaction_view = self._make_transaction_view()
        self.maybe_undecided = False
        self._list = ((), [])
        #: Incremented whenever the list is replaced. A reader that finds damage compares it before it raises.
        self.version = 0
        #: The mapped segments that the policy knows.
        self._mapped: dict[CachedSegment, Segment] = {}
        self._policy = _policy(config)
        self._mapped_lock = forkable(threading.Lock())
        self._newest = None
        self._learn: Callable[[], None] | None = None
        #: Notified when records were added or dropped; see `Reader.follow`.
        self.changed = forkable(threading.Condition())
        self.waiting = 0
        self._on_change: Callable[[], None] | None = None
        #: The set that replaces this one: see `Log.release`.
        self.successor: SegmentSet | None = None

    @classmethod
    def of(
        cls,
        directory: Directory,
        config: LogConfig,
        segments: Iterable[Segment],
        lowest_offset: int,
        epochs: Epochs,
        remote: RemoteSegments | None = None,
    ) -> SegmentSet:
        """Return the set that recovery found."""
        made = cls(directory, config)
        made.set(segments)
        made.set_remote(remote)
        made.set_start(lowest_offset)
        made.begin_epoch(epochs)
        return made

    def _make_transaction_view(self) -> TransactionView:
        return TransactionView(self)

    def mark_undecided(self) -> None:
        """Record that a transaction exists: the visible end may now be above the last stable offset."""
        self.maybe_undecided = True

    # --- the list

    @property
    def all(self) -> tuple[Segment, ...]:
        """All segments, oldest first."""
        return self._list[0]

    def set(self, segments: Iterable[Segment]) -> None:
        """Replace the whole list."""
        made = tuple(segments)
        self.version += 1
        self._list = made, [segment.base_offset for segment in made]
        with self._mapped_lock:
            for gone in self._mapped.keys() - set(made):
                del self._mapped[gone]
                self._policy.forget(gone)
            self._newest = None

    def cut(self, kept: Sequence[Segment], offset: int, size: int) -> None:
        """Keep these segments, the last one up to an offset and a size: the rest is about to be deleted."""
        last = kept[-1]
        last.stay_open()
        self.set(kept)
        last.truncate_to((offset, size))
        self.version += 1  # for a reader between the two lines above

    @property
    def active(self) -> Segment:
        """The active segment."""
        return self._list[0][-1]

    @property
    def next_offset(self) -> int:
        """First offset after all placed batches, visible or not."""
        return self._list[0][-1].tail[0]

    @property
    def size_bytes(self) -> int:
        """Size of all batches."""
        return sum(segment.size for segment in self._list[0])

    def find(self, offset: int) -> Segment:
        """Return the segment that would contain `offset`; the first or last one for offsets outside the log."""
        segments, bases = self._list
        return segments[max(bisect_right(bases, offset) - 1, 0)]

    def base_after(self, offset: int) -> int:
        """Return the first offset of the segment after the one for `offset`; the end of the log if there is none."""
        bases = self._list[1]
        at = bisect_right(bases, offset)
        return bases[at] if at < len(bases) else self.next_offset

    def check(self, offset: int, *, end_allowed: bool = False, committed: bool = False) -> None:
        """Raise `OffsetOutOfRange`, or `NotYetVisible`, unless `offset` is local and may be read."""
        lowest, end = self.lowest_offset, self.end(committed=committed)
        if not lowest <= offset < end + end_allowed:
            raise self.out_of_range(offset, self.log_start, end)

    def out_of_range(self, offset: int, lowest: int, end: int) -> OffsetOutOfRange:
        """Return the error for an offset that cannot be read; the readable ones are from `lowest` to `end`."""
        path = self.directory.path
        if end <= offset < self.next_offset:
            visible = self.visible_offset  # read first: it may have moved since, without any transaction
            in_transaction = self.end(committed=True) <= offset < visible
            return NotYetVisible(offset, lowest, end, path, in_transaction=in_transaction)
        return OffsetOutOfRange(offset, lowest, end, path)

    # --- ends and epochs, set by the writer

    def set_start(self, offset: int) -> None:
        """Set the first local offset."""
        self.lowest_offset = offset

    def set_remote(self, remote: RemoteSegments | None) -> None:
        """Set the segments that are, or are about to be, only in the replica."""
        self.remote = remote

    @property
    def log_start(self) -> int:
        """First offset of the log, including segments in the replica; 0 if only the replica knows it."""
        remote = self.remote
        return self.lowest_offset if remote is None else min(remote.log_start, self.lowest_offset)

    def set_visible(self, offset: int) -> None:
        """Set the visible end. Does not wake waiting readers: see `wake`."""
        self.visible_offset = offset

    def begin_epoch(self, epochs: Epochs) -> None:
        """Set the leader epochs. Appends belong to the last one."""
        self.epochs = epochs

    def epoch_end(self, epoch: int) -> int:
        """Return the end offset of a leader epoch. No position that was read in it is beyond that. An unknown epoch
        (-1) ends where the log does."""
        if epoch < 0 or not self.epochs_known:
            return self.visible_offset
        return self.epochs.end_of(epoch, self.visible_offset)

    def end(self, *, committed: bool) -> int:
        """Return where readers stop: at the visible end, or at the last stable offset."""
        end = self.visible_offset  # read first: a transaction that begins afterwards begins at or above it
        return self.transaction_view.stable(end) if committed and self.maybe_undecided else end

    def position(self, *, committed: bool = False) -> tuple[int, int]:
        """Return the end and the epoch in which it was read: the older one, if a new epoch begins meanwhile."""
        epoch = self.current_epoch
        return self.end(committed=committed), epoch

    @property
    def current_epoch(self) -> int:
        """The epoch of new appends; -1 if unknown."""
        return self.epochs.current if self.epochs_known else -1

    def refresh(self) -> bool:
        """Check for changes by other processes, and return True if the segments may have changed. The writer knows all
        of them but what other processes have made durable."""
        if self._learn is not None:
            self._learn()
        return False

    def learn_by(self, call: Callable[[], None] | None) -> None:
        """Call this to learn what other processes have made durable; None: there are none."""
        self._learn = call

    def changed_since(self, version: int) -> bool:
        """Return True if the segments changed during a read, so that an error may not be damage."""
        self.refresh()
        return self.version != version

    def retry_if_changed(self, attempt: Callable[[], T]) -> T:
        """Run a read, and retry it if segments were replaced or deleted meanwhile."""
        for _ in range(RETRIES):
            version = self.version
            try:
                return attempt()
            except (CorruptBatch, StorageError):
                if not self.changed_since(version):
                    raise
        return attempt()

    def wake(self) -> None:
        """Wake waiting readers and call the registered callback."""
        if self.waiting:
            with self.changed:
                self.changed.notify_all()
            if self._on_change is not None:
                self._on_change()

    def wait_beyond(self, offset: int, seconds: float, *, committed: bool = False) -> None:
        """Block until something changes, unless `offset` is already readable."""
        with self.changed:
            self.waiting += 1
            try:
                if self.end(committed=committed) <= offset:
                    self.changed.wait(seconds)
            finally:
                self.waiting -= 1

    def wait_point(self) -> WaitPoint | None:
        """Return a point to sleep at until another process publishes a new end. None: this process writes."""
        return None

    def continue_here(self) -> None:
        """Use this set again, after `continue_in`."""
        self.successor = None

    def continue_in(self, successor: SegmentSet) -> None:
        """Hand over to another set and wake waiting readers."""
        self.successor = successor
        self.wake()

    def on_change(self, moved: Callable[[], None]) -> None:
        """Register the callback of `wake`; replaces an earlier one."""
        with self.changed:
            self.waiting += self._on_change is None
            self._on_change = moved

    # --- mappings

    @contextmanager
    def using(self, segment: Segment) -> Iterator[None]:
        """Mark a segment as used, and finish reading it at the end of the block."""
        self.use(segment)
        try:
            yield
        finally:
            self.done(segment)

    def use(self, segment: Segment) -> None:
        """Mark a segment as used before reading it; unmap segments that the cache policy evicts."""
        if segment is self._newest or not segment.sealed:
            return
        with self._mapped_lock:
            self._newest = segment
            self._mapped[segment] = segment
            for old in self._policy.use(segment):
                if old is not segment and old in self._mapped:
                    self._mapped.pop(old).unload()

    def done(self, segment: Segment) -> None:
        """Finish reading a segment. With `max_mapped_segments=0`, unmap it."""
        if self.config.max_mapped_segments == 0 and segment.sealed:
            with self._mapped_lock:
                self._mapped.pop(segment, None)
                self._policy.forget(segment)
                self._newest = None
            segment.unload()

    # --- by time

    def offset_at(self, timestamp: int, max_bytes: int) -> int:
        """Return the first offset whose record is not older than `timestamp`, or the end. Skips records of aborted
        transactions. A batch may have up to `max_bytes` when it is decompressed."""
        self.refresh()
        return self.retry_if_changed(lambda: self._offset_at(timestamp, max_bytes))

    def _offset_at(self, timestamp: int, max_bytes: int) -> int:
        for segment in self.all:
            if segment.next_offset <= self.lowest_offset or not segment.size:
                continue
            with self.using(segment):
                if segment.timestamps()[1] >= timestamp:
                    found = segment.first_at(timestamp, self.lowest_offset, max_bytes, self.transaction_view)
                    if found is not None:
                        return min(found, self.visible_offset)
        return self.visible_offset

    def newest(self, max_bytes: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record with the largest timestamp, aborted or not, as in Kafka; None
        if there is no record."""
        self.refresh()
        return self.retry_if_changed(lambda: self._newest_record(max_bytes))

    def _newest_record(self, max_bytes: int) -> tuple[int, int] | None:
        """Search only segments whose index allows for a newer record than the ones found so far."""
        found: tuple[int, int] | None = None
        claims = [(self._largest_claimed(each), each) for each in self.all if each.next_offset > self.lowest_offset]
        for most, segment in sorted(claims, key=lambda claim: -claim[0]):
            if most < 0 or (found is not None and most < found[1]):
                break
            with self.using(segment):
                here = self._newest_in(segment, most, max_bytes)
            if here is not None and (found is None or (here[1], -here[0]) > (found[1], -found[0])):
                found = here
        return found

    def _largest_claimed(self, segment: Segment) -> int:
        """Return the largest timestamp of a segment by its index; -1 if it is empty."""
        with self.using(segment):
            return segment.timestamps()[1] if segment.size else -1

    def _newest_in(self, segment: Segment, most: int, max_bytes: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the record that the index names if it is readable and visible; otherwise
        search the batches."""
        offset = segment.first_at(most, self.lowest_offset, max_bytes)
        if offset is None or offset >= self.visible_offset:
            most = self._largest_readable(segment, max_bytes)
            offset = segment.first_at(most, self.lowest_offset, max_bytes) if most >= 0 else None
        return None if offset is None or offset >= self.visible_offset else (offset, most)

    def _largest_readable(self, segment: Segment, max_bytes: int) -> int:
        """Return the largest timestamp of a readable record; -1 if there is none."""
        lowest, end, most = max(self.lowest_offset, segment.base_offset), self.visible_offset, -1
        for chunk in segment.chunks(lowest, min(segment.next_offset, end), check=False):
            rows = chunk.rows
            rows = rows[(rows[:, ATTRIBUTES] & CONTROL_BIT == 0) & (rows[:, COUNT] > 0) & (rows[:, LAST] < end)]
            whole = rows[rows[:, BASE] >= lowest]
            if len(whole):
                most = max(most, int(whole[:, MAX_TIME].max()))
            for last in rows[rows[:, BASE] < lowest][:, LAST].tolist():  # some of its records are trimmed
                while lowest <= last:
                    record = segment.read(lowest, max_bytes)
                    if record is None or record.offset > last:
                        break
                    most, lowest = max(most, record.timestamp), record.offset + 1
                lowest = last + 1
        return most

    def close(self) -> None:
        """Close all segments. A reader in the middle of one keeps it open until it finishes."""
        for segment in self._list[0]:
            segment.close()
