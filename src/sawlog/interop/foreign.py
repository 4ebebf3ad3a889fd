"""What all formats have in common: a log of another system that can be read like ours, and how to find one.

`ForeignLog` is the interface: the reading methods of `Log`, and a report of what is wrong. A format that implements
`tables` gets all of them. `Format` is what a module of this package provides for one system; `sawlog.interop.formats()`
lists them.

This code never writes, locks or maps the other system's files: a file that its owner is writing or truncating is read
as far as it goes.
"""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict, runtime_checkable

from ..batch.header import DEFAULT_COLUMNS
from ..batch.kernel import Record
from ..closing import Closing
from ..errors import InvalidConfig, LogClosed, OffsetOutOfRange, RecordRemoved
from ..log.log import Log
from ..log.read.reader import ARROW_ROWS
from ..storage import Directory
from .copying import copy_records
from .damage import ForeignReport

if TYPE_CHECKING:
    import pyarrow as pa

    from ..topics.topic import Topic

#: Called with the bytes done and the total bytes, every few megabytes and at the end.
Progress = Callable[[int, int], None]

#: What to do where records cannot be read: raise, or leave them out with a line in the report.
Damage = Literal["stop", "skip"]


@dataclass(frozen=True, slots=True)
class Place:
    """One log that was found: its directory, and the topic and partition under which its system knows it."""

    path: str
    topic: str | None = None
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Detection:
    """What a directory holds."""

    #: The name of the format.
    format: str
    #: One log, the partitions of one topic, or all data of a server.
    kind: Literal["partition", "topic", "data"]
    #: The directory that was examined.
    path: str
    #: The logs in it, sorted by topic and partition.
    places: tuple[Place, ...]
    #: The evidence, as a sentence.
    why: str
    #: Whether the evidence is unique to this format, such as a matching checksum.
    certain: bool = True
    #: What else is in the directory and is ignored, with the reason.
    ignored: tuple[str, ...] = ()


class ForeignLog(Closing):
    """One log of another system, read only. Created by `sawlog.interop.open`. Not thread-safe."""

    #: The name of the format.
    format: str
    #: Its directory.
    path: str

    def __init__(self, path: str, *, damage: Damage = "stop") -> None:
        if damage not in ("stop", "skip"):
            raise InvalidConfig(f'damage must be "stop" or "skip", not {damage!r}')
        self.path = path
        self.damage = damage
        self._closed = False

    # --- what a format provides

    @property
    @abstractmethod
    def lowest_offset(self) -> int:
        """The first offset (in an empty log: the offset that the first record would have)."""

    @property
    @abstractmethod
    def next_offset(self) -> int:
        """The offset after the last record. Finding it may read the whole log once."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Size of the files that hold records."""

    @property
    @abstractmethod
    def report(self) -> ForeignReport:
        """Everything that is wrong, and what was done about it. Reads the whole log unless it has been read already."""

    @abstractmethod
    def tables(
        self, start: int, end: int | None, columns: Sequence[str], *, progress: Progress | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The records with start <= offset < end (None: to the end) as Arrow, a few megabytes at a time. Where damage
        costs records, raises or continues after it, depending on `damage`."""

    # --- derived from that

    def stored(self, start: int, end: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """As `tables`, also with records that are stored but do not count, because their transaction was aborted."""
        return self.tables(start, end, columns)

    def scan(self, start: int | None = None, end: int | None = None) -> Iterator[Record]:
        """The records with start <= offset < end, in order; by default all of them."""
        columns = ("offset", "timestamp", "key", "value", "headers")
        for table in self.scan_arrow(start, end, columns=columns):
            rows = [table.column(number).to_pylist() for number in range(2, len(columns))]
            offsets, times = table.column(0).to_pylist(), table.column(1).cast("int64").to_pylist()
            for offset, time, key, value, headers in zip(offsets, times, *rows, strict=True):
                pairs = tuple((pair["key"], pair["value"]) for pair in headers)
                yield Record(value, key, pairs, time, offset)

    def __iter__(self) -> Iterator[Record]:
        return self.scan()

    def scan_arrow(
        self,
        start: int | None = None,
        end: int | None = None,
        batch_rows: int = ARROW_ROWS,
        *,
        columns: Sequence[str] = DEFAULT_COLUMNS,
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches, with the columns of a `Log`. A record without a timestamp has -1."""
        if batch_rows < 1:
            raise InvalidConfig(f"batch_rows must be at least 1, not {batch_rows}")
        self.check_open()
        lowest = self.lowest_offset
        if start is not None and start < lowest:
            raise OffsetOutOfRange(start, lowest, self.next_offset, self.path)
        for table in self.tables(lowest if start is None else start, end, columns):
            for first in range(0, table.num_rows, batch_rows):
                yield table.slice(first, batch_rows)

    def read(self, offset: int) -> Record:
        """The record at `offset`; `OffsetOutOfRange` if there is none. -1 is the last one."""
        self.check_open()
        lowest = self.lowest_offset
        if offset == -1 and self.next_offset > lowest:
            offset = self.next_offset - 1
        if offset >= lowest:
            for record in self.scan(offset, offset + 1):
                return record
        if not lowest <= offset < self.next_offset:
            raise OffsetOutOfRange(offset, lowest, self.next_offset, self.path)
        following = next((record.offset for record in self.scan(offset)), self.next_offset)
        raise RecordRemoved(offset, lowest, self.next_offset, following)

    def __getitem__(self, offset: int) -> Record:
        """`log[offset]`; `log[-1]` is the last record."""
        return self.read(offset if offset >= 0 else self.next_offset + offset)

    def __len__(self) -> int:
        return self.next_offset - self.lowest_offset

    def __bool__(self) -> bool:
        return True

    def offset_of(self, byte_offset: int) -> int:
        """The offset of the record that its system addresses by this byte offset; only for systems that do so."""
        raise io.UnsupportedOperation(
            f"{self.format} does not address records by byte offset, so {byte_offset} has no meaning"
        )

    def segments_below(self, end: int) -> Iterator[tuple[str, int, int]]:
        """The segments that end at or below an offset and may have been incomplete when they were read before: file,
        first offset, and the offset after the last. Covers the part of the log that has been read."""
        return iter(())

    def copy_to(self, log: Log, job: ImportJob) -> int:
        """Append the records from `log.next_offset` on to a log of ours, at the same offsets, and return their
        number."""
        return copy_records(self, log, job)

    def check_open(self) -> None:
        """Raise if the log is closed."""
        if self._closed:
            raise LogClosed(f"the log {self.path} is closed")

    def close(self) -> None:
        """Release all resources. Safe to call twice."""
        self._closed = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}{' closed' if self._closed else ''}>"


