"""`MemoryStorage` and `MemoryDirectory`: for tests, temporary logs, and as the simplest example of the interface.

A log that is closed and reopened on the same `MemoryDirectory` object finds its data.
"""

from __future__ import annotations

import errno
import threading

from ..errors import DirectoryLocked, ReadBeyondEnd, StorageError
from .forking import forkable
from .interface import Buffer, Directory, Lock, Published, Storage


class MemoryStorage:
    """Bytes in a buffer that is replaced, not resized, when it grows, so that views of the old one stay valid."""

    views_are_free = True

    def __init__(self, directory: MemoryDirectory, name: str) -> None:
        self.name = name
        self._directory = directory
        self._buffer = bytearray(4096)
        self._size = 0

    def _second(self, directory: MemoryDirectory, name: str) -> MemoryStorage:
        """Return a storage that shares these bytes under another name."""
        made = MemoryStorage(directory, name)
        made._buffer, made._size = self._buffer, self._size
        return made

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._size

    def refresh(self) -> None:
        """No-op: all users of a name share one object."""

    def append(self, data: Buffer) -> int:
        """Copy the data to the end."""
        position, end = self._size, self._size + len(data)
        if end > len(self._buffer):
            grown = bytearray(max(end, 2 * len(self._buffer)))
            grown[:position] = memoryview(self._buffer)[:position]
            self._buffer = grown
        self._buffer[position:end] = data
        self._size = end
        return position

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite bytes."""
        self._buffer[position : position + len(data)] = data

    def read(self, position: int, size: int) -> bytes:
        """Return a copy."""
        return bytes(self.view(position, size))

    def view(self, position: int, size: int) -> memoryview:
        """Return a read-only slice of the buffer."""
        if position + size > self._size:
            raise ReadBeyondEnd(errno.ENODATA, f"{self.name} has {self._size} bytes, not {position + size}")
        return memoryview(self._buffer).toreadonly()[position : position + size]

    def truncate(self, size: int) -> None:
        """Copy the remaining bytes to a new buffer, because views of the old one must not see later appends."""
        kept = bytearray(max(size, 4096))
        kept[:size] = memoryview(self._buffer)[:size]
        self._buffer, self._size = kept, size

    def sync(self) -> None:
        """No-op."""

    def reserve(self, size_bytes: int) -> None:
        """No-op."""

    def claim(self, size_bytes: int) -> None:
        """No-op."""

    def release(self) -> None:
        """No-op."""

    def forget(self, position: int, size: int) -> None:
        """No-op."""

    def close(self) -> None:
        """No-op: the directory keeps the bytes."""

    def remove(self) -> None:
        """Delete the name."""
        self._directory.remove(self.name)


class PublishedMemory:
    """Published numbers, shared by all users of the directory."""

    def __init__(self) -> None:
        self._numbers: tuple[int, int] | None = None
        self.words = memoryview(bytearray(64)).cast("I")
        self._exclusive = forkable(threading.Lock())

    def exclusive(self, timeout_s: float) -> threading.Lock:
        """See `Published.exclusive`."""
        return self._exclusive

    def store(self, first: int, second: int) -> None:
        self._numbers = first, second

    def load(self) -> tuple[int, int] | None:
        return self._numbers

    def wait_point(self, known: tuple[int, int] | None) -> None:
        """Return None: there is no other process to wait for."""

    def wake(self) -> None:
        """No-op: no process sleeps."""

    def close(self, *, last: bool = True) -> None:
        """No-op: the directory keeps the numbers."""


class MemoryLock:
    """A lock with one holder per name, and with `alone` one per directory. A file with the lock's name has the note."""

    def __init__(self, directory: MemoryDirectory, name: str, *, alone: bool) -> None:
        self._taken = {name, ""} if alone else {name}  # no file has the empty name: it represents the directory
        if self._taken & directory._locked:
            raise DirectoryLocked(directory.path, "this process")
        directory._locked |= self._taken
        self._directory, self._name = directory, name
        self.held = True
        self.found = directory.read(name).partition(b"\n")[2] if directory.exists(name) else b""
        if not directory.exists(name):
            directory.create(name)
        self._file = directory.identity(name)
        self.leave(b"")

    @property
    def current(self) -> bool:
        """True while the lock is held and the name still refers to the locked file."""
        return self.held and self._directory.identity(self._name) is self._file

    def leave(self, note: bytes) -> None:
        if isinstance(self._file, MemoryStorage):
            self._file.truncate(0)
            self._file.append(b"this process\n" + note)

    def release(self) -> None:
        """Release the lock."""
        if self.held:
            self.held = False
            if self._directory.identity(self._name) in (self._file, None):
                self._directory._locked -= self._taken


