"""Two numbers in a small file, for readers in other processes: `Published` on files.

```
 0   8  "sawlog" and two zero bytes
 8  16  boot id: identifies the start of the machine to which the slots belong
64  64  two slots: see `sawlog.batch.kernel.Slots`
```

The file is never synced, replaced or truncated: a store changes a few bytes in the page cache, where every process of
this machine sees them, also after the process that wrote them was killed. A power cut may leave anything in it; the
boot id is part of each slot's check, so that nobody trusts what was written before a restart of the machine, or on
another machine.

A custom directory that does not implement this publishes with `replace` and `read` (`open_published`).

The writer maps the file where that is safe on a full disk (`system.maps_safely`), and a store then takes 0.05 µs;
elsewhere it writes the slots with `pwrite`. Readers map it where the writer does, and never write.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from typing import Any

from ..batch.kernel import SLOTS_BYTES, Slots
from ..errors import StorageError
from .handle import Handle
from .interface import Directory, Published
from .system import boot_id, maps_safely

_TITLE = b"sawlog\0\0"
_BOOT_AT, _SLOTS_AT = 8, 64
_SIZE = _SLOTS_AT + SLOTS_BYTES
#: From Python 3.13 on, a mapping does not need its own descriptor.
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
#: How often a reader retries while a writer is storing.
_TRIES = 100


class PublishedFile:
    """See the module's docstring. `handle` is open for writing if `writable`; it is closed here."""

    #: Replace both numbers: into the mapped page, or by a write.
    store: Callable[[int, int], None]
    #: Where `store` puts them, if that is all it does.
    slots: Slots | None = None

    def __init__(self, handle: Handle, *, writable: bool) -> None:
        self._handle: Handle | None = None
        self._slots: Slots
        self._writable = writable
        if writable and not is_published(handle.fd):
            if os.fstat(handle.fd).st_size > _SIZE:
                os.ftruncate(handle.fd, _SIZE)
            # The head last: a file that has it is complete.
            os.pwrite(handle.fd, bytes(SLOTS_BYTES), _SLOTS_AT)
            os.pwrite(handle.fd, _head(), 0)
        if maps_safely(handle.fd):
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            view = memoryview(mmap.mmap(handle.fd, _SIZE, access=access, **_UNTRACKED))
            handle.close()
            self._slots = Slots(view[_SLOTS_AT:], _secret(), writable)
            self.slots = self._slots
            self.store = self._slots.store  # called at every append: avoids a call of ours
        else:
            self._handle = handle
            self._copy = bytearray(os.pread(handle.fd, SLOTS_BYTES, _SLOTS_AT).ljust(SLOTS_BYTES, b"\0"))
            self._slots = Slots(memoryview(self._copy), _secret(), True)
            self.store = self._write

    def _write(self, first: int, second: int) -> None:
        """A write that a full disk may refuse. Readers then see less than they could, but not more than they may: if
        the first number was to go back, the file is truncated, so that nobody trusts it."""
        assert self._handle is not None
        fd, before = self._handle.fd, self.load()
        try:
            self._slots.store(first, second)
            os.pwrite(fd, self._copy, _SLOTS_AT)
            if not is_published(fd):
                os.pwrite(fd, _head(), 0)
        except OSError:
            if before is not None and first < before[0]:
                os.ftruncate(fd, 0)

    def _refresh(self) -> None:
        assert self._handle is not None
        self._copy[:] = os.pread(self._handle.fd, SLOTS_BYTES, _SLOTS_AT).ljust(SLOTS_BYTES, b"\0")

    def load(self) -> tuple[int, int] | None:
        """What was stored since the machine was started."""
        for _ in range(_TRIES):
            if self._handle is not None:
                try:
                    self._refresh()
                except OSError:
                    return None
            found: tuple[int, int] | None = self._slots.load()
            if found is not None:
                return found
        return None

    def close(self) -> None:
        """Release the mapping; what is stored from now on is lost. The current numbers are kept in both slots: one bad
        bit then hides nothing."""
        if self._writable:
            self._slots.repeat()
        if self._handle is not None:
            try:
                if self._writable:
                    os.pwrite(self._handle.fd, self._copy, _SLOTS_AT)
            except OSError:
                pass  # one copy is enough
            self._handle.close()
        self._writable = False
        self._handle, self._slots = None, Slots(memoryview(bytearray(SLOTS_BYTES)), _secret(), True)
        self.slots, self.store = None, self._slots.store


def is_published(fd: int) -> bool:
    """Whether this module has created the file completely since the machine was started."""
    boot = boot_id()
    head = os.pread(fd, _BOOT_AT + len(boot), 0)
    return bool(boot) and head == _TITLE + boot and os.fstat(fd).st_size == _SIZE


def open_published(directory: Directory, name: str, *, create: bool = False) -> Published | None:
    """`Directory.published`, or the same with calls that every directory has."""
    if hasattr(directory, "published"):
        return directory.published(name, create=create)
    if not boot_id():
        return None
    return PublishedByReplacing(directory, name) if create or directory.exists(name) else None


class PublishedByReplacing:
    """For a directory that cannot map: the bytes of `PublishedFile`, replaced as a whole each time."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory, self._name = directory, name
        self._slots = bytearray(SLOTS_BYTES)
        self._writer = Slots(memoryview(self._slots), _secret(), True)

    def store(self, first: int, second: int) -> None:
        """A new file; if it cannot be written, readers see the previous numbers, or, if the first was to go back,
        none."""
        before = self.load()
        self._writer.store(first, second)
        if not self._replace() and before is not None and first < before[0]:
            self._directory.remove(self._name)

    def _replace(self) -> bool:
        try:
            self._directory.replace(self._name, _head() + bytes(self._slots), durable=False)
        except StorageError:
            return False
        return True

    def load(self) -> tuple[int, int] | None:
        """From the current file."""
        try:
            data = self._directory.read(self._name)
        except StorageError:
            return None
        if len(data) != _SIZE:
            return None
        found: tuple[int, int] | None = Slots(memoryview(data)[_SLOTS_AT:], _secret(), False).load()
        return found

    def close(self) -> None:
        """There is no handle. The current numbers are kept in both slots."""
        self._writer.repeat()
        if self._writer.load() is not None:
            self._replace()


def _head() -> bytes:
    return (_TITLE + boot_id()).ljust(_SLOTS_AT, b"\0")


def _secret() -> int:
    """What makes the checks of another start of the machine fail."""
    boot = boot_id()
    return int.from_bytes(boot[:8], "big") ^ int.from_bytes(boot[8:], "big")
