"""The files of a Kafka broker's log directory: names, checkpoints, ids, the lock, and detection.

```
<log.dir>/
  meta.properties                    Java properties: version=1, cluster.id=<22 characters>, node.id=1, directory.id=...
  .lock                              locked (POSIX) while a broker runs; newer brokers remove it at a clean stop
  .kafka_cleanshutdown               {"version":0,"brokerEpoch":11}: exists after a clean stop, removed at start
  recovery-point-offset-checkpoint   \\
  log-start-offset-checkpoint         | text: "0", the number of lines, then "<topic> <partition> <offset>" each
  replication-offset-checkpoint       | (flushed up to; the first offset; the high watermark; compacted up to)
  cleaner-offset-checkpoint          /
  <topic>-<partition>/
    00000000000000001234.log         batches; the number is the first offset that may be in it
    00000000000000001234.index       [last offset of a batch - base i32][its position i32], padded with zeros while open
    00000000000000001234.timeindex   [largest timestamp so far i64][offset - base i32]
    00000000000000001234.txnindex    aborted transactions: [version i16 = 0][producer id i64][first offset i64]
                                     [last offset i64][last stable offset i64]
    00000000000000001234.snapshot    the state of producers at that offset; Kafka rebuilds it
    leader-epoch-checkpoint          text: "0", the number of lines, then "<epoch> <start offset>" each
    partition.metadata               "version: 0", "topic_id: <22 characters of base64>"
  <topic>-<partition>.<32 hex digits>-delete | -future | -stray
                                     being deleted; a copy being moved here from another disk; unknown to the cluster
```

Suffixes of files in transition: `.deleted` (dropped), `.cleaned` (compaction has not finished), `.swap` (compaction has
finished; the file is about to replace those whose offsets it covers). Kafka finishes or discards them when it starts;
`segment_files` does the same without changing anything on disk.

Detection ignores, with a reason: Kafka's internal topics (`__consumer_offsets` and all other names with two leading
underscores), topics whose name is not valid in sawlog, and directories that Kafka is deleting, moving or does not know.
"""

from __future__ import annotations

import base64
import re
import struct
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from ..batch import kernel
from ..batch.checksum import crc32c
from ..batch.header import HEADER_BYTES
from ..errors import CorruptFile, DirectoryLocked, SourceInUse
from ..log.files import LEADER_EPOCHS
from ..storage import Directory, SharedFileLock
from ..store.names import is_topic_name
from .detection import Sniffed
from .foreign import Detection, LogLocation

NAME = "kafka"
#: Bytes between two index entries, as Kafka's default.
INDEX_INTERVAL_BYTES = 4096

LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META = "meta.properties"
RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"
PARTITION = "partition.metadata"
#: Files that exist only in a broker's directory.
SERVER_FILES = frozenset(
    {META, RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER, CLEAN_SHUTDOWN, "bootstrap.checkpoint"}
)
#: Files that exist only in a partition's directory.
PARTITION_FILES = frozenset({LEADER_EPOCHS, PARTITION})

_PARTITION_NAME = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]*)")
_STATE_NAME = re.compile(r"(?s).+\.[0-9a-f]{32}-(delete|future|stray)")
_SEGMENT = re.compile(r"([0-9]{20})\.log(\.swap|\.cleaned)?")
_FILE = re.compile(
    r"[0-9]{20}\.(log|index|timeindex|txnindex|snapshot)(\.deleted|\.cleaned|\.swap)?"
    r"|[0-9]{20}-[0-9]{10}\.checkpoint(\.part)?|quorum-state|remote_log_snapshot.*"
)
_STATES = {
    "delete": "Kafka is deleting it",
    "future": "Kafka is moving it here from another disk",
    "stray": "the cluster has no such partition",
}
#: A message before RecordBatch v2: [offset i64][size i32][CRC-32 u32][magic i8]...
_OLD_MESSAGE = struct.Struct(">qiIb")
_OLD_MIN_BYTES = 14


# --- names


def partition_of(name: str) -> tuple[str, int] | None:
    """Return the topic and partition of a directory name; None if it is not a partition."""
    found = _PARTITION_NAME.fullmatch(name)
    return (found[1], int(found[2])) if found and found[1] not in (".", "..") and int(found[2]) < 2**31 else None


def state_of(name: str) -> str | None:
    """Return the reason why a directory is not a partition, if Kafka has marked it by its name."""
    found = _STATE_NAME.fullmatch(name)
    return _STATES[found[1]] if found else None


def is_kafka_file(name: str) -> bool:
    """Return True if a file in a partition's directory belongs to Kafka."""
    name = name.removesuffix(".tmp")
    return name in PARTITION_FILES or _FILE.fullmatch(name) is not None


