"""`FileStorage` and `FileDirectory`: storages in files of the local file system.

Appends use `pwrite` at a position tracked here: no file position is shared with a forked child, and no append can land
after a torn one. A growing file is read through a mapping of the bytes that existed when the mapping was created, and
through `pread` beyond it. Mapped bytes never disappear: nothing below a log's committed size is truncated in place (see
`sawlog.log.retention`).

Names are opened relative to a descriptor of the directory, never through a symbolic link.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
import time

from ..batch import kernel
from ..errors import LogClosed, ReadBeyondEnd, SawlogError, StorageError, SyncFailed
from .interface import Buffer, Directory, Lock, Published, Storage
from .locks import FileLock, SharedFileLock
from .mapped import MappedStorage, forget_pages
from .published import PublishedFile, is_published
from .system import (
    OPEN_FLAGS,
    Handle,
    boot_id,
    claim_blocks,
    identity_of,
    reporting,
    reserve_blocks,
    storage_error,
    sync_data,
)

__all__ = ["FileDirectory", "FileLock", "FileStorage", "Handle", "SharedFileLock", "forget_pages"]

#: Reads beyond the mapping are copied until they add up to this; then the file is mapped again.
_REMAP_BYTES = 1 << 20
#: File system timestamps advance in steps of a few milliseconds; this is well above that.
_CLOCK_STEP_NS = 50_000_000
#: The file that both a log and a store lock first.
_LOCK = "LOCK"
#: Smallest and largest reservation after the end of a file.
_RESERVE_LEAST_BYTES, _RESERVE_MOST_BYTES = 1 << 20, 32 << 20


class FileStorage(kernel.FileFields):
    """A file that this process appends to, or, if `shared`, that another process appends to."""

    __slots__ = ("_copied_bytes", "_directory", "_path", "_shared", "name")
    #: The beginning of the file, if it is mapped.
    mapping: memoryview | None
    _handle: Handle
    #: Bytes written; for a shared file, as of the last use of `size`.
    _size: int
    #: End of the reserved blocks.
    _reserved: int

    views_are_free = False

    def __init__(self, directory: FileDirectory, name: str, handle: Handle, *, shared: bool = False) -> None:
        self.name = name
        self._directory = directory
        self._path = f"{directory.path}/{name}"
        self._handle = handle
        self._shared = shared
        self._copied_bytes = 0
        self._reserved = 0
        self.refresh()

    @property
    def size(self) -> int:
        """Bytes written; for a shared file, as of now."""
        if self._shared:
            self.refresh()
        return self._size

    def refresh(self) -> None:
        """Learn the size again, because another process may have appended."""
        with reporting("reading the size of", self._path):
            self._size = os.fstat(self._handle.fd).st_size

    def append(self, data: Buffer) -> int:
        """Write at the end. A short write is continued, a failed one is rolled back."""
        position = self._size
        try:
            written = os.pwrite(self._handle.fd, data, position)
            if written < len(data):
                self._write(position + written, memoryview(data)[written:])
            self._size = position + len(data)
        except OSError as error:
            raise self._undo(error, position) from error
        except BaseException:  # an interrupt during an append
            os.ftruncate(self._handle.fd, position)
            self._size = position
            raise
        return position

    def _write(self, position: int, data: Buffer) -> None:
        written = os.pwrite(self._handle.fd, data, position)
        if written < len(data):
            rest = memoryview(data)[written:]
            while rest:
                position += written
                written = os.pwrite(self._handle.fd, rest, position)
                rest = rest[written:]

    def _undo(self, error: OSError, size: int) -> StorageError:
        made = storage_error(error, "writing", self._path)
        try:
            os.ftruncate(self._handle.fd, size)
        except OSError:
            made.torn = True
        return made

    def reserve(self, size_bytes: int) -> None:
        """Ask the file system for blocks beyond the end, doubling, so that a small file stays small on disk. Writing
        into reserved blocks was measured to be 20 to 33 % cheaper. The file's size does not change, and a failure is
        ignored: appending works without the reservation."""
        if self._size + size_bytes > self._reserved:
            step = min(max(self._size, _RESERVE_LEAST_BYTES), _RESERVE_MOST_BYTES)
            self._reserved = self._size + size_bytes + step
            reserve_blocks(self._handle.fd, self._size, self._reserved - self._size)

    def claim(self, size_bytes: int) -> None:
        """Reserve blocks for that many bytes where the file system supports it; otherwise check the free space."""
        with reporting("reserving room in", self._path):
            reserved = claim_blocks(self._handle.fd, self._size, size_bytes)
        if reserved:
            self._reserved = max(self._reserved, self._size + size_bytes)

    def release(self) -> None:
        """Release the unused part of the reservation."""
        if self._reserved > self._size:
            self._reserved = 0
            self.truncate(self._size)

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite bytes that no reader has seen yet."""
        with reporting("writing", self._path):
            self._write(position, data)

    def read(self, position: int, size: int) -> bytes:
        """Copy the bytes. Loops, because a single pread returns at most 2 GiB."""
        with reporting("reading", self._path):
            data = os.pread(self._handle.fd, size, position)
            while len(data) < size:
                more = os.pread(self._handle.fd, size - len(data), position + len(data))
                if not more:
                    raise ReadBeyondEnd(
                        errno.ENODATA, f"{self._path} has {position + len(data)} bytes, not {position + size}"
                    )
                data += more
        return data

    def view(self, position: int, size: int) -> memoryview:
        """Return a slice of the mapping, or a copy beyond it. A shared file is always copied, because its writer may
        truncate it."""
        end = position + size
        mapped = self.mapping
        if mapped is not None and end <= len(mapped):
            return mapped[position:end]
        if end > self.size:
            raise ReadBeyondEnd(errno.ENODATA, f"{self._path} has {self._size} bytes, not {end}")
        if not self._shared and size:
            self._copied_bytes += size
            if self._copied_bytes >= _REMAP_BYTES and (mapped := self._remap(end)) is not None:
                return mapped[position:end]
        return memoryview(self.read(position, size))

    def _remap(self, end: int) -> memoryview | None:
        """Map the file again; None if it ends before `end`."""
        with reporting("mapping", self._path):
            fd = self._handle.fd
            # The kernel adds an append to `_size` before it writes it, and readers run meanwhile.
            size = min(self._size, os.fstat(fd).st_size)
            if size < end:
                return None
            mapped = memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
        self.use_mapping(mapped)
        self._copied_bytes = 0
        return mapped

    def truncate(self, size: int) -> None:
        """Truncate the file. The caller ensures that no process has the removed part mapped."""
        with reporting("truncating", self._path):
            os.ftruncate(self._handle.fd, size)
        self._size = size
        if self.mapping is not None and len(self.mapping) > size:
            self.use_mapping(None)

    def sync(self) -> None:
        """Make content and size durable with fdatasync."""
        sync_data(self._handle.fd, self._path)

    def forget(self, position: int, size: int) -> None:
        """Release the pages of the mapping; they stay in the page cache."""
        mapped = self.mapping
        if mapped is not None:
            forget_pages(mapped, position, min(size, len(mapped) - position))

    def close(self) -> None:
        """Close the descriptor. Without this call, it is closed when the last reference to the storage is gone."""
        self.use_mapping(None)
        self._handle.close()

    def remove(self) -> None:
        """Close and delete."""
        self.close()
        self._directory.remove(self.name)


