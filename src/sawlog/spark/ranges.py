"""Ranges: what can still be read between positions that were looked up earlier.

Spark plans a micro-batch, records it, reads it, perhaps again after a restart, and then considers its end as read,
whatever happened. So each position is checked against the current store before it is used:

    what is found                         with failOnDataLoss=false, after a warning (with true: `DataLoss`)
    a start beyond the end of its epoch   reading continues at that end
    a start without an epoch (version     reading continues at the first record: it is unknown which records
      0.2) beyond the end of the log        have changed
    a planned end beyond that of its      the existing records are read; the next micro-batch continues at the
      epoch                                 end of the epoch, because its start is beyond it
    a start below the first record        reading continues at the first record
    a partition that is new to the query  it is read from its first record
      and does not start at offset 0
    a partition that was read and is      reading continues without it
      gone, or was to be read
    another topic of that name, or        the new one is read from its first record; what was planned for the old one is
      another store                         left out

So no record is skipped that is in the log and was to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import TopicNotFound
from ..log import slices
from ..store.base import Partition, Topic
from .places import Places
from .positions import UNKNOWN, EpochPosition, Positions, Share

_MOVED = (
    "the start of the query has changed. A query that starts at latest or at a time needs a name, "
    '.option("groupId", ...), to survive a restart in its first micro-batch. Remove its checkpoint to start again'
)


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition from `first` to `last`."""

    topic: Topic
    number: int
    log: Partition
    first: int
    last: EpochPosition


def starts(
    places: Places, before: Positions, shares: Sequence[tuple[Topic, int]], ends: Positions
) -> tuple[dict[Share, int], dict[Share, EpochPosition]]:
    """Where to continue in each partition that has an end; and the starts of those whose topic was recreated."""
    began: dict[Share, int] = {}
    begun: dict[Share, EpochPosition] = {}
    read = {topic for topic, _ in before.at}
    for topic, number in shares:
        share = topic.name, number
        if share not in ends.at:
            continue
        log, position, end = topic.partition(number), before.at.get(share), ends.at[share]
        if topic.name in read and before.is_recreated(topic.name, topic.id, places.store.id):
            _report_recreated(places, before, topic.name)
            begun[share] = EpochPosition(_new(places, share, log), end.epoch)
            began[share] = begun[share].offset
        elif position is None:
            began[share] = _new(places, share, log)
        elif position.epoch == end.epoch and position.offset <= end.offset:
            began[share] = position.offset
        else:
            began[share] = _start(places, share, log, position)
    return began, begun


def without_missing(places: Places, known: Positions, shares: Sequence[tuple[Topic, int]]) -> Positions:
    """Positions without those in topics that no longer exist in the store. Topics that exist but are no longer
    subscribed to are the user's choice."""
    there = {topic.name for topic, _ in shares}
    gone = sorted(name for name in {name for name, _ in known.at} - there if not places.has(name))
    for name in gone:
        said = f"the topic {name!r} in {places.store.path} no longer exists: some of its records may not have been read"
        places.losses.report(said, "continuing without it")
    at = {share: position for share, position in known.at.items() if share[0] not in gone}
    return replace(known, at=at, topics={name: each for name, each in known.topics.items() if name not in gone})


def still_there(places: Places, target: Positions, shares: Sequence[tuple[Topic, int]]) -> Positions:
    """Ends that were looked up earlier, as far as the store still has them."""
    at: dict[Share, EpochPosition] = {}
    target = without_missing(places, target, shares)
    for topic, number in shares:
        share = topic.name, number
        if share not in target.at:
            continue  # new since then
        if target.is_recreated(topic.name, topic.id, places.store.id):
            _report_recreated(places, target, topic.name)
            continue
        at[share] = _end(places, share, topic.partition(number), target.at[share])
    return Positions(at, {topic: target.topics[topic] for topic, _ in at}, target.store)


