"""Looking at every connection once in a while: no request costs a timer.

Who takes too long is dropped (`Pace`). If somebody waits for room for longer than a moment, those connections are
dropped that keep the most for no reason of ours: requests that do not go on, or that only wait, and responses that
nobody takes. What the broker itself has not done yet, such as a sync, is nobody's fault, and then everybody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from .limits import Limits
from .pace import Pace, Seen

#: How long somebody waits for room before another one is dropped for it.
PRESSURE_S = 2.0
_SHORTEST_S, _LONGEST_S = 0.02, 1.0


class Watched(Protocol):
    """A connection."""

    @property
    def pace(self) -> Pace:
        """What it does with its time."""

    def seen(self) -> Seen:
        """What it looks like now."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of the budget that are kept because of what the client does or does not."""

    @property
    def is_gone(self) -> bool:
        """Whether the client has gone, and nobody has noticed."""

    def abort(self) -> None:
        """Close it at once."""

    def refuse(self, reason: str, message: str) -> None:
        """Close it, and say why."""


class Watch:
    """Looks at the connections of a listener."""

    def __init__(self, limits: Limits, connections: Callable[[], Iterable[Watched]]) -> None:
        self._limits = limits
        self._connections = connections
        patience = limits.patience
        shortest = min(patience.first_frame_s, patience.frame_s, patience.idle_s)
        self._every_s = min(max(shortest / 4, _SHORTEST_S), _LONGEST_S)
        self._waited_s = 0.0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            self.look()

    def look(self) -> None:
        """Look at all of them once."""
        limits = self._limits
        for connection in list(self._connections()):
            if connection.is_gone:
                connection.abort()
                continue
            late = connection.pace.look(connection.seen(), self._every_s, limits.patience)
            if late is not None:
                connection.refuse(*late)
        limits.notices.tell_left_out()
        self._relieve()

    def _relieve(self) -> None:
        """Drop who keeps the most, until half of it is free, if somebody has waited long enough for room."""
        if not self._limits.budget.is_waited_for:
            self._waited_s = 0.0
            return
        self._waited_s += self._every_s
        if self._waited_s < PRESSURE_S:
            return
        freed, wanted = 0, self._limits.budget.most_bytes >> 1
        for kept, connection in sorted(
            ((each.kept_bytes, each) for each in self._connections()), key=lambda each: each[0], reverse=True
        ):
            if not kept or freed >= wanted:
                return
            freed += kept
            connection.refuse("room", f"it keeps {kept:,} bytes, and others wait for room")
