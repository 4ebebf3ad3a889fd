"""`DirectoryRegistry`: small versioned documents of a store, such as a broker's users and access rules.

```
registry/<name>.json     version, and the fields of its owner; format: sawlog.storage.checksummed
```

One process at a time changes a document (`registry/LOCK`). Each change increments its version, so a reader can tell
from one number whether its copy is stale. Reading takes no lock.

The directory has mode 0700: documents contain password verifiers.

A damaged document raises an error and is never treated as empty: an empty list of rules would allow what the rules
forbid. A document or directory that is a symbolic link is an error, too. Only a missing file means that
nothing was ever stored.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from ...errors import ReadOnlyLog, StorageError
from ...storage import Directory, checksummed
from ...storage.file import restrict_to_owner
from ...storage.locks import lock_within
from ..base import Document, DocumentRegistry
from ..names import LOCK, REGISTRY, check_document_name

#: Maximum wait for another process that is changing a document.
_PATIENCE_S = 5.0


class DirectoryRegistry(DocumentRegistry):
    """Documents of one store. Safe for threads and processes."""

    def __init__(self, root: Directory, mode: str) -> None:
        self._root = root
        self._mode = mode

    def read(self, name: str) -> Document:
        file = _file(name)
        try:
            directory = self._root.child(REGISTRY)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return Document(0, {})
            raise
        try:
            return _load(directory, file)
        finally:
            directory.close()

    def change(self, name: str, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Document:
        """Replace the fields of a document by `edit(fields)`, under the registry's lock. Durable on return. Nothing is
        stored if `edit` raises or returns the same fields."""
        file = _file(name)
        if self._mode != "w":
            raise ReadOnlyLog(f'the store {self._root.path} was opened with mode="r"')
        with closing(self._root.child(REGISTRY, create=True)) as directory:
            restrict_to_owner(directory)
            lock = lock_within(directory, LOCK, _PATIENCE_S)
            try:
                found = _load(directory, file)
                fields = dict(edit(found.fields))
                if fields == found.fields:
                    return found
                made = Document(found.version + 1, fields)
                checksummed.store(directory, file, {"version": made.version, "fields": fields})
                return made
            finally:
                lock.release()


def _file(name: str) -> str:
    check_document_name(name)
    return f"{name}.json"


def _load(directory: Directory, file: str) -> Document:
    path = f"{directory.path}/{file}"
    try:
        found = checksummed.load(directory, file)
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return Document(0, {})
        raise
    return Document(checksummed.field(found, "version", int, path), checksummed.field(found, "fields", dict, path))
