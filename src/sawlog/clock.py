"""Time: the timestamps of records, how long something took, and how long to wait.

Code that waits for something that another process may release polls in the same way:

    deadline = Deadline(5.0)
    while not (held := try_to_lock()):
        deadline.pause(or_raise=error)

Code that looks for something new again and again, and can be woken, asks `Pauses` how long to sleep in between. Code
that doubts what it sees, because another process may be replacing files at this moment, looks again as `rechecks` says.

The engine reads clocks and sleeps only here, in `background` and in the kernel; `tests/test_layers.py` checks it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from .errors import InvalidConfig

#: The first pause while polling, and the longest.
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.01
#: The first pause of `Pauses`, and the longest.
_POLL_S, _POLL_MOST_S = 0.001, 0.05
#: Looking takes at most this fraction (one part in N) of the time.
_PATIENCE = 20
#: How often something is checked again, and after how long.
_RECHECKS, _DOUBT_S = 10, 0.002


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def in_utc(time: datetime) -> datetime:
    """The same time in UTC; one without a zone is local. `InvalidConfig` if the calendar ends before it."""
    try:
        return time.astimezone(UTC)
    except (ValueError, OverflowError):  # in the first or last year, and in the year 0 or 10000 in UTC
        raise InvalidConfig(
            f"the time {time.isoformat()} cannot be converted to UTC: it is at the limit of the calendar; give one "
            "with a time zone, or milliseconds since 1970"
        ) from None


def milliseconds(timestamp: Any) -> Any:
    """A datetime as record timestamps count; anything else unchanged."""
    if isinstance(timestamp, datetime):
        return (in_utc(timestamp) - _EPOCH) // timedelta(milliseconds=1)
    return timestamp


def now_ms() -> int:
    """Milliseconds since 1970, as record timestamps count them."""
    return time.time_ns() // 1_000_000


def boot_s() -> float:
    """Seconds by a clock that also runs while the machine sleeps, where there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def wall_s() -> float:
    """Seconds since 1970."""
    return time.time()


def pause(seconds: float) -> None:
    """Wait; for what is done by something that cannot wake the caller."""
    time.sleep(seconds)


def give_way() -> None:
    """Let another thread run."""
    time.sleep(0)


def rechecks() -> Iterator[None]:
    """Pauses before checks of something that looks wrong, and may do so only while another process replaces files."""
    for _ in range(_RECHECKS):
        time.sleep(_DOUBT_S)
        yield


class Stopwatch:
    """How long ago it was started, or restarted. Never goes back, and does not follow the wall clock."""

    __slots__ = ("_began_s",)

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since then."""
        return time.monotonic() - self._began_s

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since then."""
        return self.elapsed_s * 1000

    def restart(self) -> float:
        """Start again and return the seconds until now."""
        now_s = time.monotonic()
        before_s, self._began_s = self._began_s, now_s
        return now_s - before_s


class Deadline:
    """The time until which to wait. `Deadline(None)` never passes. Pauses are short unless others are given: they are
    for what another process does on this machine."""

    __slots__ = ("_end_s", "_longest_s", "_pause_s")

    def __init__(
        self, seconds: float | None, *, first_pause_s: float = _FIRST_PAUSE_S, longest_pause_s: float = _LONGEST_PAUSE_S
    ) -> None:
        self._end_s = None if seconds is None else time.monotonic() + seconds
        self._pause_s, self._longest_s = first_pause_s, longest_pause_s

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

    def retry(self) -> bool:
        """Sleep before the next try, each time a little longer; returns False immediately if the time is over."""
        if self.passed:
            return False
        time.sleep(self._pause_s * random.uniform(0.5, 1.5))  # not in step with other waiters
        self._pause_s = min(self._pause_s * 1.5, self._longest_s)
        return True

    def pause(self, or_raise: BaseException) -> None:
        """As `retry`, but raise `or_raise` if the time is over."""
        if not self.retry():
            raise or_raise

    @property
    def until_ns(self) -> int:
        """This moment as other processes of the machine count it; now, if it never passes."""
        return time.monotonic_ns() + int((self.rest_s or 0.0) * 1e9)


def is_over(until_ns: int) -> bool:
    """Whether the deadline of another process of this machine has passed."""
    return time.monotonic_ns() > until_ns


class Pauses:
    """How long to wait before looking again for something new: twice as long each time, up to a limit; longer if
    looking itself takes long, for instance because there are many partitions."""

    __slots__ = ("_looking", "_next_s")

    def __init__(self) -> None:
        self._looking: Stopwatch | None = None
        self._next_s = _POLL_S

    def look(self) -> None:
        """Looking begins: the next pause depends on how long it takes."""
        self._looking = Stopwatch()

    def next_s(self) -> float:
        """The next pause."""
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, _POLL_MOST_S)
        return pause_s if self._looking is None else max(pause_s, self._looking.elapsed_s * _PATIENCE)

    def found(self) -> None:
        """Something was there: the next pause is a short one again."""
        self._next_s = _POLL_S
