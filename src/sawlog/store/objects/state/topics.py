"""Topics: creating, altering, deleting them, and letting one take the place of another.

```
topic/<name>                         {"id", "partitions", "settings", "created_ms"}
end/<topic id>/<partition>           [lowest offset, next offset]
```

What belongs to a topic is found by its id, which no other topic ever gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .book import Extents, Rejected, existing
from .commit import Action

#: The kinds of entries that end with their topic, and where in their names its id is.
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


def add(book: Extents, name: str, made: Mapping[str, Any]) -> None:
    """Enter a new topic; rejected if its name is taken."""
    if book.topic(name) is not None:
        raise Rejected("TopicExists", f"topic {name} already exists")
    folded = name.lower()
    for other in book.topics():
        if other.lower() == folded:
            raise Rejected("InvalidTopicName", f"{name} differs from topic {other} only in case")
    book.put(f"topic/{name}", dict(made))


def create(book: Extents, action: Action) -> None:
    if book.has(action["id"], 0):  # what belongs to a topic is found by its id
        raise Rejected("InvalidConfig", f"there is a topic with the id {action['id']} already")
    made = {"id": action["id"], "partitions": action["partitions"], "settings": action["settings"]}
    if "created_ms" in action:
        made["created_ms"] = int(action["created_ms"])
    add(book, action["name"], made)
    for partition in range(action["partitions"]):
        book.put(f"end/{action['id']}/{partition}", [0, 0])


def alter(book: Extents, action: Action) -> None:
    name = action["name"]
    found = _topic_of(book, name, action.get("id"))
    count = found["partitions"] if action.get("partitions") is None else action["partitions"]
    if count < found["partitions"]:
        raise Rejected(
            "InvalidConfig", f"{name} has {found['partitions']} partitions; they can be added but not removed"
        )
    settings = {**found["settings"], **action["settings"]}
    settings = {each: value for each, value in settings.items() if value is not None}
    for partition in range(found["partitions"], count):
        book.put(f"end/{found['id']}/{partition}", [0, 0])
    book.put(f"topic/{name}", {**found, "partitions": count, "settings": settings})


def delete(book: Extents, action: Action) -> None:
    _forget(book, action["name"], _topic_of(book, action["name"], action.get("id")))


def replace(book: Extents, action: Action) -> None:
    """One topic takes the name of another, which is deleted, and keeps its own id. With `ends` the other one must
    still end there."""
    name, by = action["name"], action["by"]
    if name == by:
        raise Rejected("InvalidConfig", f"the topic {name!r} cannot replace itself")
    old, new = _topic_of(book, name, action["id"]), _topic_of(book, by, action["by_id"])
    for partition, expected in action.get("ends", ()):
        _, end = existing(book, old["id"], partition)
        if end != expected:
            raise Rejected("OffsetMismatch", f"expected {expected}, but it is {end}", expected, end)
    _forget(book, name, old)
    book.drop(f"topic/{by}")
    book.put(f"topic/{name}", new)


def _forget(book: Extents, topic: str, found: Mapping[str, Any]) -> None:
    book.drop(f"topic/{topic}")
    for partition in range(found["partitions"]):
        book.drop_partition(found["id"], partition)
    for prefix, at in _OF_TOPICS:
        for name in book.entries.names(prefix):
            if name.split("/")[at] == found["id"]:
                book.drop(name)


def _topic_of(book: Extents, name: str, topic_id: str | None) -> Mapping[str, Any]:
    found = book.topic(name)
    if found is None or (topic_id is not None and found["id"] != topic_id):
        raise Rejected("TopicNotFound", f"no topic {name}")
    return found
