"""A topic's table as the job keeps it, without Spark: the job's own rounds and merges; only the files are written here.

python -m tests.sql.keeping DATA LAKE FORMAT STEP     keep it, and be killed at that step
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sawlog import Topic, tables
from sawlog.batch.arrow import schema as record_schema
from sawlog.pipelines import rounds
from sawlog.pipelines.rounds import Rounds
from sawlog.pipelines.running import STATE_DIRECTORY
from sawlog.storage import FileDirectory
from sawlog.store.directory.store import DirectoryStore
from sawlog.store.table_info import TableInfo
from sawlog.tables import files
from sawlog.tables.columns import QUARANTINE, RECORD
from sawlog.tables.formats import Mark, TableIdentity

COLUMNS = ("offset", "timestamp", "key", "value", "headers")


class Keeper:
    """Maintains the table of a topic. Values that are not JSON objects go to the quarantine."""

    def __init__(self, lake: Path, form: str) -> None:
        name = "sawlog.orders" if form == "iceberg" else ""
        self.info = TableInfo(form, str(lake / "orders"), name=name)
        self._table = tables.open_table(self.info)

    @property
    def ends(self) -> Mapping[int, int]:
        """End offsets of the table."""
        found = self._table.snapshot()
        return {} if found is None else found.ends

    @contextmanager
    def _rounds(self, topic: Topic) -> Iterator[Rounds]:
        notes = FileDirectory(Path(self.info.location) / STATE_DIRECTORY)
        try:
            quarantine = tables.open_table(tables.quarantine_of(self.info))
            yield Rounds(notes, self._table, quarantine, TableIdentity(topic.name, topic.id))
        finally:
            notes.close()

    def round(self, topic: Topic, *, until: Mapping[int, int] | None = None, schema: pa.Schema = RECORD) -> None:
        """Commit the records up to the log's end, or fewer, in one commit."""
        with self._rounds(topic) as made:
            made.recover()
            found = self._table.snapshot()
            marks = {} if found is None else dict(found.marks)
            work = made.begin()
            for number in range(topic.partitions):
                log = topic.partition(number)
                end, epoch = log.position()
                end = min(end, (until or {}).get(number, end))
                before = marks.get(number)
                first = log.lowest_offset if before is None else before.end
                rows = pa.Table.from_batches(log.scan_arrow(first, end, columns=COLUMNS), record_schema(COLUMNS))
                rows = rows.append_column("partition", pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows))
                fits = pa.array([value.startswith(b"{") for value in rows.column("value").to_pylist()], pa.bool_())
                _write(rows.filter(fits), work.files / f"{number}.parquet", schema)
                _write(rows.filter(pa.compute.invert(fits)), work.bad_files / f"{number}.parquet", QUARANTINE)
                marks[number] = Mark(first if before is None else before.start, max(end, first), epoch)
            made.finish(work, schema, marks)
        if topic.table is None and self.ends:
            topic.table = self.info

    def merge(self, topic: Topic) -> None:
        """Merge small files into larger ones."""
        found = self._table.snapshot()
        if found is None:
            return
        with self._rounds(topic) as made:
            for group in files.groups(found.data, 1 << 20, least=2):
                work = made.begin()
                files.write_together([each.path for each in group], work.files / "merged.parquet", found.schema)
                made.swap(work, group, found.schema, found.marks)


def _write(rows: pa.Table, path: Path, schema: pa.Schema) -> None:
    if not rows.num_rows:
        return
    if "n" in schema.names:
        rows = rows.append_column(
            "n", pa.array([json.loads(value)["id"] for value in rows.column("value").to_pylist()])
        )
    if "reason" in schema.names:
        rows = rows.append_column("reason", pa.repeat("not valid JSON", rows.num_rows))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.select(schema.names).cast(schema), path)


def main(data: str, lake: str, form: str, step: str) -> None:
    """Run one round and one merge."""

    def reached(at: str) -> None:
        if at == step:
            os.kill(os.getpid(), signal.SIGKILL)

    rounds.reached = reached
    keeper = Keeper(Path(lake), form)
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        keeper.round(store["orders"])
        keeper.merge(store["orders"])


if __name__ == "__main__":
    main(*sys.argv[1:])
