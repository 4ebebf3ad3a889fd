"""Records: placing them, replacing their extents by others, and dropping the oldest.

```
end/<topic id>/<partition>           [lowest offset, next offset]
extent/<topic id>/<partition>/<base> [key, position, bytes, next offset, largest timestamp, digest]
producer/<topic id>/<number>/<id>    [epoch, [[first sequence, last sequence, base offset], ...], commit of the last]
clean/<topic id>/<partition>         what compaction has done: [[[offset, time], ...], tombstones that are left, and
                                     below which offset they were dropped]
epochs/<topic id>/<partition>        the leader epochs of a partition that is a copy of another: [[epoch, its first
                                     offset], ...]; see copies.py
```
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from ....config import MAX_OFFSET
from . import transactions
from .book import Book, Extents, Rejected, existing
from .commit import Action
from .extents import DIGEST_DIGITS, INLINE, Extent, with_epoch
from .uploads import check_floor

#: Batches of a producer that are remembered, as Kafka does.
_REMEMBERED = 5
#: Rounds of compaction that are remembered.
_ROUNDS = 20
_HEXADECIMAL = frozenset("0123456789abcdef")


class Clean(NamedTuple):
    """What compaction has done to a partition."""

    #: Up to which offset, and at which time (ms); the last rounds.
    rounds: list[tuple[int, int]]
    #: How many tombstones were left.
    tombstones: int
    #: Below which offset tombstones were dropped.
    dropped_below: int

    @property
    def offset(self) -> int:
        """Below this offset every key occurs once."""
        return self.rounds[-1][0] if self.rounds else 0

    def below(self, time_ms: int) -> int:
        """What was compacted at that time or earlier is below this offset."""
        return max((offset for offset, when in self.rounds if when <= time_ms), default=0)


def clean(book: Book, topic: str, partition: int) -> Clean:
    """What compaction has done to a partition, by the topic's id."""
    rounds, tombstones, dropped = book.entries.get(f"clean/{topic}/{partition}", ([], 0, 0))
    return Clean([(int(offset), int(when)) for offset, when in rounds], int(tombstones), int(dropped))


def append(book: Extents, action: Action, commit_key: str, inline_at: int) -> list[int]:
    """Place batches at the end of a partition, from this commit or from an upload; their first and next offset."""
    topic, partition = action["topic"], action["partition"]
    start, end = existing(book, topic, partition)
    where = action["key"]
    if where != INLINE:
        check_floor(book, where)
    if action.get("producers"):
        repeated = _producers(book, action, topic, partition, end)
        if repeated is not None:
            return repeated
    expected = action.get("expect")
    if expected is not None and expected != end:
        raise Rejected("OffsetMismatch", f"expected {expected}, but it is {end}", expected, end)
    base = end
    for position, size, count, newest, digest in action["extents"]:
        at = position + inline_at if where == INLINE else position
        book.add_extent(topic, partition, made_extent(end, where or commit_key, at, size, count, newest, digest))
        end += count
    if action.get("transactions"):
        transactions.note(book, topic, partition, base, action["transactions"])
    book.put(f"end/{topic}/{partition}", [start, end])
    return [base, end]


def _producers(book: Extents, action: Action, topic: str, partition: int, end: int) -> list[int] | None:
    """Idempotent batches: [id, epoch, first sequence, last sequence, offset from the first record]. The offsets
    of before, if all of them are stored already. Those of a copy were checked where they come from, and are only
    remembered."""
    found: list[int] | None = None
    fresh = 0
    for producer, epoch, first, last, after in action["producers"]:
        name = f"producer/{topic}/{partition}/{producer}"
        known_epoch, batches, _ = book.entries.get(name, (-1, [], 0))
        if epoch < known_epoch and not action.get("copied"):
            raise Rejected("ProducerFenced", f"producer {producer} has epoch {known_epoch}, not {epoch}")
        batches = batches if epoch == known_epoch else []
        if action.get("copied"):
            if epoch >= known_epoch:
                book.put(name, [epoch, [*batches, [first, last, end + after]][-_REMEMBERED:], book.number])
            continue
        old = next((each for each in batches if each[0] == first and each[1] == last), None)
        if old is not None:
            placed = [old[2], old[2] + (last - first) % 2**31 + 1]
            found = placed if found is None else [min(found[0], placed[0]), max(found[1], placed[1])]
            continue
        expected = (batches[-1][1] + 1) % 2**31 if batches else None
        if (expected is None and first != 0 and known_epoch >= 0) or (expected is not None and first != expected):
            raise Rejected("OutOfOrderSequence", f"producer {producer}: sequence {first}, expected {expected or 0}")
        fresh += 1
        book.put(name, [epoch, [*batches, [first, last, end + after]][-_REMEMBERED:], book.number])
    if found is not None and fresh:
        raise Rejected("OutOfOrderSequence", "some of these batches are stored already, and some are not")
    return found


