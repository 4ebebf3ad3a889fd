"""The interfaces of this package: a foreign log that reads like a `Log`, the findings about it, and `Format`.

`ForeignLog` has the reading methods of `Log` and a report of everything that is wrong with the files. A system
implements `tables` and a few properties; the other methods are written on top of them. `sawlog.interop.formats()` lists
the systems.

A `Finding` has a kind, a file, a position, a sentence and one of four outcomes:

* *repaired*: the same information is available elsewhere (usually an index is wrong); no record is missing;
* *cut*: bytes after the last complete record, of the log or of a run before a restart, are left out, as after a crash
  during an append;
* *missing*: offsets that no file contains; they are a gap in the source and in the copy;
* *lost*: a record, or a range of bytes that held records, cannot be read.

Reading continues after the first three and reports them. The fourth raises the error of its kind, unless the log was
opened with `damage="skip"`. Every omission has a line in the report.

Foreign files are never written, locked or mapped: a file that its owner is writing or truncating is read as far as it
goes.
"""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal, TypedDict

from ..batch.header import DEFAULT_COLUMNS
from ..batch.kernel import Record
from ..closing import Closing
from ..errors import (
    BaseMismatch,
    ChecksumMismatch,
    ForeignDamage,
    IndexGap,
    IndexSizeMismatch,
    InvalidConfig,
    LogClosed,
    MissingRecords,
    NoBase,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    RecordRemoved,
    TornFile,
    UnreadableRecord,
)
from ..log.log import Log
from ..log.reader import ARROW_ROWS
from ..storage import Directory

if TYPE_CHECKING:
    import pyarrow as pa

    from ..store.directory.topic import DirectoryTopic

#: Called with the bytes done and the total bytes, every few megabytes and at the end.
Progress = Callable[[int, int], None]

#: The reaction to records that cannot be read: raise, or leave them out with a line in the report.
Damage = Literal["stop", "skip"]

Outcome = Literal["repaired", "cut", "missing", "lost"]

#: Returns the offset in the metadata of a record, or None if it has none; raises `ValueError` if it cannot decode it.
Decoder = Callable[[bytes], int | None]

#: Maximum number of findings kept, which bounds the memory used for a badly damaged log.
_MAX_FINDINGS = 10_000


def shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Return a callback for one of several logs, which starts after `before` bytes of the total."""
    if progress is None:
        return None
    return lambda done, _: progress(min(before + done, total), total)


# --- findings


class Kind(Enum):
    """Kinds of findings: the name used in reports, which is the value, and the exception class."""

    error: type[ForeignDamage]

    def __new__(cls, label: str, error: type[ForeignDamage] = ForeignDamage) -> Kind:
        made = object.__new__(cls)
        made._value_, made.error = label, error
        return made

    #: The index does not contain the first offset; only the file name does.
    NO_BASE = "no base", NoBase
    #: The file name and the content have different first offsets.
    BASE_MISMATCH = "base mismatch", BaseMismatch
    #: The marker of the first offset occurs more than once in an index.
    SECOND_MARKER = "second base marker", IndexSizeMismatch
    #: An index is missing for a data file, or the data for an index.
    MISSING_FILE = "missing file", MissingRecords
    #: The index ends within an entry.
    TORN_INDEX = "torn index", IndexSizeMismatch
    #: The index ends in zeros: it was not closed cleanly.
    PADDED_INDEX = "padded index", IndexSizeMismatch
    #: The index has entries for records that are not in the data.
    INDEX_AHEAD = "index ahead of data", IndexSizeMismatch
    #: The data holds records that have no entry in the index.
    INDEX_BEHIND = "index behind data", IndexSizeMismatch
    #: Entries of the index do not point at a record.
    BAD_INDEX = "bad index", IndexGap
    #: The data ends within a record.
    TORN_TAIL = "torn tail", TornFile
    #: The data ends in zeros.
    ZERO_TAIL = "zeros at the end", TornFile
    #: Bytes that belong to no record.
    ORPHAN_BYTES = "orphan bytes", IndexGap
    #: Offsets go back to an earlier one; the records get new offsets.
    RESTART = "offsets restart", OffsetsOutOfOrder
    #: The offset of one record contradicts its neighbours.
    BAD_OFFSET = "bad offset", OffsetsOutOfOrder
    #: Some offsets are missing.
    GAP = "offset gap", MissingRecords
    #: Records that were not yet in the files during an earlier import.
    LATE = "came later"
    #: The checksum or the length of a record is wrong.
    CHECKSUM = "checksum mismatch", ChecksumMismatch
    #: A record, or the frame around it, is invalid.
    UNREADABLE = "unreadable record", UnreadableRecord
    #: Records that the other brokers of a cluster may not have.
    UNREPLICATED = "not replicated"
    #: A transaction without an end marker; its records stay invisible until it is committed.
    OPEN_TRANSACTION = "open transaction"
    #: A file that is not part of the log; it is ignored.
    UNKNOWN_FILE = "not part of the log"


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect of a log."""

    kind: Kind
    #: Path of the file, relative to the log's directory.
    file: str
    #: First byte of the defect.
    position: int
    #: The defect and the reaction to it, as one sentence without a full stop.
    detail: str
    outcome: Outcome = "repaired"
    #: Number of affected bytes, if known.
    size_bytes: int = 0
    #: Offset of the affected (or next) record, if known.
    offset: int | None = None

    def error(self, path: str) -> ForeignDamage:
        """Return the exception for this finding in the log at `path`."""
        return self.kind.error(f"{self.kind.value}: {self.detail}", f"{path}/{self.file}", self.position, self.offset)

    def __str__(self) -> str:
        return f"{self.file} at byte {self.position}: {self.kind.value}: {self.detail}"


