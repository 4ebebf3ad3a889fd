"""The bindings of a store, in its registry: `registry/acls.json`.

```
"bindings": [{"resource": "topic", "name": "orders", "pattern": "literal", "principal": "User:ann", "host": "*",
              "operation": "read", "permission": "allow"}, ...]
```

A document that cannot be understood is an error, like one whose checksum is wrong: a rule that was skipped could be one
that denies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ...errors import CorruptFile, InvalidConfig
from ...topics.base import DocumentRegistry
from ...topics.registry import Document
from .acls import Binding, Filter

DOCUMENT: Final = "acls"
#: Every change stores all of them, and every broker reads them again.
BINDINGS_MAX: Final = 10_000
_FIELD = "bindings"


def bindings_of(document: Document) -> frozenset[Binding]:
    """The bindings in a document; `CorruptFile` if it is not one of them."""
    return _read(document.fields)


def _read(fields: Mapping[str, Any]) -> frozenset[Binding]:
    if not fields:
        return frozenset()
    stored = fields.get(_FIELD)
    if not isinstance(stored, list) or not all(isinstance(each, dict) for each in stored):
        raise CorruptFile(f"the document {DOCUMENT!r} has no list of bindings")
    try:
        return frozenset(Binding.of(each) for each in stored)
    except InvalidConfig as error:
        raise CorruptFile(f"a binding of the document {DOCUMENT!r} is not valid: {error}") from error


def sorted_bindings(bindings: Iterable[Binding]) -> list[Binding]:
    """In the order in which they are stored and listed: by resource, then by principal."""
    return sorted(
        bindings,
        key=lambda each: (
            each.resource,
            each.name,
            each.pattern,
            each.principal,
            each.host,
            each.operation,
            each.permission,
        ),
    )


class StoredAcls:
    """The bindings of a store, read and changed where they are stored. Safe for threads and processes."""

    def __init__(self, registry: DocumentRegistry) -> None:
        self._registry = registry

    def read(self) -> Document:
        """The document as it is now."""
        return self._registry.read(DOCUMENT)

    def find(self, wanted: Filter) -> list[Binding]:
        """The bindings that match, in order."""
        return sorted_bindings(filter(wanted.matches, bindings_of(self.read())))

    def add(self, bindings: Iterable[Binding]) -> None:
        """Add bindings; those that are there already stay."""
        new = frozenset(bindings)
        self._change(lambda there: there | new)

    def delete(self, filters: Sequence[Filter]) -> list[list[Binding]]:
        """Delete what matches one of the filters; what each of them matched."""
        matched: list[list[Binding]] = []

        def remove(there: frozenset[Binding]) -> frozenset[Binding]:
            matched[:] = [sorted_bindings(filter(each.matches, there)) for each in filters]
            return there.difference(*matched)

        self._change(remove)
        return matched

    def _change(self, edit: Callable[[frozenset[Binding]], frozenset[Binding]]) -> None:
        def change(fields: Mapping[str, Any]) -> Mapping[str, Any]:
            there = _read(fields)
            made = edit(there)
            if len(made) > max(BINDINGS_MAX, len(there)):
                raise InvalidConfig(f"at most {BINDINGS_MAX:,} rules can be stored, not {len(made):,}; use prefixes")
            return {_FIELD: [each.fields for each in sorted_bindings(made)]} if made != there else fields

        self._registry.change(DOCUMENT, change)
