"""What every format has in common: a log of another system, read as if it were ours, and how to find one.

`ForeignLog` is the interface: what `Log` has for reading, and a report of what was found wrong. A format that can give
its records as Arrow has all of it by saying how (`tables`). `Format` is what a module of this package provides for one
system; `sawlog.interop.formats()` lists them.

Nothing here writes to the other system's files, locks them, or maps them: a file that is being written or cut by its
owner is read as far as it goes.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from ..batch.header import DEFAULT_COLUMNS
from ..batch.kernel import Record
from ..errors import InvalidConfig, LogClosed, OffsetOutOfRange, RecordRemoved
from ..log.log import Log
from ..log.read.reader import ARROW_ROWS
from ..storage import Directory
from .damage import ForeignReport

if TYPE_CHECKING:
    import pyarrow as pa

    from ..topics.topic import Topic

#: Called with the bytes that are done and the bytes in all, every few megabytes and at the end.
Progress = Callable[[int, int], None]

#: What to do where records cannot be read: raise, or leave them out, with a line in the report.
Damage = Literal["stop", "skip"]


@dataclass(frozen=True, slots=True)
class Place:
    """One log that was found: its directory, and the topic and partition that its system knows it as."""

    path: str
    topic: str | None = None
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Detection:
    """What a directory holds."""

    #: The name of the format.
    format: str
    #: One log, the partitions of one topic, or everything that a server has.
    kind: Literal["partition", "topic", "data"]
    #: The directory that was looked at.
    path: str
    #: The logs in it, sorted by topic and partition.
    places: tuple[Place, ...]
    #: What was seen, in a sentence.
    why: str
    #: Whether something was seen that only this format has, such as a checksum that matches.
    certain: bool = True
    #: What is there beside the logs and is left alone, with the reason.
    ignored: tuple[str, ...] = ()


class ForeignLog(ABC):
    """One log of another system, read only. Made by `sawlog.interop.open`. For one thread at a time."""

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

    # --- what a format has to say

    @property
    @abstractmethod
    def lowest_offset(self) -> int:
        """The first offset that is there (or would be, in an empty log)."""

    @property
    @abstractmethod
    def next_offset(self) -> int:
        """The offset behind the last record. Finding it may read through the log once."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of the files that hold records."""

    @property
    @abstractmethod
    def report(self) -> ForeignReport:
        """All that was found wrong, and what was done about it. Reads through the log once, if nobody has."""

    @abstractmethod
    def tables(
        self, start: int, end: int | None, columns: Sequence[str], *, progress: Progress | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The records with start <= offset < end (None: to the end) as Arrow, some megabytes at a time; at damage
        that costs records raises, or goes on behind it, as `damage` says."""

    # --- what follows from that

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
        """The same as Arrow record batches, with the columns that a `Log` has. A record without a time has -1."""
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
        """The offset of the record that its system knows by a byte; only where a system does so."""
        raise io.UnsupportedOperation(
            f"{self.format} does not address records by byte offset, so {byte_offset} has no meaning"
        )

    def segments_below(self, end: int) -> Iterator[tuple[str, int, int]]:
        """The segments that end at or below an offset, and may have been incomplete when they were read before: the
        file, the first offset, and the one behind the last. As far as this log was read."""
        return iter(())

    def copy_to(self, log: Log, job: ImportJob) -> int:
        """Append the records from `log.next_offset` on to a log of ours, at the same offsets; how many."""
        from .transfer import copy_records

        return copy_records(self, log, job)

    def check_open(self) -> None:
        """Raise if it was closed."""
        if self._closed:
            raise LogClosed(f"the log {self.path} is closed")

    def close(self) -> None:
        """Give up what is held. Safe to call twice."""
        self._closed = True

    def __enter__(self) -> ForeignLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}{' closed' if self._closed else ''}>"


@dataclass(frozen=True, slots=True)
class ImportJob:
    """How records are to be copied."""

    #: Told how far it is, in bytes of the source.
    progress: Progress | None = None
    #: The time that records get whose system has none, in ms; None: the time of the import.
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class ExportJob:
    """Which records are to be written, and how."""

    #: The first offset, and the one behind the last.
    start: int
    end: int
    #: The format's own; see its module.
    options: Mapping[str, object] = field(default_factory=dict)
    #: Told how far it is, in bytes.
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written."""

    format: str
    path: str
    #: The first offset, and the one behind the last.
    start_offset: int
    next_offset: int
    records: int
    size_bytes: int
    files: tuple[str, ...]
    #: What the format has no place for, and how many records had it ("keys": 12).
    dropped: Mapping[str, int] = field(default_factory=dict)
    #: Remarks: what a reader of the format should know about what was written.
    notes: tuple[str, ...] = ()


class Format(Protocol):
    """What a module of this package does for one system."""

    #: What users call it: `format="laminarmq"`.
    name: str
    #: What it is, in a few words.
    title: str

    def detect(self, directory: Directory) -> Detection | None:
        """What this directory holds, if it is of this format: one log, a topic's partitions, or all of a server."""

    def open(self, directory: Directory, *, damage: Damage = "stop", strict: bool = False) -> ForeignLog:
        """The log in this directory. With `strict` whatever is not as it should be raises the error of its kind, at
        once or when it is read. The log owns the directory, and closes it."""

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
        """As `Format.open`, with a decoder: the offset in the metadata of a record, None if there is none there, or
        `ValueError`."""


@runtime_checkable
class TopicFormat(Protocol):
    """A format whose data directory says more about a topic than its partitions do: it writes whole topics itself."""

    def write_topic(
        self, topic: Topic, path: str, *, options: Mapping[str, object], progress: Progress | None = None
    ) -> tuple[ExportReport, ...]:
        """Write all partitions of a topic below a data directory, and what that has to say about them."""
