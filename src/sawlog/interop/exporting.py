"""Export logs in the formats of other systems.

An export writes next to the target and renames at the end: a directory with the target's name is always complete.

`SegmentWriter` and `write_segments` serve the formats other than Kafka's. Records are read as Arrow, about a megabyte
at a time, and written to segments. A segment ends before the record that would exceed `segment_bytes`, and, in formats
whose index counts records, before a gap: the next segment is named after the offset that follows the gap. Fields that a
format cannot store are counted in the report.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from os import PathLike
from typing import Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..addresses import check_local
from ..batch import kernel
from ..errors import ExportRefused, InvalidConfig, OffsetOutOfRange
from ..log.log import Log
from ..storage import Directory, FileDirectory, Storage
from ..store.directory.topic import DirectoryTopic
from .detection import format_named
from .foreign import ExportJob, ExportOptions, ExportReport, Progress, shifted
from .records import Numbers

#: Suffix of the directory of an unfinished export.
_PARTIAL = ".partial"
DEFAULT_SEGMENT_BYTES = 256 << 20
#: Some formats have 32-bit positions.
_MAX_SEGMENT_BYTES = 2**32 - 1
#: Limit for logs with many gaps, each of which needs another segment.
_MAX_SEGMENTS = 100_000

NO_TIMES = "the format stores no timestamps"


def export_log(
    log: Log,
    path: str | PathLike[str],
    *,
    format: str,
    start: int | None = None,
    end: int | None = None,
    progress: Progress | None = None,
    **options: Unpack[ExportOptions],
) -> ExportReport:
    """Write one log in another system's format into a directory that is empty or does not exist.

    `options` are those of the format (see its module); all formats have `segment_bytes`. The directory appears when it
    is complete. The report counts the fields that the format cannot store.
    """
    check_local(path, "the target of an export")
    system = format_named(format)
    first = log.lowest_offset if start is None else start
    # Records of open transactions can be exported only together with the batches that say so.
    following = log.next_offset if system.keeps_batches else log.last_stable_offset
    last = following if end is None else min(end, following)
    if not log.lowest_offset <= first <= last:
        raise OffsetOutOfRange(first, log.lowest_offset, log.next_offset, log.path)
    with ExitStack() as stack:
        parent, name = _parent_of(str(path), stack)
        _check_target(parent, name)
        partial = name + _PARTIAL
        parent.remove_child(partial)
        directory = parent.child(partial, create=True)
        try:
            report = system.write(log, directory, ExportJob(first, last, options, progress))
            directory.sync()
        except BaseException:
            directory.close()
            parent.remove_child(partial)
            raise
        directory.close()
        parent.remove_child(name)
        parent.rename(partial, name)
        parent.sync()
    return replace(report, path=str(path))


def export_topic(
    topic: DirectoryTopic,
    path: str | PathLike[str],
    *,
    format: str,
    progress: Progress | None = None,
    **options: Unpack[ExportOptions],
) -> tuple[ExportReport, ...]:
    """Write all partitions of a topic below a data directory, in the directory layout of the other system."""
    check_local(path, "the target of an export")
    system = format_named(format)
    if system.write_topic is not None:
        return system.write_topic(topic, str(path), options, progress)
    logs = [topic.partition(number) for number in range(topic.partitions)]
    total, done = sum(log.size_bytes for log in logs), 0
    reports: list[ExportReport] = []
    for number, log in enumerate(logs):
        target, step = f"{path}/{system.partition_path(topic.name, number)}", shifted(progress, done, total)
        reports.append(export_log(log, target, format=format, progress=step, **options))
        done += log.size_bytes
    return tuple(reports)


def _parent_of(path: str, stack: ExitStack) -> tuple[Directory, str]:
    parent, _, name = path.rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        raise ExportRefused(f"{path!r} cannot be created as a new directory: give a directory below it")
    directory = FileDirectory(parent or ("/" if path.startswith("/") else "."))
    stack.callback(directory.close)
    return directory, name


def _check_target(parent: Directory, name: str) -> None:
    if name in parent.names():
        raise ExportRefused(f"{parent.path}/{name} is a file")
    if name in parent.children():
        with closing(parent.child(name)) as there:
            if there.names() or there.children():
                raise ExportRefused(f"{there.path} is not empty: export to a new directory")


def check_options(format: str, options: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise `InvalidConfig` for an option that the format does not have."""
    if unknown := set(options) - set(known):
        names = ", ".join(sorted(unknown))
        raise InvalidConfig(f"{format} has no option {names}; use one of {', '.join(sorted(known))}")


