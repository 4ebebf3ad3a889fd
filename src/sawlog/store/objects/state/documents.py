"""Small versioned documents, and names that make a request idempotent.

```
document/<name>                      [version, fields]
named/<name>                         [the last number stored under the name, its time, parts]: parts is a list with
                                     [topic, topic id, partition, records, digest] for each partition, or null
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .commit import Action
from .mutation import Rejected, StateEntries, quoted


def once(state: StateEntries, action: Action) -> None:
    """Reject the request if this name and number are stored already."""
    name = f"named/{quoted(action['name'])}"
    last = state.entries.get(name)
    if last is not None and action["sequence"] <= named(last)[0]:
        raise Rejected("Done", f"number {action['sequence']} of {action['name']} is stored")
    state.put(name, [action["sequence"], action.get("time_ms", 0), action.get("parts")])


def forget_names(state: StateEntries, action: Action) -> None:
    """Drop names, except those that were used again since they were found to be old."""
    for name in action["names"]:
        entry = f"named/{quoted(name)}"
        last = state.entries.get(entry)
        if last is not None and named(last)[1] < action["before_ms"]:
            state.drop(entry)


def named(value: Any) -> tuple[int, int, list[Any] | None]:
    """Return the number, the time and the parts of a name's entry. The oldest form was the number alone."""
    if isinstance(value, int):
        return value, 0, None
    number, time_ms, parts = value
    return int(number), int(time_ms), parts


def found(state: StateEntries, name: str) -> tuple[int, Mapping[str, Any]]:
    """Return the version and the fields of a document. A document that was never stored has version 0."""
    version, fields = state.entries.get(f"document/{name}", (0, {}))
    return int(version), fields


def change(state: StateEntries, action: Action) -> int:
    """Replace the fields of a document that has not changed, and return its new version."""
    expect(state, action)
    state.put(f"document/{action['name']}", [action["version"] + 1, action["fields"]])
    return int(action["version"] + 1)


def expect(state: StateEntries, action: Action) -> None:
    """Reject the request if a document has changed."""
    version, _ = found(state, action["name"])
    if version != action["version"]:
        raise Rejected("Changed", f"the document {action['name']} has version {version}")
