"""Records for `sawlog read`: a range of each partition, then optionally new records as they arrive.

With --group, the command reads the records that a group has not consumed yet, and commits the printed ones. With -d it
joins the group and shares the partitions with the other members. Through a broker it does not join: it reads all
partitions from the committed offsets, and refuses a group that has members.

The command commits about once a second, whenever it runs out of records, and at the end, each time after flushing its
output. If it is killed or interrupted, the next run may print some records again, but it never skips one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..batch.kernel import Record
from ..clock import Deadline
from ..config import Isolation
from ..display import counted
from ..errors import CorruptBatch, GroupActive, GroupNotFound, OffsetOutOfRange
from ..store.base import Partition
from .output import note
from .places import NamedLog, OpenLogs, open_any, open_logs

if TYPE_CHECKING:
    from ..store.consumer import Consumer
    from ..store.directory.topic import DirectoryTopic
    from ..store.objects.topic import ObjectTopic


#: Poll interval of a follower: doubled up to the second value while no records arrive.
POLL_S, POLL_MOST_S = 0.005, 0.1


@dataclass(frozen=True, slots=True)
class ReadablePartition(NamedLog[Partition]):
    """A partition at an isolation level."""

    isolation: Isolation = "committed"

    @property
    def lowest_offset(self) -> int:
        """First offset of the partition."""
        return self.log.lowest_offset

    @property
    def next_offset(self) -> int:
        """End offset at this isolation level."""
        return self.log.position(isolation=self.isolation)[0]

    def offset_at(self, timestamp: int) -> int:
        """Return the first offset at or after a time."""
        return self.log.offset_at(timestamp)


#: A record and its partition.
PartitionRecord = tuple[ReadablePartition, Record]
#: Returns the half-open range of offsets to read from a partition.
Range = Callable[[ReadablePartition], tuple[int, int]]


def readable(opened: OpenLogs, isolation: Isolation) -> list[ReadablePartition]:
    """Return the open partitions at an isolation level."""
    return [ReadablePartition(each.topic, each.partition, each.log, isolation) for each in opened.places]


def scan(place: ReadablePartition, start: int, end: int, damage: list[str] | None) -> Iterator[PartitionRecord]:
    """Yield the records of one partition. If `damage` is a list, append errors to it and continue after damage."""
    while start < end:
        try:
            for record in place.log.scan(start, end, isolation=place.isolation):
                yield place, record
                start = record.offset + 1
            return
        except OffsetOutOfRange as error:
            if error.lowest <= start:
                raise
            note(f"{place.name}: offsets {start} to {error.lowest - 1} were removed before they could be read")
            start = error.lowest
        except CorruptBatch as error:
            if damage is None or error.next_offset is None or error.next_offset <= start:
                raise
            damage.append(str(error))
            note(f"{place.name}: {error}")
            start = error.next_offset


def records(
    opened: OpenLogs,
    places: list[ReadablePartition],
    wanted: Range,
    idle: Callable[[], None] | None = None,
    damage: list[str] | None = None,
) -> Iterator[PartitionRecord]:
    """Yield the records of a range, partition by partition. If `idle` is given, then yield new records as they arrive,
    calling `idle` before each wait."""
    positions: list[tuple[int, int]] = []  # next offset and leader epoch of each partition
    for place in places:
        epoch = place.log.leader_epoch
        start, end = wanted(place)
        end = max(start, min(end, place.next_offset))  # an open transaction ends the range, and a follower waits for it
        yield from scan(place, start, end, damage)
        positions.append((end, epoch))
    if idle is None:
        return
    wait = POLL_S
    while True:
        came = False
        for number, place in enumerate(places):
            now = place.log.position(isolation=place.isolation)
            reached = positions[number][0]
            kept = place.log.epoch_end(positions[number][1])
            if kept < reached:
                note(f"{place.name}: offsets from {kept} on were truncated; continuing there")
                reached = kept
            if now[0] > reached:
                came = True
                yield from scan(place, reached, now[0], damage)
            if now[0] != reached or kept < positions[number][0]:
                positions[number] = now
        if came:
            wait = POLL_S
            continue
        idle()
        opened.wait([offset for offset, _ in positions], wait)
        wait = min(2 * wait, POLL_MOST_S)


# --- as a consumer group

_COMMIT_S = 1.0
#: Topic and partition number.
TopicPartition = tuple[str, int]
Start = Literal["earliest", "latest"]


class MemberReader:
    """Reads the records that a group has not consumed, as a member of the group."""

    def __init__(self, consumer: Consumer, topic: DirectoryTopic | ObjectTopic) -> None:
        self._consumer, self._topic = consumer, topic
        self._places: dict[int, ReadablePartition] = {}

    def found(self, idle: Callable[[], None] | None) -> Iterator[PartitionRecord]:
        """Yield the records up to the end. With `idle`, also yield later records, and call `idle` before each wait."""
        wait = POLL_S
        for cursor in self._consumer._feed(drain=idle is None):
            if cursor is not None:
                wait = POLL_S
                for record in cursor:
                    yield self._place(record.partition), record
            elif idle is not None:
                idle()
                time.sleep(wait)
                wait = min(2 * wait, POLL_MOST_S)
        if not self._consumer.assignment:
            note("other members of the group have all partitions; --follow waits until one leaves")

    def _place(self, number: int) -> ReadablePartition:
        if number not in self._places:
            self._places[number] = ReadablePartition(self._topic.name, number, self._topic.partition(number))
        return self._places[number]

    def commit(self) -> None:
        """Commit every record that was yielded."""
        self._consumer.commit()


class BrokerReader:
    """Reads the records that a group has not consumed, through a broker and without joining the group."""

    def __init__(self, opened: OpenLogs, places: list[ReadablePartition], group: str, start: Start) -> None:
        self._opened, self._places, self._group, self._start = opened, places, group, start
        self._groups = opened.groups
        self._committed = self._look()
        self._reached: dict[TopicPartition, int] = {}

    def _look(self) -> dict[TopicPartition, int]:
        """Return the group's committed offsets. Raises `GroupActive` if the group has members."""
        try:
            about = self._groups.describe(self._group)
        except GroupNotFound:
            return {}
        if about.members:
            raise GroupActive(
                f"the group {self._group!r} has {counted(len(about.members), 'member')} reading its partitions; with "
                "-b a group can be read only while it has none"
            )
        return {(row.topic, row.partition): row.committed for row in about.rows if row.committed is not None}

    def found(self, idle: Callable[[], None] | None) -> Iterator[PartitionRecord]:
        for place, record in records(self._opened, self._places, self._range, idle):
            self._reached[place.topic, place.partition] = record.offset + 1
            yield place, record

    def _range(self, place: ReadablePartition) -> tuple[int, int]:
        end = place.next_offset
        start = self._committed.get((place.topic, place.partition))
        if start is None:
            start = place.lowest_offset if self._start == "earliest" else end
            self._reached[place.topic, place.partition] = start  # committed even if no record is read
        return start, max(start, end)

    def commit(self) -> None:
        if self._reached:
            self._groups.commit(self._group, self._reached)
            self._reached = {}


GroupReader = MemberReader | BrokerReader


@contextmanager
def open_group_reader(
    data: str | None, broker: str | None, topic: str, group: str, start: Start, isolation: Isolation
) -> Iterator[GroupReader]:
    """Read a topic as this group. A group without committed offsets begins at `start`."""
    if broker is None and data is not None:
        with open_any(data, "w") as store:
            into = store.topic(topic)
            with store.consumer(
                group, topic, start=start, auto_commit_ms=None, isolation=isolation, member="sawlog read"
            ) as consumer:
                yield MemberReader(consumer, into)
        return
    with open_logs(data, None, topic, None, broker) as opened:
        yield BrokerReader(opened, readable(opened, isolation), group, start)


def committing(found: Iterator[PartitionRecord], settle: Callable[[], None]) -> Iterator[PartitionRecord]:
    """Pass the records through, and flush and commit the printed ones about once a second."""
    due = Deadline(_COMMIT_S)
    for each in found:
        yield each
        if due.passed:
            settle()
            due = Deadline(_COMMIT_S)
