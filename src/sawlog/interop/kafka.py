"""Kafka: a broker's log directory, or one partition in it. The files are drawn in kafka_files.py.

The batches need no conversion: RecordBatch v2 is what sawlog stores, so importing is copying, and no record is decoded.
Every batch is checked on the way (header, offsets, CRC-32C; this takes about 5 % of the time and cannot be turned off)
and is then in our log byte for byte as in Kafka's: offset, leader epoch, producer, transaction, compression. Where
Kafka's compaction has dropped whole batches, a batch without records represents their offsets (see
log/write/keeping.py). Transaction markers are kept unchanged, so the copy knows as Kafka does which records are
committed; records of aborted transactions are not shown here either. Kafka's indexes help to start reading in the
middle, and are used only where the batches confirm them. Producer snapshots and the index of aborted transactions can
be derived from the batches and are not read.

Not imported, each with a line in the report: Kafka's internal topics (`__consumer_offsets` and all other names with two
leading underscores; to import one, give its directory), topics whose name is not valid in sawlog, and directories that
Kafka is deleting (`-delete`), moving (`-future`) or does not know (`-stray`).

Refused: a broker that is running (`SourceInUse`; while we read, it cannot start either if its `.lock` exists), and
messages in formats from before Kafka 0.11 (`UnknownFormat`).

A transaction that is open at the end is reported. Its records are in the copy, too, and whoever reads only what is
committed stops before them until somebody ends it (`Log.append_marker`).

**Damage.** Bytes at the end of the last segment that are not a complete batch, with no batch after them, are a *torn
tail* if the broker was not stopped cleanly and had not flushed them: they are cut, as Kafka does when it starts. Zeros
are space that was never written (`log.preallocate`). Anything else is damage: reading stops there with the error of its
kind, or, with `damage="skip"`, continues after it. Files are never mapped: if a broker starts while we read, it may
truncate files; we may then read garbage, which the checksums detect, but we do not crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..batch import kernel
from ..batch.checksum import crc32c
from ..batch.header import HEADER_BYTES
from ..log.log import Log
from ..storage import Directory
from ..topics.names import is_topic_name
from . import kafka_files as files
from .foreign import Damage, Detection, ExportJob, ExportReport, ForeignLog, Place, Progress
from .kafka_damage import OLD_LEAST_BYTES, old_magic
from .kafka_export import write_partition, write_topic
from .kafka_log import KafkaLog

if TYPE_CHECKING:
    from ..topics.topic import Topic


class KafkaFormat:
    """Kafka, from version 0.11."""

    name = files.NAME
    title = "a Kafka broker's log directory, or one partition of it"

    def detect(self, directory: Directory) -> Detection | None:
        """A partition (by its files and first batch) or a broker's directory (by its checkpoints and partitions)."""
        names = directory.names()
        if files.segment_files(names, lambda name, base: base):
            return self._partition(directory, names)
        return self._server(directory, names)

    def _partition(self, directory: Directory, names: list[str]) -> Detection | None:
        why, certain = _evidence(directory, names)
        if not why:
            return None
        topic, number = files.partition_of(_basename(directory.path)) or (None, 0)
        place = Place(directory.path, topic, number)
        return Detection(self.name, "partition", directory.path, (place,), why, certain)

    def _server(self, directory: Directory, names: list[str]) -> Detection | None:
        marks = sorted(files.SERVER_FILES.intersection(names))
        found: list[Place] = []
        ignored: list[str] = []
        certain = bool(marks)
        for child in directory.children():
            key, state = files.partition_of(child), files.state_of(child)
            if state is not None:
                ignored.append(f"{child}: {state}")
                continue
            if key is None:
                continue
            seen = self._child(directory, child)
            if seen is None:
                continue
            certain = certain or seen.certain
            why = _unwanted(key[0], found)
            if why:
                ignored.append(f"{child}: {why}")
            else:
                found.append(Place(f"{directory.path.rstrip('/')}/{child}", *key))
        if not marks and not found:
            return None
        why = f"{', '.join(marks[:3]) or 'no checkpoint'}, {len(found)} partitions with Kafka batches"
        places = tuple(sorted(found, key=lambda place: (place.topic or "", place.partition)))
        return Detection(self.name, "data", directory.path, places, why, certain, tuple(ignored))

    def _child(self, directory: Directory, name: str) -> Detection | None:
        child = directory.child(name)
        try:
            names = child.names()
            return self._partition(child, names) if files.segment_files(names, lambda name, base: base) else None
        finally:
            child.close()

    def open(self, directory: Directory, *, damage: Damage = "stop", strict: bool = False) -> ForeignLog:
        """The partition in this directory; `SourceInUse` if a broker is running."""
        return KafkaLog(directory, damage=damage, strict=strict)

    def place(self, topic: str, partition: int) -> str:
        """As a broker names it."""
        return files.place(topic, partition)

    def write(self, log: Log, directory: Directory, job: ExportJob) -> ExportReport:
        """One partition; see kafka_export.py."""
        return write_partition(log, directory, job)

    def write_topic(
        self, topic: Topic, path: str, *, options: Mapping[str, object], progress: Progress | None = None
    ) -> tuple[ExportReport, ...]:
        """All partitions of a topic, and the files of a broker's directory that describe them; see kafka_export.py."""
        return write_topic(topic, path, options=options, progress=progress)


def _basename(path: str) -> str:
    return Path(path).resolve().name


def _unwanted(topic: str, found: list[Place]) -> str:
    """Why a topic is not imported with the others; empty if it is imported."""
    if topic.startswith("__"):
        return "an internal topic of Kafka; to import it, give its directory"
    if not is_topic_name(topic):
        return "not a valid topic name in sawlog; to import it, give its directory and another topic name"
    for other in found:
        if other.topic is not None and other.topic != topic and other.topic.lower() == topic.lower():
            return f"its name differs from {other.topic} only in case"
    return ""


def _evidence(directory: Directory, names: list[str]) -> tuple[str, bool]:
    """Why a directory with segments is a Kafka partition, and whether that is certain; empty if it is not one."""
    if {"LOCK", "checkpoint"} <= set(names):
        return "", False  # a sawlog directory, which has the same segments
    marks = sorted(files.PARTITION_FILES.intersection(names))
    if marks:
        return f"{' and '.join(marks)} next to its segments", True
    for base, name in files.segment_files(names, lambda name, base: base).items():
        if directory.exists(name) and directory.size(name):  # not a symbolic link
            return _first_batch(directory, name, base)
    return "its file names, which other systems also use: all segments are empty", False


def _first_batch(directory: Directory, name: str, base: int) -> tuple[str, bool]:
    storage = directory.open_shared(name)
    try:
        head = memoryview(storage.read(0, min(storage.size, HEADER_BYTES)))
        if len(head) >= 12 + OLD_LEAST_BYTES:
            size = 12 + max(int.from_bytes(head[8:12], "big", signed=True), 0)
            whole = memoryview(storage.read(0, min(storage.size, size)))
            if old_magic(whole) is not None:
                return f"{name} begins with a message from before Kafka 0.11", True
            if kernel.find_header(head, 0, len(head), base) == 0 or (
                len(whole) >= HEADER_BYTES and kernel.find_header(whole, 0, len(whole), base) == 0
            ):
                crc = int.from_bytes(whole[17:21], "big")
                good = crc32c(whole[21:size]) == crc
                return f"{name} begins with a batch whose checksum {'matches' if good else 'does not match'}", good
    finally:
        storage.close()
    return "", False


FORMAT = KafkaFormat()
