"""The bytes that a broker keeps for its clients, all together, and who waits until there is room.

Counted are requests from their arrival to their answer, large ones from the moment that their length is known, and
responses until the client has taken them. Back-pressure instead of memory:

```
used < most * 3/4       everybody is served
used >= most * 3/4      no large request begins to be read; the rest is for small ones and for responses
used >= most            a connection that has requests in flight is not read from; a fetch returns little
used >= most * 5/4      nothing is read from any connection, and no fetch is answered
```

So clients with small requests go on while somebody with large ones has filled the rest. A request that is as large as
the whole budget begins when little else is there.

Who has to wait stands in a line, and is called in its order. Large requests have a line of their own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Protocol


class Waiter(Protocol):
    """Somebody who waits for room."""

    def resume(self) -> bool:
        """There is room. Whether it was enough; else it stays in the line."""


class _Awaited:
    """A coroutine that waits for room."""

    __slots__ = ("woken",)

    def __init__(self, woken: asyncio.Future[None]) -> None:
        self.woken = woken

    def resume(self) -> bool:
        if not self.woken.done():
            self.woken.set_result(None)
        return True


class Budget:
    """What all connections share. `soon` calls something in the loop's next turn."""

    __slots__ = ("_is_calling", "_large", "_line", "_soon", "most_bytes", "promised_bytes", "used_bytes")

    def __init__(self, most_bytes: int, soon: Callable[[Callable[[], None]], object]) -> None:
        self.most_bytes = most_bytes
        #: Connections add to it themselves; who gives back calls `give`.
        self.used_bytes = 0
        #: What has been read for responses that are not counted yet.
        self.promised_bytes = 0
        self._soon = soon
        #: Who waits for any room, and who waits for much of it, in their order.
        self._line: dict[Waiter, None] = {}
        self._large: dict[Waiter, None] = {}
        self._is_calling = False

    @property
    def is_full(self) -> bool:
        """Whether nobody should have more than one request."""
        return self.used_bytes + self.promised_bytes >= self.most_bytes

    @property
    def is_over(self) -> bool:
        """Whether nothing more should be read or answered at all."""
        return self.used_bytes + self.promised_bytes >= self.most_bytes + (self.most_bytes >> 2)

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._line or self._large)

    def room_bytes(self) -> int:
        """What is left."""
        return max(self.most_bytes - self.used_bytes - self.promised_bytes, 0)

    # --- taking and giving back

    def reserve(self, size_bytes: int, who: Waiter) -> bool:
        """Take the bytes of a large request before they have come, if there is room and nobody was there before. Else
        stand in the line."""
        is_next = not self._large or next(iter(self._large)) is who
        quarter = self.most_bytes >> 2
        fits = self.used_bytes + size_bytes <= self.most_bytes - quarter or self.used_bytes <= quarter
        if is_next and fits:
            self.used_bytes += size_bytes
            return True
        self._large[who] = None
        return False

    def give(self, size_bytes: int) -> None:
        """Bytes are no longer needed."""
        self.used_bytes -= size_bytes
        if (self._line or self._large) and not self._is_calling:
            self._is_calling = True
            self._soon(self._call)

    def promise(self, size_bytes: int) -> None:
        """Count what was read for a response, until the connection counts it, at the latest in the loop's next turn:
        many fetches may be woken by the same record."""
        if not self.promised_bytes:
            self._soon(self._forget_soon)
        self.promised_bytes += size_bytes

    def _forget_soon(self) -> None:
        self._soon(self._forget)

    def _forget(self) -> None:
        self.promised_bytes = 0
        self.give(0)

    def lift(self) -> None:
        """Let everybody go on who waits: the broker is stopping."""
        self.most_bytes = sys.maxsize
        self.give(0)

    # --- waiting

    def wait(self, who: Waiter) -> None:
        """Stand in the line."""
        self._line[who] = None

    def leave(self, who: Waiter) -> None:
        """Do not wait any longer."""
        self._line.pop(who, None)
        if who in self._large:
            del self._large[who]
            self.give(0)

    async def room(self) -> None:
        """Wait in the line."""
        waiter = _Awaited(asyncio.get_running_loop().create_future())
        self.wait(waiter)
        try:
            await waiter.woken
        finally:
            self.leave(waiter)

    def _call(self) -> None:
        """Call those who can go on now. Whoever stands in the line again is not called again before the next time."""
        self._is_calling = False
        for who in list(self._line):
            if self.is_full:
                break
            if self._line.pop(who, self) is None:
                who.resume()
        while self._large:
            first = next(iter(self._large))
            if not first.resume():
                return
            self._large.pop(first, None)
