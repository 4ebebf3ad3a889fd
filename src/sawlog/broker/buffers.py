"""`MemoryBudget` limits the memory of all clients; `FrameReader` and `SendQueue` are the buffers that it counts.

**`MemoryBudget`** counts requests from their arrival to their response (large ones from the moment their length is
known), and responses until the client has read them. The broker applies back-pressure instead of using more memory:

```
used < max * 3/4        all requests are served
used >= max * 3/4       no new large request is read; the rest is for small requests and responses
used >= max             a connection with requests in flight is not read from; fetches return little
used >= max * 5/4       nothing is read from any connection, and no fetch is answered
```

Clients with small requests therefore continue while large requests fill the rest. A request as large as the whole
budget starts when little else is in memory. Waiters are woken in order; large requests have their own queue.

**`FrameReader`** cuts frames from the bytes of one connection. All connections read into one shared buffer, which the
event loop fills and the reader empties immediately, so a connection without a request has no memory of its own. The
start of a small frame is kept until the rest arrives. A large frame gets its own buffer, from which the log writes it
without a copy; its bytes are reserved in the budget first. The operating system allocates the pages of that buffer only
as bytes arrive, so a length that is merely announced costs no memory.

**`SendQueue`** holds the responses that a client has not read. Responses contain views of mapped files, which cost no
memory as long as they stay views. An event loop may copy what a socket does not accept immediately. The queue therefore
passes on one chunk at a time and the next one when the kernel has accepted it, so a stalled client pins one chunk of
broker memory, not everything it asked for. A large response that is not part of a mapped file does occupy memory and is
counted. The kernel accepts megabytes per connection, so all connections together write about `BYTES_PER_ITERATION` per
iteration of the event loop (`WriteScheduler`): hundreds of consumers with large fetches do not starve other clients.

Everything here belongs to the event loop's thread. Nothing is done per record; the cost per request is a few additions.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import WriteTransport
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct

import numpy as np

from ..storage.mapped import copied_bytes

#: Continues a party that waits for room. Returns False to stay in the queue.
Waiter = Callable[[], bool]


class MemoryBudget:
    """The memory shared by all connections. `soon` schedules a call for the next iteration of the event loop."""

    __slots__ = ("_large", "_queue", "_soon", "_wakes_soon", "max_bytes", "promised_bytes", "used_bytes")

    def __init__(self, max_bytes: int, soon: Callable[[Callable[[], None]], object]) -> None:
        self.max_bytes = max_bytes
        #: Connections add to it directly; `release` subtracts.
        self.used_bytes = 0
        #: Bytes read for responses that are not counted yet.
        self.promised_bytes = 0
        self._soon = soon
        #: Waiters for any room, and waiters for a large request, in order.
        self._queue: dict[Waiter, None] = {}
        self._large: dict[Waiter, None] = {}
        self._wakes_soon = False

    @property
    def is_full(self) -> bool:
        """True if no connection should have more than one request in flight."""
        return self.used_bytes + self.promised_bytes >= self.max_bytes

    @property
    def is_overdrawn(self) -> bool:
        """True if nothing more should be read or answered."""
        return self.used_bytes + self.promised_bytes >= self.max_bytes + (self.max_bytes >> 2)

    @property
    def has_waiters(self) -> bool:
        return bool(self._queue or self._large)

    def available_bytes(self) -> int:
        return max(self.max_bytes - self.used_bytes - self.promised_bytes, 0)

    # --- reserving and releasing

    def reserve(self, size_bytes: int, waiter: Waiter) -> bool:
        """Reserve the bytes of a large request before they arrive, if there is room and no earlier waiter. Otherwise
        join the queue and return False."""
        is_next = not self._large or next(iter(self._large)) == waiter
        quarter = self.max_bytes >> 2
        fits = self.used_bytes + size_bytes <= self.max_bytes - quarter or self.used_bytes <= quarter
        if is_next and fits:
            self.used_bytes += size_bytes
            return True
        self._large[waiter] = None
        return False

    def release(self, size_bytes: int) -> None:
        """Return bytes to the budget and wake waiters soon."""
        self.used_bytes -= size_bytes
        if (self._queue or self._large) and not self._wakes_soon:
            self._wakes_soon = True
            self._soon(self._wake)

    def promise(self, size_bytes: int) -> None:
        """Count bytes read for a response until the connection counts them, at the latest in the next iteration of the
        event loop: one record may wake many fetches."""
        if not self.promised_bytes:
            self._soon(self._forget_soon)
        self.promised_bytes += size_bytes

    def _forget_soon(self) -> None:
        self._soon(self._forget)

    def _forget(self) -> None:
        self.promised_bytes = 0
        self.release(0)

    def lift_limit(self) -> None:
        """Wake all waiters: the broker is stopping."""
        self.max_bytes = sys.maxsize
        self.release(0)

    # --- waiting

    def wait(self, waiter: Waiter) -> None:
        self._queue[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        self._queue.pop(waiter, None)
        if waiter in self._large:
            del self._large[waiter]
            self.release(0)

    async def wait_for_room(self) -> None:
        """Block until there may be room."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def resume() -> bool:
            if not woken.done():
                woken.set_result(None)
            return True

        self.wait(resume)
        try:
            await woken
        finally:
            self.leave(resume)

    def _wake(self) -> None:
        """Wake the waiters that can continue. A waiter that joins the queue again is not woken again this time."""
        self._wakes_soon = False
        for waiter in list(self._queue):
            if self.is_full:
                break
            if waiter in self._queue:
                del self._queue[waiter]
                waiter()
        while self._large:
            first = next(iter(self._large))
            if not first():
                return
            self._large.pop(first, None)


