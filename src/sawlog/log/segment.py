"""A segment: a file of contiguous batches, and its indexes.

A segment is *active* (the last one, growing) or *sealed* (immutable, mapped on demand). `size` and `next_offset`
describe committed data; bytes after `size` are visible to the writer only. Reads verify every batch: header, bounds,
CRC, records, and that its offsets continue those of the previous batch (batches.py, index.py).

Threads: one writer under the log's lock; any number of readers without it. The writer sets `tail` last.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..batch.header import HEADER_BYTES, LAST, MAX_TIME, POSITION, SIZE, Rows
from ..batch.kernel import Record
from ..display import missing_text
from ..errors import CorruptBatch, StorageError, SyncFailed
from ..storage import Directory, Storage
from ..storage.counters import count
from .batches import CHUNK_BYTES, Batches, Chunk
from .files import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from .index import Lookup, SegmentIndex
from .transactions import TransactionIndex

if TYPE_CHECKING:
    from .transactions import TransactionView


class Segment(Batches):
    """A segment of a log."""

    __slots__ = (
        "_interval_bytes",
        "_times",
        "directory",
        "identity",
        "name",
        "pinned",
        "repairs",
        "transaction_index",
        "transactions_until",
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
        transaction_index: TransactionIndex | None = None,
    ) -> None:
        #: The file name; differs from the final name while the file is about to replace others.
        self.name = file_name(base_offset) if name is None else name
        path = f"{directory.path}/{self.name}"
        super().__init__(base_offset, next_offset, size, path, sealed=sealed, expected_end=expected_end, dense=dense)
        self.directory = directory
        #: True while the segment must stay open because its name already refers to another file.
        self.pinned = False
        #: True if a bad index found by a read is rewritten on disk. Only the writer may do this.
        self.repairs = repairs
        #: Identity of the file, for readers: another file may take over its name.
        self.identity = identity
        #: The transaction index, if loaded; None also for a segment without transactions.
        self.transaction_index = transaction_index
        #: While a reader follows the segment: the offset after the last transactional batch found.
        self.transactions_until = -1
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
        """Return a segment that still grows and therefore stays open."""
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
                pass  # a cache: the next open tries again
        return loaded

    def _read_index(self) -> SegmentIndex | None:
        try:
            offsets = self.directory.read(file_name(self.base_offset, INDEX))
            times = self.directory.read(file_name(self.base_offset, TIME_INDEX))
        except StorageError:
            return None  # missing, being deleted, or unreadable: it is only a cache
        return SegmentIndex.decode(
            self.base_offset,
            self._interval_bytes,
            offsets,
            times,
            span=self.next_offset - self.base_offset,
            size_bytes=self.size,
        )

    def sound_index(self, storage: Storage) -> SegmentIndex | None:
        """Load the indexes; None if a file is missing or contradicts the log."""
        index = self._read_index()
        return index if index is not None and self._time_index_is_complete(storage, index) else None

    def _time_index_is_complete(self, storage: Storage, index: SegmentIndex) -> bool:
        """Return True if the last entry of the time index names a batch and no later batch is newer. A time index that
        lost its end would make recent data look expired."""
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
        """Rebuild the indexes from the batches. Skips damage, which reads will report."""
        index = SegmentIndex(self.base_offset, self._interval_bytes)
        walk = self.walk(storage, 0, self.size, index)
        while walk.damage is not None and walk.resume_position < self.size:
            walk = self.walk(storage, walk.resume_position, self.size, index, resumed=True)
        return index

    def use_index(self, index: SegmentIndex) -> None:
        """Replace the index of an open segment."""
        self._open = Lookup(self._data.storage, index)

    def write_index(self, *, durable: bool = True) -> None:
        """Replace the index files, each atomically. The transaction index comes first: once the others exist, readers
        treat the segment as sealed."""
        offsets, times = self._data.index.encode()
        if self.transaction_index is not None:
            content = self.transaction_index.encode(*self.tail)
            self.directory.replace(file_name(self.base_offset, TXN_INDEX), content, durable=durable)
        self.directory.replace(file_name(self.base_offset, INDEX), offsets, durable=durable)
        self.directory.replace(file_name(self.base_offset, TIME_INDEX), times, durable=durable)

    def remove_index(self) -> None:
        """Delete the index files before the segment grows again: a stale index must not survive a crash. The
        transaction index records which bytes it describes, and stays."""
        self.directory.remove(file_name(self.base_offset, INDEX))
        self.directory.remove(file_name(self.base_offset, TIME_INDEX))

    def load_transaction_index(self) -> TransactionIndex | None:
        """Load the transaction index and return it; None if the file cannot be read, is damaged, or does not match the
        segment's current end."""
        try:
            data = self.directory.read(file_name(self.base_offset, TXN_INDEX))
        except StorageError:
            return None
        self.transaction_index = TransactionIndex.decode(data, self.base_offset, *self.tail)
        return self.transaction_index

    def write_transaction_index(self) -> None:
        """Write the transaction index. Best effort: it is a cache, and only a failed fsync raises."""
        if self.transaction_index is not None:
            try:
                content = self.transaction_index.encode(*self.tail)
                self.directory.replace(file_name(self.base_offset, TXN_INDEX), content)
            except SyncFailed:
                raise
            except StorageError:
                pass

    def unload(self) -> None:
        """Close the file and the indexes, unless pinned. A reader in the middle of a call keeps them alive until it
        returns."""
        if not self.pinned:
            self._open = None

    def close(self) -> None:
        """Close the file and the indexes, pinned or not, because the log closes."""
        self._open = None

    def stay_open(self) -> None:
        """Pin the segment: its file is about to be replaced, and current readers continue with the old one."""
        self.pinned = True

    def begin_replacement(self) -> None:
        """Prepare for another file to take over the name: stay open for current readers, stop repairing index files."""
        self.repairs, self.pinned = False, True
        _ = self.storage

    def cancel_replacement(self) -> None:
        """Undo `begin_replacement`: the file keeps its name."""
        self.pinned, self.repairs = False, True

    def seal(self) -> None:
        """Seal the segment: write its indexes, and map the file at the next read."""
        self.timestamps()
        try:
            self.write_index()
        except SyncFailed:
            raise
        except StorageError:
            self.remove_index()  # a cache: rebuilt on demand
        self.sealed = True
        self.unload()

    def delete(self) -> None:
        """Remove all files. Readers that have the segment open can finish."""
        self.unload()
        for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
            self.directory.remove(file_name(self.base_offset, suffix))
        count("segments_removed")

    # --- writing (the active segment, under the log's lock)

    @property
    def storage(self) -> Storage:
        """The open file."""
        return (self._open or self._load()).storage

    @property
    def index(self) -> SegmentIndex:
        """The indexes in memory."""
        return (self._open or self._load()).index

    @property
    def is_loaded(self) -> bool:
        """True if the file is open or mapped."""
        return self._open is not None

    def add_batches(self, rows: Rows, origin: int) -> None:
        """Extend the segment by complete batches that another process wrote; `origin` is added to their positions."""
        self.index.add_rows(rows, origin)
        last = rows[-1]
        self.reach(int(last[LAST]) + 1, origin + int(last[POSITION] + last[SIZE]))

    def missing_end(self) -> str | None:
        """Explain why the last offset is missing; None if it is present. Reads one index and a few batches."""
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
        """Return the offset after the last batch, reading from the last indexed one."""
        positions, end = self.index.positions, self.base_offset
        for chunk in self.batches(self.storage, positions[-1] if positions else 0, self.size, -1):
            end = int(chunk.rows[-1, LAST]) + 1
        return end

    def set_transaction_index(self, transaction_index: TransactionIndex | None) -> None:
        """Set the transaction index in memory; `write_transaction_index` stores it."""
        self.transaction_index = transaction_index

    def note_transaction(self, offset: int) -> None:
        """Record that a transactional batch ends at `offset`."""
        self.transactions_until = offset

    # --- known without reading

    def timestamps(self) -> tuple[int, int]:
        """Return (timestamp of the first batch, largest timestamp) in ms, -1 if there is none. These come from the
        index: good enough to search by, but not to decide what to delete. For that, see `newest_timestamp`."""
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
        """Return the largest timestamp in the batch headers, skipping damage."""
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
        """Yield the batches with offsets from `offset` to `end`, in order, verified. Raises `CorruptBatch` at the first
        bad one. The first batch may start below `offset` and the last may end after `end`."""
        opened = self._data
        return self.chunks_in(opened.storage, opened.index, offset, end, check=check, chunk_bytes=chunk_bytes)

    def end_below(self, storage: Storage, offset: int) -> int:
        """Return the position after the last batch that is completely below `offset`."""
        end = 0
        for chunk in self.batches(storage, 0, self.size, self.base_offset):
            before = chunk.rows[chunk.rows[:, LAST] < offset]
            if len(before):
                end = chunk.origin + int(before[-1, POSITION] + before[-1, SIZE])
            if len(before) < len(chunk.rows):
                break
        return end

    def rows_around_damage(self, offset: int, *, check: bool = True) -> Iterator[Rows]:
        """Yield the headers of all readable batches from `offset`, skipping damage."""
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

    def selected_rows(self, start: int, end: int, select: Callable[[Rows], Rows]) -> list[Rows]:
        """Return the headers from offset `start` to `end` that `select` chooses. Only their checksums are verified.
        Damage is skipped here and reported when it is read."""
        try:
            return [chunk.good(select(chunk.rows)) for chunk in self.chunks(start, end, check=False)]
        except CorruptBatch:
            return [select(rows) for rows in self.rows_around_damage(start)]

    def read(self, offset: int, max_bytes: int, transactions: TransactionView | None = None) -> Record | None:
        """Return the record at `offset`, or the first one after it; None if the segment has none. `transactions` tells
        which batches were aborted."""
        return (self._open or self._load()).read(self, offset, max_bytes, transactions)

    def first_at(
        self, timestamp: int, start: int, max_bytes: int, transactions: TransactionView | None = None
    ) -> int | None:
        """Return the first offset from `start` whose record is not older than `timestamp`: see `Lookup.first_at`."""
        return self._data.first_at(self, timestamp, start, max_bytes, transactions)

    def has_hole_at(self, offset: int) -> bool:
        """Return True if the batch that covers `offset` has fewer records than offsets, by its own header."""
        return self._data.has_hole_at(self, offset)
