"""The interfaces of a storage and a directory, and what they promise.

Failure is part of the promise: an `append` happens completely or not at all. If the partial bytes of a failed append
could not be rolled back either, the error says so (`torn`), and the log above stops writing. `sync` either makes
everything durable that was written before it, or raises `SyncFailed`, and is not retried.
"""

from __future__ import annotations

from typing import Protocol

#: What can be written. Python 3.12 has collections.abc.Buffer; we support 3.11.
Buffer = bytes | bytearray | memoryview


class Storage(Protocol):
    """A sequence of bytes that grows at its end.

    Threads: one appends, truncates and syncs; any number read. A view stays valid as long as it is held, whatever
    happens to the storage afterwards.
    """

    name: str
    #: Whether a view costs nothing, however large it is, because the bytes are mapped or in memory. Elsewhere a reader
    #: asks only for what it needs. A custom storage may omit it: then it is assumed that they cost something.
    views_are_free: bool

    @property
    def size(self) -> int:
        """Bytes written."""

    def append(self, data: Buffer) -> int:
        """Append bytes, all or none, and return the position where they start."""

    def reserve(self, size_bytes: int) -> None:
        """A hint before `append`: this many bytes are about to be appended, and probably more after them."""

    def claim(self, size_bytes: int) -> None:
        """Make sure that there is space for that many more bytes, or raise `StorageFull`. Reserved until `release`, as
        far as the system can do that."""

    def release(self) -> None:
        """A hint: nothing more will be appended for now."""

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite bytes that were appended before: only the header of a batch that nobody has seen yet."""

    def read(self, position: int, size: int) -> bytes:
        """A copy of exactly these bytes; `ReadBeyondEnd` if they do not all exist."""

    def view(self, position: int, size: int) -> memoryview:
        """Exactly these bytes, without a copy if possible."""

    def truncate(self, size: int) -> None:
        """Drop everything from `size` on."""

    def sync(self) -> None:
        """Return when everything written before is durable."""

    def forget(self, position: int, size: int) -> None:
        """A hint: this reader no longer needs these bytes in memory."""

    def close(self) -> None:
        """Close the handle; views that are held stay valid."""

    def remove(self) -> None:
        """Close, and delete the bytes."""


class Lock(Protocol):
    """Held from its creation until `release`, or until the process dies."""

    @property
    def held(self) -> bool:
        """Whether this process still holds it: not after `release`, and not in a forked child."""

    @property
    def current(self) -> bool:
        """Whether it is held and still effective: the name has not been deleted or given to another file."""

    @property
    def found(self) -> bytes:
        """The note of the previous holder (see `leave`); empty if there is none."""

    def leave(self, note: bytes) -> None:
        """Write a short note for readers of the lock file (`Directory.read`). It does not survive a power cut, and an
        error in writing it is not reported."""

    def release(self) -> None:
        """Release the lock."""


class Published(Protocol):
    """Two numbers, 0 or more, that one process stores and any number of processes load, without a lock or a sync.

    They survive the end of the process that stored them, however it ended. After a restart of the machine they are
    invalid, and `load` returns None.
    """

    def store(self, first: int, second: int) -> None:
        """Replace both atomically: no reader gets one old and one new number. Cannot fail."""

    def load(self) -> tuple[int, int] | None:
        """Both numbers; None if nothing was stored since the machine was started, or they cannot be read."""

    def close(self) -> None:
        """Close the handle; the numbers are kept."""


class Directory(Protocol):
    """Where storages are created, found, replaced and deleted by name; may contain other directories."""

    path: str

    def names(self) -> list[str]:
        """The names of all storages, sorted; directories below this one are in `children`."""

    def children(self) -> list[str]:
        """The names of the directories below this one, sorted."""

    def child(self, name: str, *, create: bool = False) -> Directory:
        """The directory of that name below this one; created durably if it is missing and `create` is set."""

    def remove_child(self, name: str) -> None:
        """Delete a directory below this one with all its contents, if it exists; durable after `sync`."""

    def move(self, name: str, target: Directory, new: str) -> None:
        """Move a file or a directory to a name in another directory of the same kind, replacing a file of that name;
        durable after `sync` of both."""

    def link(self, name: str, target: Directory, new: str) -> None:
        """Give a file whose bytes no longer change a second name, in another directory of the same kind; durable after
        `sync` of that one. An error if there is such a name. A directory may be without this method, and any call may
        fail: then the bytes are copied."""

    def stamp(self) -> object:
        """A value that changes whenever a name is created, replaced or removed in here; None if that is not known."""

    def exists(self, name: str) -> bool:
        """Whether the name exists."""

    def size(self, name: str) -> int:
        """Size of the storage in bytes."""

    def identity(self, name: str) -> object:
        """Changes when the name is replaced by another file; equal while it is the same one. None if missing."""

    def create(self, name: str) -> Storage:
        """Create an empty storage; the name is durable when this returns. An error if it exists."""

    def open(self, name: str) -> Storage:
        """Open an existing storage to append and read."""

    def open_shared(self, name: str) -> Storage:
        """Open an existing storage to read while another process appends to it; its size follows."""

    def open_sealed(self, name: str) -> Storage:
        """Open an existing storage that no longer changes, to read only."""

    def read(self, name: str) -> bytes:
        """All bytes of a small file."""

    def replace(self, name: str, data: Buffer, *, durable: bool = True) -> None:
        """Make `data` the content of `name`, atomically and durably: after a crash it is either the old or the new.
        Without `durable` it survives only the end of the process; after a power cut the content may be anything."""

    def published(self, name: str, *, create: bool = False) -> Published | None:
        """Two numbers under a name of their own; writable with `create`, else only readable. None if they are missing
        or nothing can be published here: then readers trust every complete batch."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing one of that name; durable after `sync`. Also renames a directory to a new name."""

    def remove(self, name: str) -> None:
        """Delete a name if it exists; durable after `sync`."""

    def sync(self) -> None:
        """Return when all names are durable."""

    def lock(self, name: str, *, alone: bool = True) -> Lock:
        """Take the lock, or raise `DirectoryLocked` immediately. With `alone` it covers the whole directory, else only
        that name."""

    def dispose(self) -> None:
        """Delete the directory itself if it is empty."""

    def close(self) -> None:
        """Close the handle."""
