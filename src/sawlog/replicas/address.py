"""Records in a directory where its replica is, so that the store reads from there what it removes.

The first address is recorded. Another one takes its place if nothing is only in the first, or if the other has all of
that: whoever moves to another bucket ships everything there, and then the new address counts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..errors import CorruptFile, StorageError, TopicNotFound
from ..topics.replica import ReplicaAddress
from ..topics.store import Store
from .shipment import Place

_logger = logging.getLogger("sawlog.replicas")


def record(source: Store, address: ReplicaAddress, places: Mapping[tuple[str, int], Place], *, is_whole: bool) -> None:
    """Record an address, unless the one that is recorded is needed. A directory that cannot be written keeps all its
    records here."""
    known, is_damaged = None, False
    try:
        known = source.replica
    except CorruptFile:  # it is written again, by whoever has everything
        is_damaged = True
    is_other = is_damaged or (known is not None and known.url != address.url)
    if known == address or (is_other and not _has_all(source, places)):
        return
    if (known is None and not is_damaged and not is_whole) or address.url.startswith("memory://"):
        return  # a replica of some topics, where another one may have them all; or one that ends with this process
    try:
        address.store(source.directory)
    except StorageError as error:
        _logger.warning("%s: where the replica is could not be recorded: %s", source.path, error)


def _has_all(source: Store, places: Mapping[tuple[str, int], Place]) -> bool:
    """Whether a replica has everything that is only in another one."""
    for topic in source:
        try:
            for number in range(topic.partitions):
                log, place = topic.partition(number), places.get((topic.name, number))
                lowest, local = log.lowest_offset, log.local_offset
                if lowest < local and (place is None or place.start > lowest or place.end < local):
                    return False
        except TopicNotFound:
            continue
        except StorageError:  # where it begins, only the replica of before knows
            return False
    return True
