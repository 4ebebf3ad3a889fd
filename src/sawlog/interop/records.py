"""Records that a format found in a buffer: their offsets, and their Arrow form.

`assign_offsets` decides which offset a record gets if the stored one may be wrong. Offsets are kept. Where they are not
consecutive, the neighbours decide:

* one record differs, and the next continues as if it had not: its offset is damaged (`BAD_OFFSET`);
* offsets jump forward and continue from there: some are missing (`GAP`), and stay missing;
* offsets go back: the system lost its position and started again (`RESTART`). These records and all that follow get
  new offsets after the previous ones: no record is lost, and none is read twice;
* otherwise the bytes are not a record.

The evidence required depends on `Trust`: `CHECKED` offsets are covered by a checksum, `PARSED` ones come from a record
that parses, `BARE` ones are eight bytes that could be anything.

Data that another system stores next to the value becomes headers (numbers as eight bytes, big endian): an import keeps
it, and an export can write it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..batch import kernel
from ..batch.arrow import HEADER_TYPE, TIME_TYPE, schema
from .foreign import Kind, Outcome

Numbers = npt.NDArray[np.int64]

#: A larger jump is treated as damage, not as missing offsets.
MAX_JUMP = 2**44
#: Offsets of all logs are below this.
MAX_OFFSET = 2**62
#: Arrow's binary arrays count their bytes in 32 bits.
MAX_VALUE_BYTES = 2**31 - 1


# --- offsets


class Trust(IntEnum):
    """Reliability of stored offsets."""

    BARE = 0
    PARSED = 1
    CHECKED = 2


@dataclass(frozen=True, slots=True)
class Count:
    """State of the numbering: the last stored offset in this segment, and the next offset in the copy."""

    stored: int
    next_offset: int

    def skip(self, count: int = 1) -> Count:
        """Return the state after that many more records."""
        return Count(self.stored + count, self.next_offset + count)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """An unexpected stored offset."""

    #: Position among the records given to `assign_offsets`.
    index: int
    kind: Kind
    detail: str
    offset: int
    outcome: Outcome = "repaired"


@dataclass(frozen=True, slots=True, eq=False)
class Numbered:
    """Offsets of the first `len(offsets)` records; `bad` if the bytes after them are not a record."""

    offsets: Numbers
    count: Count
    anomalies: tuple[Anomaly, ...] = ()
    bad: bool = False

    def first(self, count: int, stored: Numbers, before: Count) -> Numbered:
        """Return the result for the first `count` records (at least one), given the arguments of `assign_offsets`."""
        anomalies = tuple(each for each in self.anomalies if each.index < count)
        shift = before.next_offset - before.stored - 1
        for each in anomalies:
            if each.kind is Kind.RESTART:
                shift = each.offset - int(stored[each.index])
        last = int(self.offsets[count - 1])
        return Numbered(self.offsets[:count], Count(last - shift, last + 1), anomalies)


def assign_offsets(
    stored: Numbers, count: Count, *, base: int, trust: Trust, final: bool, loose: bool = False
) -> Numbered:
    """Assign offsets to records with these stored offsets.

    `base` is the first offset of the segment, where some systems start again. `final` means that the segment ends with
    these records; otherwise a record that cannot be judged without its successor is left for the next call. With
    `loose` a jump at the first record is accepted: the bytes before it could not be read.
    """
    total = len(stored)
    shift = count.next_offset - count.stored - 1
    expected = np.arange(count.stored + 1, count.stored + 1 + total, dtype=np.int64)
    if bool((stored == expected).all()):
        return Numbered(stored + shift if shift else stored, count.skip(total))
    return _Renumbering(stored, count, base, trust, final, loose).run()


class _Renumbering:
    """The slow path of `assign_offsets`: visits each record whose offset does not follow the previous one."""

    def __init__(self, stored: Numbers, count: Count, base: int, trust: Trust, final: bool, loose: bool) -> None:
        self.stored, self.base, self.trust, self.final, self.loose = stored, base, trust, final, loose
        self.offsets: Numbers = np.empty(len(stored), np.int64)
        self.last, self.shift = count.stored, count.next_offset - count.stored - 1
        self.at = 0
        self.anomalies: list[Anomaly] = []
        self.bad = False

    def run(self) -> Numbered:
        before = np.concatenate((np.array([self.last], np.int64), self.stored[:-1]))
        for i in np.flatnonzero(self.stored != before + 1).tolist():
            self._take_consecutive(i)
            if int(self.stored[i]) != self.last + 1 and not self._judge(i):
                break
        else:
            self._take_consecutive(len(self.stored))
        count = Count(self.last, self.last + 1 + self.shift)
        return Numbered(self.offsets[: self.at], count, tuple(self.anomalies), self.bad)

    def _take_consecutive(self, until: int) -> None:
        """Accept the records up to `until`, which are consecutive."""
        count = until - self.at
        if count > 0:
            first = self.last + 1 + self.shift
            self.offsets[self.at : until] = np.arange(first, first + count, dtype=np.int64)
            self.last += count
            self.at = until

    def _judge(self, i: int) -> bool:
        """Decide about record `i`; return False if the run ends before it."""
        own, wanted = int(self.stored[i]), self.last + 1
        successor = int(self.stored[i + 1]) if i + 1 < len(self.stored) else None
        if successor is None and not self.final and i > 0:
            return False
        confirmed = self.trust == Trust.CHECKED or successor == own + 1 or (self.loose and i == 0)
        alone = self.trust != Trust.CHECKED and successor == wanted + 1
        possible = wanted < own <= wanted + MAX_JUMP and own + self.shift < MAX_OFFSET
        if not alone and possible and confirmed:
            self._note(i, Kind.GAP, f"offsets jump from {wanted - 1} to {own}", own + self.shift, "missing")
            self._take(own, self.shift)
        elif not alone and 0 <= own < wanted and (confirmed or own == self.base or self.trust >= Trust.PARSED):
            given = wanted + self.shift
            what = f"offset {own} is repeated" if own == self.last else f"offsets go back from {self.last} to {own}"
            self._note(i, Kind.RESTART, f"{what}; the records get offsets from {given} on", given)
            self._take(own, given - own)
        elif alone or self.trust >= Trust.PARSED or (successor is None and self.final):
            given = wanted + self.shift
            self._note(i, Kind.BAD_OFFSET, f"a record has offset {own % 2**64}, its neighbours imply {wanted}", given)
            self._take(wanted, self.shift)
        else:
            self.bad = True
            return False
        return True

    def _take(self, stored: int, shift: int) -> None:
        self.last, self.shift = stored, shift
        self.offsets[self.at] = stored + shift
        self.at += 1

    def _note(self, i: int, kind: Kind, detail: str, offset: int, outcome: Outcome = "repaired") -> None:
        if not (self.loose and i == 0 and kind is Kind.GAP):
            self.anomalies.append(Anomaly(i, kind, detail, offset, outcome))


# --- Arrow


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Records in a buffer: their offsets, and the positions of their values."""

    data: memoryview
    offsets: Numbers
    starts: Numbers
    lengths: Numbers
    #: Headers by name: bytes per record, null for records that lack the header.
    headers: Mapping[str, pa.Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets)

    def slice(self, first: int, last: int) -> Values:
        headers = {name: each.slice(first, last - first) for name, each in self.headers.items()}
        return Values(self.data, self.offsets[first:last], self.starts[first:last], self.lengths[first:last], headers)

    def between(self, start: int, end: int | None) -> Values:
        """Return the records with start <= offset < end."""
        first = int(np.searchsorted(self.offsets, start))
        last = len(self) if end is None else int(np.searchsorted(self.offsets, end))
        return self if (first, last) == (0, len(self)) else self.slice(first, max(first, last))

    def to_arrow(self, columns: Sequence[str]) -> pa.RecordBatch:
        """Return the records with the columns of a log, without keys and timestamps."""
        builders = {
            "offset": lambda: pa.array(self.offsets, pa.int64()),
            "timestamp": lambda: pa.repeat(pa.scalar(-1, pa.int64()), len(self)).cast(TIME_TYPE),
            "timestamp_type": lambda: pa.repeat(pa.scalar(0, pa.int8()), len(self)),
            "key": lambda: pa.nulls(len(self), pa.binary()),
            "value": lambda: gathered(self.data, self.starts, self.lengths),
            "headers": self._headers,
        }
        wanted = schema(columns)
        return pa.RecordBatch.from_arrays([builders[name]() for name in columns], schema=wanted)

    def _headers(self) -> pa.Array:
        found = {name: each for name, each in self.headers.items() if each.null_count < len(each)}
        ends, count = np.zeros(len(self) + 1, np.int32), len(self)
        names, contents = pa.array([], pa.string()), pa.array([], pa.binary())
        if found:
            there = np.stack([each.is_valid().to_numpy(zero_copy_only=False) for each in found.values()], axis=1)
            np.cumsum(there.sum(axis=1), out=ends[1:])
            records, numbers = np.nonzero(there)  # by record, then by header
            names = pa.array(list(found), pa.string()).take(pa.array(numbers))
            contents = pa.concat_arrays(list(found.values())).take(pa.array(numbers * count + records))
        pairs = pa.StructArray.from_arrays([names, contents], fields=list(HEADER_TYPE.value_type))
        return pa.Array.from_buffers(HEADER_TYPE, count, [None, pa.py_buffer(ends)], 0, children=[pairs])


