"""The active segment: appending and syncing its bytes, rotating to the next one, rolling back, and truncation.

Before a change, the end of the segment is recorded in `unfinished`; it is cleared when the change is complete. If a
change fails or is interrupted, `roll_back` truncates what it left, durably, and the log continues (see
`Appender.recover`). If the truncation fails too, or an fsync fails, the log has *failed*: appends raise, reads still
work, and reopening recovers.

Rotation syncs the segment, creates the next one, syncs the directory, writes the indexes of the old segment and records
the durable offset.

**Truncation** keeps [lowest, offset). If a dropped record was visible, a new leader epoch begins at `offset`, so that
readers can detect the truncation (see epochs.py). The epoch and a lowered watermark are recorded durably. Only then is
the dropped part hidden from readers, so that no reader sees the shorter log and later the longer one again. If no
dropped record was visible, there is nothing to detect, and a crash half-way leaves a longer log.

A truncation is *committed* when the checkpoint durably names a list of leader epochs whose last one begins at the
offset. From then on it can only be finished, by the same process or by the next one that opens the log for writing. A
crash before that leaves a longer log, never a damaged one.

Later segments are deleted first, newest first, each one durably. The segment that contains the offset is never
truncated in place, because readers may have it mapped: the remainder is written to a new file, fsynced and renamed over
it. A batch with both kept and dropped records is rebuilt with the kept ones, at the same offsets.

Threads: every caller that writes holds the log's lock. Syncing and replacing the segment also take
`ActiveSegment.lock`, so that no thread closes a file that another one is syncing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..batch import kernel
from ..batch.build import head_of
from ..batch.header import BASE, POSITION, SIZE
from ..config import MAX_SEGMENT_BYTES, LogConfig
from ..errors import RecordTooLarge, SawlogError, StorageError
from ..storage import Directory
from ..storage.counters import count
from ..storage.forking import forkable
from .batches import MAX_SPAN
from .durability import Durability, Tail
from .epochs import Epochs
from .files import INDEX, LOG, TIME_INDEX, TMP, TXN_INDEX, file_name, segment_base
from .index import TIME_ENTRY_BYTES, SegmentIndex
from .segment import Segment
from .segments import SegmentSet

#: Bytes per step when the remainder of a truncated segment is copied.
_COPY_BYTES = 8 << 20
#: A change of the log's files that cannot be undone is in progress; only the next open can finish it.
CHANGE: Final = "change"


class ActiveSegment(kernel.ActiveSegmentFields):
    """The last segment of a log."""

    __slots__ = ("_config", "_directory", "_reserves", "_rotated", "_segments", "durability", "lock", "rotations")
    segment: Segment
    #: None, or the change in progress: the end (next offset, size) of the segment before it, followed by the
    #: `Placement` of a caller that may retry, and by True once a rollback has begun. Or `CHANGE`. If the holder of the
    #: log's lock finds a value here, the change was interrupted: see `Appender.recover`.
    unfinished: tuple[Any, ...] | Literal["change"] | None
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
        #: Number of rotations.
        self.rotations = 0
        self.segment = segments.active
        self.unfinished = None
        self._room = None, 0, 0
        #: Off if every append is synced: writing into reserved blocks then measured slower.
        self._reserves = config.durability != "always"
        self.durability = Durability(
            directory, segments, self.tail, self.sync, publishes_written=config.durability != "always"
        )

    @property
    def tail(self) -> Tail:
        """End of the log."""
        segment = self.segment
        offset, size = segment.tail
        return offset, segment.base_offset, size

    # --- bytes

    def write(self, data: memoryview, next_offset: int) -> None:
        """Append a run of batches, within a block, which rolls it back if this raises."""
        segment = self.segment
        storage = segment.storage
        self.truncate_leftover()
        if self._reserves:
            storage.reserve(len(data))
        at = storage.append(data)
        assert at == segment.size, f"{segment.path} ended at {at}, not at {segment.size}: another process writes to it"
        segment.tail = next_offset, at + len(data)

    def roll_back(self, offset: int, position: int, *, reindex: bool) -> None:
        """Return to an earlier end of this segment, or to its start if a rotation came in between. Durably: the caller
        is about to hear that nothing was stored, so a power cut must not bring it back. Can be interrupted and called
        again. The caller holds both locks."""
        segment, segments = self.segment, self._segments
        if segment is not segments.active:  # the next one was created and is not used yet
            segments.set(each for each in segments.all if each.base_offset <= segment.base_offset)
        segment.truncate_to((offset, position))
        self._room = None, 0, 0  # the first timestamp may have gone
        try:
            delete_above(self._directory, segment.base_offset)
            if segment.storage.size > position:
                segment.storage.truncate(position)
            self.sync_now()
        except (SawlogError, OSError) as error:
            self.durability.fail(error)
            return
        if reindex:
            segment.use_index(segment.rebuild_index(segment.storage))
        for earlier in segments.all[:-1]:
            if not earlier.sealed:  # a rotation was interrupted after it had switched
                earlier.seal()

    def truncate_leftover(self) -> None:
        """Truncate bytes beyond the end of the segment."""
        segment = self.segment
        try:
            if segment.storage.size > segment.tail[1]:
                segment.storage.truncate(segment.tail[1])
        except StorageError as error:
            self.durability.fail(error)
            raise

    def claim(self, size_bytes: int) -> None:
        """Reserve disk space, or raise `StorageFull`. Custom storage without `claim` is assumed to have enough."""
        claim: Callable[[int], None] | None = getattr(self.segment.storage, "claim", None)
        if claim is not None:
            claim(size_bytes)

    def unclaim(self) -> None:
        """Release reserved space that was not used."""
        self.segment.storage.release()

    # --- space

    def make_room(self, size_bytes: int, count: int, timestamp: int) -> None:
        """Prepare the segment for a batch, or continue in a new one."""
        segment = self.segment_for(size_bytes, count, timestamp)
        self.truncate_leftover()
        if self._reserves:
            segment.storage.reserve(size_bytes)

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
        age = config.segment_age_ms
        first = segment.index.first_timestamp if size else timestamp
        if size and (
            size + size_bytes > config.segment_bytes
            or (age is not None and timestamp - first > age and first >= 0)
            or segment.index.size_bytes + 12 > config.max_index_bytes
            or offset - segment.base_offset + count > MAX_SPAN
        ):
            return self.rotate()
        # The index has at most one entry per `index_interval_bytes`, so its size need not be checked every time.
        entries = config.max_index_bytes // TIME_ENTRY_BYTES - 4
        newest = kernel.MAX_TIMESTAMP if age is None else max(first, 0) + age
        self._room = segment, min(config.segment_bytes, entries * config.index_interval_bytes), newest
        return segment

    @property
    def most_bytes(self) -> int:
        """Largest size of a segment that ends with a streamed batch."""
        return min(self._config.segment_bytes + self._config.overflow_bytes, MAX_SEGMENT_BYTES)

    def segment_for_stream(self, size_bytes: int, timestamp: int) -> Segment:
        """Return the segment for a streamed batch of at least this size, after rotating if it does not fit into the
        current one."""
        if not self.segment.tail[1]:
            return self.segment
        if self.segment.tail[1] + size_bytes > self.most_bytes:
            return self.rotate()
        return self.segment_for(1, 1, timestamp)

    # --- syncing

    def sync(self) -> int:
        """Sync all written bytes and return the end of the complete appends among them."""
        durability = self.durability
        with self.lock:
            durability.check()
            whole, tail = durability.written, self.tail
            self._sync(self.segment)
            durability.mark_synced(whole, tail)
        return whole[0]

    def sync_now(self) -> None:
        """Sync all written bytes without group commit. For the holder of the log's lock, which could wait forever for
        another thread's sync."""
        self.durability.mark_durable(self.sync())

    def _sync(self, segment: Segment) -> None:
        """Run fsync once. A failure stops writing before any thread can retry it."""
        try:
            segment.storage.sync()
        except (SawlogError, OSError) as error:
            self.durability.fail(error)
            raise

    # --- the next segment

    def rotate(self) -> Segment:
        """Seal the segment, which must not be empty, and continue in a new one. If this is interrupted before the new
        one is in use, its file has to be removed: an empty file with that base offset would hide what is appended to
        the old segment."""
        old, durability, segments = self.segment, self.durability, self._segments
        offset = old.tail[0]
        with self.lock:
            durability.check()
            before = self.unfinished
            self.unfinished = before or old.tail
            self.truncate_leftover()
            old.storage.release()
            self._sync(old)
            durability.mark_synced(durability.written, self.tail)
            durability.mark_durable(durability.written[0])
            with durability.failing_on_sync_error():
                made = self._create(offset)
                segments.set([*segments.all, made])
                self.rotations += 1
                self._switch_to(made)
                transactions = segments.transaction_view.state
                old.set_transaction_index(transactions.index_for(offset))
                old.seal()
                transactions.begin_segment(offset)
            durability.start_segment(self.tail)
            self.unfinished = before
        count("segments_created")
        self._rotated()
        return made

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

    def catch_up(self, segments: Iterable[Segment]) -> None:
        """Continue at the end of these segments, to which other processes have appended. The caller holds both
        locks."""
        self._segments.set(segments)
        self._switch_to(self._segments.active)
        self.durability.catch_up(self.tail)

    def restart(self, epoch: int, *, recovered: bool) -> None:
        """Continue at the end of a log that was opened again. The caller holds both locks."""
        self.unfinished = None
        self._switch_to(self._segments.active)
        self.durability.restart(self.tail, epoch, recovered=recovered)

    def resume(self, *, within_append: bool) -> None:
        """Continue at the current end, with everything durable."""
        self._switch_to(self._segments.active)
        self.durability.resume(self.tail, within_append=within_append)

    def _switch_to(self, segment: Segment) -> None:
        """Write to another segment. The old file is closed with its last reader."""
        self.segment = segment
        self._room = None, 0, 0


