"""Enforce limits on sizes, connections and time: clients that exceed them are refused or dropped.

`Limits` admits connections and refuses those over a limit. `RateLimitedLog` writes a bounded number of lines per reason
and window, so that a flood of errors cannot fill a disk. It counts the suppressed lines and reports them later, or when
the broker stops.

A connection has limited time for its first request, for the rest of a request, for reading its responses, and for being
idle (`ProgressTracker`). Time is counted in checks, not by the clock, and only while the broker waits for the client: a
connection is not late while it is not read from for lack of room, or while the broker itself is stalled.

`ConnectionMonitor` checks all connections periodically, so that no request needs a timer. It drops those that exceed a
timeout. If anything waits for room for longer than `PRESSURE_S`, it drops the connections that pin the most memory
through their own behaviour: stalled or merely waiting requests, and unread responses. Work that the broker itself has
not finished, such as a sync, is never a reason to drop a connection; then all clients wait.

Everything here belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from .buffers import READ_BUFFER_BYTES, MemoryBudget, WriteScheduler
from .config import BrokerConfig
from .metrics import Metrics

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

    from .connection import ClientConnection

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

    def log(
        self,
        reason: str,
        message: str,
        *args: object,
        level: int = logging.WARNING,
        error: Exception | None = None,
        max_lines: int | None = None,
    ) -> None:
        """Write a line, with the traceback of `error`, unless the window of this reason is full."""
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


#: Bytes of unread responses of one connection above which its next request is not answered: a part of the budget within
#: these limits.
_UNREAD_BYTES_MIN, _UNREAD_BYTES_MAX = 64 << 10, 4 << 20


class Limits:
    """Limits shared by all connections of a broker. `descriptors` is the process's limit of open files and sockets."""

    def __init__(
        self, config: BrokerConfig, metrics: Metrics, loop: asyncio.AbstractEventLoop, descriptors: int
    ) -> None:
        self.config = config
        self._metrics = metrics
        self.rate_limited_log = RateLimitedLog(loop.time)
        # The largest allowed request must fit.
        self.budget = MemoryBudget(max(config.max_buffered_bytes, config.max_request_bytes), loop.call_soon)
        self.write_scheduler = WriteScheduler(loop.call_soon)
        self.unread_bytes = min(max(self.budget.max_bytes >> 5, _UNREAD_BYTES_MIN), _UNREAD_BYTES_MAX)
        #: All connections read into it.
        self.read_buffer = bytearray(READ_BUFFER_BYTES)
        # Partition files need descriptors as well.
        self._max_connections = max(min(config.max_connections, descriptors * 3 // 4), 1)
        self._by_address: Counter[str] = Counter()
        self._total = 0

    # --- sizes

    def frame_bytes(self, is_authenticated: bool) -> int:
        """Return the maximum request size. Without a SASL mechanism, every client counts as authenticated."""
        most = self.config.max_request_bytes
        return most if is_authenticated else min(most, self.config.max_unauthenticated_request_bytes)

    # --- connections

    def admit(self, address: str) -> bool:
        """Count a new connection and return True, or refuse it. Do not call `leave` for a refused connection."""
        if self._total >= self._max_connections:
            self.refuse("connections", address, f"{self._total:,} connections are open, the maximum")
            return False
        if self._by_address[address] >= self.config.max_connections_per_address:
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
        self.rate_limited_log.log(reason, "the connection of %s was closed: %s", address, message, level=level)


# --- the progress of connections


#: TCP_ESTABLISHED, in the first byte of TCP_INFO.
_ESTABLISHED: Final = 1
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)  # Linux only
#: Maximum number of unsent bytes that the kernel buffers for a connection, beyond those in flight.
UNSENT_BYTES: Final = 1 << 20
_UNSENT: Final = getattr(socket, "TCP_NOTSENT_LOWAT", None)


def prepare(found: TransportSocket | None) -> None:
    """Enable keepalive, so that the kernel detects a dead peer, and limit its send buffer. By default the kernel
    buffers 4 MB for each slow client, and other clients wait while it copies them."""
    if found is not None:
        with suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if _UNSENT is not None:
            with suppress(OSError):
                found.setsockopt(socket.IPPROTO_TCP, _UNSENT, UNSENT_BYTES)


def is_closed(found: TransportSocket) -> bool:
    """True if the peer has closed or reset the connection, even if unread bytes precede that."""
    if _TCP_INFO is None:
        return False
    try:
        return found.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] != _ESTABLISHED
    except OSError:
        return False


