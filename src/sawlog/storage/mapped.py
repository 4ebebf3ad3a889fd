"""`MappedStorage`: an immutable file, mapped as a whole.

All processes that map it share the same memory. Such a file is replaced by rename or unlinked, never truncated or
edited, so a mapping cannot lose its bytes (which would kill the process with SIGBUS).
"""

from __future__ import annotations

import errno
import io
import mmap
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from ..batch import kernel
from ..errors import ReadBeyondEnd
from .interface import Buffer

if TYPE_CHECKING:
    from .interface import Directory


def copied_bytes(buffers: Iterable[Buffer]) -> int:
    """Return how many bytes of these buffers are this process's own memory rather than a mapped file."""
    return sum(len(each) for each in buffers if not (isinstance(each, memoryview) and isinstance(each.obj, mmap.mmap)))


class ReadOnly:
    """Mixin of a read-only storage: the methods that would change it raise."""

    __slots__ = ()
    name: str

    def _refuse(self) -> NoReturn:
        raise io.UnsupportedOperation(f"{self.name} is sealed")

    def refresh(self) -> None:
        """No-op: the size does not change."""

    def append(self, data: Buffer) -> int:
        self._refuse()

    def write_at(self, position: int, data: Buffer) -> None:
        self._refuse()

    def truncate(self, size: int) -> None:
        self._refuse()

    def sync(self) -> None:
        """No-op: nothing was written."""


class MappedStorage(kernel.MappedFields, ReadOnly):
    """A mapped file whose bytes no longer change."""

    __slots__ = ("_directory", "_path", "_size", "name")
    views_are_free = True
    #: The whole file.
    mapping: memoryview

    def __init__(self, name: str, path: str, fd: int, directory: Directory) -> None:
        self.name = name
        self._path = path
        self._directory = directory
        self._size = os.fstat(fd).st_size  # the caller reports errors
        # An empty file cannot be mapped.
        self.use_mapping(memoryview(mmap.mmap(fd, self._size, access=mmap.ACCESS_READ) if self._size else b""))

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self._size

    def read(self, position: int, size: int) -> bytes:
        """Return a copy."""
        return bytes(self.view(position, size))

    def view(self, position: int, size: int) -> memoryview:
        """Return a slice of the mapping, which keeps the mapping alive."""
        if position + size > self._size:
            raise ReadBeyondEnd(errno.ENODATA, f"{self._path} has {self._size} bytes, not {position + size}")
        return self.mapping[position : position + size]

    def forget(self, position: int, size: int) -> None:
        """Release the pages; they stay in the page cache."""
        forget_pages(self.mapping, position, size)

    def close(self) -> None:
        """No-op: readers may be using the mapping. It is released with its last reference."""

    def remove(self) -> None:
        """Delete the name. Existing mappings stay valid."""
        self.close()
        self._directory.remove(self.name)

    def reserve(self, size_bytes: int) -> None:
        """No-op: the file does not grow."""

    def claim(self, size_bytes: int) -> None:
        """No-op: the file does not grow."""

    def release(self) -> None:
        """No-op: nothing is reserved."""


def forget_pages(view: memoryview, position: int, size: int) -> None:
    """Drop whole pages of a mapping from this process's memory. The next access loads them again."""
    page = mmap.PAGESIZE
    first = (position + page - 1) // page * page
    last = (position + size) // page * page
    if last > first and hasattr(mmap, "MADV_DONTNEED") and isinstance(view.obj, mmap.mmap):
        view.obj.madvise(mmap.MADV_DONTNEED, first, last - first)
