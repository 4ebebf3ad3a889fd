"""The contract of storages, directories and locks.

The contract covers failures: an `append` happens completely or not at all. If the partial bytes of a failed append
could not be rolled back, the error says so (`torn`), and the log above stops writing. `sync` makes everything durable
that was written before it, or raises `SyncFailed` and is not retried.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from .words import WaitPoint

#: Writable types. Python 3.12 has collections.abc.Buffer; 3.11, which we support, does not.
Buffer = bytes | bytearray | memoryview


class Storage(Protocol):
    """An append-only sequence of bytes.

    One thread at a time appends, truncates and syncs; any number of threads read. A view stays valid for as long as it
    is referenced, whatever happens to the storage afterwards.
    """

    name: str
    #: True if a view of any size is free, because the bytes are mapped or in memory. Otherwise readers request only the
    #: bytes they need. Optional for a custom storage; the default is False.
    views_are_free: bool

    @property
    def size(self) -> int:
        """Bytes written."""

    def refresh(self) -> None:
        """Learn the size again, because another process may have appended."""

    def append(self, data: Buffer) -> int:
        """Append bytes, all or none, and return the position where they start."""

    def reserve(self, size_bytes: int) -> None:
        """Hint that this many bytes are about to be appended, and probably more after them."""

    def claim(self, size_bytes: int) -> None:
        """Ensure that there is space for that many more bytes, or raise `StorageFull`. The space stays reserved until
        `release`, where the system supports it."""

    def release(self) -> None:
        """Hint that nothing more will be appended for now."""

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite appended bytes. Used only for the header of a batch that no reader has seen yet."""

    def read(self, position: int, size: int) -> bytes:
        """Return a copy of exactly these bytes; raise `ReadBeyondEnd` if they do not all exist."""

    def view(self, position: int, size: int) -> memoryview:
        """Return exactly these bytes, without a copy if possible; raise `ReadBeyondEnd` if they do not all exist."""

    def truncate(self, size: int) -> None:
        """Drop everything from `size` on."""

    def sync(self) -> None:
        """Make everything written so far durable. Blocks."""

    def forget(self, position: int, size: int) -> None:
        """Hint that the reader no longer needs these bytes in memory."""

    def close(self) -> None:
        """Close the handle. Existing views stay valid."""

    def remove(self) -> None:
        """Close the handle and delete the bytes."""


class Lock(Protocol):
    """A lock, held from its creation until `release` or the end of the process."""

    @property
    def held(self) -> bool:
        """True while this process holds the lock: not after `release`, and not in a forked child."""

    @property
    def current(self) -> bool:
        """True while the lock is held and effective: its name was not deleted or given to another file."""

    @property
    def found(self) -> bytes:
        """Note of the previous holder (see `leave`); empty if there is none."""

    def leave(self, note: bytes) -> None:
        """Write a short note for readers of the lock file (`Directory.read`). Best effort: it does not survive a power
        cut, and write errors are ignored."""

    def release(self) -> None:
        """Release the lock."""


class Published(Protocol):
    """Two non-negative numbers that one process stores and any number of processes load, without a lock or a sync.

    They survive the end of the process that stored them, even if it was killed. After a reboot they are invalid, and
    `load` returns None.
    """

    @property
    def words(self) -> memoryview[int] | None:
        """16 words of 32 bits that all processes share, 0 at first; None if that is not possible here."""

    def exclusive(self, timeout_s: float) -> AbstractContextManager[object]:
        """Exclude all other processes and threads from this call, to change several words and numbers together. For
        microseconds only: `DirectoryLocked` if another process keeps it for `timeout_s`."""

    def store(self, first: int, second: int) -> None:
        """Replace both numbers atomically: no reader sees one old and one new number. Never raises."""

    def load(self) -> tuple[int, int] | None:
        """Return both numbers; None if nothing was stored since the last boot, or they cannot be read."""

    def wait_point(self, known: tuple[int, int] | None) -> WaitPoint | None:
        """Return a point for `words.wait_any`, which then sleeps until other numbers than these are stored, or `wake`
        is called. None if that is not possible here: poll."""

    def wake(self) -> None:
        """Wake all processes that sleep, whatever is stored."""

    def close(self, *, last: bool = True) -> None:
        """Close the handle and keep the numbers. If this process stored the `last` ones, copy them first, so that
        damage to one copy loses nothing."""


class Directory(Protocol):
    """A directory of storages and subdirectories. Creates, opens, replaces and deletes storages by name."""

    path: str

    def names(self) -> list[str]:
        """Return the names of all storages, sorted. Subdirectories are in `children`."""

    def children(self) -> list[str]:
        """Return the names of all subdirectories, sorted."""

    def child(self, name: str, *, create: bool = False) -> Directory:
        """Open a subdirectory. With `create` it is created durably if missing."""

    def remove_child(self, name: str) -> None:
        """Delete a subdirectory and its contents, if it exists. Durable after `sync`."""

    def move(self, name: str, target: Directory, new: str) -> None:
        """Move a file or a subdirectory to a name in another directory of the same kind, replacing a file of that name.
        Durable after `sync` of both."""

    def link(self, name: str, target: Directory, new: str) -> None:
        """Give an immutable file a second name in another directory of the same kind. Durable after `sync` of that
        directory; an error if the name exists. Optional, and any call may fail: the caller then copies the bytes."""

    def stamp(self) -> object:
        """Return a value that changes whenever a name is created, replaced or removed here; None if unknown."""

    def exists(self, name: str) -> bool:
        """Return whether a storage of that name exists."""

    def size(self, name: str) -> int:
        """Return the size of a storage in bytes."""

    def identity(self, name: str) -> object:
        """Return a value that is equal as long as the name refers to the same file; None if the name is missing."""

    def create(self, name: str) -> Storage:
        """Create an empty storage. The name is durable on return; an error if it exists."""

    def open(self, name: str) -> Storage:
        """Open an existing storage to append and read."""

    def open_shared(self, name: str) -> Storage:
        """Open an existing storage to read while another process appends to it. Its size follows the file."""

    def open_sealed(self, name: str) -> Storage:
        """Open an existing storage that no longer changes, for reading only."""

    def read(self, name: str) -> bytes:
        """Return all bytes of a small file."""

    def replace(self, name: str, data: Buffer, *, durable: bool = True) -> None:
        """Replace the content of `name` atomically and durably: after a crash it is either the old or the new content.
        Without `durable` it survives only the end of the process; a power cut may leave anything."""

    def published(self, name: str, *, create: bool = False) -> Published | None:
        """Open two published numbers, writable with `create`, else read-only. None if they are missing or publishing is
        not supported here: readers then trust every complete batch."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing one of that name; or a subdirectory, to an unused name. Durable after `sync`."""

    def remove(self, name: str) -> None:
        """Delete a name if it exists. Durable after `sync`."""

    def sync(self) -> None:
        """Make all names durable. Blocks."""

    def lock(self, name: str, *, alone: bool = True) -> Lock:
        """Take a lock, or raise `DirectoryLocked` immediately. With `alone` it covers the whole directory, otherwise
        only that name."""

    def dispose(self) -> None:
        """Delete the directory itself if it is empty."""

    def close(self) -> None:
        """Close the handle."""
