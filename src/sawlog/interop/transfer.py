"""Copies whole logs: from another system into ours, and back.

*Import* keeps offsets: a record has the same offset here as in the source (`ForeignLog.tables` defines it), and where
the source has a gap, the copy has one too (an empty batch represents it, as after Kafka's compaction). That is enough
to continue after an interruption: `log.next_offset` is the next record to copy. Before anything is appended to a log
that already has records, its last record is compared with the source's at that offset, so that nothing is ever appended
to the copy of another log. There is no state file.

A running system may not have written the end of each segment yet (GUMLOG buffers every store): then the copy has a gap
there. So an import that continues checks whether the copy has the last record of every segment. If one is missing and
the source now has it, the copy is truncated to where the gap begins, once it is known that the source still has
everything that is truncated, and copied again from there. Readers of the copy go back too, because of leader epochs.

*Export* writes next to the target and renames at the end: a directory with the target's name is always complete.

Memory: a few megabytes, or the largest record if that is larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Unpack

from ..addresses import check_local
from ..clock import Stopwatch
from ..errors import (
    ExportRefused,
    ImportMismatch,
    InvalidConfig,
    OffsetOutOfRange,
    RecordRemoved,
    TopicNotFound,
)
from ..log.log import Log
from ..storage import Directory, FileDirectory
from ..topics.store import Store
from ..topics.topic import Topic
from .damage import Finding, ForeignReport, Kind
from .detection import Decoder, detected_or_named, format_named, open_place
from .foreign import (
    Damage,
    Detection,
    ExportJob,
    ExportOptions,
    ExportReport,
    ForeignLog,
    ImportJob,
    Place,
    Progress,
    TopicFormat,
)

#: The name of an unfinished export.
_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class LogImport:
    """What was done for one log."""

    place: Place
    #: The directory of the log that was written.
    target: str
    #: The first offset of this run; above the source's lowest offset if an earlier run was interrupted.
    start_offset: int
    next_offset: int
    #: Records copied by this run.
    records: int
    #: Size of the source's files.
    size_bytes: int
    report: ForeignReport


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What was done, per log."""

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
        """What was wrong, in all logs."""
        return tuple(finding for each in self.logs for finding in each.report)


# ---------------------------------------------------------------------------------------------------------------------
# Import


def import_log(
    source: str | PathLike[str] | ForeignLog,
    target: Log | Store,
    *,
    format: str | None = None,
    topic: str | None = None,
    only: str | None = None,
    settings: Mapping[str, object] | None = None,
    damage: Damage = "stop",
    timestamp: int | None = None,
    resume: bool = True,
    progress: Progress | None = None,
    metadata: Decoder | None = None,
) -> ImportReport:
    """Copy another system's log, or all logs in a directory, keeping offsets; run again, it continues.

    A `Log` takes one log. A `Store` takes all logs: missing topics are created (with these `settings`) under the names
    that they have in the source; one without a name becomes `topic`, or is named after its directory. `only` selects
    one topic of several. A topic that already has records is continued if they are the beginning of the same log
    (`ImportMismatch` if not); with `resume=False` it is refused. `damage="skip"` leaves out what cannot be read, with a
    line in the report. `metadata` is for laminarmq: see `open`. `timestamp` (ms) is for records of systems that store
    no time; the default is the time of the import.
    """
    watch = Stopwatch()
    if isinstance(source, ForeignLog):
        places: tuple[Place, ...] = (Place(source.path),)
        name, path, sizes = source.format, source.path, [source.size_bytes]
    else:
        found = detected_or_named(source, format)
        places, name, path = _chosen(found, only), found.format, found.path
        sizes = [_size_of(place) for place in places]
    done: list[LogImport] = []
    for number, (place, log) in enumerate(zip(places, _targets(places, target, topic, settings or {}), strict=True)):
        job = ImportJob(_shifted(progress, sum(sizes[:number]), sum(sizes)), timestamp)
        if isinstance(source, ForeignLog):
            done.append(_import_one(place, source, log, job, resume))
        else:  # one after the other: a server may have more logs than a process may open files
            with open_place(place, name, damage=damage, metadata=metadata) as each:
                done.append(_import_one(place, each, log, job, resume))
    if progress is not None:
        progress(sum(sizes), sum(sizes))  # also counts files that are not part of a log
    return ImportReport(name, path, tuple(done), watch.elapsed_s)


