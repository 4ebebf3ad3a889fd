"""Snapshots and forks: the extents of a topic, referenced again under another id. No data is copied.

```
snapshot/<name>                  {"time_ms", "topics": {name: {"id", "partitions", "settings"}}}
end/, extent/, aborted/, clean/, epochs/    of a topic in it, with the id <topic id>@<snapshot>
```

So code that reads a partition by topic id can read a snapshot, and code that asks whether an object is referenced
(`State.referenced`) sees the snapshot's reference until it is dropped. A snapshot only references objects that are
referenced when it is taken, so an object that was condemned stays unreferenced.

A *fork* works the same way under the id of a new topic, which continues independently. Its producers start over.

A transaction that is open at that moment is never decided in the copy: it counts as aborted there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import topics
from .commit import Action
from .mutation import MARK, Rejected, StateEntries, StateExtents, quoted


def id_in(topic_id: str, snapshot: str) -> str:
    """Return the id of a topic in a snapshot."""
    return f"{topic_id}{MARK}{quoted(snapshot)}"


def found(state: StateEntries, name: str) -> Mapping[str, Any]:
    """Return a snapshot; reject if it does not exist."""
    entry: Mapping[str, Any] | None = state.entries.get(f"snapshot/{quoted(name)}")
    if entry is None:
        raise Rejected("SnapshotNotFound", f"no snapshot {name}")
    return entry


def take(state: StateExtents, action: Action) -> None:
    """Take a snapshot of some topics, or of all."""
    name, wanted = action["name"], action["topics"]
    if state.entries.get(f"snapshot/{quoted(name)}") is not None:
        raise Rejected("SnapshotExists", f"snapshot {name} already exists")
    kept: dict[str, Any] = {}
    for each in state.topics() if wanted is None else wanted:
        entry = state.topic(each)
        if entry is None:
            raise Rejected("TopicNotFound", f"no topic {each}")
        kept[each] = dict(entry)
        _copy(state, entry["id"], id_in(entry["id"], name), range(entry["partitions"]))
    state.put(f"snapshot/{quoted(name)}", {"time_ms": int(action["time_ms"]), "topics": kept})


def drop(state: StateExtents, action: Action) -> None:
    """Drop a snapshot."""
    entry = found(state, action["name"])
    for topic in entry["topics"].values():
        kept = id_in(topic["id"], action["name"])
        for partition in range(topic["partitions"]):
            state.drop_partition(kept, partition)
            for kind in ("aborted", "clean", "epochs"):
                state.drop(f"{kind}/{kept}/{partition}")
    state.drop(f"snapshot/{quoted(action['name'])}")


def fork(state: StateExtents, action: Action) -> None:
    """Create a topic with the current content of another one, or with its content in a snapshot."""
    source, at = action["source"], action["at"]
    entry = state.topic(source) if at is None else found(state, at)["topics"].get(source)
    if entry is None or entry["id"] != action["source_id"]:
        raise Rejected("TopicNotFound", f"no topic {source}" + ("" if at is None else f" in snapshot {at}"))
    topics.add(state, action["name"], {**entry, "id": action["id"]})
    from_id = entry["id"] if at is None else id_in(entry["id"], at)
    _copy(state, from_id, action["id"], range(entry["partitions"]))


def _copy(state: StateExtents, source: str, to: str, partitions: Iterable[int]) -> None:
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
