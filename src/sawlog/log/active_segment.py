"""The segment that is written to: its bytes, what of them is synced, and the change to the next one.

If a write fails, what it left is cut off again, durably, and the log continues. If that fails too, or an fsync fails,
the log has *failed*: appends raise, reads still work, and reopening recovers.

Rotation: sync the segment, create the next one, sync the directory, write the indexes of the old one, record what is
durable.

Threads: everything that writes is called with the log's lock. Syncing and changing the segment take their own lock as
well: nobody closes a file that is being synced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from ..batch import kernel
from ..config import MAX_SEGMENT_BYTES, LogConfig
from ..errors import RecordTooLarge, SawlogError, StorageError
from ..storage import Directory
from ..storage.counters import count
from ..storage.forking import forkable
from .commit import Marks, Tail, VisibleEnd
from .files import file_name
from .index import MAX_SPAN, TIME_ENTRY_BYTES
from .segment import Segment
from .segments import SegmentSet


class Active(kernel.ActiveFields):
    """The last segment of a log, and the marks that move with it."""

    __slots__ = (
        "_begun",
        "_config",
        "_directory",
        "_reserves",
        "_rotated",
        "_segments",
        "lock",
        "marks",
    )
    segment: Segment
    #: Whether something is left to do before the next append, which `sync` does: bytes were cut off that could reappear
    #: after a power cut, or a segment was begun and not finished.
    cut_unsynced: bool
    #: The segment that has space for every batch that keeps it within this size, and is at least that old.
    _roomy: tuple[Segment | None, int, int]

    def __init__(
        self, directory: Directory, config: LogConfig, segments: SegmentSet, rotated: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._config = config
        self._segments = segments
        #: Called after each rotation.
        self._rotated = rotated
        #: Held while the segment is synced or replaced.
        self.lock = forkable(threading.RLock())
        self.segment = segments.active
        self.cut_unsynced = False
        #: The first offset of the next segment, while that is being made.
        self._begun: int | None = None
        self._roomy = None, 0, 0
        #: Not if every append is synced: then writing into reserved blocks was measured to be slower.
        self._reserves = config.durability != "always"
        self.marks = Marks(
            VisibleEnd(directory, segments),
            self.tail,
            segments.epochs.current,
            shows_written=config.durability != "always",
            sync=self.sync,
        )

    @property
    def tail(self) -> Tail:
        """The end of the log."""
        segment = self.segment
        offset, size = segment.tail
        return offset, segment.base_offset, size

    @property
    def unsynced_bytes(self) -> int:
        """How many bytes were written since the last sync. A segment is synced before the next one begins."""
        _, base, position = self.tail
        _, synced_base, synced = self.marks.synced
        return position - synced if synced_base == base else position

    # --- bytes

    def put(self, segment: Segment, data: memoryview, next_offset: int) -> None:
        """Write bytes after the segment's end and make them part of it; or leave it unchanged."""
        before = segment.tail
        storage = segment.storage
        size = len(data)
        if storage.size != before[1]:  # an interrupt came while an earlier append was being rolled back
            self.cut_back(segment, before[1])
        if self._reserves:
            storage.reserve(size)
        try:
            at = storage.append(data)
            assert at == before[1], f"{segment.path} ended at {at}, not at {before[1]}: another process writes to it"
            segment.tail = next_offset, at + size
        except BaseException as error:
            if isinstance(error, StorageError) and error.torn:
                self.marks.commit.fail(error)
            elif segment.tail is before:  # also after an interrupt: the bytes may already be there
                self.undo(segment, before[1])
            raise

    def undo(self, segment: Segment, size: int) -> None:
        """After an append that failed, whatever the reason: roll back what it left, durably. A power cut must not bring
        back what the caller is about to be told is not stored."""
        self.cut_unsynced = True
        self.cut_back(segment, size)
        try:
            self.sync_now()
        except (SawlogError, OSError):
            pass  # writing has ended; the first error is raised

    def cut_back(self, segment: Segment, size: int) -> None:
        """Roll back bytes that were written after the segment's end; if that fails, writing ends."""
        try:
            if segment.storage.size > size:
                segment.storage.truncate(size)
        except StorageError as error:
            self.marks.commit.fail(error)

    def tidy(self) -> None:
        """Roll back bytes that an append has left after the segment's end, if an interrupt prevented it."""
        segment = self.segment
        if segment.storage.size > segment.tail[1]:
            self.cut_back(segment, segment.tail[1])

    def claim(self, size_bytes: int) -> None:
        """Make sure that there is that much space on the disk, or raise `StorageFull`. A custom storage that cannot
        tell is assumed to have it."""
        claim: Callable[[int], None] | None = getattr(self.segment.storage, "claim", None)
        if claim is not None:
            claim(size_bytes)

    def unclaim(self) -> None:
        """Release what was claimed and is not needed."""
        self.segment.storage.release()

    # --- space

    def has_room(self, size_bytes: int, last: int, timestamp: int) -> bool:
        """Whether a batch certainly belongs into the segment: what is known without asking it."""
        segment = self.segment
        roomy, most_bytes, newest = self._roomy
        return (
            segment is roomy
            and segment.tail[1] + size_bytes <= most_bytes
            and timestamp <= newest
            and last - segment.base_offset < MAX_SPAN
        )

    def room(self, size_bytes: int, count: int, timestamp: int) -> Segment:
        """The segment, after rotation if this batch no longer belongs into it."""
        segment = self.segment
        offset, size = segment.tail
        config = self._config
        if size_bytes > config.segment_bytes:
            raise RecordTooLarge(
                f"a batch of {size_bytes:,} bytes does not fit into a segment of {config.segment_bytes:,} bytes; raise "
                "segment_bytes, append fewer records at once, or stream the record with append_stream"
            )
        if size == 0:
            return segment
        age = config.segment_age_ms
        if (
            size + size_bytes > config.segment_bytes
            or (
                age is not None
                and timestamp - segment.index.first_timestamp > age
                and segment.index.first_timestamp >= 0
            )
            or segment.index.size_bytes + 12 > config.max_index_bytes
            or offset - segment.base_offset + count > MAX_SPAN
        ):
            return self.rotate()
        # An index has at most one entry per this many bytes, so its size need not be checked every time.
        entries = config.max_index_bytes // TIME_ENTRY_BYTES - 4
        newest = kernel.MAX_TIMESTAMP if age is None else max(segment.index.first_timestamp, 0) + age
        self._roomy = segment, min(config.segment_bytes, entries * config.index_interval_bytes), newest
        return segment

    def room_for_stream(self, timestamp: int) -> tuple[Segment, int]:
        """The segment and how many bytes a streamed batch of that timestamp may add to it."""
        segment, config = self.segment, self._config
        if segment.tail[1] >= config.segment_bytes:
            segment = self.rotate()
        if segment.tail[1]:
            segment = self.room(1, 1, timestamp)
        size = segment.tail[1]
        allowed = config.segment_bytes - size + config.overflow_bytes
        return segment, min(allowed, MAX_SEGMENT_BYTES - size)

    # --- syncing

    def sync(self) -> int:
        """Make everything durable that is written and return up to which offset that is complete appends."""
        marks = self.marks
        with self.lock:
            marks.commit.check()
            self._give_up()
            whole, tail = marks.written, self.tail
            self._sync(self.segment)
            marks.sync(whole, tail)
            self.cut_unsynced = False
        return whole[0]

    def sync_now(self) -> None:
        """Make everything durable that is written. For the holder of the log's lock: waiting for others' syncs might
        not end."""
        self.marks.commit.reached(self.sync())

    def _sync(self, segment: Segment) -> None:
        """fsync, once: if it fails, everyone knows before the next one can try."""
        try:
            segment.storage.sync()
        except (SawlogError, OSError) as error:
            self.marks.commit.fail(error)
            raise

    # --- the next segment

    def rotate(self) -> Segment:
        """Seal the segment and continue in a new one. It must not be empty."""
        old, marks = self.segment, self.marks
        offset = old.tail[0]
        with self.lock:
            marks.commit.check()
            self._give_up()
            self.tidy()
            old.storage.release()
            self._sync(old)
            marks.sync(marks.written, self.tail)
            self.cut_unsynced = False
            marks.commit.reached(marks.written[0])
            with marks.commit.ending_on_failed_sync():
                made = self._switch(old, offset)
                transactions = self._segments.outlook.state
                old.learn(transactions.outcomes(offset))
                old.seal()
                transactions.begin_segment(offset)
            marks.go_on(self.tail)
        count("segments_created")
        self._rotated()
        return made

    def _switch(self, old: Segment, offset: int) -> Segment:
        """Continue in a new segment; if that fails, nothing of it may be left: an empty file with that number would
        hide what is appended to the old segment. If an interrupt prevents that too, it is done before the next
        append."""
        segments = self._segments
        self._begun, self.cut_unsynced = offset, True
        try:
            made = self._create(offset)
            segments.set([*segments.all, made])
            self._go_on_in(made)
        except BaseException:
            self._give_up()
            self.cut_unsynced = False
            raise
        self._begun, self.cut_unsynced = None, False
        return made

    def _give_up(self) -> None:
        """Remove what is there of a segment that was begun, unless it is in use already. Can be interrupted and called
        again."""
        segments, offset = self._segments, self._begun
        if offset is not None and self.segment.base_offset < offset:
            segments.set([each for each in segments.all if each.base_offset < offset])
            try:
                self._directory.remove(file_name(offset))
                self._directory.sync()  # else a power cut brings it back, next to what is appended meanwhile
            except StorageError as error:
                self.marks.commit.fail(error)
        self._begun = None

    def _create(self, offset: int) -> Segment:
        """A new segment; an empty file of that name is left from an earlier attempt."""
        name = file_name(offset)
        if self._directory.exists(name) and self._directory.size(name) == 0:
            self._directory.remove(name)
        return Segment.create(self._directory, offset, self._config.index_interval_bytes)

    def replace(self, made: Segment, before: Iterable[Segment]) -> None:
        """Another file has taken the place of this segment, which was empty. The caller has both locks."""
        self._segments.set([*before, made])
        self._go_on_in(made)

    def adopt(self, segments: Iterable[Segment], *, within_append: bool) -> None:
        """Continue at the end of another list of segments, all of it durable. The caller has both locks."""
        self._segments.set(segments)
        self.resume(within_append=within_append)

    def resume(self, *, within_append: bool) -> None:
        """Continue at the current end, all of it durable."""
        self._go_on_in(self._segments.active)
        self.marks.resume(self.tail, within_append=within_append)

    def _go_on_in(self, segment: Segment) -> None:
        """Write to another segment; the file of the one before is closed with its last reader."""
        self.segment = segment
        self._roomy = None, 0, 0
