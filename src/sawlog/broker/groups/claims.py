"""`GroupClaim`: a broker's hold on one group, while it has members or somebody needs it.

It is taken before the first member joins, so that no consumer that opens the store itself joins as well, and released
when nobody uses it, after everything that members committed is written (`topics.groups.serving`).

All methods belong to the event loop's thread; taking and releasing run in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ...errors import GroupActive
from ...topics.served import ClaimAttempt, Taken
from .commits import Run

#: How often to look whether a member that sends no heartbeats has expired.
_PAUSE_S = 0.25


class GroupClaim:
    """Being the one that admits members to a group."""

    def __init__(
        self,
        new_claim: Callable[[], ClaimAttempt],
        run: Run,
        *,
        is_needed: Callable[[], bool],
        before_release: Callable[[], Awaitable[None]],
    ) -> None:
        self._new_claim = new_claim
        self._run = run
        #: Whether the group has members, or anything else for which it must be kept.
        self._is_needed = is_needed
        self._before_release = before_release
        self._served: Taken | None = None
        self._users = 0
        self._changing = asyncio.Lock()
        self._releasing: asyncio.Task[None] | None = None

    @property
    def is_held(self) -> bool:
        """Whether it is held: what is committed now is written before it is released."""
        return self._served is not None

    @property
    def is_lost(self) -> bool:
        """Whether somebody else has it by now."""
        return self._served is not None and not self._served.current

    @property
    def is_idle(self) -> bool:
        """Whether it is not held, and nobody is about to use it."""
        return self._served is None and not self._users and not self._changing.locked()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold it in this block, and after it as long as it is needed. `GroupActive` if others are in the group."""
        self._users += 1
        try:
            if self._served is None:
                # Not cancelled with the request: it would be held, and nobody would know.
                taking = asyncio.ensure_future(self._take())
                taking.add_done_callback(lambda done: done.cancelled() or done.exception())
                await asyncio.shield(taking)
            yield
        finally:
            self._users -= 1
            self.let_go()

    async def _take(self) -> None:
        async with self._changing:
            if self._served is None and self._users:
                claim = self._new_claim()
                try:
                    self._served = await self._attempt(claim)
                finally:
                    await self._run(claim.close)

    async def _attempt(self, claim: ClaimAttempt) -> Taken:
        """Take it; wait for the session of a member that does not say anything."""
        while True:
            try:
                return await self._run(claim.take)
            except GroupActive:
                await asyncio.sleep(_PAUSE_S)
                if not await self._run(lambda: claim.may_succeed):
                    raise

    @property
    def _is_used(self) -> bool:
        return self._users > 0 or self._is_needed()

    def let_go(self) -> None:
        """Release it soon, if nobody needs it."""
        if not self._is_used and self._releasing is None:
            self._releasing = asyncio.ensure_future(self._release())

    async def _release(self) -> None:
        try:
            async with self._changing:
                while self._served is not None and not self._is_used:
                    await self._before_release()
                    if not self._is_used:
                        served, self._served = self._served, None
                        await self._run(served.release)
        finally:
            self._releasing = None

    async def close(self) -> None:
        """Release it if nobody needs it, and wait until that is done."""
        self.let_go()
        if self._releasing is not None:
            await self._releasing
        async with self._changing:
            pass  # somebody who has given up may still be taking it
