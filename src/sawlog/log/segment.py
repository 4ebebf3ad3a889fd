"""One segment: a file of contiguous batches, and its indexes.

A segment is *active* (the last one, growing) or *sealed* (immutable, mapped on demand). `size` and `next_offset` are
what has been committed to it: bytes after `size` concern only the writer. Reading checks every batch: header, bounds,
CRC, records, and that its offsets follow those before it (batches.py, lookup.py; damage.py where one is bad).

Threads: one writer under the log's lock; any number of readers without one. `tail` is set last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ..batch.header import HEADER_BYTES, LAST, MAX_TIME, POSITION, SIZE, Rows
from ..batch.kernel import Record
from ..display import missing_text
from ..errors import CorruptBatch, StorageError, SyncFailed
from ..storage import Directory, Storage
from ..storage.counters import count
from .batches import CHUNK_BYTES, Batches, Chunk
from .files import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from .index import SegmentIndex
from .lookup import Decisions, Lookup
from .transaction_index import Outcomes


class Segment(Batches):
    """One segment of a log."""

    __slots__ = (
        "_interval_bytes",
        "_times",
        "directory",
        "identity",
        "met_until",
        "name",
        "outcomes",
        "pinned",
        "repairs",
    )
    _open: Lookup | None

    def __init__(
        self,
        directory: Directory,
        base_offset: int,
        next_offset: int,
        size: int,
        interval_bytes: int,
        *,
        name: str | None = None,
        sealed: bool = True,
        expected_end: int | None = None,
        repairs: bool = False,
        identity: object = None,
        dense: bool = True,
        outcomes: Outcomes | None = None,
    ) -> None:
        #: The file: under a different name while it is about to replace others.
        self.name = file_name(base_offset) if name is None else name
        path = f"{directory.path}/{self.name}"
        super().__init__(base_offset, next_offset, size, path, sealed=sealed, expected_end=expected_end, dense=dense)
        self.directory = directory
        #: Whether it must stay open: its file is being replaced, and its name already refers to another file.
        self.pinned = False
        #: Whether a bad index found while reading is replaced on disk: only the writer may do this.
        self.repairs = repairs
        #: Which file this is, for a reader: another one may get its name.
        self.identity = identity
        #: What it says about transactions, as far as it is known; None: nothing, or it is in its file.
        self.outcomes = outcomes
        #: While a reader follows it: the offset after the last batch of a transaction that was met.
        self.met_until = -1
        self._interval_bytes = interval_bytes
        self._open = None
        self._times: tuple[int, int] | None = None

    def __repr__(self) -> str:
        state = "sealed" if self.sealed else "active"
        return f"Segment({self.base_offset}..{self.next_offset}, {self.size:,} bytes, {state})"

    # --- opening and closing

    @classmethod
    def create(cls, directory: Directory, base_offset: int, interval_bytes: int) -> Segment:
        """Create an empty, active segment; its name is durable when this returns."""
        storage = directory.create(file_name(base_offset))
        return cls.active(directory, base_offset, storage, SegmentIndex(base_offset, interval_bytes), base_offset, 0)

    @classmethod
    def active(
        cls,
        directory: Directory,
        base_offset: int,
        storage: Storage,
        index: SegmentIndex,
        next_offset: int,
        size: int,
        *,
        repairs: bool = False,
        identity: object = None,
    ) -> Segment:
        """Open a segment that stays open because it still grows."""
        interval = index.interval_bytes
        made = cls(
            directory, base_offset, next_offset, size, interval, sealed=False, repairs=repairs, identity=identity
        )
        made._open = Lookup(storage, index)
        return made

    @property
    def _data(self) -> Lookup:
        return self._open or self._load()

    def _load(self) -> Lookup:
        storage = self.directory.open_sealed(self.name)
        index = self.sound_index(storage)
        self._open = loaded = Lookup(storage, index or self.rebuild_index(storage))
        if index is None and self.repairs:
            try:
                self.write_index()
            except StorageError:
                pass  # it is a cache, and the next open tries again
        return loaded

    def _read_index(self) -> SegmentIndex | None:
        try:
            offsets = self.directory.read(file_name(self.base_offset, INDEX))
            times = self.directory.read(file_name(self.base_offset, TIME_INDEX))
        except StorageError:
            return None  # missing, being deleted, or unreadable: it is a cache in any case
        return SegmentIndex.decode(
            self.base_offset,
            self._interval_bytes,
            offsets,
            times,
            span=self.next_offset - self.base_offset,
            size_bytes=self.size,
        )

    def sound_index(self, storage: Storage) -> SegmentIndex | None:
        """The indexes from their files, if they exist and the log does not contradict them."""
        index = self._read_index()
        return index if index is not None and self._times_are_right(storage, index) else None

    def _times_are_right(self, storage: Storage, index: SegmentIndex) -> bool:
        """Whether the time index ends as it must: its last entry names a batch, and no later batch is newer. Otherwise
        a file that lost its end would make recent data look expired."""
        start = 0
        if index.times:
            last_offset = self.base_offset + index.time_offsets[-1]
            start = Lookup(storage, index).batch_ending_at(self, last_offset, index.times[-1])
            if start < 0:
                return False
        try:
            for chunk in self.batches(storage, start, self.size, -1 if start else self.base_offset, check=False):
                if int(chunk.rows[:, MAX_TIME].max()) > index.max_timestamp:
                    return False
        except CorruptBatch:
            return False
        return True

    def rebuild_index(self, storage: Storage) -> SegmentIndex:
        """Rebuild the indexes from the batches, also after damage, which reading will report."""
        index = SegmentIndex(self.base_offset, self._interval_bytes)
        walk = self.walk(storage, 0, self.size, index)
        while walk.damage is not None and walk.resume_position < self.size:
            walk = self.walk(storage, walk.resume_position, self.size, index, resumed=True)
        return index

    def use_index(self, index: SegmentIndex) -> None:
        """Replace the index of an open segment."""
        self._open = Lookup(self._data.storage, index)

    def write_index(self, *, durable: bool = True) -> None:
        """Write the index files, each replaced atomically. That of transactions comes first: with the others the
        segment is sealed for everybody."""
        offsets, times = self._data.index.encode()
        if self.outcomes is not None:
            content = self.outcomes.encode(*self.tail)
            self.directory.replace(file_name(self.base_offset, TXN_INDEX), content, durable=durable)
        self.directory.replace(file_name(self.base_offset, INDEX), offsets, durable=durable)
        self.directory.replace(file_name(self.base_offset, TIME_INDEX), times, durable=durable)

    def remove_index(self) -> None:
        """Delete the index files before a segment grows again: a stale one must not survive a crash. That of
        transactions says itself which bytes it describes, and stays."""
        self.directory.remove(file_name(self.base_offset, INDEX))
        self.directory.remove(file_name(self.base_offset, TIME_INDEX))

    def stored_outcomes(self) -> Outcomes | None:
        """What its file says about transactions; None if there is none, or it is not that of these bytes."""
        try:
            data = self.directory.read(file_name(self.base_offset, TXN_INDEX))
        except StorageError:
            return None
        self.outcomes = Outcomes.decode(data, self.base_offset, *self.tail)
        return self.outcomes

    def store_outcomes(self) -> None:
        """Write what is known about transactions, if possible: it is a cache."""
        if self.outcomes is not None:
            try:
                content = self.outcomes.encode(*self.tail)
                self.directory.replace(file_name(self.base_offset, TXN_INDEX), content)
            except SyncFailed:
                raise
            except StorageError:
                pass

    def unload(self) -> None:
        """Close the file and the indexes. A reader that uses them keeps them alive until it is done; then they are
        closed."""
        if not self.pinned:
            self._open = None

    def close(self) -> None:
        """As `unload`, also if it was to stay open: its log is closed."""
        self._open = None

    def stay_open(self) -> None:
        """Its file is about to be replaced, and current readers continue with it."""
        self.pinned = True

    def begin_replacement(self) -> None:
        """Another file is about to get its name: stay open for current readers, and leave the index files alone."""
        self.repairs, self.pinned = False, True
        _ = self.storage

    def cancel_replacement(self) -> None:
        """Its file keeps its name."""
        self.pinned, self.repairs = False, True

    def seal(self) -> None:
        """Seal the segment: the indexes are written, and the file is mapped when it is read."""
        self.timestamps()
        try:
            self.write_index()
        except SyncFailed:
            raise
        except StorageError:
            self.remove_index()  # a cache: it is rebuilt when needed
        self.sealed = True
        self.unload()

    def delete(self) -> None:
        """Remove all files. Readers that have it open keep what they have."""
        self.unload()
        for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
            self.directory.remove(file_name(self.base_offset, suffix))
        count("segments_removed")

    # --- writing (the active segment, under the log's lock)

    @property
    def storage(self) -> Storage:
        """The bytes."""
        return (self._open or self._load()).storage

    @property
    def index(self) -> SegmentIndex:
        """The indexes in memory."""
        return (self._open or self._load()).index

    @property
    def is_loaded(self) -> bool:
        """Whether it is currently open or mapped."""
        return self._open is not None

    def take_in(self, rows: Rows, origin: int) -> None:
        """Add complete batches that another process has written after its end; `origin` is added to their
        positions."""
        self.index.add_rows(rows, origin)
        last = rows[-1]
        self.reach(int(last[LAST]) + 1, origin + int(last[POSITION] + last[SIZE]))

    def short_end(self) -> str | None:
        """Why it does not contain its last offset; None if it does. Reads one index and a few batches."""
        last = self.next_offset - 1
        if not self.dense or last < self.base_offset:
            return None
        try:
            for chunk in self.chunks(last, last + 1):
                if chunk.rows[-1, LAST] >= last:
                    return None
            return missing_text(self._batches_end(), self.next_offset)
        except CorruptBatch as damage:
            return damage.reason

    def _batches_end(self) -> int:
        """Return the offset after the last batch. Reads from the last batch that the index names."""
        positions, end = self.index.positions, self.base_offset
        for chunk in self.batches(self.storage, positions[-1] if positions else 0, self.size, -1):
            end = int(chunk.rows[-1, LAST]) + 1
        return end

    def learn(self, outcomes: Outcomes | None) -> None:
        """What it says about transactions."""
        self.outcomes = outcomes

    def meet(self, offset: int) -> None:
        """A batch of a transaction ends there."""
        self.met_until = offset

    # --- known without reading

    def timestamps(self) -> tuple[int, int]:
        """(of the first batch, largest): ms, -1 if there is none. From the index, so good enough for searching, but not
        for deciding what to delete: see `newest_timestamp`."""
        if self.sealed and self._times is not None:
            return self._times
        if self.sealed and self._open is None:
            times = self._open_times()
            self.unload()
            return times
        return self._open_times()

    def _open_times(self) -> tuple[int, int]:
        index = self._data.index
        if index.first_timestamp < 0 and self.size >= HEADER_BYTES:
            index.note_first(struct.unpack(">q", self.storage.read(35, 8))[0])
        self._times = index.first_timestamp, index.max_timestamp
        return self._times

    def newest_timestamp(self) -> int:
        """The largest timestamp according to the batches themselves; damaged parts are left out."""
        newest = self.timestamps()[1]
        storage = self._data.storage
        position, least = 0, self.base_offset
        while position < self.size:
            try:
                for chunk in self.batches(storage, position, self.size, least, check=False):
                    newest = max(newest, int(chunk.rows[:, MAX_TIME].max()))
                break
            except CorruptBatch as damage:
                position, _ = self.resume(storage, damage.position or 0, self.size, self.base_offset)
                least = -1
        if self.sealed:
            self.unload()
        return newest

    # --- reading

    def chunks(self, offset: int, end: int, *, check: bool = True, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
        """The batches that contain offsets from `offset` to `end`, in order, checked; raises at the first bad one. The
        first may start below `offset` and the last may end after `end`."""
        opened = self._data
        return self.chunks_in(opened.storage, opened.index, offset, end, check=check, chunk_bytes=chunk_bytes)

    def end_below(self, storage: Storage, offset: int) -> int:
        """Where the batches below an offset end in a file."""
        end = 0
        for chunk in self.batches(storage, 0, self.size, self.base_offset):
            before = chunk.rows[chunk.rows[:, LAST] < offset]
            if len(before):
                end = chunk.origin + int(before[-1, POSITION] + before[-1, SIZE])
            if len(before) < len(chunk.rows):
                break
        return end

    def rows_around_damage(self, offset: int, *, check: bool = True) -> Iterator[Rows]:
        """The headers of all batches from `offset` on that can be found; damage is skipped."""
        while offset < self.next_offset:
            try:
                for chunk in self.chunks(offset, self.next_offset, check=check):
                    yield chunk.rows
                    offset = int(chunk.rows[-1, LAST]) + 1
                break
            except CorruptBatch as damage:
                if damage.next_offset is None or damage.next_offset <= offset:
                    break
                offset = damage.next_offset

    def read(self, offset: int, max_bytes: int, outcomes: Decisions | None = None) -> Record | None:
        """The record at `offset`, or the first one after it; None if the segment has none. `outcomes` says which
        batches of transactions contain no record."""
        return (self._open or self._load()).read(self, offset, max_bytes, outcomes)

    def page(
        self, offset: int, end: int, max_bytes: int, *, remembers: bool = True
    ) -> tuple[memoryview, int, bool, bool, int] | None:
        """A page of batches in one call, if all is as usual: see `Lookup.page`."""
        return (self._open or self._load()).page(self, offset, end, max_bytes, remembers=remembers)

    def first_at(self, timestamp: int, start: int, max_bytes: int, outcomes: Decisions | None = None) -> int | None:
        """The first offset from `start` on whose record is not older than `timestamp`: see `Lookup.first_at`."""
        return self._data.first_at(self, timestamp, start, max_bytes, outcomes)

    def has_hole_at(self, offset: int) -> bool:
        """Whether the batch that covers `offset` says itself that it has fewer records than offsets."""
        return self._data.has_hole_at(self, offset)