class Ranges:
    """What a batch or a micro-batch from `start` to `end` reads.

    A batch may start after its end: then there is nothing to read. A micro-batch may not: either its start has `moved`,
    because it was looked up again after a restart, or the partition was shorter when it was planned than what was read.
    """

    def __init__(self, places: Places, start: Positions, end: Positions, *, moved: bool | None = None) -> None:
        self._places = places
        self._start = start
        self._end = end
        self._moved = moved
        self._topics: dict[str, Topic] = {}

    def again(self, share: Share) -> Range | None:
        """As `of`, for a partition that has changed since."""
        self._topics.clear()
        return self.of(share)

    def of(self, share: Share) -> Range | None:
        """What there is to read of a partition; None if nothing."""
        name, number = share
        start, end = self._start.at.get(share), self._end.at[share]
        if start == end and not self._begins_again(name):
            return None
        try:
            topic = self._topic(name)
            if self._end.is_recreated(name, topic.id, self._places.store.id):
                _report_recreated(self._places, self._end, name)
                return None
            log = topic.partition(number)
        except TopicNotFound as error:
            gone = f"records up to {end.offset - 1} of partition {number} of {name!r} are gone: {error}"
            self._places.losses.report(gone, cause=error)
            return None
        if start is not None and self._start.is_recreated(name, topic.id, self._places.store.id):
            _report_recreated(self._places, self._start, name)
            start = None
        first, last = self._checked(share, log, start, end)
        return Range(topic, number, log, first, EpochPosition(last, end.epoch)) if first < last else None

    def _topic(self, name: str) -> Topic:
        """Looked up once for all its partitions."""
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = self._places.topic(name)
        return found

    def _begins_again(self, name: str) -> bool:
        """Whether the end is in another topic, or another store, than the start."""
        start, end = self._start, self._end
        return start.is_recreated(name, end.topics.get(name, ""), end.store or "")

    def _checked(
        self, share: Share, log: Partition, start: EpochPosition | None, end: EpochPosition
    ) -> tuple[int, int]:
        last = _end(self._places, share, log, end).offset
        lowest = log.lowest_offset
        if start is None:
            return _new(self._places, share, log), last
        fits = start.epoch == end.epoch and start.offset <= last
        first = start.offset if fits else _start(self._places, share, log, start)
        if first > last and start.offset > end.offset and self._moved is not None:
            said = f"this micro-batch should go from {start.offset} to {end.offset} in partition {share[1]} of"
            then = "leaving it out" if self._moved else "continuing at its first record"
            self._places.losses.report(f"{said} {share[0]!r}: {_MOVED}", then)
            return (last, last) if self._moved else (lowest, last)
        if first < min(lowest, last):
            said = f"records {first} to {min(lowest, last) - 1} of partition {share[1]} of {share[0]!r} are gone"
            self._places.losses.report(f"{said} (retention or trim)")
        return max(first, lowest), last


def _new(places: Places, share: Share, log: Partition) -> int:
    """Where to begin in a partition that is new to the query: all of its records should be read."""
    lowest = log.lowest_offset
    if lowest > 0:
        places.losses.report(
            f"partition {share[1]} of {share[0]!r} is new to the query and starts at offset {lowest} instead of 0: "
            "earlier records are gone (retention or trim)",
            f"continuing at offset {lowest}",
        )
    return lowest


def _start(places: Places, share: Share, log: Partition, position: EpochPosition) -> int:
    """Where to continue: the position, unless what was read before it is no longer there."""
    end = slices.proven_end(log, position.epoch, position.offset)
    if end >= position.offset:
        return position.offset
    said = f"partition {share[1]} of {share[0]!r} was read up to offset {position.offset}, but"
    if position.epoch == UNKNOWN:
        places.losses.report(
            f"{said} now ends at {end}: it was truncated, or recreated", "continuing at its first record"
        )
        return log.lowest_offset
    places.losses.report(
        f"{said} has lost its records from offset {end} on since then (a power cut, or truncate); newer records may "
        "have the same offsets",
        f"continuing at offset {end}",
    )
    return end


def _end(places: Places, share: Share, log: Partition, position: EpochPosition) -> EpochPosition:
    """Up to where to read: a planned end, or as far as records exist."""
    end = slices.proven_end(log, position.epoch, position.offset)
    if end < position.offset:
        places.losses.report(
            f"records {end} to {position.offset - 1} of partition {share[1]} of {share[0]!r} are gone: they were "
            f"planned to be read, but the log has lost its records from offset {end} on since then (a power cut, or "
            "truncate)"
        )
    return EpochPosition(end, position.epoch)


def _report_recreated(places: Places, read: Positions, topic: str) -> None:
    if read.store not in (None, places.store.id):
        what = f"{places.store.path} is another store than the one that was read: its id is {places.store.id}, not "
        what += str(read.store)
    else:
        what = f"the topic {topic!r} in {places.store.path} was deleted and recreated"
    then = f"continuing with the current topic {topic!r}, at its first record"
    places.losses.report(f"{what}; what was to be read of the old topic {topic!r} is gone", then)