def gathered(data: memoryview, starts: Numbers, lengths: Numbers) -> pa.Array:
    """Return parts of a buffer as a binary array."""
    ends, content = pa.allocate_buffer((len(starts) + 1) * 4), pa.allocate_buffer(int(lengths.sum()))
    kernel.gather(
        data,
        memoryview(np.ascontiguousarray(starts)),
        memoryview(np.ascontiguousarray(lengths)),
        memoryview(ends).cast("B").cast("i"),
        memoryview(content).cast("B"),
    )
    return pa.Array.from_buffers(pa.binary(), len(starts), [None, ends, content], 0)


def numbers_at(data: memoryview, starts: Numbers, at: int, size: int, *, big_endian: bool = False) -> Numbers:
    """Read a number of `size` bytes, `at` bytes after each of these positions."""
    found = np.empty(len(starts), np.int64)
    kernel.numbers_at(data, memoryview(starts), at, size, big_endian, memoryview(found))
    return found


def checksums(data: memoryview, starts: Numbers, lengths: Numbers) -> Numbers:
    """Return the CRC-32 (IEEE) of each of these parts."""
    found = np.empty(len(starts), np.int64)
    kernel.crc32_of(data, memoryview(starts), memoryview(lengths), memoryview(found))
    return found


def number_header(numbers: Numbers, where: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return a header with a number per record, eight bytes, big endian; null except `where`."""
    ends = pa.py_buffer(np.arange(0, 8 * len(numbers) + 1, 8, dtype=np.int32))
    valid = None if where is None else pa.py_buffer(np.packbits(where, bitorder="little"))
    content = pa.py_buffer(numbers.astype(">i8").tobytes())
    return pa.Array.from_buffers(pa.binary(), len(numbers), [valid, ends, content])
