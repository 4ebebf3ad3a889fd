"""Words: 32-bit numbers in a file that several processes share, and sleeping until one of them changes.

```python
words = Words(view)             # a slice of a shared mapping
words[2] = 7                          # a single store: other processes see the old number or the new one
words.wait(2, 7, seconds)             # sleeps while the word is 7
words.wake(2)                         # wakes every process that sleeps on the word
```

On Linux a process sleeps in the kernel (futex), and `wake` takes effect within microseconds. Elsewhere it looks at the
word every half millisecond, and `wake` does nothing. `wait_any` sleeps on words of several files at once.

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
import platform
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

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


class _Waiter(ctypes.Structure):
    """struct futex_waitv"""

    _fields_ = (
        ("value", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


#: The system call `futex_waitv` (Linux 5.16 and later), the flag for words of 32 bits, and the maximum of words.
_WAITV, _WAITV_U32, _MOST_WAITERS = 449, 2, 128
_CLOCK_MONOTONIC = 1

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


def _find_waitv() -> Callable[[object, int, object], int] | None:
    if _futex is None:
        return None
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    call.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p, ctypes.c_int]

    def waitv(waiters: object, count: int, until: object) -> int:
        found: int = call(_WAITV, waiters, count, 0, until, _CLOCK_MONOTONIC)
        return found

    return waitv


_waitv = _find_waitv()


class Words:
    """Words in a shared mapping, which this object keeps alive. A read-only mapping is enough to sleep."""

    __slots__ = ("_address", "_words")

    def __init__(self, view: memoryview) -> None:
        self._words = view.cast("B").cast("I")
        self._address: int = np.frombuffer(view, np.uint8).ctypes.data
        if self._address % WORD_BYTES:
            raise ValueError("words must be aligned to four bytes")

    def __getitem__(self, at: int) -> int:
        """Return a word."""
        return self._words[at]

    def __setitem__(self, at: int, number: int) -> None:
        """Replace a word, from 0 to 2**32 - 1."""
        self._words[at] = number

    def wait(self, at: int, number: int, seconds: float) -> bool:
        """Sleep while the word is `number`, for at most `seconds`; return True if it has changed. May return early."""
        if self._words[at] != number:
            return True
        if _futex is None:
            return self._poll(at, number, seconds)
        whole = max(int(seconds), 0)
        timeout = _Timespec(whole, max(int((seconds - whole) * 1e9), 0))
        if _futex(self.address(at), _FUTEX_WAIT, number, ctypes.byref(timeout)) != 0:
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):  # such as ENOSYS in a sandbox
                return self._poll(at, number, seconds)
        return self._words[at] != number

    def _poll(self, at: int, number: int, seconds: float) -> bool:
        deadline = Deadline(seconds)
        while self._words[at] == number:
            if deadline.passed:
                return False
            pause(deadline.at_most(POLL_S))
        return True

    def address(self, at: int) -> int:
        """Return the address of a word in memory."""
        return self._address + WORD_BYTES * at

    def wake(self, at: int) -> None:
        """Wake every thread of every process that sleeps on this word. Change the word first."""
        if _futex is not None:
            _futex(self.address(at), _FUTEX_WAKE, _EVERYONE, None)


class WaitPoint(NamedTuple):
    """A word to sleep on while it is `number`."""

    words: Words
    at: int
    number: int

    @property
    def has_changed(self) -> bool:
        """True if there is nothing to wait for."""
        return self.words[self.at] != self.number


def wait_any(points: Sequence[WaitPoint], seconds: float) -> None:
    """Sleep until one of these words changes, or is woken, for at most `seconds`. May return early."""
    if len(points) == 1:
        point = points[0]
        point.words.wait(point.at, point.number, seconds)
        return
    if _waitv is not None and len(points) <= _MOST_WAITERS:
        waiters = (_Waiter * len(points))(
            *(_Waiter(each.number, each.words.address(each.at), _WAITV_U32, 0) for each in points)
        )
        until = time.monotonic_ns() + max(int(seconds * 1e9), 0)
        timeout = _Timespec(until // 10**9, until % 10**9)
        if _waitv(ctypes.byref(waiters), len(points), ctypes.byref(timeout)) >= 0:
            return
        if ctypes.get_errno() in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            return
    deadline = Deadline(seconds)
    while not deadline.passed and not any(each.has_changed for each in points):
        pause(deadline.at_most(POLL_S))
