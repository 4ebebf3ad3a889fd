"""`Page`: what is known about 1024 neighbouring offsets of a partition. A record in the groups' log:

```
key     ["queue", "workers", "orders", "3/17"]        group, topic, partition / number of the page
value   {"topic_id": "5f0c…", "from": 17408, "to": 17920,
         "open": [[17408, 3, "leased", 1, 1763251230000, "9b1e…"], [17500, 1, "free", 2, 1763251260000, ""]]}
```

Of the offsets from `from` up to, not including, `to`, those in `open` are not finished, and the others are. An entry of
`open` is a run of neighbouring offsets: first offset, count, state, deliveries, a time, a worker.

    leased      one worker's, until that time
    free        to be delivered, from that time on
    doubtful    to be delivered: a worker had it, and died or did not answer in time

What a page does not cover is not finished: a page that is lost means that messages are delivered again, never that they
are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from ...batch.text import parse_json

#: Offsets per page.
PAGE = 1024

LEASED, FREE, DOUBTFUL = "leased", "free", "doubtful"
_STATES = (LEASED, FREE, DOUBTFUL)
#: Later than any time.
NEVER_MS = 2**62


class Entry(NamedTuple):
    """What is known about a message that is not finished."""

    state: str
    #: How often it was delivered.
    deliveries: int
    #: The end of the lease, or when to deliver it.
    until_ms: int
    #: The id of the worker that has it.
    worker: str


#: Not delivered so far.
NEW = Entry(FREE, 0, 0, "")


class Page:
    """One page. `open` is in the order of offsets."""

    __slots__ = ("_due_ms", "_workers", "end", "first", "number", "open")

    def __init__(self, number: int, first: int, end: int, entries: dict[int, Entry]) -> None:
        self.number = number
        self.first, self.end = first, end
        self.open = entries
        self._due_ms: int | None = None
        self._workers: frozenset[str] = frozenset()

    def grow(self, end: int) -> None:
        """Cover the offsets up to, not including, `end`."""
        self.end = end

    def shrink(self, first: int) -> None:
        """Cover the offsets from `first` on: there are none open below."""
        self.first = max(self.first, first)

    # --- what is due

    def changed(self) -> None:
        """Its entries have changed: forget what was computed from them."""
        self._due_ms = None

    def _look(self) -> None:
        entries = set(self.open.values())  # neighbours have the same one
        self._due_ms = min((each.until_ms for each in entries), default=NEVER_MS)
        self._workers = frozenset(each.worker for each in entries if each.state == LEASED)

    @property
    def due_ms(self) -> int:
        """When something in it is due: a lease ends, or a message is to be delivered."""
        if self._due_ms is None:
            self._look()
        assert self._due_ms is not None
        return self._due_ms

    @property
    def workers(self) -> frozenset[str]:
        """Who has messages of it."""
        if self._due_ms is None:
            self._look()
        return self._workers

    # --- its form in the log

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
        """The value of its record."""
        fields = {"topic_id": topic_id, "from": self.first, "to": self.end, "open": list(self._runs())}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, number: int, value: bytes, topic_id: str) -> Page | None:
        """From the value of a record; None if that is of another topic. `ValueError`, `KeyError` or `TypeError` if it
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
