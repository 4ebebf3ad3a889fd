"""`BackgroundMaintenance` of an open store: retention, compaction, merging, recompression, scrubbing.

All topics are checked at a fixed interval (`sawlog.background`), without a lock. Due work is done on the partitions
that this process writes and on those that no process writes; a partition that another process writes is left to it.
Each task is logged. A failure is logged and retried at the next interval; damage found by scrubbing is logged as an
error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ... import background
from ...errors import LogClosed, SawlogError
from ...log.maintenance import MaintenanceReport

_logger = logging.getLogger("sawlog.maintenance")


class BackgroundMaintenance:
    """Calls `work` every `interval_s` seconds, one call at a time, until stopped."""

    def __init__(self, work: Callable[[], list[MaintenanceReport]], interval_s: float) -> None:
        self._work = work
        #: Last hundred reports, oldest first.
        self.reports: list[MaintenanceReport] = []
        self._task = background.every(interval_s, self._run)

    def _run(self) -> None:
        try:
            for report in self._work():
                if report:
                    self._tell(report)
        except LogClosed:
            pass  # the store is being closed
        except (SawlogError, OSError) as error:
            _logger.warning("maintenance failed and will be retried: %s", error)

    def _tell(self, report: MaintenanceReport) -> None:
        self.reports = [*self.reports[-99:], report]
        damaged = report.scrub is not None and not report.scrub.ok
        _logger.log(logging.ERROR if damaged else logging.INFO, "%s", report)

    def stop(self) -> None:
        """Start no more calls. `wait` blocks until the current one ends."""
        self._task.cancel()

    def wait(self) -> None:
        """Block until the current call has ended."""
        self._task.wait()
