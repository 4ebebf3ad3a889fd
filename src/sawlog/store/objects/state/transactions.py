"""Transactions of Kafka clients: what is known of transactional ids, and what of each partition is decided.

```
transaction/<transactional id>   [version, fields]: as brokers store it; three of the fields mean something here
writing/<producer id>            [epoch, [[topic id, partition], ...]]: the transaction that is going on
pending/<group>                  {transactional id: [[topic, partition], ...]}: offsets that a transaction will commit
open/<topic id>/<partition>      {producer id: [first offset, last offset, epoch]}: not decided
aborted/<topic id>/<partition>   [[producer id, first offset, marker], ...], in the order of the markers
```

A transaction ends in one request: the entry, a marker for each partition, and the offsets of groups, under the
condition that the entry still has the version that its coordinator knew. So of two brokers that both believe to be the
coordinator one ends it, and no marker is ever written for a transaction that began later.

What a batch says about transactions is in the action that places it: [producer id, epoch, first, last, kind], with
places that count from the first offset of the action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .book import Book, Rejected, quoted
from .commit import Action

#: What a batch is: records of a transaction, or the marker that ends it.
RECORDS, COMMIT, ABORT = 0, 1, 2
#: The state of a transaction that is going on, as Kafka calls it.
ONGOING = "Ongoing"


def save(book: Book, action: Action) -> int:
    """Replace what is known of a transactional id, or with null forget it; the new version."""
    name = f"transaction/{quoted(action['name'])}"
    version, before = book.entries.get(name, (0, None))
    if version != action["version"]:
        raise Rejected("Changed", f"the transactional id {action['name']!r} has version {version}")
    after = action["fields"]
    _retire(book, action["name"], before)
    if after is None:
        book.drop(name)
        return 0
    if after["state"] == ONGOING:
        _begin(book, action["name"], after)
    version = int(book.entries.get("counter/transaction", 0)) + 1  # one that is forgotten and comes back has another
    book.put("counter/transaction", version)
    book.put(name, [version, after])
    return version


def _retire(book: Book, name: str, fields: Mapping[str, Any] | None) -> None:
    if fields is None or fields["state"] != ONGOING:
        return
    book.drop(f"writing/{fields['producer_id']}")
    for group in fields["offsets"]:
        waiting = {**book.entries.get(f"pending/{quoted(group)}", {})}
        waiting.pop(name, None)
        if waiting:
            book.put(f"pending/{quoted(group)}", waiting)
        else:
            book.drop(f"pending/{quoted(group)}")


def _begin(book: Book, name: str, fields: Mapping[str, Any]) -> None:
    places = [[topic_id, partition] for _, topic_id, partition in fields["partitions"]]
    book.put(f"writing/{fields['producer_id']}", [fields["epoch"], places])
    for group, offsets in fields["offsets"].items():
        shares = [[topic, partition] for topic, partition, *_ in offsets]
        if shares:
            waiting = book.entries.get(f"pending/{quoted(group)}", {})
            book.put(f"pending/{quoted(group)}", {**waiting, name: shares})


def check_writing(book: Book, action: Action) -> None:
    """The rest of the request is for a producer whose transaction includes a partition."""
    epoch, places = book.entries.get(f"writing/{action['producer']}", (None, ()))
    if epoch is not None and action["epoch"] < epoch:
        raise Rejected("ProducerFenced", f"producer {action['producer']} has epoch {epoch}, not {action['epoch']}")
    if epoch != action["epoch"] or [action["topic"], action["partition"]] not in places:
        raise Rejected("NotInTransaction", f"the partition was not added to a transaction of {action['producer']}")


def note(book: Book, topic: str, partition: int, base: int, rows: list[list[int]]) -> None:
    """Batches of transactions, and markers, were placed from `base` on."""
    name = f"open/{topic}/{partition}"
    opened = dict(book.entries.get(name, {}))
    for producer, epoch, first, last, kind in rows:
        key = str(producer)
        if kind == RECORDS:
            begun = opened[key][0] if key in opened else base + first
            opened[key] = [begun, base + last, epoch]
            continue
        _fence(book, topic, partition, producer, epoch)
        ended = opened.pop(key, None)
        if ended is not None and kind == ABORT:
            before = book.entries.get(f"aborted/{topic}/{partition}", [])
            book.put(f"aborted/{topic}/{partition}", [*before, [producer, ended[0], base + last]])
    _put_open(book, name, opened)


def _put_open(book: Book, name: str, opened: Mapping[str, Any]) -> None:
    if opened:
        book.put(name, opened)
    else:
        book.drop(name)


def _fence(book: Book, topic: str, partition: int, producer: int, epoch: int) -> None:
    """A marker ends the earlier epochs of its producer."""
    name = f"producer/{topic}/{partition}/{producer}"
    known, batches, _ = book.entries.get(name, (-1, [], 0))
    if epoch < known:
        raise Rejected("ProducerFenced", f"producer {producer} has epoch {known}, not {epoch}")
    book.put(name, [epoch, batches if epoch == known else [], book.number])


def forget_producers(book: Book, floor: int) -> None:
    """Forget what producers wrote before a commit, unless their transaction is open: any sequence number is accepted of
    them then, as of one that was never seen."""
    for name in book.entries.names("producer/"):
        _, topic, partition, producer = name.split("/")
        if book.entries.get(name)[2] < floor and producer not in book.entries.get(f"open/{topic}/{partition}", {}):
            book.drop(name)


def trim(book: Book, topic: str, partition: int, start: int) -> None:
    """The partition begins here now: what was decided below is forgotten, and a transaction of which nothing is left
    is none."""
    name = f"open/{topic}/{partition}"
    opened = book.entries.get(name)
    if opened is not None:
        _put_open(book, name, {key: each for key, each in opened.items() if each[1] >= start})
    aborted = book.entries.get(f"aborted/{topic}/{partition}")
    if aborted is not None:
        left = [each for each in aborted if each[2] >= start]
        if left:
            book.put(f"aborted/{topic}/{partition}", left)
        else:
            book.drop(f"aborted/{topic}/{partition}")


def stable(book: Book, topic: str, partition: int, end: int) -> int:
    """Below this every transaction is decided."""
    opened = book.entries.get(f"open/{topic}/{partition}")
    return min(end, *(int(each[0]) for each in opened.values())) if opened else end


def aborted(book: Book, topic: str, partition: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(producer id, first offset, marker) of the aborted transactions that have offsets in a range."""
    for producer, first, marker in book.entries.get(f"aborted/{topic}/{partition}", ()):
        if marker >= start and first < end:
            yield int(producer), int(first), int(marker)
