"""The segments of a log that another process may be writing, trimming and replacing.

A reader takes no lock and writes nothing. It lists the directory again (`refresh`) when it runs out of records or a
file is missing, and trusts only complete batches up to the visible end that the writer publishes
(`sawlog.storage.published`).

Records are missing if the segments begin after the start in the checkpoint, if they end before the visible end (the
durable end, if none is published), or if a segment below that end stops short of the next. If the checkpoint requires
the file `remote` and it is missing, only the replica knows where the log begins. The list covers missing offsets all
the same: reading them raises `CorruptBatch`, and everything else can be read. A log without any segment is opened in
the same way if its other files show that it had one.

A writer that is changing files must not look like a loss. It records a new start or end before it removes anything, so
a loss is reported only if two listings in a row find exactly the same state.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Sequence
from itertools import takewhile

from ..batch.header import BASE
from ..config import LogConfig
from ..errors import CorruptBatch, CorruptFile, StorageError
from ..storage import Directory, MemoryDirectory, Published, open_published
from ..storage.forking import forkable
from ..storage.words import WaitPoint, wait_any
from . import checkpoint
from .checkpoint import Checkpoint, noted_end, proven_end
from .epochs import Epochs, as_the_batches_say, epoch_at, epochs_of, load_epochs, unfinished_truncation
from .files import CHECKPOINT, INDEX, PRODUCERS, REMOTE, VISIBLE, file_name, segment_base, swap_range, trimmed_base
from .index import SegmentIndex
from .producers import ProducersFile
from .remote import UNKNOWN, found_remote
from .segment import Segment
from .segments import SegmentSet
from .transactions import Transactions, TransactionView, replay_segment


def _files(names: Iterable[str]) -> dict[int, str]:
    """Return the file of every segment by base offset. A finished rewrite takes effect with its rename, even if
    segments that it replaces still exist."""
    found = {base: name for name in names if (base := segment_base(name)) is not None}
    for name in names:
        if (swap := swap_range(name)) is not None:
            base, end = swap
            found = {each: file for each, file in found.items() if not base <= each < end}
            found[base] = name
    return found


class _Inconsistent(StorageError):
    """The directory seems to lack records, or a writer is changing it: list it again."""


class FollowedSegmentSet(SegmentSet):
    """The segments of a log as a reader in another process sees them."""

    __slots__ = (
        "_extended",
        "_last_listing",
        "_published",
        "_published_end",
        "_published_identity",
        "_rebuilt",
        "_refreshing",
        "_remote_stamp",
        "_suspected_loss",
    )

    def __init__(self, directory: Directory, config: LogConfig, *, late: bool = False) -> None:
        """List the directory now, or, if `late`, at the first `refresh`."""
        super().__init__(directory, config)
        self._refreshing = forkable(threading.Lock())
        self.maybe_undecided = True  # until proven otherwise
        #: The directory's stamp at the last listing, and the published end at that time, or else the size of the active
        #: file.
        self._last_listing: tuple[object, object] = (None, None)
        #: The directory's stamp when the file `remote` was last read.
        self._remote_stamp: object = None
        self._published: Published | None = None
        self._published_identity: object = None
        #: The visible end and the epoch that the writer published; None: every complete batch may be read.
        self._published_end: tuple[int, int] | None = None
        #: The state that the last listing found, if records seemed to be missing.
        self._suspected_loss: object = None
        #: Segments whose ends are missing.
        self._extended: set[Segment] = set()
        #: True if the epochs were rebuilt from the batches because their file is unusable.
        self._rebuilt = False
        if not late:
            self.refresh()

    def _make_transaction_view(self) -> TransactionView:
        return FollowedTransactionView(self)

    def mark_decided(self, end: int) -> None:
        """Record that no transaction is open below `end`, unless the visible end has moved since."""
        with self._refreshing:
            if self.visible_offset == end:
                self.maybe_undecided = False

    def refresh(self) -> bool:
        """List the directory again; return True if anything changed."""
        with self._refreshing:
            if self._is_unchanged():
                return False
            before = self._state()
            for _ in range(100):  # files may come and go meanwhile; the writer pauses eventually
                try:
                    self._reload()
                    break
                except StorageError as error:
                    latest = error
            else:
                raise latest
            return before != self._state()

    def wait_beyond(self, offset: int, seconds: float, *, committed: bool = False) -> None:
        """Block until the writer publishes another end, or `wake` is called, unless `offset` is already readable."""
        if self.end(committed=committed) <= offset and self.successor is None:
            point = self.wait_point()
            if point is None:
                super().wait_beyond(offset, seconds, committed=committed)
            else:
                wait_any([point], seconds)

    def wait_point(self) -> WaitPoint | None:
        """Return a point to sleep at until the writer publishes another end; None if that is not possible."""
        if self._published is None or self._published_end is None:
            return None
        return self._published.wait_point(self._published_end)

    def wake(self) -> None:
        """Wake waiting readers and call the registered callback."""
        super().wake()
        if self._published is not None:
            self._published.wake()

    def _state(self) -> object:
        tail = self._list[0][-1].tail if self._list[0] else None
        return self.lowest_offset, self.visible_offset, self._list[0], tail, self.remote

    def _is_unchanged(self) -> bool:
        """Return True if no name changed since the last listing and the writer published nothing new, or, without a
        published end, if the active file did not grow. Followers poll this, and listing a directory of a thousand
        segments costs more than two system calls."""
        stamp, known = self._last_listing
        if stamp is None:
            return False
        try:
            told = None if self._published is None else self._published.load()
            return stamp == self.directory.stamp() and known == (self.active.storage.size if told is None else told)
        except StorageError:
            return False

    def _reload(self) -> None:
        stamp = self.directory.stamp()
        # Read before the files, so that they reach at least the published end.
        identity = self.directory.identity(VISIBLE)
        if self._published is None or identity != self._published_identity:
            self._published, self._published_identity = open_published(self.directory, VISIBLE), identity
        self._published_end = None if self._published is None else self._published.load()
        self._reload_segments(stamp)
        self._reload_epochs()
        if self._published_end is None and self.epochs_known:
            self._hide_unfinished_truncation()
        active = self._list[0][-1] if self._list[0] else None
        if self._suspected_loss is not None or self._extended:
            self._last_listing = None, None  # records are missing, and may be restored under an existing name
        elif self._published_end is not None and self.visible_offset >= self._published_end[0]:
            self._last_listing = stamp, self._published_end
        elif (
            self._published_end is None
            and active is not None
            and not active.sealed
            and active.storage.size == active.size
        ):
            self._last_listing = stamp, active.size
        else:
            self._last_listing = None, None

    def _reload_epochs(self) -> None:
        """Load the leader epochs if the writer has begun a new one."""
        current = self._last_epoch()
        if current is None:
            self.epochs_known = False  # version 0.2: positions are checked only against the end
            return
        if current == self.epochs.current and self.epochs_known and not self._rebuilt:
            return
        self.epochs_known = True
        try:
            found = load_epochs(self.directory)
        except CorruptFile:
            found = None
        found = None if found is None or not self._matches_checkpoint(found) else found.up_to(current)
        if found is None and current == 0:
            found = Epochs()  # a log that never left epoch 0 has no such file
        self._rebuilt = found is None or found.current != current
        if found is None or self._rebuilt:
            found, _ = epochs_of(self._list[0], self.remote)
            found = found if found.current >= current else found.begun(current, self.next_offset)
        self.epochs = found

    def _matches_checkpoint(self, found: Epochs) -> bool:
        """Return True if a list of epochs is the one in the checkpoint, or the next one, which the writer is about to
        record there. The list has no checksum of its own. Without a checkpoint, it is trusted."""
        saved = self._saved()
        if saved is None or saved.leader_epoch is None:
            return True
        return saved.epochs_crc in (found.crc, found.up_to(saved.leader_epoch).crc)

    def _hide_unfinished_truncation(self) -> None:
        """Hide the records that an interrupted truncation will drop when the next writer finishes it."""
        saved = self._saved()
        if saved is not None and saved.epochs_crc == self.epochs.crc:
            end = unfinished_truncation(self.epochs, self._list[0])
            if end is not None and saved.durable_offset <= end:
                self.visible_offset = end
                self.mark_undecided()  # the truncation may drop a marker
            elif end is not None:
                self.epochs = as_the_batches_say(self.epochs, self._list[0], self.remote)

    def _last_epoch(self) -> int | None:
        """Return the current epoch from the published end, the checkpoint, or the list of epochs, in that order."""
        if self._published_end is not None:
            return self._published_end[1]
        saved = self._saved()
        if saved is not None:
            return saved.leader_epoch
        try:
            found = load_epochs(self.directory)
        except CorruptFile:
            return 0  # the list will be rebuilt from the batches
        return None if found is None else found.current

    def _note_transaction(self, segment: Segment, offset: int) -> None:
        """Record that a batch that is or may be transactional ends at `offset`."""
        segment.note_transaction(offset)
        self.mark_undecided()

    def _reload_segments(self, stamp: object) -> None:
        names = self.directory.names()
        files = _files(names)
        bases = sorted(files)
        known = {segment.base_offset: segment for segment in self._list[0]}
        following: Sequence[int | None] = [*bases[1:], None]
        found = [
            self._segment(base, after, known.get(base), files[base])
            for base, after in zip(bases, following, strict=False)
        ]
        saved = self._saved()
        found = self._with_gaps(names, found, saved)
        start = self._log_start(found, saved)
        if found and tuple(found) != self._list[0]:
            self.set(found)
            self.maybe_undecided = self._transaction_may_be_open(saved)
        if not found and self._list[0]:
            return  # the directory was deleted: open segments can still be read
        end = self.next_offset if found else start
        # The published end may exceed the files: damage, or files that are being replaced.
        self.visible_offset = end if self._published_end is None else min(self._shown_end(found, saved), end)
        if self.visible_offset < end:
            self.mark_undecided()  # a hidden marker may decide a transaction
        if found and self.visible_offset < start and (end >= start or not self.all[-1].size):
            self.visible_offset = start  # the log begins there, and nothing has been published yet
        # After damage, the log may end before the offset to which it was trimmed.
        lowest = min(max(self.lowest_offset, start), self.visible_offset) if found else start
        # Read after the files: segments that were already gone are listed there by now.
        if REMOTE not in names:
            must_exist = saved is not None and saved.remote
            self.remote, self._remote_stamp = UNKNOWN if must_exist else None, None
        elif self._remote_stamp is None or self._remote_stamp != stamp:
            self.remote, self._remote_stamp = found_remote(self.directory, lowest), stamp
        self.lowest_offset = lowest

    def _with_gaps(self, names: Sequence[str], found: list[Segment], saved: Checkpoint | None) -> list[Segment]:
        """Return the segments, extended to cover offsets whose records are missing: at the beginning, at the end, or
        between two segments. A sealed segment without an index ends with its last batch, so it may stop short of the
        next segment."""
        start = self.config.initial_offset if saved is None else saved.log_start
        durable = 0 if saved is None else saved.durable_offset
        end = self._recorded_end(names, found, saved, start)
        first = found[0].base_offset if found else end
        lost_first = start < (min(first, durable) if found else end)
        lost_first = lost_first and not any(trimmed_base(name) is not None for name in names)
        # A truncation may be in progress above the end. There is no end if nothing records one.
        no_end = saved is None and self._published_end is None
        ends = [each.base_offset if no_end else min(each.base_offset, end) for each in found[1:]]
        short = [(each, most) for each, most in zip(found, [*ends, end], strict=False) if each.next_offset < most]
        self._extended.intersection_update(found)
        lost_list = saved is not None and saved.remote and REMOTE not in names
        if not (lost_first or short or lost_list) or (not found and self._list[0]):
            self._suspected_loss = None
            return found
        suspicion = names, saved, self._published_end, [each.tail for each in found]
        if self._suspected_loss != suspicion:
            self._suspected_loss = suspicion
            raise _Inconsistent(errno.EAGAIN, f"{self.directory.path} lacks records, or is just being changed")
        for segment, most in short:
            self._extended.add(segment)
            segment.expect(most, max(segment.storage.size, segment.size))
            self._note_transaction(segment, most)  # batches after the gap were not examined
            segment.use_index(segment.rebuild_index(segment.storage))
        if lost_first:
            storage = MemoryDirectory().create(file_name(start))
            index = SegmentIndex(start, self.config.index_interval_bytes)
            lost = Segment.active(self.directory, start, storage, index, first, 0)
            lost.stay_open()
            found = [lost, *found]
        return found

    def _shown_end(self, found: list[Segment], saved: Checkpoint | None) -> int:
        """Return the published end, without anything that was truncated since. Until a truncation replaces records,
        readers still see them."""
        assert self._published_end is not None
        end, epoch = self._published_end
        proven = proven_end(self.directory, saved, self._published_end)
        there = epoch_at(found, proven) if proven < end else None
        return end if there is None or there <= epoch else proven

    def _recorded_end(self, names: Sequence[str], found: list[Segment], saved: Checkpoint | None, start: int) -> int:
        """Return the end of the log, as far as any file records it. Recovery uses the same evidence."""
        seen = 0
        if self._published_end is not None:
            seen = proven_end(self.directory, saved, self._published_end)
            if found or seen == self._published_end[0]:
                return seen
        end, noted = max(seen, 0 if saved is None else saved.durable_offset), noted_end(self.directory)
        if saved is not None and found and saved.segment > found[-1].base_offset:
            end = saved.end_without_segment(known=noted > 0)
        if not found and not noted and end <= start and CHECKPOINT in names and (saved is None or not saved.clean):
            end = start + 1  # segments existed, and nothing records where they ended
        return max(end, noted)

    def _segment(self, base: int, following: int | None, known: Segment | None, name: str) -> Segment:
        identity = self.directory.identity(name)
        if known in self._extended and (known.next_offset != following or known.size != known.storage.size):
            known = None  # its end was missing and may have been restored
        if known is not None and (known.identity, known.name) == (identity, name):
            if not known.sealed and (following is None or not self.directory.exists(file_name(base, INDEX))):
                if known.next_offset != following:
                    self._grow(known)
                return known
            # Compare the size as well: a new file may reuse the inode number of the one it replaced.
            if known.sealed and known.next_offset == following and known.size == self.directory.size(name):
                return known
        # Map only segments that the writer has sealed, which have an index: a file that may still be truncated must be
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
        """Add complete batches that were appended since, up to the visible end: anything beyond it may be truncated
        again.

        An incomplete batch marks the end: it is still being written, or never was finished. But if the writer has
        recorded it as durable, it is damage, which reads must not skip silently."""
        if self._add_complete_batches(segment):
            return
        saved = self._saved()
        if saved is None or saved.segment != segment.base_offset or segment.size >= saved.position:
            return
        if self._add_complete_batches(segment) or segment.size >= saved.position:
            return  # completed between the two checks
        if segment.storage.size >= saved.position:
            segment.expect(saved.durable_offset, saved.position)
            self._note_transaction(segment, saved.durable_offset)  # batches after the damage were not examined
            segment.use_index(segment.rebuild_index(segment.storage))

    def _add_complete_batches(self, segment: Segment) -> bool:
        """Add complete batches after the known end; return False if other bytes follow them."""
        following, position = segment.tail
        most = 2**63 - 1 if self._published_end is None else self._published_end[0]
        if following >= most:
            return True
        try:
            for chunk in segment.batches(segment.storage, position, segment.storage.size, following):
                # A batch that extends beyond the end is being cut: its file is about to be replaced, not truncated in
                # place.
                rows = chunk.rows if chunk.rows[-1, BASE] < most else chunk.rows[chunk.rows[:, BASE] < most]
                if len(rows):
                    segment.add_batches(rows, chunk.origin)
                    if chunk.special:
                        self._note_transaction(segment, segment.tail[0])
                if segment.tail[0] >= most or len(rows) < len(chunk.rows):
                    break
        except CorruptBatch:
            return False
        return True

    def close(self) -> None:
        """Close all segments and the published end."""
        super().close()
        if self._published is not None:
            self._published.close()

    def _saved(self) -> Checkpoint | None:
        try:
            return checkpoint.load(self.directory)
        except CorruptFile:
            return None

    def _transaction_may_be_open(self, saved: Checkpoint | None) -> bool:
        """Return True if a transaction may be open: one that began before the active segment, by the checkpoint, or one
        found since."""
        if saved is None or saved.undecided or saved.segment != self._list[0][-1].base_offset:
            return True
        return any(not segment.sealed and segment.transactions_until >= 0 for segment in self._list[0])

    def _log_start(self, found: list[Segment], saved: Checkpoint | None) -> int:
        start = found[0].base_offset if found else self.config.initial_offset
        return start if saved is None else max(start, saved.log_start)


class FollowedTransactionView(TransactionView):
    """The transactions of a log, as a reader in another process sees them. It starts from the file `producers`, or from
    the start of the log, and replays the batches after that."""

    _segments: FollowedSegmentSet

    def __init__(self, segments: FollowedSegmentSet) -> None:
        super().__init__(segments)
        #: The offset of the state and its leader epoch; -1 if there is none yet.
        self._reached, self._epoch = -1, -1

    def current(self) -> Transactions:
        """Return the state at the known end of the log, after replaying new batches."""
        with self._lock:
            return self._segments.retry_if_changed(self._catch_up)

    def _catch_up(self) -> Transactions:
        segments = self._segments
        try:
            listed = segments.all
            # Batches beyond the visible end may be truncated, or cannot be read yet.
            end = min(listed[-1].next_offset if listed else 0, segments.visible_offset)
            if (self._reached, self._epoch) == (end, segments.epochs.current) and self.state.open:
                self.state.trim(segments.lowest_offset)
                return self.state
            if self._reached < 0 or self._is_outdated(end):
                self._begin(end)
            elif listed[-1].base_offset > self._reached:
                self._skip_ahead(end)
            self.state.trim(segments.lowest_offset)  # first: new batches do not continue trimmed transactions
            self._replay_new(listed, end)
            if not self.state.open:
                segments.mark_decided(end)
            return self.state
        except (CorruptBatch, StorageError):
            self._reached = -1  # the state may be half updated
            raise

    def _is_outdated(self, end: int) -> bool:
        """Return True if the log was truncated below the offset of the state."""
        known = self._segments.epochs.end_of(self._epoch, end) if self._segments.epochs_known else end
        return known < self._reached

    def _begin(self, end: int) -> None:
        """Start from the file `producers`, else from the start of the log."""
        found = self._producers_file(end)
        if found is None:
            self._from_the_start()
        else:
            self._load(found)

    def _load(self, found: ProducersFile) -> None:
        """Start from the file. Segments sealed since then have their own index."""
        state = Transactions(found.segment)
        state.load(found.open, found.aborted, found.offset - 1)
        self.state, self._reached = state, found.offset

    def _from_the_start(self) -> None:
        start = self._segments.all[0].base_offset if self._segments.all else 0
        self.state, self._reached = Transactions(start), start

    def _producers_file(self, end: int) -> ProducersFile | None:
        try:
            found = ProducersFile.decode(self._segments.directory.read(PRODUCERS))
        except (CorruptFile, StorageError):
            return None
        if self._segments.epochs_known:
            end = self._segments.epochs.end_of(found.leader_epoch, end)
        # A segment that lost its indexes counts as active.
        sealed = all(segment.sealed for segment in self._segments.all if segment.base_offset < found.segment)
        return found if found.offset <= end and sealed else None

    def _skip_ahead(self, end: int) -> None:
        """Load the newer `producers` file that the writer stored when it sealed segments, instead of reading them."""
        found = self._producers_file(end)
        if found is not None and found.offset > self._reached:
            self._load(found)

    def _replay_new(self, listed: Sequence[Segment], end: int) -> None:
        sealed = True
        for segment in listed:
            if sealed and self.state.since < segment.base_offset <= self._reached:
                self.state.begin_segment(segment.base_offset)
            sealed = sealed and segment.sealed
            start = max(self._reached, segment.base_offset)
            stop = min(segment.next_offset, end)
            # An active segment was scanned as it grew, and `transactions_until` tells whether it has any.
            if start < stop and (segment.sealed or segment.transactions_until > start):
                replay_segment(segment, start, stop, self.state)
            self._reached = max(self._reached, stop)
        self._epoch = self._segments.epochs.current

    def _rebuild(self) -> None:
        with self._lock:
            self._segments.retry_if_changed(self._rebuild_sealed)

    def _rebuild_sealed(self) -> None:
        self._segments.mark_undecided()  # a transaction may be open after all
        segments = list(takewhile(lambda segment: segment.sealed, self._segments.all))
        self.state = self._replay(segments)
        if segments:
            self._reached, self._epoch = segments[-1].next_offset, self._segments.epochs.current
            self.state.begin_segment(self._reached)
