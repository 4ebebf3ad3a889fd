"""Small documents with a version, and names under which something happens once.

```
document/<name>                      [version, fields]
named/<name>                         [the last number that was stored under a name, when, what]: what is a list with
                                     [topic, topic id, partition, records, digest] for each partition, or null
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .book import Book, Rejected, quoted
from .commit import Action


def once(book: Book, action: Action) -> None:
    """The rest of the request happens once under this name and number."""
    name = f"named/{quoted(action['name'])}"
    last = book.entries.get(name)
    if last is not None and action["sequence"] <= named(last)[0]:
        raise Rejected("Done", f"number {action['sequence']} of {action['name']} is stored")
    book.put(name, [action["sequence"], action.get("time_ms", 0), action.get("parts")])


def forget_names(book: Book, action: Action) -> None:
    """Drop names, unless something was stored under one of them since it was found to be old."""
    for name in action["names"]:
        entry = f"named/{quoted(name)}"
        last = book.entries.get(entry)
        if last is not None and named(last)[1] < action["before_ms"]:
            book.drop(entry)


def named(value: Any) -> tuple[int, int, list[Any] | None]:
    """The entry of a name: the number, when it was stored, and what. At first it was the number alone."""
    if isinstance(value, int):
        return value, 0, None
    number, time_ms, parts = value
    return int(number), int(time_ms), parts


def found(book: Book, name: str) -> tuple[int, Mapping[str, Any]]:
    """A document: its version and its fields. One that was never stored has version 0."""
    version, fields = book.entries.get(f"document/{name}", (0, {}))
    return int(version), fields


def change(book: Book, action: Action) -> int:
    """Replace the fields of a document that has not changed since; its new version."""
    expect(book, action)
    book.put(f"document/{action['name']}", [action["version"] + 1, action["fields"]])
    return int(action["version"] + 1)


def expect(book: Book, action: Action) -> None:
    """The rest of the request is applied only if a document has not changed."""
    version, _ = found(book, action["name"])
    if version != action["version"]:
        raise Rejected("Changed", f"the document {action['name']} has version {version}")
