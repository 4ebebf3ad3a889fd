"""`sawlog read --group`: reads what a group has not read yet, and commits what was printed.

In a store's directory, or on object storage, the command joins the group, and shares the partitions with its other
members. Behind a broker it does not join: it reads all partitions from the committed offsets, which a group with
members does not allow.

It commits at the end, and while it runs about once a second and when there is nothing new, each time after what it
printed was flushed. If it is killed, or interrupted, some records may be printed again: none is left out.
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
from .places import Reading, open_any, reading
from .records import POLL_MOST_S, POLL_S, Found, Place, records
from .stores import Share

if TYPE_CHECKING:
    from ..store.consumer import Consumer
    from ..store.directory.topic import Topic
    from ..store.objects.topic import ObjectTopic

_COMMIT_S = 1.0

Start = Literal["earliest", "latest"]


class GroupReading(Protocol):
    """What a group has not read yet."""

    def found(self, idle: Callable[[], None] | None) -> Iterator[Found]:
        """The records up to the end; with `idle` also those that arrive later. `idle` is called when there are none."""

    def commit(self) -> None:
        """All records that were returned are processed."""


@contextmanager
def group_reading(
    data: Path | None, broker: str | None, topic: str, group: str, start: Start, isolation: Isolation
) -> Iterator[GroupReading]:
    """Read a topic as this group. `start` is where a group begins that has committed nothing."""
    if broker is None and data is not None:
        with open_any(data, "w") as store:
            into = store.topic(topic)
            with store.consumer(
                group, topic, start=start, auto_commit_ms=None, isolation=isolation, member="sawlog read"
            ) as consumer:
                yield _AsMember(consumer, into)
        return
    with reading(data, None, topic, None, broker) as opened:
        places = [Place(each.topic, each.partition, each.log, isolation=isolation) for each in opened.places]
        yield _FromOutside(opened, places, group, start)


def committing(found: Iterator[Found], flush: Callable[[], None], commit: Callable[[], None]) -> Iterator[Found]:
    """The same records; what was printed is committed about once a second."""
    due = Deadline(_COMMIT_S)
    for each in found:
        yield each
        if due.passed:
            flush()
            commit()
            due = Deadline(_COMMIT_S)


class _AsMember:
    """As a member of the group, in the store's directory."""

    def __init__(self, consumer: Consumer, topic: Topic | ObjectTopic) -> None:
        self._consumer = consumer
        self._places = {
            number: Place(topic.name, number, topic.partition(number)) for number in range(topic.partitions)
        }
        self._topic = topic

    def found(self, idle: Callable[[], None] | None) -> Iterator[Found]:
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

    def _place(self, number: int) -> Place:
        if number not in self._places:  # added meanwhile
            self._places[number] = Place(self._topic.name, number, self._topic.partition(number))
        return self._places[number]

    def commit(self) -> None:
        self._consumer.commit()


class _FromOutside:
    """Without joining the group, behind a broker."""

    def __init__(self, opened: Reading, places: list[Place], group: str, start: Start) -> None:
        self._opened, self._places, self._group, self._start = opened, places, group, start
        self._groups = opened.groups
        self._committed = self._look()
        self._reached: dict[Share, int] = {}

    def _look(self) -> dict[Share, int]:
        """What the group has committed; refuse a group that others read for."""
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

    def found(self, idle: Callable[[], None] | None) -> Iterator[Found]:
        for place, record in records(self._opened, self._places, self._range, idle):
            self._reached[place.topic, place.partition] = record.offset + 1
            yield place, record

    def _range(self, place: Place) -> tuple[int, int]:
        end = place.next_offset
        start = self._committed.get((place.topic, place.partition))
        if start is None:
            start = place.lowest_offset if self._start == "earliest" else end
            self._reached[place.topic, place.partition] = start  # where it began, if nothing is read
        return start, max(start, end)

    def commit(self) -> None:
        if self._reached:
            self._groups.commit(self._group, self._reached)
            self._reached = {}
