"""Places for the stores of these tests: files or memory, with the same interface."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sawlog import Log, Record
from sawlog.storage import Directory, FileDirectory, MemoryDirectory
from sawlog.store.directory.store import DirectoryStore


class StorePlace:
    """A directory for one store."""

    def __init__(self) -> None:
        self.stores: list[DirectoryStore] = []
        self.logs: list[Log] = []

    def directory(self) -> Any:
        """The argument for `DirectoryStore.open`."""
        raise NotImplementedError

    def raw(self) -> Directory:
        """The directory itself, made if it is missing: to look at files and to damage them."""
        raise NotImplementedError

    def open(self, mode: Any = "w", *, lock_timeout: float = 30.0) -> DirectoryStore:
        """Open the store; closed at the end of the test if it is still open then."""
        store = DirectoryStore.open(self.directory(), mode, maintenance_interval_s=None, lock_timeout=lock_timeout)
        self.stores.append(store)
        return store

    def occupy(self, topic: str, number: int) -> Log:
        """Take the lock of a partition without a store: its holder takes no requests of others."""
        log = Log.open(self.raw().child("topics").child(topic).child(f"partition-{number}"))
        self.logs.append(log)
        return log

    def close(self) -> None:
        """Close all stores, whatever state they are in."""
        for log in self.logs:
            log.close()
        self.logs.clear()
        for store in self.stores:
            store.close()
        self.stores.clear()


class FilePlace(StorePlace):
    """In files."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def directory(self) -> Path:
        return self.path

    def raw(self) -> Directory:
        return FileDirectory(self.path)


class MemoryPlace(StorePlace):
    """In memory."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryDirectory()

    def directory(self) -> MemoryDirectory:
        return self.memory

    def raw(self) -> Directory:
        return self.memory


def copied(directory: MemoryDirectory) -> MemoryDirectory:
    """Copy the files to another place without locks, as after the death of a process."""
    made = MemoryDirectory(directory.path)
    _copy(directory, made)
    return made


def _copy(source: Directory, target: Directory) -> None:
    for name in source.names():
        target.replace(name, source.read(name))
    for name in source.children():
        _copy(source.child(name), target.child(name, create=True))


def tree(directory: Directory, prefix: str = "") -> dict[str, bytes]:
    """All files below a directory by path; a directory itself ends with a slash."""
    found = {prefix + name: directory.read(name) for name in directory.names()}
    for name in directory.children():
        found[f"{prefix}{name}/"] = b""
        child = directory.child(name)
        found |= tree(child, f"{prefix}{name}/")
        child.close()
    return found


def values(records: Iterable[Record]) -> list[bytes | None]:
    """Their values."""
    return [record.value for record in records]
