"""Writes a log in another system's format: what the formats without a server have in common.

Records come from our log as Arrow, about a megabyte at a time, and go into segments. A segment ends before the record
that would exceed `segment_bytes`, and, in formats whose index counts records, before a gap: the next segment is named
after the offset after the gap. What a format cannot store is counted, not refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..batch import kernel
from ..errors import ExportRefused, InvalidConfig
from ..log.log import Log
from ..storage import Directory, Storage
from .foreign import ExportJob, ExportReport
from .numbering import Numbers

DEFAULT_SEGMENT_BYTES = 256 << 20
#: Some formats have 32-bit positions; none needs more than this.
_MOST_SEGMENT_BYTES = 2**32 - 1
#: A log with more gaps than this is refused, because each gap would need another file.
_MOST_SEGMENTS = 100_000

NO_TIMES = "the format stores no timestamps"


def _segment_bytes(format: str, options: Mapping[str, object], own: tuple[str, ...]) -> int:
    """The option that all formats have; `InvalidConfig` for an unknown one."""
    unknown = set(options) - {"segment_bytes", *own}
    if unknown:
        known = ", ".join(("segment_bytes", *own))
        raise InvalidConfig(f"{format} has no option {', '.join(sorted(unknown))}; use one of {known}")
    size = options.get("segment_bytes", DEFAULT_SEGMENT_BYTES)
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MOST_SEGMENT_BYTES:
        raise InvalidConfig(f"segment_bytes must be between 1 and {_MOST_SEGMENT_BYTES}, not {size!r}")
    return size


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Records to write; their offsets may have gaps."""

    offsets: Numbers
    values: pa.Array
    #: Numbers from headers that the format can store, by the header's name; 0 where a record has none.
    extras: Mapping[str, Numbers]

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def lengths(self) -> Numbers:
        """Bytes of each value."""
        ends = np.frombuffer(self.values.buffers()[1], np.int32)[self.values.offset :][: len(self.values) + 1]
        return np.diff(ends).astype(np.int64)

    def slice(self, first: int, last: int) -> Rows:
        extras = {name: numbers[first:last] for name, numbers in self.extras.items()}
        return Rows(self.offsets[first:last], self.values.slice(first, last - first), extras)


class SegmentWriter(ABC):
    """Writes one segment after the other. A format defines how large a record is and what its bytes are."""

    #: The suffixes of data and index; "" if there is none.
    names = ("", "")
    #: The minimum number of digits in a file name.
    digits = 1
    #: Whether a segment's index counts records, so that it cannot have a gap.
    dense = True
    #: Headers that the format can store.
    kept_headers: tuple[str, ...] = ()

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._data: Storage | None = None
        self._index: Storage | None = None
        self.base = 0
        self.files: list[str] = []
        self.size_bytes = 0
        self.largest_index_bytes = 0

    @abstractmethod
    def sizes(self, rows: Rows) -> Numbers:
        """Size of each record in the data, in bytes."""

    @abstractmethod
    def encode(self, rows: Rows, sizes: Numbers, position: int) -> tuple[bytes | memoryview, bytes]:
        """The bytes of these records for the data, from this position on, and for the index."""

    def name_of(self, offset: int) -> int:
        """The name of a segment that begins with the record at this offset."""
        return offset

    def index_head(self) -> bytes:
        """The first bytes of an index."""
        return b""

    def remarks(self) -> tuple[str, ...]:
        """What a reader of the format should know, once everything is written."""
        return (NO_TIMES,)

    def begin(self, offset: int) -> None:
        """Open the next segment."""
        self.end()
        self.base = self.name_of(offset)
        if len(self.files) > 2 * _MOST_SEGMENTS:
            raise ExportRefused("the log has too many gaps: this format would need a file for each of them")
        self._data = self._create(self.names[0])
        self._index = self._create(self.names[1]) if self.names[1] else None

    def _create(self, suffix: str) -> Storage:
        name = f"{self.base:0{self.digits}d}{suffix}"
        self.files.append(name)
        return self._directory.create(name)

    @property
    def is_open(self) -> bool:
        """Whether a segment is open."""
        return self._data is not None

    @property
    def position(self) -> int:
        """Size of the open segment in bytes."""
        return 0 if self._data is None else self._data.size

    def put(self, rows: Rows, sizes: Numbers) -> None:
        """Write records to the segment that is open."""
        assert self._data is not None
        data, index = self.encode(rows, sizes, self._data.size)
        if self._index is not None and index:
            self._index.append(self.index_head() + index if self._index.size == 0 else index)
        self._data.append(data)
        self.size_bytes += len(data)

    def end(self) -> None:
        """Make the segment durable and close it."""
        if self._index is not None:
            self.largest_index_bytes = max(self.largest_index_bytes, self._index.size)
        for storage in (self._data, self._index):
            if storage is not None:
                storage.sync()
                storage.close()
        self._data = self._index = None

    def abandon(self) -> None:
        """Close what is open; it is going to be deleted."""
        for storage in (self._data, self._index):
            if storage is not None:
                storage.close()


