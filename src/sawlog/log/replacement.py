"""The file that replaces a run of segments: writing it, and finishing the replacement.

`ReplacementFile` is the file while it is being written. It is limited by the size of a segment and by the offsets that
an index can address; `TooLarge` reports that the run does not fit. `finish_swap` performs the last steps of the
protocol described in rewrite.py, for the writer and for recovery; they can be repeated from the beginning any number of
times. `UnfinishedSwap` tells recovery whether a file it found may replace anything. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..batch.header import COUNT, LAST, POSITION, SIZE
from ..storage import Directory, Storage
from .batches import Chunk, Walk
from .files import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name, segment_base
from .index import MAX_SPAN, SegmentIndex
from .segment import Segment

#: Finished batches are written in blocks of about this size.
_WRITE_BYTES = 1 << 20


class TooLarge(Exception):
    """The replacement would not fit into one segment; `fitted` segments of the run would have."""

    def __init__(self, fitted: int = 0) -> None:
        super().__init__(fitted)
        self.fitted = fitted


class ReplacementFile:
    """A replacement being written, and its index."""

    def __init__(self, storage: Storage, base: int, interval_bytes: int, *, limit: int) -> None:
        self._storage = storage
        self._buffer = bytearray()
        self._limit = limit
        self._base = base
        self.position = 0
        self.index = SegmentIndex(base, interval_bytes)

    def put(self, batch: memoryview, last_offset: int, max_timestamp: int, *, count: int) -> None:
        """Append a finished batch of `count` records. Only empty batches may end beyond the range of the index."""
        self._check(len(batch), last_offset if count else self._base)
        if last_offset - self._base <= MAX_SPAN:
            self.index.add(last_offset, self.position, len(batch), max_timestamp)
        self.position += len(batch)
        if len(batch) >= _WRITE_BYTES:  # not buffered: it may be as large as a segment
            self.flush()
            self._storage.append(batch)
            return
        self._buffer += batch
        if len(self._buffer) >= _WRITE_BYTES:
            self.flush()

    def copy(self, chunk: Chunk) -> None:
        """Append the batches of a chunk unchanged."""
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
        """Raise `TooLarge` unless `size` more bytes fit."""
        if self.position + size > self._limit:
            raise TooLarge

    def flush(self) -> None:
        if self._buffer:
            self._storage.append(self._buffer)
            self._buffer = bytearray()


def finish_swap(
    directory: Directory,
    name: str,
    base: int,
    others: Sequence[int],
    index: SegmentIndex | None = None,
    transactions: bytes | None = None,
) -> None:
    """Perform steps 3 to 5 of the protocol. Missing indexes are built on demand."""
    for suffix in (INDEX, TIME_INDEX, TXN_INDEX):
        directory.remove(file_name(base, suffix))
    for other in others:
        for suffix in (INDEX, TIME_INDEX, TXN_INDEX, LOG):
            directory.remove(file_name(other, suffix))
    directory.sync()
    if transactions is not None:
        directory.replace(file_name(base, TXN_INDEX), transactions)
    if index is not None:
        offsets, times = index.encode()
        directory.replace(file_name(base, INDEX), offsets)
        directory.replace(file_name(base, TIME_INDEX), times)
    directory.rename(name, file_name(base))
    directory.sync()


class UnfinishedSwap:
    """A `.swap` file found by recovery, and whether it replaces the old segments."""

    def __init__(
        self, directory: Directory, name: str, base: int, end: int, names: Sequence[str], interval_bytes: int
    ) -> None:
        self._directory = directory
        self._interval_bytes = interval_bytes
        #: First offsets of the old segments that still exist.
        self.old = [each for other in names if (each := segment_base(other)) is not None and base <= each < end]
        #: True if the file contains every offset of the run.
        self.whole = self._reaches(name, base, end)
        #: True if the file replaces the old segments. False if it ends within one of them, or if it is damaged and no
        #: segment begins at its end: no rewrite produces such a file. Also False if it is damaged and all old segments
        #: are intact.
        self.replaces = not self._go_beyond(end) and (
            self.whole or (file_name(end) in names and not self._are_whole([*self.old, end]))
        )

    def _reaches(self, name: str, base: int, end: int) -> bool:
        """Return True if a file contains complete batches from `base` to `end`."""
        walk = self._walked(name, base, end)
        return walk.damage is None and walk.next_offset == end

    def _walked(self, name: str, base: int, end: int) -> Walk:
        """Walk a file that should contain the offsets from `base` to `end`."""
        storage = self._directory.open(name)
        try:
            segment = Segment(self._directory, base, end, storage.size, self._interval_bytes)
            return segment.walk(storage, 0, storage.size, SegmentIndex(base, self._interval_bytes))
        finally:
            storage.close()

    def _go_beyond(self, end: int) -> bool:
        """Return True if the last of the old segments contains offsets at or after `end`."""
        return bool(self.old) and self._walked(file_name(self.old[-1]), self.old[-1], end).next_offset > end

    def _are_whole(self, bases: list[int]) -> bool:
        """Return True if each segment extends to the next base; the last number is only an end."""
        return len(bases) > 1 and all(self._reaches(file_name(base), base, end) for base, end in pairwise(bases))
