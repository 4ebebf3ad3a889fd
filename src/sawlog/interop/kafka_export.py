"""Write the directory of one Kafka partition, or all partitions of a topic in a broker's log directory.

Batches are written whole, checked and unchanged, except those that only represent missing offsets (no record, no
producer, no marker), where Kafka has gaps. There is one exception: a leader epoch that is lower than an earlier one is
raised to that, because Kafka interprets decreasing epochs as truncation (the checksum does not cover the epoch). The
indexes that Kafka would have created are written too: offsets, times, aborted transactions, leader epochs.

`write_topic` works in three cases:

- a new directory: writes the partitions, and checkpoints with the start and end of each;
- the same with `cluster_id` and `node_id`: also writes meta.properties, which makes it a broker's directory;
- the directory of a *stopped broker* in which the topic has just been created and is empty: the partitions replace
  the empty ones, with the id that the cluster has given to the topic, and the checkpoints are updated. To get records
  into a real cluster, create the topic there, stop the broker, export, and start the broker. (A broker treats
  partitions that are not in its cluster's metadata as strays and sets them aside.)

A partition is written under a name that Kafka deletes when it starts (`-delete`) and renamed when it is complete. After
an interruption, a broker that starts on the directory finds either the old state or the new one.

Options: `topic_id` (22 characters, as Kafka writes it, or a UUID), `segment_bytes`; for a topic also `cluster_id`,
`node_id`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..batch import kernel
from ..batch.header import (
    ATTRIBUTES,
    BASE,
    CONTROL_BIT,
    COUNT,
    LAST,
    LEADER_EPOCH,
    POSITION,
    PRODUCER_ID,
    SIZE,
    Rows,
)
from ..config import GIB, MAX_SEGMENT_BYTES
from ..errors import CorruptFile, ExportRefused, InvalidConfig
from ..log.batches import MAX_SPAN
from ..log.epochs import Epochs
from ..log.files import INDEX, LEADER_EPOCHS, LOG, TIME_INDEX, TXN_INDEX, file_name
from ..log.index import SegmentIndex
from ..log.ingest import rows_of
from ..log.log import Log
from ..log.transactions import Transactions, encode_kafka_index
from ..storage import Directory, FileDirectory, Storage
from . import kafka_files as files
from .exporting import check_options, segment_bytes_of
from .foreign import ExportJob, ExportReport, Progress, shifted

if TYPE_CHECKING:
    from ..store.directory.topic import DirectoryTopic

#: Number of bytes to fetch and write at once.
_PAGE_BYTES = 8 << 20
_OPTIONS = frozenset({"topic_id", "segment_bytes"})
TOPIC_OPTIONS = _OPTIONS | {"cluster_id", "node_id"}


@dataclass(slots=True)
class _File:
    """A segment that is being written."""

    base: int
    storage: Storage
    index: SegmentIndex


class PartitionWriter:
    """Writer of the files of one partition."""

    def __init__(self, directory: Directory, bases: frozenset[int], segment_bytes: int) -> None:
        self._directory = directory
        self._bases = bases
        self._segment_bytes = segment_bytes
        self._file: _File | None = None
        self._transactions = Transactions()
        self.epochs: list[tuple[int, int]] = []
        self.raised = 0
        self.files: list[str] = []

    def put(self, data: memoryview, rows: Rows) -> None:
        """Write complete batches that are contiguous in a buffer."""
        data, rows = self._with_rising_epochs(data, rows)
        start = 0
        while start < len(rows):
            file = self._file_for(rows[start])
            end = start + self._fitting(file, rows[start:])
            run = rows[start:end]
            begin, stop = int(run[0, POSITION]), int(run[-1, POSITION] + run[-1, SIZE])
            file.index.add_rows(run, file.storage.size - begin)
            file.storage.reserve(stop - begin)
            file.storage.append(data[begin:stop])
            self._transactions.note_rows(run)
            start = end

    def _file_for(self, row: Rows) -> _File:
        file, base = self._file, int(row[BASE])
        if file is not None:
            size = file.storage.size
            full = size + int(row[SIZE]) > self._segment_bytes or int(row[LAST]) - file.base >= MAX_SPAN
            if not size or (base not in self._bases and not full):
                return file
        self.begin(base)
        assert self._file is not None
        return self._file

    def _fitting(self, file: _File, rows: Rows) -> int:
        """Return how many of these batches fit into the file; at least one."""
        fits = file.storage.size + np.cumsum(rows[:, SIZE]) <= self._segment_bytes
        fits &= rows[:, LAST] - file.base < MAX_SPAN
        fits &= ~np.isin(rows[:, BASE], list(self._bases))
        fits[0] = True
        return int(np.argmin(fits)) if not fits.all() else len(rows)

    def begin(self, base: int) -> None:
        """Finish the open file and begin a new one for offsets from `base` on."""
        self.finish()
        name = file_name(base)
        self._file = _File(base, self._directory.create(name), SegmentIndex(base, files.INDEX_INTERVAL_BYTES))
        self._transactions.begin_segment(base)
        self.files.append(name)

    def finish(self) -> None:
        """Sync the open file and write its indexes."""
        file, self._file = self._file, None
        if file is None:
            return
        file.storage.release()
        file.storage.sync()
        file.storage.close()
        offsets, times = file.index.encode()
        aborted = encode_kafka_index(self._transactions.aborted)
        for suffix, data in ((INDEX, offsets), (TIME_INDEX, times), (TXN_INDEX, aborted)):
            if data or suffix != TXN_INDEX:
                self._directory.replace(file_name(file.base, suffix), data)
                self.files.append(file_name(file.base, suffix))

    def _with_rising_epochs(self, data: memoryview, rows: Rows) -> tuple[memoryview, Rows]:
        before = self.epochs[-1][0] if self.epochs else 0
        wanted = np.maximum.accumulate(np.maximum(rows[:, LEADER_EPOCH], before))
        new = np.flatnonzero(np.diff(wanted, prepend=before if self.epochs else -1))
        self.epochs.extend((int(wanted[at]), int(rows[at, BASE])) for at in new)
        low = np.flatnonzero(rows[:, LEADER_EPOCH] != wanted).tolist()
        if low:
            data = memoryview(bytearray(data))
            for at in low:
                kernel.patch_place(data, int(rows[at, POSITION]), int(rows[at, BASE]), int(wanted[at]))
            self.raised += len(low)
        return data, rows


# --- one partition


def write_partition(log: Log, directory: Directory, job: ExportJob) -> ExportReport:
    """Write the whole batches that contain these offsets into an empty directory."""
    start, end, options = job.start, job.end, job.options
    check_options(files.NAME, options, _OPTIONS)
    # A file also ends where a segment of the log ends.
    bases = frozenset(each.base_offset for each in log.segments)
    writer = PartitionWriter(directory, bases, segment_bytes_of(options, GIB, MAX_SEGMENT_BYTES))
    total, records = log.size_bytes, 0
    first, following, done = -1, start, 0
    for data, rows in _without_fillers(_batches(log, start, end)):
        writer.put(data, rows)
        first = int(rows[0, BASE]) if first < 0 else first
        following = int(rows[-1, LAST]) + 1
        records += int(rows[:, COUNT].sum())
        done += int(rows[:, SIZE].sum())
        if job.progress is not None:
            job.progress(done, total)
    if first < 0:  # an empty log has one empty file, named after the next offset
        first = start
        writer.begin(start)
    writer.finish()
    directory.replace(LEADER_EPOCHS, Epochs(tuple(writer.epochs)).encode())
    names = [*writer.files, LEADER_EPOCHS]
    if (topic_id := _topic_id(options)) is not None:
        directory.replace(files.PARTITION, files.partition_text(topic_id))
        names.append(files.PARTITION)
    notes = _notes(first, start, following, end, writer.raised)
    return ExportReport(files.NAME, directory.path, first, following, records, done, tuple(names), notes=notes)


def _batches(log: Log, start: int, end: int) -> Iterator[tuple[memoryview, Rows]]:
    """Yield the batches that contain offsets from `start` to `end`, a few megabytes at a time."""
    while start < end:
        page = log.fetch(start, _PAGE_BYTES, isolation="uncommitted")
        for buffer in page.buffers:
            rows = rows_of(buffer)
            wanted = rows[rows[:, BASE] < end]
            if len(wanted):
                yield buffer, wanted
        start = page.next_offset


def _without_fillers(batches: Iterator[tuple[memoryview, Rows]]) -> Iterator[tuple[memoryview, Rows]]:
    """Drop batches that only represent missing offsets, which Kafka does not need. The first and the last one are kept:
    they mark the beginning and the end of the log."""
    begun, last_filler = False, None
    for data, rows in batches:
        empty = (rows[:, COUNT] == 0) & (rows[:, PRODUCER_ID] == -1) & (rows[:, ATTRIBUTES] & CONTROL_BIT == 0)
        empty[0] &= begun
        ends = [*(np.flatnonzero(np.diff(empty)) + 1).tolist(), len(rows)]
        for first, last in zip([0, *ends], ends, strict=False):
            if not empty[first]:
                yield data, rows[first:last]
        begun, last_filler = True, (data, rows[-1:]) if empty[-1] else None
    if last_filler is not None:
        yield last_filler


def _notes(first: int, start: int, following: int, end: int, raised: int) -> tuple[str, ...]:
    notes = []
    if first < start:
        notes.append(f"batches are exported whole: the first begins at offset {first}, below {start}")
    if following > end:
        notes.append(f"batches are exported whole: the last ends at offset {following - 1}, above {end - 1}")
    if raised:
        notes.append(f"{raised:,} batches had a lower leader epoch than an earlier batch; it was raised")
    return tuple(notes)


def _topic_id(options: Mapping[str, object]) -> str | None:
    given = options.get("topic_id")
    if given is None:
        return None
    if isinstance(given, str):
        try:
            return files.kafka_id(given)
        except ValueError:
            if files.is_id(given):
                return given
    raise InvalidConfig(f"topic_id must be a UUID, or 22 characters as Kafka writes one, not {given!r}")


# --- a topic


def write_topic(
    topic: DirectoryTopic, path: str, options: Mapping[str, object], progress: Progress | None
) -> tuple[ExportReport, ...]:
    """Write all partitions of a topic into a broker's log directory, new or existing."""
    check_options(files.NAME, options, TOPIC_OPTIONS)
    meta = _meta(options)
    with ExitStack() as undo:
        server = FileDirectory(path)
        undo.callback(server.close)
        if (hold := files.lock_broker_directory(server)) is not None:
            undo.callback(hold.release)
        if meta is not None and server.exists(files.META):
            raise ExportRefused(f"{path} already has a {files.META}: omit cluster_id and node_id")
        topic_id = _id_for(topic, server, options)
        logs = [topic.partition(number) for number in range(topic.partitions)]
        _check_checkpoints(server)
        reports, total, done = [], sum(log.size_bytes for log in logs), 0
        for number, log in enumerate(logs):
            given = {**{name: options[name] for name in _OPTIONS & set(options)}, "topic_id": topic_id}
            step = shifted(progress, done, total)
            reports.append(_write_one(log, server, f"{topic.name}-{number}", given, step))
            done += log.size_bytes
        _write_checkpoints(server, topic.name, logs, reports)
        if meta is not None:
            server.replace(files.META, meta)
    return tuple(reports)


