"""`Room`: whether appends fail for lack of room, and where.

A full disk is not the end of a log: the append that had no room was rolled back, and the next one may succeed. So it is
an episode. It begins with the first append that fails, which is logged once, and is over when all who failed have
succeeded, when there is clearly more free space than when it began, or when nothing has failed for a minute: then
nobody appends, and nobody knows. `/readyz` and `sawlog_state` say so as long as it lasts. If there was plenty of free
space when it began, a quota or a limit is the reason, and free space says nothing.

Threads: the event loop's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..config import MIB
from ..errors import StorageFull

_logger = logging.getLogger("sawlog.broker")

#: How much more free space must be there, so that the next append will probably succeed.
_MORE_BYTES = MIB
#: So much free space is not why an append had no room.
_PLENTY_BYTES = 256 * MIB
#: How long a failure counts.
_LASTS_S = 60.0


class Room:
    """The places where appends fail for lack of room."""

    def __init__(self, free_bytes: Callable[[], int | None], now_s: Callable[[], float]) -> None:
        self._free_bytes = free_bytes
        self._now_s = now_s
        #: When it last failed, and the message: the error itself would keep the files open that it came from.
        self._failing: dict[str, tuple[float, str]] = {}
        self._lowest_bytes: int | None = None
        #: Appends that failed for lack of room.
        self.refused = 0

    @property
    def is_short(self) -> bool:
        """Whether an episode is going on."""
        return bool(self._failing)

    def lacks(self, place: str, error: StorageFull) -> None:
        """An append to this place failed."""
        self.refused += 1
        free, message = self._free_bytes(), str(error)
        if not self._failing:
            self._lowest_bytes = free
            _logger.error("there is no room to append to %s: %s", place, message)
        elif free is not None and self._lowest_bytes is not None:
            self._lowest_bytes = min(free, self._lowest_bytes)
        self._failing[place] = self._now_s(), message

    def found(self, place: str) -> None:
        """An append to this place succeeded."""
        if self._failing.pop(place, None) is not None and not self._failing:
            self._over()

    def reason(self) -> str | None:
        """Why nothing can be appended, as far as is known now; None if it can."""
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
