"""A directory that is read from disk and written to memory: what opening a log would do, without doing it.

`repair --plan` opens a log for writing on top of this. Recovery runs as it would, on the real bytes, and its report
is the plan; whatever it writes, cuts, renames or deletes happens in memory and is forgotten. No lock is taken and no
file is touched. It is a `Directory` as `sawlog.storage` promises one, except that nothing in it is durable.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from ..errors import ReadBeyondEnd, StorageError
from ..storage import Directory, FileDirectory, Lock, Published, Storage, open_published
from ..storage.interface import Buffer
from ..storage.memory import PublishedMemory


class Overlay:
    """The files of a directory, with changes that only we see."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._below = FileDirectory(path, create=False)
        self._files: dict[str, ScratchStorage] = {}
        self._gone: set[str] = set()
        self._numbers: PublishedMemory | None = None

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted((set(self._below.names()) - self._gone) | self._files.keys())

    def children(self) -> list[str]:
        """A log has no directories below it."""
        return []

    def child(self, name: str, *, create: bool = False) -> Directory:
        """There is none."""
        raise StorageError(errno.ENOENT, f"{self.path}/{name} is not looked at here")

    def remove_child(self, name: str) -> None:
        """There is none."""

    def move(self, name: str, target: Directory, new: str) -> None:
        """Nothing leaves this directory."""
        raise StorageError(errno.EXDEV, f"{self.path}/{name} is only planned with, not moved")

    def stamp(self) -> object:
        """Nobody counts the changes."""
        return None

    def exists(self, name: str) -> bool:
        """Whether there is such a name."""
        return name in self._files or (name not in self._gone and self._below.exists(name))

    def size(self, name: str) -> int:
        """Bytes under that name."""
        return self._file(name).size

    def identity(self, name: str) -> object:
        """Another one for each file that had this name."""
        return id(self._file(name)) if self.exists(name) else None

    def create(self, name: str) -> Storage:
        """A new, empty storage in memory."""
        if self.exists(name):
            raise StorageError(errno.EEXIST, f"{self.path}/{name} exists")
        return self._put(name, ScratchStorage(name, None, lambda: self.remove(name)))

    def open(self, name: str) -> Storage:
        """What is under that name; changes stay in memory."""
        return self._file(name)

    open_shared = open
    open_sealed = open

    def read(self, name: str) -> bytes:
        """All bytes of a file."""
        found = self._file(name)
        return found.read(0, found.size)

    def replace(self, name: str, data: Buffer, *, durable: bool = True) -> None:
        """New content, in memory."""
        made = ScratchStorage(name, None, lambda: self.remove(name))
        made.append(data)
        self._put(name, made)

    def published(self, name: str, *, create: bool = False) -> Published | None:
        """As it was published below; what is published here, nobody sees."""
        if self._numbers is None:
            found = open_published(self._below, name)
            self._numbers = PublishedMemory()
            if found is not None and (numbers := found.load()) is not None:
                self._numbers.store(*numbers)
        return self._numbers

    def rename(self, old: str, new: str) -> None:
        """The file gets the other name, in memory."""
        moved = self._file(old)
        self.remove(old)
        self._put(new, moved)

    def remove(self, name: str) -> None:
        """The name is gone, for us."""
        self._files.pop(name, None)
        self._gone.add(name)

    def sync(self) -> None:
        """Nothing is durable here."""

    def lock(self, name: str, *, alone: bool = False) -> Lock:
        """Nobody else sees this, so nobody has to be kept out."""
        return _NoLock()

    def dispose(self) -> None:
        """There is nothing to delete."""

    def close(self) -> None:
        """Give up the handle."""
        self._below.close()

    def _put(self, name: str, made: ScratchStorage) -> ScratchStorage:
        self._gone.discard(name)
        self._files[name] = made
        return made

    def _file(self, name: str) -> ScratchStorage:
        found = self._files.get(name)
        if found is None:
            if name in self._gone:
                raise StorageError(errno.ENOENT, f"{self.path}/{name} is not there")
            below = self._below.open_shared(name)
            found = self._files[name] = ScratchStorage(name, below, lambda: self.remove(name))
        return found


class ScratchStorage:
    """Bytes of a file as far as they are wanted, then bytes in memory."""

    def __init__(self, name: str, below: Storage | None, remove: Callable[[], None]) -> None:
        self.name = name
        self._below = below
        self._kept = 0 if below is None else below.size
        self._added = bytearray()
        self._remove = remove

    @property
    def size(self) -> int:
        """Bytes, kept and added."""
        return self._kept + len(self._added)

    def append(self, data: Buffer) -> int:
        """Add bytes in memory."""
        position = self.size
        self._added = self._added + bytes(data)  # anew, because views of the old ones may be held
        return position

    def reserve(self, size_bytes: int) -> None:
        """Memory needs no hint."""

    def claim(self, size_bytes: int) -> None:
        """Memory needs no hint."""

    def release(self) -> None:
        """Memory needs no hint."""

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite, in memory: everything from there on is taken into memory first."""
        rest = bytearray(self.read(position, self.size - position))
        rest[: len(data)] = data
        self.truncate(position)
        self.append(rest)

    def read(self, position: int, size: int) -> bytes:
        """A copy of exactly these bytes."""
        return bytes(self.view(position, size))

    def view(self, position: int, size: int) -> memoryview:
        """Exactly these bytes."""
        if position < 0 or size < 0 or position + size > self.size:
            raise ReadBeyondEnd(f"{self.name} has {self.size} bytes; {size} at {position} are not all there")
        if self._below is not None and position + size <= self._kept:
            return self._below.view(position, size)
        if position >= self._kept:
            return memoryview(self._added).toreadonly()[position - self._kept : position - self._kept + size]
        assert self._below is not None
        head = self._below.read(position, self._kept - position)
        return memoryview(head + bytes(self._added[: size - len(head)]))

    def truncate(self, size: int) -> None:
        """Forget everything from `size` on."""
        self._added = self._added[: max(size - self._kept, 0)]
        self._kept = min(self._kept, size)

    def sync(self) -> None:
        """Nothing is durable here."""

    def forget(self, position: int, size: int) -> None:
        """Memory needs no hint."""

    def close(self) -> None:
        """It stays: it may be opened again by its name."""

    def remove(self) -> None:
        """Gone, for us."""
        self._remove()


class _NoLock:
    """A lock that keeps nobody out."""

    held = True
    current = True
    found = b""

    def leave(self, note: bytes) -> None:
        """Nobody reads it."""

    def release(self) -> None:
        """Nothing to let go of."""
