"""Retention after a commit: nobody else would do it in a store that only Spark writes to.

A process that keeps a store open does its upkeep in the background; a commit opens it briefly. So a commit checks the
partitions that it has written to, and drops what exceeds their age or size limit. That is fast: nothing is read.
Compaction, merging and recompression take longer than a micro-batch should wait: they are left to `sawlog upkeep`, or
to a process that has the store open.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..errors import DirectoryLocked, SawlogError
from ..topics.base import Store

_logger = logging.getLogger("sawlog.spark")


def tend(store: Store, written: Iterable[tuple[str, int]]) -> None:
    """Drop what exceeds the limits of these partitions. What was written is stored, whatever happens here."""
    for name, number in written:
        try:
            report = store.expire(name, number)
        except DirectoryLocked:
            continue  # the process that keeps it open does its upkeep
        except SawlogError as error:
            _logger.warning("retention in partition %d of %r is postponed to the next commit: %s", number, name, error)
        else:
            if report is not None and report.removed_records:
                _logger.info("partition %d of %r: %s", number, name, report)