# --- truncation


@dataclass(frozen=True, slots=True)
class CutPoint:
    """Position at which a segment is cut."""

    segment: Segment
    #: First dropped offset.
    offset: int
    #: Position of the cut in the file, and the bytes to write there: the kept records of a batch that is cut through.
    position: int
    rest: bytes
    #: End of that batch, which readers need until the cut is done.
    visible: int
    #: First offset after the complete batches before the cut: the offset at `position` if a crash comes first.
    whole: int

    @property
    def tail(self) -> tuple[int, int, int]:
        """(offset, segment, position) up to which the log is kept, whether or not the cut completes."""
        return self.whole, self.segment.base_offset, self.position


def epochs_after(segments: SegmentSet, offset: int) -> Epochs:
    """Return the leader epochs of a log cut at `offset`, with a new one if the dropped part may have been read.
    Otherwise, epochs that began in the dropped part now begin at `offset`."""
    epochs = segments.epochs
    if segments.visible_offset > offset:
        return epochs.trimmed(segments.log_start).begun(epochs.current + 1, offset)
    return epochs.begun(epochs.current, offset) if epochs.entries[-1][1] > offset else epochs


def delete_above(directory: Directory, base_offset: int) -> None:
    """Remove the files of all later segments, newest first, including those of a failed rotation.

    Each removal is synced before the next: a power cut that reorders them would leave a gap before a remaining
    segment.
    """
    for name in reversed(directory.names()):
        base = segment_base(name)
        if base is not None and base > base_offset:
            for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
                directory.remove(file_name(base, suffix))
            directory.sync()


