"""Topics and their records: creating topics, placing batches, replacing extents, dropping the oldest, snapshots; and
the transactions of Kafka clients.

```
topic/<name>                         {"id", "partitions", "settings", "created_ms"}
end/<topic id>/<partition>           [lowest offset, next offset]
extent/<topic id>/<partition>/<base> [key, position, bytes, next offset, largest timestamp, digest]
producer/<topic id>/<number>/<id>    [epoch, [[first sequence, last sequence, base offset], ...], commit of the last]
clean/<topic id>/<partition>         state of compaction: [[[offset, time], ...], tombstones left, offset below which
                                     tombstones were dropped]
epochs/<topic id>/<partition>        the leader epochs of a partition that is a copy of another: [[epoch, its first
                                     offset], ...]; see commit.py
snapshot/<name>                      {"time_ms", "topics": {name: {"id", "partitions", "settings"}}}
transaction/<transactional id>       [version, fields]: as brokers store it; three of the fields are used here
writing/<producer id>                [epoch, [[topic id, partition], ...]]: the ongoing transaction
pending/<group>                      {transactional id: [[topic, partition], ...]}: offsets that a transaction commits
open/<topic id>/<partition>          {producer id: [first offset, last offset, epoch]}: not decided
aborted/<topic id>/<partition>       [[producer id, first offset, marker], ...], in the order of the markers
```

Everything that belongs to a topic is keyed by its id, which is never reused.

A *snapshot* references the extents of a topic again, under the id `<topic id>@<snapshot>`, and has its own end/,
aborted/, clean/ and epochs/. No data is copied. So code that reads a partition by topic id can read a snapshot, and
code that asks whether an object is referenced (`State.referenced`) sees the snapshot's reference until it is dropped. A
snapshot only references objects that are referenced when it is taken, so an object that was condemned stays
unreferenced.

A *fork* works the same way under the id of a new topic, which continues independently. Its producers start over. A
transaction that is open at that moment is never decided in the copy: it counts as aborted there.

A *transaction* ends in one request: its entry, a marker for each partition, and the offsets of groups, on condition
that the entry still has the version that the coordinator knows. So if two brokers both believe that they are the
coordinator, only one ends the transaction, and no marker is ever written for a later one. The action that places a
batch describes its transaction: [producer id, epoch, first, last, kind], with offsets relative to the first offset of
the action.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from ....config import MAX_OFFSET
from .commit import DIGEST_DIGITS, INLINE, MARKED_ABORT, RECORDS, Action, Extent, with_epoch
from .entries import MARK, MutableState, Rejected, quoted

#: The kinds of entries that are dropped with their topic, and the position of its id in their names.
_OF_TOPICS = (
    ("producer/", 1),
    ("offset/", 2),
    ("owner/", 2),
    ("page/", 2),
    ("clean/", 1),
    ("open/", 1),
    ("aborted/", 1),
    ("epochs/", 1),
)


def add_topic(state: MutableState, name: str, made: Mapping[str, Any]) -> None:
    if state.topic(name) is not None:
        raise Rejected("TopicExists", f"topic {name} already exists")
    folded = name.lower()
    for other in state.topics():
        if other.lower() == folded:
            raise Rejected("InvalidTopicName", f"{name} differs from topic {other} only in case")
    state.put(f"topic/{name}", dict(made))


def create_topic(state: MutableState, action: Action) -> None:
    if state.has(action["id"], 0):  # ids are never shared: entries of a topic are keyed by id
        raise Rejected("InvalidConfig", f"there is a topic with the id {action['id']} already")
    made = {"id": action["id"], "partitions": action["partitions"], "settings": action["settings"]}
    if "created_ms" in action:
        made["created_ms"] = int(action["created_ms"])
    add_topic(state, action["name"], made)
    for partition in range(action["partitions"]):
        state.put(f"end/{action['id']}/{partition}", [0, 0])


def alter_topic(state: MutableState, action: Action) -> None:
    name = action["name"]
    found = _topic_of(state, name, action.get("id"))
    count = found["partitions"] if action.get("partitions") is None else action["partitions"]
    if count < found["partitions"]:
        raise Rejected(
            "InvalidConfig", f"{name} has {found['partitions']} partitions; they can be added but not removed"
        )
    settings = {**found["settings"], **action["settings"]}
    settings = {each: value for each, value in settings.items() if value is not None}
    for partition in range(found["partitions"], count):
        state.put(f"end/{found['id']}/{partition}", [0, 0])
    state.put(f"topic/{name}", {**found, "partitions": count, "settings": settings})


def delete_topic(state: MutableState, action: Action) -> None:
    _forget_topic(state, action["name"], _topic_of(state, action["name"], action.get("id")))


def replace_topic(state: MutableState, action: Action) -> None:
    """Give the name of a topic to another, which keeps its id, and delete the first. With `ends`, reject if the other
    topic has grown."""
    name, by = action["name"], action["by"]
    if name == by:
        raise Rejected("InvalidConfig", f"the topic {name!r} cannot replace itself")
    old, new = _topic_of(state, name, action["id"]), _topic_of(state, by, action["by_id"])
    for partition, expected in action.get("ends", ()):
        _, end = state.existing(old["id"], partition)
        if end != expected:
            raise Rejected("OffsetMismatch", f"expected {expected}, but it is {end}", expected, end)
    _forget_topic(state, name, old)
    state.drop(f"topic/{by}")
    state.put(f"topic/{name}", new)


def _forget_topic(state: MutableState, topic: str, found: Mapping[str, Any]) -> None:
    state.drop(f"topic/{topic}")
    for partition in range(found["partitions"]):
        state.drop_partition(found["id"], partition)
    for prefix, at in _OF_TOPICS:
        for name in state.entries.names(prefix):
            if name.split("/")[at] == found["id"]:
                state.drop(name)


def _topic_of(state: MutableState, name: str, topic_id: str | None) -> Mapping[str, Any]:
    found = state.topic(name)
    if found is None or (topic_id is not None and found["id"] != topic_id):
        raise Rejected("TopicNotFound", f"no topic {name}")
    return found


#: Kafka's name for the state of a transaction in progress.
ONGOING = "Ongoing"
#: Number of batches remembered per producer, as in Kafka.
_REMEMBERED = 5
#: Number of compaction rounds remembered.
_ROUNDS = 20
_HEXADECIMAL = frozenset("0123456789abcdef")


def append(state: MutableState, action: Action, commit_key: str, inline_at: int) -> list[int]:
    """Place batches from this commit or from an upload at the end of a partition, and return their first and next
    offset."""
    topic, partition = action["topic"], action["partition"]
    start, end = state.existing(topic, partition)
    where = action["key"]
    if where != INLINE:
        state.check_floor(where)
    if action.get("producers"):
        repeated = _check_producers(state, action, topic, partition, end)
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
        _note_transactions(state, topic, partition, base, action["transactions"])
    state.put(f"end/{topic}/{partition}", [start, end])
    return [base, end]


def _check_producers(state: MutableState, action: Action, topic: str, partition: int, end: int) -> list[int] | None:
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


def replace_extents(state: MutableState, action: Action) -> None:
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
        state.check_floor(key_)
    for base in there:
        state.drop_extent(topic, partition, base)
    at = first
    for where, position, size, count, newest, digest in action["new"]:
        state.add_extent(topic, partition, made_extent(at, where, position, size, count, newest, digest))
        at += count
    if at != end or end != found[-1].next_offset:
        raise Rejected("InvalidConfig", f"what replaces {first} to {end} ends at {at}")


def advance(state: MutableState, action: Action) -> None:
    """Set the first offset of an empty partition, for a copy of a partition that does not begin at 0."""
    topic, partition, offset = action["topic"], action["partition"], action["offset"]
    _, end = state.existing(topic, partition)
    if state.bases(topic, partition):
        raise Rejected("Changed", f"the partition {partition} of {topic} is not empty")
    if type(offset) is not int or not end <= offset <= MAX_OFFSET:
        raise Rejected("InvalidConfig", f"an offset that is not possible after {end}")
    state.put(f"end/{topic}/{partition}", [offset, offset])


def begin_epoch(state: MutableState, action: Action) -> None:
    """Begin a leader epoch at the end of a partition, as in the original of a copy."""
    topic, partition = action["topic"], action["partition"]
    _, end = state.existing(topic, partition)
    name = f"epochs/{topic}/{partition}"
    state.put(name, with_epoch(state.entries.get(name, ()), action["epoch"], end))


def record_compaction(state: MutableState, action: Action) -> None:
    """Record how far a partition was compacted, when, and how many tombstones are left in it."""
    topic, partition = action["topic"], action["partition"]
    _, end = state.existing(topic, partition)
    before = state.clean(topic, partition)
    rounds = [list(each) for each in before.rounds]
    offset = min(int(action["offset"]), end)
    if offset > before.offset:
        rounds = [*rounds, [offset, int(action["time_ms"])]][-_ROUNDS:]
    dropped = max(before.dropped_below, int(action["dropped_below"]))
    state.put(f"clean/{topic}/{partition}", [rounds, int(action["tombstones"]), dropped])


def move_start(state: MutableState, action: Action) -> int:
    """Drop the records below an offset, and the extents that end there. Return how far the lowest offset moved."""
    topic, partition = action["topic"], action["partition"]
    start, end = state.existing(topic, partition)
    offset = int(action["offset"])
    if not 0 <= offset <= end:
        raise Rejected("OffsetOutOfRange", f"there are {start} to {end}, not {offset}", offset, start, end)
    wanted = max(offset, start)
    for base in list(state.bases(topic, partition)):
        if state.extent(topic, partition, base).next_offset <= wanted:
            state.drop_extent(topic, partition, base)
    state.put(f"end/{topic}/{partition}", [wanted, end])
    _trim_transactions(state, topic, partition, wanted)
    return int(wanted - start)


def made_extent(base: int, key: str, position: int, size: int, count: int, newest: int, digest: str) -> Extent:
    """Return the extent that a commit describes, after validating it: every reader relies on it."""
    for value, least in ((base, 0), (position, 0), (size, 1), (count, 1), (newest, -1)):
        if type(value) is not int or value < least:
            raise Rejected("InvalidConfig", "an extent with a number that is not possible")
    if type(digest) is not str or len(digest) != DIGEST_DIGITS or set(digest) - _HEXADECIMAL:
        raise Rejected("InvalidConfig", "an extent with a digest that is not possible")
    return Extent(base, base + count, key, position, size, newest, digest)


def id_in_snapshot(topic_id: str, snapshot: str) -> str:
    return f"{topic_id}{MARK}{quoted(snapshot)}"


def _snapshot(state: MutableState, name: str) -> Mapping[str, Any]:
    entry: Mapping[str, Any] | None = state.entries.get(f"snapshot/{quoted(name)}")
    if entry is None:
        raise Rejected("SnapshotNotFound", f"no snapshot {name}")
    return entry


def take_snapshot(state: MutableState, action: Action) -> None:
    name, wanted = action["name"], action["topics"]
    if state.entries.get(f"snapshot/{quoted(name)}") is not None:
        raise Rejected("SnapshotExists", f"snapshot {name} already exists")
    kept: dict[str, Any] = {}
    for each in state.topics() if wanted is None else wanted:
        entry = state.topic(each)
        if entry is None:
            raise Rejected("TopicNotFound", f"no topic {each}")
        kept[each] = dict(entry)
        _copy_topic(state, entry["id"], id_in_snapshot(entry["id"], name), range(entry["partitions"]))
    state.put(f"snapshot/{quoted(name)}", {"time_ms": int(action["time_ms"]), "topics": kept})


def drop_snapshot(state: MutableState, action: Action) -> None:
    entry = _snapshot(state, action["name"])
    for topic in entry["topics"].values():
        kept = id_in_snapshot(topic["id"], action["name"])
        for partition in range(topic["partitions"]):
            state.drop_partition(kept, partition)
            for kind in ("aborted", "clean", "epochs"):
                state.drop(f"{kind}/{kept}/{partition}")
    state.drop(f"snapshot/{quoted(action['name'])}")


def fork_topic(state: MutableState, action: Action) -> None:
    """Create a topic with the current content of another one, or with its content in a snapshot."""
    source, at = action["source"], action["at"]
    entry = state.topic(source) if at is None else _snapshot(state, at)["topics"].get(source)
    if entry is None or entry["id"] != action["source_id"]:
        raise Rejected("TopicNotFound", f"no topic {source}" + ("" if at is None else f" in snapshot {at}"))
    add_topic(state, action["name"], {**entry, "id": action["id"]})
    from_id = entry["id"] if at is None else id_in_snapshot(entry["id"], at)
    _copy_topic(state, from_id, action["id"], range(entry["partitions"]))


def _copy_topic(state: MutableState, source: str, to: str, partitions: Iterable[int]) -> None:
    for partition in partitions:
        state.copy_extents(source, partition, to)
        for kind in ("clean", "epochs"):
            known = state.entries.get(f"{kind}/{source}/{partition}")
            if known is not None:
                state.put(f"{kind}/{to}/{partition}", known)
        end = state.entries.get(f"end/{source}/{partition}")[1]
        aborted = list(state.entries.get(f"aborted/{source}/{partition}", ()))
        undecided = state.entries.get(f"open/{source}/{partition}", {})
        aborted += [[int(producer), undecided[producer][0], end - 1] for producer in sorted(undecided)]
        if aborted:
            state.put(f"aborted/{to}/{partition}", aborted)


# --- transactions


def save_transaction(state: MutableState, action: Action) -> int:
    """Replace the entry of a transactional id, or delete it if the fields are null; return the new version."""
    name = f"transaction/{quoted(action['name'])}"
    version, before = state.entries.get(name, (0, None))
    if version != action["version"]:
        raise Rejected("Changed", f"the transactional id {action['name']!r} has version {version}")
    after = action["fields"]
    _retire(state, action["name"], before)
    if after is None:
        state.drop(name)
        return 0
    if after["state"] == ONGOING:
        _begin(state, action["name"], after)
    version = int(state.entries.get("counter/transaction", 0)) + 1  # never reused, even for a recreated id
    state.put("counter/transaction", version)
    state.put(name, [version, after])
    return version


def _retire(state: MutableState, name: str, fields: Mapping[str, Any] | None) -> None:
    if fields is None or fields["state"] != ONGOING:
        return
    state.drop(f"writing/{fields['producer_id']}")
    for group in fields["offsets"]:
        waiting = {**state.entries.get(f"pending/{quoted(group)}", {})}
        waiting.pop(name, None)
        state.put_or_drop(f"pending/{quoted(group)}", waiting)


def _begin(state: MutableState, name: str, fields: Mapping[str, Any]) -> None:
    places = [[topic_id, partition] for _, topic_id, partition in fields["partitions"]]
    state.put(f"writing/{fields['producer_id']}", [fields["epoch"], places])
    for group, offsets in fields["offsets"].items():
        shares = [[topic, partition] for topic, partition, *_ in offsets]
        if shares:
            waiting = state.entries.get(f"pending/{quoted(group)}", {})
            state.put(f"pending/{quoted(group)}", {**waiting, name: shares})


def check_writing(state: MutableState, action: Action) -> None:
    """Reject the request unless the producer's current transaction includes the partition."""
    epoch, places = state.entries.get(f"writing/{action['producer']}", (None, ()))
    if epoch is not None and action["epoch"] < epoch:
        raise Rejected("ProducerFenced", f"producer {action['producer']} has epoch {epoch}, not {action['epoch']}")
    if epoch != action["epoch"] or [action["topic"], action["partition"]] not in places:
        raise Rejected("NotInTransaction", f"the partition was not added to a transaction of {action['producer']}")


