"""`ConnectionMonitor`: periodic checks of every connection, so that no request needs a timer.

Connections that exceed a timeout are dropped (`ProgressTracker`). If anything waits for room for longer than
`PRESSURE_S`, the monitor drops the connections that pin the most memory through their own behaviour: stalled or merely
waiting requests, and unread responses. Work that the broker itself has not finished, such as a sync, is never a reason
to drop a connection; then all clients wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from .limits import Limits
from .progress import ProgressSample, ProgressTracker

#: How long a request waits for room before other connections are dropped.
PRESSURE_S = 2.0
_SHORTEST_S, _LONGEST_S = 0.02, 1.0


class MonitoredConnection(Protocol):
    """A connection as the monitor sees it."""

    @property
    def progress(self) -> ProgressTracker:
        """Progress of the connection."""

    def sample(self) -> ProgressSample:
        """Return the current state."""

    @property
    def pinned_bytes(self) -> int:
        """Bytes of the budget that the client's behaviour pins."""

    @property
    def is_gone(self) -> bool:
        """Whether the client has disconnected unnoticed."""

    def abort(self) -> None:
        """Close the connection immediately."""

    def refuse(self, reason: str, message: str) -> None:
        """Close the connection and log why."""


class ConnectionMonitor:
    """Checks the connections of a listener."""

    def __init__(self, limits: Limits, connections: Callable[[], Iterable[MonitoredConnection]]) -> None:
        self._limits = limits
        self._connections = connections
        timeouts = limits.timeouts
        shortest = min(timeouts.first_frame_s, timeouts.frame_s, timeouts.idle_s)
        self._every_s = min(max(shortest / 4, _SHORTEST_S), _LONGEST_S)
        self._waited_s = 0.0

    async def run(self) -> None:
        """Check periodically until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            self.look()

    def look(self) -> None:
        """Check all connections once."""
        limits = self._limits
        for connection in list(self._connections()):
            if connection.is_gone:
                connection.abort()
                continue
            late = connection.progress.look(connection.sample(), self._every_s, limits.timeouts)
            if late is not None:
                connection.refuse(*late)
        limits.rate_limited_log.report_suppressed()
        self._relieve()

    def _relieve(self) -> None:
        """If a request has waited too long for room, drop the connections that pin the most until half the budget is
        free."""
        if not self._limits.budget.has_waiters:
            self._waited_s = 0.0
            return
        self._waited_s += self._every_s
        if self._waited_s < PRESSURE_S:
            return
        freed, wanted = 0, self._limits.budget.max_bytes >> 1
        for kept, connection in sorted(
            ((each.pinned_bytes, each) for each in self._connections()), key=lambda each: each[0], reverse=True
        ):
            if not kept or freed >= wanted:
                return
            freed += kept
            connection.refuse("room", f"it pins {kept:,} bytes while others wait for room")
