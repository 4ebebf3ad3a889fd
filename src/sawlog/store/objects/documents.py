"""`ObjectRegistry`: small named documents of a store on object storage, such as the users of a broker. Each change is a
commit that says which version it replaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..directory.documents import Document, check_document_name
from .session import Core, results


class ObjectRegistry:
    """The documents of one store. Safe for threads and processes."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def read(self, name: str) -> Document:
        """A document as it is now; version 0 without fields if it was never stored."""
        check_document_name(name)
        return Document(*self._core.look(lambda state: state.document(name), fresh=True))

    def change(self, name: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Document:
        """Replace the fields of a document by what `edit` makes of them; durable when it returns. If somebody else was
        faster, `edit` is called again. If it raises an error or returns the same fields, nothing is stored."""
        check_document_name(name)
        self._core.check_writable()
        while True:
            found = self.read(name)
            fields = dict(edit(found.fields))
            if fields == found.fields:
                return found
            action = {"do": "change document", "name": name, "version": found.version, "fields": fields}
            outcome = self._core.submit([action]).result()
            if "no" not in outcome or outcome["no"][0] != "Changed":
                results(outcome)
                return Document(found.version + 1, fields)
