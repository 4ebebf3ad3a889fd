"""Import logs of other systems into sawlog.

An import keeps offsets: a record has the same offset in the copy as in the source, and a gap in the source is a gap in
the copy (an empty batch represents it, as after Kafka's compaction). So an interrupted import needs no state file:
`log.next_offset` is the next record to copy. Before appending to a log that already has records, the import compares
its last record with the source's at that offset, so that it never continues the copy of another log.

A running system may not have written the end of each segment yet (GUMLOG buffers every store), which leaves a gap in
the copy. A later import therefore checks that the copy has the last record of every segment. If one is missing and the
source has it now, the import verifies that the source still has everything after the gap, truncates the copy to the
beginning of the gap, and copies again from there. Leader epochs make readers of the copy go back as well.

Memory: a few megabytes, or the largest record if that is larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from ..batch import kernel
from ..batch.checksum import crc32c
from ..batch.header import HEADER_BYTES
from ..clock import Stopwatch
from ..errors import (
    ForeignDamage,
    ImportMismatch,
    InvalidConfig,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    RecordRemoved,
    TopicNotFound,
)
from ..log.log import Log
from ..storage import FileDirectory
from ..store.directory.store import DirectoryStore
from ..store.directory.topic import DirectoryTopic
from .detection import detect_or_assume, open_location
from .foreign import (
    Damage,
    Decoder,
    Detection,
    Finding,
    ForeignLog,
    ForeignReport,
    Kind,
    LogLocation,
    Progress,
    shifted,
)
from .records import MAX_JUMP

#: Minimum number of bytes per append.
APPEND_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class LogImport:
    """The result of importing one log."""

    location: LogLocation
    #: Directory of the log that was written.
    target: str
    #: First offset of this run; above the source's lowest offset if it continued an earlier import.
    start_offset: int
    next_offset: int
    #: Records copied by this run.
    records: int
    #: Size of the source's files.
    size_bytes: int
    report: ForeignReport


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of an import, per log."""

    format: str
    source: str
    logs: tuple[LogImport, ...]
    seconds: float

    @property
    def records(self) -> int:
        """Records copied by this run."""
        return sum(each.records for each in self.logs)

    @property
    def size_bytes(self) -> int:
        """Size of the source's files."""
        return sum(each.size_bytes for each in self.logs)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings about all logs."""
        return tuple(finding for each in self.logs for finding in each.report)


def import_log(
    source: str | PathLike[str] | ForeignLog,
    target: Log | DirectoryStore,
    *,
    format: str | None = None,
    topic: str | None = None,
    only: str | None = None,
    settings: Mapping[str, object] | None = None,
    damage: Damage = "stop",
    timestamp: int | None = None,
    progress: Progress | None = None,
    metadata: Decoder | None = None,
) -> ImportReport:
    """Copy another system's log, or all logs in a directory, and keep their offsets. Call it again to continue.

    A `Log` takes one log. A `Store` takes all logs and creates missing topics (with these `settings`) under the names
    that they have in the source; a log without a name becomes `topic`, or is named after its directory. `only` selects
    one topic of several. A topic that already has records is continued if they are the beginning of the same log
    (`ImportMismatch` if not). `damage="skip"` leaves out records that cannot be read, with a line in the report.
    `metadata` is for laminarmq: see `open`. `timestamp` (ms) is for records of systems that store none; the default is
    the time of the import.
    """
    watch = Stopwatch()
    if isinstance(source, ForeignLog):
        locations: tuple[LogLocation, ...] = (LogLocation(source.path),)
        name, path, sizes = source.format, source.path, [source.size_bytes]
    else:
        found = detect_or_assume(source, format)
        locations, name, path = _selected(found, only), found.format, found.path
        sizes = []
        for location in locations:
            with closing(FileDirectory(location.path, create=False)) as directory:
                sizes.append(sum(directory.size(name) for name in directory.names() if not name.endswith("index")))
    done: list[LogImport] = []
    targets = _targets(locations, target, topic, settings or {})
    for number, (location, log) in enumerate(zip(locations, targets, strict=True)):
        step = shifted(progress, sum(sizes[:number]), sum(sizes))
        # One at a time: a server may have more logs than a process may open files.
        given = nullcontext(source) if isinstance(source, ForeignLog) else None
        with given or open_location(location, name, damage=damage, metadata=metadata) as each:
            _prepare(each, log)
            start = log.next_offset
            try:
                records = each.copy_to(log, progress=step, timestamp=timestamp)
            finally:
                log.sync()  # records copied before an error become visible
            done.append(LogImport(location, log.path, start, log.next_offset, records, each.size_bytes, each.report))
    if progress is not None:
        progress(sum(sizes), sum(sizes))  # the sizes include files that are not part of a log
    return ImportReport(name, path, tuple(done), watch.elapsed_s)


def _selected(found: Detection, only: str | None) -> tuple[LogLocation, ...]:
    if only is None:
        return found.logs
    selected = tuple(location for location in found.logs if location.topic == only)
    if not selected:
        known = ", ".join(dict.fromkeys(str(location.topic) for location in found.logs if location.topic is not None))
        raise TopicNotFound(f"no topic {only!r} in {found.path}; its topics are {known or 'none with a name'}")
    return selected


# --- the target


def _targets(
    locations: tuple[LogLocation, ...], target: Log | DirectoryStore, topic: str | None, settings: Mapping[str, Any]
) -> Iterator[Log]:
    if isinstance(target, Log):
        if len(locations) != 1:
            raise InvalidConfig(f"the source holds {len(locations)} logs: give one of them, or import into a store")
        return iter([target])
    names = [_topic_of(location, locations, topic) for location in locations]
    topics: dict[str, DirectoryTopic] = {}
    for name in dict.fromkeys(names):
        count = 1 + max(location.partition for location, own in zip(locations, names, strict=True) if own == name)
        topics[name] = target.create_topic(name, partitions=count, exist_ok=True, **settings)
        if topics[name].partitions < count:
            raise ImportMismatch(
                f"the topic {name!r} has {topics[name].partitions} partitions, the source {count}; add partitions first"
            )
    return (topics[name].partition(location.partition) for location, name in zip(locations, names, strict=True))


def _topic_of(location: LogLocation, locations: tuple[LogLocation, ...], topic: str | None) -> str:
    """Return the topic for a log. The name given by the caller requires a source with at most one topic."""
    if topic is not None:
        if len({each.topic for each in locations}) > 1:
            raise InvalidConfig(
                "the source holds several topics, which keep their names; give `topic` only for a single one"
            )
        return topic
    return location.topic if location.topic is not None else location.path.rstrip("/").rpartition("/")[2]


def _prepare(source: ForeignLog, log: Log) -> None:
    """Check that the log is a beginning of the source. An empty log is advanced to the source's first offset."""
    with log._hold():  # catch up as the writer: a killed import may have left more than is visible
        pass
    lowest, following = log.lowest_offset, log.next_offset
    first = source.lowest_offset
    if lowest == following:
        if following > first:
            raise ImportMismatch(
                f"{log.path} is empty and starts at offset {following}, but {source.path} begins at {first}: offsets "
                "cannot be kept; import into a new log"
            )
        log._advance(first)
        return
    if following <= first or not _same_record(source, log, following - 1):
        raise ImportMismatch(
            f"{log.path} holds offsets {lowest} to {following - 1}, which are not the beginning of {source.path}; "
            "import into a new log"
        )
    _truncate_to_late_records(source, log)


