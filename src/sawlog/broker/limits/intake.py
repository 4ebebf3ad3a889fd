"""Frames out of the bytes of one connection.

All connections read into one buffer, which the loop fills and this empties at once: a connection without a request has
no memory of its own. What is left of a small frame is kept until the rest comes; a large one gets a buffer of its own,
out of which the log writes it without a copy. Before that its bytes are taken from the budget. The buffer's pages
are the system's until bytes come into them, so that a length which is only announced costs nothing.
"""

from __future__ import annotations

from collections import deque
from struct import Struct

import numpy as np

from .budget import Budget, Waiter

_SIZE = Struct(">i")
#: The least that a request has: key, version and correlation id.
LEAST_BYTES = 8
SCRATCH_BYTES = 64 << 10

#: What other protocols begin with.
_STRANGERS = {
    b"\x16\x03": "TLS: this listener speaks plain text, so the client's security.protocol must not be SSL",
    b"\x15\x03": "TLS: this listener speaks plain text, so the client's security.protocol must not be SSL",
    b"GET ": "HTTP: Kafka clients connect here; metrics are served at the address of --metrics",
    b"HEAD": "HTTP: Kafka clients connect here; metrics are served at the address of --metrics",
    b"POST": "HTTP: Kafka clients connect here",
    b"PUT ": "HTTP: Kafka clients connect here",
    b"DELE": "HTTP: Kafka clients connect here",
    b"OPTI": "HTTP: Kafka clients connect here",
    b"PRI ": "HTTP/2: Kafka clients connect here",
    b"CONN": "HTTP: Kafka clients connect here",
    b"SSH-": "SSH",
}


class Oversized(Exception):
    """A length that no request may have."""

    def __init__(self, size: int, least: int, limit: int, head: bytes) -> None:
        looks = _STRANGERS.get(head) or _STRANGERS.get(head[:2])
        hint = "" if looks is None else f"; this looks like {looks}"
        super().__init__(f"a request of {size} bytes; {least} to {limit} are allowed{hint}")


class Scratch:
    """The buffer that all connections of a loop read into."""

    __slots__ = ("data", "view")

    def __init__(self) -> None:
        self.data = bytearray(SCRATCH_BYTES)
        self.view = memoryview(self.data)


class Intake:
    """What one connection has sent and is not a request yet. Complete frames go to `queue`."""

    __slots__ = (
        "_budget",
        "_data",
        "_frame",
        "_owner",
        "_queue",
        "_rest",
        "_view",
        "count",
        "expected_bytes",
        "filled_bytes",
        "is_waiting",
        "least_bytes",
        "limit_bytes",
        "reserved_bytes",
    )

    def __init__(
        self, scratch: Scratch, budget: Budget, owner: Waiter, queue: deque[memoryview], limit_bytes: int
    ) -> None:
        self._data, self._view = scratch.data, scratch.view
        self._budget, self._owner, self._queue = budget, owner, queue
        #: The largest request. It may change between frames: it is small before a client has said who it is.
        self.limit_bytes = limit_bytes
        #: The smallest. A message of a SASL mechanism may have less than a request.
        self.least_bytes = LEAST_BYTES
        self._rest: bytes | bytearray = b""
        self._frame: memoryview | None = None
        self.filled_bytes = 0
        #: The size of the frame that is being read, if that is known.
        self.expected_bytes = 0
        #: What was taken from the budget for it.
        self.reserved_bytes = 0
        #: Whether there is no room for it: nothing may be read until `retry` says so.
        self.is_waiting = False
        #: How many frames were complete.
        self.count = 0

    def buffer(self) -> memoryview:
        """Where the next bytes go."""
        frame = self._frame
        if frame is not None:
            return frame[self.filled_bytes :]
        rest = self._rest
        if not rest:
            return self._view
        size = len(rest)
        self._data[:size] = rest
        return self._view[size:]

    def took(self, size_bytes: int) -> int:
        """So many bytes have come; the bytes of the frames that are complete now, which the caller gives back to the
        budget. After `Oversized` nothing of the connection is of use."""
        if self._frame is None:
            return self._cut(len(self._rest) + size_bytes)
        self.filled_bytes += size_bytes
        expected = self.expected_bytes
        if self.filled_bytes < expected:
            return 0
        self._queue.append(self._frame)
        self.count += 1
        self._frame, self.filled_bytes, self.expected_bytes, self.reserved_bytes = None, 0, 0, 0
        return expected

    def _cut(self, end: int) -> int:
        """Take the frames out of the shared buffer, which is filled up to `end`."""
        data, start, complete = self._data, 0, 0
        self.expected_bytes = 0
        while end - start >= 4:
            (size,) = _SIZE.unpack_from(data, start)
            if not self.least_bytes <= size <= self.limit_bytes:
                raise Oversized(size, self.least_bytes, self.limit_bytes, bytes(data[start : start + 4]))
            first = start + 4
            after = first + size
            if after > end:
                self.expected_bytes = size
                if size > SCRATCH_BYTES - 4 and self._begin_large(size, first, end):
                    start = end
                break
            self._queue.append(memoryview(data[first:after]))  # slicing a bytearray copies
            self.count += 1
            complete += size
            start = after
        self._rest = data[start:end] if start < end else b""
        if self._frame is None:
            self.filled_bytes = end - start
        self._budget.used_bytes += complete
        return complete

    def _begin_large(self, size: int, first: int, end: int) -> bool:
        """Get a buffer for a large frame, if there is room."""
        self.is_waiting = not self._budget.reserve(size, self._owner)
        if self.is_waiting:
            return False
        self.reserved_bytes = size
        self._frame = memoryview(np.empty(size, np.uint8))
        self._frame[: end - first] = self._view[first:end]
        self.filled_bytes = end - first
        return True

    def retry(self) -> bool:
        """Try to get the buffer that there was no room for."""
        if self.is_waiting:
            size = len(self._rest)
            self._data[:size] = self._rest
            self._cut(size)
        return not self.is_waiting

    def close(self) -> int:
        """Forget everything; the bytes to give back to the budget."""
        reserved, self.reserved_bytes = self.reserved_bytes, 0
        self._frame, self._rest, self.is_waiting, self.filled_bytes = None, b"", False, 0
        return reserved
