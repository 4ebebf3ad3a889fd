"""The files of a Kafka broker's log directory, except for the batches. Nothing here reads records.

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
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ..config import LogConfig
from ..errors import CorruptFile
from ..storage import Directory

NAME = "kafka"
#: A batch that decompresses to more is refused, as in a log of ours.
MAX_DECOMPRESSED_BYTES = LogConfig().max_decompressed_bytes

LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META = "meta.properties"
RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION = "partition.metadata"
#: Files that only a broker's directory has.
SERVER_FILES = frozenset(
    {META, RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER, CLEAN_SHUTDOWN, "bootstrap.checkpoint"}
)
#: Files that only a partition's directory has.
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


# --- names


def place(topic: str, partition: int) -> str:
    """The name of a partition's directory."""
    return f"{topic}-{partition}"


def partition_of(name: str) -> tuple[str, int] | None:
    """The topic and partition of a directory with that name; None if it is not a partition."""
    found = _PARTITION_NAME.fullmatch(name)
    return (found[1], int(found[2])) if found and found[1] not in (".", "..") and int(found[2]) < 2**31 else None


def state_of(name: str) -> str | None:
    """Why a directory of that name is not a partition, if Kafka marks it so."""
    found = _STATE_NAME.fullmatch(name)
    return _STATES[found[1]] if found else None


def is_kafkas(name: str) -> bool:
    """Whether a file in a partition's directory belongs to Kafka."""
    name = name.removesuffix(".tmp")
    return name in PARTITION_FILES or _FILE.fullmatch(name) is not None


def segment_files(names: Iterable[str], end_of: Callable[[str, int], int]) -> dict[int, str]:
    """The file of each segment, by base offset, as Kafka would have it after its next start.

    A `.swap` file replaces the files that it covers, unless there is a `.cleaned` file at or below it: then the whole
    group was not finished. `end_of` returns where the offsets in a file end.
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
    """The offsets in a checkpoint, by topic and partition; empty if it is missing or empty, `CorruptFile` if it does
    not parse."""
    lines = _lines(directory, name)
    try:
        return {(topic, int(number)): int(offset) for topic, number, offset in (line.split(" ") for line in lines)}
    except ValueError as error:
        raise CorruptFile(f"{directory.path}/{name} is not a checkpoint: {error}") from error


def read_epochs(directory: Directory) -> list[tuple[int, int]]:
    """(leader epoch, its first offset), from leader-epoch-checkpoint."""
    lines = _lines(directory, LEADER_EPOCHS)
    try:
        return [(int(epoch), int(offset)) for epoch, offset in (line.split(" ") for line in lines)]
    except ValueError as error:
        raise CorruptFile(f"{directory.path}/{LEADER_EPOCHS} is not a checkpoint: {error}") from error


def _lines(directory: Directory, name: str) -> list[str]:
    if not directory.exists(name):
        return []
    path = f"{directory.path}/{name}"
    try:
        lines = directory.read(name).decode("ascii").split("\n")
        if lines == [""]:  # a broker that has just been started for the first time
            return []
        version, count, entries = lines[0], int(lines[1]), lines[2:-1]
    except (ValueError, IndexError) as error:
        raise CorruptFile(f"{path} is not a checkpoint: {error}") from error
    if version != "0" or count != len(entries) or lines[-1]:
        raise CorruptFile(f"{path} is not a checkpoint of version 0 with {lines[1]} lines")
    return entries


def offsets_text(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """The content of a checkpoint of offsets."""
    return _text([f"{topic} {number} {offset}" for (topic, number), offset in sorted(offsets.items())])


def epochs_text(epochs: Iterable[tuple[int, int]]) -> bytes:
    """The content of a leader-epoch-checkpoint."""
    return _text([f"{epoch} {offset}" for epoch, offset in epochs])


def _text(lines: list[str]) -> bytes:
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


# --- ids


def topic_id_of(directory: Directory) -> str | None:
    """The topic's id in partition.metadata; None if there is none."""
    if not directory.exists(PARTITION):
        return None
    found = re.fullmatch(
        r"version: 0\ntopic_id: ([A-Za-z0-9_-]{22})\n?", directory.read(PARTITION).decode("ascii", "replace")
    )
    return found[1] if found else None


def partition_text(topic_id: str) -> bytes:
    """The content of a partition.metadata."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def is_id(text: str) -> bool:
    """Whether this could be an id in Kafka's notation."""
    return re.fullmatch(r"[A-Za-z0-9_-]{22}", text) is not None


def kafka_id(id_: str) -> str:
    """A UUID in Kafka's notation: 22 characters of base64."""
    return base64.urlsafe_b64encode(uuid.UUID(id_).bytes).decode().rstrip("=")


# --- the server


@dataclass(frozen=True, slots=True)
class Server:
    """What the files of a broker's directory say about its partitions. Unreadable files are treated as missing."""

    #: Whether the broker was stopped cleanly.
    clean: bool = False
    #: The first offset of a partition, if records within a segment were deleted.
    log_start: Mapping[tuple[str, int], int] = field(default_factory=dict)
    #: The offset up to which a partition had been flushed.
    recovery_point: Mapping[tuple[str, int], int] = field(default_factory=dict)
    #: The offset up to which a partition had been replicated.
    high_watermark: Mapping[tuple[str, int], int] = field(default_factory=dict)
    #: Damaged checkpoints, and the reason.
    problems: tuple[tuple[str, str], ...] = ()


def read_server(directory: Directory) -> Server:
    """Read the small files of a log directory."""
    problems: list[tuple[str, str]] = []

    def offsets(name: str) -> dict[tuple[str, int], int]:
        try:
            return read_offsets(directory, name)
        except CorruptFile as error:
            problems.append((name, str(error)))
            return {}

    found = [offsets(name) for name in (LOG_START, RECOVERY_POINT, HIGH_WATERMARK)]
    return Server(directory.exists(CLEAN_SHUTDOWN), found[0], found[1], found[2], tuple(problems))
