"""Retention after a commit: a store that only Spark writes to has nobody else who would do it.

Whoever keeps a store open does its upkeep in the background; a commit opens it for a moment. So a commit looks at the
partitions that it has written to, and drops the segments that are too old or too many. That is quick: files are
unlinked, nothing is read. Compaction, merging and recompression take longer than a micro-batch should wait: they are
left to `sawlog upkeep`, or to a process that has the store open.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..errors import SawlogError
from ..log.maintain import retention
from ..topics.settings import upkeep_config
from ..topics.store import Store

_logger = logging.getLogger("sawlog.spark")


def tend(store: Store, written: Iterable[tuple[str, int]]) -> None:
    """Drop what the settings of these partitions say. What was written is stored whatever becomes of this."""
    for name, number in written:
        try:
            _tend(store, name, number)
        except SawlogError as error:
            _logger.warning("retention in partition %d of %r is left to the next commit: %s", number, name, error)


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
