"""`SendQueue`: responses that the client has not read yet.

Responses do not copy batches: they contain views of mapped files, which cost no memory as long as they stay views. An
event loop may copy what a socket does not accept immediately. The queue therefore passes on one chunk at a time and the
next one when the kernel has accepted it, so a stalled client pins one chunk of broker memory, not everything it asked
for. A large response that is not part of a mapped file does occupy memory and is counted.

The kernel accepts megabytes per connection. So that hundreds of consumers with large fetches do not starve other
clients of the event loop, all connections together write about `BYTES_PER_ITERATION` per iteration (`WriteScheduler`).
"""

from __future__ import annotations

from asyncio import WriteTransport
from collections import deque
from collections.abc import Callable, Sequence

from ...storage.mapped import copied_bytes
from .budget import MemoryBudget

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
        """Whether this iteration's share is used up."""
        return self._left_bytes <= 0

    def wrote(self, size_bytes: int) -> None:
        """Count written bytes."""
        self._left_bytes -= size_bytes
        self._begin_soon()

    def wait(self, resume: Callable[[], None]) -> None:
        """Call the function in a later iteration."""
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
        #: Whether it waits for a later iteration.
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
        """Drop all responses."""
        self._buffers.clear()
        self.size_bytes = self.copied_bytes = 0
