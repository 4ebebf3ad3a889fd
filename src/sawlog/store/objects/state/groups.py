"""Committed offsets of consumer groups, and the delivery state of queues after them.

```
group/<group>                        the names of the topics that it has committed in
offset/<group>/<topic id>/<number>   [offset, metadata, leader epoch]
queue/<group>                                    number of exchanges
page/<group>/<topic id>/<partition>/<number>     an acknowledgement bitmap, as base64: see
                                                 `sawlog.store.queues.delivery_state`
```

An exchange states how many exchanges there were when it read the pages, and is rejected if there was another one since.
So if two workers take messages at the same time, one gets them and the other retries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import brokers, members
from .commit import Action
from .mutation import Rejected, StateEntries, StateExtents, existing, quoted


def commit(state: StateExtents, action: Action) -> None:
    """Commit or delete offsets of a group; reject if the caller no longer owns them."""
    if not action.get("decided"):
        brokers.check_claim(state, action["group"], action.get("claim"))
    members.check_commit(state, action)
    if action.get("outside"):
        forget(state, action["group"], [row[:2] for row in action["offsets"]])
    group = quoted(action["group"])
    topics = {*state.entries.get(f"group/{group}", ()), *action["topics"].values()}
    state.put(f"group/{group}", sorted(topics))
    for topic, partition, offset, metadata, epoch in action["offsets"]:
        if offset is None:
            state.drop(f"offset/{group}/{topic}/{partition}")
            continue
        existing(state, topic, partition)
        state.put(f"offset/{group}/{topic}/{partition}", [offset, metadata, epoch])


def delete(state: StateExtents, action: Action) -> None:
    """Delete a group that has no members."""
    group = quoted(action["group"])
    if state.entries.get(f"group/{group}") is None:
        raise Rejected("GroupNotFound", f"no group {action['group']!r}")
    brokers.check_claim(state, action["group"], None)
    members.check_empty(state, action["group"])
    forget(state, action["group"])
    state.drop(f"group/{group}")
    state.drop(f"claims/{group}")
    for name in state.entries.names(f"offset/{group}/"):
        state.drop(name)


def exchange(state: StateEntries, action: Action) -> int:
    """Commit offsets and pages of a group together, and return the number of exchanges."""
    group = quoted(action["group"])
    if state.entries.get(f"member/{group}/{quoted(action['member'])}") is None:
        raise Rejected("Changed", f"worker {action['member']} was removed from the group {action['group']!r}")
    count = int(state.entries.get(f"queue/{group}", 0))
    if count != action["count"]:
        raise Rejected("Changed", f"there were {count} exchanges of the group {action['group']!r}")
    for topic, partition, offset, metadata, epoch in action["offsets"]:
        if state.entries.get(f"end/{topic}/{partition}") is None:
            raise Rejected("Changed", "the topic was deleted")
        state.put(f"offset/{group}/{topic}/{partition}", [int(offset), str(metadata), int(epoch)])
    if action["topics"]:
        state.put(f"group/{group}", sorted({*state.entries.get(f"group/{group}", ()), *action["topics"]}))
    for topic, partition, number, content in action["pages"]:
        name = f"page/{group}/{topic}/{int(partition)}/{int(number)}"
        if content is None:
            state.drop(name)
        else:
            state.put(name, str(content))
    state.put(f"queue/{group}", count + 1)
    return count + 1


def forget(state: StateEntries, group: str, shares: Iterable[Any] | None = None) -> None:
    """Discard the delivery state of these partitions, or of all: the group was moved or deleted."""
    prefix = f"page/{quoted(group)}/"
    wanted = None if shares is None else {(str(topic), str(partition)) for topic, partition in shares}
    for name in state.entries.names(prefix):
        topic, partition, _ = name.removeprefix(prefix).split("/")
        if wanted is None or (topic, partition) in wanted:
            state.drop(name)
    if shares is None:
        state.drop(f"queue/{quoted(group)}")
    elif state.entries.get(f"queue/{quoted(group)}") is not None:
        state.put(f"queue/{quoted(group)}", int(state.entries.get(f"queue/{quoted(group)}")) + 1)
