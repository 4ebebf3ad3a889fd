"""Storages in memory, for tests, for scratch logs, and as the plainest example of the interface.

A `MemoryDirectory` lives as long as it is referenced: a log closed and opened again on the same one finds its data.
"""

from __future__ import annotations

import errno

from ..errors import DirectoryLocked, ReadBeyondEnd, StorageError
from .interface import Buffer, Lock, Storage


class MemoryStorage:
    """Bytes in a buffer that is replaced, not resized, when it grows: views of the old one stay valid."""

    def __init__(self, directory: MemoryDirectory, name: str) -> None:
        self.name = name
        self._directory = directory
        self._buffer = bytearray(4096)
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._size

    def append(self, data: Buffer) -> int:
        """Copy to the end."""
        position, end = self._size, self._size + len(data)
        if end > len(self._buffer):
            grown = bytearray(max(end, 2 * len(self._buffer)))
            grown[:position] = memoryview(self._buffer)[:position]
            self._buffer = grown
        self._buffer[position:end] = data
        self._size = end
        return position

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite."""
        self._buffer[position : position + len(data)] = data

    def read(self, position: int, size: int) -> bytes:
        """A copy."""
        return bytes(self.view(position, size))

    def view(self, position: int, size: int) -> memoryview:
        """A part of the buffer."""
        if position + size > self._size:
            raise ReadBeyondEnd(errno.ENODATA, f"{self.name} has {self._size} bytes, not {position + size}")
        return memoryview(self._buffer).toreadonly()[position : position + size]

    def truncate(self, size: int) -> None:
        """Keep the head in a buffer of its own: views of the old one must not see what is appended next."""
        kept = bytearray(max(size, 4096))
        kept[:size] = memoryview(self._buffer)[:size]
        self._buffer, self._size = kept, size

    def sync(self) -> None:
        """Memory is as durable as it gets."""

    def reserve(self, size_bytes: int) -> None:
        """Memory is at hand when it is needed."""

    def release(self) -> None:
        """Nothing is reserved."""

    def forget(self, position: int, size: int) -> None:
        """Nothing to let go of."""

    def close(self) -> None:
        """The directory keeps the bytes."""

    def remove(self) -> None:
        """Delete the name."""
        self._directory.remove(self.name)


class MemoryLock:
    """One holder per name and directory."""

    def __init__(self, held: set[str], name: str, path: str) -> None:
        if name in held:
            raise DirectoryLocked(path, "this process")
        held.add(name)
        self._held, self._name = held, name
        self.held = True

    def release(self) -> None:
        """Let the next one in."""
        if self.held:
            self._held.discard(self._name)
            self.held = False


class MemoryDirectory:
    """Names and their bytes."""

    def __init__(self, path: str = "memory:") -> None:
        self.path = path
        self._files: dict[str, MemoryStorage] = {}
        self._locks: set[str] = set()

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._files)

    def exists(self, name: str) -> bool:
        """Whether there is such a name."""
        return name in self._files

    def _find(self, name: str) -> MemoryStorage:
        if name not in self._files:
            raise StorageError(errno.ENOENT, f"no such file: {self.path}/{name}")
        return self._files[name]

    def size(self, name: str) -> int:
        """Bytes under that name."""
        return self._find(name).size

    def identity(self, name: str) -> object:
        """The storage object itself."""
        return self._files.get(name)

    def create(self, name: str) -> Storage:
        """A new, empty one."""
        if name in self._files:
            raise StorageError(errno.EEXIST, f"{self.path}/{name} exists")
        self._files[name] = MemoryStorage(self, name)
        return self._files[name]

    def open(self, name: str) -> Storage:
        """The one and only object of that name."""
        return self._find(name)

    open_shared = open
    open_sealed = open

    def read(self, name: str) -> bytes:
        """All bytes."""
        found = self._find(name)
        return found.read(0, found.size)

    def replace(self, name: str, data: Buffer) -> None:
        """A new object under the name."""
        made = MemoryStorage(self, name)
        made.append(data)
        self._files[name] = made

    def rename(self, old: str, new: str) -> None:
        """Move the object."""
        found = self._find(old)
        del self._files[old]
        found.name = new
        self._files[new] = found

    def remove(self, name: str) -> None:
        """Forget the name; whoever holds the object keeps it."""
        self._files.pop(name, None)

    def sync(self) -> None:
        """Nothing to do."""

    def lock(self, name: str) -> Lock:
        """One holder."""
        return MemoryLock(self._locks, name, self.path)

    def dispose(self) -> None:
        """Nothing to delete beyond the names."""

    def close(self) -> None:
        """The bytes stay for the next open."""