def segment_bytes_of(
    options: Mapping[str, object], default: int = DEFAULT_SEGMENT_BYTES, limit: int = _MAX_SEGMENT_BYTES
) -> int:
    """Return the option `segment_bytes`, validated."""
    size = options.get("segment_bytes", default)
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= limit:
        raise InvalidConfig(f"segment_bytes must be an integer from 1 to {limit}, not {size!r}")
    return size


# --- segments


@dataclass(frozen=True, slots=True, eq=False)
class ExportRows:
    """Records to write. Their offsets may have gaps."""

    offsets: Numbers
    values: pa.Array
    #: Numbers from headers that the format can store, by header name; 0 for records without that header.
    numbers: Mapping[str, Numbers]

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def lengths(self) -> Numbers:
        """Size of each value in bytes."""
        ends = np.frombuffer(self.values.buffers()[1], np.int32)[self.values.offset :][: len(self.values) + 1]
        return np.diff(ends).astype(np.int64)

    @property
    def ends(self) -> memoryview:
        """Arrow's whole offsets buffer: the int32 positions in `content` where values begin and end. A slice starts at
        index `values.offset`."""
        return memoryview(self.values.buffers()[1]).cast("B").cast("i")

    @property
    def content(self) -> memoryview:
        """Arrow's data buffer of the values."""
        buffer = self.values.buffers()[2]
        return memoryview(b"") if buffer is None else memoryview(buffer).cast("B")

    def slice(self, first: int, last: int) -> ExportRows:
        numbers = {name: each[first:last] for name, each in self.numbers.items()}
        return ExportRows(self.offsets[first:last], self.values.slice(first, last - first), numbers)

    def after(self, heads: np.ndarray[tuple[int], np.dtype[np.void]]) -> memoryview:
        """Return the bytes of all records: each head, followed by its value."""
        head_size = heads.dtype.itemsize
        out = memoryview(bytearray(int(self.lengths.sum()) + head_size * len(self)))
        raw = memoryview(heads.tobytes())
        kernel.weave(out, raw, head_size, self.ends, self.values.offset, self.content, len(self))
        return out


class SegmentWriter(ABC):
    """Writer of consecutive segments. A format defines the size and the bytes of a record."""

    format: str
    #: Options of the format besides `segment_bytes`.
    own_options: tuple[str, ...] = ()
    #: Suffixes of data and index; "" if there is none.
    names = ("", "")
    #: Minimum number of digits in a file name.
    digits = 1
    #: True if a segment's index counts records, so that it cannot have a gap.
    dense = True
    #: Headers that the format can store.
    kept_headers: tuple[str, ...] = ()

    def __init__(self, log: Log, directory: Directory, job: ExportJob) -> None:
        """Validate the options of the job. The writer creates its files in the directory."""
        self._directory = directory
        self._data: Storage | None = None
        self._index: Storage | None = None
        self.base = 0
        self.files: list[str] = []
        self.size_bytes = 0
        self.largest_index_bytes = 0

    @abstractmethod
    def sizes(self, rows: ExportRows) -> Numbers:
        """Return the size of each record in the data, in bytes."""

    @abstractmethod
    def encode(self, rows: ExportRows, sizes: Numbers, position: int) -> tuple[bytes | memoryview, bytes]:
        """Return the bytes for the data, which begin at `position`, and for the index."""

    def name_of(self, offset: int) -> int:
        """Return the number in the name of a segment that begins at this offset."""
        return offset

    def index_head(self) -> bytes:
        """Return the bytes before the first entry of an index."""
        return b""

    def remarks(self) -> tuple[str, ...]:
        """Return remarks for readers of the format, after everything is written."""
        return (NO_TIMES,)

    def begin(self, offset: int) -> None:
        """Close the open segment and begin the next."""
        self.end()
        self.base = self.name_of(offset)
        if len(self.files) > 2 * _MAX_SEGMENTS:
            raise ExportRefused("the log has too many gaps: this format would need a file for each of them")
        self._data = self._create(self.names[0])
        self._index = self._create(self.names[1]) if self.names[1] else None

    def _create(self, suffix: str) -> Storage:
        name = f"{self.base:0{self.digits}d}{suffix}"
        self.files.append(name)
        return self._directory.create(name)

    @property
    def position(self) -> int:
        """Size of the open segment in bytes."""
        return 0 if self._data is None else self._data.size

    def put(self, rows: ExportRows, sizes: Numbers) -> None:
        """Write records to the open segment."""
        assert self._data is not None
        data, index = self.encode(rows, sizes, self._data.size)
        if self._index is not None and index:
            self._index.append(self.index_head() + index if self._index.size == 0 else index)
        self._data.append(data)
        self.size_bytes += len(data)

    def end(self) -> None:
        """Sync and close the open segment."""
        if self._index is not None:
            self.largest_index_bytes = max(self.largest_index_bytes, self._index.size)
        for storage in (self._data, self._index):
            if storage is not None:
                storage.sync()
                storage.close()
        self._data = self._index = None

    def abandon(self) -> None:
        """Close the open files without syncing; the caller deletes them."""
        for storage in (self._data, self._index):
            if storage is not None:
                storage.close()


