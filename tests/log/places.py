"""Places for the logs of these tests, in files or in memory, with the same interface.

A `Place` opens its log, returns all its bytes, and can be copied while the log is open: the copy is the state after a
kill, because everything appended is written (if not yet durable). Its files can be damaged.

Logs are opened with durability="os", and with `quick` fsync does nothing: survival of power cuts is tested elsewhere,
with real fsyncs or a storage that drops unsynced data.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sawlog import Log, LogConfig, Record
from sawlog.batch.header import BatchHeader, scan
from sawlog.storage import MemoryDirectory

LOG, INDEX, TIME_INDEX = ".log", ".index", ".timeindex"


def named(base: int, suffix: str = LOG) -> str:
    """The name of a segment's file."""
    return f"{base:020d}{suffix}"


class Place:
    """A directory for one log."""

    kind: str

    def __init__(self) -> None:
        self.logs: list[Log] = []
        self.copies = 0

    def directory(self) -> Any:
        """The argument for `Log.open`."""
        raise NotImplementedError

    def files(self) -> dict[str, bytes]:
        """All bytes by name, without the lock."""
        raise NotImplementedError

    def write(self, name: str, data: bytes) -> None:
        """Make `data` the content of a file."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Delete a file."""
        raise NotImplementedError

    def copy(self, *, restarted: bool = False) -> Place:
        """Copy the files in their current state. `restarted`: the machine was restarted since, which invalidates the
        published end."""
        raise NotImplementedError

    def open(self, config: LogConfig | None = None, *, mode: Any = "w", **settings: Any) -> Log:
        """Open the log; closed at the end of the test if it is still open then."""
        config = LogConfig(durability="os") if config is None else config
        log = Log.open(self.directory(), config.with_(**settings), mode=mode)
        self.logs.append(log)
        return log

    def close(self) -> None:
        """Close all logs, whatever state they are in."""
        for log in self.logs:
            log.close()
        self.logs.clear()

    # --- damage

    def cut(self, name: str, size: int) -> None:
        """Shorten a file."""
        self.write(name, self.files()[name][:size])

    def extend(self, name: str, data: bytes) -> None:
        """Lengthen a file."""
        self.write(name, self.files()[name] + data)

    def flip(self, name: str, position: int, bits: int = 0xFF) -> None:
        """Change bits of one byte."""
        data = bytearray(self.files()[name])
        data[position] ^= bits
        self.write(name, bytes(data))

    # --- looking

    def names(self) -> list[str]:
        """All names but the lock's."""
        return sorted(self.files())

    def bases(self) -> list[int]:
        """The base offsets of the segments."""
        return [int(name[:20]) for name in self.names() if name.endswith(LOG) and len(name) == 24]

    def batches(self, base: int = 0) -> list[BatchHeader]:
        """The headers of all batches of a segment."""
        return scan(self.files()[named(base)])


class FilePlace(Place):
    """In files."""

    kind = "files"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def directory(self) -> Path:
        return self.path

    def files(self) -> dict[str, bytes]:
        if not self.path.exists():
            return {}
        return {each.name: each.read_bytes() for each in self.path.iterdir() if each.is_file() and each.name != "LOCK"}

    def write(self, name: str, data: bytes) -> None:
        self.path.mkdir(exist_ok=True)
        # A new file instead of a change in place: a process may have the old one mapped.
        temporary = self.path.with_name(self.path.name + ".damaged")
        temporary.write_bytes(data)
        temporary.replace(self.path / name)

    def remove(self, name: str) -> None:
        (self.path / name).unlink()

    def copy(self, *, restarted: bool = False) -> FilePlace:
        self.copies += 1
        made = FilePlace(self.path.with_name(f"{self.path.name}-{self.copies}"))
        shutil.copytree(self.path, made.path)
        if restarted:
            (made.path / "visible").unlink(missing_ok=True)
        return made


class MemoryPlace(Place):
    """In memory."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.path = MemoryDirectory()

    def directory(self) -> MemoryDirectory:
        return self.path

    def files(self) -> dict[str, bytes]:
        return {name: self.path.read(name) for name in self.path.names() if name != "LOCK"}

    def write(self, name: str, data: bytes) -> None:
        self.path.replace(name, data)

    def remove(self, name: str) -> None:
        assert self.path.exists(name)
        self.path.remove(name)

    def copy(self, *, restarted: bool = False) -> MemoryPlace:
        made = MemoryPlace()
        for name, data in self.files().items():
            made.write(name, data)
        found = None if restarted else self.path.published("visible")
        if found is not None and (numbers := found.load()) is not None:
            copied = made.path.published("visible", create=True)
            assert copied is not None
            copied.store(*numbers)
        return made


@contextmanager
def quick(monkeypatch: Any) -> Iterator[None]:
    """Make fsync return at once; it still rejects closed descriptors."""
    import os

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", os.fstat)
        patched.setattr(os, "fdatasync", os.fstat)
        yield


# --- records


def values(records: Iterable[Record]) -> list[bytes | None]:
    """Their values."""
    return [record.value for record in records]


def fill(log: Log, count: int, size: int = 10, start: int = 0, **arguments: Any) -> list[bytes]:
    """Append records one by one; their values, all different."""
    made = [b"%d" % (start + i) + b"." * max(0, size - len(b"%d" % (start + i))) for i in range(count)]
    for value in made:
        log.append(value, **arguments)
    return made


def now_ms() -> int:
    """The time as records have it."""
    return time.time_ns() // 1_000_000


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait until a condition in the background becomes true; poll often and give up late."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.002)
    return condition()
