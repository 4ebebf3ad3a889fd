"""Small named documents of a store that outlive processes and are changed by several of them: the users of a broker and
what they may do.

```
registry/<name>.json     version, and the fields that its owner stores: see documents.py for the format
```

Each document has one writer at a time (`registry/LOCK`), and a version that grows with every change: who has read
version 7 sees with one look whether there is another. Reading takes no lock.

The directory is for its owner alone (mode 0700): documents contain what passwords are checked against.

A damaged document is an error and never an empty one: an empty list of rules would allow what they forbid. So is a
symbolic link in its place, or in the place of the directory: only what does not exist was never stored.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidConfig, ReadOnlyLog, StorageError
from ...storage import Directory, checksummed
from ...storage.file import keep_private
from ...storage.locks import lock_within
from ..names import LOCK, REGISTRY

#: How long to wait for a process that changes a document.
_PATIENCE_S = 5.0
_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True)
class Document:
    """What a document contains, in one version of it."""

    #: 0 if it was never stored.
    version: int
    fields: Mapping[str, Any]


class Registry:
    """The documents of one store. Safe for threads and processes."""

    def __init__(self, root: Directory, mode: str) -> None:
        self._root = root
        self._mode = mode

    def read(self, name: str) -> Document:
        """A document as it is now; version 0 without fields if it was never stored."""
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
        """Replace the fields of a document by what `edit` makes of them; durable when it returns. Nobody else changes
        it meanwhile. If `edit` raises an error or returns the same fields, nothing is stored."""
        file = _file(name)
        if self._mode != "w":
            raise ReadOnlyLog(f'the store {self._root.path} was opened with mode="r"')
        directory = self._root.child(REGISTRY, create=True)
        try:
            keep_private(directory)
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
        finally:
            directory.close()


def check_document_name(name: str) -> None:
    """Raise `InvalidConfig` if a document cannot have that name."""
    if not _NAME.fullmatch(name):
        raise InvalidConfig(f"{name!r} is not a valid name of a document: use a to z, 0 to 9 and -")


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