def find_cut_point(segment: Segment, offset: int, config: LogConfig) -> CutPoint:
    """Find the position at which to cut a segment, without changing it. `CorruptBatch` if it cannot be read."""
    for chunk in segment.chunks(offset, offset + 1):
        row = chunk.rows[0]
        position = chunk.origin + int(row[POSITION])
        if row[BASE] >= offset:
            return CutPoint(segment, offset, position, b"", position, offset)
        rest = head_of(
            chunk.view, row, offset, config.compression, config.compression_level, config.max_decompressed_bytes
        )
        return CutPoint(segment, offset, position, rest, position + int(row[SIZE]), int(row[BASE]))
    return CutPoint(segment, offset, segment.size, b"", segment.size, offset)


def truncate_segment(directory: Directory, config: LogConfig, point: CutPoint) -> Segment:
    """Cut a segment and return the remainder as the active segment."""
    segment, position, rest = point.segment, point.position, point.rest
    base, interval = segment.base_offset, config.index_interval_bytes
    segment.remove_index()
    directory.remove(file_name(base, TXN_INDEX))
    temporary = file_name(base) + TMP
    directory.remove(temporary)
    copy = directory.create(temporary)
    source = segment.storage
    for start in range(0, position, _COPY_BYTES):
        copy.append(source.view(start, min(_COPY_BYTES, position - start)))
    if rest:
        copy.append(rest)
    copy.sync()
    copy.close()
    directory.rename(temporary, file_name(base))
    directory.sync()
    storage = directory.open(file_name(base))
    index = SegmentIndex(base, interval)
    size = position + len(rest)
    made = Segment.active(directory, base, storage, index, point.offset, size)
    made.walk(storage, 0, size, index)
    return made
