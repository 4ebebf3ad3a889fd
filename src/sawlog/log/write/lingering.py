"""How long records wait for a batch to fill: a batch that is old enough is stored although it is not full."""

from __future__ import annotations

from collections.abc import Callable

from ... import background
from ...clock import Deadline
from ...errors import SawlogError


class Lingering:
    """Calls `flush` when something has waited for about `linger_s` seconds, in the background.

    It looks twice in that time, instead of being told of each record, which would cost more than encoding one.
    """

    def __init__(self, linger_s: float, waits: Callable[[], bool], flush: Callable[[], object]) -> None:
        self._half_s = linger_s / 2
        self._waits = waits
        self._flush = flush
        #: When what was there at an earlier look has waited long enough.
        self._due: Deadline | None = None
        self._task = background.every(max(self._half_s, 0.001), self._look)

    def _look(self) -> None:
        if not self._waits():
            self._due = None
        elif self._due is None:
            self._due = Deadline(self._half_s)
        elif self._due.passed:
            self._due = None
            try:
                self._flush()
            except (SawlogError, OSError):
                pass  # the batch is kept; the next append or flush meets the same error and raises it

    def end(self) -> None:
        """Do not look any more."""
        self._task.cancel()
