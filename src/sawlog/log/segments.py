"""The segments of one log, in order, and which of them are mapped.

The list is replaced as a whole, so that readers, who take no lock, always see a consistent one. A sealed segment is
mapped when it is read, and unmapped when the log's cache policy gives it up (`sawlog.caching`).

`SegmentSet` belongs to the writing process, which knows what is there. `FollowedSet` (followed.py) belongs to a reader
in another process. Readers of either never go beyond `visible_offset`.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ..batch import kernel
from ..caching import LRU, Cached, CachePolicy
from ..config import LogConfig
from ..errors import CorruptBatch, OffsetOutOfRange, StorageError
from ..storage import Directory
from ..storage.forking import forkable
from ..storage.system import most_descriptors
from .epochs import Epochs
from .remote import RemotePart
from .segment import Segment
from .transaction_view import Outlook

T = TypeVar("T")
#: How often a reader starts again because the segments changed, without making progress.
RETRIES = 100


def _policy(config: LogConfig) -> CachePolicy:
    if config.segment_cache is not None:
        return config.segment_cache()
    most = config.max_mapped_segments
    # A mapping keeps a descriptor: fewer where a process may open few files.
    return LRU(None if most is None else min(most, most_descriptors() // 4))


class SegmentSet(kernel.SegmentSetFields):
    """The writer's view of its segments. Never empty once it is filled; the last one is active."""

    __slots__ = (
        "_mapped",
        "_mapped_lock",
        "_moved",
        "_policy",
        "changed",
        "config",
        "directory",
        "epochs",
        "epochs_known",
        "outlook",
        "remote",
        "successor",
        "version",
    )
    #: The first offset that can be read here: that of the log, unless what is before it is only in the replica.
    lowest_offset: int
    #: The first offset that may not be read yet.
    visible_offset: int
    #: Whether a transaction was met: until then everything that is visible is stable.
    unsettled: bool
    #: How many wait for `changed`, or are called.
    waiting: int
    _list: tuple[tuple[Segment, ...], list[int]]
    #: The segment that was used last, if it is mapped.
    _newest: Segment | None

    def __init__(self, directory: Directory, config: LogConfig) -> None:
        self.directory = directory
        self.config = config
        self.lowest_offset = 0
        self.visible_offset = 0
        #: What of the log is only in its replica: see files/remote.py.
        self.remote: RemotePart | None = None
        #: The leader epochs up to the current one; and whether they are known, which they are not in a log of
        #: version 0.2.
        self.epochs = Epochs()
        self.epochs_known = True
        self.outlook = self._outlook()
        self.unsettled = False
        self._list = ((), [])
        #: Counts the replacements: a reader that meets something unexpected checks whether the list has changed.
        self.version = 0
        #: Those that the policy knows.
        self._mapped: dict[Cached, Segment] = {}
        self._policy = _policy(config)
        self._mapped_lock = forkable(threading.Lock())
        self._newest = None
        #: Signalled when records were added or dropped; see `Reader.follow`.
        self.changed = forkable(threading.Condition())
        self.waiting = 0
        self._moved: Callable[[], None] | None = None
        #: The set that continues after this one has ended: see `Log.release`.
        self.successor: SegmentSet | None = None

    @classmethod
    def of(
        cls,
        directory: Directory,
        config: LogConfig,
        segments: Iterable[Segment],
        lowest_offset: int,
        epochs: Epochs,
        remote: RemotePart | None = None,
    ) -> SegmentSet:
        """What recovery has found."""
        made = cls(directory, config)
        made.set(segments)
        made.leave(remote)
        made.start_at(lowest_offset)
        made.begin_epoch(epochs)
        return made

    def _outlook(self) -> Outlook:
        return Outlook(self)

    def unsettle(self) -> None:
        """There is a transaction: from now on what is visible need not be stable."""
        self.unsettled = True

    # --- the list

    @property
    def all(self) -> tuple[Segment, ...]:
        """Oldest first."""
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
        """Keep these segments, the last of them up to an offset and a size: the rest is about to be deleted."""
        last = kept[-1]
        last.stay_open()
        self.set(kept)
        last.go_back((offset, size))
        self.version += 1  # for a reader between the two lines above

    @property
    def active(self) -> Segment:
        """The active segment."""
        return self._list[0][-1]

    @property
    def next_offset(self) -> int:
        """The first offset after everything that is placed, visible or not."""
        return self._list[0][-1].tail[0]

    @property
    def size_bytes(self) -> int:
        """Of all batches."""
        return sum(segment.size for segment in self._list[0])

    def find(self, offset: int) -> Segment:
        """The segment that would contain `offset`; the first or last one for offsets outside."""
        segments, bases = self._list
        return segments[max(bisect_right(bases, offset) - 1, 0)]

    def base_after(self, offset: int) -> int:
        """The first offset of the segment after the one that would contain `offset`; the end if there is none."""
        bases = self._list[1]
        at = bisect_right(bases, offset)
        return bases[at] if at < len(bases) else self.next_offset

    def check(self, offset: int, *, end_allowed: bool = False, committed: bool = False) -> None:
        """Raise `OffsetOutOfRange` unless the log contains that offset here, and it may be read."""
        lowest, end = self.lowest_offset, self.end(committed=committed)
        if not lowest <= offset < end + end_allowed:
            raise OffsetOutOfRange(offset, self.log_start, end, self.directory.path)

    # --- its ends, and its epochs: set by the writer

    def start_at(self, offset: int) -> None:
        """The log can be read here from this offset on."""
        self.lowest_offset = offset

    def leave(self, remote: RemotePart | None) -> None:
        """This part of the log is only in its replica, or will be."""
        self.remote = remote

    @property
    def log_start(self) -> int:
        """The first offset of the log, wherever it is. If only the replica knows that: 0."""
        remote = self.remote
        return self.lowest_offset if remote is None else min(remote.log_start, self.lowest_offset)

    def show(self, offset: int) -> None:
        """The log may be read up to here. Does not wake those who wait: see `wake`."""
        self.visible_offset = offset

    def begin_epoch(self, epochs: Epochs) -> None:
        """Appends belong to the last of these epochs."""
        self.epochs = epochs

    def epoch_end(self, epoch: int) -> int:
        """Where a leader epoch ends: no position that was read in it is after that. An unknown epoch (a position
        without one, -1) ends where the log does."""
        if epoch < 0 or not self.epochs_known:
            return self.visible_offset
        return self.epochs.end_of(epoch, self.visible_offset)

    def end(self, *, committed: bool) -> int:
        """Where readers stop: at the visible end, or at the last stable offset."""
        end = self.visible_offset  # first: a transaction that begins after that begins there or later
        return self.outlook.stable(end) if committed and self.unsettled else end

    def position(self, *, committed: bool = False) -> tuple[int, int]:
        """The end, and the epoch in which it was read: an older one, if another has begun meanwhile."""
        epoch = self.current_epoch
        return self.end(committed=committed), epoch

    @property
    def current_epoch(self) -> int:
        """The epoch that appends belong to; -1 if it is not known."""
        return self.epochs.current if self.epochs_known else -1

    def refresh(self) -> bool:
        """Check what other processes did; the writer knows it already."""
        return False

    def changed_since(self, version: int) -> bool:
        """Whether the segments changed during a read: then what it met may not be damage."""
        self.refresh()
        return self.version != version

    def steadily(self, attempt: Callable[[], T]) -> T:
        """The result of a read that is repeated if segments were replaced or deleted meanwhile."""
        for _ in range(RETRIES):
            version = self.version
            try:
                return attempt()
            except (CorruptBatch, StorageError):
                if not self.changed_since(version):
                    raise
        return attempt()

    def wake(self) -> None:
        """Tell those who follow that something changed."""
        if self.waiting:
            with self.changed:
                self.changed.notify_all()
            if self._moved is not None:
                self._moved()

    def wait_beyond(self, offset: int, seconds: float, *, committed: bool = False) -> None:
        """Wait until something changes, unless readers can go beyond `offset` now."""
        with self.changed:
            self.waiting += 1
            try:
                if self.end(committed=committed) <= offset:
                    self.changed.wait(seconds)
            finally:
                self.waiting -= 1

    def continue_in(self, successor: SegmentSet) -> None:
        """Another set continues: those who wait are told."""
        self.successor = successor
        self.wake()

    def tell(self, moved: Callable[[], None]) -> None:
        """Call this, too, when something changed."""
        with self.changed:
            self.waiting += self._moved is None
            self._moved = moved

    # --- mappings

    def use(self, segment: Segment) -> None:
        """Before reading a segment: keep it mapped, unmap those that the policy gives up."""
        if segment is self._newest or not segment.sealed:
            return
        with self._mapped_lock:
            self._newest = segment
            self._mapped[segment] = segment
            for old in self._policy.use(segment):
                if old is not segment and old in self._mapped:
                    self._mapped.pop(old).unload()

    def done(self, segment: Segment) -> None:
        """After reading a segment: with `max_mapped_segments=0` nothing stays mapped."""
        if self.config.max_mapped_segments == 0 and segment.sealed:
            with self._mapped_lock:
                self._mapped.pop(segment, None)
                self._policy.forget(segment)
                self._newest = None
            segment.unload()

    def close(self) -> None:
        """Close all segments. A reader in the middle of one keeps it open until it is done."""
        for segment in self._list[0]:
            segment.close()