def _sync_names(path: str) -> None:
    """Make the name of a directory durable, and those of its parents up to the mount point. Stops at a parent that may
    not be opened: its owner created the names in it."""
    while True:
        parent = os.path.dirname(path)
        with reporting("reading", parent):
            if parent == path or os.stat(parent).st_dev != os.stat(path).st_dev:
                return
        try:
            fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            return
        except OSError as error:
            raise storage_error(error, "opening", parent) from error
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EROFS):
                raise SyncFailed(error.errno, f"{error.strerror} while syncing the directory {parent}") from error
        finally:
            os.close(fd)
        path = parent


class FileDirectory:
    """A directory of the file system, held open by a descriptor."""

    #: -1 if the constructor failed or the directory is closed.
    fd = -1

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True) -> None:
        self.path = os.fspath(path)
        if create:
            self._make(os.path.abspath(self.path))
        with reporting("opening", self.path):
            self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @classmethod
    def _of(cls, path: str, fd: int) -> FileDirectory:
        made = cls.__new__(cls)
        made.path, made.fd = path, fd
        return made

    @classmethod
    def _make(cls, path: str) -> None:
        """mkdir -p that makes every name durable, including those of existing directories. Skipped if the directory has
        a lock file: its creator has done this already."""
        if not os.path.exists(f"{path}/{_LOCK}"):
            cls._make_missing(path)
            _sync_names(path)

    @staticmethod
    def _make_missing(path: str) -> None:
        missing: list[str] = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for each in reversed(missing):
            with reporting("creating", each):
                try:
                    os.mkdir(each)
                except FileExistsError:
                    if not os.path.isdir(each):
                        raise

    def names(self) -> list[str]:
        """Return the names of everything except directories, sorted."""
        return sorted(entry.name for entry in self._entries() if not entry.is_dir(follow_symlinks=False))

    def children(self) -> list[str]:
        """Return the names of the directories, sorted."""
        return sorted(entry.name for entry in self._entries() if entry.is_dir(follow_symlinks=False))

    def _entries(self) -> list[os.DirEntry[str]]:
        """List the directory through a descriptor of its own: threads that share one would share its position."""
        with reporting("listing", self.path):
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
            try:
                with os.scandir(fd) as entries:
                    return list(entries)
            finally:
                os.close(fd)

    def child(self, name: str, *, create: bool = False) -> FileDirectory:
        """Open a subdirectory."""
        path = f"{self.path}/{name}"
        if create:
            with reporting("creating", path):
                try:
                    os.mkdir(name, dir_fd=self.fd)
                except FileExistsError:
                    pass
            self.sync()
        with reporting("opening", path):
            return FileDirectory._of(path, os.open(name, os.O_RDONLY | os.O_DIRECTORY | OPEN_FLAGS, dir_fd=self.fd))

    def remove_child(self, name: str) -> None:
        """Delete a subdirectory recursively, never through a symbolic link."""
        with reporting("removing", f"{self.path}/{name}"):
            try:
                shutil.rmtree(name, dir_fd=self.fd)
            except FileNotFoundError:
                pass

    def move(self, name: str, target: Directory, new: str) -> None:
        """Rename into another directory of the same file system."""
        if not isinstance(target, FileDirectory):
            raise StorageError(errno.EXDEV, f"{self.path}/{name} cannot be moved to {target.path}")
        with reporting("renaming", f"{self.path}/{name}"):
            os.rename(name, new, src_dir_fd=self.fd, dst_dir_fd=target.fd)

    def link(self, name: str, target: Directory, new: str) -> None:
        """Create a hard link in a directory of the same file system."""
        if not isinstance(target, FileDirectory):
            raise StorageError(errno.EXDEV, f"{self.path}/{name} cannot have a name in {target.path}")
        with reporting("linking", f"{self.path}/{name}"):
            os.link(name, new, src_dir_fd=self.fd, dst_dir_fd=target.fd, follow_symlinks=False)

    def stamp(self) -> object:
        """Return the directory's modification time. None if it is very recent: another change may get the same time,
        because the file system's clock advances in steps."""
        with reporting("reading", self.path):
            changed = os.fstat(self.fd).st_mtime_ns
        return changed if time.time_ns() - changed > _CLOCK_STEP_NS else None

    def _stat(self, name: str) -> os.stat_result | None:
        try:  # no context manager: opening a log does this for every file
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(error, "reading the size of", name) from error

    def _error(self, error: OSError, doing: str, name: str) -> SawlogError:
        """Convert an OSError; `LogClosed` if another thread has closed the log or deleted the topic meanwhile."""
        if self.fd < 0:
            return LogClosed(f"{self.path} was closed, or deleted, while {name} was read")
        return storage_error(error, doing, f"{self.path}/{name}")

    def exists(self, name: str) -> bool:
        """Return whether a regular file of that name exists."""
        found = self._stat(name)
        return found is not None and stat.S_ISREG(found.st_mode)

    def size(self, name: str) -> int:
        """Return the size of the file in bytes."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_size
        except OSError as error:
            raise self._error(error, "reading the size of", name) from error

    def identity(self, name: str) -> object:
        """Return device and inode; None if the file is missing."""
        found = self._stat(name)
        return None if found is None else identity_of(found)

    def _open(self, name: str, flags: int) -> Handle:
        try:
            return Handle(os.open(name, flags | OPEN_FLAGS, 0o666, dir_fd=self.fd))
        except OSError as error:
            raise self._error(error, "opening", name) from error

    def create(self, name: str) -> Storage:
        """Create a file, fsync it, and fsync the directory, all before anything is appended."""
        handle = self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            sync_data(handle.fd, f"{self.path}/{name}")
            self.sync()
            return FileStorage(self, name, handle)
        except BaseException:
            handle.close()
            self.remove(name)
            raise

    def open(self, name: str) -> Storage:
        """Open a file to append and read."""
        return FileStorage(self, name, self._open(name, os.O_RDWR))

    def open_shared(self, name: str) -> Storage:
        """Open a file for reading that another process appends to."""
        return FileStorage(self, name, self._open(name, os.O_RDONLY), shared=True)

    def open_sealed(self, name: str) -> Storage:
        """Map the whole file."""
        handle = self._open(name, os.O_RDONLY)
        try:
            with reporting("mapping", f"{self.path}/{name}"):
                return MappedStorage(name, f"{self.path}/{name}", handle.fd, self)
        finally:
            handle.close()

    def read(self, name: str) -> bytes:
        """Read the whole file. Does not block on a pipe or another special file: it reads as empty."""
        handle = self._open(name, os.O_RDONLY | os.O_NONBLOCK)
        try:
            with reporting("reading", f"{self.path}/{name}"), open(handle.fd, "rb", buffering=0, closefd=False) as file:
                return file.readall() or b""
        finally:
            handle.close()

    def replace(self, name: str, data: Buffer, *, durable: bool = True) -> None:
        """Write a temporary file, fsync it, rename it, and fsync the directory."""
        temporary = f"{name}.tmp"
        handle = self._open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            with reporting("writing", f"{self.path}/{temporary}"):
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(handle.fd, rest) :]
            if durable:
                sync_data(handle.fd, f"{self.path}/{temporary}")
        except BaseException:
            self._discard(temporary)
            raise
        finally:
            handle.close()
        self.rename(temporary, name)
        if durable:
            self.sync()

    def published(self, name: str, *, create: bool = False) -> Published | None:
        """Open a small file for published numbers, mapped where that is safe; see published.py."""
        if not boot_id():
            return None
        try:
            handle = self._open(name, os.O_RDWR | os.O_CREAT) if create else self._open_published(name)
        except StorageError as error:
            if create or error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP):
                raise
            return None
        try:
            with reporting("opening", f"{self.path}/{name}"):
                if create or is_published(handle.fd):
                    return PublishedFile(handle, writable=create)
        except BaseException:
            handle.close()
            raise
        handle.close()
        return None

    def _open_published(self, name: str) -> Handle:
        """Open the file of published numbers for a reader, which writes only to be woken."""
        try:
            return self._open(name, os.O_RDWR)
        except StorageError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return self._open(name, os.O_RDONLY)

    def _discard(self, name: str) -> None:
        """Delete the leftover of a failed write, which takes space on a full disk. Best effort: errors are ignored."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except OSError:
            pass

    def rename(self, old: str, new: str) -> None:
        """Rename within the directory, atomically."""
        with reporting("renaming", f"{self.path}/{old}"):
            os.rename(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Unlink the name. Processes that have the file open can still use it."""
        with reporting("removing", f"{self.path}/{name}"):
            try:
                os.unlink(name, dir_fd=self.fd)
            except FileNotFoundError:
                pass

    def sync(self) -> None:
        """Make the names in the directory durable with fsync."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise SyncFailed(error.errno, f"{error.strerror} while syncing the directory {self.path}") from error

    def lock(self, name: str, *, alone: bool = True) -> Lock:
        """Take a flock without waiting."""
        return FileLock(self, name, alone=alone)

    def dispose(self) -> None:
        """Remove the directory if it is empty."""
        try:
            os.rmdir(self.path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise storage_error(error, "removing", self.path) from error

    def close(self) -> None:
        """Close the descriptor. Safe to call twice. Without this call it is closed with the last reference: a caller
        that fails early may have no chance to close it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


def restrict_to_owner(directory: Directory) -> None:
    """Set mode 0700 on a directory of the file system; no-op for any other kind."""
    if isinstance(directory, FileDirectory):
        with reporting("changing the mode of", directory.path):
            os.fchmod(directory.fd, stat.S_IRWXU)
