"""Plain Parquet files, and a manifest that lists the files of the table.

```
orders/_sawlog/manifest          files, marks, columns; a document with a checksum, replaced atomically
orders/data/<round>/*.parquet    the files
```

A reader reads the manifest, then the files that it lists. Files that a merge replaced are kept for readers of an older
manifest, and removed later (`clean`). Readers that list the directory instead see merged records twice, and files of an
incomplete commit: give them Delta or Iceberg.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from ..clock import now_ms
from ..errors import StorageError
from ..storage import FileDirectory, checksummed
from ..storage.checksummed import MISSING
from . import columns
from .formats import (
    TableCommit,
    TableIdentity,
    TableSnapshot,
    file_from_json,
    file_to_json,
    marks_from_json,
    marks_to_json,
)

STATE_DIRECTORY = "_sawlog"
_MANIFEST = "manifest"


class ManifestTable:
    """A directory of Parquet files with a manifest."""

    def __init__(self, location: Path) -> None:
        self.location = location

    def snapshot(self) -> TableSnapshot | None:
        """Return the files of the current manifest."""
        found = self._load()
        if found is None:
            return None
        return TableSnapshot(
            tuple(file_from_json(each, str(self.location)) for each in found["files"]),
            marks_from_json(found["marks"]),
            columns.parsed(found["columns"]),
            found["topic_id"],
            found["topic"],
            tuple(found["by"]),
            str(found["version"]),
        )

    def commit(self, identity: TableIdentity, change: TableCommit) -> None:
        """Replace the manifest."""
        before: Mapping[str, Any] = self._load() or {"version": 0, "files": [], "retired": []}
        gone = {file_to_json(each, str(self.location))["path"] for each in change.removed}
        now = now_ms()
        fields = {
            "version": before["version"] + 1,
            "topic": identity.topic,
            "topic_id": identity.topic_id,
            "by": list(identity.by),
            "columns": columns.shown_schema(change.schema),
            "marks": marks_to_json(change.marks),
            "files": [
                *(each for each in before["files"] if each["path"] not in gone),
                *(file_to_json(each, str(self.location)) for each in change.added),
            ],
            "retired": [*before["retired"], *([path, now] for path in sorted(gone))],
        }
        self._store(fields)

    def clean(self, keep_s: float) -> int:
        """Remove files that were replaced longer ago than this."""
        found = self._load()
        if found is None:
            return 0
        since = now_ms() - round(keep_s * 1000)
        old = [path for path, when in found["retired"] if when <= since]
        if old:
            for path in old:
                (self.location / path).unlink(missing_ok=True)
            self._store({**found, "retired": [each for each in found["retired"] if each[0] not in set(old)]})
        return len(old)

    def _load(self) -> dict[str, Any] | None:
        try:
            directory = FileDirectory(self.location / STATE_DIRECTORY, create=False)
        except StorageError as error:
            if error.errno in MISSING:
                return None
            raise
        with closing(directory):
            return checksummed.load(directory, _MANIFEST) if directory.exists(_MANIFEST) else None

    def _store(self, fields: dict[str, Any]) -> None:
        with closing(FileDirectory(self.location / STATE_DIRECTORY)) as directory:
            checksummed.store(directory, _MANIFEST, fields)
