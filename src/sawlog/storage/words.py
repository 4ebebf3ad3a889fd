"""Words: 32-bit numbers in a file that several processes share, and sleeping until one of them changes.

```python
words = MappedWords(view)             # a slice of a shared mapping
words[2] = 7                          # a single store: other processes see the old number or the new one
words.wait(2, 7, seconds)             # sleeps while the word is 7
words.wake(2)                         # wakes every process that sleeps on the word
```

On Linux a process sleeps in the kernel (futex), and `wake` takes effect within microseconds. Elsewhere, and where the
file cannot be mapped (`FileWords`), it looks at the word every half millisecond, and `wake` does nothing.

The kernel compares the word with the expected number before it puts the process to sleep, so a wake-up is never lost if
the word changes before `wake` is called:

    sleeper                                       waker
    number = words[at]                            change the state
    look at the state; return if it has changed   words[at] = another number
    words.wait(at, number, seconds)               words.wake(at)

A sleeper must look at the state again when `wait` returns: it also returns early after signals and for calls of `wake`
that were not meant for it. Nothing has to be released: a killed process leaves nothing behind.

Words have the byte order of the machine, because no other machine reads them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from ..clock import Deadline, pause

WORD_BYTES = 4
#: Pause between two looks at a word where the kernel cannot wait for it.
POLL_S = 0.0005

_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_EVERYONE = 2**31 - 1
#: The number of the system call `futex` on 64-bit machines, by `platform.machine()`.
_FUTEX_NUMBERS = {
    "x86_64": 202,
    "aarch64": 98,
    "riscv64": 98,
    "loongarch64": 98,
    "ppc64le": 221,
    "s390x": 238,
}


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


#: futex(address, operation, number, timeout): -1 with errno if it fails.
_Futex = Callable[[int, int, int, object], int]


def _find_futex() -> _Futex | None:
    number = _FUTEX_NUMBERS.get(platform.machine())
    if sys.platform != "linux" or number is None or sys.maxsize < 2**32:
        return None
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return None
    call.restype = ctypes.c_long
    call.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p]

    def futex(address: int, operation: int, value: int, timeout: object) -> int:
        found: int = call(number, address, operation, value, timeout)
        return found

    return futex


_futex = _find_futex()


class Words(ABC):
    """Words that several processes read and write without a lock."""

    __slots__ = ()

    @abstractmethod
    def __getitem__(self, at: int) -> int:
        """Return a word."""

    @abstractmethod
    def __setitem__(self, at: int, number: int) -> None:
        """Replace a word, from 0 to 2**32 - 1."""

    def wait(self, at: int, number: int, seconds: float) -> bool:
        """Sleep while the word is `number`, for at most `seconds`; return True if it has changed. May return early."""
        deadline = Deadline(seconds)
        while self[at] == number:
            if deadline.passed:
                return False
            pause(deadline.at_most(POLL_S))
        return True

    def wake(self, at: int) -> None:
        """Wake every thread of every process that sleeps on this word. Change the word first. No-op: they poll."""


class MappedWords(Words):
    """Words in a shared mapping, which this object keeps alive. A read-only mapping is enough to sleep."""

    __slots__ = ("_address", "_words")

    def __init__(self, view: memoryview) -> None:
        self._words = view.cast("B").cast("I")
        self._address: int = np.frombuffer(view, np.uint8).ctypes.data
        if self._address % WORD_BYTES:
            raise ValueError("words must be aligned to four bytes")

    def __getitem__(self, at: int) -> int:
        return self._words[at]

    def __setitem__(self, at: int, number: int) -> None:
        self._words[at] = number

    def wait(self, at: int, number: int, seconds: float) -> bool:
        """See `Words.wait`."""
        if self._words[at] != number:
            return True
        if _futex is None:
            return super().wait(at, number, seconds)
        whole = max(int(seconds), 0)
        timeout = _Timespec(whole, max(int((seconds - whole) * 1e9), 0))
        if _futex(self._address + WORD_BYTES * at, _FUTEX_WAIT, number, ctypes.byref(timeout)) != 0:
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):  # such as ENOSYS in a sandbox
                return super().wait(at, number, seconds)
        return self._words[at] != number

    def wake(self, at: int) -> None:
        """See `Words.wake`."""
        if _futex is not None:
            _futex(self._address + WORD_BYTES * at, _FUTEX_WAKE, _EVERYONE, None)


class FileWords(Words):
    """Words in a file that must not be mapped, from `position` on. The caller keeps the descriptor open."""

    __slots__ = ("_fd", "_position")

    def __init__(self, fd: int, position: int) -> None:
        self._fd, self._position = fd, position

    def __getitem__(self, at: int) -> int:
        """Return a word; 0 if the file does not reach that far."""
        found = os.pread(self._fd, WORD_BYTES, self._position + WORD_BYTES * at)
        return int.from_bytes(found, sys.byteorder)

    def __setitem__(self, at: int, number: int) -> None:
        os.pwrite(self._fd, number.to_bytes(WORD_BYTES, sys.byteorder), self._position + WORD_BYTES * at)
