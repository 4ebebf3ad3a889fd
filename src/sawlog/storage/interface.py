"""What a storage and a directory promise. Nothing here does anything.

Failure is part of the promise: an `append` happens wholly or not at all. If the partial bytes of a failed append
could not be taken back either, the error says so (`torn`), and the log above stops writing. `sync` either made
everything durable that was written before it, or raises `SyncFailed`, and is not tried again.
"""

from __future__ import annotations

from typing import Protocol

#: What can be written. Python 3.12 has collections.abc.Buffer; we start at 3.11.
Buffer = bytes | bytearray | memoryview


class Storage(Protocol):
    """One run of bytes that grows at its end.

    Threads: one appends, truncates and syncs; any number read. A view stays valid for as long as it is held,
    whatever happens to the storage afterwards.
    """

    name: str

    @property
    def size(self) -> int:
        """Bytes written."""

    def append(self, data: Buffer) -> int:
        """Add bytes at the end, all or none; gives the position where they start."""

    def reserve(self, size_bytes: int) -> None:
        """A hint before `append`: so many bytes are about to be appended, and probably more after them."""

    def claim(self, size_bytes: int) -> None:
        """Make sure that there is room for so many more bytes, or raise `StorageFull`. Held until `release`, as far as
        the system can hold it."""

    def release(self) -> None:
        """A hint: nothing more will be appended for now."""

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite bytes that were appended before: only ever the header of a batch that nobody has seen yet."""

    def read(self, position: int, size: int) -> bytes:
        """A copy of exactly these bytes; `ReadBeyondEnd` if they are not all there."""

    def view(self, position: int, size: int) -> memoryview:
        """Exactly these bytes without a copy where that is possible."""

    def truncate(self, size: int) -> None:
        """Drop everything from `size` on."""

    def sync(self) -> None:
        """Return when everything written before is durable."""

    def forget(self, position: int, size: int) -> None:
        """A hint: these bytes have been read and need not stay in memory for this reader."""

    def close(self) -> None:
        """Give up the handle; views that are held stay valid."""

    def remove(self) -> None:
        """Close, and delete the bytes."""


class Lock(Protocol):
    """Held from its making until `release`; also gone when the process dies."""

    @property
    def held(self) -> bool:
        """Whether this process still holds it: not after `release`, and not in a forked child."""

    @property
    def current(self) -> bool:
        """Whether it is held and still means something: the name has not been deleted or given to another file."""

    @property
    def found(self) -> bytes:
        """What the holder before this one left (see `leave`); empty if nothing."""

    def leave(self, note: bytes) -> None:
        """Write a short note for everyone who reads the lock's file (`Directory.read`). It is gone after a power cut,
        and nobody is told if it cannot be written."""

    def release(self) -> None:
        """Let the next one in."""


class Published(Protocol):
    """Two numbers, 0 or more, that one process stores and any number of processes load, without a lock or a sync.

    They survive the end of the process that stored them, however it ended. After the machine was restarted they mean
    nothing, and `load` says so.
    """

    def store(self, first: int, second: int) -> None:
        """Replace both at one moment: nobody loads one old and one new number. Cannot fail."""

    def load(self) -> tuple[int, int] | None:
        """Both; None if nothing was stored since the machine was started, or it cannot be read."""

    def close(self) -> None:
        """Give up the handle; the numbers stay."""


class Directory(Protocol):
    """Where storages are made, found, replaced and deleted by name; and other directories below it."""

    path: str

    def names(self) -> list[str]:
        """The names of all storages, sorted; those of directories below this one are in `children`."""

    def children(self) -> list[str]:
        """The names of the directories below this one, sorted."""

    def child(self, name: str, *, create: bool = False) -> Directory:
        """The directory of that name below this one; made, durably, if it is missing and `create` says so."""

    def remove_child(self, name: str) -> None:
        """Delete a directory below this one with all that is in it, if it is there; durable after `sync`."""

    def move(self, name: str, target: Directory, new: str) -> None:
        """Give a file or a directory another name in another directory of the same kind, over a file that has it;
        durable after `sync` of both."""

    def stamp(self) -> object:
        """Another one whenever a name was made, replaced or removed in here since; None where that cannot be told."""

    def exists(self, name: str) -> bool:
        """Whether there is such a name."""

    def size(self, name: str) -> int:
        """Bytes under that name."""

    def identity(self, name: str) -> object:
        """Changes when the name is replaced by another file; equal while it is the same one. None if missing."""

    def create(self, name: str) -> Storage:
        """A new, empty storage; the name is durable when this returns. An error if it exists."""

    def open(self, name: str) -> Storage:
        """An existing storage, to append to and read."""

    def open_shared(self, name: str) -> Storage:
        """An existing storage to read while another process appends to it; its size follows."""

    def open_sealed(self, name: str) -> Storage:
        """An existing storage that nobody changes any more, to read only."""

    def read(self, name: str) -> bytes:
        """All bytes of a small file."""

    def replace(self, name: str, data: Buffer, *, durable: bool = True) -> None:
        """Make `data` the content of `name`, atomically and durably: before a crash the old, after it the new. Without
        `durable` only a process's end is survived; after a power cut the content may be anything."""

    def published(self, name: str, *, create: bool = False) -> Published | None:
        """Two numbers under a name of their own, to store if `create` says so, else to load only. None if they are
        missing, or nothing can be published here: then readers believe every whole batch."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, over whatever had it; durable after `sync`. Also for a directory, to a new name."""

    def remove(self, name: str) -> None:
        """Delete a name if it is there; durable after `sync`."""

    def sync(self) -> None:
        """Return when all names are durable."""

    def lock(self, name: str, *, alone: bool = True) -> Lock:
        """Become the one holder, or raise `DirectoryLocked` at once. With `alone` of the whole directory, else of
        that name among others."""

    def dispose(self) -> None:
        """Delete the directory itself if it is empty."""

    def close(self) -> None:
        """Give up the handle."""
