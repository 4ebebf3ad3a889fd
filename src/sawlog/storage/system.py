"""Operating system calls that differ between platforms, conversion of OSErrors to `StorageError`, and `Handle`, a
descriptor with one owner.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache

from ..batch import kernel
from ..clock import Stopwatch
from ..errors import SawlogError, StorageError, StorageFull, SyncFailed
from .counters import count_sync

try:
    import fcntl
except ImportError:  # not a POSIX system: taking a lock raises
    fcntl = None  # type: ignore[assignment]

if sys.platform != "win32":
    import resource

__all__ = [
    "FULL",
    "allow_more_descriptors",
    "boot_id",
    "claim_blocks",
    "cores",
    "fcntl",
    "free_bytes",
    "maps_safely",
    "most_descriptors",
    "reporting",
    "reserve_blocks",
    "storage_error",
    "sync_data",
]

#: Disk full, quota exceeded, file-size limit reached: all mean that a log cannot grow.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def storage_error(error: OSError, doing: str, path: str) -> StorageError:
    """Convert an OSError to a `StorageError` that names the operation and the path."""
    if error.errno in FULL:
        made: StorageError = StorageFull(
            error.errno, f"no space left while {doing} {path}; nothing of this write was kept; free some space"
        )
    else:
        made = StorageError(error.errno, f"{error.strerror} while {doing} {path}")
    return made


@contextmanager
def reporting(doing: str, path: str) -> Iterator[None]:
    """Convert OSErrors in the block to `StorageError`."""
    try:
        yield
    except SawlogError:
        raise
    except OSError as error:
        raise storage_error(error, doing, path) from error


def most_descriptors() -> int:
    """Return the limit on open file descriptors of this process."""
    if sys.platform == "win32":
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def allow_more_descriptors() -> None:
    """Raise the soft limit on open files to the hard limit: the default is too low for a server with a thousand
    partitions."""
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@cache
def boot_id() -> bytes:
    """Return 16 bytes that differ after each boot of the machine; empty if the system does not provide them."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return uuid.UUID(file.read(36).decode()).bytes
    except (OSError, ValueError):
        pass
    try:  # macOS
        text, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        if ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, 0) == 0:
            return uuid.UUID(text.value.decode()).bytes
    except (OSError, AttributeError, ValueError):
        pass
    return b""


#: File systems that overwrite allocated blocks in place: ext2 to ext4, XFS, tmpfs. A copy-on-write file system may have
#: no space for the copy of a mapped page, and then kills the process (SIGBUS).
_MAPPED_SAFELY = frozenset({0xEF53, 0x58465342, 0x01021994})


def maps_safely(fd: int) -> bool:
    """Return whether a file on this file system can be written through a mapping even when the disk is full."""
    try:
        found = ctypes.create_string_buffer(256)  # struct statfs begins with f_type, a long
        call = ctypes.CDLL(None, use_errno=True).fstatfs
    except (OSError, AttributeError):
        return False
    if sys.platform != "linux" or call(fd, found) != 0:
        return False
    return ctypes.c_long.from_buffer(found).value in _MAPPED_SAFELY


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """Find Linux's fallocate: Python offers only posix_fallocate, which would extend the file."""
    try:
        found = ctypes.CDLL(None, use_errno=True).fallocate
        found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    except (OSError, AttributeError):
        return None
    return found


_KEEP_SIZE = 1
_fallocate = _find_fallocate()


def reserve_blocks(fd: int, position: int, size_bytes: int) -> bool:
    """Reserve blocks beyond the end of a file without changing its size. Return whether that worked."""
    return _fallocate is not None and _fallocate(fd, _KEEP_SIZE, position, size_bytes) == 0


#: With this much free space to spare, nothing is reserved: reserved blocks slow down the next fdatasync.
_PLENTY_BYTES = 256 << 20


def claim_blocks(fd: int, position: int, size_bytes: int) -> bool:
    """Ensure that there is space beyond the end of a file, or raise an OSError. Return whether blocks were reserved:
    not if there is plenty of space, nor if the system cannot, in which case only the free space is checked."""
    found = os.fstatvfs(fd)
    free = found.f_bavail * found.f_frsize
    if free > 16 * size_bytes + _PLENTY_BYTES:
        return False
    if _fallocate is not None:
        ctypes.set_errno(0)
        if _fallocate(fd, _KEEP_SIZE, position, size_bytes) == 0:
            return True
        if (code := ctypes.get_errno()) in FULL:
            raise OSError(code, os.strerror(code))
    if free < size_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return False


def space_of(path: str) -> tuple[int, int]:
    """Return (total bytes, free bytes) of the file system that contains a path."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def free_bytes(path: str) -> int | None:
    """Return the free bytes of the file system that contains a path; None if unknown, as for a store in memory."""
    try:
        return space_of(path)[1]
    except OSError:
        return None


def sync_data(fd: int, path: str) -> None:
    """Make a file's content and size durable, or raise `SyncFailed`."""
    watch = Stopwatch()
    try:
        if fcntl is not None and hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync does not reach the disk there
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        elif hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            os.fsync(fd)
    except OSError as error:
        raise SyncFailed(
            error.errno,
            f"{error.strerror} while syncing {path}; it is not retried, because the system may "
            "have dropped the unwritten pages",
        ) from error
    count_sync(watch.elapsed_s)


#: Added to every `os.open` of a name: never follow a symbolic link, never leak the descriptor to a child program.
OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class Handle(kernel.DescriptorFields):
    """A descriptor with one owner. Closed exactly once, at the latest with its last reference."""

    __slots__ = ()
    #: -1 once closed, or if an interrupt stopped the constructor.
    fd: int

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """Close the descriptor. Safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


def identity_of(found: os.stat_result) -> tuple[int, int]:
    """Return device and inode, which tell a file from another one that replaces it under the same name."""
    return found.st_dev, found.st_ino
