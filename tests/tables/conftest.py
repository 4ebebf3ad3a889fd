"""Tables without Spark: files as pyarrow writes them, committed, read back by each format's own package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sawlog import tables
from sawlog.store.table_info import TableInfo
from sawlog.tables import FORMATS, DataFile
from sawlog.tables.columns import RECORD
from sawlog.tables.files import described
from sawlog.tables.formats import Mark, Table, TableCommit, TableIdentity

IDENTITY = TableIdentity("orders", "id-1")
START = datetime(2026, 1, 1, tzinfo=UTC)


class Lake:
    """A table of one format in a directory."""

    def __init__(self, root: Path, form: str) -> None:
        self.info = TableInfo(form, str(root / "orders"), name="sawlog.orders" if form == "iceberg" else "")
        self.count = 0

    @property
    def table(self) -> Table:
        """The table, opened again on each access."""
        return tables.open_table(self.info)

    def write(
        self, rows: Iterable[tuple[int, int]], schema: pa.Schema = RECORD, *, by: Sequence[str] = (), **more: Any
    ) -> DataFile:
        """Write a file with these partitions and offsets; `more` are values of other columns."""
        self.count += 1
        root = Path(self.info.location) / "data" / str(self.count)
        made = [_row(partition, offset) | more for partition, offset in rows]
        day = f"date={made[0]['timestamp']:%Y-%m-%d}" if by else ""
        path = root / day / "part.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(made, schema), path)
        return described(path, root, by)

    def commit(self, *files: DataFile, ends: dict[int, int], schema: pa.Schema = RECORD, **more: Any) -> None:
        """Commit files, and record that the table contains the log up to `ends`."""
        marks = {number: Mark(0, end, 3) for number, end in ends.items()}
        identity = more.pop("identity", IDENTITY)
        self.table.commit(identity, TableCommit(schema, marks, files, **more))

    def read(self) -> list[dict[str, Any]]:
        """Read with the format's own package, or the Parquet files in the manifest."""
        if self.info.format == "delta":
            from deltalake import DeltaTable

            return list(DeltaTable(self.info.location).to_pyarrow_table().to_pylist())
        if self.info.format == "iceberg":
            from pyiceberg.catalog.sql import SqlCatalog

            lake = Path(self.info.location).parent
            catalog = SqlCatalog("sawlog", uri=f"sqlite:///{lake / 'catalog.db'}", warehouse=lake.as_uri())
            try:
                return list(catalog.load_table("sawlog.orders").scan().to_arrow().to_pylist())
            finally:
                catalog.close()
        found = tables.snapshot(self.info)
        read = [pq.read_table(path, partitioning=None) for path in found.files]
        return [row for table in read for row in table.to_pylist()]


def _row(partition: int, offset: int) -> dict[str, Any]:
    return {
        "key": b"k",
        "value": b"v%d" % offset,
        "partition": partition,
        "offset": offset,
        "timestamp": START + timedelta(hours=offset),
        "headers": [{"key": "h", "value": b"1"}],
    }


def places(rows: Iterable[dict[str, Any]]) -> Counter[tuple[int, int]]:
    return Counter((row["partition"], row["offset"]) for row in rows)


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """Location of a table, existing or not, in each of the formats."""
    return Lake(tmp_path / "lake", request.param)
