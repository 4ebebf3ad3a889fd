"""Transactions in one partition: which are open, which were aborted, and up to where everything is decided.

A batch with the transactional bit and a producer id belongs to that producer's transaction, which is *open* until a
*marker*: a control batch of the same producer that says commit or abort. Other producers' batches may be in between.

    offset   0  1  2  3  4  5  6          P and Q are producers, . a batch without a transaction
    batch    .  P  Q  P  .  P! Q          P! is a marker: P's transaction (1 to 5) has ended, Q's is open
                   ^ last stable offset   the first offset of the earliest open transaction, else the visible end

Below the *last stable offset* every transaction is decided. A marker counts for readers when it is visible; until then
its transaction counts as open, because a power cut may still lose the marker. A transaction whose records are all
trimmed is none, and what its producer writes after that begins another: whoever replays the batches must not find more
of it than those who were there.

All of it is in the batches. `Transactions` is the state at the end of a log, brought up to date batch by batch; what
sealed segments say is in their `.txnindex` (files/aborted.py). `Outlook` looks both up, and rebuilds what is missing.

Threads: one adds, under the log's lock; any number ask. What they read is replaced as a whole, or only grows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from ..batch.header import (
    ABORT_MARKER,
    ATTRIBUTES,
    BASE,
    COMMIT_MARKER,
    CONTROL_BIT,
    LAST,
    MARKER,
    MARKER_MASK,
    MAX_TIME,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL_BIT,
    Rows,
)
from ..batch.read import first_bad_crc
from ..errors import CorruptBatch
from .batches import Chunk
from .segment import Segment
from .transaction_index import Aborted, OpenTransaction, Outcomes

#: As if the first open transaction began here: there is none.
NONE_OPEN = 2**63 - 1
#: As if everything was visible.
ALL_VISIBLE = 2**63 - 1


class Transactions:
    """The transactions of a log up to some offset."""

    def __init__(self, since: int = 0, visible: int = ALL_VISIBLE, lowest: int = 0) -> None:
        self.open: dict[int, OpenTransaction] = {}
        #: An offset, and the aborted transactions whose markers are there or after it, in the order of the markers;
        #: sealed segments know the others.
        self.recent: tuple[int, list[Aborted]] = since, []
        #: Where the earliest open transaction began.
        self.first_open = NONE_OPEN
        #: The last offset of the last batch of a transaction; -1: there was none.
        self.reached = -1
        #: Where transactions began that have ended, and their markers, which may not be visible yet.
        self._ended: list[tuple[int, int]] = []
        #: The visible end, as far as it is known here.
        self._visible = visible
        #: The log start: batches that end below it count for nothing.
        self._lowest = lowest

    @property
    def since(self) -> int:
        """Where the active segment begins."""
        return self.recent[0]

    @property
    def aborted(self) -> list[Aborted]:
        """The transactions whose markers in the active segment say abort."""
        return self.recent[1]

    def stable(self, visible: int) -> int:
        """The last stable offset of a log that can be read up to `visible`, which must have been looked up before."""
        first = self.first_open  # before those that have ended: one that just ends is in both
        for begun, marker in self._ended:
            if marker >= visible and begun < first:
                first = begun
        return min(first, visible)

    def see(self, visible: int) -> None:
        """Everything below this is visible."""
        self._visible = visible
        if self._ended:
            self._ended = [each for each in self._ended if each[1] >= visible]

    def note(self, row: list[int]) -> None:
        """The next batch of a transaction, or a marker: a row as a list."""
        producer = row[PRODUCER_ID]
        if row[ATTRIBUTES] & CONTROL_BIT:
            if row[MARKER] & MARKER_MASK in (ABORT_MARKER, COMMIT_MARKER):
                self._end(producer, row[LAST], aborted=row[MARKER] & MARKER_MASK == ABORT_MARKER)
        elif row[LAST] >= self._lowest:
            self._go_on(producer, row)
        self.reached = row[LAST]

    def _go_on(self, producer: int, row: list[int]) -> None:
        begun = self.open.get(producer)
        if begun is not None:
            self.open[producer] = begun._replace(epoch=row[PRODUCER_EPOCH], last_offset=row[LAST])
        else:
            self.open[producer] = OpenTransaction(producer, row[PRODUCER_EPOCH], row[BASE], row[LAST], row[MAX_TIME])
            self.first_open = min(self.first_open, row[BASE])

    def _end(self, producer: int, marker: int, *, aborted: bool) -> None:
        begun = self.open.get(producer)
        if begun is None:
            return  # it has no record here
        # Transactions are in the order in which they began.
        earliest = self._earliest(but=begun)
        if aborted:
            self.aborted.append(Aborted(producer, begun.first_offset, marker, min(earliest, marker + 1)))
        if marker >= self._visible:
            self._ended.append((begun.first_offset, marker))
        del self.open[producer]
        self.first_open = earliest

    def _earliest(self, but: OpenTransaction | None = None) -> int:
        return next((each.first_offset for each in self.open.values() if each is not but), NONE_OPEN)

    def trim(self, lowest: int) -> None:
        """The log begins here now. A transaction of which no record is left is none."""
        self._lowest = lowest
        gone = [each.producer_id for each in self.open.values() if each.last_offset < lowest]
        for producer in gone:
            del self.open[producer]
        if gone:
            self.first_open = self._earliest()

    def note_rows(self, rows: Rows) -> None:
        """The batches of transactions among these, and markers."""
        for row in of_transactions(rows).tolist():
            self.note(row)

    def load(
        self, opened: Iterable[OpenTransaction], aborted: Iterable[Aborted], reached: int
    ) -> None:  # before anything is noted
        """What was known at an offset."""
        left = (each for each in opened if each.last_offset >= self._lowest)
        self.open = {each.producer_id: each for each in sorted(left, key=attrgetter("first_offset"))}
        self.recent = self.since, list(aborted)
        self.first_open = self._earliest()
        self.reached = reached if self.open or self.aborted else -1

    # --- segments

    def outcomes(self, next_offset: int) -> Outcomes | None:
        """What the segment that began at `since` and ends at `next_offset` says; None if it has no transactions."""
        if self.reached < self.since and not self.open:
            return None
        return Outcomes(tuple(self.aborted), min(self.first_open, next_offset))

    def begin_segment(self, base_offset: int) -> None:
        """The active segment begins here: one before it that has just been sealed knows what it says."""
        self.recent = base_offset, [each for each in self.aborted if each.last_offset >= base_offset]


def between(aborted: Sequence[Aborted], first: int, last: int) -> Iterator[Aborted]:
    """Those that may have batches from offset `first` to `last`; they are in the order of their markers."""
    for at in range(bisect_left(aborted, first, key=attrgetter("last_offset")), len(aborted)):
        found = aborted[at]
        if found.first_offset <= last:
            yield found
        if found.last_stable_offset > last:
            return


def aborted_rows(rows: Rows, aborted: Callable[[int, int], Iterable[Aborted]]) -> npt.NDArray[np.bool_]:
    """Which of these batches belong to aborted transactions; `aborted` says which of these have batches between two
    offsets."""
    gone = np.zeros(len(rows), bool)
    is_part = (rows[:, ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT
    at = np.flatnonzero(is_part & (rows[:, PRODUCER_ID] >= 0))
    if not len(at):
        return gone
    found: defaultdict[int, list[Aborted]] = defaultdict(list)
    for each in aborted(int(rows[at[0], BASE]), int(rows[at[-1], LAST])):
        found[each.producer_id].append(each)
    for number, producer, base in zip(
        at.tolist(), rows[at, PRODUCER_ID].tolist(), rows[at, BASE].tolist(), strict=True
    ):
        of_this = found.get(producer, ())
        gone[number] = any(each.first_offset <= base <= each.last_offset for each in of_this)
    return gone


def of_transactions(rows: Rows) -> Rows:
    """The batches that belong to transactions, and their markers. A producer is needed for that."""
    found: Rows = rows[((rows[:, ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT)) != 0) & (rows[:, PRODUCER_ID] >= 0)]
    return found


def note_segment(segment: Segment, start: int, end: int, state: Transactions) -> None:
    """The transactions in a segment, from `start` to `end`; damage is skipped, and reported when it is read."""
    loaded = segment.is_loaded
    try:
        found = [_good(chunk) for chunk in segment.chunks(start, end, check=False) if chunk.special]
    except CorruptBatch:
        found = [of_transactions(rows) for rows in segment.rows_around_damage(start)]
    for rows in found:
        for row in rows[rows[:, BASE] < end].tolist():
            state.note(row)
    if not loaded:
        segment.unload()


def _good(chunk: Chunk) -> Rows:
    """The checksum is verified only for batches of transactions: a damaged header would begin or end one."""
    rows = of_transactions(chunk.rows)
    while (bad := first_bad_crc(chunk.view, rows)) >= 0:
        rows = np.delete(rows, bad, axis=0)
    return rows
