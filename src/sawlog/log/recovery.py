"""Opens a log for writing: finds out how it ended, repairs what a crash can leave, and reports all of it.

A *torn tail* is what an interrupted write leaves at the end of the last segment. It was never acknowledged, so it is
cut off, after it was saved (`.torn`). *Corruption* is anything bad below the durable watermark, in a sealed segment, or
after a clean close: data that was acknowledged. It is reported, everything readable around it is served, new records go
to a new segment after it, and nothing is deleted.

*Missing* records are corruption, too. The checkpoint says where the log starts and how far it was durable; `visible`
says how far readers could read, if the machine has not been restarted since; the note of a shared log says where its
last turn ended. If the segments cover less, the log is opened with a gap: an empty segment stands in for a missing
beginning, and new records get offsets after the recorded end. So no offset is ever reused, reading the gap raises
`CorruptBatch`, and `verify` lists it, until the log is trimmed beyond it. See docs/adr/0029.

`DECISIONS` (findings.py) is the whole policy as a table. A test covers all of it.

What is above the watermark, complete or not, may be in the page cache without being on the disk: the fsync of the
previous process may have failed. So the complete batches there are copied to a new file, which is fsynced and renamed
into place. They are never rewritten in place: a second crash would tear good bytes. A small segment is copied as a
whole; of a large one, only the part above the watermark, which becomes its own segment.
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
from .batches import Walk
from .checkpoint import Checkpoint
from .epoch_history import as_the_batches_say, epochs_of, unfinished_truncation
from .epochs import Epochs, load_epochs, store_epochs
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
    dropped_base,
    file_name,
    is_leftover,
    is_ours,
    is_placed,
    segment_base,
    swap_range,
)
from .index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, SegmentIndex
from .producers import ProducerState, load_producers, replayed
from .recovery_report import DECISIONS, Action, RecoveryFinding, RecoveryReport, Where
from .remote import LOST_LIST, UNKNOWN, RemotePart, found_remote
from .replacement import UnfinishedSwap, finish_swap
from .segment import Segment
from .truncation import delete_above, find_cut_point, truncate_segment

__all__ = [
    "DECISIONS",
    "SMALL_BYTES",
    "Action",
    "Finding",
    "Recovered",
    "RecoveryFinding",
    "RecoveryReport",
    "Where",
    "recover",
]

#: The earlier name; it stays until version 0.4.
Finding = RecoveryFinding

#: A segment up to this size is copied as a whole when its tail has to be made durable again.
SMALL_BYTES = 16 << 20
_COPY_BYTES = 8 << 20
#: A position after the end of every segment.
_BEHIND = 2**63


@dataclass(slots=True)
class Recovered:
    """What a log starts from."""

    segments: list[Segment]
    lowest_offset: int
    producers: ProducerState
    report: RecoveryReport
    #: The leader epochs so far; and whether those of the batches increase, which version 0.2 did not ensure.
    epochs: Epochs
    epochs_in_order: bool
    #: Whether their file has the same content.
    epochs_stored: bool
    #: What is only in the replica.
    remote: RemotePart | None = None


def recover(directory: Directory, config: LogConfig, *, known_end: int = 0) -> Recovered:
    """Repair the directory and open its segments. The caller holds the lock, and may know of records below
    `known_end` that were durable."""
    return _Recovery(directory, config, known_end).run()


class _Recovery:
    def __init__(self, directory: Directory, config: LogConfig, known_end: int) -> None:
        self.directory = directory
        self.config = config
        self.report = RecoveryReport()
        #: The end of what readers could read, or of what the caller knows to be durable.
        self.seen_end = known_end
        #: Whether something records the end itself, not just a lower bound of it.
        self.end_known = known_end > 0
        self.saved: Checkpoint | None = None
        self.remote: RemotePart | None = None
        self.clean = False

    def run(self) -> Recovered:
        watch = Stopwatch()
        names = self.directory.names()
        self._load_checkpoint(any(segment_base(name) is not None for name in names))
        self._load_visible()
        trimmed = {base for name in names if (base := dropped_base(name)) is not None}
        if not self.clean:
            self._keep_names()
        self._tidy(names)
        if self._finish_swaps(names):
            names = self.directory.names()
        bases = [base for name in names if (base := segment_base(name)) is not None]
        self._check_initial_offset(bases)
        segments = self._segments(bases, trimmed)
        lowest = self._trim(segments)
        self.remote = self._remote(lowest)
        epochs, in_order, stored = self._epochs(segments)
        producers = self._producers(segments, epochs, lowest)
        self.report.finish(watch.elapsed_ms)
        return Recovered(segments, lowest, producers, self.report, epochs, in_order, stored, self.remote)

    def _find(self, where: Where, detail: str) -> Action:
        action = DECISIONS[where, self.clean]
        self.report.findings.append(RecoveryFinding(where, action, detail))
        return action

    # --- small files

    def _keep_names(self) -> None:
        """Make names durable: the process that created one may have died, or failed, before that: a checkpoint, a
        rewritten segment, a copy of a segment's end. What is removed or cut because of it may be durable sooner."""
        self.directory.sync()

    def _tidy(self, names: list[str]) -> None:
        for name in names:
            if dropped_base(name) is not None:
                continue  # until the checkpoint has the new start: see `_finish_trim`
            if is_leftover(name):
                self._find(Where.LEFTOVER, name)
                self.directory.remove(name)
            elif not is_ours(name) or not is_placed(name):
                self._find(Where.STRANGER, name)

    def _finish_swaps(self, names: list[str]) -> bool:
        """Finish rewritten segments that had not replaced the old ones yet; returns whether there were any."""
        found = [(name, found) for name in names if (found := swap_range(name)) is not None]
        for name, (base, end) in found:
            swap = UnfinishedSwap(self.directory, name, base, end, names, self.config.index_interval_bytes)
            if swap.replaces:
                self._find(Where.SWAP, name)
                if not swap.whole and base in swap.old:  # it may contain good copies of what is damaged in the new one
                    self._find(Where.SEALED_SEGMENT, f"{name} is damaged, and what it replaces is partly gone")
                    self.directory.rename(file_name(base), file_name(base, LOG + QUARANTINED))
                finish_swap(self.directory, name, base, [each for each in swap.old if each != base])
            else:
                self._find(Where.DAMAGED_SWAP, name)
                self.directory.rename(name, name.removesuffix(SWAP) + QUARANTINED)
                self.directory.sync()
        return bool(found)

    def _load_checkpoint(self, has_segments: bool) -> None:
        try:
            self.saved = checkpoint.load(self.directory)
        except CorruptFile as error:
            self._find(Where.CHECKPOINT, str(error))
            return
        if self.saved is not None:
            self.clean = self.saved.clean
        elif has_segments:
            self._find(Where.CHECKPOINT, f"{CHECKPOINT} is missing")
        else:
            self.clean = True  # a new log

    def _load_visible(self) -> None:
        published = open_published(self.directory, VISIBLE)
        if published is None:
            return
        try:
            told = published.load()
            if told is not None:
                self.seen_end, self.end_known = max(self.seen_end, told[0]), True
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
        self.report.note_end(clean=self.clean and trusted)
        segments = self._finish_trim(bases[0], trimmed) if trimmed else self._missing_beginning(bases[0])
        sealed = [self._sealed(base, following) for base, following in pairwise(bases)]
        self._check_ends(sealed)
        segments.extend(sealed)
        segments.extend(self._last(bases[-1], trusted))
        return segments

    def _first_segments(self) -> list[Segment]:
        """A new log; or one that has lost all segments, and continues after its recorded end."""
        start = self.config.initial_offset if self.saved is None else self.saved.log_start
        end = max(start, self.seen_end, 0 if self.saved is None else self.saved.durable_offset)
        if end == start and not self.end_known and not self.clean:
            end += 1  # segments existed, and nothing records where they ended: report at least one offset
        self.report.note_end(clean=self.clean and end == start)
        lost = [] if end == start else [self._stand_in(start, end, Where.ALL_SEGMENTS)]
        end = max(end, self.config.initial_offset)
        return [*lost, Segment.create(self.directory, end, self.config.index_interval_bytes)]

    def _missing_beginning(self, first: int) -> list[Segment]:
        """The start moves in the checkpoint before segments are deleted. Nothing is lost of a log that was empty: it
        may get another start at any time."""
        saved = self.saved
        if saved is None or not saved.log_start < min(first, saved.durable_offset):
            return []
        return [self._stand_in(saved.log_start, first, Where.BEGINNING)]

    def _finish_trim(self, first: int, trimmed: set[int]) -> list[Segment]:
        """On a full disk, segments were deleted before the new start could be recorded (see trimming.py): record
        it."""
        if self.saved is not None and first > self.saved.log_start:
            self.saved = replace(self.saved, log_start=first)
            checkpoint.store(self.directory, self.saved)
        for base in sorted(trimmed):
            self._find(Where.LEFTOVER, file_name(base, LOG + DELETED))
            self.directory.remove(file_name(base, LOG + DELETED))
        return []

    def _stand_in(self, start: int, end: int, where: Where) -> Segment:
        """An empty segment for offsets whose records are lost: reading it raises, and it is trimmed like another."""
        path = f"{self.directory.path}/{file_name(start)}"
        self._find(where, f"{path} at byte 0: {missing_text(start, end)}")
        count_damage(path, 0)
        made = Segment.create(self.directory, start, self.config.index_interval_bytes)
        made.reach(end, 0)
        made.seal()
        return made

    def _check_ends(self, sealed: list[Segment]) -> None:
        """Look for segments that were sealed before the checkpoint and end too early, or are missing, unless their
        number and sizes are those in the checkpoint. Segments that are being replaced or deleted when the process ends
        change these, too."""
        saved = self.saved
        if saved is None or saved.sealed is None:
            return
        old = [each for each in sealed if each.base_offset < saved.segment and each.next_offset > saved.log_start]
        if saved.sealed == (len(old), sum(each.size for each in old)):
            return
        for segment in old:
            reason = segment.short_end()
            segment.unload()
            if reason is not None:
                self._find(Where.GAP_BETWEEN_SEGMENTS, f"{segment.path} at byte {segment.size}: {reason}")
                count_damage(segment.path, segment.size)

    def _trusted_end(self, last_base: int) -> bool:
        """Whether the log was closed cleanly and still ends there."""
        saved = self.saved
        return (
            saved is not None
            and saved.clean
            and saved.segment == last_base
            and saved.durable_offset >= self.seen_end
            and self.directory.size(file_name(last_base)) == saved.position
        )

    def _sealed(self, base: int, following: int) -> Segment:
        """A segment before the last. What was sealed before the checkpoint is trusted until it is read."""
        size = self.directory.size(file_name(base))
        segment = Segment(self.directory, base, following, size, self.config.index_interval_bytes, repairs=True)
        if self.saved is not None and following <= self.saved.log_start:
            return segment  # an interrupted trim: it will be deleted
        if self.clean or (self.saved is not None and base < self.saved.segment):
            if not self._has_index_files(base):
                self._rebuild(segment)
            return segment
        storage = self.directory.open(file_name(base))
        index = SegmentIndex(base, self.config.index_interval_bytes)
        walk = segment.walk(storage, 0, size, index)
        if walk.next_offset > following:
            self._cut_overlap(segment, storage, following, segment.end_below(storage, following))
        elif walk.damage is not None and self._was_split(base, following, walk):
            self._cut_overlap(segment, storage, following, walk.position)
        elif walk.damage is not None:
            self._find(Where.SEALED_SEGMENT, str(walk.damage))
            count_damage(walk.damage.path, walk.damage.position)
        elif walk.next_offset < following:
            reason = missing_text(walk.next_offset, following)
            self._find(Where.GAP_BETWEEN_SEGMENTS, f"{segment.path} at byte {walk.position}: {reason}")
        storage.close()
        self._rebuild(segment)
        return segment

    def _was_split(self, base: int, following: int, walk: Walk) -> bool:
        """Whether everything after the watermark was moved to the next segment, and a power cut tore it while it was
        being cut off here."""
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

    def _rebuild(self, segment: Segment) -> None:
        self._find(Where.INDEX, f"the indexes of {segment.path}")
        self.report.note_index()
        segment.remove_index()
        segment.timestamps()  # reading it rebuilds it, and `repairs` writes it
        segment.unload()

    def _cut_overlap(self, segment: Segment, storage: Storage, following: int, end: int) -> None:
        """An earlier recovery moved the end of this segment to the next one and was interrupted: finish it."""
        if self._find(Where.OVERLAP_OF_SEGMENTS, f"{segment.path} from byte {end} on") is Action.FINISH:
            segment.remove_index()
            storage.truncate(end)
            storage.sync()
            segment.go_back((following, end))

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
            self._find(Where.INDEX, f"the indexes of {segment.path}")
            self.report.note_index()
        saved = self.saved
        whole = saved is not None and (saved.segment, saved.position) == (base, size)
        expected = saved.durable_offset if saved is not None and whole else None
        segment = Segment(self.directory, base, base, size, interval, sealed=False, expected_end=expected)
        segment.remove_index()
        index = SegmentIndex(base, interval)
        walk = segment.walk(storage, 0, size, index)
        below, above = self._watermark(base)
        seen = walk.next_offset >= self.seen_end
        gone = below == _BEHIND
        if (
            walk.damage is None
            and (gone or walk.position >= below)
            and (above is None or walk.next_offset >= above)
            and seen
        ):
            if not (self.clean and trusted):
                return self._settle(segment, storage, index, walk, min(below, walk.position))
            return [self._activate(base, storage, index, walk.next_offset, walk.position)]
        # Without the checkpoint it is not known what was durable; but complete batches never follow a torn tail.
        torn = walk.position >= below and (self.saved is not None or walk.resume_position >= size)
        if walk.damage is not None and torn and seen:
            detail = f"{size - walk.position:,} bytes at byte {walk.position} of {segment.path}: {walk.damage.reason}"
            if self._find(Where.TAIL_ABOVE_WATERMARK, detail) is Action.CUT_ASIDE:
                self._set_aside(segment, storage, walk)
                return self._settle(segment, storage, index, walk, below)
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
                self._find(Where.TAIL_BELOW_WATERMARK, f"{detail}; {why}")
            else:
                where = "" if walk.damage is None else f", at offset {walk.next_offset}"
                self._find(Where.TAIL_BELOW_VISIBLE, f"{detail}{where}; it was readable up to offset {self.seen_end}")
            count_damage(segment.path, walk.position)
        return self._go_on_behind(segment, storage, index, walk)

    def _watermark(self, base: int) -> tuple[int, int | None]:
        """(position, offset) of the durable watermark in the last segment; 0 and None if it is before it, `_BEHIND` if
        it is in a later one, which is missing."""
        if self.saved is None or self.saved.segment < base:
            return 0, None
        if self.saved.segment > base:  # the segment in the checkpoint is missing
            return _BEHIND, self.saved.end_without_segment(known=self.end_known)
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
        segment.timestamps()  # the age of the segment is counted from its first batch
        return segment

    def _set_aside(self, segment: Segment, storage: Storage, walk: Walk) -> None:
        """Copy the torn tail to its own file, for inspection, before anything is cut."""
        name = file_name(segment.base_offset, LOG + TORN)
        number = 1
        while self.directory.exists(name):
            name = f"{file_name(segment.base_offset, LOG + TORN)}.{number}"
            number += 1
        tail = storage.read(walk.position, storage.size - walk.position)
        written = bool(tail.strip(b"\0"))  # only zeros: space that was reserved and never written
        if written:
            self.directory.replace(name, tail)
        self.report.note_torn(len(tail), name if written else None)

    def _settle(
        self, segment: Segment, storage: Storage, index: SegmentIndex, walk: Walk, watermark: int
    ) -> list[Segment]:
        """Make the complete batches of the last segment certainly durable, and cut what follows them."""
        base, end = segment.base_offset, walk.position
        if end == watermark and end == storage.size:
            storage.sync()  # a process that died before its sync may have cut off the rest in the cache only
            return [self._activate(base, storage, index, walk.next_offset, end)]
        if end == watermark or (end > SMALL_BYTES and watermark > 0):
            return self._split(segment, storage, walk, watermark)
        copy = self._copy(storage, 0, end, base)
        storage.close()
        return [self._activate(base, copy, index, walk.next_offset, end)]

    def _split(self, segment: Segment, storage: Storage, walk: Walk, watermark: int) -> list[Segment]:
        """Keep what is known to be durable in place; complete batches above it become the next segment."""
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
        """Bytes `start` to `end` of a storage as the new file of segment `base`: written next to it, synced,
        renamed."""
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

    def _go_on_behind(self, segment: Segment, storage: Storage, index: SegmentIndex, walk: Walk) -> list[Segment]:
        """The last segment is damaged where it must not be: leave it unchanged and write after it."""
        following = walk.next_offset
        while walk.damage is not None and walk.resume_position < storage.size:
            walk = segment.walk(storage, walk.resume_position, storage.size, index, resumed=True)
            following = max(following, walk.next_offset)
        durable = 0 if self.saved is None else self.saved.durable_offset
        following = max(following, self.seen_end, durable, self._watermark(segment.base_offset)[1] or 0)
        if following == segment.base_offset:
            following += 1  # its content is unknown; its name must not be used again
        storage.sync()
        base, size = segment.base_offset, storage.size
        kept = Segment.active(self.directory, base, storage, index, following, size, repairs=True)
        kept.seal()
        return [kept, Segment.create(self.directory, following, self.config.index_interval_bytes)]

    # --- the beginning, and the producers

    def _trim(self, segments: list[Segment]) -> int:
        """Finish an interrupted trim: delete what is completely below the log start."""
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

    def _remote(self, lowest: int) -> RemotePart | None:
        found = found_remote(self.directory, lowest, must_exist=self.saved is not None and self.saved.remote)
        if found is UNKNOWN:
            self._find(Where.REMOTE, f"{self.directory.path}/{REMOTE} at byte 0: {LOST_LIST}")
        return found

    def _epochs(self, segments: list[Segment]) -> tuple[Epochs, bool, bool]:
        """The leader epochs from their file, if it is the one in the checkpoint; else from the batches. Also whether
        those of the batches are in order, and whether the file on disk has the same list."""
        saved = self.saved
        try:
            found = load_epochs(self.directory)
        except CorruptFile as error:
            found = None
            self._find(Where.EPOCHS, str(error))
        if saved is not None and saved.leader_epoch is not None:
            known = Epochs() if found is None and saved.leader_epoch == 0 else found
            if known is not None and known.crc == saved.epochs_crc:
                return self._cut(known, saved, segments)
            if found is None:
                self._find(Where.EPOCHS, f"{LEADER_EPOCHS} is missing, and the log is in epoch {saved.leader_epoch}")
        rebuilt, in_order = epochs_of(segments, self.remote)
        # The last recorded epoch may have no batch yet, and no number is used twice.
        last = max(0 if saved is None else saved.leader_epoch or 0, 0 if found is None else found.current)
        if last > rebuilt.current:
            rebuilt = rebuilt.begun(last, segments[-1].next_offset)
        return rebuilt, in_order, rebuilt == (Epochs() if found is None else found)

    def _cut(self, epochs: Epochs, saved: Checkpoint, segments: list[Segment]) -> tuple[Epochs, bool, bool]:
        """Finish an interrupted truncation, if there was one. What it was to drop may be so damaged that it cannot be
        cut: then all of it is kept, and the epoch begins after it."""
        offset = None if self.report.clean else unfinished_truncation(epochs, segments)
        if offset is None:
            return epochs, True, True
        if saved.durable_offset > offset:
            self._find(
                Where.EPOCHS, f"epoch {epochs.current} begins at {offset}, but the batch there is of an earlier one"
            )
            return as_the_batches_say(epochs, segments, self.remote), True, False
        detail = f"from offset {offset} on"
        at = max(number for number, segment in enumerate(segments) if segment.base_offset <= offset)
        try:
            point = find_cut_point(segments[at], offset, self.config)
        except CorruptBatch as damage:
            self._find(Where.SEALED_SEGMENT, f"{detail}, records were to be truncated: {damage}")
        else:
            if self._find(Where.TRUNCATION, detail) is Action.FINISH:
                # The record of the truncation is durable before it is done, whoever wrote it.
                store_epochs(self.directory, epochs)
                self._hide(offset, epochs.current)
                offset, segment, position = min(point.tail, (saved.durable_offset, saved.segment, saved.position))
                noted = replace(saved, durable_offset=offset, segment=segment, position=position)
                checkpoint.store(self.directory, noted)
                delete_above(self.directory, segments[at].base_offset)
                segments[at:] = [truncate_segment(self.directory, self.config, point)]
                return epochs, True, True
        return as_the_batches_say(epochs, segments, self.remote), True, False

    def _hide(self, offset: int, epoch: int) -> None:
        """Before a truncation is finished: readers see nothing from there on, as if its writer had lived."""
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
            self._find(Where.PRODUCERS, str(error))
        else:
            missing = found is None and not self.directory.exists(PRODUCERS)
            if missing and self.clean and self.saved is not None and any(segment.size for segment in segments):
                self._find(Where.PRODUCERS, f"{PRODUCERS} is missing")
        if found is not None and found.segment > segments[-1].base_offset:
            found = None  # of another list of segments: what was aborted in the active one is not known
        return replayed(segments, self.config.producer_expiry_ms, found, lowest=lowest)