def _write_one(
    log: Log, server: Directory, name: str, options: Mapping[str, object], progress: Progress | None
) -> ExportReport:
    temporary = f"{name}.{uuid.uuid4().hex}-delete"
    try:
        with closing(server.child(temporary, create=True)) as directory:
            report = write_partition(log, directory, ExportJob(log.lowest_offset, log.next_offset, options, progress))
            directory.sync()
        if name in server.children():
            empty = f"{name}.{uuid.uuid4().hex}-delete"
            server.rename(name, empty)
            server.rename(temporary, name)
            server.remove_child(empty)
        else:
            server.rename(temporary, name)
        server.sync()
    except BaseException:
        server.remove_child(temporary)
        raise
    return replace(report, path=f"{server.path}/{name}")


def _id_for(topic: DirectoryTopic, server: Directory, options: Mapping[str, object]) -> str:
    """Return the topic's id: the cluster's if the topic exists there, in which case it must be empty."""
    known: set[str] = set()
    for child in server.children():
        key = files.partition_of(child)
        if key is None or key[0] != topic.name:
            continue
        if key[1] >= topic.partitions:
            raise ExportRefused(
                f"{server.path}/{child} is a partition that the topic does not have (it has {topic.partitions})"
            )
        with closing(server.child(child)) as directory:
            if any(directory.size(name) for name in directory.names() if name.endswith(LOG)):
                raise ExportRefused(
                    f"{directory.path} holds records: export only to a topic that is empty or does not exist"
                )
            found = files.topic_id_of(directory)
        known |= {found} if found is not None else set()
    if len(known) > 1:
        raise ExportRefused(f"the partitions of {topic.name} in {server.path} have different ids")
    return next(iter(known), None) or _topic_id(options) or files.kafka_id(topic.id)