def write_segments(kind: type[SegmentWriter], log: Log, directory: Directory, job: ExportJob) -> ExportReport:
    """Write the records of a range with a writer of this kind."""
    start, end = job.start, job.end
    check_options(kind.format, job.options, ("segment_bytes", *kind.own_options))
    segment_bytes = segment_bytes_of(job.options)
    writer = kind(log, directory, job)
    dropped: Counter[str] = Counter()
    following, records, total = start, 0, log.size_bytes
    try:
        writer.begin(start)
        for rows in _rows_of(log, start, end, writer.kept_headers, dropped):
            for part, sizes in _per_segment(rows, writer, following, segment_bytes):
                writer.put(part, sizes)
                following = int(part.offsets[-1]) + 1
            records += len(rows)
            if job.progress is not None:
                job.progress(total * (following - start) // max(end - start, 1), total)
        if writer.dense and following < end:
            writer.begin(end)  # an empty segment, so that the next append gets the same offset as in our log
        writer.end()
    except BaseException:
        writer.abandon()
        raise
    return ExportReport(
        kind.format,
        directory.path,
        start,
        end,
        records,
        writer.size_bytes,
        tuple(writer.files),
        {name: count for name, count in dropped.items() if count},
        writer.remarks(),
    )


def _per_segment(
    rows: ExportRows, writer: SegmentWriter, following: int, limit: int
) -> Iterator[tuple[ExportRows, Numbers]]:
    """Split records by segment, and begin each segment before yielding its records."""
    sizes = writer.sizes(rows)
    gaps = np.flatnonzero(rows.offsets != np.concatenate(([following], rows.offsets[:-1] + 1))).tolist()
    first = 0
    for stop in [*(gaps if writer.dense else []), len(rows)]:
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


def _rows_of(log: Log, start: int, end: int, kept: tuple[str, ...], dropped: Counter[str]) -> Iterator[ExportRows]:
    for batch in log.scan_arrow(start, end, columns=("offset", "key", "value", "headers")):
        offsets = batch.column(0).to_numpy()
        keys, values, headers = batch.column(1), batch.column(2), batch.column(3)
        dropped["keys"] += len(keys) - keys.null_count
        dropped["null values"] += values.null_count
        numbers, others = _header_numbers(headers, kept)
        dropped["headers"] += others
        yield ExportRows(offsets, values.fill_null(b"") if values.null_count else values, numbers)


def _header_numbers(headers: pa.Array, kept: tuple[str, ...]) -> tuple[dict[str, Numbers], int]:
    """Return the numbers in the `kept` headers, and how many records have other headers."""
    numbers = {name: np.zeros(len(headers), np.int64) for name in kept}
    pairs = headers.flatten()
    if not len(pairs):
        return numbers, 0
    parents = pc.list_parent_indices(headers).to_numpy()
    names, contents = pairs.field("key"), pairs.field("value")
    whole = pc.fill_null(pc.equal(pc.binary_length(contents), 8), False)
    taken = np.zeros(len(pairs), np.bool_)
    for name in kept:
        mask = pc.and_(pc.equal(names, name), whole)
        found = mask.to_numpy(zero_copy_only=False)
        content = b"".join(contents.filter(mask).to_pylist())
        numbers[name][parents[found]] = np.frombuffer(content, ">i8")
        taken |= found
    return numbers, len(np.unique(parents[~taken]))
