"""The limits of one broker: sizes, connections, and rate-limited log lines about refused clients.

`RateLimitedLog` writes a bounded number of lines per reason and window, so that a flood of errors cannot fill a disk.
It counts the suppressed lines and reports them later, or when the broker stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from ..config import BrokerConfig
from ..metrics import Metrics
from .budget import MemoryBudget
from .frame_reader import ReadBuffer
from .monitor import ConnectionTimeouts
from .send_queue import WriteScheduler

_logger = logging.getLogger("sawlog.broker")

#: Maximum number of lines per reason and window, and the length of the window.
MAX_LINES, WINDOW_S = 10, 60.0
_SUPPRESSED = ("%s more line like that about %r was left out", "%s more lines like those about %r were left out")


class _Window:
    """The lines written for one reason."""

    __slots__ = ("count", "level", "since_s", "suppressed")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.count = 0
        self.suppressed = 0
        self.level = logging.WARNING


class RateLimitedLog:
    """Writes log lines sparingly. Reasons are constants in the code, so there are few of them."""

    def __init__(self, now: Callable[[], float], *, max_lines: int = MAX_LINES, window_s: float = WINDOW_S) -> None:
        self._now = now
        self._max_lines = max_lines
        self._window_s = window_s
        self._windows: dict[str, _Window] = {}

    def tell(
        self,
        reason: str,
        message: str,
        *args: object,
        level: int = logging.WARNING,
        error: Exception | None = None,
        max_lines: int | None = None,
    ) -> None:
        """Write a line, with the traceback of `error`, unless this reason has had `max_lines` in this window."""
        now = self._now()
        window = self._windows.get(reason)
        if window is None:
            window = self._windows[reason] = _Window(now)
        elif now - window.since_s >= self._window_s:
            self._report(reason, window)
            window.since_s, window.count = now, 0
        if window.count >= (self._max_lines if max_lines is None else max_lines):
            window.suppressed += 1
            window.level = level
            return
        window.count += 1
        _logger.log(level, message, *args, exc_info=error)

    def report_suppressed(self) -> None:
        """Report the lines suppressed in windows that have ended."""
        now = self._now()
        for reason, window in list(self._windows.items()):
            if now - window.since_s >= self._window_s:
                self._report(reason, window)
                del self._windows[reason]

    def end(self) -> None:
        """Report all suppressed lines. Call this when the broker stops."""
        for reason, window in self._windows.items():
            self._report(reason, window)

    def _report(self, reason: str, window: _Window) -> None:
        if window.suppressed:
            _logger.log(window.level, _SUPPRESSED[window.suppressed > 1], f"{window.suppressed:,}", reason)
            window.suppressed = 0


#: Bytes of unread responses of one connection above which its next request is not answered.
_UNREAD_BYTES_MAX = 4 << 20
#: Minimum size limit of a fetch response while the budget is nearly used up.
_FETCH_BYTES_MIN = 64 << 10


class Limits:
    """Limits shared by all connections of a broker. `descriptors` is the process's limit of open files and sockets."""

    def __init__(
        self, config: BrokerConfig, metrics: Metrics, loop: asyncio.AbstractEventLoop, descriptors: int
    ) -> None:
        self._config = config
        self._metrics = metrics
        self.rate_limited_log = RateLimitedLog(loop.time)
        # The largest allowed request must fit.
        self.budget = MemoryBudget(max(config.max_buffered_bytes, config.max_request_bytes), loop.call_soon)
        self.write_scheduler = WriteScheduler(loop.call_soon)
        self.unread_bytes = min(max(self.budget.max_bytes >> 5, _FETCH_BYTES_MIN), _UNREAD_BYTES_MAX)
        self.read_buffer = ReadBuffer()
        self.timeouts = ConnectionTimeouts(
            config.first_frame_timeout_s,
            config.frame_timeout_s,
            config.idle_timeout_s,
            config.min_frame_bytes_per_s,
        )
        # Partition files need descriptors as well.
        self._max_connections = max(min(config.max_connections, descriptors * 3 // 4), 1)
        self._by_address: Counter[str] = Counter()
        self._total = 0

    # --- sizes

    def frame_bytes(self, is_authenticated: bool) -> int:
        """Return the maximum request size. Without a SASL mechanism, every client counts as authenticated."""
        most = self._config.max_request_bytes
        return most if is_authenticated else min(most, self._config.max_unauthenticated_request_bytes)

    def fetch_bytes(self, asked: int) -> int:
        """Return the maximum size of a fetch response, which shrinks as unread responses fill the budget."""
        return min(asked, self._config.max_fetch_bytes, max(self.budget.available_bytes() >> 2, _FETCH_BYTES_MIN))

    # --- connections

    def admit(self, address: str) -> bool:
        """Count a new connection and return True, or refuse it. Do not call `leave` for a refused connection."""
        if self._total >= self._max_connections:
            self.refuse("connections", address, f"{self._total:,} connections are open, the maximum")
            return False
        if self._by_address[address] >= self._config.max_connections_per_address:
            count = self._by_address[address]
            self.refuse("address", address, f"{count:,} connections from this address are open, the maximum")
            return False
        self._total += 1
        self._by_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Uncount an admitted connection that closed."""
        self._total -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def refuse(self, reason: str, address: str, message: str) -> None:
        """Count and log a connection that is closed for a reason."""
        self._metrics.rejected[reason] += 1
        level = logging.DEBUG if reason == "idle" else logging.WARNING
        self.rate_limited_log.tell(reason, "the connection of %s was closed: %s", address, message, level=level)
