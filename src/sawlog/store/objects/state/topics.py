"""Topics: creating, altering, deleting and replacing them.

```
topic/<name>                         {"id", "partitions", "settings", "created_ms"}
end/<topic id>/<partition>           [lowest offset, next offset]
```

Everything that belongs to a topic is keyed by its id, which is never reused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .commit import Action
from .mutation import Rejected, StateExtents, existing

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


def add(state: StateExtents, name: str, made: Mapping[str, Any]) -> None:
    """Add a topic; reject if its name is taken."""
    if state.topic(name) is not None:
        raise Rejected("TopicExists", f"topic {name} already exists")
    folded = name.lower()
    for other in state.topics():
        if other.lower() == folded:
            raise Rejected("InvalidTopicName", f"{name} differs from topic {other} only in case")
    state.put(f"topic/{name}", dict(made))


def create(state: StateExtents, action: Action) -> None:
    if state.has(action["id"], 0):  # ids are never shared: entries of a topic are keyed by id
        raise Rejected("InvalidConfig", f"there is a topic with the id {action['id']} already")
    made = {"id": action["id"], "partitions": action["partitions"], "settings": action["settings"]}
    if "created_ms" in action:
        made["created_ms"] = int(action["created_ms"])
    add(state, action["name"], made)
    for partition in range(action["partitions"]):
        state.put(f"end/{action['id']}/{partition}", [0, 0])


def alter(state: StateExtents, action: Action) -> None:
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


def delete(state: StateExtents, action: Action) -> None:
    _forget(state, action["name"], _topic_of(state, action["name"], action.get("id")))


def replace(state: StateExtents, action: Action) -> None:
    """Let a topic take the name of another, which is deleted; it keeps its own id. With `ends`, reject if the other
    topic has grown."""
    name, by = action["name"], action["by"]
    if name == by:
        raise Rejected("InvalidConfig", f"the topic {name!r} cannot replace itself")
    old, new = _topic_of(state, name, action["id"]), _topic_of(state, by, action["by_id"])
    for partition, expected in action.get("ends", ()):
        _, end = existing(state, old["id"], partition)
        if end != expected:
            raise Rejected("OffsetMismatch", f"expected {expected}, but it is {end}", expected, end)
    _forget(state, name, old)
    state.drop(f"topic/{by}")
    state.put(f"topic/{name}", new)


def _forget(state: StateExtents, topic: str, found: Mapping[str, Any]) -> None:
    state.drop(f"topic/{topic}")
    for partition in range(found["partitions"]):
        state.drop_partition(found["id"], partition)
    for prefix, at in _OF_TOPICS:
        for name in state.entries.names(prefix):
            if name.split("/")[at] == found["id"]:
                state.drop(name)


def _topic_of(state: StateExtents, name: str, topic_id: str | None) -> Mapping[str, Any]:
    found = state.topic(name)
    if found is None or (topic_id is not None and found["id"] != topic_id):
        raise Rejected("TopicNotFound", f"no topic {name}")
    return found
