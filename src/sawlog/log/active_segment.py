"""The active segment: appending and syncing its bytes, and rotating to the next one.

If a write fails, the bytes it left are truncated durably and the log continues. If the truncation fails too, or an
fsync fails, the log has *failed*: appends raise, reads still work, and reopening recovers.

Rotation syncs the segment, creates the next one, syncs the directory, writes the indexes of the old segment and records
the durable offset.

Threads: every caller that writes holds the log's lock. Syncing and replacing the segment also take
`ActiveSegment.lock`, so that no thread closes a file that another one is syncing.
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
from .commit import Tail, VisibleOffset, Watermarks
from .files import file_name
from .index import MAX_SPAN, TIME_ENTRY_BYTES
from .segment import Segment
from .segments import SegmentSet


class ActiveSegment(kernel.ActiveSegmentFields):
    """The last segment of a log and the watermarks that move with it."""

    __slots__ = (
        "_config",
        "_directory",
        "_next_base",
        "_reserves",
        "_rotated",
        "_segments",
        "lock",
        "watermarks",
    )
    segment: Segment
    #: Whether `sync` has to run before the next append: truncated bytes could reappear after a power cut, or a rotation
    #: was interrupted.
    needs_sync: bool
    #: A segment, and the size in bytes and the timestamp up to which it accepts batches without further checks.
    _room: tuple[Segment | None, int, int]

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
        self.needs_sync = False
        #: Base offset of the next segment while a rotation creates it.
        self._next_base: int | None = None
        self._room = None, 0, 0
        #: Off if every append is synced: writing into reserved blocks then measured slower.
        self._reserves = config.durability != "always"
        self.watermarks = Watermarks(
            VisibleOffset(directory, segments),
            self.tail,
            segments.epochs.current,
            publishes_written=config.durability != "always",
            sync=self.sync,
        )

    @property
    def tail(self) -> Tail:
        """End of the log."""
        segment = self.segment
        offset, size = segment.tail
        return offset, segment.base_offset, size

    @property
    def unsynced_bytes(self) -> int:
        """Bytes written since the last sync. A segment is synced before the next one begins."""
        _, base, position = self.tail
        _, synced_base, synced = self.watermarks.synced
        return position - synced if synced_base == base else position

    # --- bytes

    def write(self, segment: Segment, data: memoryview, next_offset: int) -> None:
        """Append bytes to the segment, or leave it unchanged."""
        before = segment.tail
        storage = segment.storage
        size = len(data)
        if storage.size != before[1]:  # an interrupt came while an earlier append was being rolled back
            self.truncate_to(segment, before[1])
        if self._reserves:
            storage.reserve(size)
        try:
            at = storage.append(data)
            assert at == before[1], f"{segment.path} ended at {at}, not at {before[1]}: another process writes to it"
            segment.tail = next_offset, at + size
        except BaseException as error:
            if isinstance(error, StorageError) and error.torn:
                self.watermarks.commit.fail(error)
            elif segment.tail is before:  # also after an interrupt: the bytes may already be in the file
                self.roll_back(segment, before[1])
            raise

    def roll_back(self, segment: Segment, size: int) -> None:
        """Truncate a failed append durably, whatever the reason: the caller is about to hear that nothing was stored,
        so a power cut must not bring it back."""
        self.needs_sync = True
        self.truncate_to(segment, size)
        try:
            self.sync_now()
        except (SawlogError, OSError):
            pass  # writing has stopped; the caller raises the first error

    def truncate_to(self, segment: Segment, size: int) -> None:
        """Truncate bytes beyond the end of the segment. If that fails, writing stops."""
        try:
            if segment.storage.size > size:
                segment.storage.truncate(size)
        except StorageError as error:
            self.watermarks.commit.fail(error)

    def truncate_leftover(self) -> None:
        """Truncate bytes that an interrupted append left beyond the end of the segment."""
        segment = self.segment
        if segment.storage.size > segment.tail[1]:
            self.truncate_to(segment, segment.tail[1])

    def claim(self, size_bytes: int) -> None:
        """Reserve disk space, or raise `StorageFull`. Custom storage without `claim` is assumed to have enough."""
        claim: Callable[[int], None] | None = getattr(self.segment.storage, "claim", None)
        if claim is not None:
            claim(size_bytes)

    def unclaim(self) -> None:
        """Release reserved space that was not used."""
        self.segment.storage.release()

    # --- space

    def has_room(self, size_bytes: int, last: int, timestamp: int) -> bool:
        """Whether the batch is known to fit, without looking at the index. False means unknown."""
        segment = self.segment
        roomy, most_bytes, newest = self._room
        return (
            segment is roomy
            and segment.tail[1] + size_bytes <= most_bytes
            and timestamp <= newest
            and last - segment.base_offset < MAX_SPAN
        )

    def segment_for(self, size_bytes: int, count: int, timestamp: int) -> Segment:
        """Return the segment for this batch, after rotating if it does not fit into the current one."""
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
        # The index has at most one entry per `index_interval_bytes`, so its size need not be checked every time.
        entries = config.max_index_bytes // TIME_ENTRY_BYTES - 4
        newest = kernel.MAX_TIMESTAMP if age is None else max(segment.index.first_timestamp, 0) + age
        self._room = segment, min(config.segment_bytes, entries * config.index_interval_bytes), newest
        return segment

    def segment_for_stream(self, timestamp: int) -> tuple[Segment, int]:
        """Return the segment for a streamed batch with this timestamp, and the bytes that the batch may add to it."""
        segment, config = self.segment, self._config
        if segment.tail[1] >= config.segment_bytes:
            segment = self.rotate()
        if segment.tail[1]:
            segment = self.segment_for(1, 1, timestamp)
        size = segment.tail[1]
        allowed = config.segment_bytes - size + config.overflow_bytes
        return segment, min(allowed, MAX_SEGMENT_BYTES - size)

    # --- syncing

    def sync(self) -> int:
        """Sync all written bytes and return the end of the complete appends among them."""
        watermarks = self.watermarks
        with self.lock:
            watermarks.commit.check()
            self._discard_next()
            whole, tail = watermarks.written, self.tail
            self._sync(self.segment)
            watermarks.mark_synced(whole, tail)
            self.needs_sync = False
        return whole[0]

    def sync_now(self) -> None:
        """Sync all written bytes without group commit. For the holder of the log's lock, which could wait forever for
        another thread's sync."""
        self.watermarks.commit.mark_durable(self.sync())

    def _sync(self, segment: Segment) -> None:
        """Run fsync once. A failure stops writing before any thread can retry it."""
        try:
            segment.storage.sync()
        except (SawlogError, OSError) as error:
            self.watermarks.commit.fail(error)
            raise

    # --- the next segment

    def rotate(self) -> Segment:
        """Seal the segment, which must not be empty, and continue in a new one."""
        old, watermarks = self.segment, self.watermarks
        offset = old.tail[0]
        with self.lock:
            watermarks.commit.check()
            self._discard_next()
            self.truncate_leftover()
            old.storage.release()
            self._sync(old)
            watermarks.mark_synced(watermarks.written, self.tail)
            self.needs_sync = False
            watermarks.commit.mark_durable(watermarks.written[0])
            with watermarks.commit.failing_on_sync_error():
                made = self._create_next(old, offset)
                transactions = self._segments.transaction_view.state
                old.set_transaction_index(transactions.index_for(offset))
                old.seal()
                transactions.begin_segment(offset)
            watermarks.start_segment(self.tail)
        count("segments_created")
        self._rotated()
        return made

    def _create_next(self, old: Segment, offset: int) -> Segment:
        """Create a new segment and continue in it. If that fails, remove its file: an empty file with that base offset
        would hide what is appended to the old segment. If an interrupt prevents the removal, the next append does
        it."""
        segments = self._segments
        self._next_base, self.needs_sync = offset, True
        try:
            made = self._create(offset)
            segments.set([*segments.all, made])
            self._switch_to(made)
        except BaseException:
            self._discard_next()
            self.needs_sync = False
            raise
        self._next_base, self.needs_sync = None, False
        return made

    def _discard_next(self) -> None:
        """Remove the file of a segment whose creation was interrupted, unless it is already in use. Can be
        interrupted and called again."""
        segments, offset = self._segments, self._next_base
        if offset is not None and self.segment.base_offset < offset:
            segments.set([each for each in segments.all if each.base_offset < offset])
            try:
                self._directory.remove(file_name(offset))
                self._directory.sync()  # else a power cut brings it back next to newer appends
            except StorageError as error:
                self.watermarks.commit.fail(error)
        self._next_base = None

    def _create(self, offset: int) -> Segment:
        """Create a segment. An empty file of the same name is left from an earlier attempt."""
        name = file_name(offset)
        if self._directory.exists(name) and self._directory.size(name) == 0:
            self._directory.remove(name)
        return Segment.create(self._directory, offset, self._config.index_interval_bytes)

    def replace(self, made: Segment, before: Iterable[Segment]) -> None:
        """Continue in a segment whose file has replaced this one, which was empty. The caller holds both locks."""
        self._segments.set([*before, made])
        self._switch_to(made)

    def adopt(self, segments: Iterable[Segment], *, within_append: bool) -> None:
        """Continue at the end of these segments, all of them durable. The caller holds both locks."""
        self._segments.set(segments)
        self.resume(within_append=within_append)

    def resume(self, *, within_append: bool) -> None:
        """Continue at the current end, with everything durable."""
        self._switch_to(self._segments.active)
        self.watermarks.resume(self.tail, within_append=within_append)

    def _switch_to(self, segment: Segment) -> None:
        """Write to another segment. The old file is closed with its last reader."""
        self.segment = segment
        self._room = None, 0, 0