def woven(heads: np.ndarray[tuple[int], np.dtype[np.void]], rows: Rows) -> memoryview:
    """Each head and its value, back to back."""
    head_size = heads.dtype.itemsize
    lengths = rows.lengths
    out = memoryview(bytearray(int(lengths.sum()) + head_size * len(rows)))
    ends = memoryview(rows.values.buffers()[1]).cast("B").cast("i")
    kernel.weave(
        out, memoryview(heads.tobytes()), head_size, ends, rows.values.offset, content_of(rows.values), len(rows)
    )
    return out


def content_of(values: pa.Array) -> memoryview:
    """The bytes of a binary array."""
    buffer = values.buffers()[2]
    return memoryview(b"") if buffer is None else memoryview(buffer).cast("B")


def write_segments(
    format: str,
    log: Log,
    directory: Directory,
    job: ExportJob,
    writer: SegmentWriter,
    *own_options: str,
) -> ExportReport:
    """Write the records of a range with this writer. Unknown options are refused."""
    start, end = job.start, job.end
    segment_bytes = _segment_bytes(format, job.options, own_options)
    dropped: Counter[str] = Counter()
    following, records, total = start, 0, log.size_bytes
    try:
        writer.begin(start)
        for rows in _rows_of(log, start, end, writer.kept_headers, dropped):
            for part, sizes in _parts(rows, writer, following, segment_bytes):
                writer.put(part, sizes)
                following = int(part.offsets[-1]) + 1
            records += len(rows)
            if job.progress is not None:
                job.progress(total * (following - start) // max(end - start, 1), total)
        if writer.dense and following < end:
            writer.begin(end)  # so that the next record gets the same offset as here
        writer.end()
    except BaseException:
        writer.abandon()
        raise
    return ExportReport(
        format,
        directory.path,
        start,
        end,
        records,
        writer.size_bytes,
        tuple(writer.files),
        {name: count for name, count in dropped.items() if count},
        writer.remarks(),
    )


def _parts(rows: Rows, writer: SegmentWriter, following: int, limit: int) -> Iterator[tuple[Rows, Numbers]]:
    """Runs of records that go into one segment each; the writer is at that segment when they are yielded."""
    sizes = writer.sizes(rows)
    holes = np.flatnonzero(rows.offsets != np.concatenate(([following], rows.offsets[:-1] + 1))).tolist()
    stops = [*(holes if writer.dense else []), len(rows)]
    first = 0
    for stop in stops:
        while first < stop:
            ends = writer.position + np.cumsum(sizes[first:stop])
            fit = int(np.searchsorted(ends, limit, "right"))
            if fit == 0 and writer.position:
                writer.begin(int(rows.offsets[first]))
                continue
            last = first + max(fit, 1)
            yield rows.slice(first, last), sizes[first:last]
            first = last
        if stop < len(rows):
            writer.begin(int(rows.offsets[stop]))


def _rows_of(log: Log, start: int, end: int, kept: tuple[str, ...], dropped: Counter[str]) -> Iterator[Rows]:
    for batch in log.scan_arrow(start, end, columns=("offset", "key", "value", "headers")):
        offsets = batch.column(0).to_numpy()
        keys, values, headers = batch.column(1), batch.column(2), batch.column(3)
        dropped["keys"] += len(keys) - keys.null_count
        dropped["null values"] += values.null_count
        extras, others = _extras(headers, kept)
        dropped["headers"] += others
        yield Rows(offsets, values.fill_null(b"") if values.null_count else values, extras)


def _extras(headers: pa.Array, kept: tuple[str, ...]) -> tuple[dict[str, Numbers], int]:
    """The numbers in headers of these names, and how many records have other headers."""
    extras = {name: np.zeros(len(headers), np.int64) for name in kept}
    pairs = headers.flatten()
    if not len(pairs):
        return extras, 0
    parents = pc.list_parent_indices(headers).to_numpy()
    names, contents = pairs.field("key"), pairs.field("value")
    whole = pc.fill_null(pc.equal(pc.binary_length(contents), 8), False)
    taken = np.zeros(len(pairs), np.bool_)
    for name in kept:
        mask = pc.and_(pc.equal(names, name), whole)
        found = mask.to_numpy(zero_copy_only=False)
        content = b"".join(contents.filter(mask).to_pylist())
        extras[name][parents[found]] = np.frombuffer(content, ">i8")
        taken |= found
    return extras, len(np.unique(parents[~taken]))
