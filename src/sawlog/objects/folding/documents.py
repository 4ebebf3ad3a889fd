"""Small documents with a version, and names under which something happens once.

```
document/<name>                      [version, fields]
named/<name>                         the last number that was stored under a name
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..commit import Action
from .book import Book, Rejected, quoted


def once(book: Book, action: Action) -> None:
    """The rest of the request happens once under this name and number."""
    name = f"named/{quoted(action['name'])}"
    last = book.entries.get(name)
    if last is not None and action["sequence"] <= last:
        raise Rejected("Done", f"number {action['sequence']} of {action['name']} is stored")
    book.put(name, action["sequence"])


def forget_names(book: Book, action: Action) -> None:
    """Names that nobody uses any more."""
    for name in action["names"]:
        book.drop(f"named/{quoted(name)}")


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
