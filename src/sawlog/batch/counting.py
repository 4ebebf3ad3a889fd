"""`KeyCounts`: records per key, optionally with the range of their offsets and timestamps.

It reads batches and produces rows:

| column | type | |
|---|---|---|
| key | binary | null for the records without a key |
| records | int64 | |
| first_offset, last_offset | int64 | with `ranges` |
| oldest, newest | timestamp[ms, UTC] | with `ranges` |

Memory is bounded: a full table is flushed as rows, and counting starts over. So a key may have several rows, which the
caller adds up. If nearly every record had its own key until then, counting does not pay off, and every further record
becomes a row. Not thread-safe.
"""

from __future__ import annotations

import secrets

import numpy as np
import pyarrow as pa

from ..errors import CorruptBatch
from . import kernel
from .arrow import TIME_TYPE, joined, to_arrow
from .header import Rows
from .read import MALFORMED

#: Slots of the first and of the largest table; at most half of them are used.
_SLOTS, _MOST_SLOTS = 1 << 12, 1 << 17
#: With fewer records per key than this, counting costs more than it saves.
_LEAST_RECORDS = 2
#: Initial and maximum space for keys longer than 16 bytes; exceeded only if a single key needs it.
_STORE_BYTES, _MOST_STORE_BYTES = 1 << 16, 1 << 24

RANGES = pa.schema({"first_offset": pa.int64(), "last_offset": pa.int64(), "oldest": TIME_TYPE, "newest": TIME_TYPE})
SCHEMA = pa.schema([pa.field("key", pa.binary()), pa.field("records", pa.int64()), *RANGES])


class KeyCounts:
    """Record counts by key. `rows` has the flushed rows."""

    def __init__(self, *, ranges: bool) -> None:
        self._ranged = ranges
        self._seed = secrets.randbits(64)
        self._slots = _SLOTS
        self._table, self._ranges = self._tables(_SLOTS)
        self._store = bytearray(_STORE_BYTES)
        self._used = self._stored = 0
        #: True once counting was given up because keys hardly repeat.
        self.is_sparse = False
        #: True once a batch did not parse: the counts are meaningless.
        self.is_spoiled = False
        self.rows: list[pa.RecordBatch] = []

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows."""
        return SCHEMA if self._ranged else pa.schema([SCHEMA.field("key"), SCHEMA.field("records")])

    @property
    def _columns(self) -> list[str]:
        return ["key", "offset", "timestamp"] if self._ranged else ["key"]

    def add(self, view: memoryview, rows: Rows, start: int, end: int, max_bytes: int) -> None:
        """Count the records with start <= offset < end in these batches. Raises `CorruptBatch` if a batch cannot be
        decompressed, and nothing was counted; or if one does not parse, which also sets `is_spoiled`."""
        if self.is_sparse:
            self.add_rows(to_arrow(view, rows, start, end, columns=self._columns, max_bytes=max_bytes))
            return
        view, rows = joined(view, rows, max_bytes)
        place = (0, 0)
        while place[0] < len(rows):
            *place, self._used, self._stored, bad = kernel.count_keys(
                view,
                memoryview(rows),
                tuple(place),
                (start, end),
                memoryview(self._table),
                memoryview(self._ranges),
                memoryview(self._store),
                self._used,
                self._stored,
                self._seed,
            )
            if bad:
                self.is_spoiled = True
                raise CorruptBatch(MALFORMED)
            if place[0] < len(rows):
                self._make_room(len(view))

    def add_rows(self, batch: pa.RecordBatch) -> None:
        """Count records given as rows with the columns key, offset and timestamp."""
        ones = pa.array(np.ones(batch.num_rows, np.int64))
        arrays = [batch.column("key"), ones]
        if self._ranged:
            arrays += [batch.column(name) for name in ("offset", "offset", "timestamp", "timestamp")]
        self.rows.append(pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def flush(self) -> None:
        """Turn the counts into rows, and start over."""
        made = self._counted()
        if made.num_rows:
            self.rows.append(made)
            self._table[:] = 0
        self._used = self._stored = 0

    def take(self) -> list[pa.RecordBatch]:
        """Return the rows and forget them."""
        rows, self.rows = self.rows, []
        return rows

    # --- tables

    def _tables(self, slots: int) -> tuple[np.ndarray, np.ndarray]:
        table = np.zeros((slots + 1, kernel.COUNTED_WIDTH), np.uint64)
        return table, np.zeros((slots + 1 if self._ranged else 0, kernel.RANGE_WIDTH), np.int64)

    def _make_room(self, largest: int) -> None:
        """Make room for another key, of at most `largest` bytes."""
        if self._used >= self._slots // 2 and self._slots < _MOST_SLOTS and self._grow():
            return
        if self._used < self._slots // 2 and len(self._store) < _MOST_STORE_BYTES:
            self._store.extend(bytes(len(self._store)))
        elif self._used:
            records = int(self._table[:, kernel.RECORDS].sum())
            self.is_sparse = self._used >= self._slots // 2 and records < self._used * _LEAST_RECORDS
            self.flush()
        else:
            self._store = bytearray(largest)

    def _grow(self) -> bool:
        """Move to larger tables. Return False if that is not possible."""
        table, ranges = self._tables(self._slots * 4)
        moved: bool = kernel.move_counts(
            memoryview(self._table),
            memoryview(self._ranges),
            memoryview(table),
            memoryview(ranges),
            self._seed,
        )
        if moved:
            self._table, self._ranges, self._slots = table, ranges, self._slots * 4
        return moved

    def _counted(self) -> pa.RecordBatch:
        used = self._table[:, kernel.SIZE_PLUS_ONE] != 0
        sizes = self._table[used, kernel.SIZE_PLUS_ONE]
        offsets = pa.allocate_buffer(4 * (len(sizes) + 1))
        data = pa.allocate_buffer(int(sizes.sum()) - len(sizes))
        count, _ = kernel.counted_keys(
            memoryview(self._table),
            memoryview(self._store),
            memoryview(offsets).cast("B").cast("i"),
            memoryview(data).cast("B"),
        )
        keys = pa.Array.from_buffers(pa.binary(), count, [None, offsets, data], 0)
        if self._table[-1, kernel.RECORDS]:
            used[-1] = True  # the last row is of the records without a key
            keys = pa.concat_arrays([keys, pa.nulls(1, pa.binary())])
        arrays = [keys, pa.array(self._table[used, kernel.RECORDS].astype(np.int64))]
        if self._ranged:
            columns = (kernel.FIRST_OFFSET, kernel.LAST_OFFSET, kernel.OLDEST, kernel.NEWEST)
            arrays += [
                pa.array(self._ranges[used, column]).cast(field.type)
                for column, field in zip(columns, RANGES, strict=True)
            ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
