"""Transactions of Kafka clients: transactional ids, and the open and aborted transactions of each partition.

```
transaction/<transactional id>   [version, fields]: as brokers store it; three of the fields are used here
writing/<producer id>            [epoch, [[topic id, partition], ...]]: the ongoing transaction
pending/<group>                  {transactional id: [[topic, partition], ...]}: offsets that a transaction will commit
open/<topic id>/<partition>      {producer id: [first offset, last offset, epoch]}: not decided
aborted/<topic id>/<partition>   [[producer id, first offset, marker], ...], in the order of the markers
```

A transaction ends in one request: its entry, a marker for each partition, and the offsets of groups, on condition that
the entry still has the version that the coordinator knows. So if two brokers both believe that they are the
coordinator, only one ends the transaction, and no marker is ever written for a later one.

The action that places a batch describes its transaction: [producer id, epoch, first, last, kind], with offsets relative
to the first offset of the action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .commit import Action
from .entries import MutableState, Rejected, quoted

#: Kinds of batches: records of a transaction, or the marker that ends it.
RECORDS, COMMIT, ABORT = 0, 1, 2
#: Kafka's name for the state of a transaction in progress.
ONGOING = "Ongoing"


def save(state: MutableState, action: Action) -> int:
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
        if waiting:
            state.put(f"pending/{quoted(group)}", waiting)
        else:
            state.drop(f"pending/{quoted(group)}")


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


def note(state: MutableState, topic: str, partition: int, base: int, rows: list[list[int]]) -> None:
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
        if ended is not None and kind == ABORT:
            before = state.entries.get(f"aborted/{topic}/{partition}", [])
            state.put(f"aborted/{topic}/{partition}", [*before, [producer, ended[0], base + last]])
    _put_open(state, name, opened)


def _put_open(state: MutableState, name: str, opened: Mapping[str, Any]) -> None:
    if opened:
        state.put(name, opened)
    else:
        state.drop(name)


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


def trim(state: MutableState, topic: str, partition: int, start: int) -> None:
    """Forget aborted transactions below the new start of a partition, and open ones that have no records left."""
    name = f"open/{topic}/{partition}"
    opened = state.entries.get(name)
    if opened is not None:
        _put_open(state, name, {key: each for key, each in opened.items() if each[1] >= start})
    aborted = state.entries.get(f"aborted/{topic}/{partition}")
    if aborted is not None:
        left = [each for each in aborted if each[2] >= start]
        if left:
            state.put(f"aborted/{topic}/{partition}", left)
        else:
            state.drop(f"aborted/{topic}/{partition}")


def stable(state: MutableState, topic: str, partition: int, end: int) -> int:
    """Return the last stable offset: every transaction below it is decided."""
    opened = state.entries.get(f"open/{topic}/{partition}")
    return min(end, *(int(each[0]) for each in opened.values())) if opened else end


def aborted(state: MutableState, topic: str, partition: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (producer id, first offset, marker) of the aborted transactions that have offsets in a range."""
    for producer, first, marker in state.entries.get(f"aborted/{topic}/{partition}", ()):
        if marker >= start and first < end:
            yield int(producer), int(first), int(marker)