def _note_transactions(state: MutableState, topic: str, partition: int, base: int, rows: list[list[int]]) -> None:
    """Record transactional batches and markers placed from `base` on."""
    name = f"open/{topic}/{partition}"
    opened = dict(state.entries.get(name, {}))
    for producer, epoch, first, last, kind in rows:
        key = str(producer)
        if kind == RECORDS:
            begun = opened[key][0] if key in opened else base + first
            opened[key] = [begun, base + last, epoch]
            continue
        _fence(state, topic, partition, producer, epoch)
        ended = opened.pop(key, None)
        if ended is not None and kind == MARKED_ABORT:
            before = state.entries.get(f"aborted/{topic}/{partition}", [])
            state.put(f"aborted/{topic}/{partition}", [*before, [producer, ended[0], base + last]])
    state.put_or_drop(name, opened)


def _fence(state: MutableState, topic: str, partition: int, producer: int, epoch: int) -> None:
    """Fence the earlier epochs of a marker's producer."""
    name = f"producer/{topic}/{partition}/{producer}"
    known, batches, _ = state.entries.get(name, (-1, [], 0))
    if epoch < known:
        raise Rejected("ProducerFenced", f"producer {producer} has epoch {known}, not {epoch}")
    state.put(name, [epoch, batches if epoch == known else [], state.number])


def forget_producers(state: MutableState, floor: int) -> None:
    """Forget producers that have not written since commit `floor`, unless their transaction is open. Any sequence
    number is accepted from them then, as from a new producer."""
    for name in state.entries.names("producer/"):
        _, topic, partition, producer = name.split("/")
        if state.entries.get(name)[2] < floor and producer not in state.entries.get(f"open/{topic}/{partition}", {}):
            state.drop(name)


def _trim_transactions(state: MutableState, topic: str, partition: int, start: int) -> None:
    """Forget aborted transactions below the new start of a partition, and open ones that have no records left."""
    opened = state.entries.get(name := f"open/{topic}/{partition}")
    if opened is not None:
        state.put_or_drop(name, {key: each for key, each in opened.items() if each[1] >= start})
    aborted = state.entries.get(name := f"aborted/{topic}/{partition}")
    if aborted is not None:
        state.put_or_drop(name, [each for each in aborted if each[2] >= start])