# --- records that the source did not have during an earlier import


def _truncate_to_late_records(source: ForeignLog, log: Log) -> None:
    """Truncate the log to the first gap that the source has filled since the earlier import."""
    for file, first, following in source.segments_below(log.next_offset):
        last = following - 1
        if last >= log.lowest_offset and not _has(log, last) and _values_at(source, last):
            missing = _first_missing(log, max(first, log.lowest_offset), last)
            _check_same_from(source, log, missing)
            log.truncate(missing)
            detail = f"offsets {missing} to {last} were missing in an earlier import; copied again from there"
            source.report.add(Finding(Kind.LATE, file, 0, detail, offset=missing))
            return


def _has(log: Log, offset: int) -> bool:
    try:
        log.read(offset, isolation="uncommitted")
    except RecordRemoved:
        return False
    return True


def _first_missing(log: Log, low: int, high: int) -> int:
    """Return the first missing offset from `low` to `high`, given that `high` is missing and gaps end a segment."""
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _has(log, middle) else (low, middle)
    return low


def _check_same_from(source: ForeignLog, log: Log, offset: int) -> None:
    """Check that the source still has every record of the log from an offset on, before they are truncated."""
    theirs = source.scan(offset)
    for ours in log.scan(offset):
        same = next((each for each in theirs if each.offset >= ours.offset), None)
        if same is None or (same.offset, same.value) != (ours.offset, ours.value):
            raise ImportMismatch(
                f"{log.path} lacks records from offset {offset} on that {source.path} now has, and differs at "
                f"{ours.offset}: import into a new log"
            )


