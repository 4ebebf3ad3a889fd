"""What groups have committed.

```
group/<group>                        the names of the topics that it has committed in
offset/<group>/<topic id>/<number>   [offset, metadata, leader epoch]
```
"""

from __future__ import annotations

from ..commit import Action
from . import brokers, members, queues
from .book import Extents, Rejected, existing, quoted


def commit(book: Extents, action: Action) -> None:
    """Commit offsets of a group, or forget them; rejected if somebody else has the group now."""
    if not action.get("decided"):
        brokers.check_claim(book, action["group"], action.get("claim"))
    members.check_commit(book, action)
    if action.get("outside"):
        queues.forget(book, action["group"], [row[:2] for row in action["offsets"]])
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
    queues.forget(book, action["group"])
    book.drop(f"group/{group}")
    book.drop(f"claims/{group}")
    for name in book.entries.names(f"offset/{group}/"):
        book.drop(name)