_SIZE = Struct(">i")
#: Minimum size of a request: key, version and correlation id.
MIN_REQUEST_BYTES = 8
READ_BUFFER_BYTES = 64 << 10

_TLS = "TLS: this listener speaks plain text, so the client's security.protocol must not be SSL"
_HTTP = "HTTP: Kafka clients connect here; metrics are served at the address of --metrics"
#: First bytes of other protocols.
_OTHER_PROTOCOLS = {
    **dict.fromkeys((b"\x16\x03", b"\x15\x03"), _TLS),
    **dict.fromkeys((b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"CONN"), _HTTP),
    b"PRI ": "HTTP/2: Kafka clients connect here",
    b"SSH-": "SSH",
}


class InvalidFrameSize(Exception):
    """A frame size outside the allowed range."""

    def __init__(self, size: int, least: int, limit: int, head: bytes) -> None:
        looks = _OTHER_PROTOCOLS.get(head) or _OTHER_PROTOCOLS.get(head[:2])
        hint = "" if looks is None else f"; this looks like {looks}"
        super().__init__(f"a request of {size} bytes; {least} to {limit} are allowed{hint}")


class FrameReader:
    """Incomplete frames of one connection. Complete frames go to `queue`."""

    def __init__(
        self, shared: bytearray, budget: MemoryBudget, owner: Waiter, queue: deque[memoryview], limit_bytes: int
    ) -> None:
        self._data, self._view = shared, memoryview(shared)
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
        #: True if the frame waits for room. Nothing may be read until `retry` returns True.
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


#: Size of a chunk; the second applies if there is little room.
CHUNK_BYTES, SMALL_CHUNK_BYTES = 1 << 20, 32 << 10
#: High-water mark of the transport's buffer, above which it pauses writing. Smaller writes are often merged with what
#: follows in the same iteration.
HIGH_WATER_BYTES = SMALL_CHUNK_BYTES >> 1

#: Bytes that all connections write per iteration of the event loop, apart from small responses.
BYTES_PER_ITERATION = 1 << 20

Chunk = bytes | bytearray | memoryview


class WriteScheduler:
    """Shares the event loop between connections with much to send, first come, first served."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._left_bytes = BYTES_PER_ITERATION
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False

    @property
    def is_over(self) -> bool:
        """True if this iteration's share is used up."""
        return self._left_bytes <= 0

    def wrote(self, size_bytes: int) -> None:
        """Count written bytes."""
        self._left_bytes -= size_bytes
        self._begin_soon()

    def wait(self, resume: Callable[[], None]) -> None:
        self._waiting.append(resume)
        self._begin_soon()

    def _begin_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._soon(self._begin)

    def _begin(self) -> None:
        self._is_due = False
        self._left_bytes = BYTES_PER_ITERATION
        for _ in range(len(self._waiting)):
            if self.is_over:
                break
            self._waiting.popleft()()
        if self._waiting:
            self._begin_soon()


class SendQueue:
    """Responses of one connection on their way to its transport."""

    __slots__ = ("_budget", "_buffers", "_resume", "_scheduler", "copied_bytes", "is_waiting", "size_bytes")

    def __init__(self, budget: MemoryBudget, scheduler: WriteScheduler, resume: Callable[[], None]) -> None:
        self._budget = budget
        self._scheduler = scheduler
        #: Called when more can be sent.
        self._resume = resume
        #: True if it waits for a later iteration.
        self.is_waiting = False
        self._buffers: deque[Chunk] = deque()
        #: Bytes not passed to the transport yet, and how many of them occupy memory.
        self.size_bytes = self.copied_bytes = 0

    def send(self, transport: WriteTransport, buffers: Sequence[Chunk], size_bytes: int) -> None:
        """Send responses after those already queued."""
        if size_bytes <= SMALL_CHUNK_BYTES and not self._buffers:
            transport.writelines(buffers)  # most responses
            return
        self._buffers += buffers
        self.size_bytes += size_bytes
        self.copied_bytes += copied_bytes(buffers)
        self.feed(transport)

    def feed(self, transport: WriteTransport) -> None:
        """Pass on as much as the transport and this iteration allow. `resume` is called when more can be sent."""
        while self._buffers and transport.get_write_buffer_size() <= HIGH_WATER_BYTES and not transport.is_closing():
            if self._scheduler.is_over:
                self._wait()
                return
            room, before = self._budget.available_bytes() > self._budget.max_bytes >> 1, self.size_bytes
            transport.writelines(self._next(CHUNK_BYTES if room else SMALL_CHUNK_BYTES))
            self._scheduler.wrote(before - self.size_bytes)

    def _wait(self) -> None:
        if not self.is_waiting:
            self.is_waiting = True
            self._scheduler.wait(self._turn_begins)

    def _turn_begins(self) -> None:
        self.is_waiting = False
        self._resume()

    def _next(self, size_bytes: int) -> list[Chunk]:
        """Remove about `size_bytes` from the front."""
        taken: list[Chunk] = []
        while self._buffers and size_bytes > 0:
            first = self._buffers.popleft()
            if len(first) > size_bytes:
                whole = memoryview(first)
                first = whole[:size_bytes]
                self._buffers.appendleft(whole[size_bytes:])
            taken.append(first)
            size_bytes -= len(first)
        self.size_bytes -= sum(map(len, taken))
        self.copied_bytes -= copied_bytes(taken)
        return taken

    def clear(self) -> None:
        self._buffers.clear()
        self.size_bytes = self.copied_bytes = 0