def segment_files(names: Iterable[str], end_of: Callable[[str, int], int] = lambda name, base: base) -> dict[int, str]:
    """Return the file of each segment, by base offset, as Kafka would have it after its next start.

    A `.swap` file replaces the files that it covers, unless there is a `.cleaned` file at or below it: then compaction
    of the whole group had not finished. `end_of` returns the offset after the last one in a file.
    """
    found: dict[str, dict[int, str]] = {"": {}, ".swap": {}, ".cleaned": {}}
    for name in names:
        if match := _SEGMENT.fullmatch(name):
            found[match[2] or ""][int(match[1])] = name
    segments, unfinished = found[""], min(found[".cleaned"], default=2**63)
    swaps = {base: name for base, name in found[".swap"].items() if base < unfinished}
    if swaps:
        first, end = min(swaps), max(end_of(name, base) for base, name in swaps.items())
        segments = {base: name for base, name in segments.items() if not first <= base < end}
    return dict(sorted({**segments, **swaps}.items()))


# --- checkpoints


def read_offsets(directory: Directory, name: str) -> dict[tuple[str, int], int]:
    """Return the offsets in a checkpoint, by topic and partition. A missing or empty file has none; raises
    `CorruptFile` if it does not parse."""
    if not directory.exists(name):
        return {}
    path = f"{directory.path}/{name}"
    try:
        lines = directory.read(name).decode("ascii").split("\n")
        if lines == [""]:  # a broker that has just been started for the first time
            return {}
        version, count, entries = lines[0], int(lines[1]), [line.split(" ") for line in lines[2:-1]]
        offsets = {(topic, int(number)): int(offset) for topic, number, offset in entries}
    except (ValueError, IndexError) as error:
        raise CorruptFile(f"{path} is not a checkpoint: {error}") from error
    if version != "0" or count != len(entries) or lines[-1]:
        raise CorruptFile(f"{path} is not a checkpoint of version 0 with {lines[1]} lines")
    return offsets


