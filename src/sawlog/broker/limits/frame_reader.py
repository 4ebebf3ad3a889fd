"""`FrameReader`: frames from the bytes of one connection.

All connections read into one shared buffer, which the event loop fills and the reader empties immediately, so a
connection without a request has no memory of its own. The start of a small frame is kept until the rest arrives. A
large frame gets its own buffer, from which the log writes it without a copy; its bytes are reserved in the budget
first. The operating system allocates the pages of that buffer only as bytes arrive, so a length that is merely
announced costs no memory.
"""

from __future__ import annotations

from collections import deque
from struct import Struct

import numpy as np

from .budget import MemoryBudget, Waiter

_SIZE = Struct(">i")
#: Minimum size of a request: key, version and correlation id.
MIN_REQUEST_BYTES = 8
READ_BUFFER_BYTES = 64 << 10

#: First bytes of other protocols.
_OTHER_PROTOCOLS = {
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


class InvalidFrameSize(Exception):
    """A frame size outside the allowed range."""

    def __init__(self, size: int, least: int, limit: int, head: bytes) -> None:
        looks = _OTHER_PROTOCOLS.get(head) or _OTHER_PROTOCOLS.get(head[:2])
        hint = "" if looks is None else f"; this looks like {looks}"
        super().__init__(f"a request of {size} bytes; {least} to {limit} are allowed{hint}")


class ReadBuffer:
    """The buffer that all connections of an event loop read into."""

    __slots__ = ("data", "view")

    def __init__(self) -> None:
        self.data = bytearray(READ_BUFFER_BYTES)
        self.view = memoryview(self.data)


class FrameReader:
    """Incomplete frames of one connection. Complete frames go to `queue`."""

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
        "limit_bytes",
        "min_bytes",
        "reserved_bytes",
    )

    def __init__(
        self, read_buffer: ReadBuffer, budget: MemoryBudget, owner: Waiter, queue: deque[memoryview], limit_bytes: int
    ) -> None:
        self._data, self._view = read_buffer.data, read_buffer.view
        self._budget, self._owner, self._queue = budget, owner, queue
        #: Maximum request size. It may change between frames: it is small before authentication.
        self.limit_bytes = limit_bytes
        #: Minimum request size. A message of a SASL mechanism may be smaller than a request.
        self.min_bytes = MIN_REQUEST_BYTES
        self._rest: bytes | bytearray = b""
        self._frame: memoryview | None = None
        self.filled_bytes = 0
        #: Size of the current frame, if known.
        self.expected_bytes = 0
        #: Bytes reserved in the budget for it.
        self.reserved_bytes = 0
        #: Whether the frame waits for room. Nothing may be read until `retry` returns True.
        self.is_waiting = False
        #: Number of complete frames.
        self.count = 0

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes."""
        frame = self._frame
        if frame is not None:
            return frame[self.filled_bytes :]
        rest = self._rest
        if not rest:
            return self._view
        size = len(rest)
        self._data[:size] = rest
        return self._view[size:]

    def received(self, size_bytes: int) -> int:
        """Process received bytes; return the size of the frames now complete, which the caller releases to the budget.
        After `InvalidFrameSize` the connection is unusable."""
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
        """Extract the frames from the shared buffer, which is filled up to `end`."""
        data, start, complete = self._data, 0, 0
        self.expected_bytes = 0
        while end - start >= 4:
            (size,) = _SIZE.unpack_from(data, start)
            if not self.min_bytes <= size <= self.limit_bytes:
                raise InvalidFrameSize(size, self.min_bytes, self.limit_bytes, bytes(data[start : start + 4]))
            first = start + 4
            after = first + size
            if after > end:
                self.expected_bytes = size
                if size > READ_BUFFER_BYTES - 4 and self._begin_large(size, first, end):
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
        """Allocate the buffer of a large frame if there is room."""
        self.is_waiting = not self._budget.reserve(size, self._owner)
        if self.is_waiting:
            return False
        self.reserved_bytes = size
        self._frame = memoryview(np.empty(size, np.uint8))
        self._frame[: end - first] = self._view[first:end]
        self.filled_bytes = end - first
        return True

    def retry(self) -> bool:
        """Try again to allocate the buffer of a frame that waits for room; return whether nothing waits any more."""
        if self.is_waiting:
            size = len(self._rest)
            self._data[:size] = self._rest
            self._cut(size)
        return not self.is_waiting

    def close(self) -> int:
        """Drop everything; return the bytes to release to the budget."""
        reserved, self.reserved_bytes = self.reserved_bytes, 0
        self._frame, self._rest, self.is_waiting, self.filled_bytes = None, b"", False, 0
        return reserved