class MemoryDirectory:
    """Storages by name."""

    def __init__(self, path: str = "memory:") -> None:
        self.path = path
        self._files: dict[str, MemoryStorage] = {}
        self._children: dict[str, MemoryDirectory] = {}
        self._locked: set[str] = set()
        self._published: dict[str, PublishedMemory] = {}

    def names(self) -> list[str]:
        """Return the names of all storages, sorted."""
        return sorted(self._files)

    def children(self) -> list[str]:
        """Return the names of all subdirectories, sorted."""
        return sorted(self._children)

    def child(self, name: str, *, create: bool = False) -> MemoryDirectory:
        """Return the subdirectory's object."""
        if name not in self._children:
            if not create:
                raise StorageError(errno.ENOENT, f"no such directory: {self.path}/{name}")
            self._children[name] = MemoryDirectory(f"{self.path}/{name}")
        return self._children[name]

    def remove_child(self, name: str) -> None:
        self._children.pop(name, None)

    def move(self, name: str, target: Directory, new: str) -> None:
        if not isinstance(target, MemoryDirectory):
            raise StorageError(errno.EXDEV, f"{self.path}/{name} cannot be moved to {target.path}")
        if name in self._children:
            if new in target._children:
                raise StorageError(errno.ENOTEMPTY, f"{target.path}/{new} exists")
            moved = target._children[new] = self._children.pop(name)
            moved._move_to(f"{target.path}/{new}")
            return
        found = self._find(name)
        del self._files[name]
        found.name, found._directory = new, target
        target._files[new] = found

    def link(self, name: str, target: Directory, new: str) -> None:
        """Create another object with the same bytes."""
        if not isinstance(target, MemoryDirectory):
            raise StorageError(errno.EXDEV, f"{self.path}/{name} cannot have a name in {target.path}")
        if target.exists(new):
            raise StorageError(errno.EEXIST, f"{target.path}/{new} exists")
        target._files[new] = self._find(name)._second(target, new)

    def stamp(self) -> object:
        """Return None: changes are not tracked."""
        return None

    def _move_to(self, path: str) -> None:
        self.path = path
        for name, child in self._children.items():
            child._move_to(f"{path}/{name}")

    def exists(self, name: str) -> bool:
        """Return whether a storage of that name exists."""
        return name in self._files

    def _find(self, name: str) -> MemoryStorage:
        if name not in self._files:
            raise StorageError(errno.ENOENT, f"no such file: {self.path}/{name}")
        return self._files[name]

    def size(self, name: str) -> int:
        """Return the size of a storage in bytes."""
        return self._find(name).size

    def identity(self, name: str) -> object:
        """Return the storage object itself."""
        return self._files.get(name)

    def create(self, name: str) -> Storage:
        """Create an empty storage."""
        if name in self._files:
            raise StorageError(errno.EEXIST, f"{self.path}/{name} exists")
        self._files[name] = MemoryStorage(self, name)
        return self._files[name]

    def open(self, name: str) -> Storage:
        """Return the storage's object."""
        return self._find(name)

    open_shared = open
    open_sealed = open

    def read(self, name: str) -> bytes:
        """Return all bytes."""
        found = self._find(name)
        return found.read(0, found.size)

    def replace(self, name: str, data: Buffer, *, durable: bool = True) -> None:
        """Put a new object under the name."""
        made = MemoryStorage(self, name)
        made.append(data)
        self._files[name] = made

    def published(self, name: str, *, create: bool = False) -> Published | None:
        """Return the object of that name; an empty file represents it in `names`."""
        if create:
            if name not in self._files:
                self.create(name)
            return self._published.setdefault(name, PublishedMemory())
        return self._published.get(name)

    def rename(self, old: str, new: str) -> None:
        self.move(old, self, new)

    def remove(self, name: str) -> None:
        """Delete the name. Users of the object keep it; a lock on the name is no longer effective."""
        self._files.pop(name, None)
        self._locked.discard(name)
        self._published.pop(name, None)

    def sync(self) -> None:
        """No-op."""

    def lock(self, name: str, *, alone: bool = True) -> Lock:
        return MemoryLock(self, name, alone=alone)

    def dispose(self) -> None:
        """No-op."""

    def close(self) -> None:
        """No-op: the bytes are kept for the next open."""
