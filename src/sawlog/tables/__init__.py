"""Tables of topics: Parquet files in a Delta or an Iceberg table, or with a manifest; read and committed without Spark.

```python
info = store["orders"].table                    # its location; None before the first `sawlog pipeline table`
found = sawlog.tables.snapshot(info)
found.files, found.ends, found.schema           # the table up to these offsets; the log has the rest
```

A snapshot is one commit. Its files may be removed some time after a later commit replaced them (the formats' `vacuum`):
take a new snapshot for every query.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import InvalidConfig
from ..store.table_info import TableInfo
from .formats import FORMATS, DataFile, Mark, Table, TableSnapshot

__all__ = ["FORMATS", "DataFile", "Mark", "TableSnapshot", "open_table", "quarantine_of", "snapshot"]

_QUARANTINE = "_quarantine"


def open_table(info: TableInfo) -> Table:
    """Return the table at a location, whether it exists or not."""
    location = Path(info.location)
    if info.format == "delta":
        from .delta import DeltaTable

        return DeltaTable(location)
    if info.format == "iceberg":
        from .iceberg import IcebergTable

        return IcebergTable(location, info.name, info.catalog)
    if info.format == "parquet":
        from .files import ManifestTable

        return ManifestTable(location)
    raise InvalidConfig(f"the format of a table must be one of {', '.join(FORMATS)}, not {info.format!r}")


def snapshot(info: TableInfo) -> TableSnapshot:
    """Return the current commit of a table. Raises `InvalidConfig` if it is gone, or if another program changed how it
    must be read."""
    found = open_table(info).snapshot()
    if found is None:
        raise InvalidConfig(
            f"there is no {info.format} table in {info.location} any more; run `sawlog pipeline table` again"
        )
    return found


def quarantine_of(info: TableInfo) -> TableInfo:
    """Return the location of the quarantine: the table of records whose values do not fit the schema. It may not
    exist."""
    name = info.name + _QUARANTINE if info.name else ""
    return TableInfo(info.format, info.location + _QUARANTINE, catalog=info.catalog, name=name)
