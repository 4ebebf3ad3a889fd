"""Positions of a consumer and the topics of its group.

`PartitionPosition` is the position in one partition, with the leader epoch in which it was read and the current cursor.
`ConsumerPosition` has all of them: the order of reading, the records that the caller is processing, what was committed,
and the handling of lost positions (see `Consumer`).

`TopicWatch` has the topics that a consumer and its group read, as the store currently has them. Topics gain partitions
and are deleted and recreated while they are read, also by other processes, so they are looked up again every few
seconds and whenever the group indicates a change.

Threads: the reading thread moves positions and looks topics up. The background checks the current cursor and stops it;
`close` and all read-only calls may come from any thread. Partitions are added and removed under the consumer's lock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, get_args

from ..batch.kernel import RecordCursor
from ..clock import Deadline, rechecks
from ..config import Isolation
from ..errors import InvalidConfig, OffsetOutOfRange, PositionLost, TopicNotFound
from .base import Partition, Topic, TopicPartition

OnLost = Literal["earliest", "latest", "error"]

_logger = logging.getLogger("sawlog.store.consumer")

#: Maximum number of retries while the end of a log keeps moving.
_RETRIES = 10


def checked_on_lost(given: OnLost) -> OnLost:
    """Return it if it is valid; else `InvalidConfig`."""
    if given not in get_args(OnLost):
        raise InvalidConfig(f'on_lost must be "earliest", "latest" or "error", not {given!r}')
    return given


class PartitionPosition:
    """Position of a consumer in one partition."""

    def __init__(
        self,
        topic: Topic,
        partition: int,
        log: Partition,
        position: int,
        epoch: int,
        *,
        committed: int | None = None,
        isolation: Isolation = "committed",
    ) -> None:
        self.topic_partition: TopicPartition = (topic.name, partition)
        self._isolation = isolation
        self.topic_id = topic.id
        self.log = log
        #: Offset that the group has committed, as far as this consumer knows.
        self.committed = committed
        #: The offset after the last record of the previous cursors, and the leader epoch in which that was read; -1:
        #: unknown.
        self.position = position
        self.epoch = epoch
        #: The current cursor, and the cursors after it, up to `end`.
        self.cursor: RecordCursor | None = None
        self._rest: Iterator[RecordCursor] | None = None
        #: End of these cursors, and the leader epoch of the log when that was its end.
        self._end = 0, -1

    @property
    def reached(self) -> int:
        """Offset after the last record that was returned."""
        cursor = self.cursor
        return self.position if cursor is None else max(self.position, int(cursor.next_offset))

    @property
    def processed(self) -> int:
        """Like `reached`, without the record that the caller is processing."""
        reached = self.reached
        return reached - 1 if self.cursor is not None and reached > self.position else reached

    @property
    def lag(self) -> int:
        """Number of records that have not been returned yet."""
        end, _ = self.end()
        return max(end - max(self.reached, self.log.lowest_offset), 0)

    def end(self) -> tuple[int, int]:
        """Return where reading stops for now, and the leader epoch of the log then."""
        return self.log.position(isolation=self._isolation)

    @property
    def is_gone(self) -> bool:
        """True if the records at the position are no longer in the log."""
        return self.position < self.log.lowest_offset or self.is_beyond

    @property
    def is_beyond(self) -> bool:
        """True if the log was truncated, or lost its end, below the position."""
        return self.position > self.log.epoch_end(self.epoch)

    def next_cursor(self, end: int, epoch: int) -> RecordCursor | None:
        """Return the cursor to continue with; None if there is nothing below `end`. `epoch` is the leader epoch of the
        log when it ended there. `OffsetOutOfRange` if the position is not of the current history."""
        while self.cursor is None:
            if self._rest is None:
                if self.position >= end:
                    return None
                self._rest = self.log._cursors(self.position, end, isolation=self._isolation)
                self._end = end, epoch
            try:
                found = next(self._rest, None)
                self._enter(self._end[1] if found is None else int(found.leader_epoch))
            except BaseException:
                self._rest = None
                raise
            if found is None:
                self._rest, self.position = None, max(self.position, self._end[0])
            self.cursor = found
        return self.cursor

    def _enter(self, epoch: int) -> None:
        """Move to a new leader epoch, after checking that everything read so far belongs to the same history."""
        if epoch > self.epoch:
            if self.is_beyond:
                raise OffsetOutOfRange(
                    self.position, self.log.lowest_offset, self.log.epoch_end(self.epoch), self.log.path
                )
            self.epoch = epoch

    def drained(self) -> None:
        """Finish the current cursor. If it was stopped, the cursors after it are no longer next."""
        cursor = self.cursor
        if cursor is not None:
            self.position = self.reached
            self.cursor = None
            if cursor.stopped:
                self._rest = None

    def move(self, position: int, epoch: int) -> None:
        """Continue at another position."""
        cursor, self.cursor, self._rest = self.cursor, None, None
        self.position, self.epoch = position, epoch
        if cursor is not None:
            cursor.stop()

    def stop(self) -> None:
        """Stop the current cursor."""
        cursor = self.cursor
        if cursor is not None:
            cursor.stop()

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch of an offset; the current one for offsets that were not read here."""
        return self.epoch if offset <= self.reached else self.log.leader_epoch


