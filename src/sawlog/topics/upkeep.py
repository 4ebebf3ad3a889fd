"""Upkeep in the background of an open store: retention, compaction, merging, recompression, scrubbing.

All topics are checked at a fixed interval, without a lock. What is due is done by a thread that lives only as long as
there is something to do: on partitions that this process writes, and on those that nobody writes. A partition that
another process writes is left to that process. Each task is logged; a failure is logged and retried the next time;
damage that scrubbing finds is logged as an error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..errors import LogClosed, SawlogError
from ..log.maintain.upkeep import UpkeepReport
from ..log.write import background
from ..storage.forking import forkable

_logger = logging.getLogger("sawlog.upkeep")


class Upkeep:
    """Calls `work` every `interval_s` seconds, one call at a time, until it is stopped."""

    def __init__(self, work: Callable[[], list[UpkeepReport]], interval_s: float) -> None:
        self._work = work
        self._lock = forkable(threading.Lock())
        self._thread: threading.Thread | None = None
        self._stopped = False
        #: What was done so far, oldest first; the last hundred reports.
        self.reports: list[UpkeepReport] = []
        background.every(interval_s, self._start)

    def _start(self) -> None:
        with self._lock:
            if self._stopped or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._run, name="sawlog-upkeep", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            for report in self._work():
                if report:
                    self._tell(report)
        except LogClosed:
            pass  # the store is being closed
        except (SawlogError, OSError) as error:
            _logger.warning("upkeep failed and will be retried: %s", error)

    def _tell(self, report: UpkeepReport) -> None:
        self.reports = [*self.reports[-99:], report]
        damaged = report.scrub is not None and not report.scrub.ok
        _logger.log(logging.ERROR if damaged else logging.INFO, "%s", report)

    def stop(self) -> None:
        """No more calls from now on. `wait` waits for a current one."""
        with self._lock:
            self._stopped = True

    def wait(self) -> None:
        """Wait until the current call has ended."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
