"""The partitions that a query reads, its positions in them, and how it reports records that are gone.

**Positions** are the next offset of every partition and the leader epoch it was read in. Spark keeps them in its
checkpoint as JSON. Offsets have the same place as in Spark's Kafka source, so that existing tools find them. Everything
else is under one reserved key, which cannot be a topic's name:

```
{"orders": {"0": 1200, "1": 1180},
 "$sawlog": {"store": "0b5c…",                       the store's id
             "topics": {"orders": "5f0c…"},           the ids of the topics
             "epochs": {"orders": {"0": 3, "1": 3}}}} the leader epochs in which the offsets were looked up
```

An offset alone does not identify the records before it: a truncated log reuses offsets for other records, and a topic
that was deleted and recreated counts from 0 again. Epochs and ids reveal both (see planning.py). Unknown values are
left out. Spark runs a micro-batch whenever the text of the JSON changes. So a partition that is not read keeps its
entry unchanged (`Positions.after`), whatever its log's current epoch is.

Planners and tasks open the store only through `open_store` and `open_for_task`, so that a test can replace them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..errors import DataLoss, InvalidConfig, TopicNotFound
from ..store.base import Store, Topic, TopicPartition
from ..store.opening import open_for_slices
from ..store.opening import open_store as _open
from .options import EARLIEST, LATEST, RESERVED, OffsetSpec, ReadOptions, StoreLocation

_logger = logging.getLogger("sawlog.spark")

#: Positions as Spark stores them.
Json = dict[str, Any]

#: The epoch of a position without one: such a position is checked only against the end of the log.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class EpochPosition:
    """The next offset to read in a partition, and the leader epoch in which it was looked up."""

    offset: int
    epoch: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Positions:
    """A position for every partition, with the ids of topics and store where known. Do not modify the mappings."""

    at: Mapping[TopicPartition, EpochPosition] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    store: str | None = None

    @classmethod
    def from_json(cls, found: Json | None) -> Positions:
        """Parse the JSON of Spark's checkpoint."""
        given = dict(found or {})
        more = given.pop(RESERVED, {})
        epochs = more.get("epochs", {})
        at = {
            (topic, int(number)): EpochPosition(offset, epochs.get(topic, {}).get(number, UNKNOWN))
            for topic, each in given.items()
            for number, offset in each.items()
        }
        return cls(at, dict(more.get("topics", {})), more.get("store"))

    def to_json(self) -> Json:
        """Format for Spark's checkpoint."""
        made = self.offsets()
        epochs: Json = {}
        for (topic, number), position in sorted(self.at.items()):
            if position.epoch != UNKNOWN:
                epochs.setdefault(topic, {})[str(number)] = position.epoch
        if epochs or self.topics or self.store is not None:
            made[RESERVED] = {"store": self.store, "topics": dict(sorted(self.topics.items())), "epochs": epochs}
        return made

    def offsets(self) -> Json:
        """Return the offsets alone, as Kafka's source formats them."""
        made: Json = {}
        for (topic, number), position in sorted(self.at.items()):
            made.setdefault(topic, {})[str(number)] = position.offset
        return made

    def over(self, other: Positions) -> Positions:
        """Fill in the partitions that are missing here from `other`."""
        return Positions({**other.at, **self.at}, other.topics, other.store)

    def is_recreated(self, topic: str, topic_id: str, store_id: str) -> bool:
        """Return whether the store's current topic of that name is a different one from the topic of these
        positions."""
        if self.store is not None and self.store != store_id:
            return True
        return self.topics.get(topic, topic_id) != topic_id

    def after(
        self,
        moved: Mapping[TopicPartition, EpochPosition],
        now: Positions,
        begun: Mapping[TopicPartition, EpochPosition],
    ) -> Positions:
        """Advance the partitions that have `moved`, with the ids that the store and the topics have `now`.

        The others keep their entry. `begun` holds the starts of all partitions of recreated topics: next to a new id,
        their old entries would mean something else, so they are replaced. If nothing has moved, nothing changes.
        """
        if not moved:
            return self
        recreated = {topic for topic, _ in begun}
        kept = {partition: position for partition, position in self.at.items() if partition[0] not in recreated}
        return Positions({**kept, **begun, **moved}, {**self.topics, **now.topics}, now.store)


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


def open_store(where: StoreLocation, mode: Literal["w", "r"] = "r") -> Store:
    """Open the store beside the driver: read only, or for writing the progress of a group. No background
    maintenance."""
    return _open(where.path, mode, options=where.options, maintenance_interval_s=None)


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

    def partitions(self, *, lost_ok: bool = False) -> list[tuple[Topic, int]]:
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

    def positions(self, partitions: Iterable[tuple[Topic, int]]) -> Positions:
        """Return the current ends of these partitions, at the isolation level of the options."""
        found = list(partitions)
        isolation = self._options.isolation
        at = {
            (topic.name, number): EpochPosition(*topic.partition(number).position(isolation=isolation))
            for topic, number in found
        }
        return Positions(at, {topic.name: topic.id for topic, _ in found}, self.store.id)

    def resolve(self, point: OffsetSpec, *, ending: bool = False) -> Positions:
        """Resolve a start or an end to a position in every partition."""
        each = {(topic, number): value for topic, number, value in point.each}
        partitions = self.partitions()
        unknown = each.keys() - {(topic.name, number) for topic, number in partitions}
        if unknown:
            name, which = min(unknown)
            raise InvalidConfig(
                f"option {point.option}: partition {which} of {name!r} is not among the partitions read"
            )
        ends = self.positions(partitions)  # first: an epoch that starts after this call belongs to a later history
        at = {
            (topic.name, number): self._resolve(topic, number, point, each, ends.at[topic.name, number], ending)
            for topic, number in partitions
        }
        return replace(ends, at=at)

    def _resolve(
        self,
        topic: Topic,
        number: int,
        point: OffsetSpec,
        each: dict[TopicPartition, int],
        end: EpochPosition,
        ending: bool,
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
