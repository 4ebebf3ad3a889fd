"""Where a consumer is in each partition that it reads, and what it does when a position is lost.

A position carries the leader epoch in which it was read. `PartitionPosition` is one of them, with the cursor that
records come from now. `ConsumerPosition` has all of them: whose turn it is, what the caller has in hand, what was
committed, and what becomes of positions that are gone (see `Consumer`).

Threads: the one that reads moves positions. The background looks at the cursor in hand and stops it; `close` and
everything that only looks may come from any thread. Partitions are added and removed under the consumer's lock.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from ...batch.kernel import RecordCursor
from ...errors import InvalidConfig, OffsetOutOfRange, PositionLost
from ...log.log import Log
from ..topic import Topic
from .assignment import Share

OnLost = Literal["earliest", "latest", "error"]

_logger = logging.getLogger("sawlog.topics.consumer")

#: How often a position that seems to be gone is looked for again, and after how long.
_RETRIES, _DOUBT_S = 10, 0.002


def checked_on_lost(given: OnLost) -> OnLost:
    """Return it if it is one of them; else `InvalidConfig`."""
    if given not in get_args(OnLost):
        raise InvalidConfig(f'on_lost is "earliest", "latest" or "error", not {given!r}')
    return given


class PartitionPosition:
    """One partition that a consumer reads, and where it is in it."""

    def __init__(
        self, topic: Topic, partition: int, log: Log, position: int, epoch: int, *, committed: int | None = None
    ) -> None:
        self.share: Share = (topic.name, partition)
        self.topic_id = topic.id
        self.log = log
        #: What the group has committed, as far as this consumer knows.
        self.committed = committed
        #: After the last record of the cursors before this one, and the leader epoch in which that was read; -1:
        #: unknown.
        self.position = position
        self.epoch = epoch
        #: The cursor that records come from now, and those that follow it up to `end`.
        self.cursor: RecordCursor | None = None
        self._rest: Iterator[RecordCursor] | None = None
        #: Where those cursors end, and the leader epoch of the log when that was its end.
        self._end = 0, -1

    @property
    def reached(self) -> int:
        """The offset after the last record that was handed out."""
        cursor = self.cursor
        return self.position if cursor is None else max(self.position, int(cursor.following))

    @property
    def processed(self) -> int:
        """The same without the record that the caller has in hand, if it has one."""
        reached = self.reached
        return reached - 1 if self.cursor is not None and reached > self.position else reached

    @property
    def lag(self) -> int:
        """How many records are not handed out yet."""
        return max(self.log.visible_offset - max(self.reached, self.log.lowest_offset), 0)

    @property
    def is_gone(self) -> bool:
        """Whether the records at the position are not there any more."""
        return self.position < self.log.lowest_offset or self.is_beyond

    @property
    def is_beyond(self) -> bool:
        """Whether the log has lost its end, or was truncated, below the position."""
        return self.position > self.log.epoch_end(self.epoch)

    def next_cursor(self, end: int, epoch: int) -> RecordCursor | None:
        """The cursor to go on with; None if there is nothing below `end`. `epoch` is that of the log when it ended
        there. `OffsetOutOfRange` if the position is not of the history that is there now."""
        while self.cursor is None:
            if self._rest is None:
                if self.position >= end:
                    return None
                self._rest, self._end = self.log.cursors(self.position, end), (end, epoch)
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
        """What comes next was appended in this leader epoch: everything before it has to be of the same history."""
        if epoch > self.epoch:
            if self.is_beyond:
                raise OffsetOutOfRange(
                    self.position, self.log.lowest_offset, self.log.epoch_end(self.epoch), self.log.path
                )
            self.epoch = epoch

    def drained(self) -> None:
        """The cursor has ended; or it was stopped, and those after it are not next any more."""
        cursor = self.cursor
        if cursor is not None:
            self.position = self.reached
            self.cursor = None
            if cursor.stopped:
                self._rest = None

    def move(self, position: int, epoch: int) -> None:
        """Go on elsewhere."""
        cursor, self.cursor, self._rest = self.cursor, None, None
        self.position, self.epoch = position, epoch
        if cursor is not None:
            cursor.stop()

    def stop(self) -> None:
        """End the cursor that records come from."""
        cursor = self.cursor
        if cursor is not None:
            cursor.stop()

    def note_committed(self, offset: int | None) -> None:
        """This was committed; None: what was committed is not in the log any more."""
        self.committed = offset

    def epoch_of(self, offset: int) -> int:
        """The leader epoch that an offset belongs to: what was not read here is taken to be of now."""
        return self.epoch if offset <= self.reached else self.log.leader_epoch


class ConsumerPosition:
    """The partitions that a consumer reads, and where it is in each."""

    def __init__(self, on_lost: OnLost) -> None:
        self._on_lost = on_lost
        self._owned: dict[Share, PartitionPosition] = {}
        #: The order in which partitions are asked for records.
        self._round: deque[Share] = deque()
        #: Whose cursor the caller iterates over now; or the positions before its last `poll`.
        self._given: PartitionPosition | None = None
        self._before: dict[Share, int] | None = None
        #: Partitions that have gone back, and whoever reads was told by an error: not committed before it goes on.
        self._unsure: set[Share] = set()
        #: How often a position was not there any more.
        self.lost_count = 0

    # --- which partitions

    def __contains__(self, share: Share) -> bool:
        return share in self._owned

    def __iter__(self) -> Iterator[PartitionPosition]:
        return iter(list(self._owned.values()))

    def get(self, share: Share) -> PartitionPosition | None:
        """One of them; None if it is not read here."""
        return self._owned.get(share)

    def shares(self) -> set[Share]:
        """All of them."""
        return set(self._owned)

    def add(self, owned: PartitionPosition) -> None:
        """Read one more, as the next one."""
        self._owned[owned.share] = owned
        self._round.appendleft(owned.share)

    def remove(self, share: Share) -> None:
        """Read it no longer."""
        owned = self._owned.pop(share)
        self._round = deque(each for each in self._round if each != share)
        owned.stop()

    def clear(self) -> None:
        """Read nothing any more, and forget what is in hand."""
        for share in list(self._owned):
            self.remove(share)
        self._given = self._before = None

    # --- records

    def in_turn(self) -> Iterator[PartitionPosition]:
        """Each of them once, from the one whose turn it is."""
        order = self._round  # swapped, not changed, when another thread closes the consumer
        for _ in range(len(order)):
            share = order[0]
            order.rotate(-1)
            owned = self._owned.get(share)
            if owned is not None:
                yield owned

    def cursor(self, owned: PartitionPosition, ends: dict[Share, int] | None) -> RecordCursor | None:
        """A cursor over the next records of a partition; None if there are none. With `ends`, only up to where it ended
        when it was first asked for. A position that is lost is dealt with here."""
        if owned.cursor is not None:
            return owned.cursor
        lost: OffsetOutOfRange | None = None
        for _ in range(_RETRIES):
            end, epoch = owned.log.position()
            if owned.is_gone:
                self._look_again(owned)
                continue
            if ends is not None:
                end = min(ends.setdefault(owned.share, end), end)
            try:
                return owned.next_cursor(end, epoch)
            except OffsetOutOfRange as error:
                lost = error  # trimmed or truncated since we looked; look again
        raise lost or OffsetOutOfRange(owned.position, owned.log.lowest_offset, end, owned.log.path)

    def _look_again(self, owned: PartitionPosition) -> None:
        """Its position seems to be gone. Before that is believed, give a writer that is just replacing files the time
        to be done: a position that moves is hard to take back."""
        for _ in range(_RETRIES):
            time.sleep(_DOUBT_S)
            owned.log.position()
            if not owned.is_gone:
                return
        if owned.is_beyond and owned.epoch >= 0:
            self._go_back(owned)
        else:  # without an epoch nobody can say from where on records are others now
            self._lose(owned)

    def _go_back(self, owned: PartitionPosition) -> None:
        """What was read last is not in the log any more: go on where that history ended, whatever `on_lost` says."""
        topic, partition = owned.share
        now, reached = owned.log.leader_epoch, owned.position
        end = owned.log.epoch_end(owned.epoch)
        self.lost_count += 1
        owned.move(end, now)
        owned.note_committed(None)
        what = (
            f"partition {partition} of {topic!r} was read up to offset {reached}, and has lost its records from offset "
            f"{end} on since then (a power cut, or truncate); newer records may have the same offsets"
        )
        if self._on_lost == "error":
            self._unsure.add(owned.share)
            raise PositionLost(f"{what}. The next call goes on at offset {end}")
        _logger.warning("%s; going on at offset %d", what, end)

    def _lose(self, owned: PartitionPosition) -> None:
        """The records at its position are gone: do what `on_lost` says."""
        topic, partition = owned.share
        end, epoch = owned.log.position()
        lowest = owned.log.lowest_offset
        what = f"offset {owned.position} of partition {partition} of {topic!r} is gone: it holds {lowest} to {end - 1}"
        self.lost_count += 1
        if self._on_lost == "error":
            raise PositionLost(f"{what}; seek to go on")
        _logger.warning("%s; going on at the %s", what, "first" if self._on_lost == "earliest" else "end")
        owned.move(lowest if self._on_lost == "earliest" else end, epoch)

    # --- what the caller has in hand

    def all_processed(self) -> None:
        """The caller asks for more: everything that was handed out is processed."""
        self._given = self._before = None
        self._unsure.clear()

    def begin_poll(self) -> None:
        """What is handed out from here on is in hand until `all_processed`."""
        self._before = self.reached()

    def take_back(self) -> None:
        """Nobody got what was handed out since `begin_poll`: it comes again."""
        for share, position in (self._before or {}).items():
            if (owned := self._owned.get(share)) is not None:
                owned.move(position, owned.epoch)

    def hand_out(self, owned: PartitionPosition) -> None:
        """The caller iterates over its cursor: one record is in hand at a time."""
        self._before, self._given = None, owned

    @property
    def in_hand(self) -> RecordCursor | None:
        """The cursor that the caller iterates over, if it does."""
        given = self._given
        return None if given is None else given.cursor

    def reached(self) -> dict[Share, int]:
        """The offset after the last record that was handed out, of each."""
        return {owned.share: owned.reached for owned in self}

    def processed(self) -> dict[Share, int]:
        """The same without what the caller has in hand."""
        given, before = self._given, self._before
        made = self.reached()
        if given is not None:
            if given.share in made and given.processed < given.reached:
                made[given.share] = given.processed
        elif before is not None:
            made.update((share, before[share]) for share in made.keys() & before.keys())
        return made

    # --- what is committed

    def sure(self, positions: Mapping[Share, int]) -> dict[Share, int]:
        """Those that may be committed though the caller has not asked for it."""
        return {share: at for share, at in positions.items() if share not in self._unsure}

    def changed(self, positions: Mapping[Share, int]) -> dict[Share, int]:
        """Those that are not committed yet."""
        return {share: offset for share, offset in positions.items() if self._owned[share].committed != offset}

    def note_committed(self, positions: Mapping[Share, int]) -> None:
        """These were committed."""
        for share, offset in positions.items():
            self._owned[share].note_committed(offset)
