"""Retention after a commit: nobody else would do it in a store that only Spark writes to.

A process that keeps a store open does its upkeep in the background; a commit opens it briefly. So a commit checks the
partitions that it has written to, and drops the segments that exceed their age or size limit. That is fast: files are
unlinked, nothing is read. Compaction, merging and recompression take longer than a micro-batch should wait: they are
left to `sawlog upkeep`, or to a process that has the store open.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..errors import DirectoryLocked, SawlogError
from ..log.maintain import retention
from ..topics.settings import upkeep_config
from ..topics.store import Store

_logger = logging.getLogger("sawlog.spark")


def tend(store: Store, written: Iterable[tuple[str, int]]) -> None:
    """Drop what exceeds the limits of these partitions. What was written is stored, whatever happens here."""
    for name, number in written:
        try:
            _tend(store, name, number)
        except DirectoryLocked:
            continue  # the process that keeps it open does its upkeep
        except SawlogError as error:
            _logger.warning("retention in partition %d of %r is postponed to the next commit: %s", number, name, error)


def _tend(store: Store, name: str, number: int) -> None:
    topic = store.topic(name)
    if not upkeep_config(topic.settings).delete:
        return
    log = topic.partition(number)
    if not retention.is_due(log.segment_set):
        return
    report = log.apply_retention()
    if report.removed_records:
        _logger.info("partition %d of %r: %s", number, name, report)
