"""What a client was sent and has not taken.

Batches are not read for a response: they are views of mapped files, which cost nothing as long as they stay views. An
event loop may copy what a socket does not take at once. It is therefore given a piece at a time, and the next one when
the system has taken that. So a client that asks for much and takes nothing of it keeps a piece of memory, not what it
asked for. A large response that does not come out of a mapped file is memory all the same, and is counted.
"""

from __future__ import annotations

from asyncio import WriteTransport
from collections import deque
from collections.abc import Sequence

from ...storage.mapped import copied_bytes
from .budget import Budget

#: What the event loop gets at once; the second if there is little room.
PIECE_BYTES, SMALL_PIECE_BYTES = 1 << 20, 32 << 10
#: What may wait in the event loop: above it the transport says that it is full, and says when it is not any more.
#: Less is often written later in the same turn, with what follows it.
FULL_BYTES = SMALL_PIECE_BYTES >> 1

Piece = bytes | bytearray | memoryview


class Outbox:
    """The responses of one connection on their way to its transport."""

    __slots__ = ("_budget", "_buffers", "copied_bytes", "size_bytes")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._buffers: deque[Piece] = deque()
        #: What the transport has not got, and how much of that is memory.
        self.size_bytes = self.copied_bytes = 0

    def send(self, transport: WriteTransport, buffers: Sequence[Piece], size_bytes: int) -> None:
        """Send responses after those that are there."""
        if size_bytes <= SMALL_PIECE_BYTES and not self._buffers:
            transport.writelines(buffers)  # most responses
            return
        self._buffers += buffers
        self.size_bytes += size_bytes
        self.copied_bytes += copied_bytes(buffers)
        self.feed(transport)

    def feed(self, transport: WriteTransport) -> None:
        """Give the transport as much as it can pass on. It calls again when it can pass on more."""
        while self._buffers and transport.get_write_buffer_size() <= FULL_BYTES and not transport.is_closing():
            room = self._budget.room_bytes() > self._budget.most_bytes >> 1
            transport.writelines(self._next(PIECE_BYTES if room else SMALL_PIECE_BYTES))

    def _next(self, size_bytes: int) -> list[Piece]:
        """Take about so many bytes from the front."""
        taken: list[Piece] = []
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
        """Forget everything."""
        self._buffers.clear()
        self.size_bytes = self.copied_bytes = 0
