"""`TableInfo`: the location of a topic's table, so that readers find it by the topic's name.

```
topics/<name>/table.json     format, location, columns, created_ms, catalog, name; format: sawlog.storage.checksummed
```

The file is in the directory of the topic that the table was made from. It disappears when the topic is deleted,
recreated or rewritten, because the offsets in the table are those of the old topic.
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
    """Location of a table, and its columns when it was created."""

    #: delta, iceberg or parquet.
    format: str
    #: Its directory, as an absolute path.
    location: str
    #: Names and types of its columns at creation; the table itself has the current ones.
    columns: tuple[tuple[str, str], ...] = ()
    created_ms: int = 0
    #: Iceberg: properties of the catalogue; without any, it is `catalog.db` next to the table's directory.
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
