"""Lines for the log about what clients did: a flood of them must not fill a disk.

Of each reason a few lines are written in a while. What is left out is counted, and said later, or when the broker
stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

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
