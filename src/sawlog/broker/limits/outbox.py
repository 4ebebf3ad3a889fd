"""What a client was sent and has not taken.

Batches are not read for a response: they are views of mapped files, which cost nothing as long as they stay views. An
event loop may copy what a socket does not take at once. It is therefore given a piece at a time, and the next one when
the system has taken that. So a client that asks for much and takes nothing of it keeps a piece of memory, not what it
asked for. A large response that does not come out of a mapped file is memory all the same, and is counted.

The system takes megabytes for each connection. So that hundreds of consumers which ask for much do not keep the event
loop from all others while they are given that, all of them together write a megabyte or two in a turn of the loop
(`Turns`).
"""

from __future__ import annotations

from asyncio import WriteTransport
from collections import deque
from collections.abc import Callable, Sequence

from ...storage.mapped import copied_bytes
from .budget import Budget

#: What the event loop gets at once; the second if there is little room.
PIECE_BYTES, SMALL_PIECE_BYTES = 1 << 20, 32 << 10
#: What may wait in the event loop: above it the transport says that it is full, and says when it is not any more.
#: Less is often written later in the same turn, with what follows it.
FULL_BYTES = SMALL_PIECE_BYTES >> 1

#: What all connections write in one turn of the event loop, but for small responses.
TURN_BYTES = 1 << 20

Piece = bytes | bytearray | memoryview


class Turns:
    """Shares the turns of the event loop between connections that have much to send, in the order in which they ask."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._left_bytes = TURN_BYTES
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False

    @property
    def is_over(self) -> bool:
        """Whether enough was written in this turn."""
        return self._left_bytes <= 0

    def wrote(self, size_bytes: int) -> None:
        """Count what was written."""
        self._left_bytes -= size_bytes
        self._begin_soon()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call it in a later turn."""
        self._waiting.append(go_on)
        self._begin_soon()

    def _begin_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._soon(self._begin)

    def _begin(self) -> None:
        self._is_due = False
        self._left_bytes = TURN_BYTES
        for _ in range(len(self._waiting)):
            if self.is_over:
                break
            self._waiting.popleft()()
        if self._waiting:
            self._begin_soon()


class Outbox:
    """The responses of one connection on their way to its transport."""

    __slots__ = ("_budget", "_buffers", "_go_on", "_turns", "copied_bytes", "is_waiting", "size_bytes")

    def __init__(self, budget: Budget, turns: Turns, go_on: Callable[[], None]) -> None:
        self._budget = budget
        self._turns = turns
        #: Called when it can be fed again.
        self._go_on = go_on
        #: Whether it waits for a turn.
        self.is_waiting = False
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
        """Give the transport as much as it can pass on, and this turn has room for. Who is to call again is told when
        it can pass on more, or when the next turn begins."""
        while self._buffers and transport.get_write_buffer_size() <= FULL_BYTES and not transport.is_closing():
            if self._turns.is_over:
                self._wait()
                return
            room, before = self._budget.room_bytes() > self._budget.most_bytes >> 1, self.size_bytes
            transport.writelines(self._next(PIECE_BYTES if room else SMALL_PIECE_BYTES))
            self._turns.wrote(before - self.size_bytes)

    def _wait(self) -> None:
        if not self.is_waiting:
            self.is_waiting = True
            self._turns.wait(self._turn_begins)

    def _turn_begins(self) -> None:
        self.is_waiting = False
        self._go_on()

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