class ForeignReport:
    """The findings about one log, in the order of discovery, without duplicates."""

    def __init__(self) -> None:
        self._found: dict[tuple[Kind, str, int], Finding] = {}
        #: True if findings were discarded because there were too many.
        self.truncated = False

    def add(self, finding: Finding) -> None:
        key = finding.kind, finding.file, finding.position
        if len(self._found) < _MAX_FINDINGS:
            self._found.setdefault(key, finding)
        elif key not in self._found:
            self.truncated = True

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings."""
        return tuple(self._found.values())

    @property
    def lost(self) -> tuple[Finding, ...]:
        """Findings that cost records."""
        return tuple(finding for finding in self._found.values() if finding.outcome == "lost")

    @property
    def ok(self) -> bool:
        """True if there are no findings."""
        return not self._found

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self._found)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<ForeignReport {len(self)} findings, {len(self.lost)} with lost records>"


# --- logs


@dataclass(frozen=True, slots=True)
class LogLocation:
    """The location of one log: its directory, and the topic and partition that its system calls it."""

    path: str
    topic: str | None = None
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Detection:
    """The logs found in a directory."""

    #: Name of the format.
    format: str
    #: One log, the partitions of one topic, or all data of a server.
    kind: Literal["partition", "topic", "data"]
    #: The directory that was examined.
    path: str
    #: The logs in it, sorted by topic and partition.
    logs: tuple[LogLocation, ...]
    #: The evidence, as a sentence.
    why: str
    #: True if the evidence is unique to this format, such as a matching checksum.
    certain: bool = True
    #: Ignored directories, each with the reason.
    ignored: tuple[str, ...] = ()


class OpenOptions(TypedDict, total=False):
    """The keyword arguments of `sawlog.interop.open`, except for the format."""

    damage: Damage
    strict: bool
    metadata: Decoder | None


class ForeignLog(Closing):
    """One log of another system, read only. Created by `sawlog.interop.open`. Not thread-safe."""

    #: Name of the format.
    format: str

    def __init__(
        self, directory: Directory, *, damage: Damage = "stop", strict: bool = False, metadata: Decoder | None = None
    ) -> None:
        """Open the log in a directory, which the log owns and closes. Arguments as for `sawlog.interop.open`."""
        if damage not in ("stop", "skip"):
            raise InvalidConfig(f'damage must be "stop" or "skip", not {damage!r}')
        self.path = directory.path
        self.directory = directory
        self.damage = damage
        self.strict = strict
        self.decoder = metadata
        self._report = ForeignReport()
        self._closed = False

    # --- implemented by each format

    @property
    @abstractmethod
    def lowest_offset(self) -> int:
        """First offset. In an empty log, the offset of the first record to be appended."""

    @property
    @abstractmethod
    def next_offset(self) -> int:
        """Offset after the last record. The first access may read the whole log."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Size of the files that hold records."""

    @property
    @abstractmethod
    def report(self) -> ForeignReport:
        """All findings. The first access reads the whole log unless a scan already has."""

    @abstractmethod
    def tables(
        self,
        start: int,
        end: int | None,
        columns: Sequence[str],
        *,
        progress: Progress | None = None,
        committed: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records with start <= offset < end (None: to the end) as Arrow, a few megabytes at a time. At lost
        records, raise or continue after them, depending on `damage`. Leave out records of aborted and open transactions
        if `committed`."""

    @abstractmethod
    def copy_to(self, log: Log, *, progress: Progress | None = None, timestamp: int | None = None) -> int:
        """Append the records from `log.next_offset` on to `log`, at the same offsets, and return their number.
        `timestamp` (ms) is for systems that store none; by default it is the time of the import."""

    # --- written on top of these

    def scan(self, start: int | None = None, end: int | None = None) -> Iterator[Record]:
        """Yield the records with start <= offset < end in order; by default all of them."""
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
        """Yield Arrow record batches with the columns of `Log.scan_arrow`. Records without a timestamp have -1."""
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
        """Return the record at `offset`; -1 is the last one. Raises `OffsetOutOfRange` outside the log and
        `RecordRemoved` in a gap."""
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
        """Return the record at `offset`; `log[-1]` is the last one."""
        return self.read(offset if offset >= 0 else self.next_offset + offset)

    def __len__(self) -> int:
        return self.next_offset - self.lowest_offset

    def __bool__(self) -> bool:
        return True

    def offset_of(self, byte_offset: int) -> int:
        """Return the offset of the record at a byte offset, for systems that address records this way."""
        raise io.UnsupportedOperation(
            f"{self.format} does not address records by byte offset, so {byte_offset} has no meaning"
        )

    def segments_below(self, end: int) -> Iterator[tuple[str, int, int]]:
        """Yield the segments that end at or below an offset and may have been incomplete during an earlier import:
        file, first offset, and the offset after the last. Covers the part of the log that has been read."""
        return iter(())

    def add(self, finding: Finding, *, raising: bool) -> Finding:
        """Add a finding to the report, or raise it as well."""
        self._report.add(finding)
        if raising:
            raise finding.error(self.path)
        return finding

    def check_open(self) -> None:
        """Raise `LogClosed` if the log is closed."""
        if self._closed:
            raise LogClosed(f"the log {self.path} is closed")

    def close(self) -> None:
        """Release all resources. Idempotent."""
        if not self._closed:
            self._closed = True
            self.directory.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}{' closed' if self._closed else ''}>"


# --- formats

#: Writes all partitions of a topic below a path, with these options.
TopicExporter = Callable[["DirectoryTopic", str, Mapping[str, object], Progress | None], tuple["ExportReport", ...]]


class ExportOptions(TypedDict, total=False):
    """The options of all formats. A format raises `InvalidConfig` for an option that it does not have."""

    #: All formats: maximum size of a segment.
    segment_bytes: int
    #: Kafka: the topic's id, as a UUID or as Kafka writes it.
    topic_id: str
    #: Kafka, for all partitions of a topic: the cluster and the broker that will own the directory.
    cluster_id: str
    node_id: int
    #: laminarmq: width of the index in a record's metadata.
    index_bits: Literal[32, 64]
    #: plain: which of the two layouts.
    head: Literal["u32", "u64"]


@dataclass(frozen=True, slots=True)
class ExportJob:
    """The range of one export and its options."""

    #: First offset, and the offset after the last.
    start: int
    end: int
    #: Options of the format; see its module.
    options: Mapping[str, object] = field(default_factory=dict)
    #: Called with the progress, in bytes.
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of one export."""

    format: str
    path: str
    #: First offset, and the offset after the last.
    start_offset: int
    next_offset: int
    records: int
    size_bytes: int
    files: tuple[str, ...]
    #: Fields that the format cannot store, with the number of records that had them ("keys": 12).
    dropped: Mapping[str, int] = field(default_factory=dict)
    #: Remarks for readers of the written format.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """One foreign system: how to detect, open and write its logs."""

    #: Name for users: `format="laminarmq"`.
    name: str
    #: Short description.
    title: str
    #: The class of its logs.
    log: type[ForeignLog]
    #: Returns the logs in a directory: one log, the partitions of a topic, or a server's data.
    detect: Callable[[Directory], Detection | None]
    #: Writes a range of records into an empty directory. Raises `InvalidConfig` for unknown options.
    write: Callable[[Log, Directory, ExportJob], ExportReport]
    #: Writes a topic below a data directory. None: each partition is a log of its own.
    write_topic: TopicExporter | None = None
    #: Path of a partition below the system's data directory.
    layout: str = "{topic}-{partition}"
    #: True if an export keeps batches, and with them transactions that are still open.
    keeps_batches: bool = False
    #: True if records carry metadata that only an application can decode.
    has_metadata: bool = False

    def partition_path(self, topic: str, partition: int) -> str:
        """Return the path of a partition below the system's data directory."""
        return self.layout.format(topic=topic, partition=partition)