def _same_record(source: ForeignLog, log: Log, offset: int) -> bool:
    """Return True if both have the same value at an offset, or both have a gap there."""
    ours = [log.read(offset, isolation="uncommitted").value] if _has(log, offset) else []
    try:
        return _values_at(source, offset) == ours
    except OffsetOutOfRange:
        return False


def _values_at(source: ForeignLog, offset: int) -> list[bytes | None]:
    """Return the source's value at an offset; empty if it has a gap there."""
    tables = source.tables(offset, offset + 1, ("value",), committed=False)
    return [value for table in tables for value in table.column(0).to_pylist()]


# --- copying records as Arrow


def copy_records(source: ForeignLog, log: Log, *, progress: Progress | None, timestamp: int | None) -> int:
    """Append the source's records from `log.next_offset` on as Arrow, at the same offsets; return their number."""
    copied = 0
    columns = ("offset", "value", "headers")
    for batches in _coalesced(source.tables(log.next_offset, None, columns, progress=progress)):
        table = pa.Table.from_batches(batches)
        offsets = table.column(0).to_numpy()
        first = 0
        for last in [*(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)] if len(offsets) else ():
            _advance(source, log, int(offsets[first]))
            log.append_arrow(_rows(table, first, last, timestamp), expect_offset=int(offsets[first]))
            first = last
        copied += len(offsets)
    return copied


def _advance(source: ForeignLog, log: Log, offset: int) -> None:
    """Skip offsets that the source lacks. A gap before the first record is kept too: the copy begins where the source
    does, and records that appear later have a place."""
    if offset - log.next_offset > MAX_JUMP:
        raise OffsetsOutOfOrder(
            f"offsets jump from {log.next_offset - 1} to {offset}: the gap is too large for a log",
            source.path,
            0,
            offset,
        )
    if offset > log.next_offset and log.lowest_offset == log.next_offset:
        log._append_at_offsets(_empty_batch(log.next_offset))
    log._advance(offset)


def _empty_batch(offset: int) -> bytearray:
    """Return a batch without records that covers one offset."""
    batch = bytearray(HEADER_BYTES)
    view = memoryview(batch)
    kernel.write_header(view, 0, offset, HEADER_BYTES, 0, 0, 0, -1, -1, -1, -1, -1, 0)
    kernel.patch_crc(view, 0, crc32c(view[21:]))
    return batch


def _coalesced(tables: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Group tables to at least `APPEND_BYTES`: segments may be as small as a kilobyte, and every append may wait for an
    fsync. Tables before damage are yielded before the error is raised."""
    pending: list[pa.RecordBatch] = []
    size = 0
    try:
        for table in tables:
            pending.append(table)
            size += table.nbytes
            if size >= APPEND_BYTES:
                yield pending
                pending, size = [], 0
    except ForeignDamage:
        if pending:
            yield pending
        raise
    if pending:
        yield pending


def _rows(table: pa.Table, first: int, last: int, timestamp: int | None) -> pa.Table:
    part = table.slice(first, last - first)
    names, arrays = ["value"], [part.column(1)]
    if any(len(chunk.flatten()) for chunk in part.column(2).chunks):
        names.append("headers")
        arrays.append(part.column(2))
    if timestamp is not None:
        names.append("timestamp")
        arrays.append(pa.repeat(pa.scalar(timestamp, pa.int64()), part.num_rows))
    return pa.table(arrays, names=names)
