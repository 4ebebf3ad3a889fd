"""Tables of topics: Parquet files in a Delta or an Iceberg table, or with a manifest; read and committed without Spark.

```python
info = store["orders"].table                    # where it is; None if `sawlog pipeline table` has not made one
found = sawlog.tables.snapshot(info)
found.files, found.ends, found.schema           # the table up to these offsets; the log has the rest
```

A snapshot is one commit. Its files may be removed some time after a later commit has replaced them (the formats'
`vacuum`): take a new snapshot for every query.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import InvalidConfig
from .formats import FORMATS, Place, Placed, Table
from .state import DataFile, Mark, Snapshot

__all__ = ["FORMATS", "DataFile", "Mark", "Place", "Placed", "Snapshot", "open_table", "quarantine_of", "snapshot"]

_QUARANTINE = "_quarantine"


def open_table(info: Placed) -> Table:
    """The table that an info describes, whether it exists or not."""
    location = Path(info.location)
    if info.format == "delta":
        from .delta import DeltaTable

        return DeltaTable(location)
    if info.format == "iceberg":
        from .iceberg import IcebergTable

        return IcebergTable(location, info.name, info.catalog)
    if info.format == "parquet":
        from .manifest import ManifestTable

        return ManifestTable(location)
    raise InvalidConfig(f"the format of a table must be one of {', '.join(FORMATS)}, not {info.format!r}")


def snapshot(info: Placed) -> Snapshot:
    """The current commit of a table; `InvalidConfig` if it is gone, or if others have changed how it is read."""
    found = open_table(info).snapshot()
    if found is None:
        raise InvalidConfig(
            f"there is no {info.format} table in {info.location} any more; run `sawlog pipeline table` again"
        )
    return found


def quarantine_of(info: Placed) -> Place:
    """The table with the records whose values do not fit the schema; it exists if there was one."""
    name = info.name + _QUARANTINE if info.name else ""
    return Place(info.format, info.location + _QUARANTINE, info.catalog, name)
