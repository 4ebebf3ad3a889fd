"""File locks: `FileLock` of a writer, and `SharedFileLock`, which keeps another program from starting.

The operating system releases both when the process dies. A forked child closes its copies immediately, so that it does
not keep its parent's locks alive.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from itertools import repeat
from typing import Protocol, runtime_checkable
from weakref import WeakSet

from ..clock import Deadline
from ..errors import DirectoryLocked, StorageError
from .interface import Directory, Lock
from .system import OPEN_FLAGS, Handle, fcntl, identity_of, reporting

#: Maximum length of a note in a lock file.
_NOTE_BYTES = 1 << 16


def process_name() -> str:
    """Return a description of this process for people: its id and host."""
    return f"process {os.getpid()} on {socket.gethostname()}"


@runtime_checkable
class OpenDirectory(Protocol):
    """A directory of the file system with an open descriptor, such as `FileDirectory`."""

    path: str
    fd: int

    def identity(self, name: str) -> object:
        """Return device and inode of a file; None if it is missing."""


class FileLock:
    """An exclusive flock, which the operating system releases when the process dies, even if it is killed.

    With `alone`, both the file and its directory are locked. The file names the holder, but a deleted file locks
    nothing; the directory cannot be deleted while it contains a log.

    A child that was forked, or that another thread is starting, has copies of the descriptors, and they hold the lock
    too. So `release` unlocks, which applies to all copies, instead of only closing; a child only closes its own copies.
    The lock is held until `release` or until the object is garbage collected: an interrupt may have come between its
    creation and the return to the caller.
    """

    def __init__(self, directory: OpenDirectory, name: str, *, alone: bool = True) -> None:
        if fcntl is None:
            raise StorageError(errno.ENOTSUP, "sawlog needs flock to write safely, which this system does not have")
        fds = self._fds = list[int]()
        self._pid = os.getpid()
        self._directory, self._name = directory, name
        path = f"{directory.path}/{name}"
        try:
            with reporting("locking", path):
                fds.append(os.open(name, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o666, dir_fd=directory.fd))
                if alone:
                    fds.append(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory.fd))
                try:
                    for fd in self._fds:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    holder = os.pread(self._fds[0], 200, 0).partition(b"\n")[0].decode("utf-8", "replace").strip()
                    raise DirectoryLocked(directory.path if alone else path, holder) from None
                self._identity = identity_of(os.fstat(self._fds[0]))
                #: The note that the previous holder left after its signature.
                self.found = os.pread(self._fds[0], _NOTE_BYTES, 0).partition(b"\n")[2]
            self.leave(b"")
        except BaseException:
            self.release()
            raise
        _held.add(self)

    def leave(self, note: bytes) -> None:
        """Write the holder's name and the note. Best effort: if the disk is full, the lock still holds. The file is
        written before it is truncated, so that a concurrent reader always finds a name."""
        signed = f"{process_name()}\n".encode() + note
        try:
            os.pwrite(self._fds[0], signed, 0)
            os.ftruncate(self._fds[0], len(signed))
        except (OSError, IndexError):
            pass

    @property
    def held(self) -> bool:
        """True while this process holds the lock."""
        return bool(self._fds)

    @property
    def current(self) -> bool:
        """True while the lock is held and the name still refers to the locked file."""
        return self.held and self._directory.identity(self._name) == self._identity

    def release(self) -> None:
        """Release the lock."""
        if self._pid == os.getpid():
            deque(map(fcntl.flock, self._fds, repeat(fcntl.LOCK_UN)), 0)
        # One C call pops and closes each descriptor, so that no interrupt can come between the two.
        deque(map(os.close, map(self._fds.pop, repeat(0, len(self._fds)))), 0)
        _held.discard(self)

    def __del__(self) -> None:
        if getattr(self, "_fds", None):
            self.release()


class SharedFileLock:
    """A shared POSIX lock on a file that another program locks exclusively while it runs, as Java programs do: while it
    is held, that program does not start. Writes nothing. Released when this process closes the file or dies."""

    def __init__(self, directory: Directory, name: str) -> None:
        if fcntl is None or not isinstance(directory, OpenDirectory):
            raise StorageError(errno.ENOTSUP, f"{directory.path}/{name} cannot be locked here")
        path = f"{directory.path}/{name}"
        with reporting("locking", path):
            self._handle = Handle(os.open(name, os.O_RDONLY | OPEN_FLAGS, dir_fd=directory.fd))
            try:
                fcntl.lockf(self._handle.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):  # POSIX allows either
                self._handle.close()
                raise DirectoryLocked(path) from None

    def release(self) -> None:
        """Allow the other program to start. Safe to call twice."""
        self._handle.close()


#: Locks of this process; a forked child closes its copies of them.
_held: WeakSet[FileLock] = WeakSet()


def _forget_parents_locks() -> None:
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_locks)


def lock_within(directory: Directory, name: str, seconds: float) -> Lock:
    """Take a lock that others hold briefly, waiting up to `seconds`; then raise `DirectoryLocked`."""
    deadline = Deadline(seconds)
    while True:
        try:
            return directory.lock(name)
        except DirectoryLocked as error:
            deadline.pause(or_raise=error)
