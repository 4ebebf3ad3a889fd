"""`Published` on files: two numbers in a small file, for readers in other processes.

```
 0   8  "sawlog" and two zero bytes
 8  16  boot id: identifies the boot of the machine during which the slots were written
32   8  the bell: two words of 32 bits, in the byte order of the machine
64  64  two slots: see `sawlog.batch.kernel.Slots`
128 64  16 words of 4 bytes in the byte order of the machine: see `sawlog.log.turns`
```

The file is never synced or replaced: a store changes a few bytes in the page cache, where every process of this machine
sees them, even after the writer was killed. A power cut may leave anything in the file. The boot id is part of each
slot's check value, so that readers reject numbers from before a reboot or from another machine.

For a custom directory that does not implement this, `open_published` falls back to `replace` and `read`.

The writer maps the file where that is safe on a full disk (`system.maps_safely`), and a store then takes 0.05 µs;
elsewhere it writes the slots with `pwrite`. Readers map the file where the writer does, and write only the bell.

A reader that waits for other numbers sets the first word of the bell and sleeps on the second one (words.py). A writer
that finds the first word set after a store clears it, changes the second one, and wakes all sleepers. The processor may
look at the first word before others see the store, so a reader may, very rarely, not be woken: it sleeps for a limited
time. A reader that may not write the file, or cannot map it, does not sleep: there is no
`wait_point`.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from ..batch.kernel import SLOTS_BYTES, Slots
from ..clock import Deadline
from ..errors import DirectoryLocked, StorageError
from .forking import forkable
from .interface import Directory, Published
from .system import Handle, boot_id, fcntl, maps_safely
from .words import WORD_BYTES, WaitPoint, Words

_TITLE = b"sawlog\0\0"
_BOOT_AT, _SLOTS_AT = 8, 64
WORDS_AT, _WORDS_BYTES = _SLOTS_AT + SLOTS_BYTES, 64
_SIZE = WORDS_AT + _WORDS_BYTES
_BELL_AT, _BELL_BYTES = 32, 2 * WORD_BYTES
#: Words of the bell: whether a process sleeps, and a number that changes when it is to wake up.
_FOLLOWED, _WAKE = 0, 1
#: From Python 3.13 on, a mapping does not need to keep a descriptor open.
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
#: Maximum number of reads while a writer is storing.
_TRIES = 100
#: Pauses between two attempts to exclude other processes, which do the same for microseconds.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.00001, 0.001


class PublishedFile:
    """`Published` in a file. Takes ownership of `handle`, which is open for writing if `writable`."""

    #: Replace both numbers, in the mapped page or with `pwrite`.
    store: Callable[[int, int], None]
    #: The mapped slots, if `store` does nothing but write them.
    slots: Slots | None = None
    #: The mapped words; None where the file is not mapped.
    words: memoryview[int] | None = None

    def __init__(self, handle: Handle, *, writable: bool) -> None:
        self._handle: Handle | None = None
        #: The descriptor for `exclusive`, which excludes other descriptions; and the lock that excludes other threads.
        self._locked: Handle | None = None
        self._threads = forkable(threading.Lock())
        self._bell: Words | None = None
        self._slots: Slots
        self._writable = writable
        if writable and not is_published(handle.fd):
            if os.fstat(handle.fd).st_size > _SIZE:
                os.ftruncate(handle.fd, _SIZE)
            # The head last: it marks the file as complete.
            os.pwrite(handle.fd, bytes(_SIZE - _SLOTS_AT), _SLOTS_AT)
            os.pwrite(handle.fd, _head(), 0)
        if maps_safely(handle.fd):
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            view = memoryview(mmap.mmap(handle.fd, _SIZE, access=access, **_UNTRACKED))
            bell = (view if writable else _writable(handle.fd))[_BELL_AT : _BELL_AT + _BELL_BYTES]
            if writable:
                self._locked = handle
            else:
                handle.close()
            self._slots = Slots(view[_SLOTS_AT:WORDS_AT], _secret(), writable)
            self.words = view[WORDS_AT:].cast("I")
            if bell:
                self._bell = Words(bell)
                self._slots.ring_if(bell.cast("I"), partial(_ring, self._bell))
            self.slots = self._slots
            self.store = self._slots.store  # bound directly, to save a call per append
        else:
            self._handle = handle
            self._copy = bytearray(os.pread(handle.fd, SLOTS_BYTES, _SLOTS_AT).ljust(SLOTS_BYTES, b"\0"))
            self._slots = Slots(memoryview(self._copy), _secret(), True)
            self.store = self._write

    def _write(self, first: int, second: int) -> None:
        """Store with `pwrite`, which fails on a full disk. Readers then see old numbers, which is safe as long as the
        first one grows. If it was to decrease, the file is truncated, so that readers reject it."""
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
        """Return the numbers stored since the last boot; None if there are none or they cannot be read."""
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

    def wait_point(self, known: tuple[int, int] | None) -> WaitPoint | None:
        """See `Published.wait_point`."""
        bell = self._bell
        if bell is None:
            return None
        number = bell[_WAKE]
        bell[_FOLLOWED] = 1
        return WaitPoint(bell, _WAKE, number if self.load() == known else number ^ 1)

    @contextmanager
    def exclusive(self, timeout_s: float) -> Iterator[None]:
        """See `Published.exclusive`. The kernel ends it if the process dies."""
        deadline = None
        with self._threads:
            handle = self._locked
            if handle is None or fcntl is None:
                raise StorageError(errno.EBADF, "the file is closed, or is not shared")
            while True:
                try:
                    fcntl.flock(handle.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    deadline = deadline or Deadline(
                        timeout_s, first_pause_s=_FIRST_PAUSE_S, longest_pause_s=_LONGEST_PAUSE_S
                    )
                    deadline.pause(or_raise=DirectoryLocked("the published end", "a process that is stopped"))
            try:
                yield
            finally:
                fcntl.flock(handle.fd, fcntl.LOCK_UN)

    def wake(self) -> None:
        """See `Published.wake`."""
        if self._bell is not None and self._bell[_FOLLOWED]:
            _ring(self._bell)

    def close(self, *, last: bool = True) -> None:
        """Release the mapping; later stores are lost. If this process stored the `last` numbers, copy them to both
        slots first, so that damage to one slot loses nothing."""
        if self._writable and last:
            self._slots.repeat()
        if self._handle is not None:
            try:
                if self._writable and last:
                    os.pwrite(self._handle.fd, self._copy, _SLOTS_AT)
            except OSError:
                pass  # one copy is enough
            self._handle.close()
        if self._locked is not None:
            self._locked.close()
        self._writable = False
        self._locked = None
        self._handle, self._slots = None, Slots(memoryview(bytearray(SLOTS_BYTES)), _secret(), True)
        self.slots, self.store, self.words, self._bell = None, self._slots.store, None, None


def _ring(bell: Words) -> None:
    """Wake all readers."""
    bell[_FOLLOWED] = 0
    bell[_WAKE] = (bell[_WAKE] + 1) % 2**32
    bell.wake(_WAKE)


def _writable(fd: int) -> memoryview:
    """Map the file to write to it; an empty view if it was opened for reading only."""
    try:
        return memoryview(mmap.mmap(fd, _SIZE, access=mmap.ACCESS_WRITE, **_UNTRACKED))
    except OSError:
        return memoryview(b"")


def is_published(fd: int) -> bool:
    """Return whether this module created the file, completely, since the last boot."""
    boot = boot_id()
    head = os.pread(fd, _BOOT_AT + len(boot), 0)
    return bool(boot) and head == _TITLE + boot and os.fstat(fd).st_size == _SIZE


def open_published(directory: Directory, name: str, *, create: bool = False) -> Published | None:
    """Call `Directory.published`, or fall back to methods that every directory has."""
    if hasattr(directory, "published"):
        return directory.published(name, create=create)
    if not boot_id():
        return None
    return PublishedByReplacing(directory, name) if create or directory.exists(name) else None


class PublishedByReplacing:
    """`Published` for a custom directory: replaces a whole file, with the layout of `PublishedFile`, at each store."""

    words: None = None

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory, self._name = directory, name
        self._slots = bytearray(SLOTS_BYTES)
        self._writer = Slots(memoryview(self._slots), _secret(), True)

    def store(self, first: int, second: int) -> None:
        """Replace the file. If that fails, readers see the previous numbers, or none if the first was to decrease."""
        before = self.load()
        self._writer.store(first, second)
        if not self._replace() and before is not None and first < before[0]:
            self._directory.remove(self._name)

    def _replace(self) -> bool:
        try:
            content = _head() + bytes(self._slots) + bytes(_WORDS_BYTES)
            self._directory.replace(self._name, content, durable=False)
        except StorageError:
            return False
        return True

    def load(self) -> tuple[int, int] | None:
        """Read the numbers from the current file."""
        try:
            data = self._directory.read(self._name)
        except StorageError:
            return None
        if len(data) != _SIZE:
            return None
        found: tuple[int, int] | None = Slots(memoryview(data)[_SLOTS_AT:WORDS_AT], _secret(), False).load()
        return found

    def exclusive(self, timeout_s: float) -> nullcontext[None]:
        """Return a block that excludes nothing: without words there is nothing to change together."""
        return nullcontext()

    def wait_point(self, known: tuple[int, int] | None) -> None:
        """Return None: only a shared mapping can be waited for."""

    def wake(self) -> None:
        """No-op: no process sleeps."""

    def close(self, *, last: bool = True) -> None:
        """Copy the current numbers to both slots. There is no handle to close."""
        if not last:
            return
        self._writer.repeat()
        if self._writer.load() is not None:
            self._replace()


def _head() -> bytes:
    return (_TITLE + boot_id()).ljust(_SLOTS_AT, b"\0")


def _secret() -> int:
    """Return a number derived from the boot id, which makes check values from another boot fail."""
    boot = boot_id()
    return int.from_bytes(boot[:8], "big") ^ int.from_bytes(boot[8:], "big")
