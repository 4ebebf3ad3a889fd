"""`DeliveryState`: which messages of one partition are finished, leased to a worker, or due for delivery.

```
        base                             frontier
 finished |  finished and open, in pages  |  not delivered yet
```

Everything below `base` is finished: `base` is the offset that the group commits. Nothing from `frontier` on has been
delivered. In between, a page lists each offset as open or finished; offsets that no page covers count as new.

`StatePage`: the state of 1024 consecutive offsets, stored as a record in the log of the groups:

```
key     ["queue", "workers", "orders", "3/17"]        group, topic, partition / number of the page
value   {"topic_id": "5f0c…", "from": 17408, "to": 17920,
         "open": [[17408, 3, "leased", 1, 1763251230000, "9b1e…"], [17500, 1, "free", 2, 1763251260000, ""]]}
```

Of the offsets from `from` up to, not including, `to`, those in `open` are not finished; the others are. An entry of
`open` is a run of consecutive offsets: first offset, count, state, deliveries, a time, a worker.

    leased      with one worker, until that time
    free        to be delivered, from that time on
    doubtful    to be delivered: its worker died or did not answer in time

Offsets that a page does not cover are not finished: losing a page means that messages are delivered again, never that
they are dropped.

No I/O and no clock. For one thread at a time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from ...batch.text import parse_json
from .message import Message

#: Offsets per page.
PAGE = 1024

LEASED, FREE, DOUBTFUL = "leased", "free", "doubtful"
_STATES = (LEASED, FREE, DOUBTFUL)
#: Later than any time.
NEVER_MS = 2**62


class Entry(NamedTuple):
    """State of a message that is not finished."""

    state: str
    #: Number of deliveries.
    deliveries: int
    #: End of the lease, or earliest time of delivery.
    until_ms: int
    #: Id of the worker that holds the lease.
    worker: str


#: Not delivered yet.
NEW = Entry(FREE, 0, 0, "")


class StatePage:
    """State of up to 1024 offsets. `open` is in offset order."""

    __slots__ = ("_due_ms", "_workers", "end", "first", "number", "open")

    def __init__(self, number: int, first: int, end: int, entries: dict[int, Entry]) -> None:
        self.number = number
        self.first, self.end = first, end
        self.open = entries
        self._due_ms: int | None = None
        self._workers: frozenset[str] = frozenset()

    # --- what is due

    def changed(self) -> None:
        """Invalidate the values computed from the entries."""
        self._due_ms = None

    def _compute(self) -> None:
        entries = set(self.open.values())  # neighbours have the same one
        self._due_ms = min((each.until_ms for each in entries), default=NEVER_MS)
        self._workers = frozenset(each.worker for each in entries if each.state == LEASED)

    @property
    def due_ms(self) -> int:
        """Earliest time at which a lease ends or a message is to be delivered."""
        if self._due_ms is None:
            self._compute()
        assert self._due_ms is not None
        return self._due_ms

    @property
    def workers(self) -> frozenset[str]:
        if self._due_ms is None:
            self._compute()
        return self._workers

    # --- encoding

    def _runs(self) -> Iterator[list[object]]:
        begun, count, last = -1, 0, None
        for offset, entry in self.open.items():
            if last is not None and offset == begun + count and entry == last:
                count += 1
                continue
            if last is not None:
                yield [begun, count, *last]
            begun, count, last = offset, 1, entry
        if last is not None:
            yield [begun, count, *last]

    def encode(self, topic_id: str) -> bytes:
        fields = {"topic_id": topic_id, "from": self.first, "to": self.end, "open": list(self._runs())}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, number: int, value: bytes, topic_id: str) -> StatePage | None:
        """Parse the value of a record; None if it is for another topic. `ValueError`, `KeyError` or `TypeError` if it
        is not a page."""
        found = parse_json(value)
        if found["topic_id"] != topic_id:
            return None
        first, end = int(found["from"]), int(found["to"])
        if not number * PAGE <= first <= end <= (number + 1) * PAGE:
            raise ValueError(f"a page from {first} to {end} is not page {number}")
        entries: dict[int, Entry] = {}
        reached = first
        for start, count, state, deliveries, until_ms, worker in found["open"]:
            if not (reached <= start and 0 < count <= end - start and state in _STATES):
                raise ValueError(f"a page has the run {start}, {count}, {state!r}")
            entry = Entry(state, int(deliveries), int(until_ms), str(worker))
            entries.update(dict.fromkeys(range(start, start + count), entry))
            reached = start + count
        return cls(number, first, end, entries)


_logger = logging.getLogger("sawlog.store.queues")


class DeliveryState:
    """Delivery state of one partition for one group."""

    def __init__(self, topic_id: str) -> None:
        self._topic_id = topic_id
        self.base = 0
        self.frontier = 0
        self._pages: dict[int, StatePage] = {}
        #: Pages as stored in the log.
        self._stored: dict[int, bytes] = {}
        #: Numbers of the pages that differ from the log.
        self._changed: set[int] = set()
        self._begun = False

    # --- loading

    def load(self, base: int, stored: Mapping[int, bytes]) -> None:
        """Load the committed offset and the pages from the log. Unchanged pages are not parsed again."""
        if self._begun and base == self.base and stored == self._stored and not self._changed:
            return
        known = {number: page for number, page in self._pages.items() if number not in self._changed}
        before, self._stored = self._stored, dict(stored)
        self._pages, self._changed, self._begun = {}, set(), True
        for number, value in sorted(stored.items()):
            same = number in known and before.get(number) == value
            page = known[number] if same else self._decoded(number, value)
            if page is not None:
                self._pages[number] = page
        self.base = base
        self.frontier = max([base, *(page.end for page in self._pages.values())])
        self._fill()
        self._drop_below(base)

    def _decoded(self, number: int, value: bytes) -> StatePage | None:
        try:
            page = StatePage.decode(number, value, self._topic_id)
        except (ValueError, KeyError, TypeError) as error:
            _logger.error("a page of a queue cannot be read: %s; its messages are delivered again", error)
            page = None
        if page is None:
            self._changed.add(number)  # to be replaced or removed
        return page

    def _fill(self) -> None:
        """Treat offsets between base and frontier that no page covers as new."""
        for number in range(self.base // PAGE, -(-self.frontier // PAGE)):
            first, end = max(number * PAGE, self.base), min((number + 1) * PAGE, self.frontier)
            page = self._pages.get(number) or StatePage(number, end, end, {})
            if page.first > first or page.end < end:
                before = dict.fromkeys(range(first, min(page.first, end)), NEW)
                after = dict.fromkeys(range(max(page.end, first), end), NEW)
                whole = {**before, **page.open, **after}
                self._pages[number] = StatePage(number, min(first, page.first), max(end, page.end), whole)
                self._changed.add(number)

    # --- looking

    @property
    def open_count(self) -> int:
        """Number of unfinished messages between base and frontier."""
        return sum(len(page.open) for page in self._pages.values())

    @property
    def due_ms(self) -> int:
        """Earliest time at which a lease ends or a redelivery is due."""
        return min((page.due_ms for page in self._pages.values()), default=NEVER_MS)

    @property
    def workers(self) -> set[str]:
        return set[str]().union(*(page.workers for page in self._pages.values()))

    def counts(self, now_ms: int) -> tuple[int, int, int]:
        """Return how many open messages are due, wait for their time, and are with a worker."""
        ready = delayed = leased = 0
        for page in self._pages.values():
            for each in page.open.values():
                if each.until_ms <= now_ms:
                    ready += 1
                elif each.state == LEASED:
                    leased += 1
                else:
                    delayed += 1
        return ready, delayed, leased

    def __getitem__(self, offset: int) -> Entry | None:
        """Return the entry of an open message; None if it is finished or was not delivered yet."""
        page = self._pages.get(offset // PAGE)
        return None if page is None else page.open.get(offset)

    def due(self, now_ms: int) -> Iterator[tuple[int, Entry]]:
        """Yield redeliveries and delayed messages that are due. Expired leases are not included: see `expire`."""
        for number in sorted(self._pages):
            page = self._pages[number]
            if page.due_ms <= now_ms:
                yield from [
                    (offset, each)
                    for offset, each in page.open.items()
                    if each.until_ms <= now_ms and each.state != LEASED
                ]

    # --- changing

    def _page(self, offset: int) -> StatePage:
        """Return the page of an offset for modification."""
        page = self._pages[offset // PAGE]
        page.changed()
        self._changed.add(page.number)
        return page

    def expire(self, now_ms: int, dead: Collection[str]) -> int:
        """End the leases that have expired and those of dead workers; return their number."""
        count = 0
        for page in self._pages.values():
            if page.due_ms > now_ms and page.workers.isdisjoint(dead):
                continue
            over = [
                (offset, each)
                for offset, each in page.open.items()
                if each.state == LEASED and (each.until_ms <= now_ms or each.worker in dead)
            ]
            for offset, each in over:
                self._page(offset).open[offset] = Entry(DOUBTFUL, each.deliveries, 0, "")
            count += len(over)
        return count

    def grow(self, end: int, entries: Mapping[int, Entry]) -> None:
        """Move the frontier to `end`. `entries` are the open messages below it, in order; the other offsets are
        finished, because they have no record or it is not for this group."""
        first = self.frontier
        if end <= first:
            return
        self.frontier = end
        for number in range(first // PAGE, -(-end // PAGE)):
            start, stop = max(number * PAGE, first), min((number + 1) * PAGE, end)
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = StatePage(number, start, start, {})
            page.end = stop
            self._page(start)
        for offset, entry in entries.items():
            self._pages[offset // PAGE].open[offset] = entry

    def put(self, offset: int, entry: Entry) -> None:
        self._page(offset).open[offset] = entry

    def finish_all(self, messages: Iterable[Message]) -> int:
        """Finish the messages that are still leased to the worker they were delivered to; return the number of the
        others."""
        late, number, page = 0, -1, None
        # Consecutive messages share an entry, which is compared once.
        known: tuple[Entry | None, int, str] = (None, 0, "")
        for message in messages:
            offset = message._place[1]
            if offset // PAGE != number:
                number = offset // PAGE
                page = self._page(offset) if number in self._pages else None
            entry = None if page is None else page.open.get(offset)
            if page is None or entry is None:
                late += 1
                continue
            if entry is not known[0] or message.deliveries != known[1] or message._lease is not known[2]:
                if not _has(entry, message):
                    late += 1
                    continue
                known = entry, message.deliveries, message._lease
            del page.open[offset]
        return late

    def finish(self, offset: int) -> None:
        self._page(offset).open.pop(offset, None)

    def is_with(self, message: Message) -> bool:
        """Return whether a message is still leased to its worker from that delivery."""
        entry = self[message._place[1]]
        return entry is not None and _has(entry, message)

    def advance(self, lowest: int) -> int:
        """Drop offsets below `lowest`, which the log no longer has; return the number of open messages lost."""
        if lowest <= self.base:
            return 0
        lost = sum(offset < lowest for page in self._pages.values() for offset in page.open)
        self.frontier = max(self.frontier, lowest)
        self.base = lowest
        self._drop_below(lowest)
        return lost

    def cut(self, end: int) -> None:
        """Drop everything from `end` on: the log was truncated there and may reuse the offsets."""
        for number in [number for number in self._pages if self._pages[number].end > end]:
            page = self._pages.pop(number)
            self._changed.add(number)
            if page.first < end:
                kept = {offset: each for offset, each in page.open.items() if offset < end}
                self._pages[number] = StatePage(number, page.first, end, kept)
        self.frontier, self.base = min(self.frontier, end), min(self.base, end)

    def _drop_below(self, base: int) -> None:
        for number in [number for number in self._pages if self._pages[number].first < base]:
            page = self._pages[number]
            if page.end <= base:
                del self._pages[number]
                self._changed.add(number)
            elif any(offset < base for offset in page.open):
                kept = {offset: each for offset, each in page.open.items() if offset >= base}
                self._pages[number] = StatePage(number, base, page.end, kept)
                self._changed.add(number)

    # --- storing

    def settle(self) -> dict[int, bytes | None]:
        """Move the base to the first open message and return the pages that have changed since they were loaded, None
        for those no longer needed. Call `stored` once they are durable."""
        first = (next(iter(self._pages[number].open), None) for number in sorted(self._pages))
        self.base = next((offset for offset in first if offset is not None), self.frontier)
        self._drop_below(self.base)
        changed: dict[int, bytes | None] = {}
        for number in sorted(self._changed):
            page = self._pages.get(number)
            if page is not None:
                page.first = max(page.first, self.base)  # nothing below is open; if the base moves back, it is new
            value = None if page is None else page.encode(self._topic_id)
            if value != self._stored.get(number):
                changed[number] = value
        return changed

    def stored(self, changed: Mapping[int, bytes | None]) -> None:
        for number, value in changed.items():
            if value is None:
                self._stored.pop(number, None)
            else:
                self._stored[number] = value
        self._changed.clear()


def unfinished(topic_id: str, base: int, lowest: int, end: int, pages: Mapping[int, bytes]) -> int:
    """Return how many messages of a partition are not finished, given the committed offset, the bounds of the log and
    the stored pages."""
    state = DeliveryState(topic_id)
    state.load(base, pages)
    state.advance(lowest)
    return state.open_count + max(end - state.frontier, 0)


def _has(entry: Entry, message: Message) -> bool:
    state, deliveries, _, worker = entry
    return deliveries == message.deliveries and worker == message._lease and state == LEASED


def runs_of(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive offsets as (first, end), in order."""
    first = end = -1
    for offset in sorted(offsets):
        if offset == end:
            end += 1
            continue
        if end >= 0:
            yield first, end
        first, end = offset, offset + 1
    if end >= 0:
        yield first, end
