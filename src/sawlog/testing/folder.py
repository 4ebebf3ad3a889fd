"""Directories of the simulated disk: the names that processes see, the names on the device, and pending changes.

A name change reaches the device atomically; `disk` decides when. Locks are not on the disk, but their notes are.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import DirectoryLocked, StorageError
from ..storage import Directory, Lock, Storage
from ..storage.interface import Buffer, Published
from ..storage.memory import PublishedMemory
from .content import File, Write
from .openfile import Medium, OpenFile, SealedFile

_SIGNATURE = b"this process\n"


class NameChange:
    """A pending name change, which reaches the device completely or not at all."""

    __slots__ = ("number", "parts", "sure")

    def __init__(self, number: int, parts: list[tuple[Folder, str, Node | None]]) -> None:
        self.number = number
        #: (directory, name, new target)
        self.parts = parts
        #: Already made durable by the sync of another directory that it affects.
        self.sure = False

    def apply(self, folder: Folder, names: dict[str, Node], *, in_order: bool = True) -> None:
        """Apply the change to the names of one directory. If earlier changes are missing, a file that gets a name may
        still have another one, which it loses."""
        for where, name, node in self.parts:
            if where is not folder:
                continue
            if node is None:
                names.pop(name, None)
                continue
            if not in_order:
                for other in [other for other, known in names.items() if known is node]:
                    del names[other]
            names[name] = node


class Folder:
    """A directory of the simulated disk: both the `Directory` and its content. There is one object per directory."""

    def __init__(self, disk: Medium, path: str, parent: Folder | None = None) -> None:
        self.path = path
        self.disk = disk
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: list[NameChange] = []
        #: Lock owners by name; the empty name is the whole directory.
        self.locked: dict[str, object] = {}
        #: Numbers that processes publish: not on the device, and lost in a power cut.
        self.numbers: dict[str, PublishedMemory] = {}
        self.parent = parent
        self._changed = 0
        self._doubting = False

    # --- name changes: all go through `_change`

    def _change(self, call: str, name: str, *parts: tuple[Folder, str, Node | None]) -> None:
        disk = self.disk
        with disk.lock:
            disk.step(call, f"{self.path}/{name}")
            change = NameChange(disk.steps, list(parts))
            for folder in {id(folder): folder for folder, _, _ in parts}.values():
                change.apply(folder, folder.entries)
                folder.pending.append(change)
                folder._changed += 1

    def sync(self) -> None:
        """Make the names in this directory durable, as fsync of the directory does."""
        with self.disk.lock:
            self.disk.step("sync", self.path)
            if self._doubting:
                return  # the sync fails: pending changes stay pending
            for change in self.pending:
                change.sure = True
            while self.pending:
                self.pending.pop(0).apply(self, self.durable, in_order=False)

    @contextmanager
    def doubting(self) -> Iterator[None]:
        """Keep name changes pending during a call whose last step, the sync of this directory, fails."""
        self._doubting = True
        try:
            yield
        finally:
            self._doubting = False

    # --- names

    def names(self) -> list[str]:
        """All names of files, sorted."""
        return sorted(name for name, node in self.entries.items() if isinstance(node, File))

    def children(self) -> list[str]:
        """All names of directories, sorted."""
        return sorted(name for name, node in self.entries.items() if isinstance(node, Folder))

    def child(self, name: str, *, create: bool = False) -> Folder:
        """Return a child; if `create`, mkdir it and fsync this directory."""
        with self.disk.lock:
            if create:
                if name not in self.entries:
                    made = Folder(self.disk, f"{self.path}/{name}", self)
                    self._change("mkdir", name, (self, name, made))
                self.sync()
            found = self.entries.get(name)
            if not isinstance(found, Folder):
                code = errno.ENOENT if found is None else errno.ENOTDIR
                raise StorageError(code, f"no such directory: {self.path}/{name}")
            return found

    def remove_child(self, name: str) -> None:
        """rm -r, file by file."""
        with self.disk.lock:
            found = self.entries.get(name)
            if isinstance(found, Folder):
                for each in found.names():
                    found.remove(each)
                for each in found.children():
                    found.remove_child(each)
                self._change("rmdir", name, (self, name, None))

    def move(self, name: str, target: Directory, new: str) -> None:
        """rename between directories."""
        if not isinstance(target, Folder) or target.disk is not self.disk:
            raise StorageError(errno.EXDEV, f"{self.path}/{name} cannot be moved to {target.path}")
        with self.disk.lock:
            node, over = self.entries.get(name), target.entries.get(new)
            if node is None:
                raise StorageError(errno.ENOENT, f"no such file: {self.path}/{name}")
            if isinstance(over, Folder) and (not isinstance(node, Folder) or over.entries):
                raise StorageError(errno.ENOTEMPTY, f"{target.path}/{new} exists")
            call = "rename" if target is self else "move"
            self._change(call, name, (self, name, None), (target, new, node))
            if isinstance(node, Folder):
                node._move_to(target, f"{target.path}/{new}")

    def link(self, name: str, target: Directory, new: str) -> None:
        """A second entry for the same file."""
        if not isinstance(target, Folder) or target.disk is not self.disk:
            raise StorageError(errno.EXDEV, f"{self.path}/{name} cannot have a name in {target.path}")
        with self.disk.lock:
            node = self.entries.get(name)
            if not isinstance(node, File):
                raise StorageError(errno.ENOENT, f"no such file: {self.path}/{name}")
            if new in target.entries:
                raise StorageError(errno.EEXIST, f"{target.path}/{new} exists")
            self._change("link", name, (target, new, node))

    def _move_to(self, parent: Folder, path: str) -> None:
        self.parent, self.path = parent, path
        for name, node in self.entries.items():
            if isinstance(node, Folder):
                node._move_to(self, f"{path}/{name}")

    def rename(self, old: str, new: str) -> None:
        """Atomic within the directory."""
        self.move(old, self, new)

    def remove(self, name: str) -> None:
        """Unlink a file. Open handles keep it; a lock on it is no longer effective."""
        with self.disk.lock:
            if isinstance(self.entries.get(name), File):
                self._change("remove", name, (self, name, None))
                self.locked.pop(name, None)
                self.numbers.pop(name, None)

    def dispose(self) -> None:
        """rmdir, if it is empty; the root stays."""
        with self.disk.lock:
            if not self.entries and self.parent is not None:
                name = self.path.rpartition("/")[2]
                if self.parent.entries.get(name) is self:
                    self.parent._change("rmdir", name, (self.parent, name, None))

    def stamp(self) -> object:
        """Return the number of name changes in this directory."""
        return self._changed

    def close(self) -> None:
        """The disk stays."""

    # --- files

    def find(self, name: str) -> File:
        """The file of that name."""
        found = self.entries.get(name)
        if not isinstance(found, File):
            raise StorageError(errno.ENOENT, f"no such file: {self.path}/{name}")
        return found

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return isinstance(self.entries.get(name), File)

    def size(self, name: str) -> int:
        """Bytes under that name."""
        return self.find(name).size

    def identity(self, name: str) -> object:
        """The file itself."""
        return self.entries.get(name)

    def _make(self, name: str) -> File:
        made = File()
        self._change("create", name, (self, name, made))
        return made

    def create(self, name: str) -> Storage:
        """Create, fsync the file, fsync the directory."""
        with self.disk.lock:
            if name in self.entries:
                raise StorageError(errno.EEXIST, f"{self.path}/{name} exists")
            made = OpenFile(self, name, self._make(name))
            made.sync()
            self.sync()
            return made

    def open(self, name: str) -> Storage:
        """For appending and reading."""
        return OpenFile(self, name, self.find(name))

    def open_shared(self, name: str) -> Storage:
        """For reading while another process appends."""
        return SealedFile(self, name, self.find(name))

    open_sealed = open_shared

    def read(self, name: str) -> bytes:
        """All bytes."""
        found = self.find(name)
        return bytes(memoryview(found.buffer)[: found.size])

    def replace(self, name: str, data: Buffer, *, durable: bool = True) -> None:
        """Write next to it, fsync, rename, fsync the directory."""
        temporary = f"{name}.tmp"
        with self.disk.lock:
            found = self.entries.get(temporary)
            if isinstance(found, File):
                handle = OpenFile(self, temporary, found)
                handle.truncate(0)
            else:
                handle = OpenFile(self, temporary, self._make(temporary))
            try:
                handle.fill(bytes(data))
                if durable:
                    handle.sync()
            except BaseException:
                self.remove(temporary)
                raise
            self.rename(temporary, name)
            if durable:
                self.sync()

    def published(self, name: str, *, create: bool = False) -> Published | None:
        """In memory that the processes of one machine share; creates a file as `FileDirectory` does."""
        if create and name not in self.numbers:
            with self.disk.lock:
                found = self.entries.get(name)
                handle = OpenFile(self, name, found if isinstance(found, File) else self._make(name))
                for position in (64, 0):
                    handle.write_at(position, bytes(64))
                self.numbers[name] = PublishedMemory()
        return self.numbers.get(name)

    def lock(self, name: str, *, alone: bool = True) -> Lock:
        """Take the lock of a name, or of the whole directory."""
        return DeviceLock(self, name, alone=alone)


Node = File | Folder


class DeviceLock:
    """A lock with one owner per name, or with `alone` one per directory. Like flock, it is not on the disk; its note
    is."""

    def __init__(self, folder: Folder, name: str, *, alone: bool) -> None:
        with folder.disk.lock:
            file = folder.entries.get(name)
            if not isinstance(file, File):
                file = folder._make(name)
            self._taken = (name, "") if alone else (name,)
            if any(each in folder.locked for each in self._taken):
                raise DirectoryLocked(folder.path if alone else f"{folder.path}/{name}", "this process")
            self._token = object()
            folder.locked.update(dict.fromkeys(self._taken, self._token))
            self._folder, self._name, self._file = folder, name, file
            self.held = True
            self.found = folder.read(name).partition(b"\n")[2]
            self.leave(b"")

    @property
    def current(self) -> bool:
        """Whether the lock is held and the name still refers to the locked file."""
        return self.held and self._folder.identity(self._name) is self._file

    def leave(self, note: bytes) -> None:
        """Write the note, then truncate the file after it. Never synced."""
        disk, path = self._folder.disk, f"{self._folder.path}/{self._name}"
        signed = _SIGNATURE + note
        with disk.lock:
            if disk.room(len(signed)) < len(signed):
                return
            disk.step("write", path)
            self._file.write(Write(disk.steps, 0, signed))
            if self._file.size != len(signed):
                disk.step("truncate", path)
                self._file.cut(Write(disk.steps, len(signed), None))

    def release(self) -> None:
        """Release the lock."""
        with self._folder.disk.lock:
            if self.held:
                self.held = False
                locked = self._folder.locked
                for name in [each for each in self._taken if locked.get(each) is self._token]:
                    del locked[name]

    def __del__(self) -> None:
        if getattr(self, "held", False):  # as with a lock on a file: unreferenced objects block nobody
            self.release()


def walk(folder: Folder, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Yield everything below a directory by path; the path of a directory ends with a slash."""
    for name, node in sorted(folder.entries.items()):
        if isinstance(node, Folder):
            yield f"{prefix}{name}/", node
            yield from walk(node, f"{prefix}{name}/")
        else:
            yield prefix + name, node


def locate(root: Folder, path: str) -> tuple[Folder, str]:
    *folders, name = path.split("/")
    for each in folders:
        root = root.child(each)
    return root, name
