"""`sawlog read --group`: read the records that a group has not consumed yet, and commit the printed ones.

With -d the command joins the group and shares the partitions with the other members. Through a broker it does not
join: it reads all partitions from the committed offsets, and refuses a group that has members.

The command commits about once a second, whenever it runs out of records, and at the end, each time after flushing its
output. If it is killed or interrupted, the next run may print some records again, but it never skips one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from ..clock import Deadline
from ..display import counted
from ..errors import GroupActive, GroupNotFound
from ..isolation import Isolation
from .output import note
from .places import OpenLogs, open_any, open_named_logs
from .records import POLL_MOST_S, POLL_S, PartitionRecord, ReadablePartition, records
from .stores import TopicPartition

if TYPE_CHECKING:
    from ..store.consumer import Consumer
    from ..store.directory.topic import Topic
    from ..store.objects.topic import ObjectTopic

_COMMIT_S = 1.0

Start = Literal["earliest", "latest"]


class GroupReader(Protocol):
    """Iterator over the records that a group has not consumed, with commit."""

    def found(self, idle: Callable[[], None] | None) -> Iterator[PartitionRecord]:
        """Yield the records up to the end. With `idle`, also yield later records, and call `idle` before each wait."""

    def commit(self) -> None:
        """Commit every record that was yielded."""


@contextmanager
def open_group_reader(
    data: Path | None, broker: str | None, topic: str, group: str, start: Start, isolation: Isolation
) -> Iterator[GroupReader]:
    """Read a topic as this group. A group without committed offsets begins at `start`."""
    if broker is None and data is not None:
        with open_any(data, "w") as store:
            into = store.topic(topic)
            with store.consumer(
                group, topic, start=start, auto_commit_ms=None, isolation=isolation, member="sawlog read"
            ) as consumer:
                yield _MemberReader(consumer, into)
        return
    with open_named_logs(data, None, topic, None, broker) as opened:
        places = [
            ReadablePartition(each.topic, each.partition, each.log, isolation=isolation) for each in opened.places
        ]
        yield _BrokerReader(opened, places, group, start)


def committing(
    found: Iterator[PartitionRecord], flush: Callable[[], None], commit: Callable[[], None]
) -> Iterator[PartitionRecord]:
    """Pass the records through and commit the printed ones about once a second."""
    due = Deadline(_COMMIT_S)
    for each in found:
        yield each
        if due.passed:
            flush()
            commit()
            due = Deadline(_COMMIT_S)


class _MemberReader:
    """Reads as a member of the group, with direct access to the store."""

    def __init__(self, consumer: Consumer, topic: Topic | ObjectTopic) -> None:
        self._consumer = consumer
        self._places = {
            number: ReadablePartition(topic.name, number, topic.partition(number)) for number in range(topic.partitions)
        }
        self._topic = topic

    def found(self, idle: Callable[[], None] | None) -> Iterator[PartitionRecord]:
        wait = POLL_S
        for cursor in self._consumer.feed(drain=idle is None):
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
        if number not in self._places:  # the partition was added after this reader opened
            self._places[number] = ReadablePartition(self._topic.name, number, self._topic.partition(number))
        return self._places[number]

    def commit(self) -> None:
        self._consumer.commit()


class _BrokerReader:
    """Reads through a broker, without joining the group."""

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