def _chosen(found: Detection, only: str | None) -> tuple[Place, ...]:
    """The logs of one topic, or all."""
    if only is None:
        return found.places
    chosen = tuple(place for place in found.places if place.topic == only)
    if not chosen:
        known = ", ".join(dict.fromkeys(str(place.topic) for place in found.places if place.topic is not None))
        raise TopicNotFound(f"no topic {only!r} in {found.path}; its topics are {known or 'none with a name'}")
    return chosen


def _size_of(place: Place) -> int:
    """Size of its files, for the progress display."""
    directory = FileDirectory(place.path, create=False)
    try:
        return sum(directory.size(name) for name in directory.names() if not name.endswith("index"))
    finally:
        directory.close()


def _shifted(progress: Progress | None, behind: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, _: progress(min(behind + done, total), total)


def _targets(
    places: tuple[Place, ...], target: Log | Store, topic: str | None, settings: Mapping[str, Any]
) -> Iterator[Log]:
    if isinstance(target, Log):
        if len(places) != 1:
            raise InvalidConfig(f"there are {len(places)} logs in the source: give one of them, or import into a store")
        return iter([target])
    named = [_topic_of(place, places, topic) for place in places]
    topics: dict[str, Topic] = {}
    for name in dict.fromkeys(named):
        count = 1 + max(place.partition for place, own in zip(places, named, strict=True) if own == name)
        topics[name] = target.create_topic(name, partitions=count, exist_ok=True, **settings)
        if topics[name].partitions < count:
            raise ImportMismatch(
                f"the topic {name!r} has {topics[name].partitions} partitions, the source {count}; add partitions first"
            )
    return (topics[name].partition(place.partition) for place, name in zip(places, named, strict=True))


def _topic_of(place: Place, places: tuple[Place, ...], topic: str | None) -> str:
    """The topic that a log becomes. A given name is for a source with one topic, or with none."""
    if topic is not None:
        if len({each.topic for each in places}) > 1:
            raise InvalidConfig(
                "the source holds several topics, which keep their names; give `topic` only for a single one"
            )
        return topic
    return place.topic if place.topic is not None else place.path.rstrip("/").rpartition("/")[2]


def _import_one(place: Place, source: ForeignLog, log: Log, job: ImportJob, resume: bool) -> LogImport:
    _prepare(source, log, resume)
    start = log.next_offset
    try:
        records = source.copy_to(log, job)
    finally:
        log.sync()  # what was copied before an error is kept and becomes readable
    return LogImport(place, log.path, start, log.next_offset, records, source.size_bytes, source.report)


def _prepare(source: ForeignLog, log: Log, resume: bool) -> None:
    """Check that the log is a beginning of the source; an empty log begins where the source does."""
    with log.engine.hold():  # as its writer: an import that was killed may have left more than is visible
        pass
    lowest, following = log.lowest_offset, log.next_offset
    first = source.lowest_offset
    if lowest == following:
        if following > first:
            raise ImportMismatch(
                f"{log.path} is empty and starts at offset {following}, but {source.path} begins at {first}: offsets "
                "cannot be kept; import into a new log"
            )
        log.advance(first)
        return
    if not resume:
        raise ImportMismatch(f"{log.path} already holds records, and this import may not continue an existing log")
    if following <= first or not _same_record(source, log, following - 1):
        raise ImportMismatch(
            f"{log.path} holds offsets {lowest} to {following - 1}, which are not the beginning of {source.path}; "
            "import into a new log"
        )
    _look_again(source, log)


def _look_again(source: ForeignLog, log: Log) -> None:
    """Truncate the log to where it lacks records that the source has now but had not when they were copied."""
    for file, first, following in source.segments_below(log.next_offset):
        last = following - 1
        if last >= log.lowest_offset and not _has(log, last) and _has_now(source, last):
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


def _has_now(source: ForeignLog, offset: int) -> bool:
    return any(table.num_rows for table in source.stored(offset, offset + 1, ("offset",)))


def _first_missing(log: Log, low: int, high: int) -> int:
    """The first of these offsets that the log lacks; it lacks the last. What is missing is the end of a segment."""
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _has(log, middle) else (low, middle)
    return low


def _check_same_from(source: ForeignLog, log: Log, offset: int) -> None:
    """Check that the source has everything that the log has from there on."""
    theirs = source.scan(offset)
    for ours in log.scan(offset):
        same = next((each for each in theirs if each.offset >= ours.offset), None)
        if same is None or (same.offset, same.value) != (ours.offset, ours.value):
            raise ImportMismatch(
                f"{log.path} lacks records from offset {offset} on that {source.path} now has, and differs at "
                f"{ours.offset}: import into a new log"
            )


def _same_record(source: ForeignLog, log: Log, offset: int) -> bool:
    """Whether both have the same at that offset: the same value, or both nothing because it is in a gap."""
    try:
        value = [log.read(offset, isolation="uncommitted").value]
    except RecordRemoved:
        value = []
    try:
        found = [row for table in source.stored(offset, offset + 1, ("value",)) for row in table.column(0).to_pylist()]
    except OffsetOutOfRange:
        return False
    return found == value


# ---------------------------------------------------------------------------------------------------------------------
# Export


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
    """Write a log in another system's format: one log into one directory, which must be empty or not exist yet.

    `options` are those of the format (see its module); all formats have `segment_bytes`. The directory appears when it
    is complete; the report counts what the format cannot store.
    """
    check_local(path, "the target of an export")
    chosen = format_named(format)
    first = log.lowest_offset if start is None else start
    # What is not decided is exported only where its batches are.
    following = log.next_offset if isinstance(chosen, TopicFormat) else log.last_stable_offset
    last = following if end is None else min(end, following)
    if not log.lowest_offset <= first <= last:
        raise OffsetOutOfRange(first, log.lowest_offset, log.next_offset, log.path)
    with ExitStack() as held:
        parent, name = _parent_of(str(path), held)
        _check_target(parent, name)
        partial = name + _PARTIAL
        parent.remove_child(partial)
        directory = parent.child(partial, create=True)
        try:
            report = chosen.write(log, directory, ExportJob(first, last, options, progress))
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
    topic: Topic,
    path: str | PathLike[str],
    *,
    format: str,
    progress: Progress | None = None,
    **options: Unpack[ExportOptions],
) -> tuple[ExportReport, ...]:
    """Write all partitions of a topic below a data directory, each where the other system would keep it."""
    check_local(path, "the target of an export")
    chosen = format_named(format)
    if isinstance(chosen, TopicFormat):
        return chosen.write_topic(topic, str(path), options=options, progress=progress)
    logs = [topic.partition(number) for number in range(topic.partitions)]
    total, behind = sum(log.size_bytes for log in logs), 0
    made: list[ExportReport] = []
    for number, log in enumerate(logs):
        step = _shifted(progress, behind, total)
        target = f"{path}/{chosen.place(topic.name, number)}"
        made.append(export_log(log, target, format=format, progress=step, **options))
        behind += log.size_bytes
    return tuple(made)


def _parent_of(path: str, held: ExitStack) -> tuple[Directory, str]:
    parent, _, name = path.rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        raise ExportRefused(f"{path!r} cannot be created as a new directory: give a directory below it")
    directory = FileDirectory(parent or ("/" if path.startswith("/") else "."))
    held.callback(directory.close)
    return directory, name


def _check_target(parent: Directory, name: str) -> None:
    if name in parent.names():
        raise ExportRefused(f"{parent.path}/{name} is a file")
    if name in parent.children():
        there = parent.child(name)
        try:
            if there.names() or there.children():
                raise ExportRefused(f"{there.path} is not empty: export to a new directory")
        finally:
            there.close()
