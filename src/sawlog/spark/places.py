"""Resolve a subscription and its start and end options against the current store.

Planners and tasks open the store only through `open_store` and `open_for_task`, so that a test can replace them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from ..errors import InvalidConfig, TopicNotFound
from ..store.base import Store, Topic
from ..store.opening import open_for_slices
from ..store.opening import open_store as _open
from .losses import DataLossPolicy
from .options import EARLIEST, LATEST, OffsetSpec, ReadOptions, StoreLocation
from .positions import EpochPosition, Positions, Share

_logger = logging.getLogger("sawlog.spark")


def open_store(where: StoreLocation, mode: Literal["w", "r"] = "r") -> Store:
    """Open the store beside the driver: read only, or for writing the progress of a group. No background
    maintenance."""
    options = where.options
    if options is None:
        return _open(where.path, mode, maintenance_interval_s=None)
    return _open(where.path, mode, options=options, maintenance_interval_s=None)


def open_for_task(where: StoreLocation) -> Store:
    """Open the store read only in a task, possibly on another machine, to read slices."""
    return open_for_slices(where.path, options=where.options)


class SubscribedPartitions:
    """The partitions of a subscription. Topics are looked up on every call; logs stay open."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._missed: set[str] = set()
        self.store = open_store(options.where)
        self.losses = DataLossPolicy(fail=options.fail_on_data_loss)

    def close(self) -> None:
        self.store.close()

    def topic(self, name: str) -> Topic:
        """Return a topic, current or from the snapshot being read."""
        return self.store.topic(name, at=self._options.snapshot)

    def has(self, name: str) -> bool:
        """Return whether the topic exists."""
        return name in self.store.topics(at=self._options.snapshot)

    def _all(self) -> Iterable[Topic]:
        if self._options.snapshot is None:
            return self.store
        return [self.topic(name) for name in self.store.topics(at=self._options.snapshot)]

    def topics(self, *, lost_ok: bool = False) -> list[Topic]:
        """Return the topics, in order. A named topic must exist, unless `lost_ok`; a pattern may match none."""
        chosen = self._options.subscription
        if chosen.pattern is not None:
            pattern = re.compile(chosen.pattern)
            return [topic for topic in self._all() if pattern.fullmatch(topic.name)]
        found: list[Topic] = []
        for name in sorted(chosen.topics or {topic for topic, _ in chosen.assigned}):
            try:
                found.append(self.topic(name))
            except TopicNotFound as error:
                self._miss(error, lost_ok)
        return found

    def _miss(self, error: TopicNotFound, lost_ok: bool) -> None:
        """Raise for a missing topic or partition; with `lost_ok`, log it once."""
        if not lost_ok:
            raise error
        if str(error) not in self._missed:
            self._missed.add(str(error))
            _logger.warning("%s", error)

    def shares(self, *, lost_ok: bool = False) -> list[tuple[Topic, int]]:
        """Return all partitions, in order; with `lost_ok`, the existing ones."""
        assigned = dict(self._options.subscription.assigned)
        found: list[tuple[Topic, int]] = []
        for topic in self.topics(lost_ok=lost_ok):
            for number in assigned.get(topic.name, range(topic.partitions)):
                if number < topic.partitions:
                    found.append((topic, number))
                    continue
                said = f"the topic {topic.name!r} has partitions 0 to {topic.partitions - 1}, not {number}"
                self._miss(TopicNotFound(f"option assign: {said}"), lost_ok)
        return found

    def positions(self, shares: Iterable[tuple[Topic, int]]) -> Positions:
        """Return the current ends of these partitions, at the isolation level of the options."""
        found = list(shares)
        isolation = self._options.isolation
        at = {
            (topic.name, number): EpochPosition(*topic.partition(number).position(isolation=isolation))
            for topic, number in found
        }
        return Positions(at, {topic.name: topic.id for topic, _ in found}, self.store.id)

    def resolve(self, point: OffsetSpec, *, ending: bool = False) -> Positions:
        """Resolve a start or an end to a position in every partition."""
        each = {(topic, number): value for topic, number, value in point.each}
        shares = self.shares()
        unknown = each.keys() - {(topic.name, number) for topic, number in shares}
        if unknown:
            name, which = min(unknown)
            raise InvalidConfig(
                f"option {point.option}: partition {which} of {name!r} is not among the partitions read"
            )
        ends = self.positions(shares)  # first: an epoch that starts after this call belongs to a later history
        at = {
            (topic.name, number): self._resolve(topic, number, point, each, ends.at[topic.name, number], ending)
            for topic, number in shares
        }
        return replace(ends, at=at)

    def _resolve(
        self, topic: Topic, number: int, point: OffsetSpec, each: dict[Share, int], end: EpochPosition, ending: bool
    ) -> EpochPosition:
        lowest = EpochPosition(topic.partition(number).lowest_offset, end.epoch)
        given = each.get((topic.name, number))
        if point.kind in ("time", "times"):
            moment = point.time_ms if point.kind == "time" else given
            # Kafka requires every partition; here, a partition that is not listed is read from start to end.
            return (end if ending else lowest) if moment is None else self._at(topic, number, moment, end, ending)
        if point.kind == "latest" or given == LATEST or (point.kind == "offsets" and given is None and ending):
            return end
        if point.kind == "earliest" or given in (None, EARLIEST):
            return lowest
        if given > end.offset:
            raise InvalidConfig(
                f"option {point.option}: offset {given} of partition {number} of {topic.name!r} does not exist yet; "
                f"the next record will get {end.offset}"
            )
        return EpochPosition(given, end.epoch)

    def _at(self, topic: Topic, number: int, moment: int, end: EpochPosition, ending: bool) -> EpochPosition:
        found = topic.partition(number).offset_at(moment)
        if found >= end.offset and not ending and self._options.later_than_all == "error":
            raise InvalidConfig(
                f"partition {number} of {topic.name!r} has no record from time {moment} on; "
                "startingOffsetsByTimestampStrategy=latest would start at its end"
            )
        return EpochPosition(min(found, end.offset), end.epoch)
