"""State of a broker for operators: counters (`Metrics`) and lack of disk space (`DiskSpace`).

Counting costs a dictionary lookup and an addition; `monitoring` reports the counters.

A full disk is not fatal to a log: the failed append was rolled back, and the next one may succeed. A shortage is
therefore an episode. It begins with the first failed append, which is logged once. It ends when every place that failed
has succeeded, when there is clearly more free space than at its low point, or when nothing has failed for a minute,
since without appends the state is unknown. `/readyz` and `sawlog_state` report it while it lasts. If there was plenty
of free space at the start, the cause is a quota or a limit, and free space is ignored.

Everything here belongs to the event loop's thread.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from ..config import MIB
from ..errors import StorageFull
from ..storage.counters import Histogram

_logger = logging.getLogger("sawlog.broker")

#: Increase of free space after which the next append will probably succeed.
_MORE_BYTES = MIB
#: With this much free space, the disk is not the cause.
_PLENTY_BYTES = 256 * MIB
#: Time for which a failure counts.
_LASTS_S = 60.0


@dataclass(slots=True)
class Metrics:
    """The counters of one broker."""

    #: Answered requests and their durations, by API.
    requests: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    #: Error codes in responses, of whole requests and of partitions, topics or groups, by API and name.
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Stored records, bytes of stored batches and bytes of sent batches, by topic.
    records_in: Counter[str] = field(default_factory=Counter)
    bytes_in: Counter[str] = field(default_factory=Counter)
    bytes_out: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    connections_total: int = 0
    #: Closed connections, by reason.
    rejected: Counter[str] = field(default_factory=Counter)


class DiskSpace:
    """The places where appends fail for lack of space."""

    def __init__(self, free_bytes: Callable[[], int | None], now_s: Callable[[], float]) -> None:
        self._free_bytes = free_bytes
        self._now_s = now_s
        #: Places where the last append failed, with the time and the message of the failure. Keeping the error itself
        #: would keep its files open.
        self.failing: dict[str, tuple[float, str]] = {}
        self._lowest_bytes: int | None = None
        #: Number of appends that failed for lack of space.
        self.refused = 0

    def lacks(self, place: str, error: StorageFull) -> None:
        """Record a failed append."""
        self.refused += 1
        free, message = self._free_bytes(), str(error)
        if not self.failing:
            self._lowest_bytes = free
            _logger.error("there is no room to append to %s: %s", place, message)
        elif free is not None and self._lowest_bytes is not None:
            self._lowest_bytes = min(free, self._lowest_bytes)
        self.failing[place] = self._now_s(), message

    def found(self, place: str) -> None:
        """Record a successful append."""
        if self.failing.pop(place, None) is not None and not self.failing:
            self._over()

    def reason(self) -> str | None:
        """Return why appends fail at present; None if they do not."""
        if not self.failing:
            return None
        free, since = self._free_bytes(), self._now_s() - _LASTS_S
        lowest = self._lowest_bytes
        more = free is not None and lowest is not None and lowest + _MORE_BYTES <= free and lowest < _PLENTY_BYTES
        for place in [each for each, (failed_s, _) in self.failing.items() if more or failed_s < since]:
            del self.failing[place]
        if not self.failing:
            self._over()
            return None
        _, message = next(iter(self.failing.values()))
        return f"there is no room to append to {', '.join(self.failing)}: {message}"

    def _over(self) -> None:
        _logger.warning("there is room to append again")