def offsets_text(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """Return the content of a checkpoint of offsets."""
    lines = [f"{topic} {number} {offset}" for (topic, number), offset in sorted(offsets.items())]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


# --- ids


def topic_id_of(directory: Directory) -> str | None:
    """Return the topic's id in partition.metadata; None if there is none."""
    if not directory.exists(PARTITION):
        return None
    found = re.fullmatch(
        r"version: 0\ntopic_id: ([A-Za-z0-9_-]{22})\n?", directory.read(PARTITION).decode("ascii", "replace")
    )
    return found[1] if found else None


def partition_text(topic_id: str) -> bytes:
    """Return the content of a partition.metadata."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def is_id(text: str) -> bool:
    """Return True if a text has the form of an id in Kafka's notation."""
    return re.fullmatch(r"[A-Za-z0-9_-]{22}", text) is not None


def kafka_id(id_: str) -> str:
    """Return a UUID in Kafka's notation: 22 characters of base64."""
    return base64.urlsafe_b64encode(uuid.UUID(id_).bytes).decode().rstrip("=")


# --- the broker


@dataclass(frozen=True, slots=True)
class BrokerState:
    """The checkpoints of a broker's directory. Unreadable ones are treated as missing."""

    #: True if the broker was stopped cleanly.
    clean: bool = False
    #: First offset of a partition, if records within a segment were deleted.
    log_start: Mapping[tuple[str, int], int] = field(default_factory=dict)
    #: Offset up to which a partition had been flushed.
    recovery_point: Mapping[tuple[str, int], int] = field(default_factory=dict)
    #: Offset up to which a partition had been replicated.
    high_watermark: Mapping[tuple[str, int], int] = field(default_factory=dict)
    #: Damaged checkpoints, each with the reason.
    problems: tuple[tuple[str, str], ...] = ()


def read_broker_state(directory: Directory) -> BrokerState:
    """Read the checkpoints of a log directory."""
    problems: list[tuple[str, str]] = []

    def offsets(name: str) -> dict[tuple[str, int], int]:
        try:
            return read_offsets(directory, name)
        except CorruptFile as error:
            problems.append((name, str(error)))
            return {}

    found = [offsets(name) for name in (LOG_START, RECOVERY_POINT, HIGH_WATERMARK)]
    return BrokerState(directory.exists(CLEAN_SHUTDOWN), found[0], found[1], found[2], tuple(problems))


def lock_broker_directory(directory: Directory) -> SharedFileLock | None:
    """Prevent a broker from starting on its directory, if its lock file exists; `SourceInUse` if one is running."""
    if not directory.exists(LOCK):
        return None
    try:
        return SharedFileLock(directory, LOCK)
    except DirectoryLocked as error:
        raise SourceInUse(
            f"a Kafka broker is running on {directory.path} ({LOCK} is locked): stop it, then try again"
        ) from error


# --- detection


def detect(directory: Directory) -> Detection | None:
    """Detect a partition (by its files and first batch) or a broker's directory (by its checkpoints and partitions)."""
    names = directory.names()
    if not segment_files(names):
        return _detect_broker(directory, names)
    seen = _sniff(directory, names)
    if seen is None:
        return None
    topic, number = partition_of(Path(directory.path).resolve().name) or (None, 0)
    location = LogLocation(directory.path, topic, number)
    return Detection(NAME, "partition", directory.path, (location,), seen.why, seen.certain)


def _detect_broker(directory: Directory, names: list[str]) -> Detection | None:
    marks = sorted(SERVER_FILES.intersection(names))
    found: list[LogLocation] = []
    ignored: list[str] = []
    certain = bool(marks)
    for name in directory.children():
        key, state = partition_of(name), state_of(name)
        if state is not None:
            ignored.append(f"{name}: {state}")
            continue
        if key is None:
            continue
        with closing(directory.child(name)) as child:
            seen = _sniff(child, child.names())
        if seen is None:
            continue
        certain = certain or seen.certain
        if why := _reason_to_ignore(key[0], found):
            ignored.append(f"{name}: {why}")
        else:
            found.append(LogLocation(f"{directory.path.rstrip('/')}/{name}", *key))
    if not marks and not found:
        return None
    why = f"{', '.join(marks[:3]) or 'no checkpoint'}, {len(found)} partitions with Kafka batches"
    locations = tuple(sorted(found, key=lambda each: (each.topic or "", each.partition)))
    return Detection(NAME, "data", directory.path, locations, why, certain, tuple(ignored))


def _reason_to_ignore(topic: str, found: list[LogLocation]) -> str:
    """Return the reason why a topic is not imported with the others; empty if it is imported."""
    if topic.startswith("__"):
        return "an internal topic of Kafka; to import it, give its directory"
    if not is_topic_name(topic):
        return "not a valid topic name in sawlog; to import it, give its directory and another topic name"
    for other in found:
        if other.topic is not None and other.topic != topic and other.topic.lower() == topic.lower():
            return f"its name differs from {other.topic} only in case"
    return ""


def _sniff(directory: Directory, names: list[str]) -> Sniffed | None:
    """Return the evidence that a directory is a Kafka partition."""
    segments = segment_files(names)
    if not segments or {"LOCK", "checkpoint"} <= set(names):  # the latter: sawlog's, which has the same segments
        return None
    if marks := sorted(PARTITION_FILES.intersection(names)):
        return Sniffed(f"{' and '.join(marks)} next to its segments", True)
    for base, name in segments.items():
        if directory.exists(name) and directory.size(name):  # not a symbolic link
            return _sniff_batch(directory, name, base)
    return Sniffed("its file names, which other systems also use: all segments are empty", False)


def _sniff_batch(directory: Directory, name: str, base: int) -> Sniffed | None:
    """Return the evidence that a file begins with a batch."""
    with closing(directory.open_shared(name)) as storage:
        head = memoryview(storage.read(0, min(storage.size, HEADER_BYTES)))
        if len(head) < 12 + _OLD_MIN_BYTES:
            return None
        size = 12 + max(int.from_bytes(head[8:12], "big", signed=True), 0)
        whole = memoryview(storage.read(0, min(storage.size, size)))
    if old_magic(whole) is not None:
        return Sniffed(f"{name} begins with a message from before Kafka 0.11", True)
    if kernel.find_header(head, 0, len(head), base) != 0 and (
        len(whole) < HEADER_BYTES or kernel.find_header(whole, 0, len(whole), base) != 0
    ):
        return None
    good = crc32c(whole[21:size]) == int.from_bytes(whole[17:21], "big")
    return Sniffed(f"{name} begins with a batch whose checksum {'matches' if good else 'does not match'}", good)


def old_magic(data: memoryview) -> int | None:
    """Return 0 or 1 if the data begins with a complete message of that format with the right checksum."""
    if len(data) < 12 + _OLD_MIN_BYTES:
        return None
    offset, size, crc, magic = _OLD_MESSAGE.unpack_from(data)
    if magic not in (0, 1) or offset < 0 or not _OLD_MIN_BYTES <= size <= len(data) - 12:
        return None
    return magic if zlib.crc32(data[16 : 12 + size]) == crc else None
