"""The segments of a log that another process may be writing, trimming and replacing.

A reader takes no lock and writes nothing. It checks the directory again (`refresh`) when it runs out of records or a
file is missing, and trusts only complete batches up to the visible end that the writer publishes (see visible.py).

Records are missing if the segments begin after the start in the checkpoint, end before the visible end (the durable
one, if none is published), or one below that end stops short of the next. If the checkpoint requires the file `remote`
and it is missing, the replica knows where the log begins. The list then covers the missing offsets all the same:
reading them raises `CorruptBatch`, and everything else can be read. That holds for a log without any segment, too: if
its files say that it had one, it is opened as a log that has lost its records. A writer that is changing files is no
reason to report a loss: it records a new start or end before it removes anything. So a second look must find exactly
what the first one has found.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Sequence

from ..batch.header import BASE
from ..config import LogConfig
from ..errors import CorruptBatch, CorruptFile, StorageError
from ..storage import Directory, MemoryDirectory, Published, open_published
from ..storage.forking import forkable
from . import checkpoint
from .checkpoint import Checkpoint
from .epoch_history import as_the_batches_say, epochs_of, unfinished_truncation
from .epochs import Epochs, load_epochs
from .files import CHECKPOINT, INDEX, REMOTE, VISIBLE, dropped_base, file_name, segment_base, swap_range
from .index import SegmentIndex
from .remote import UNKNOWN, found_remote
from .segment import Segment
from .segments import SegmentSet
from .transaction_view import FollowedOutlook, Outlook
from .turn_note import noted_end


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


class _Unsure(StorageError):
    """Look again."""


class FollowedSet(SegmentSet):
    """A reader's view of a log that another process may be writing, trimming and replacing."""

    __slots__ = (
        "_extended",
        "_published",
        "_published_as",
        "_rebuilt",
        "_refreshing",
        "_remote_as",
        "_seen",
        "_suspicion",
        "_told",
    )

    def __init__(self, directory: Directory, config: LogConfig, *, late: bool = False) -> None:
        """Reads the directory immediately, or, if `late`, when it is first needed."""
        super().__init__(directory, config)
        self._refreshing = forkable(threading.Lock())
        self.unsettled = True  # until it is known
        #: The directory's stamp when it was last listed, and what was published then, or else the size of the active
        #: file.
        self._seen: tuple[object, object] = (None, None)
        #: The directory's stamp when the list of what is only in the replica was last read.
        self._remote_as: object = None
        self._published: Published | None = None
        self._published_as: object = None
        #: The visible end and the epoch that the writer has published; None: every complete batch may be read.
        self._told: tuple[int, int] | None = None
        #: What a look has found that may be a loss.
        self._suspicion: object = None
        #: The segments whose ends are missing.
        self._extended: set[Segment] = set()
        #: Whether the epochs were rebuilt from the batches, because their file is not usable.
        self._rebuilt = False
        if not late:
            self.refresh()

    def _outlook(self) -> Outlook:
        return FollowedOutlook(self)

    def settle(self, end: int) -> None:
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
        tail = self._list[0][-1].tail if self._list[0] else None
        return self.lowest_offset, self.visible_offset, self._list[0], tail, self.remote

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
        self._look_through(stamp)
        self._look_at_epochs()
        if self._told is None and self.epochs_known:
            self._hide_what_goes()
        active = self._list[0][-1] if self._list[0] else None
        if self._suspicion is not None or self._extended:
            self._seen = None, None  # records are missing, and may be restored without a new name
        elif self._told is not None and self.visible_offset >= self._told[0]:
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
            found, _ = epochs_of(self._list[0], self.remote)
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
            end = unfinished_truncation(self.epochs, self._list[0])
            if end is not None and saved.durable_offset <= end:
                self.visible_offset = end
                self.unsettle()  # a marker may go with it
            elif end is not None:
                self.epochs = as_the_batches_say(self.epochs, self._list[0], self.remote)

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

    def _look_through(self, stamp: object) -> None:
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
            self.unsettled = self._may_be_undecided(saved)
        if not found and self._list[0]:
            return  # the directory was deleted: what is open can still be read
        end = self.next_offset if found else start
        # What was published may be of a longer log than there is: damage, or files that are just being replaced.
        self.visible_offset = end if self._told is None else min(self._told[0], end)
        if self.visible_offset < end:
            self.unsettle()  # what decides a transaction may be among what is not shown
        if found and self.visible_offset < start and (end >= start or not self.all[-1].size):
            self.visible_offset = start  # it begins there, and nothing has been published yet
        # After damage the log may end before the offset that it was trimmed to.
        lowest = min(max(self.lowest_offset, start), self.visible_offset) if found else start
        # After the files: whatever was not found of them is listed there by now.
        if REMOTE not in names:
            must_exist = saved is not None and saved.remote
            self.remote, self._remote_as = UNKNOWN if must_exist else None, None
        elif self._remote_as is None or self._remote_as != stamp:
            self.remote, self._remote_as = found_remote(self.directory, lowest), stamp
        self.lowest_offset = lowest

    def _with_gaps(self, names: Sequence[str], found: list[Segment], saved: Checkpoint | None) -> list[Segment]:
        """The segments, extended by offsets whose records are missing: at the beginning, at the end, or between two
        segments. A sealed segment without an index ends where its batches do, so it may stop short of the next one."""
        start = self.config.initial_offset if saved is None else saved.log_start
        durable = 0 if saved is None else saved.durable_offset
        end = self._recorded_end(names, found, saved, start)
        first = found[0].base_offset if found else end
        lost_first = start < (min(first, durable) if found else end)
        lost_first = lost_first and not any(dropped_base(name) is not None for name in names)
        # Above the end, a truncation may be under way. If nothing records an end, there is none.
        no_end = saved is None and self._told is None
        ends = [each.base_offset if no_end else min(each.base_offset, end) for each in found[1:]]
        short = [(each, most) for each, most in zip(found, [*ends, end], strict=False) if each.next_offset < most]
        self._extended.intersection_update(found)
        lost_list = saved is not None and saved.remote and REMOTE not in names
        if not (lost_first or short or lost_list) or (not found and self._list[0]):
            self._suspicion = None
            return found
        suspicion = names, saved, self._told, [each.tail for each in found]
        if self._suspicion != suspicion:
            self._suspicion = suspicion
            raise _Unsure(errno.EAGAIN, f"{self.directory.path} lacks records, or is just being changed")
        for segment, most in short:
            self._extended.add(segment)
            segment.expect(most, max(segment.storage.size, segment.size))
            self._meet(segment, most)  # what is after the gap was not looked at
            segment.use_index(segment.rebuild_index(segment.storage))
        if lost_first:
            storage = MemoryDirectory().create(file_name(start))
            index = SegmentIndex(start, self.config.index_interval_bytes)
            lost = Segment.active(self.directory, start, storage, index, first, 0)
            lost.stay_open()
            found = [lost, *found]
        return found

    def _recorded_end(self, names: Sequence[str], found: list[Segment], saved: Checkpoint | None, start: int) -> int:
        """Return where the log ends as far as something records it. Recovery uses the same evidence."""
        if self._told is not None:
            return self._told[0]
        end, noted = 0 if saved is None else saved.durable_offset, noted_end(self.directory)
        if saved is not None and found and saved.segment > found[-1].base_offset:
            end = saved.end_without_segment(known=noted > 0)
        if not found and not noted and end <= start and CHECKPOINT in names and (saved is None or not saved.clean):
            end = start + 1  # segments existed, and nothing records where they ended
        return max(end, noted)

    def _segment(self, base: int, following: int | None, known: Segment | None, name: str) -> Segment:
        identity = self.directory.identity(name)
        if known in self._extended and (known.next_offset != following or known.size != known.storage.size):
            known = None  # its end was missing, and may have been restored
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
