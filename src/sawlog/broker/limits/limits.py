"""Lines for the log about what clients did: a flood of them must not fill a disk.

Of each reason a few lines are written in a while. What is left out is counted, and said later, or when the broker
stops.

The limits of one broker: what a client may send, how many may connect, and who was refused for which reason.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from ..config import BrokerConfig
from ..metrics import Metrics
from .budget import Budget
from .intake import Scratch
from .outbox import Turns
from .pace import Patience

_logger = logging.getLogger("sawlog.broker")

#: So many lines of one reason in so many seconds.
LINES, WHILE_S = 10, 60.0
_LEFT_OUT = ("%s more line like that about %r was left out", "%s more lines like those about %r were left out")


class _Told:
    """What was said about one reason."""

    __slots__ = ("count", "left_out", "level", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.count = 0
        self.left_out = 0
        self.level = logging.WARNING


class Notices:
    """Writes lines, sparingly. Reasons are names in the code, so that there are not many."""

    def __init__(self, now: Callable[[], float], *, lines: int = LINES, while_s: float = WHILE_S) -> None:
        self._now = now
        self._lines = lines
        self._while_s = while_s
        self._told: dict[str, _Told] = {}

    def tell(
        self,
        reason: str,
        message: str,
        *args: object,
        level: int = logging.WARNING,
        error: Exception | None = None,
        lines: int | None = None,
    ) -> None:
        """Write a line, with the traceback of an error, unless there were enough of this reason: `lines` of them, if
        that is given."""
        now = self._now()
        told = self._told.get(reason)
        if told is None:
            told = self._told[reason] = _Told(now)
        elif now - told.since_s >= self._while_s:
            self._say_left_out(reason, told)
            told.since_s, told.count = now, 0
        if told.count >= (self._lines if lines is None else lines):
            told.left_out += 1
            told.level = level
            return
        told.count += 1
        _logger.log(level, message, *args, exc_info=error)

    def tell_left_out(self) -> None:
        """Say how many lines were left out, of reasons that did not come again."""
        now = self._now()
        for reason, told in list(self._told.items()):
            if now - told.since_s >= self._while_s:
                self._say_left_out(reason, told)
                del self._told[reason]

    def end(self) -> None:
        """The broker stops: say what would have been said later."""
        for reason, told in self._told.items():
            self._say_left_out(reason, told)

    def _say_left_out(self, reason: str, told: _Told) -> None:
        if told.left_out:
            _logger.log(told.level, _LEFT_OUT[told.left_out > 1], f"{told.left_out:,}", reason)
            told.left_out = 0


#: Responses of one connection that were not taken, above which no further request of it is answered.
_UNREAD_BYTES_MAX = 4 << 20
#: The least that a fetch may return while the budget is nearly used up.
_FETCH_BYTES_MIN = 64 << 10


class Loop(Protocol):
    """What is needed of the event loop."""

    def time(self) -> float:
        """Seconds."""

    def call_soon(self, call: Callable[[], None], /) -> object:
        """Call it in the next turn."""


class Limits:
    """What all connections of a broker share. `descriptors` is how many files and sockets the process may have."""

    def __init__(self, config: BrokerConfig, metrics: Metrics, loop: Loop, descriptors: int) -> None:
        self._config = config
        self._metrics = metrics
        self.notices = Notices(loop.time)
        # A request must be possible that is as large as allowed.
        self.budget = Budget(max(config.max_buffered_bytes, config.max_request_bytes), loop.call_soon)
        self.turns = Turns(loop.call_soon)
        self.unread_bytes = min(max(self.budget.most_bytes >> 5, _FETCH_BYTES_MIN), _UNREAD_BYTES_MAX)
        self.scratch = Scratch()
        self.patience = Patience(
            config.first_frame_timeout_s,
            config.frame_timeout_s,
            config.idle_timeout_s,
            config.min_frame_bytes_per_s,
        )
        # Files of partitions need descriptors as well.
        self._most = max(min(config.max_connections, descriptors * 3 // 4), 1)
        self._by_address: Counter[str] = Counter()
        self._total = 0

    # --- sizes

    def frame_bytes(self, is_authenticated: bool) -> int:
        """The largest request of a client that has said who it is, or of one that has not. On a listener without
        authentication every client has."""
        most = self._config.max_request_bytes
        return most if is_authenticated else min(most, self._config.max_unauthenticated_request_bytes)

    def fetch_bytes(self, asked: int) -> int:
        """The largest response to a fetch: less if clients have not taken much of what they asked for."""
        return min(asked, self._config.max_fetch_bytes, max(self.budget.room_bytes() >> 2, _FETCH_BYTES_MIN))

    # --- connections

    def admit(self, address: str) -> bool:
        """Count a new connection. If there are too many, it is refused, and is not to be counted by `leave`."""
        if self._total >= self._most:
            self.refuse("connections", address, f"{self._total:,} connections are open, which is the most")
            return False
        if self._by_address[address] >= self._config.max_connections_per_address:
            count = self._by_address[address]
            self.refuse("address", address, f"{count:,} connections of this address are open, which is the most")
            return False
        self._total += 1
        self._by_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        """A connection that was admitted is gone."""
        self._total -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def refuse(self, reason: str, address: str, message: str) -> None:
        """Count a connection that is closed for a reason, and say so if that was not said too often."""
        self._metrics.rejected[reason] += 1
        level = logging.DEBUG if reason == "idle" else logging.WARNING
        self.notices.tell(reason, "the connection of %s was closed: %s", address, message, level=level)
