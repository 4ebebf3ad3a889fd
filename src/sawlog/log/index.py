"""The sparse indexes of a segment: offset to position, time to offset. Kafka's bytes, big endian.

```
.index      entries of 8 bytes:  [last offset of a batch - segment base u32][position of that batch u32]
.timeindex  entries of 12 bytes: [largest timestamp so far i64][last offset of the batch that has it - base u32]
```

Batches that end 2**31 or more offsets after the segment's first do not fit into an entry and are left out. Only batches
without records, which represent a gap, extend that far. Entries increase strictly. Both indexes are caches: built while
the segment grows, written when it is sealed or the log closes, and rebuilt from the batches whenever a file is missing,
short, padded, out of order or contradicts the log."""

from __future__ import annotations

import sys
from array import array

import numpy as np

from ..batch import kernel
from ..batch.header import LAST, MAX_TIME, POSITION, Rows

#: Offsets in an index are relative and 32-bit; Kafka reads them as signed.
MAX_SPAN = 2**31 - 1
OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12


class SegmentIndex(kernel.SparseIndex):
    """Both indexes of one segment, extended batch by batch (`add`, `add_rows`). One thread adds, any number look up
    (`bounds`). The operations of the hot paths are in the kernel."""

    __slots__ = ()
    offsets: array[int]
    positions: array[int]
    times: array[int]
    time_offsets: array[int]
    first_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    base_offset: int
    interval_bytes: int
    since_bytes: int

    # --- growing

    def add_rows(self, rows: Rows, origin: int) -> None:
        """Add many batches; `origin` is added to their positions."""
        if len(rows) and rows[-1, LAST] - self.base_offset > MAX_SPAN:
            rows = rows[rows[:, LAST] - self.base_offset <= MAX_SPAN]
        if not len(rows):
            return
        chosen = np.empty(len(rows), np.int64)
        count, self.since_bytes = kernel.select_entries(
            memoryview(rows), len(rows), self.interval_bytes, self.since_bytes, memoryview(chosen)
        )
        times = rows[:, MAX_TIME]
        if self.first_timestamp < 0:
            self.first_timestamp = int(times[0])
        # The largest timestamp before each batch, and the batch that has it: -1 if it precedes these rows.
        largest = np.maximum.accumulate(np.concatenate(([self.max_timestamp], times)))
        having = np.maximum.accumulate(np.where(times > largest[:-1], np.arange(len(rows)), -1))
        if count:
            self._enter_rows(rows, origin, chosen[:count], largest, having)
        if having[-1] >= 0:
            self.max_timestamp, self.max_timestamp_offset = int(largest[-1]), int(rows[having[-1], LAST])

    def _enter_rows(self, rows: Rows, origin: int, chosen: Rows, largest: Rows, having: Rows) -> None:
        """Add entries in the opposite order in which readers access the arrays: see `kernel.SparseIndex`."""
        del self.positions[len(self.offsets) :]
        self.positions.frombytes((rows[chosen, POSITION] + origin).astype(np.uint32).tobytes())
        self.offsets.frombytes((rows[chosen, LAST] - self.base_offset).astype(np.uint32).tobytes())
        times = largest[chosen]
        latest = np.concatenate(([self.times[-1] if self.times else -1], times[:-1]))
        new = times > latest
        before = having[chosen[new] - 1]  # the first row is chosen only if the file has batches before it
        before[chosen[new] == 0] = -1
        offsets = np.where(before >= 0, rows[before, LAST], self.max_timestamp_offset) - self.base_offset
        del self.time_offsets[len(self.times) :]
        self.time_offsets.frombytes(offsets.astype(np.uint32).tobytes())
        self.times.frombytes(times[new].astype(np.int64).tobytes())

    def note_first(self, timestamp: int) -> None:
        """Set the timestamp of the first batch, which the index files do not contain."""
        self.first_timestamp = timestamp

    @property
    def size_bytes(self) -> int:
        """Size of the larger of the two files, including the time entry that sealing adds."""
        offsets, times = len(self.offsets) * OFFSET_ENTRY_BYTES, (len(self.times) + 1) * TIME_ENTRY_BYTES
        return offsets if offsets > times else times  # noqa: FURB136 - at every append, and max() is a call

    # --- files

    def encode(self) -> tuple[bytes, bytes]:
        """Return the bytes of the two files. The time index ends with the segment's largest timestamp."""
        self.enter_time()
        entries = np.empty((len(self.offsets), 2), ">u4")
        entries[:, 0], entries[:, 1] = self.offsets, self.positions[: len(self.offsets)]
        times = np.empty(len(self.times), np.dtype([("time", ">i8"), ("offset", ">u4")]))
        times["time"], times["offset"] = self.times, self.time_offsets[: len(self.times)]
        return entries.tobytes(), times.tobytes()

    @classmethod
    def decode(
        cls, base_offset: int, interval_bytes: int, index: bytes, times: bytes, *, span: int, size_bytes: int
    ) -> SegmentIndex | None:
        """Decode the two files; None unless they are plausible for a segment of `span` offsets and `size_bytes` bytes.

        Lookups verify individual entries when they use them.
        """
        if len(index) % OFFSET_ENTRY_BYTES or len(times) % TIME_ENTRY_BYTES:
            return None
        entries = np.frombuffer(index, ">u4").reshape(-1, 2)
        stamps = np.frombuffer(times, np.dtype([("time", ">i8"), ("offset", ">u4")]))
        for numbers, below in (
            (entries[:, 0], span),
            (entries[:, 1], size_bytes),
            (stamps["time"], 2**63 - 1),
        ):
            wide = numbers.astype(np.int64)
            if len(wide) and (wide[-1] >= below or (np.diff(wide) <= 0).any()):
                return None
        if len(stamps) and (int(stamps["offset"].max()) >= span or int(stamps["time"][0]) < 0):
            return None
        made = cls(base_offset, interval_bytes)
        made.offsets = _native("I", entries[:, 0])
        made.positions = _native("I", entries[:, 1])
        made.times = _native("q", stamps["time"])
        made.time_offsets = _native("I", stamps["offset"])
        if len(stamps):
            made.max_timestamp = int(stamps["time"][-1])
            made.max_timestamp_offset = base_offset + int(stamps["offset"][-1])
        return made


def _native(code: str, numbers: np.ndarray) -> array[int]:
    made: array[int] = array(code)
    kind = np.dtype(f"{'<' if sys.byteorder == 'little' else '>'}{'u4' if code == 'I' else 'i8'}")
    made.frombytes(np.ascontiguousarray(numbers, kind).tobytes())
    return made
