"""`DiskSpace`: whether appends fail for lack of disk space, and where.

A full disk is not fatal to a log: the failed append was rolled back, and the next one may succeed. A shortage is
therefore an episode. It begins with the first failed append, which is logged once. It ends when every place that failed
has succeeded, when there is clearly more free space than at its low point, or when nothing has failed for a minute,
since without appends the state is unknown. `/readyz` and `sawlog_state` report it while it lasts. If there was plenty
of free space at the start, the cause is a quota or a limit, and free space is ignored.

Belongs to the event loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..config import MIB
from ..errors import StorageFull

_logger = logging.getLogger("sawlog.broker")

#: Increase of free space after which the next append will probably succeed.
_MORE_BYTES = MIB
#: With this much free space, the disk is not the cause.
_PLENTY_BYTES = 256 * MIB
#: How long a failure counts.
_LASTS_S = 60.0


class DiskSpace:
    """The places where appends fail for lack of space."""

    def __init__(self, free_bytes: Callable[[], int | None], now_s: Callable[[], float]) -> None:
        self._free_bytes = free_bytes
        self._now_s = now_s
        #: Time and message of the last failure. Keeping the error itself would keep its files open.
        self._failing: dict[str, tuple[float, str]] = {}
        self._lowest_bytes: int | None = None
        #: Number of appends that failed for lack of space.
        self.refused = 0

    @property
    def is_short(self) -> bool:
        """Whether there is a shortage."""
        return bool(self._failing)

    def lacks(self, place: str, error: StorageFull) -> None:
        """Record a failed append."""
        self.refused += 1
        free, message = self._free_bytes(), str(error)
        if not self._failing:
            self._lowest_bytes = free
            _logger.error("there is no room to append to %s: %s", place, message)
        elif free is not None and self._lowest_bytes is not None:
            self._lowest_bytes = min(free, self._lowest_bytes)
        self._failing[place] = self._now_s(), message

    def found(self, place: str) -> None:
        """Record a successful append."""
        if self._failing.pop(place, None) is not None and not self._failing:
            self._over()

    def reason(self) -> str | None:
        """Return why appends fail at present; None if they do not."""
        self._look()
        if not self._failing:
            return None
        _, message = next(iter(self._failing.values()))
        return f"there is no room to append to {', '.join(self._failing)}: {message}"

    def _look(self) -> None:
        if not self._failing:
            return
        free, since = self._free_bytes(), self._now_s() - _LASTS_S
        lowest = self._lowest_bytes
        more = free is not None and lowest is not None and lowest + _MORE_BYTES <= free and lowest < _PLENTY_BYTES
        for place in [each for each, (failed_s, _) in self._failing.items() if more or failed_s < since]:
            del self._failing[place]
        if not self._failing:
            self._over()

    def _over(self) -> None:
        _logger.warning("there is room to append again")