def replace(book: Extents, action: Action) -> None:
    """Put extents in the place of others that have the same offsets; nothing, if these are not there any more."""
    topic, partition = action["topic"], action["partition"]
    old = [(base, key_, position) for base, key_, position in action["old"]]
    first, end = action["base"], action["end"]
    bases = book.bases(topic, partition)
    there = bases[bisect_left(bases, first) : bisect_left(bases, end)]
    found = [book.extent(topic, partition, base) for base in there]
    if not found or [(each.base_offset, each.key, each.position) for each in found] != old:
        raise Rejected("Changed", f"{first} to {end} is not what it was")
    for key_ in sorted({each[0] for each in action["new"]}):
        check_floor(book, key_)
    for base in there:
        book.drop_extent(topic, partition, base)
    at = first
    for where, position, size, count, newest, digest in action["new"]:
        book.add_extent(topic, partition, made_extent(at, where, position, size, count, newest, digest))
        at += count
    if at != end or end != found[-1].next_offset:
        raise Rejected("InvalidConfig", f"what replaces {first} to {end} ends at {at}")


def advance(book: Extents, action: Action) -> None:
    """The first record of an empty partition gets this offset: in a copy of one that does not begin with 0."""
    topic, partition, offset = action["topic"], action["partition"], action["offset"]
    _, end = existing(book, topic, partition)
    if book.bases(topic, partition):
        raise Rejected("Changed", f"the partition {partition} of {topic} is not empty")
    if type(offset) is not int or not end <= offset <= MAX_OFFSET:
        raise Rejected("InvalidConfig", f"an offset that is not possible after {end}")
    book.put(f"end/{topic}/{partition}", [offset, offset])


def begin_epoch(book: Extents, action: Action) -> None:
    """What is placed from now on belongs to this leader epoch, as it does where it is copied from."""
    topic, partition = action["topic"], action["partition"]
    _, end = existing(book, topic, partition)
    name = f"epochs/{topic}/{partition}"
    book.put(name, with_epoch(book.entries.get(name, ()), action["epoch"], end))


def compacted(book: Extents, action: Action) -> None:
    """How far a partition was compacted, when, and how many tombstones are left in it."""
    topic, partition = action["topic"], action["partition"]
    _, end = existing(book, topic, partition)
    before = clean(book, topic, partition)
    rounds = [list(each) for each in before.rounds]
    offset = min(int(action["offset"]), end)
    if offset > before.offset:
        rounds = [*rounds, [offset, int(action["time_ms"])]][-_ROUNDS:]
    dropped = max(before.dropped_below, int(action["dropped_below"]))
    book.put(f"clean/{topic}/{partition}", [rounds, int(action["tombstones"]), dropped])


def move_start(book: Extents, action: Action) -> int:
    """Records below an offset are gone; whole extents with them. How many offsets that are."""
    topic, partition = action["topic"], action["partition"]
    start, end = existing(book, topic, partition)
    offset = int(action["offset"])
    if not 0 <= offset <= end:
        raise Rejected("OffsetOutOfRange", f"there are {start} to {end}, not {offset}", offset, start, end)
    wanted = max(offset, start)
    for base in list(book.bases(topic, partition)):
        if book.extent(topic, partition, base).next_offset <= wanted:
            book.drop_extent(topic, partition, base)
    book.put(f"end/{topic}/{partition}", [wanted, end])
    transactions.trim(book, topic, partition, wanted)
    return int(wanted - start)


def made_extent(base: int, key: str, position: int, size: int, count: int, newest: int, digest: str) -> Extent:
    """An extent, as a commit says it: what every reader will rely on."""
    for value, least in ((base, 0), (position, 0), (size, 1), (count, 1), (newest, -1)):
        if type(value) is not int or value < least:
            raise Rejected("InvalidConfig", "an extent with a number that is not possible")
    if type(digest) is not str or len(digest) != DIGEST_DIGITS or set(digest) - _HEXADECIMAL:
        raise Rejected("InvalidConfig", "an extent with a digest that is not possible")
    return Extent(base, base + count, key, position, size, newest, digest)
