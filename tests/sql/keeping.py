"""A topic's table as the job keeps it, made without Spark: rounds of files, the quarantine before the table, marks."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sawlog import Topic, tables
from sawlog.batch.arrow import schema as record_schema
from sawlog.tables import DataFile
from sawlog.tables.columns import QUARANTINE, RECORD
from sawlog.tables.files import described
from sawlog.tables.formats import Change, Identity
from sawlog.tables.state import Mark
from sawlog.topics.tableinfo import TableInfo

COLUMNS = ("offset", "timestamp", "key", "value", "headers")
SCHEMA = record_schema(COLUMNS)


class Keeper:
    """Keeps the table of a topic. Values that are no JSON go to the quarantine."""

    def __init__(self, lake: Path, form: str) -> None:
        name = "sawlog.orders" if form == "iceberg" else ""
        self.info = TableInfo(form, str(lake / "orders"), name=name)

    @property
    def ends(self) -> Mapping[int, int]:
        found = tables.open_table(self.info).snapshot()
        return {} if found is None else found.ends

    def round(self, topic: Topic, *, until: Mapping[int, int] | None = None, schema: pa.Schema = RECORD) -> None:
        """Everything up to the log's end, or less, in one commit."""
        found = tables.open_table(self.info).snapshot()
        marks = {} if found is None else dict(found.marks)
        good: list[DataFile] = []
        bad: list[DataFile] = []
        for number in range(topic.partitions):
            end, epoch = topic.partition(number).position()
            end = min(end, (until or {}).get(number, end))
            before = marks.get(number)
            first = topic.partition(number).lowest_offset if before is None else before.end
            if first < end:
                table = pa.Table.from_batches(topic.partition(number).scan_arrow(first, end, columns=COLUMNS), SCHEMA)
                numbers = pa.repeat(pa.scalar(number, pa.int32()), table.num_rows)
                table = table.append_column("partition", numbers)
                fits = [_fits(value) for value in table.column("value").to_pylist()]
                good += self._written(table.filter(pa.array(fits)), self.info, schema)
                wrong = table.filter(pa.array([not each for each in fits]))
                wrong = wrong.append_column("reason", pa.repeat("not valid JSON", wrong.num_rows))
                bad += self._written(wrong, tables.quarantine_of(self.info), QUARANTINE)
            marks[number] = Mark(first if before is None else before.start, max(end, first), epoch)
        identity = Identity(topic.name, topic.id)
        if bad:
            tables.open_table(tables.quarantine_of(self.info)).commit(identity, Change(QUARANTINE, marks, bad))
        tables.open_table(self.info).commit(identity, Change(schema, marks, good))
        if topic.table is None:
            topic.set_table(self.info)

    @staticmethod
    def _written(rows: pa.Table, info: tables.Placed, schema: pa.Schema) -> list[DataFile]:
        if not rows.num_rows:
            return []
        root = Path(info.location) / "data" / uuid.uuid4().hex
        root.mkdir(parents=True)
        if "n" in schema.names:
            found = [json.loads(value)["id"] for value in rows.column("value").to_pylist()]
            rows = rows.append_column("n", pa.array(found, pa.int64()))
        pq.write_table(rows.select(schema.names).cast(schema), root / "part.parquet")
        return [described(root / "part.parquet", root)]


def _fits(value: bytes) -> bool:
    return value.startswith(b"{")
