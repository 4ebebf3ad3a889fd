"""What a query does about records that are gone: it fails, or warns and counts, depending on failOnDataLoss."""

from __future__ import annotations

import logging

from ..errors import DataLoss

_logger = logging.getLogger("sawlog.spark")

#: This many different losses are remembered, to report each once.
_REMEMBERED = 10_000


class Losses:
    """The losses of one query, or of one task."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._said: set[str] = set()
        #: The number of different losses.
        self.count = 0

    def report(self, gone: str, then: str = "continuing without them", cause: BaseException | None = None) -> None:
        """Something is `gone`: raise `DataLoss`, or log it, once, with what happens `then`."""
        if self._fail:
            raise DataLoss(f"{gone}. failOnDataLoss=false would warn instead: {then}") from cause
        if gone in self._said:  # Spark asks for more a hundred times a second
            return
        if len(self._said) >= _REMEMBERED:
            self._said.clear()
        self._said.add(gone)
        self.count += 1
        _logger.warning("%s; %s", gone, then)
