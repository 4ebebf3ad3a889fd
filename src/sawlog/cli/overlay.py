"""A directory that reads from disk and writes to memory.

`repair --plan` opens a log for writing on top of it. Recovery runs on the real bytes, and its report is the plan;
everything it writes, truncates, renames or deletes stays in memory and is discarded. No lock is taken on disk and no
file changes.
"""

from __future__ import annotations

import errno

from ..errors import ReadBeyondEnd, StorageError
from ..storage import Directory, FileDirectory, Published, Storage, open_published
from ..storage.interface import Buffer
from ..storage.memory import MemoryDirectory, MemoryStorage, PublishedMemory


class Overlay(MemoryDirectory):
    """The files of a directory, with changes in memory."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._below = FileDirectory(path, create=False)
        self._gone: set[str] = set()

    def names(self) -> list[str]:
        return sorted((set(self._below.names()) - self._gone) | self._files.keys())

    def exists(self, name: str) -> bool:
        return name in self._files or (name not in self._gone and self._below.exists(name))

    def _find(self, name: str) -> MemoryStorage:
        if name not in self._files and name not in self._gone:
            self._files[name] = ScratchStorage(self, name, self._below.open_shared(name))
        return super()._find(name)

    def identity(self, name: str) -> object:
        return self._find(name) if self.exists(name) else None

    def create(self, name: str) -> Storage:
        if self.exists(name):
            raise StorageError(errno.EEXIST, f"{self.path}/{name} already exists")
        return super().create(name)

    def move(self, name: str, target: Directory, new: str) -> None:
        super().move(name, target, new)
        self._gone.add(name)

    def remove(self, name: str) -> None:
        super().remove(name)
        self._gone.add(name)

    def published(self, name: str, *, create: bool = False) -> Published | None:
        """Return the value published on disk; new values stay in memory."""
        if name not in self._published:
            made = self._published[name] = PublishedMemory()
            found = open_published(self._below, name)
            if found is not None and (numbers := found.load()) is not None:
                made.store(*numbers)
        return self._published[name]

    def close(self) -> None:
        self._below.close()


class ScratchStorage(MemoryStorage):
    """The first bytes of a file on disk, followed by bytes in memory."""

    views_are_free = False

    def __init__(self, directory: Overlay, name: str, below: Storage) -> None:
        super().__init__(directory, name)
        self._below = below
        self._kept = below.size

    def _second(self, directory: MemoryDirectory, name: str) -> MemoryStorage:
        raise StorageError(errno.EXDEV, f"{self.name} cannot have a second name in an overlay")

    @property
    def size(self) -> int:
        return self._kept + self._size

    def append(self, data: Buffer) -> int:
        return self._kept + super().append(data)

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite in memory, after copying everything from `position` on into memory."""
        rest = bytearray(self.read(position, self.size - position))
        rest[: len(data)] = data
        self.truncate(position)
        self.append(rest)

    def view(self, position: int, size: int) -> memoryview:
        if position < 0 or size < 0 or position + size > self.size:
            raise ReadBeyondEnd(f"{self.name} has {self.size} bytes; cannot read {size} bytes at {position}")
        if position >= self._kept:
            return super().view(position - self._kept, size)
        if position + size <= self._kept:
            return self._below.view(position, size)
        head = self._below.read(position, self._kept - position)
        return memoryview(head + bytes(super().view(0, size - len(head))))

    def truncate(self, size: int) -> None:
        super().truncate(max(size - self._kept, 0))
        self._kept = min(self._kept, size)
