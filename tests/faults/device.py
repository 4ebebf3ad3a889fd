"""The device below `FaultyStorage`: files, directories, and the counter of changes.

A file has cached bytes, which processes see, bytes on the device, and pending writes. A directory has the same for its
names; a name change reaches the device atomically. `disk` describes the model and decides which pending changes survive
a power cut; nothing here crashes or fails by itself.

Every change goes through `Device.step`: one step for each system call of `FileDirectory` that changes something.
Truncating a file to its current size is not a step. Locks are not on the disk, but their notes are.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sawlog.errors import DirectoryLocked, ReadBeyondEnd, StorageError
from sawlog.storage import Directory, Lock, Storage
from sawlog.storage.interface import Buffer, Published
from sawlog.storage.mapped import ReadOnly
from sawlog.storage.memory import PublishedMemory
from sawlog.storage.system import storage_error

_LEAST_BUFFER_BYTES = 1024
_SIGNATURE = b"this process\n"


@dataclass(frozen=True, slots=True)
class Write:
    """A pending write. Without data it is a truncation: the file ends at `position`."""

    number: int
    position: int
    data: bytes | None
    #: Destination of the bytes on the device if a write is misdirected.
    astray: tuple[File, int] | None = None

    def apply(self, content: bytearray, start: int = 0, end: int = 1 << 62) -> None:
        """Apply the part of this write between two positions to `content`."""
        if self.data is None:
            if len(content) > self.position:
                content[max(self.position, start) : min(len(content), end)] = bytes(
                    max(0, min(len(content), end) - max(self.position, start))
                )
            return
        first, last = max(self.position, start), min(self.position + len(self.data), end)
        if first < last:
            if len(content) < last:
                content.extend(bytes(last - len(content)))
            content[first:last] = self.data[first - self.position : last - self.position]

    def size_after(self, size: int) -> int:
        """Return the size of the file after this write."""
        return self.position if self.data is None else max(size, self.position + len(self.data))


class File:
    """The contents of a file: cached bytes, bytes on the device, and pending writes."""

    __slots__ = ("buffer", "differs", "durable", "pending", "size")

    def __init__(self, content: Buffer = b"") -> None:
        #: Replaced when it grows or is truncated, so that views stay valid (as in `MemoryStorage`).
        self.buffer = bytearray(content)
        self.size = len(content)
        self.durable = bytearray(content)
        self.pending: list[Write] = []
        #: Set if the cache and the device differ for good: a write was lost or misdirected.
        self.differs = False

    def write(self, write: Write) -> None:
        assert write.data is not None
        end = write.position + len(write.data)
        if end > len(self.buffer):
            grown = bytearray(max(end, 2 * len(self.buffer), _LEAST_BUFFER_BYTES))
            grown[: self.size] = memoryview(self.buffer)[: self.size]
            self.buffer = grown
        self.buffer[write.position : end] = write.data
        self.size = max(self.size, end)
        self.pending.append(write)

    def cut(self, write: Write) -> None:
        kept = bytearray(max(write.position, _LEAST_BUFFER_BYTES))
        kept[: min(write.position, self.size)] = memoryview(self.buffer)[: min(write.position, self.size)]
        self.buffer, self.size = kept, write.position
        self.pending.append(write)

    def settle(self) -> None:
        """Apply all pending writes to the device, as fsync does."""
        for write in self.pending:
            if write.astray is not None:
                other, position = write.astray
                Write(write.number, position, write.data).apply(other.durable)
                self.differs = other.differs = True
                continue
            write.apply(self.durable)
            set_size(self.durable, write.size_after(len(self.durable)))
        self.pending.clear()

    def lose(self) -> None:
        """Discard all pending writes, as a failed fsync does."""
        self.differs = self.differs or bool(self.pending)
        self.pending.clear()


def set_size(content: bytearray, size: int) -> None:
    if len(content) > size:
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class OpenFile:
    """An open file."""

    views_are_free = True

    __slots__ = ("_file", "_folder", "name")

    def __init__(self, folder: Folder, name: str, file: File) -> None:
        self.name = name
        self._folder = folder
        self._file = file

    @property
    def _path(self) -> str:
        return f"{self._folder.path}/{self.name}"

    @property
    def size(self) -> int:
        return self._file.size

    def refresh(self) -> None:
        """Nothing to learn: all users of a file share its size."""

    def append(self, data: Buffer) -> int:
        """Write at the end. If a full disk accepts only a part, roll it back."""
        file = self._file
        with self._folder.disk.lock:
            position = file.size
            try:
                self.fill(bytes(data))
            except StorageError:
                if file.size > position:
                    self.truncate(position)
                raise
            return position

    def fill(self, data: bytes) -> None:
        """Write at the end as many bytes as the disk accepts."""
        disk, file = self._folder.disk, self._file
        with disk.lock:
            room = disk.room(len(data))
            if data[:room]:
                self._write(file.size, data[:room])
            if room < len(data):
                raise storage_error(OSError(errno.ENOSPC, "no space left on device"), "writing", self._path)

    def _write(self, position: int, data: bytes) -> None:
        disk = self._folder.disk
        disk.step("write", self._path)
        self._file.write(Write(disk.steps, position, data, disk.misdirected_to(self._path, position)))

    def write_at(self, position: int, data: Buffer) -> None:
        with self._folder.disk.lock:
            self._write(position, bytes(data))

    def read(self, position: int, size: int) -> bytes:
        return bytes(self.view(position, size))

    def view(self, position: int, size: int) -> memoryview:
        file = self._file
        if position + size > file.size:
            raise ReadBeyondEnd(errno.ENODATA, f"{self._path} has {file.size} bytes, not {position + size}")
        return memoryview(file.buffer).toreadonly()[position : position + size]

    def truncate(self, size: int) -> None:
        disk = self._folder.disk
        with disk.lock:
            disk.step("truncate", self._path)
            self._file.cut(Write(disk.steps, size, None))

    def sync(self) -> None:
        """fdatasync: content and size; not the name."""
        disk = self._folder.disk
        with disk.lock:
            disk.step("sync", self._path)
            self._file.settle()

    def sync_failed(self) -> None:
        """Drop the pending changes; no later call reports the loss."""
        with self._folder.disk.lock:
            self._file.lose()

    def reserve(self, size_bytes: int) -> None:
        """A hint that has no effect here: neither content nor size depends on it."""

    def claim(self, size_bytes: int) -> None:
        """Check the free space. Nothing is reserved, so others may still use it."""
        with self._folder.disk.lock:
            if self._folder.disk.room(size_bytes) < size_bytes:
                raise storage_error(OSError(errno.ENOSPC, "no space left on device"), "reserving room in", self._path)

    def release(self) -> None:
        """Nothing is reserved."""

    def forget(self, position: int, size: int) -> None:
        """Nothing to release."""

    def close(self) -> None:
        """The disk keeps the bytes."""

    def remove(self) -> None:
        self._folder.remove(self.name)


class SealedFile(ReadOnly, OpenFile):
    """An open file that is only read."""

    __slots__ = ()


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

    def __init__(self, disk: Device, path: str, parent: Folder | None = None) -> None:
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
        return sorted(name for name, node in self.entries.items() if isinstance(node, File))

    def children(self) -> list[str]:
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
        found = self.entries.get(name)
        if not isinstance(found, File):
            raise StorageError(errno.ENOENT, f"no such file: {self.path}/{name}")
        return found

    def exists(self, name: str) -> bool:
        return isinstance(self.entries.get(name), File)

    def size(self, name: str) -> int:
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
        return OpenFile(self, name, self.find(name))

    def open_shared(self, name: str) -> Storage:
        return SealedFile(self, name, self.find(name))

    open_sealed = open_shared

    def read(self, name: str) -> bytes:
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
        """True if the lock is held and the name still refers to the locked file."""
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


def copy_numbers(numbers: PublishedMemory, to: Published | None) -> None:
    """Publish the same numbers and words."""
    assert to is not None
    assert to.words is not None
    if (found := numbers.load()) is not None:
        to.store(*found)
    to.words[:] = numbers.words


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


@dataclass(frozen=True, slots=True)
class Step:
    """A disk change that is about to happen: a system call of `FileDirectory` that writes."""

    #: Counted from 1.
    number: int
    #: "create", "write", "truncate", "sync", "rename", "remove", "mkdir", "rmdir" or "move"
    call: str
    #: The file or directory.
    path: str

    def __str__(self) -> str:
        return f"{self.number} {self.call} {self.path}"


@dataclass(frozen=True, slots=True)
class Misdirection:
    """A pending misdirection: the file whose next write goes elsewhere, and the target."""

    names: str
    into: File | None
    shift_bytes: int


class Device:
    """State that all directories of one disk share."""

    def __init__(self, capacity_bytes: int | None) -> None:
        self.lock = threading.RLock()
        self.steps = 0
        self.capacity_bytes = capacity_bytes
        self.watch: Callable[[Step], None] | None = None
        self.misdirection: Misdirection | None = None
        self.root = Folder(self, "disk:")

    def step(self, call: str, path: str) -> None:
        """Count a change that is about to happen, and call `watch`."""
        self.steps += 1
        if self.watch is not None:
            self.watch(Step(self.steps, call, path))

    def room(self, wanted: int) -> int:
        """Return how many of these bytes the disk accepts."""
        if self.capacity_bytes is None:
            return wanted
        used = sum(node.size for _, node in walk(self.root) if isinstance(node, File))
        return max(0, min(wanted, self.capacity_bytes - used))

    def misdirected_to(self, path: str, position: int) -> tuple[File, int] | None:
        """Return the target of a misdirected write, if it is one."""
        found = self.misdirection
        if found is None or not fnmatchcase(path, f"*/{found.names}"):
            return None
        self.misdirection = None
        folder, name = locate(self.root, path.removeprefix(f"{self.root.path}/"))
        target = folder.find(name) if found.into is None else found.into
        return target, max(0, position + found.shift_bytes)
