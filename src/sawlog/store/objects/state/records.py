"""Records: placing batches, replacing their extents, and dropping the oldest.

```
end/<topic id>/<partition>           [lowest offset, next offset]
extent/<topic id>/<partition>/<base> [key, position, bytes, next offset, largest timestamp, digest]
producer/<topic id>/<number>/<id>    [epoch, [[first sequence, last sequence, base offset], ...], commit of the last]
clean/<topic id>/<partition>         state of compaction: [[[offset, time], ...], tombstones left, offset below which
                                     tombstones were dropped]
epochs/<topic id>/<partition>        the leader epochs of a partition that is a copy of another: [[epoch, its first
                                     offset], ...]; see extents.py
```
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from ....config import MAX_OFFSET
from . import transactions
from .commit import Action
from .extents import DIGEST_DIGITS, INLINE, Extent, with_epoch
from .mutation import Rejected, StateEntries, StateExtents, existing
from .uploads import check_floor

#: Number of batches remembered per producer, as in Kafka.
_REMEMBERED = 5
#: Number of compaction rounds remembered.
_ROUNDS = 20
_HEXADECIMAL = frozenset("0123456789abcdef")


class CompactionState(NamedTuple):
    """The state of compaction of a partition."""

    #: (offset, time in ms) of the last rounds: how far each one compacted.
    rounds: list[tuple[int, int]]
    #: Number of tombstones left.
    tombstones: int
    #: The offset below which tombstones were dropped.
    dropped_below: int

    @property
    def offset(self) -> int:
        """The offset below which every key occurs once."""
        return self.rounds[-1][0] if self.rounds else 0

    def below(self, time_ms: int) -> int:
        """Return the offset below which the partition was compacted at that time."""
        return max((offset for offset, when in self.rounds if when <= time_ms), default=0)


def clean(state: StateEntries, topic: str, partition: int) -> CompactionState:
    """Return the state of compaction of a partition, by topic id."""
    rounds, tombstones, dropped = state.entries.get(f"clean/{topic}/{partition}", ([], 0, 0))
    return CompactionState([(int(offset), int(when)) for offset, when in rounds], int(tombstones), int(dropped))


def append(state: StateExtents, action: Action, commit_key: str, inline_at: int) -> list[int]:
    """Place batches from this commit or from an upload at the end of a partition, and return their first and next
    offset."""
    topic, partition = action["topic"], action["partition"]
    start, end = existing(state, topic, partition)
    where = action["key"]
    if where != INLINE:
        check_floor(state, where)
    if action.get("producers"):
        repeated = _producers(state, action, topic, partition, end)
        if repeated is not None:
            return repeated
    expected = action.get("expect")
    if expected is not None and expected != end:
        raise Rejected("OffsetMismatch", f"expected {expected}, but it is {end}", expected, end)
    base = end
    for position, size, count, newest, digest in action["extents"]:
        at = position + inline_at if where == INLINE else position
        state.add_extent(topic, partition, made_extent(end, where or commit_key, at, size, count, newest, digest))
        end += count
    if action.get("transactions"):
        transactions.note(state, topic, partition, base, action["transactions"])
    state.put(f"end/{topic}/{partition}", [start, end])
    return [base, end]


def _producers(state: StateExtents, action: Action, topic: str, partition: int, end: int) -> list[int] | None:
    """Check idempotent batches: [id, epoch, first sequence, last sequence, offset from the first record]. Return the
    earlier offsets if all of them are stored already. Batches of a copy were checked at their source and are only
    remembered."""
    found: list[int] | None = None
    fresh = 0
    for producer, epoch, first, last, after in action["producers"]:
        name = f"producer/{topic}/{partition}/{producer}"
        known_epoch, batches, _ = state.entries.get(name, (-1, [], 0))
        if epoch < known_epoch and not action.get("copied"):
            raise Rejected("ProducerFenced", f"producer {producer} has epoch {known_epoch}, not {epoch}")
        batches = batches if epoch == known_epoch else []
        if action.get("copied"):
            if epoch >= known_epoch:
                state.put(name, [epoch, [*batches, [first, last, end + after]][-_REMEMBERED:], state.number])
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
        state.put(name, [epoch, [*batches, [first, last, end + after]][-_REMEMBERED:], state.number])
    if found is not None and fresh:
        raise Rejected("OutOfOrderSequence", "some of these batches are stored already, and some are not")
    return found


def replace(state: StateExtents, action: Action) -> None:
    """Replace extents by others with the same offsets; reject if they have changed."""
    topic, partition = action["topic"], action["partition"]
    old = [(base, key_, position) for base, key_, position in action["old"]]
    first, end = action["base"], action["end"]
    bases = state.bases(topic, partition)
    there = bases[bisect_left(bases, first) : bisect_left(bases, end)]
    found = [state.extent(topic, partition, base) for base in there]
    if not found or [(each.base_offset, each.key, each.position) for each in found] != old:
        raise Rejected("Changed", f"the extents from {first} to {end} have changed")
    for key_ in sorted({each[0] for each in action["new"]}):
        check_floor(state, key_)
    for base in there:
        state.drop_extent(topic, partition, base)
    at = first
    for where, position, size, count, newest, digest in action["new"]:
        state.add_extent(topic, partition, made_extent(at, where, position, size, count, newest, digest))
        at += count
    if at != end or end != found[-1].next_offset:
        raise Rejected("InvalidConfig", f"what replaces {first} to {end} ends at {at}")


def advance(state: StateExtents, action: Action) -> None:
    """Set the first offset of an empty partition, for a copy of a partition that does not begin at 0."""
    topic, partition, offset = action["topic"], action["partition"], action["offset"]
    _, end = existing(state, topic, partition)
    if state.bases(topic, partition):
        raise Rejected("Changed", f"the partition {partition} of {topic} is not empty")
    if type(offset) is not int or not end <= offset <= MAX_OFFSET:
        raise Rejected("InvalidConfig", f"an offset that is not possible after {end}")
    state.put(f"end/{topic}/{partition}", [offset, offset])


def begin_epoch(state: StateExtents, action: Action) -> None:
    """Begin a leader epoch at the end of a partition, as in the original of a copy."""
    topic, partition = action["topic"], action["partition"]
    _, end = existing(state, topic, partition)
    name = f"epochs/{topic}/{partition}"
    state.put(name, with_epoch(state.entries.get(name, ()), action["epoch"], end))


def compacted(state: StateExtents, action: Action) -> None:
    """Record how far a partition was compacted, when, and how many tombstones are left in it."""
    topic, partition = action["topic"], action["partition"]
    _, end = existing(state, topic, partition)
    before = clean(state, topic, partition)
    rounds = [list(each) for each in before.rounds]
    offset = min(int(action["offset"]), end)
    if offset > before.offset:
        rounds = [*rounds, [offset, int(action["time_ms"])]][-_ROUNDS:]
    dropped = max(before.dropped_below, int(action["dropped_below"]))
    state.put(f"clean/{topic}/{partition}", [rounds, int(action["tombstones"]), dropped])


def move_start(state: StateExtents, action: Action) -> int:
    """Drop the records below an offset, and the extents that end there. Return how far the lowest offset moved."""
    topic, partition = action["topic"], action["partition"]
    start, end = existing(state, topic, partition)
    offset = int(action["offset"])
    if not 0 <= offset <= end:
        raise Rejected("OffsetOutOfRange", f"there are {start} to {end}, not {offset}", offset, start, end)
    wanted = max(offset, start)
    for base in list(state.bases(topic, partition)):
        if state.extent(topic, partition, base).next_offset <= wanted:
            state.drop_extent(topic, partition, base)
    state.put(f"end/{topic}/{partition}", [wanted, end])
    transactions.trim(state, topic, partition, wanted)
    return int(wanted - start)


def made_extent(base: int, key: str, position: int, size: int, count: int, newest: int, digest: str) -> Extent:
    """Return the extent that a commit describes, after validating it: every reader relies on it."""
    for value, least in ((base, 0), (position, 0), (size, 1), (count, 1), (newest, -1)):
        if type(value) is not int or value < least:
            raise Rejected("InvalidConfig", "an extent with a number that is not possible")
    if type(digest) is not str or len(digest) != DIGEST_DIGITS or set(digest) - _HEXADECIMAL:
        raise Rejected("InvalidConfig", "an extent with a digest that is not possible")
    return Extent(base, base + count, key, position, size, newest, digest)
