"""A Kafka broker's log directory, laid out by hand: batches straight from the format's description, small files."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sawlog import Record

from ..batch import wire

T = 1_700_000_000_000
RECOVERY, START, HIGH = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
)


def batch(offset: int, *values: bytes | None, epoch: int = 0, key: bytes | None = None, **header: Any) -> bytes:
    """A batch of records at an offset, a millisecond apart."""
    parts = [(number, number, key, value, ()) for number, value in enumerate(values)]
    return wire.batch(parts, wire.Header(base_offset=offset, leader_epoch=epoch, base_timestamp=T + offset, **header))


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    """The end of a transaction."""
    key, value = b"\0\0\0" + (b"\1" if commit else b"\0"), bytes(6)
    head = wire.Header(
        base_offset=offset,
        attributes=wire.CONTROL | wire.TRANSACTIONAL,
        producer_id=producer,
        producer_epoch=0,
        base_timestamp=T,
    )
    return wire.batch([(0, 0, key, value, ())], head)


def named(base: int, suffix: str = ".log") -> str:
    """The name of a segment's file."""
    return f"{base:020}{suffix}"


def offsets(**of: int) -> bytes:
    """A checkpoint: topic_partition=offset."""
    lines = [f"{name.rpartition('_')[0]} {name.rpartition('_')[2]} {offset}" for name, offset in of.items()]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def lay(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a directory."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


def partition(directory: Path, segments: Mapping[int, bytes], name: str = "orders-0") -> Path:
    """Write a partition with these segments, without indexes, which Kafka would rebuild."""
    files = {f"{name}/{named(base)}": content for base, content in segments.items()}
    files[f"{name}/leader-epoch-checkpoint"] = b"0\n1\n0 0\n"
    files[f"{name}/partition.metadata"] = b"version: 0\ntopic_id: rGGT5D-JSW6qO6iA3s-4bQ"
    return lay(directory, files) / name


def stopped(directory: Path, **ends: int) -> None:
    """Mark the broker as stopped cleanly, at these offsets (topic_partition=offset)."""
    lay(directory, {".kafka_cleanshutdown": b'{"version":0,"brokerEpoch":7}', RECOVERY: offsets(**ends)})


def seen(records: Any) -> list[tuple[Any, ...]]:
    """Records as tuples."""
    return [_tuple(record) for record in records]


def _tuple(record: Record) -> tuple[Any, ...]:
    return record.offset, record.key, record.value, tuple(record.headers), record.timestamp


_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # like Java's FileChannel.tryLock
except OSError:
    print("refused", flush=True)
else:
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def broker_on(directory: Path) -> Iterator[str]:
    """Take the lock of a running broker in another process; yields that process's output."""
    assert fcntl  # a POSIX system
    lock = directory / ".lock"
    lock.touch()
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.communicate("")
