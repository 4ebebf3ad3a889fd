"""`ObjectRegistry`: small named documents of a store on object storage, such as the users of a broker. Each change is a
commit that names the version it replaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..directory.documents import Document, check_document_name
from .session import StoreSession, results


class ObjectRegistry:
    """The documents of one store. Safe for threads and processes."""

    def __init__(self, session: StoreSession) -> None:
        self._session = session

    def read(self, name: str) -> Document:
        """Return the current document; version 0 without fields if it was never stored."""
        check_document_name(name)
        return Document(*self._session.look(lambda state: state.document(name), fresh=True))

    def change(self, name: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Document:
        """Replace the fields of a document by the result of `edit`, durably. `edit` is called again if another process
        changed the document meanwhile. If it raises or returns the same fields, nothing is stored."""
        check_document_name(name)
        self._session.check_writable()
        while True:
            found = self.read(name)
            fields = dict(edit(found.fields))
            if fields == found.fields:
                return found
            action = {"do": "change document", "name": name, "version": found.version, "fields": fields}
            outcome = self._session.submit([action]).result()
            if "no" not in outcome or outcome["no"][0] != "Changed":
                results(outcome)
                return Document(found.version + 1, fields)
