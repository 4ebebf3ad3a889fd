"""`KeyCounts`: how many records each key has, and perhaps their smallest and largest offsets and times.

It takes batches, and gives rows:

| column | type | |
|---|---|---|
| key | binary | null for the records without a key |
| records | int64 | |
| first_offset, last_offset | int64 | if ranges are wanted |
| oldest, newest | timestamp[ms, UTC] | if ranges are wanted |

Memory is bounded: when it has too many keys, it gives rows for those and begins again. So a key may have several rows,
and whoever wants one has to add them up. If nearly every record had a key of its own until then, counting does not pay:
from there on every record becomes a row. Not safe between threads.
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

#: Slots of the first table, and of the largest: at most half of them are used.
_SLOTS, _MOST_SLOTS = 1 << 12, 1 << 17
#: With fewer records per key than this, counting costs more than it saves.
_LEAST_RECORDS = 2
#: Bytes for keys that are longer than 16 bytes, at first and at most; more only if a single key needs it.
_STORE_BYTES, _MOST_STORE_BYTES = 1 << 16, 1 << 24

RANGES = pa.schema({"first_offset": pa.int64(), "last_offset": pa.int64(), "oldest": TIME_TYPE, "newest": TIME_TYPE})
SCHEMA = pa.schema([pa.field("key", pa.binary()), pa.field("records", pa.int64()), *RANGES])


class KeyCounts:
    """Counts of some batches. `rows` are those that did not fit any more, or were taken by `flush`."""

    def __init__(self, *, ranges: bool) -> None:
        self._ranged = ranges
        self._seed = secrets.randbits(64)
        self._slots = _SLOTS
        self._table, self._ranges = self._tables(_SLOTS)
        self._store = bytearray(_STORE_BYTES)
        self._used = self._stored = 0
        #: Whether counting was given up.
        self.is_sparse = False
        #: Records were found that do not parse: the counts mean nothing.
        self.is_spoiled = False
        self.rows: list[pa.RecordBatch] = []

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return SCHEMA if self._ranged else pa.schema([SCHEMA.field("key"), SCHEMA.field("records")])

    @property
    def _columns(self) -> list[str]:
        return ["key", "offset", "timestamp"] if self._ranged else ["key"]

    def add(self, view: memoryview, rows: Rows, start: int, end: int, max_bytes: int) -> None:
        """Count the records with start <= offset < end in these batches. `CorruptBatch` if they cannot be decompressed,
        and nothing was counted; or if they do not parse, and it is spoiled."""
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
        """Count records that are rows already, with the columns key, offset and timestamp."""
        ones = pa.array(np.ones(batch.num_rows, np.int64))
        arrays = [batch.column("key"), ones]
        if self._ranged:
            arrays += [batch.column(name) for name in ("offset", "offset", "timestamp", "timestamp")]
        self.rows.append(pa.RecordBatch.from_arrays(arrays, schema=self.schema))

    def flush(self) -> None:
        """Turn what was counted into rows, and begin again."""
        made = self._counted()
        if made.num_rows:
            self.rows.append(made)
            self._table[:] = 0
        self._used = self._stored = 0

    def take(self) -> list[pa.RecordBatch]:
        """The rows, which are then the caller's."""
        rows, self.rows = self.rows, []
        return rows

    # --- tables

    def _tables(self, slots: int) -> tuple[np.ndarray, np.ndarray]:
        table = np.zeros((slots + 1, kernel.COUNTED_WIDTH), np.uint64)
        return table, np.zeros((slots + 1 if self._ranged else 0, kernel.RANGE_WIDTH), np.int64)

    def _make_room(self, largest: int) -> None:
        """For a key that has none. No key is larger than `largest`."""
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
        """Move to larger tables; False if that cannot be done."""
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