class ConsumerPosition:
    """Positions of a consumer in all its partitions."""

    def __init__(self, on_lost: OnLost) -> None:
        self._on_lost = on_lost
        self._owned: dict[TopicPartition, PartitionPosition] = {}
        #: The order in which partitions are read.
        self._round: deque[TopicPartition] = deque()
        #: The partition whose cursor the caller iterates over; or the positions before its last `poll`.
        self._given: PartitionPosition | None = None
        self._before: dict[TopicPartition, int] | None = None
        #: Paused partitions.
        self._paused: set[TopicPartition] = set()
        #: Partitions whose position went back, reported by an error: not committed before the reader continues.
        self._unsure: set[TopicPartition] = set()
        #: Number of times a position was no longer in the log.
        self.lost_count = 0

    # --- partitions

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._owned

    def __iter__(self) -> Iterator[PartitionPosition]:
        return iter(list(self._owned.values()))

    def get(self, partition: TopicPartition) -> PartitionPosition | None:
        """Return one position; None if the partition is not read here."""
        return self._owned.get(partition)

    def partitions(self) -> set[TopicPartition]:
        """Return all partitions."""
        return set(self._owned)

    def add(self, owned: PartitionPosition) -> None:
        """Add a partition, to be read next."""
        self._owned[owned.topic_partition] = owned
        self._round.appendleft(owned.topic_partition)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions."""
        gone = {partition: self._owned.pop(partition) for partition in partitions}
        self._paused.difference_update(gone)
        self._round = deque(each for each in self._round if each not in gone)
        for owned in gone.values():
            owned.stop()

    def clear(self) -> None:
        """Remove all partitions, and forget the current records."""
        self.remove(list(self._owned))
        self._given = self._before = None

    def pause(self, partition: TopicPartition) -> None:
        """Stop reading a partition."""
        self._paused.add(partition)
        self._owned[partition].stop()

    def resume(self, partition: TopicPartition) -> None:
        """Read a partition again."""
        self._paused.discard(partition)

    @property
    def paused(self) -> set[TopicPartition]:
        """Paused partitions."""
        return set(self._paused)

    # --- records

    def in_turn(self) -> Iterator[PartitionPosition]:
        """Yield each partition once, round robin."""
        order = self._round  # replaced, not changed, when another thread closes the consumer
        for _ in range(len(order)):
            partition = order[0]
            order.rotate(-1)
            owned = self._owned.get(partition)
            if owned is not None and partition not in self._paused:
                yield owned

    def cursor(self, owned: PartitionPosition, ends: dict[TopicPartition, int] | None) -> RecordCursor | None:
        """Return a cursor over the next records of a partition; None if there are none. With `ends`, only up to the end
        it had when it was first read. Handles a lost position."""
        if owned.cursor is not None:
            return owned.cursor
        lost: OffsetOutOfRange | None = None
        for _ in range(_RETRIES):
            end, epoch = owned.end()
            if owned.is_gone:
                self._look_again(owned)
                continue
            if ends is not None:
                end = min(ends.setdefault(owned.topic_partition, end), end)
            try:
                return owned.next_cursor(end, epoch)
            except OffsetOutOfRange as error:
                lost = error  # trimmed or truncated meanwhile; check again
        raise lost or OffsetOutOfRange(owned.position, owned.log.lowest_offset, end, owned.log.path)

    def _look_again(self, owned: PartitionPosition) -> None:
        """Handle a position that seems to be lost. First give a writer that is replacing files time to finish: a moved
        position is hard to undo."""
        for _ in rechecks():
            owned.end()
            if not owned.is_gone:
                return
        if owned.is_beyond and owned.epoch >= 0:
            self._go_back(owned)
        else:  # without an epoch it is unknown from where on records differ
            self._lose(owned)

    def _go_back(self, owned: PartitionPosition) -> None:
        """Continue where the history of the position ended, whatever `on_lost` says: the last records read are no
        longer in the log."""
        topic, partition = owned.topic_partition
        now, reached = owned.log.leader_epoch, owned.position
        end = owned.log.epoch_end(owned.epoch)
        self.lost_count += 1
        owned.move(end, now)
        owned.committed = None
        what = (
            f"partition {partition} of {topic!r} was read up to offset {reached}, but has lost its records from offset "
            f"{end} on since then (a power cut, or truncate); newer records may have the same offsets"
        )
        if self._on_lost == "error":
            self._unsure.add(owned.topic_partition)
            raise PositionLost(f"{what}. The next call continues at offset {end}")
        _logger.warning("%s; continuing at offset %d", what, end)

    def _lose(self, owned: PartitionPosition) -> None:
        """Apply `on_lost`: the records at the position are gone."""
        topic, partition = owned.topic_partition
        end, epoch = owned.end()
        lowest = owned.log.lowest_offset
        what = f"offset {owned.position} of partition {partition} of {topic!r} is gone: it holds {lowest} to {end - 1}"
        self.lost_count += 1
        if self._on_lost == "error":
            raise PositionLost(f"{what}; call seek to continue")
        _logger.warning("%s; continuing at the %s", what, "first" if self._on_lost == "earliest" else "end")
        owned.move(lowest if self._on_lost == "earliest" else end, epoch)

    # --- the records that the caller is processing

    def all_processed(self) -> None:
        """Mark everything returned so far as processed: the caller asks for more."""
        self._given = self._before = None
        self._unsure.clear()

    def begin_poll(self) -> None:
        """Count records returned from here on as being processed until `all_processed`."""
        self._before = self.reached()

    def take_back(self) -> None:
        """Go back to `begin_poll`: the caller never got the records returned since."""
        for partition, position in (self._before or {}).items():
            if (owned := self._owned.get(partition)) is not None:
                owned.move(position, owned.epoch)

    def hand_out(self, owned: PartitionPosition) -> None:
        """Count one record at a time as being processed: the caller iterates over this partition's cursor."""
        self._before, self._given = None, owned

    @property
    def in_hand(self) -> RecordCursor | None:
        """Cursor that the caller iterates over, if any."""
        given = self._given
        return None if given is None else given.cursor

    def reached(self) -> dict[TopicPartition, int]:
        """Return the offset after the last returned record of each partition."""
        return {owned.topic_partition: owned.reached for owned in self}

    def processed(self) -> dict[TopicPartition, int]:
        """Like `reached`, without the records that the caller is processing."""
        given, before = self._given, self._before
        made = self.reached()
        if given is not None:
            if given.topic_partition in made and given.processed < given.reached:
                made[given.topic_partition] = given.processed
        elif before is not None:
            made.update((partition, before[partition]) for partition in made.keys() & before.keys())
        return made

    # --- committing

    def sure(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the positions that may be committed automatically."""
        return {partition: at for partition, at in positions.items() if partition not in self._unsure}

    def changed(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the positions that are not committed yet."""
        return {
            partition: offset for partition, offset in positions.items() if self._owned[partition].committed != offset
        }

    def note_committed(self, positions: Mapping[TopicPartition, int]) -> None:
        """Record committed positions."""
        for partition, offset in positions.items():
            self._owned[partition].committed = offset


#: Interval at which topics are checked for new partitions.
_TOPICS_S = 2.0


class TopicWatch:
    """Topics that a consumer (`names`) and the other members of its group read."""

    def __init__(self, find: Callable[[str], Topic], names: tuple[str, ...]) -> None:
        self._find = find
        self.names = names
        self._found: dict[str, Topic] = {}
        #: The names of the last lookup: those of all members.
        self._asked_for: set[str] = set()
        #: When to look topics up again.
        self.due = Deadline(0.0)
        #: True if topics were looked up since the last assignment.
        self.changed = True

    def note_assignment(self) -> None:
        """Record that partitions are assigned by the last lookup."""
        self.changed = False

    def look_soon(self) -> None:
        """Make the next lookup due: something has changed."""
        self.due = Deadline(0.0)

    def look(self, others: Iterable[str] = (), *, missing_ok: bool = True) -> None:
        """Ask the store for the topics of all members: more partitions, deleted, recreated."""
        found: dict[str, Topic] = {}
        self._asked_for = {*self.names, *others}
        for name in sorted(self._asked_for):
            try:
                found[name] = self._find(name)
            except TopicNotFound:
                if not missing_ok and name in self.names:
                    raise
                if name in self._found:
                    _logger.warning("the topic %r no longer exists; its partitions are no longer read", name)
        self._found = found
        self.due = Deadline(_TOPICS_S)
        self.changed = True

    def covers(self, names: set[str]) -> bool:
        """Return whether the last lookup included all of these."""
        return names <= self._asked_for

    def get(self, name: str) -> Topic | None:
        """Return a topic; None if it does not exist."""
        return self._found.get(name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._found.values())

    def partitions(self) -> list[TopicPartition]:
        """Return every partition of every topic."""
        return [(topic.name, number) for topic in self for number in range(topic.partitions)]
