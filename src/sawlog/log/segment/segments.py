"""The segments of one log, in order, and which of them are mapped.

The list is replaced as a whole, so that readers, who take no lock, always see a consistent one. A sealed segment is
mapped when it is read, and unmapped when more than `max_mapped` others have been read since.

`SegmentSet` belongs to the writing process, which knows what is there. `FollowedSet` belongs to a reader in another
process: it checks again (`refresh`) when it runs out of records or a file is missing, and trusts only complete batches
up to the visible end that the writer publishes (see visible.py). Readers of either never go beyond `visible_offset`.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from ...batch import kernel
from ...batch.header import BASE
from ...config import LogConfig
from ...errors import CorruptBatch, CorruptFile, OffsetOutOfRange, StorageError
from ...storage import Directory, Published, open_published
from ...storage.forking import forkable
from ...storage.system import most_descriptors
from ..files import checkpoint
from ..files.checkpoint import Checkpoint
from ..files.epochs import Epochs, load_epochs
from ..files.names import INDEX, VISIBLE, file_name, segment_base, swap_range
from .histories import as_the_batches_say, epochs_of, unfinished_cut
from .index import SegmentIndex
from .outlook import FollowedOutlook, Outlook
from .segment import Segment


class SegmentSet(kernel.SegmentSetFields):
    """The writer's view of its segments. Never empty once it is filled; the last one is active."""

    __slots__ = (
        "_list",
        "_mapped",
        "_mapped_lock",
        "_most_mapped",
        "_moved",
        "_newest",
        "changed",
        "config",
        "directory",
        "epochs",
        "epochs_known",
        "lowest_offset",
        "outlook",
        "successor",
        "unsettled",
        "version",
    )
    #: The first offset that may not be read yet.
    visible_offset: int
    #: How many wait for `changed`, or are called.
    waiting: int

    def __init__(self, directory: Directory, config: LogConfig) -> None:
        self.directory = directory
        self.config = config
        #: The log start: the first offset that is not trimmed.
        self.lowest_offset = 0
        self.visible_offset = 0
        #: The leader epochs up to the current one; and whether they are known, which they are not in a log of
        #: version 0.2.
        self.epochs = Epochs()
        self.epochs_known = True
        #: Transactions, and whether one was met: until then everything that is visible is stable.
        self.outlook = self._outlook()
        self.unsettled = False
        self._list: tuple[tuple[Segment, ...], list[int]] = ((), [])
        #: Counts the replacements: a reader that meets something unexpected checks whether the list has changed.
        self.version = 0
        self._mapped: OrderedDict[Segment, None] = OrderedDict()
        most = config.max_mapped_segments
        #: A mapping keeps a descriptor: fewer where a process may open few files.
        self._most_mapped = None if most is None else max(1, min(most, most_descriptors() // 4))
        self._mapped_lock = forkable(threading.Lock())
        self._newest: Segment | None = None
        #: Signalled when records were added or dropped; see `Reader.follow`.
        self.changed = forkable(threading.Condition())
        self.waiting = 0
        self._moved: Callable[[], None] | None = None
        #: The set that continues after this one has ended: see `Log.release`.
        self.successor: SegmentSet | None = None

    @classmethod
    def of(
        cls, directory: Directory, config: LogConfig, segments: Iterable[Segment], lowest_offset: int, epochs: Epochs
    ) -> SegmentSet:
        """What recovery has found."""
        made = cls(directory, config)
        made.set(segments)
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
        """Raise `OffsetOutOfRange` unless the log contains that offset, and it may be read."""
        lowest, end = self.lowest_offset, self.end(committed=committed)
        if not lowest <= offset < end + end_allowed:
            raise OffsetOutOfRange(offset, lowest, end, self.directory.path)

    # --- its ends, and its epochs: set by the writer

    def start_at(self, offset: int) -> None:
        """The log starts here."""
        self.lowest_offset = offset

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
        """Before reading a segment: keep it mapped, unmap the least recently used."""
        if segment is self._newest or not segment.sealed:
            return
        with self._mapped_lock:
            self._newest = segment
            self._mapped[segment] = None
            self._mapped.move_to_end(segment)
            most = self._most_mapped
            while most is not None and len(self._mapped) > most:
                old, _ = self._mapped.popitem(last=False)
                old.unload()

    def done(self, segment: Segment) -> None:
        """After reading a segment: with `max_mapped_segments=0` nothing stays mapped."""
        if self.config.max_mapped_segments == 0 and segment.sealed:
            with self._mapped_lock:
                self._mapped.pop(segment, None)
                self._newest = None
            segment.unload()

    def close(self) -> None:
        """Close all segments."""
        for segment in self._list[0]:
            segment.unload()


def _files(names: Iterable[str]) -> dict[int, str]:
    """The file of every segment, by base offset. A finished rewrite takes effect with its rename, whatever still exists
    of the segments that it replaces."""
    found = {base: name for name in names if (base := segment_base(name)) is not None}
    for name in names:
        if (swap := swap_range(name)) is not None:
            base, end = swap
            found = {each: file for each, file in found.items() if not base <= each < end}
            found[base] = name
    return found


class FollowedSet(SegmentSet):
    """A reader's view of a log that another process may be writing, trimming and replacing."""

    __slots__ = ("_followed", "_published", "_published_as", "_rebuilt", "_refreshing", "_seen", "_told")

    def __init__(self, directory: Directory, config: LogConfig, *, late: bool = False) -> None:
        """Reads the directory immediately, or, if `late`, when it is first needed."""
        super().__init__(directory, config)
        self._refreshing = forkable(threading.Lock())
        self.unsettled = True  # until it is known
        #: The directory's stamp when it was last listed, and what was published then, or else the size of the active
        #: file.
        self._seen: tuple[object, object] = (None, None)
        self._published: Published | None = None
        self._published_as: object = None
        #: The visible end and the epoch that the writer has published; None: every complete batch may be read.
        self._told: tuple[int, int] | None = None
        #: Whether the epochs were rebuilt from the batches, because their file is not usable.
        self._rebuilt = False
        if not late:
            self.refresh()

    def _outlook(self) -> Outlook:
        return FollowedOutlook(self, self._settle)

    def _settle(self, end: int) -> None:
        """No transaction is open up to there, which was the end of what is known."""
        with self._refreshing:
            if self.visible_offset == end:
                self.unsettled = False

    def refresh(self) -> bool:
        """Read the directory again and return whether anything has changed."""
        with self._refreshing:
            if self._is_unchanged():
                return False
            before = self._state()
            for _ in range(100):  # files may come and go meanwhile; the writer pauses sooner or later
                try:
                    self._look()
                    break
                except StorageError as error:
                    latest = error
            else:
                raise latest
            return before != self._state()

    def _state(self) -> object:
        return self.lowest_offset, self.visible_offset, self._list[0], self._list[0][-1].tail if self._list[0] else None

    def _is_unchanged(self) -> bool:
        """Whether no name has changed, and the writer has published nothing new, or, if nothing is published, the
        active file has not grown since the last check. Followers of a log ask all the time, and listing a directory of
        a thousand segments costs more than two calls."""
        stamp, known = self._seen
        if stamp is None:
            return False
        try:
            told = None if self._published is None else self._published.load()
            return stamp == self.directory.stamp() and known == (self.active.storage.size if told is None else told)
        except StorageError:
            return False

    def _look(self) -> None:
        stamp = self.directory.stamp()
        # Before the files: they contain at least what was published before they are read.
        identity = self.directory.identity(VISIBLE)
        if self._published is None or identity != self._published_as:
            self._published, self._published_as = open_published(self.directory, VISIBLE), identity
        self._told = None if self._published is None else self._published.load()
        self._look_through()
        self._look_at_epochs()
        if self._told is None and self.epochs_known:
            self._hide_what_goes()
        active = self._list[0][-1] if self._list[0] else None
        if self._told is not None and self.visible_offset >= self._told[0]:
            self._seen = stamp, self._told
        elif self._told is None and active is not None and not active.sealed and active.storage.size == active.size:
            self._seen = stamp, active.size
        else:
            self._seen = None, None

    def _look_at_epochs(self) -> None:
        """The epochs from their file, if the writer has begun one since."""
        current = self._last_epoch()
        if current is None:
            self.epochs_known = False  # version 0.2: positions are checked against the end only
            return
        if current == self.epochs.current and self.epochs_known and not self._rebuilt:
            return
        self.epochs_known = True
        try:
            found = load_epochs(self.directory)
        except CorruptFile:
            found = None
        found = None if found is None or not self._is_named(found) else found.up_to(current)
        if found is None and current == 0:
            found = Epochs()  # a log that was never in another epoch has no list
        self._rebuilt = found is None or found.current != current
        if found is None or self._rebuilt:
            found, _ = epochs_of(self._list[0])
            found = found if found.current >= current else found.begun(current, self.next_offset)
        self.epochs = found

    def _is_named(self, found: Epochs) -> bool:
        """Whether a list is the one in the checkpoint, or the next one that the writer is about to record there: the
        list has no checksum of its own. Without a checkpoint it cannot be known."""
        saved = self._saved()
        if saved is None or saved.leader_epoch is None:
            return True
        return saved.epochs_crc in (found.crc, found.up_to(saved.leader_epoch).crc)

    def _hide_what_goes(self) -> None:
        """The next writer finishes an interrupted truncation; until then nobody reads what it drops."""
        saved = self._saved()
        if saved is not None and saved.epochs_crc == self.epochs.crc:
            end = unfinished_cut(self.epochs, self._list[0])
            if end is not None and saved.durable_offset <= end:
                self.visible_offset = end
            elif end is not None:
                self.epochs = as_the_batches_say(self.epochs, self._list[0])

    def _last_epoch(self) -> int | None:
        """The current epoch, from what the writer has published, or its checkpoint, or the list itself."""
        if self._told is not None:
            return self._told[1]
        saved = self._saved()
        if saved is not None:
            return saved.leader_epoch
        try:
            found = load_epochs(self.directory)
        except CorruptFile:
            return 0  # which will be rebuilt from the batches
        return None if found is None else found.current

    def _meet(self, segment: Segment, offset: int) -> None:
        """A batch of a transaction, or what may be one, ends there."""
        segment.meet(offset)
        self.unsettle()

    def _look_through(self) -> None:
        files = _files(self.directory.names())
        bases = sorted(files)
        known = {segment.base_offset: segment for segment in self._list[0]}
        following: Sequence[int | None] = [*bases[1:], None]
        found = [
            self._segment(base, after, known.get(base), files[base])
            for base, after in zip(bases, following, strict=False)
        ]
        saved = self._saved()
        start = self._log_start(found, saved)
        if found and tuple(found) != self._list[0]:
            self.set(found)
            self.unsettled = self._may_be_undecided(saved)
        if not found and self._list[0]:
            return  # the directory was deleted: what is open can still be read
        end = self.next_offset if found else start
        # What was published may be of a longer log than there is: damage, or files that are just being replaced.
        self.visible_offset = end if self._told is None else min(self._told[0], end)
        if found and self.visible_offset < start and (end >= start or not self.all[-1].size):
            self.visible_offset = start  # it begins there, and nothing has been published yet
        # After damage the log may end before the offset that it was trimmed to.
        self.lowest_offset = min(max(self.lowest_offset, start), self.visible_offset) if found else start

    def _segment(self, base: int, following: int | None, known: Segment | None, name: str) -> Segment:
        identity = self.directory.identity(name)
        if known is not None and (known.identity, known.name) == (identity, name):
            if not known.sealed and (following is None or not self.directory.exists(file_name(base, INDEX))):
                if known.next_offset != following:
                    self._grow(known)
                return known
            # The size too: the inode number of a deleted file may have been given to the one that replaced it.
            if known.sealed and known.next_offset == following and known.size == self.directory.size(name):
                return known
        # Only a segment that its writer has sealed, with its index, is mapped: what may still be truncated must be
        # copied.
        if following is not None and (name != file_name(base) or self.directory.exists(file_name(base, INDEX))):
            size, interval = self.directory.size(name), self.config.index_interval_bytes
            return Segment(self.directory, base, following, size, interval, name=name, identity=identity)
        storage = self.directory.open_shared(name)
        index = SegmentIndex(base, self.config.index_interval_bytes)
        made = Segment.active(self.directory, base, storage, index, base, 0, identity=identity)
        self._grow(made)
        return made

    def _grow(self, segment: Segment) -> None:
        """Add the complete batches that were appended since, up to the visible end: what follows may be truncated
        again. An incomplete batch is the end: it is still being written, or never was, unless the writer has recorded
        that it is durable. Then it is damage, which reading must not skip silently."""
        if self._take_in(segment):
            return
        saved = self._saved()
        if saved is None or saved.segment != segment.base_offset or segment.size >= saved.position:
            return
        if self._take_in(segment) or segment.size >= saved.position:
            return  # it was completed between the two checks
        if segment.storage.size >= saved.position:
            segment.expect(saved.durable_offset, saved.position)
            self._meet(segment, saved.durable_offset)  # what is after the damage was not looked at
            segment.use_index(segment.rebuild_index(segment.storage))

    def _take_in(self, segment: Segment) -> bool:
        """Add complete batches after the known end and return whether there was nothing else."""
        following, position = segment.tail
        most = 2**63 - 1 if self._told is None else self._told[0]
        if following >= most:
            return True
        try:
            for chunk in segment.batches(segment.storage, position, segment.storage.size, following):
                # A batch that extends beyond the end is being cut: its file is about to be replaced, not truncated.
                rows = chunk.rows if chunk.rows[-1, BASE] < most else chunk.rows[chunk.rows[:, BASE] < most]
                if len(rows):
                    segment.take_in(rows, chunk.origin)
                    if chunk.special:
                        self._meet(segment, segment.tail[0])
                if segment.tail[0] >= most or len(rows) < len(chunk.rows):
                    break
        except CorruptBatch:
            return False
        return True

    def close(self) -> None:
        """Close everything."""
        super().close()
        if self._published is not None:
            self._published.close()

    def _saved(self) -> Checkpoint | None:
        try:
            return checkpoint.load(self.directory)
        except CorruptFile:
            return None

    def _may_be_undecided(self, saved: Checkpoint | None) -> bool:
        """Whether a transaction may be open: one that began before the active segment, as far as the writer has said
        it, or one that was met since."""
        if saved is None or saved.undecided or saved.segment != self._list[0][-1].base_offset:
            return True
        return any(not segment.sealed and segment.met_until >= 0 for segment in self._list[0])

    def _log_start(self, found: list[Segment], saved: Checkpoint | None) -> int:
        start = found[0].base_offset if found else self.config.initial_offset
        return start if saved is None else max(start, saved.log_start)
