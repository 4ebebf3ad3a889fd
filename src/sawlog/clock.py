"""Clocks, deadlines and backoff.

Code that waits for another process to release something polls until a `Deadline`:

    deadline = Deadline(5.0)
    while not (held := try_to_lock()):
        deadline.pause(or_raise=error)

Code that polls for new data, and can be woken, takes its sleep times from `PollBackoff`. Code that sees an inconsistent
directory, because another process may be replacing files right now, checks again as often as `rechecks` yields.

The library reads clocks and sleeps only here, in `background` and in the kernel; `tests/test_layers.py` checks it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from .errors import InvalidConfig

#: First and longest pause of a `Deadline`.
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.01
#: First and longest pause of `PollBackoff`.
_POLL_S, _POLL_MOST_S = 0.001, 0.05
#: A pause lasts at least this many times as long as the poll before it, so that polling takes at most 1/20 of the time.
_PAUSE_PER_POLL = 20
#: Number of rechecks, and the pause before each.
_RECHECKS, _RECHECK_S = 10, 0.002


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def in_utc(time: datetime) -> datetime:
    """Convert a time to UTC; a naive one is local time. Raise `InvalidConfig` outside the years 1 to 9999."""
    try:
        return time.astimezone(UTC)
    except (ValueError, OverflowError):  # a local time in year 1 or 9999 that is in year 0 or 10000 in UTC
        raise InvalidConfig(
            f"the time {time.isoformat()} cannot be converted to UTC: it is at the limit of the calendar; give one "
            "with a time zone, or milliseconds since 1970"
        ) from None


def milliseconds(timestamp: Any) -> Any:
    """Convert a datetime to milliseconds since 1970; return anything else unchanged."""
    if isinstance(timestamp, datetime):
        return (in_utc(timestamp) - _EPOCH) // timedelta(milliseconds=1)
    return timestamp


def now_ms() -> int:
    """Return the current time in milliseconds since 1970, the unit of record timestamps."""
    return time.time_ns() // 1_000_000


def boot_s() -> float:
    """Return seconds on a monotonic clock that, where available, also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def wall_s() -> float:
    """Return the current time in seconds since 1970."""
    return time.time()


def pause(seconds: float) -> None:
    """Sleep. Only for events that cannot wake the caller."""
    time.sleep(seconds)


def yield_thread() -> None:
    """Yield the processor to another thread."""
    time.sleep(0)


def rechecks() -> Iterator[None]:
    """Yield a few times with a short sleep before each: for checks of a state that may look wrong only while another
    process replaces files."""
    for _ in range(_RECHECKS):
        time.sleep(_RECHECK_S)
        yield


class Stopwatch:
    """Time since it was started or restarted, on the monotonic clock."""

    __slots__ = ("_began_s",)

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_s

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the start."""
        return self.elapsed_s * 1000

    def restart(self) -> float:
        """Restart and return the seconds since the previous start."""
        now_s = time.monotonic()
        before_s, self._began_s = self._began_s, now_s
        return now_s - before_s


class Deadline:
    """A point in time at which to stop waiting. `Deadline(None)` never passes. The default pauses are short: they suit
    waiting for another process on this machine."""

    __slots__ = ("_end_s", "_longest_s", "_pause_s")

    def __init__(
        self, seconds: float | None, *, first_pause_s: float = _FIRST_PAUSE_S, longest_pause_s: float = _LONGEST_PAUSE_S
    ) -> None:
        self._end_s = None if seconds is None else time.monotonic() + seconds
        self._pause_s, self._longest_s = first_pause_s, longest_pause_s

    @property
    def rest_s(self) -> float | None:
        """Remaining seconds, negative once the deadline has passed; None if it never passes."""
        return None if self._end_s is None else self._end_s - time.monotonic()

    @property
    def passed(self) -> bool:
        """True once the deadline has passed."""
        return self._end_s is not None and time.monotonic() >= self._end_s

    def at_most(self, seconds: float) -> float:
        """Return `seconds`, or the remaining time if that is less."""
        rest = self.rest_s
        return seconds if rest is None else max(min(seconds, rest), 0.0)

    def retry(self) -> bool:
        """Sleep before the next attempt, each time a little longer. Return False immediately if the deadline has
        passed."""
        if self.passed:
            return False
        time.sleep(self._pause_s * random.uniform(0.5, 1.5))  # jitter, so that waiters do not poll in step
        self._pause_s = min(self._pause_s * 1.5, self._longest_s)
        return True

    def pause(self, or_raise: BaseException) -> None:
        """Like `retry`, but raise `or_raise` if the deadline has passed."""
        if not self.retry():
            raise or_raise

    @property
    def until_ns(self) -> int:
        """The deadline on the machine's monotonic clock, for other processes; now, if it never passes."""
        return time.monotonic_ns() + int((self.rest_s or 0.0) * 1e9)


def deadline_passed(until_ns: int) -> bool:
    """Return whether another process's `Deadline.until_ns` has passed."""
    return time.monotonic_ns() > until_ns


class PollBackoff:
    """Pauses between polls: each twice as long as the one before, up to a limit, and longer if the polls themselves are
    slow, for instance because there are many partitions."""

    __slots__ = ("_next_s", "_poll")

    def __init__(self) -> None:
        self._poll: Stopwatch | None = None
        self._next_s = _POLL_S

    def look(self) -> None:
        """Mark the start of a poll: the next pause depends on how long it takes."""
        self._poll = Stopwatch()

    def next_s(self) -> float:
        """Return the next pause."""
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, _POLL_MOST_S)
        return pause_s if self._poll is None else max(pause_s, self._poll.elapsed_s * _PAUSE_PER_POLL)

    def found(self) -> None:
        """Reset to the shortest pause: a poll has found something."""
        self._next_s = _POLL_S
