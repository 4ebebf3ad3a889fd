"""The file that replaces a run of segments, while it is being written: finished batches, back to back, and their index.

It is bounded by the size of a segment and by the offsets that one index has room for; `TooLarge` says that the run does
not fit. The name of the file, and when it counts, is up to rewrite.py. One thread.
"""

from __future__ import annotations

from ...batch.header import COUNT, LAST, POSITION, SIZE
from ...storage import Storage
from ..segment.batches import Chunk
from ..segment.index import MAX_SPAN, SegmentIndex

#: Finished batches are written in pieces of about this size.
_WRITE_BYTES = 1 << 20


class TooLarge(Exception):
    """The replacement would not fit into one segment; `fitted` segments of the run would have."""

    def __init__(self, fitted: int = 0) -> None:
        super().__init__(fitted)
        self.fitted = fitted


class Replacement:
    """The file that replaces a run while it is being written, and its index. Nobody else writes to it."""

    def __init__(self, storage: Storage, base: int, interval_bytes: int, *, limit: int) -> None:
        self._storage = storage
        self._buffer = bytearray()
        self._limit = limit
        self._base = base
        self.position = 0
        self.index = SegmentIndex(base, interval_bytes)

    def put(self, batch: memoryview, last_offset: int, max_timestamp: int, *, count: int) -> None:
        """One finished batch, with that many records: only batches without any may end where no index entry is
        possible."""
        self._check(len(batch), last_offset if count else self._base)
        if last_offset - self._base <= MAX_SPAN:
            self.index.add(last_offset, self.position, len(batch), max_timestamp)
        self.position += len(batch)
        if len(batch) >= _WRITE_BYTES:  # not copied: it may be as large as a segment
            self.flush()
            self._storage.append(batch)
            return
        self._buffer += batch
        if len(self._buffer) >= _WRITE_BYTES:
            self.flush()

    def copy(self, chunk: Chunk) -> None:
        """Finished batches, unchanged."""
        rows = chunk.rows
        begin, end = int(rows[0, POSITION]), int(rows[-1, POSITION] + rows[-1, SIZE])
        self._check(end - begin, int(rows[rows[:, COUNT] > 0, LAST].max(initial=self._base)))
        self.flush()
        self.index.add_rows(rows, self.position - begin)
        self._storage.append(chunk.view[begin:end])
        self.position += end - begin

    def _check(self, size: int, last_offset: int) -> None:
        self.check_room(size)
        if last_offset - self._base >= MAX_SPAN:
            raise TooLarge

    def check_room(self, size: int) -> None:
        """Raise unless that much more fits."""
        if self.position + size > self._limit:
            raise TooLarge

    def flush(self) -> None:
        if self._buffer:
            self._storage.append(self._buffer)
            self._buffer = bytearray()
