"""What groups have committed.

```
group/<group>                        the names of the topics that it has committed in
offset/<group>/<topic id>/<number>   [offset, metadata, leader epoch]
```

Queues on object storage: what is known of messages after the committed offset.

```
queue/<group>                                    how many exchanges there were
page/<group>/<topic id>/<partition>/<number>     a page, as base64: see `sawlog.store.queues.delivery_state`
```

An exchange says how many there were when it read the pages; it is rejected if there was another since. So of two
workers that take messages at the same moment one gets them, and the other begins again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import brokers, members
from .book import Book, Extents, Rejected, existing, quoted
from .commit import Action


def commit(book: Extents, action: Action) -> None:
    """Commit offsets of a group, or forget them; rejected if somebody else has the group now."""
    if not action.get("decided"):
        brokers.check_claim(book, action["group"], action.get("claim"))
    members.check_commit(book, action)
    if action.get("outside"):
        forget(book, action["group"], [row[:2] for row in action["offsets"]])
    group = quoted(action["group"])
    topics = {*book.entries.get(f"group/{group}", ()), *action["topics"].values()}
    book.put(f"group/{group}", sorted(topics))
    for topic, partition, offset, metadata, epoch in action["offsets"]:
        if offset is None:
            book.drop(f"offset/{group}/{topic}/{partition}")
            continue
        existing(book, topic, partition)
        book.put(f"offset/{group}/{topic}/{partition}", [offset, metadata, epoch])


def delete(book: Extents, action: Action) -> None:
    """Forget a group that has no members."""
    group = quoted(action["group"])
    if book.entries.get(f"group/{group}") is None:
        raise Rejected("GroupNotFound", f"no group {action['group']!r}")
    brokers.check_claim(book, action["group"], None)
    members.check_empty(book, action["group"])
    forget(book, action["group"])
    book.drop(f"group/{group}")
    book.drop(f"claims/{group}")
    for name in book.entries.names(f"offset/{group}/"):
        book.drop(name)


def exchange(book: Book, action: Action) -> int:
    """Commit offsets and pages of a group together; how many exchanges there are now."""
    group = quoted(action["group"])
    if book.entries.get(f"member/{group}/{quoted(action['member'])}") is None:
        raise Rejected("Changed", f"worker {action['member']} was removed from the group {action['group']!r}")
    count = int(book.entries.get(f"queue/{group}", 0))
    if count != action["count"]:
        raise Rejected("Changed", f"there were {count} exchanges of the group {action['group']!r}")
    for topic, partition, offset, metadata, epoch in action["offsets"]:
        if book.entries.get(f"end/{topic}/{partition}") is None:
            raise Rejected("Changed", "the topic was deleted")
        book.put(f"offset/{group}/{topic}/{partition}", [int(offset), str(metadata), int(epoch)])
    if action["topics"]:
        book.put(f"group/{group}", sorted({*book.entries.get(f"group/{group}", ()), *action["topics"]}))
    for topic, partition, number, content in action["pages"]:
        name = f"page/{group}/{topic}/{int(partition)}/{int(number)}"
        if content is None:
            book.drop(name)
        else:
            book.put(name, str(content))
    book.put(f"queue/{group}", count + 1)
    return count + 1


def forget(book: Book, group: str, shares: Iterable[Any] | None = None) -> None:
    """What queues knew of these partitions, or of all, no longer counts: the group was moved, or is deleted."""
    prefix = f"page/{quoted(group)}/"
    wanted = None if shares is None else {(str(topic), str(partition)) for topic, partition in shares}
    for name in book.entries.names(prefix):
        topic, partition, _ = name.removeprefix(prefix).split("/")
        if wanted is None or (topic, partition) in wanted:
            book.drop(name)
    if shares is None:
        book.drop(f"queue/{quoted(group)}")
    elif book.entries.get(f"queue/{quoted(group)}") is not None:
        book.put(f"queue/{quoted(group)}", int(book.entries.get(f"queue/{quoted(group)}")) + 1)
