"""`MemoryBudget`: the bytes that a broker buffers for its clients, and the queues for room.

It counts requests from their arrival to their response (large ones from the moment their length is known), and
responses until the client has read them. The broker applies back-pressure instead of using more memory:

```
used < max * 3/4        all requests are served
used >= max * 3/4       no new large request is read; the rest is for small requests and responses
used >= max             a connection with requests in flight is not read from; fetches return little
used >= max * 5/4       nothing is read from any connection, and no fetch is answered
```

Clients with small requests therefore continue while large requests fill the rest. A request as large as the whole
budget starts when little else is in memory.

Waiters are woken in order. Large requests have their own queue.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Protocol


class Waiter(Protocol):
    """A party that waits for room."""

    def resume(self) -> bool:
        """Continue now that there is room. Return False to stay in the queue."""


class _Awaited:
    """A coroutine that waits for room."""

    __slots__ = ("woken",)

    def __init__(self, woken: asyncio.Future[None]) -> None:
        self.woken = woken

    def resume(self) -> bool:
        if not self.woken.done():
            self.woken.set_result(None)
        return True


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
        """Whether no connection should have more than one request in flight."""
        return self.used_bytes + self.promised_bytes >= self.max_bytes

    @property
    def deadline_passed(self) -> bool:
        """Whether nothing more should be read or answered."""
        return self.used_bytes + self.promised_bytes >= self.max_bytes + (self.max_bytes >> 2)

    @property
    def has_waiters(self) -> bool:
        return bool(self._queue or self._large)

    def available_bytes(self) -> int:
        """Return the free bytes."""
        return max(self.max_bytes - self.used_bytes - self.promised_bytes, 0)

    # --- reserving and releasing

    def reserve(self, size_bytes: int, waiter: Waiter) -> bool:
        """Reserve the bytes of a large request before they arrive, if there is room and no earlier waiter. Otherwise
        join the queue and return False."""
        is_next = not self._large or next(iter(self._large)) is waiter
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
        """Let all waiters continue: the broker is stopping."""
        self.max_bytes = sys.maxsize
        self.release(0)

    # --- waiting

    def wait(self, waiter: Waiter) -> None:
        """Join the queue."""
        self._queue[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        """Leave the queues."""
        self._queue.pop(waiter, None)
        if waiter in self._large:
            del self._large[waiter]
            self.release(0)

    async def wait_for_room(self) -> None:
        """Block until there may be room."""
        waiter = _Awaited(asyncio.get_running_loop().create_future())
        self.wait(waiter)
        try:
            await waiter.woken
        finally:
            self.leave(waiter)

    def _wake(self) -> None:
        """Wake the waiters that can continue. A waiter that joins the queue again is not woken again this time."""
        self._wakes_soon = False
        for waiter in list(self._queue):
            if self.is_full:
                break
            if self._queue.pop(waiter, self) is None:
                waiter.resume()
        while self._large:
            first = next(iter(self._large))
            if not first.resume():
                return
            self._large.pop(first, None)
