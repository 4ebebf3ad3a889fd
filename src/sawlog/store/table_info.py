"""`TableInfo`: where a topic's table is, so that readers find it by the topic's name alone.

```
topics/<name>/table.json     format, location, columns, created_ms, catalog, name: see documents.py for the format
```

The file is in the directory of the topic that the table was made of. So it goes when the topic is deleted, recreated or
rewritten: the table of the old topic has other offsets than the new topic's log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import StorageError
from ..storage import Directory, checksummed
from ..storage.checksummed import MISSING

TABLE = "table.json"


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Where a table is, and what it looked like when it was created."""

    #: delta, iceberg or parquet.
    format: str
    #: Its directory, as an absolute path.
    location: str
    #: The names and the types of its columns when it was created; what it has now is in the table itself.
    columns: tuple[tuple[str, str], ...] = ()
    created_ms: int = 0
    #: Iceberg: the properties of its catalogue; without any, it is `catalog.db` beside the table's directory.
    catalog: Mapping[str, str] = field(default_factory=dict)
    #: Iceberg: its name in the catalogue, such as sawlog.orders.
    name: str = ""

    @classmethod
    def load(cls, directory: Directory) -> TableInfo | None:
        """Read it; None if the topic has no table."""
        path = f"{directory.path}/{TABLE}"
        try:
            fields = checksummed.load(directory, TABLE)
        except StorageError as error:
            if error.errno in MISSING:
                return None
            raise
        columns = checksummed.field(fields, "columns", dict, path)
        return cls(
            checksummed.field(fields, "format", str, path),
            checksummed.field(fields, "location", str, path),
            tuple((str(name), str(kind)) for name, kind in columns.items()),
            checksummed.field(fields, "created_ms", int, path),
            checksummed.field(fields, "catalog", dict, path),
            checksummed.field(fields, "name", str, path),
        )

    def store(self, directory: Directory) -> None:
        """Replace table.json, durably."""
        fields = {
            "format": self.format,
            "location": self.location,
            "columns": dict(self.columns),
            "created_ms": self.created_ms,
            "catalog": dict(self.catalog),
            "name": self.name,
        }
        checksummed.store(directory, TABLE, fields)
