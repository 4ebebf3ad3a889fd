"""Time: the timestamps of records, and how long to wait.

Code that waits for something that another process may release polls in the same way:

    deadline = Deadline(5.0)
    while not (held := try_to_lock()):
        deadline.pause(or_raise=error)
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

#: The first pause while polling, and the longest.
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.01


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds(timestamp: Any) -> Any:
    """A datetime as record timestamps count; anything else unchanged."""
    if isinstance(timestamp, datetime):
        return (timestamp.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
    return timestamp


def now_ms() -> int:
    """Milliseconds since 1970, as record timestamps count them."""
    return time.time_ns() // 1_000_000


class Deadline:
    """The time until which to wait. `Deadline(None)` never passes."""

    __slots__ = ("_end_s", "_pause_s")

    def __init__(self, seconds: float | None) -> None:
        self._end_s = None if seconds is None else time.monotonic() + seconds
        self._pause_s = _FIRST_PAUSE_S

    @property
    def rest_s(self) -> float | None:
        """Seconds that are left, below zero when it has passed; None if it never passes."""
        return None if self._end_s is None else self._end_s - time.monotonic()

    @property
    def passed(self) -> bool:
        """Whether it has passed."""
        return self._end_s is not None and time.monotonic() >= self._end_s

    def at_most(self, seconds: float) -> float:
        """This many seconds, or those that are left if they are fewer."""
        rest = self.rest_s
        return seconds if rest is None else max(min(seconds, rest), 0.0)

    def pause(self, or_raise: BaseException) -> None:
        """Sleep before the next try, each time a little longer; raise `or_raise` if the time is over."""
        if self.passed:
            raise or_raise
        time.sleep(self._pause_s * random.uniform(0.5, 1.5))  # not in step with other waiters
        self._pause_s = min(self._pause_s * 1.5, _LONGEST_PAUSE_S)
