"""Snapshots and forks: the extents of a topic once more, under another id. No byte is copied.

```
snapshot/<name>                  {"time_ms", "topics": {name: {"id", "partitions", "settings"}}}
end/, extent/, aborted/, clean/, epochs/    of a topic in it, with the id <topic id>@<snapshot>
```

So all that reads a partition by the id of its topic reads a snapshot; and all that asks whether an object is referred
to (`State.referenced`) sees that it is, until the snapshot is dropped. Nothing is ever referred to again that was not
at that moment: what was condemned stays unneeded.

A *fork* is the same with the id of a new topic, which goes on by itself. Its producers begin anew.

A transaction that is not decided at that moment never will be in the copy: it counts as aborted there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import topics
from .book import MARK, Book, Extents, Rejected, quoted
from .commit import Action


def id_in(topic_id: str, snapshot: str) -> str:
    """The id of a topic in a snapshot."""
    return f"{topic_id}{MARK}{quoted(snapshot)}"


def found(book: Book, name: str) -> Mapping[str, Any]:
    """A snapshot; rejected if there is none of that name."""
    entry: Mapping[str, Any] | None = book.entries.get(f"snapshot/{quoted(name)}")
    if entry is None:
        raise Rejected("SnapshotNotFound", f"no snapshot {name}")
    return entry


def take(book: Extents, action: Action) -> None:
    """Keep some topics, or all, as they are now."""
    name, wanted = action["name"], action["topics"]
    if book.entries.get(f"snapshot/{quoted(name)}") is not None:
        raise Rejected("SnapshotExists", f"snapshot {name} already exists")
    kept: dict[str, Any] = {}
    for each in book.topics() if wanted is None else wanted:
        entry = book.topic(each)
        if entry is None:
            raise Rejected("TopicNotFound", f"no topic {each}")
        kept[each] = dict(entry)
        _copy(book, entry["id"], id_in(entry["id"], name), range(entry["partitions"]))
    book.put(f"snapshot/{quoted(name)}", {"time_ms": int(action["time_ms"]), "topics": kept})


def drop(book: Extents, action: Action) -> None:
    """Forget a snapshot."""
    entry = found(book, action["name"])
    for topic in entry["topics"].values():
        kept = id_in(topic["id"], action["name"])
        for partition in range(topic["partitions"]):
            book.drop_partition(kept, partition)
            for kind in ("aborted", "clean", "epochs"):
                book.drop(f"{kind}/{kept}/{partition}")
    book.drop(f"snapshot/{quoted(action['name'])}")


def fork(book: Extents, action: Action) -> None:
    """A new topic that begins with what another one has, now or in a snapshot."""
    source, at = action["source"], action["at"]
    entry = book.topic(source) if at is None else found(book, at)["topics"].get(source)
    if entry is None or entry["id"] != action["source_id"]:
        raise Rejected("TopicNotFound", f"no topic {source}" + ("" if at is None else f" in snapshot {at}"))
    topics.add(book, action["name"], {**entry, "id": action["id"]})
    from_id = entry["id"] if at is None else id_in(entry["id"], at)
    _copy(book, from_id, action["id"], range(entry["partitions"]))


def _copy(book: Extents, source: str, to: str, partitions: Iterable[int]) -> None:
    for partition in partitions:
        book.copy_extents(source, partition, to)
        for kind in ("clean", "epochs"):
            known = book.entries.get(f"{kind}/{source}/{partition}")
            if known is not None:
                book.put(f"{kind}/{to}/{partition}", known)
        end = book.entries.get(f"end/{source}/{partition}")[1]
        aborted = list(book.entries.get(f"aborted/{source}/{partition}", ()))
        undecided = book.entries.get(f"open/{source}/{partition}", {})
        aborted += [[int(producer), undecided[producer][0], end - 1] for producer in sorted(undecided)]
        if aborted:
            book.put(f"aborted/{to}/{partition}", aborted)
