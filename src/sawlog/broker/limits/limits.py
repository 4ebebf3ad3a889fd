"""The limits of one broker: what a client may send, how many may connect, and who was refused for which reason."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from ..config import BrokerConfig
from ..metrics import Metrics
from .budget import Budget
from .intake import Scratch
from .notices import Notices
from .outbox import Turns
from .pace import Patience

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
