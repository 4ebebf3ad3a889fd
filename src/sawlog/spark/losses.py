"""Data loss handling of a query: fail, or warn and count, depending on failOnDataLoss."""

from __future__ import annotations

import logging

from ..errors import DataLoss

_logger = logging.getLogger("sawlog.spark")

#: Number of distinct losses remembered, so that each is reported once.
_REMEMBERED = 10_000


class DataLossPolicy:
    """Data loss handling of one query or one task."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._said: set[str] = set()
        #: Number of distinct losses so far.
        self.count = 0

    def report(self, gone: str, then: str = "continuing without them", cause: BaseException | None = None) -> None:
        """Raise `DataLoss` for `gone`; or log it once, with the consequence `then`."""
        if self._fail:
            raise DataLoss(f"{gone}. failOnDataLoss=false would warn instead: {then}") from cause
        if gone in self._said:  # Spark polls up to a hundred times a second
            return
        if len(self._said) >= _REMEMBERED:
            self._said.clear()
        self._said.add(gone)
        self.count += 1
        _logger.warning("%s; %s", gone, then)