@dataclass(frozen=True, slots=True)
class ImportJob:
    """How to copy records."""

    #: Called with the progress, in bytes of the source.
    progress: Progress | None = None
    #: The timestamp in ms for records whose system has none; None: the time of the import.
    timestamp: int | None = None


class ExportOptions(TypedDict, total=False):
    """The options of all formats. One that a format does not have is refused when it is used."""

    #: All formats: a segment is closed before it exceeds this size.
    segment_bytes: int
    #: Kafka: the topic's id, as a UUID or as Kafka writes it.
    topic_id: str
    #: Kafka, for all partitions of a topic: the cluster and the broker that the directory is for.
    cluster_id: str
    node_id: int
    #: laminarmq: how wide the index in a record's metadata is.
    index_bits: Literal[32, 64]
    #: plain: which of the two layouts.
    head: Literal["u32", "u64"]


@dataclass(frozen=True, slots=True)
class ExportJob:
    """Which records to write, and how."""

    #: The first offset, and the offset after the last.
    start: int
    end: int
    #: The options of the format; see its module.
    options: Mapping[str, object] = field(default_factory=dict)
    #: Called with the progress, in bytes.
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written."""

    format: str
    path: str
    #: The first offset, and the offset after the last.
    start_offset: int
    next_offset: int
    records: int
    size_bytes: int
    files: tuple[str, ...]
    #: What the format cannot store, and how many records had it ("keys": 12).
    dropped: Mapping[str, int] = field(default_factory=dict)
    #: Remarks for readers of the written format.
    notes: tuple[str, ...] = ()


class Format(Protocol):
    """What a module of this package implements for one system."""

    #: Its name for users: `format="laminarmq"`.
    name: str
    #: A short description.
    title: str

    def detect(self, directory: Directory) -> Detection | None:
        """What this directory holds if it is of this format: one log, the partitions of a topic, or a whole server."""

    def open(self, directory: Directory, *, damage: Damage = "stop", strict: bool = False) -> ForeignLog:
        """Open the log in this directory. With `strict` every finding raises the error of its kind, at once or when it
        is read. The log owns the directory and closes it."""

    def place(self, topic: str, partition: int) -> str:
        """Where the system would keep a partition, as a path below its data directory ("topics/a/partition-0")."""

    def write(self, log: Log, directory: Directory, job: ExportJob) -> ExportReport:
        """Write these records into an empty directory. Unknown options raise `InvalidConfig`."""


@runtime_checkable
class DecodingFormat(Protocol):
    """A format whose records carry metadata that only their owner can decode."""

    def open_decoding(
        self,
        directory: Directory,
        metadata: Callable[[bytes], int | None],
        *,
        damage: Damage = "stop",
        strict: bool = False,
    ) -> ForeignLog:
        """As `Format.open`, with a decoder that returns the offset in the metadata of a record, returns None if there
        is none, or raises `ValueError`."""


@runtime_checkable
class TopicFormat(Protocol):
    """A format whose data directory contains more about a topic than its partitions: it writes whole topics itself."""

    def write_topic(
        self, topic: Topic, path: str, *, options: Mapping[str, object], progress: Progress | None = None
    ) -> tuple[ExportReport, ...]:
        """Write all partitions of a topic below a data directory, and the files there that describe them."""