#: A connection slower than this may be dropped when others wait for room.
SLOW_BYTES_PER_S = 64 << 10


class ProgressSample(NamedTuple):
    """The state of a connection at one moment."""

    #: Number of complete requests received.
    requests: int
    #: Bytes received of the next request, and its total size if known.
    partial_bytes: int
    expected_bytes: int
    #: True if the broker reads from the connection.
    is_reading: bool
    #: True if a request is in progress.
    is_busy: bool
    #: Bytes of responses that the client has read, and has not read.
    read_bytes: int
    unread_bytes: int


class ProgressTracker:
    """Compares successive samples of one connection."""

    __slots__ = ("_idle_s", "_moved_bytes", "_read_bytes", "_request_s", "_requests", "is_slow")

    def __init__(self) -> None:
        self._requests = 0
        self._read_bytes = 0
        self._moved_bytes = 0
        #: True if the client moved hardly any bytes since the previous check, though it could have.
        self.is_slow = False
        #: Seconds that the current request has been arriving, or has been awaited.
        self._request_s = 0.0
        #: Seconds without bytes received or sent.
        self._idle_s = 0.0

    def check(self, sample: ProgressSample, elapsed_s: float, config: BrokerConfig) -> tuple[str, str] | None:
        """Check the connection again. If it should be closed, return the reason as a keyword and as a sentence."""
        moved_bytes = sample.read_bytes + sample.partial_bytes
        self.is_slow = (
            sample.requests == self._requests
            and (sample.is_reading or sample.unread_bytes > 0)
            and moved_bytes - self._moved_bytes < SLOW_BYTES_PER_S * elapsed_s
        )
        self._moved_bytes = moved_bytes
        if sample.requests != self._requests or sample.read_bytes != self._read_bytes:
            if sample.requests != self._requests:
                self._request_s = 0.0
            self._requests, self._read_bytes, self._idle_s = sample.requests, sample.read_bytes, 0.0
        if sample.unread_bytes:
            self._idle_s += elapsed_s
            if self._idle_s < config.idle_timeout_s:
                return None
            return "unread", f"{sample.unread_bytes:,} bytes of responses were not read for {self._idle_s:.0f} s"
        if not sample.is_reading or sample.is_busy:
            self._idle_s = 0.0
            return None
        if sample.partial_bytes or not sample.requests:
            return self._late(sample, elapsed_s, config)
        self._idle_s += elapsed_s
        return ("idle", f"no request for {self._idle_s:.0f} s") if self._idle_s >= config.idle_timeout_s else None

    def _late(self, sample: ProgressSample, elapsed_s: float, config: BrokerConfig) -> tuple[str, str] | None:
        self._request_s += elapsed_s
        allowed = config.frame_timeout_s if sample.requests else config.first_frame_timeout_s
        if self._request_s < max(allowed, sample.expected_bytes / config.min_frame_bytes_per_s):
            return None
        if not sample.partial_bytes:
            return "silent", f"no first request within {self._request_s:.0f} s"
        expected = f" of {sample.expected_bytes:,}" if sample.expected_bytes else ""
        return "slow", f"{sample.partial_bytes:,}{expected} bytes of a request came in {self._request_s:.0f} s"


#: Time that a request waits for room before other connections are dropped.
PRESSURE_S = 2.0
_SHORTEST_S, _LONGEST_S = 0.02, 1.0


class ConnectionMonitor:
    """Checks the connections of a listener."""

    def __init__(self, limits: Limits, connections: Callable[[], Iterable[ClientConnection]]) -> None:
        self._limits = limits
        self._connections = connections
        config = limits.config
        shortest = min(config.first_frame_timeout_s, config.frame_timeout_s, config.idle_timeout_s)
        self._every_s = min(max(shortest / 4, _SHORTEST_S), _LONGEST_S)
        self._waited_s = 0.0

    async def run(self) -> None:
        """Check periodically until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            self.check()

    def check(self) -> None:
        """Check all connections once."""
        limits = self._limits
        for connection in list(self._connections()):
            if connection.is_gone:
                connection.abort()
                continue
            late = connection.progress.check(connection.sample(), self._every_s, limits.config)
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
