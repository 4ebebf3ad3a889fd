"""Errors of the operating system, turned into ours; and the calls that differ between systems."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import SawlogError, StorageError, StorageFull, SyncFailed

try:
    import fcntl
except ImportError:  # not a POSIX system; the lock says so when it is asked for
    fcntl = None  # type: ignore[assignment]

__all__ = ["FULL", "fcntl", "reporting", "reserve_blocks", "storage_error", "sync_data"]

#: Disk full, quota used up, file-size limit met: the same thing for a log.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def storage_error(error: OSError, doing: str, path: str) -> StorageError:
    """Our error for one of the system's, with what was tried and where."""
    if error.errno in FULL:
        made: StorageError = StorageFull(
            error.errno, f"no space left while {doing} {path}; free some, nothing was kept of this write"
        )
    else:
        made = StorageError(error.errno, f"{error.strerror} while {doing} {path}")
    return made


@contextmanager
def reporting(doing: str, path: str) -> Iterator[None]:
    """Errors of the system inside the block come out as ours."""
    try:
        yield
    except SawlogError:
        raise
    except OSError as error:
        raise storage_error(error, doing, path) from error


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """Linux's own call: Python offers only the POSIX one, which would make the file longer."""
    try:
        import ctypes

        found = ctypes.CDLL(None).fallocate
        found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    except (ImportError, OSError, AttributeError):
        return None
    return found


_KEEP_SIZE = 1
_fallocate = _find_fallocate()


def reserve_blocks(fd: int, position: int, size_bytes: int) -> bool:
    """Ask for blocks behind the end of a file, whose size stays what it is; whether there are any."""
    return _fallocate is not None and _fallocate(fd, _KEEP_SIZE, position, size_bytes) == 0


def sync_data(fd: int, path: str) -> None:
    """Make a file's content and size durable, or raise `SyncFailed`."""
    try:
        if fcntl is not None and hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync does not reach the platter there
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        elif hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            os.fsync(fd)
    except OSError as error:
        raise SyncFailed(
            error.errno,
            f"{error.strerror} while syncing {path}; it is not tried again, because the system may "
            "have dropped what it could not write",
        ) from error
