"""The records that a command reads from partitions: a range of each, then new ones as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..batch.kernel import Record
from ..errors import CorruptBatch, OffsetOutOfRange
from ..isolation import Isolation
from .output import note
from .places import NamedLog, Reading
from .stores import SomeLog

#: How long a follower waits before it checks again; doubled while there are no new records.
POLL_S, POLL_MOST_S = 0.005, 0.1


@dataclass(frozen=True, slots=True)
class Place(NamedLog[SomeLog]):
    """A partition, as far as it is read."""

    isolation: Isolation = "committed"

    @property
    def lowest_offset(self) -> int:
        """The first offset."""
        return self.log.lowest_offset

    @property
    def next_offset(self) -> int:
        """The end for readers."""
        return self.log.position(isolation=self.isolation)[0]

    def offset_at(self, timestamp: int) -> int:
        """The first offset at or after a time."""
        return self.log.offset_at(timestamp)


#: A record and where it is.
Found = tuple[Place, Record]
#: The first offset of a place to read, and the one after the last.
Range = Callable[[Place], tuple[int, int]]


def scan(place: Place, start: int, end: int, damage: list[str] | None) -> Iterator[Found]:
    """Yield the records of one log; continue after damage if that is wanted and something readable follows."""
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
    opened: Reading,
    places: list[Place],
    wanted: Range,
    idle: Callable[[], None] | None = None,
    damage: list[str] | None = None,
) -> Iterator[Found]:
    """Yield the records of a range, place by place; then, if `idle` is given, new records as they arrive. `idle` is
    called before each wait."""
    positions: list[tuple[int, int]] = []  # the next offset of each place, and its leader epoch
    for place in places:
        epoch = place.log.leader_epoch
        start, end = wanted(place)
        end = max(start, min(end, place.next_offset))  # a transaction that is not finished is waited for
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
