"""Records in a buffer, as Arrow.

What another system stores next to the value becomes headers of eight bytes each, big endian (`Extra`), so that an
import keeps it and an export can write it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..batch import kernel
from ..batch.arrow import HEADER_TYPE, TIME_TYPE, schema
from .numbering import Numbers

#: Arrow's binary arrays count their bytes in 32 bits.
MAX_VALUE_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Extra:
    """A header that some of the records get: its name, a number per record, and which records have it."""

    name: str
    numbers: Numbers
    where: npt.NDArray[np.bool_]

    def slice(self, first: int, last: int) -> Extra:
        return Extra(self.name, self.numbers[first:last], self.where[first:last])


@dataclass(frozen=True, slots=True, eq=False)
class HeaderBytes:
    """A header that all records get, and where in the buffer its bytes are."""

    name: str
    starts: Numbers
    lengths: Numbers

    def slice(self, first: int, last: int) -> HeaderBytes:
        return HeaderBytes(self.name, self.starts[first:last], self.lengths[first:last])


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Records in a buffer: their offsets, and where the values are."""

    data: memoryview
    offsets: Numbers
    starts: Numbers
    lengths: Numbers
    extras: tuple[Extra, ...] = ()
    parts: tuple[HeaderBytes, ...] = ()

    def __len__(self) -> int:
        return len(self.offsets)

    def slice(self, first: int, last: int) -> Values:
        return Values(
            self.data,
            self.offsets[first:last],
            self.starts[first:last],
            self.lengths[first:last],
            tuple(each.slice(first, last) for each in self.extras),
            tuple(each.slice(first, last) for each in self.parts),
        )

    def between(self, start: int, end: int | None) -> Values:
        """The records with start <= offset < end."""
        first = int(np.searchsorted(self.offsets, start))
        last = len(self) if end is None else int(np.searchsorted(self.offsets, end))
        return self if (first, last) == (0, len(self)) else self.slice(first, max(first, last))

    def to_arrow(self, columns: Sequence[str]) -> pa.RecordBatch:
        """The records with the columns of a log; key and timestamp are empty."""
        shape = schema(columns)
        made = {
            "offset": self._offsets,
            "timestamp": lambda: pa.repeat(pa.scalar(-1, pa.int64()), len(self)).cast(TIME_TYPE),
            "timestamp_type": lambda: pa.repeat(pa.scalar(0, pa.int8()), len(self)),
            "key": lambda: pa.nulls(len(self), pa.binary()),
            "value": self._values,
            "headers": self._headers,
        }
        return pa.RecordBatch.from_arrays([made[name]() for name in columns], schema=shape)

    def _offsets(self) -> pa.Array:
        return pa.array(self.offsets, pa.int64())

    def _values(self) -> pa.Array:
        count, size = len(self), int(self.lengths.sum())
        ends, content = pa.allocate_buffer((count + 1) * 4), pa.allocate_buffer(size)
        kernel.gather(
            self.data,
            memoryview(np.ascontiguousarray(self.starts)),
            memoryview(np.ascontiguousarray(self.lengths)),
            memoryview(ends).cast("B").cast("i"),
            memoryview(content).cast("B"),
        )
        return pa.Array.from_buffers(pa.binary(), count, [None, ends, content], 0)

    def _headers(self) -> pa.Array:
        if self.parts:
            return pa.array([list(self._pairs_of(number)) for number in range(len(self))], HEADER_TYPE)
        if not any(each.where.any() for each in self.extras):
            ends = pa.py_buffer(np.zeros(len(self) + 1, np.int32))
            return pa.Array.from_buffers(HEADER_TYPE, len(self), [None, ends], 0, children=[_pairs([], b"")])
        where = np.stack([each.where for each in self.extras], axis=1)
        ends = np.zeros(len(self) + 1, np.int32)
        np.cumsum(where.sum(axis=1), out=ends[1:])
        which = np.flatnonzero(where) % len(self.extras)
        numbers = np.stack([each.numbers for each in self.extras], axis=1)[where]
        names = pa.array([each.name for each in self.extras], pa.string()).take(pa.array(which))
        pairs = _pairs(names, numbers.astype(">i8").tobytes())
        return pa.Array.from_buffers(HEADER_TYPE, len(self), [None, pa.py_buffer(ends)], 0, children=[pairs])

    def _pairs_of(self, number: int) -> Iterator[dict[str, object]]:
        for part in self.parts:
            start = int(part.starts[number])
            yield {"key": part.name, "value": bytes(self.data[start : start + int(part.lengths[number])])}
        for extra in self.extras:
            if extra.where[number]:
                yield {"key": extra.name, "value": (int(extra.numbers[number]) % 2**64).to_bytes(8, "big")}


def _pairs(names: pa.Array | list[str], numbers: bytes) -> pa.Array:
    """Header names, each with its eight-byte numbers."""
    count = len(numbers) // 8
    ends = pa.py_buffer(np.arange(0, len(numbers) + 1, 8, dtype=np.int32))
    values = pa.Array.from_buffers(pa.binary(), count, [None, ends, pa.py_buffer(numbers)], 0)
    keys = pa.array(names, pa.string()) if isinstance(names, list) else names
    return pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE.value_type))