def _meta(options: Mapping[str, object]) -> bytes | None:
    cluster, node = options.get("cluster_id"), options.get("node_id")
    if cluster is None and node is None:
        return None
    if not isinstance(cluster, str) or not files.is_id(cluster):
        raise InvalidConfig(
            f"cluster_id must be 22 characters, as Kafka writes an id, not {cluster!r}; give it with node_id"
        )
    if isinstance(node, bool) or not isinstance(node, int) or node < 0:
        raise InvalidConfig(f"node_id must be an integer, at least 0, not {node!r}; give it with cluster_id")
    directory = files.kafka_id(str(uuid.uuid4()))
    lines = ["version=1", f"cluster.id={cluster}", f"node.id={node}", f"directory.id={directory}"]
    return ("\n".join(lines) + "\n").encode()


def _check_checkpoints(server: Directory) -> None:
    """Raise `ExportRefused` for a checkpoint that cannot be read, because the export would overwrite it."""
    for name in (files.RECOVERY_POINT, files.LOG_START, files.HIGH_WATERMARK, files.CLEANER):
        try:
            files.read_offsets(server, name)
        except CorruptFile as error:
            raise ExportRefused(f"{error}; nothing was written") from error


def _write_checkpoints(server: Directory, topic: str, logs: list[Log], reports: list[ExportReport]) -> None:
    ends = {(topic, number): report.next_offset for number, report in enumerate(reports)}
    starts = {
        (topic, number): log.lowest_offset
        for number, (log, report) in enumerate(zip(logs, reports, strict=True))
        if log.lowest_offset > report.start_offset
    }
    for name, offsets in (
        (files.RECOVERY_POINT, ends),
        (files.HIGH_WATERMARK, ends),
        (files.LOG_START, starts),
        (files.CLEANER, {}),
    ):
        there = files.read_offsets(server, name)
        kept = {key: offset for key, offset in there.items() if key[0] != topic}
        if offsets or kept != there:
            server.replace(name, files.offsets_text({**kept, **offsets}))
