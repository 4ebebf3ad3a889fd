"""Open files of the simulated disk. Every change is a step of the disk."""

from __future__ import annotations

import errno
import threading
from typing import Protocol

from ..errors import ReadBeyondEnd, StorageError
from ..storage.interface import Buffer
from ..storage.mapped import ReadOnly
from ..storage.system import storage_error
from .content import File, Write


class Medium(Protocol):
    """The part of the disk's interface that open files and directories use."""

    #: Held while anything changes.
    lock: threading.RLock
    #: Number of changes so far.
    steps: int

    def step(self, call: str, path: str) -> None:
        """Called before each change."""

    def room(self, wanted: int) -> int:
        """Return how many of these bytes the disk accepts."""

    def misdirected_to(self, path: str, position: int) -> tuple[File, int] | None:
        """Return the target of a misdirected write, if it is one."""


class Home(Protocol):
    """The part of a directory's interface that an open file uses. The path changes if the directory moves."""

    path: str
    disk: Medium

    def remove(self, name: str) -> None:
        """Unlink."""


class OpenFile:
    """An open file."""

    views_are_free = True

    __slots__ = ("_file", "_folder", "name")

    def __init__(self, folder: Home, name: str, file: File) -> None:
        self.name = name
        self._folder = folder
        self._file = file

    @property
    def _path(self) -> str:
        return f"{self._folder.path}/{self.name}"

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._file.size

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
        """Overwrite."""
        with self._folder.disk.lock:
            self._write(position, bytes(data))

    def read(self, position: int, size: int) -> bytes:
        """A copy."""
        return bytes(self.view(position, size))

    def view(self, position: int, size: int) -> memoryview:
        """A part of the buffer."""
        file = self._file
        if position + size > file.size:
            raise ReadBeyondEnd(errno.ENODATA, f"{self._path} has {file.size} bytes, not {position + size}")
        return memoryview(file.buffer).toreadonly()[position : position + size]

    def truncate(self, size: int) -> None:
        """Cut."""
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
        """Delete the name."""
        self._folder.remove(self.name)


class SealedFile(ReadOnly, OpenFile):
    """An open file that is only read."""

    __slots__ = ()
