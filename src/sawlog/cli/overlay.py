"""A directory that reads from disk and writes to memory.

`repair --plan` opens a log for writing on top of it. Recovery runs on the real bytes, and its report is the plan;
everything it writes, truncates, renames or deletes stays in memory and is discarded. No lock is taken and no file
changes. `Overlay` implements `Directory` of `sawlog.storage`, except that nothing in it is durable.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from ..errors import ReadBeyondEnd, StorageError
from ..storage import Directory, FileDirectory, Lock, Published, Storage, open_published
from ..storage.interface import Buffer
from ..storage.memory import PublishedMemory


class Overlay:
    """The files of a directory, with changes in memory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._below = FileDirectory(path, create=False)
        self._files: dict[str, ScratchStorage] = {}
        self._gone: set[str] = set()
        self._numbers: PublishedMemory | None = None

    def names(self) -> list[str]:
        return sorted((set(self._below.names()) - self._gone) | self._files.keys())

    def children(self) -> list[str]:
        """Return nothing: a log has no subdirectories."""
        return []

    def child(self, name: str, *, create: bool = False) -> Directory:
        """Raise: there are no subdirectories."""
        raise StorageError(errno.ENOENT, f"{self.path}/{name} is not part of the overlay")

    def remove_child(self, name: str) -> None:
        """Do nothing: there are no subdirectories."""

    def move(self, name: str, target: Directory, new: str) -> None:
        """Raise: files cannot leave an overlay."""
        raise StorageError(errno.EXDEV, f"{self.path}/{name} cannot be moved out of an overlay")

    def link(self, name: str, target: Directory, new: str) -> None:
        """Raise: files cannot leave an overlay."""
        raise StorageError(errno.EXDEV, f"{self.path}/{name} cannot have a name outside of an overlay")

    def stamp(self) -> object:
        """Return None: changes are not counted."""
        return None

    def exists(self, name: str) -> bool:
        return name in self._files or (name not in self._gone and self._below.exists(name))

    def size(self, name: str) -> int:
        return self._file(name).size

    def identity(self, name: str) -> object:
        """Return a different identity for each file that had this name."""
        return id(self._file(name)) if self.exists(name) else None

    def create(self, name: str) -> Storage:
        if self.exists(name):
            raise StorageError(errno.EEXIST, f"{self.path}/{name} already exists")
        return self._put(name, ScratchStorage(name, None, lambda: self.remove(name)))

    def open(self, name: str) -> Storage:
        return self._file(name)

    open_shared = open
    open_sealed = open

    def read(self, name: str) -> bytes:
        found = self._file(name)
        return found.read(0, found.size)

    def replace(self, name: str, data: Buffer, *, durable: bool = True) -> None:
        made = ScratchStorage(name, None, lambda: self.remove(name))
        made.append(data)
        self._put(name, made)

    def published(self, name: str, *, create: bool = False) -> Published | None:
        """Return the value published on disk; new values stay in memory."""
        if self._numbers is None:
            found = open_published(self._below, name)
            self._numbers = PublishedMemory()
            if found is not None and (numbers := found.load()) is not None:
                self._numbers.store(*numbers)
        return self._numbers

    def rename(self, old: str, new: str) -> None:
        moved = self._file(old)
        self.remove(old)
        self._put(new, moved)

    def remove(self, name: str) -> None:
        self._files.pop(name, None)
        self._gone.add(name)

    def sync(self) -> None:
        """Do nothing: nothing here is durable."""

    def lock(self, name: str, *, alone: bool = False) -> Lock:
        """Return a lock that excludes nobody: no other process sees the overlay."""
        return _NoLock(self.read(name).partition(b"\n")[2] if self.exists(name) else b"")

    def dispose(self) -> None:
        """Do nothing: there is nothing to delete."""

    def close(self) -> None:
        self._below.close()

    def _put(self, name: str, made: ScratchStorage) -> ScratchStorage:
        self._gone.discard(name)
        self._files[name] = made
        return made

    def _file(self, name: str) -> ScratchStorage:
        found = self._files.get(name)
        if found is None:
            if name in self._gone:
                raise StorageError(errno.ENOENT, f"{self.path}/{name} does not exist")
            below = self._below.open_shared(name)
            found = self._files[name] = ScratchStorage(name, below, lambda: self.remove(name))
        return found


class ScratchStorage:
    """The first bytes of a file on disk, followed by bytes in memory."""

    views_are_free = False

    def __init__(self, name: str, below: Storage | None, remove: Callable[[], None]) -> None:
        self.name = name
        self._below = below
        self._kept = 0 if below is None else below.size
        self._added = bytearray()
        self._remove = remove

    @property
    def size(self) -> int:
        return self._kept + len(self._added)

    def append(self, data: Buffer) -> int:
        position = self.size
        self._added = self._added + bytes(data)  # a new object, because views of the old one may exist
        return position

    def reserve(self, size_bytes: int) -> None:
        """Do nothing: memory needs no hint."""

    def claim(self, size_bytes: int) -> None:
        """Do nothing: memory needs no hint."""

    def release(self) -> None:
        """Do nothing: memory needs no hint."""

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite in memory, after copying everything from `position` on into memory."""
        rest = bytearray(self.read(position, self.size - position))
        rest[: len(data)] = data
        self.truncate(position)
        self.append(rest)

    def read(self, position: int, size: int) -> bytes:
        return bytes(self.view(position, size))

    def view(self, position: int, size: int) -> memoryview:
        if position < 0 or size < 0 or position + size > self.size:
            raise ReadBeyondEnd(f"{self.name} has {self.size} bytes; cannot read {size} bytes at {position}")
        if self._below is not None and position + size <= self._kept:
            return self._below.view(position, size)
        if position >= self._kept:
            return memoryview(self._added).toreadonly()[position - self._kept : position - self._kept + size]
        assert self._below is not None
        head = self._below.read(position, self._kept - position)
        return memoryview(head + bytes(self._added[: size - len(head)]))

    def truncate(self, size: int) -> None:
        self._added = self._added[: max(size - self._kept, 0)]
        self._kept = min(self._kept, size)

    def sync(self) -> None:
        """Do nothing: nothing here is durable."""

    def forget(self, position: int, size: int) -> None:
        """Do nothing: memory needs no hint."""

    def close(self) -> None:
        """Do nothing: the file can be opened again by its name."""

    def remove(self) -> None:
        self._remove()


class _NoLock:
    """A lock that excludes nobody."""

    held = True
    current = True

    def __init__(self, found: bytes) -> None:
        self.found = found

    def leave(self, note: bytes) -> None:
        """Do nothing: no other process reads the note."""

    def release(self) -> None:
        """Do nothing: nothing is locked."""
