"""Reading records from partitions: a range of each, then optionally new records as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..batch.kernel import Record
from ..errors import CorruptBatch, OffsetOutOfRange
from ..isolation import Isolation
from .output import note
from .places import NamedLog, OpenLogs
from .stores import PartitionLike

#: Poll interval of a follower: doubled up to the second value while no records arrive.
POLL_S, POLL_MOST_S = 0.005, 0.1


@dataclass(frozen=True, slots=True)
class ReadablePartition(NamedLog[PartitionLike]):
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
