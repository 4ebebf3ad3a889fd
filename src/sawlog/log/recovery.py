"""Crash recovery: open a log for writing, repair the traces of a crash, and report them.

A *torn tail* is left by an interrupted write at the end of the last segment. It was never acknowledged, so recovery
saves a copy (`.torn`) and cuts it off. *Corruption* is anything bad below the durable watermark, in a sealed segment,
or after a clean close: acknowledged data. Recovery reports it, serves everything readable around it, puts new records
into a new segment after it, and deletes nothing.

*Missing* records are corruption, too. The checkpoint records where the log starts and how far it was durable; `visible`
records how far readers could read, if the machine was not restarted since; the note of a shared log records where its
last turn ended. If the segments cover less, the log opens with a gap: an empty segment takes the place of a missing
beginning, and new records get offsets after the recorded end. So no offset is ever reused, reading the gap raises
`CorruptBatch`, and `verify` lists it, until the log is trimmed beyond it. See docs/adr/0029.

`RECOVERY_ACTIONS` (recovery_report.py) is the whole policy as a table, and a test covers every entry.

Data above the watermark, complete or not, may be in the page cache without being on disk: an fsync of the previous
process may have failed. So recovery copies the complete batches there to a new file, fsyncs it and renames it into
place. It never rewrites them in place, where a second crash would tear good bytes. A small segment is copied as a
whole; of a large one, only the part above the watermark, which becomes a segment of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from ..clock import Stopwatch
from ..config import LogConfig
from ..display import missing_text
from ..errors import CorruptBatch, CorruptFile, InvalidConfig
from ..storage import Directory, Storage, open_published
from ..storage.counters import count_damage
from . import checkpoint
from .active_segment import delete_above, find_cut_point, truncate_segment
from .batches import Walk
from .catching_up import load_producers, replayed
from .checkpoint import Checkpoint
from .epochs import Epochs, as_the_batches_say, epochs_of, load_epochs, store_epochs, unfinished_truncation
from .files import (
    CHECKPOINT,
    DELETED,
    INDEX,
    LEADER_EPOCHS,
    LOG,
    PRODUCERS,
    QUARANTINED,
    REMOTE,
    SWAP,
    TIME_INDEX,
    TMP,
    TORN,
    VISIBLE,
    file_name,
    has_valid_offsets,
    is_leftover,
    is_ours,
    segment_base,
    swap_range,
    trimmed_base,
)
from .index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, SegmentIndex
from .producers import ProducerState
from .recovery_report import RECOVERY_ACTIONS, Action, RecoveryFinding, RecoveryReport, Where
from .remote import LOST_LIST, UNKNOWN, RemoteSegments, found_remote
from .rewrite import UnfinishedSwap, finish_swap
from .segment import Segment

__all__ = [
    "RECOVERY_ACTIONS",
    "SMALL_BYTES",
    "Action",
    "Recovered",
    "RecoveryFinding",
    "RecoveryReport",
    "Where",
    "recover",
]

#: A segment up to this size is copied as a whole to make its tail durable.
SMALL_BYTES = 16 << 20
_COPY_BYTES = 8 << 20
#: A position after the end of every segment.
_PAST_END = 2**63


@dataclass(slots=True)
class Recovered:
    """The state of a log after recovery."""

    segments: list[Segment]
    lowest_offset: int
    producers: ProducerState
    report: RecoveryReport
    #: The leader epochs so far, and whether those of the batches increase, which version 0.2 did not ensure.
    epochs: Epochs
    epochs_in_order: bool
    #: True if the file on disk has the same epochs.
    epochs_stored: bool
    #: Segments that are only in the replica.
    remote: RemoteSegments | None = None


def recover(directory: Directory, config: LogConfig, *, known_end: int = 0) -> Recovered:
    """Repair the directory and open its segments. The caller holds the lock. If it knows that records below `known_end`
    were durable, their absence is reported."""
    return _Recovery(directory, config, known_end).run()


class _Recovery:
    def __init__(self, directory: Directory, config: LogConfig, known_end: int) -> None:
        self.directory = directory
        self.config = config
        self.report = RecoveryReport()
        #: Visible end before the crash, or an end that the caller knows to be durable.
        self.seen_end = known_end
        #: True if something records the end itself, not just a lower bound.
        self.end_known = known_end > 0
        self.saved: Checkpoint | None = None
        self.remote: RemoteSegments | None = None
        self.clean = False

    def run(self) -> Recovered:
        watch = Stopwatch()
        names = self.directory.names()
        self._load_checkpoint(any(segment_base(name) is not None for name in names))
        self._load_visible()
        trimmed = {base for name in names if (base := trimmed_base(name)) is not None}
        if not self.clean:
            self._sync_names()
        self._remove_leftovers(names)
        if self._finish_swaps(names):
            names = self.directory.names()
        bases = [base for name in names if (base := segment_base(name)) is not None]
        self._check_initial_offset(bases)
        segments = self._segments(bases, trimmed)
        lowest = self._trim(segments)
        self.remote = self._remote(lowest)
        epochs, in_order, stored = self._epochs(segments)
        producers = self._producers(segments, epochs, lowest)
        self.report._note_duration(watch)
        return Recovered(segments, lowest, producers, self.report, epochs, in_order, stored, self.remote)

    def _decide(self, where: Where, detail: str) -> Action:
        action = RECOVERY_ACTIONS[where, self.clean]
        self.report.findings.append(RecoveryFinding(where, action, detail))
        return action

    # --- small files

    def _sync_names(self) -> None:
        """Make file names durable. The process that created a checkpoint, a rewritten segment or a copy of a segment's
        end may have died before it synced the directory, and a removal or cut that relies on it could become durable
        first."""
        self.directory.sync()

    def _remove_leftovers(self, names: list[str]) -> None:
        for name in names:
            if trimmed_base(name) is not None:
                continue  # kept until the checkpoint has the new start: see `_finish_trim`
            if is_leftover(name):
                self._decide(Where.LEFTOVER, name)
                self.directory.remove(name)
            elif not is_ours(name) or not has_valid_offsets(name):
                self._decide(Where.STRANGER, name)

    def _finish_swaps(self, names: list[str]) -> bool:
        """Finish interrupted replacements of segments; return True if there were any."""
        found = [(name, found) for name in names if (found := swap_range(name)) is not None]
        for name, (base, end) in found:
            swap = UnfinishedSwap(self.directory, name, base, end, names, self.config.index_interval_bytes)
            if swap.replaces:
                self._decide(Where.SWAP, name)
                if not swap.whole and base in swap.old:  # the old file may have good copies of damaged records
                    self._decide(Where.SEALED_SEGMENT, f"{name} is damaged, and what it replaces is partly gone")
                    self.directory.rename(file_name(base), file_name(base, LOG + QUARANTINED))
                finish_swap(self.directory, name, base, [each for each in swap.old if each != base])
            else:
                self._decide(Where.DAMAGED_SWAP, name)
                self.directory.rename(name, name.removesuffix(SWAP) + QUARANTINED)
                self.directory.sync()
        return bool(found)

    def _load_checkpoint(self, has_segments: bool) -> None:
        try:
            self.saved = checkpoint.load(self.directory)
        except CorruptFile as error:
            self._decide(Where.CHECKPOINT, str(error))
            return
        if self.saved is not None:
            self.clean = self.saved.clean
        elif has_segments:
            self._decide(Where.CHECKPOINT, f"{CHECKPOINT} is missing")
        else:
            self.clean = True  # a new log

    def _load_visible(self) -> None:
        published = open_published(self.directory, VISIBLE)
        if published is None:
            return
        try:
            told = published.load()
            if told is not None:
                proven = checkpoint.proven_end(self.directory, self.saved, told)
                self.seen_end = max(self.seen_end, proven)
                self.end_known = self.end_known or proven == told[0]
        finally:
            published.close()

    def _check_initial_offset(self, bases: list[int]) -> None:
        if not bases:
            return
        start = bases[0] if self.saved is None else max(bases[0], self.saved.log_start)
        if start < self.config.initial_offset:
            raise InvalidConfig(
                f"the log {self.directory.path} starts at offset {start}, below initial_offset "
                f"{self.config.initial_offset}; that setting is for new logs"
            )

    # --- segments

    def _segments(self, bases: list[int], trimmed: set[int]) -> list[Segment]:
        if not bases:
            return self._first_segments()
        trusted = self._trusted_end(bases[-1])
        self.report.clean = self.clean and trusted
        segments = self._finish_trim(bases[0], trimmed) if trimmed else self._missing_beginning(bases[0])
        sealed = [self._sealed(base, following) for base, following in pairwise(bases)]
        self._check_ends(sealed)
        segments.extend(sealed)
        segments.extend(self._last(bases[-1], trusted))
        return segments

    def _first_segments(self) -> list[Segment]:
        """Create the first segment of a new log, or of a log that lost all segments, after its recorded end."""
        start = self.config.initial_offset if self.saved is None else self.saved.log_start
        end = max(start, self.seen_end, 0 if self.saved is None else self.saved.durable_offset)
        if end == start and not self.end_known and not self.clean:
            end += 1  # segments existed, and nothing records where they ended: report at least one offset
        self.report.clean = self.clean and end == start
        lost = [] if end == start else [self._placeholder(start, end, Where.ALL_SEGMENTS)]
        end = max(end, self.config.initial_offset)
        return [*lost, Segment.create(self.directory, end, self.config.index_interval_bytes)]

    def _missing_beginning(self, first: int) -> list[Segment]:
        """Return a placeholder if the first segments are missing. The start in the checkpoint moves before segments are
        deleted. An empty log loses nothing: its start may change at any time."""
        saved = self.saved
        if saved is None or not saved.log_start < min(first, saved.durable_offset):
            return []
        return [self._placeholder(saved.log_start, first, Where.BEGINNING)]

    def _finish_trim(self, first: int, trimmed: set[int]) -> list[Segment]:
        """Record the new start of a log that was trimmed on a full disk: its segments were deleted first
        (retention.py)."""
        if self.saved is not None and first > self.saved.log_start:
            self.saved = replace(self.saved, log_start=first)
            checkpoint.store(self.directory, self.saved)
        for base in sorted(trimmed):
            self._decide(Where.LEFTOVER, file_name(base, LOG + DELETED))
            self.directory.remove(file_name(base, LOG + DELETED))
        return []

    def _placeholder(self, start: int, end: int, where: Where) -> Segment:
        """Create an empty segment for offsets whose records are lost. Reading it raises; it is trimmed like any
        other."""
        path = f"{self.directory.path}/{file_name(start)}"
        self._decide(where, f"{path} at byte 0: {missing_text(start, end)}")
        count_damage(path, 0)
        made = Segment.create(self.directory, start, self.config.index_interval_bytes)
        made.reach(end, 0)
        made.seal()
        return made

    def _check_ends(self, sealed: list[Segment]) -> None:
        """Report segments that were sealed before the checkpoint and end too early or are missing. Skipped if their
        number and total size match the checkpoint. A process that dies while it replaces or deletes segments changes
        these, too."""
        saved = self.saved
        if saved is None or saved.sealed is None:
            return
        old = [each for each in sealed if each.base_offset < saved.segment and each.next_offset > saved.log_start]
        if saved.sealed == (len(old), sum(each.size for each in old)):
            return
        for segment in old:
            reason = segment.missing_end()
            segment.unload()
            if reason is not None:
                self._decide(Where.GAP_BETWEEN_SEGMENTS, f"{segment.path} at byte {segment.size}: {reason}")
                count_damage(segment.path, segment.size)

    def _trusted_end(self, last_base: int) -> bool:
        """Return True if the log was closed cleanly and still ends where it did."""
        saved = self.saved
        return (
            saved is not None
            and saved.clean
            and saved.segment == last_base
            and saved.durable_offset >= self.seen_end
            and self.directory.size(file_name(last_base)) == saved.position
        )

    def _sealed(self, base: int, following: int) -> Segment:
        """Open a segment before the last. One that was sealed before the checkpoint is trusted until it is read."""
        size = self.directory.size(file_name(base))
        segment = Segment(self.directory, base, following, size, self.config.index_interval_bytes, repairs=True)
        if self.saved is not None and following <= self.saved.log_start:
            return segment  # an interrupted trim: `_trim` deletes it
        if self.clean or (self.saved is not None and base < self.saved.segment):
            if not self._has_index_files(base):
                self._rebuild_index(segment)
            return segment
        storage = self.directory.open(file_name(base))
        index = SegmentIndex(base, self.config.index_interval_bytes)
        walk = segment.walk(storage, 0, size, index)
        if walk.next_offset > following:
            self._cut_overlap(segment, storage, following, segment.end_below(storage, following))
        elif walk.damage is not None and self._was_split(base, following, walk):
            self._cut_overlap(segment, storage, following, walk.position)
        elif walk.damage is not None:
            self._decide(Where.SEALED_SEGMENT, str(walk.damage))
            count_damage(walk.damage.path, walk.damage.position)
        elif walk.next_offset < following:
            reason = missing_text(walk.next_offset, following)
            self._decide(Where.GAP_BETWEEN_SEGMENTS, f"{segment.path} at byte {walk.position}: {reason}")
        storage.close()
        self._rebuild_index(segment)
        return segment

    def _was_split(self, base: int, following: int, walk: Walk) -> bool:
        """Return True if an earlier recovery moved everything above the watermark to the next segment, and a power cut
        interrupted the cut here."""
        saved = self.saved
        return saved is not None and (base, following, walk.position) == (
            saved.segment,
            saved.durable_offset,
            saved.position,
        )

    def _has_index_files(self, base: int) -> bool:
        for suffix, entry_bytes in ((INDEX, OFFSET_ENTRY_BYTES), (TIME_INDEX, TIME_ENTRY_BYTES)):
            name = file_name(base, suffix)
            if not self.directory.exists(name) or self.directory.size(name) % entry_bytes:
                return False
        return True

    def _rebuild_index(self, segment: Segment) -> None:
        self._decide(Where.INDEX, f"the indexes of {segment.path}")
        self.report._note_index()
        segment.remove_index()
        segment.timestamps()  # loading rebuilds the index, and `repairs` writes it
        segment.unload()

    def _cut_overlap(self, segment: Segment, storage: Storage, following: int, end: int) -> None:
        """Finish an interrupted recovery that moved the end of this segment to the next one."""
        if self._decide(Where.OVERLAP_OF_SEGMENTS, f"{segment.path} from byte {end} on") is Action.FINISH:
            segment.remove_index()
            storage.truncate(end)
            storage.sync()
            segment.truncate_to((following, end))

    # --- the last segment

    def _last(self, base: int, trusted: bool) -> list[Segment]:
        interval = self.config.index_interval_bytes
        storage = self.directory.open(file_name(base))
        size = storage.size
        if trusted and self.saved is not None:
            segment = Segment(self.directory, base, self.saved.durable_offset, size, interval)
            index = segment.sound_index(storage) if size else SegmentIndex(base, interval)
            if index is not None:
                segment.remove_index()
                return [self._activate(base, storage, index, self.saved.durable_offset, size)]
            self._decide(Where.INDEX, f"the indexes of {segment.path}")
            self.report._note_index()
        saved = self.saved
        whole = saved is not None and (saved.segment, saved.position) == (base, size)
        expected = saved.durable_offset if saved is not None and whole else None
        segment = Segment(self.directory, base, base, size, interval, sealed=False, expected_end=expected)
        segment.remove_index()
        index = SegmentIndex(base, interval)
        walk = segment.walk(storage, 0, size, index)
        below, above = self._watermark(base)
        seen = walk.next_offset >= self.seen_end
        gone = below == _PAST_END
        if (
            walk.damage is None
            and (gone or walk.position >= below)
            and (above is None or walk.next_offset >= above)
            and seen
        ):
            if not (self.clean and trusted):
                return self._make_durable(segment, storage, index, walk, min(below, walk.position))
            return [self._activate(base, storage, index, walk.next_offset, walk.position)]
        # Without a checkpoint, the watermark is unknown; but complete batches never follow a torn tail.
        torn = walk.position >= below and (self.saved is not None or walk.resume_position >= size)
        if walk.damage is not None and torn and seen:
            detail = f"{size - walk.position:,} bytes at byte {walk.position} of {segment.path}: {walk.damage.reason}"
            if self._decide(Where.TAIL_ABOVE_WATERMARK, detail) is Action.CUT_ASIDE:
                self._save_torn_tail(segment, storage, walk)
                return self._make_durable(segment, storage, index, walk, below)
        else:
            end = max(self.seen_end, 0 if above is None else above)
            lost = f"{segment.path} at byte {walk.position}: {missing_text(walk.next_offset, end)}"
            if walk.next_offset >= end:
                lost = f"{segment.path} at byte {walk.position}: it ends"
            detail = lost if walk.damage is None else str(walk.damage)
            if seen or (above is not None and walk.next_offset < above):
                why = f"it was durable up to byte {below}"
                if gone and saved is not None:
                    why = f"the checkpoint names {file_name(saved.segment)}, which does not exist"
                self._decide(Where.TAIL_BELOW_WATERMARK, f"{detail}; {why}")
            else:
                where = "" if walk.damage is None else f", at offset {walk.next_offset}"
                self._decide(Where.TAIL_BELOW_VISIBLE, f"{detail}{where}; it was readable up to offset {self.seen_end}")
            count_damage(segment.path, walk.position)
        return self._continue_after_damage(segment, storage, index, walk)

    def _watermark(self, base: int) -> tuple[int, int | None]:
        """Return (position, offset) of the durable watermark in the last segment: 0 and None if it is in an earlier
        segment, `_PAST_END` if it is in a later one, which is missing."""
        if self.saved is None or self.saved.segment < base:
            return 0, None
        if self.saved.segment > base:  # the segment in the checkpoint is missing
            return _PAST_END, self.saved.end_without_segment(known=self.end_known)
        return self.saved.position, self.saved.durable_offset

    def _activate(
        self,
        base: int,
        storage: Storage,
        index: SegmentIndex,
        following: int,
        size: int,
        *,
        repairs: bool = False,
    ) -> Segment:
        segment = Segment.active(self.directory, base, storage, index, following, size, repairs=repairs)
        segment.timestamps()  # loads the first timestamp, from which its age counts
        return segment

    def _save_torn_tail(self, segment: Segment, storage: Storage, walk: Walk) -> None:
        """Copy the torn tail to a `.torn` file for inspection, before it is cut off."""
        name = file_name(segment.base_offset, LOG + TORN)
        number = 1
        while self.directory.exists(name):
            name = f"{file_name(segment.base_offset, LOG + TORN)}.{number}"
            number += 1
        tail = storage.read(walk.position, storage.size - walk.position)
        written = bool(tail.strip(b"\0"))  # only zeros: space that was reserved and never written
        if written:
            self.directory.replace(name, tail)
        self.report._note_torn(len(tail), name if written else None)

    def _make_durable(
        self, segment: Segment, storage: Storage, index: SegmentIndex, walk: Walk, watermark: int
    ) -> list[Segment]:
        """Make the complete batches of the last segment durable, and cut off the rest."""
        base, end = segment.base_offset, walk.position
        if end == watermark and end == storage.size:
            storage.sync()  # a process that died before its sync may have cut the file only in the cache
            return [self._activate(base, storage, index, walk.next_offset, end)]
        if end == watermark or (end > SMALL_BYTES and watermark > 0):
            return self._split(segment, storage, walk, watermark)
        copy = self._copy(storage, 0, end, base)
        storage.close()
        return [self._activate(base, copy, index, walk.next_offset, end)]

    def _split(self, segment: Segment, storage: Storage, walk: Walk, watermark: int) -> list[Segment]:
        """Leave the durable part in place; move complete batches above it to a new segment."""
        base, end, interval = segment.base_offset, walk.position, self.config.index_interval_bytes
        moved: list[Segment] = []
        if end > watermark and self.saved is not None:
            following = self.saved.durable_offset
            tail = self._copy(storage, watermark, end, following)
            rest = Segment(self.directory, following, following, end - watermark, interval)
            index = SegmentIndex(following, interval)
            rest.walk(tail, 0, end - watermark, index)
            moved.append(self._activate(following, tail, index, walk.next_offset, end - watermark))
        storage.truncate(watermark)
        storage.sync()
        index = SegmentIndex(base, interval)
        following = segment.walk(storage, 0, watermark, index).next_offset
        kept = self._activate(base, storage, index, following, watermark, repairs=bool(moved))
        if moved:
            kept.seal()
        return [kept, *moved]

    def _copy(self, storage: Storage, start: int, end: int, base: int) -> Storage:
        """Copy bytes `start` to `end` to a new file for segment `base`: write it next to the old one, sync, rename."""
        name = file_name(base)
        self.directory.remove(name + TMP)
        copy = self.directory.create(name + TMP)
        for position in range(start, end, _COPY_BYTES):
            copy.append(storage.read(position, min(_COPY_BYTES, end - position)))
        copy.sync()
        copy.close()
        self.directory.rename(name + TMP, name)
        self.directory.sync()
        return self.directory.open(name)

    def _continue_after_damage(
        self, segment: Segment, storage: Storage, index: SegmentIndex, walk: Walk
    ) -> list[Segment]:
        """Seal a last segment with damaged acknowledged data as it is, and continue in a new one."""
        following = walk.next_offset
        while walk.damage is not None and walk.resume_position < storage.size:
            walk = segment.walk(storage, walk.resume_position, storage.size, index, resumed=True)
            following = max(following, walk.next_offset)
        durable = 0 if self.saved is None else self.saved.durable_offset
        following = max(following, self.seen_end, durable, self._watermark(segment.base_offset)[1] or 0)
        if following == segment.base_offset:
            following += 1  # its content is unknown, and its name must not be reused
        storage.sync()
        base, size = segment.base_offset, storage.size
        kept = Segment.active(self.directory, base, storage, index, following, size, repairs=True)
        kept.seal()
        return [kept, Segment.create(self.directory, following, self.config.index_interval_bytes)]

    # --- the beginning, and the producers

    def _trim(self, segments: list[Segment]) -> int:
        """Finish an interrupted trim: delete segments completely below the log start."""
        lowest = segments[0].base_offset
        if self.saved is None or self.saved.log_start <= lowest:
            return lowest
        lowest = self.saved.log_start
        while len(segments) > 1 and segments[0].next_offset <= lowest:
            segments.pop(0).delete()
        active = segments[-1]
        if active.next_offset < lowest:  # its records are lost; offsets must not go back
            active.seal()
            segments.append(Segment.create(self.directory, lowest, self.config.index_interval_bytes))
            segments.pop(-2).delete()
        return lowest

    def _remote(self, lowest: int) -> RemoteSegments | None:
        found = found_remote(self.directory, lowest, must_exist=self.saved is not None and self.saved.remote)
        if found is UNKNOWN:
            self._decide(Where.REMOTE, f"{self.directory.path}/{REMOTE} at byte 0: {LOST_LIST}")
        return found

    def _epochs(self, segments: list[Segment]) -> tuple[Epochs, bool, bool]:
        """Return the leader epochs from their file, if its checksum is the one in the checkpoint, else from the
        batches. Also return whether the epochs of the batches increase, and whether the file on disk has the same
        list."""
        saved = self.saved
        try:
            found = load_epochs(self.directory)
        except CorruptFile as error:
            found = None
            self._decide(Where.EPOCHS, str(error))
        if saved is not None and saved.leader_epoch is not None:
            known = Epochs() if found is None and saved.leader_epoch == 0 else found
            if known is not None and known.crc == saved.epochs_crc:
                return self._finish_truncation(known, saved, segments)
            if found is None:
                self._decide(Where.EPOCHS, f"{LEADER_EPOCHS} is missing, and the log is in epoch {saved.leader_epoch}")
        rebuilt, in_order = epochs_of(segments, self.remote)
        # The last recorded epoch may have no batch yet, and epoch numbers are never reused.
        last = max(0 if saved is None else saved.leader_epoch or 0, 0 if found is None else found.current)
        if last > rebuilt.current:
            rebuilt = rebuilt.begun(last, segments[-1].next_offset)
        return rebuilt, in_order, rebuilt == (Epochs() if found is None else found)

    def _finish_truncation(
        self, epochs: Epochs, saved: Checkpoint, segments: list[Segment]
    ) -> tuple[Epochs, bool, bool]:
        """Finish an interrupted truncation, if there was one. If the records to drop are too damaged to be cut, keep
        all of them, and let the epoch begin after them."""
        offset = None if self.report.clean else unfinished_truncation(epochs, segments)
        if offset is None:
            return epochs, True, True
        if saved.durable_offset > offset:
            self._decide(
                Where.EPOCHS, f"epoch {epochs.current} begins at {offset}, but the batch there is of an earlier one"
            )
            return as_the_batches_say(epochs, segments, self.remote), True, False
        detail = f"from offset {offset} on"
        at = max(number for number, segment in enumerate(segments) if segment.base_offset <= offset)
        try:
            point = find_cut_point(segments[at], offset, self.config)
        except CorruptBatch as damage:
            self._decide(Where.SEALED_SEGMENT, f"{detail}, records were to be truncated: {damage}")
        else:
            if self._decide(Where.TRUNCATION, detail) is Action.FINISH:
                # Make the record of the truncation durable before any file changes.
                store_epochs(self.directory, epochs)
                self._lower_visible_end(offset, epochs.current)
                offset, segment, position = min(point.tail, (saved.durable_offset, saved.segment, saved.position))
                noted = replace(saved, durable_offset=offset, segment=segment, position=position)
                checkpoint.store(self.directory, noted)
                delete_above(self.directory, segments[at].base_offset)
                segments[at:] = [truncate_segment(self.directory, self.config, point)]
                return epochs, True, True
        return as_the_batches_say(epochs, segments, self.remote), True, False

    def _lower_visible_end(self, offset: int, epoch: int) -> None:
        """Lower the published end before a truncation is finished, as its writer would have done."""
        published = open_published(self.directory, VISIBLE, create=True)
        if published is None:
            return
        try:
            told = published.load()
            if told is not None and told[0] > offset:
                published.store(offset, epoch)
        finally:
            published.close()

    def _producers(self, segments: list[Segment], epochs: Epochs, lowest: int) -> ProducerState:
        found = None
        try:
            found = load_producers(self.directory, epochs, segments[-1].next_offset)
        except CorruptFile as error:
            self._decide(Where.PRODUCERS, str(error))
        else:
            missing = found is None and not self.directory.exists(PRODUCERS)
            if missing and self.clean and self.saved is not None and any(segment.size for segment in segments):
                self._decide(Where.PRODUCERS, f"{PRODUCERS} is missing")
        if found is not None and found.segment > segments[-1].base_offset:
            found = None  # of another list of segments: aborted transactions of the active one are unknown
        return replayed(segments, self.config.producer_expiry_ms, found, lowest=lowest)
