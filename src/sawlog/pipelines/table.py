"""`table`: a topic as a Delta, Iceberg or Parquet table, kept up to date, each record exactly once.

The columns are key, value, partition, offset, timestamp and headers. With `schema`, the fields of JSON values become
columns too; a value that does not fit goes to the quarantine, a table next to this one with the reason, and never stops
the job. The schema is given (DDL, JSON schema or Avro) or inferred from each round's records, which reads them twice.
It may change from run to run as `sawlog.tables.columns.evolved` allows.

```
lake/orders/              the table
lake/orders_quarantine/   records that do not fit; created for the first of them
lake/catalog.db           Iceberg: the catalogue, unless another is given
```

Each commit records the offset of each partition up to which the table contains the log; the next round begins there,
also after a crash (see rounds.py). So there is no checkpoint that could be lost. The store remembers where the table
is: `sawlog.spark.table` and SQL find it by the topic's name. If a topic has several tables, they use the newest one, as
soon as it has caught up with the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from .. import tables
from ..addresses import check_local
from ..clock import Deadline, Stopwatch, now_ms
from ..errors import InvalidConfig
from ..spark import parsing
from ..spark.tables import log_rows, parquet_rows
from ..sql.history import check_same_topic
from ..storage import FileDirectory, checksummed
from ..store.directory.store import DirectoryStore
from ..store.directory.topic import DirectoryTopic
from ..store.table_info import TableInfo
from ..tables import columns as ddl
from ..tables import files
from ..tables.columns import RECORD, check_names, evolved, table_schema, value_fields, value_schema
from ..tables.formats import FORMATS, Mark, TableIdentity, TableSnapshot, check_package
from . import running
from .export import with_times, write_parquet
from .rounds import Frontier, RoundFiles, RoundResult, Rounds
from .running import STATE_DIRECTORY, Advance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INFERRED = "inferred"
#: A document in the table's `_sawlog` directory until the store knows the table.
_NEW = "new"
#: Maximum number of times a round is planned because retention overtook it.
_TRIES = 3
#: The next round is scheduled as if it took this many times as long as the last one.
_MARGIN = 1.5
#: Scheduling slack of a round.
_PAUSE_S = 0.1
_logger = logging.getLogger("sawlog.pipelines")


@dataclass(frozen=True, slots=True)
class TableParams:
    """Parameters of `table`."""

    #: Directory of the store.
    data: str
    topic: str
    #: Directory for tables; this one is created in it with the name of the topic.
    to: str
    format: Literal["delta", "iceberg", "parquet"] = "delta"
    #: Fields of JSON values: 'inferred', DDL, or a file with DDL, JSON schema or Avro (@orders.avsc).
    schema: str | None = None
    #: Partition the table by time: date, or date,hour.
    by: tuple[str, ...] = ()
    #: With `schema`: leave out the column `value`.
    drop_value: bool = False
    #: Continue until stopped, so that every record is in the table within this time.
    freshness_s: float | None = None
    #: Maximum number of records per commit.
    max_records: int = 5_000_000
    #: Size of files in bytes: larger ones are split, smaller ones are merged.
    file_bytes: int = 128 << 20
    #: Merge small files once a partition has this many; 0: never.
    merge_from: int = 8
    #: Keep merged files this long, for readers of older versions.
    keep_s: float = 7 * 86_400.0
    #: Iceberg: another catalogue, by its name in pyiceberg's configuration, or as 'key=value,key=value'.
    catalog: str | None = None
    #: Stop if records were removed before they were in the table.
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class TableReport:
    topic: str
    table: str
    format: str
    #: Rows that this run added to the table, and to the quarantine.
    records: int
    quarantined: int
    rounds: int
    merged_files: int
    new_files: int
    #: Longest time in seconds from a record's arrival to its commit; None if the run was not continuous.
    freshness_s: float | None
    stopped: bool


def check_params(params: TableParams) -> None:
    """Raise for errors that can be detected without Spark."""
    check_local(params.to, "the directory of a table")
    running.check_choice("format", params.format, FORMATS)
    if params.by not in ((), ("date",), ("date", "hour")):
        raise InvalidConfig(f"by must be date, or date,hour, not {','.join(params.by)}")
    if params.drop_value and params.schema is None:
        raise InvalidConfig("without the column value a table needs a schema: nothing of the value would be left")
    if params.catalog is not None and params.format != "iceberg":
        raise InvalidConfig("a catalogue is for the format iceberg")
    running.check_least(params, max_records=1, file_bytes=1, merge_from=0, keep_s=0)
    running.check_interval("freshness_s", params.freshness_s)
    check_package(params.format)
    _given_fields(params)
    running.check_topic(params.data, params.topic)
    running.check_target(Path(info_of(params).location), "a table of this job")


def info_of(params: TableParams) -> TableInfo:
    """Return the location of the table, existing or not."""
    location = str(Path(params.to).absolute() / params.topic)
    name = f"sawlog.{params.topic}" if params.format == "iceberg" else ""
    return TableInfo(params.format, location, catalog=_catalog(params.catalog), name=name)


def _catalog(given: str | None) -> dict[str, str]:
    if not given:
        return {}
    if "=" not in given:
        return {"name": given}
    return {name.strip(): value.strip() for name, _, value in (each.partition("=") for each in given.split(","))}


def _given_fields(params: TableParams) -> pa.Schema | None:
    if params.schema is None or params.schema == INFERRED:
        return None
    fields = value_schema(params.schema)
    check_names(fields.names)
    return fields


def run(spark: SparkSession, params: TableParams, progress: Advance | None = None) -> TableReport:
    """Bring the table up to date, once or until stopped."""
    check_params(params)
    info = info_of(params)
    with (
        DirectoryStore.open(params.data, "r") as store,
        running.exclusive_directory(Path(info.location) / STATE_DIRECTORY) as notes,
        running.one_line_errors(),
    ):
        return _Job(spark, params, notes, store.topic(params.topic), progress).run()


class _Job:
    """One run of `table`."""

    def __init__(
        self,
        spark: SparkSession,
        params: TableParams,
        notes: FileDirectory,
        topic: DirectoryTopic,
        progress: Advance | None,
    ) -> None:
        self._spark, self._params, self._notes, self._progress = spark, params, notes, progress
        self._info = info_of(params)
        self._topic = topic
        self._table = tables.open_table(self._info)
        self._quarantine = tables.open_table(tables.quarantine_of(self._info))
        self._rounds = Rounds(notes, self._table, self._quarantine, TableIdentity(params.topic, topic.id, params.by))
        self._path = str(Path(params.data).absolute())
        self._frontier = self._from({})
        self._rows = self._quarantined = self._count = self._merged = self._new = 0
        self._freshness_s: float | None = None

    def run(self) -> TableReport:
        """Run all rounds."""
        stopped = False
        try:
            self._check(self._table.snapshot())
            self._rounds.recover()
            found = self._check(self._table.snapshot())
            self._check_quarantine(found)
            self._frontier = self._from({} if found is None else found.marks)
            if found is None:
                checksummed.store(self._notes, _NEW, {})
            target = self._frontier.ends()
            while self._frontier.is_behind(target) and self._advance():
                pass
            self._table.clean(self._params.keep_s)
            self._register(self._table.snapshot(), complete=True)
            if self._params.freshness_s is not None:
                self._follow(self._params.freshness_s)
        except KeyboardInterrupt:
            stopped = True
        return TableReport(
            self._params.topic,
            self._info.location,
            self._params.format,
            self._rows,
            self._quarantined,
            self._count,
            self._merged,
            self._new,
            self._freshness_s,
            stopped,
        )

    def _from(self, marks: Mapping[int, Mark]) -> Frontier:
        params = self._params
        return Frontier(self._topic, marks, params.max_records, fail_on_data_loss=params.fail_on_data_loss)

    def _check(self, found: TableSnapshot | None) -> TableSnapshot | None:
        """Check that the table belongs to this topic and is partitioned as requested."""
        if found is not None:
            check_same_topic(found, self._topic)
            if found.by != self._params.by:
                levels = ",".join(found.by) or "nothing"
                raise InvalidConfig(f"{self._info.location} is partitioned by {levels}; give that, or make a new table")
        return found

    def _check_quarantine(self, found: TableSnapshot | None) -> None:
        """Check that the quarantine belongs to this table: otherwise its records would appear twice."""
        bad = self._quarantine.snapshot()
        if bad is None:
            return
        check_same_topic(bad, self._topic)
        if found is None:
            raise InvalidConfig(
                f"{self._quarantine.location} is the quarantine of a table that is gone; remove it as well, or choose "
                "another directory"
            )

    def _register(self, found: TableSnapshot | None, *, complete: bool = False) -> None:
        """Record the table in the store: if the topic has none, or when a new one has caught up with the log."""
        new = complete and self._notes.exists(_NEW)
        if found is None or not (new or self._topic.table is None):
            return
        columns = tuple((field.name, ddl.shown(field.type)) for field in found.schema)
        with DirectoryStore.open(self._path, maintenance_interval_s=None) as store:
            topic = store.topic(self._topic.name)
            check_same_topic(found, topic)
            topic.table = replace(self._info, columns=columns, created_ms=now_ms())
        if new:
            self._notes.remove(_NEW)

    # --- rounds

    def _follow(self, freshness_s: float) -> None:
        """Run rounds at intervals, so that each record is in the table within that time."""
        planned = Stopwatch()
        while True:
            took = Stopwatch()
            before, planned = planned, Stopwatch()
            if self._advance():
                waited = before.elapsed_s
                self._freshness_s = max(waited, self._freshness_s or 0.0)
                if waited > freshness_s:
                    _logger.warning("the table of %r was %.1f s behind the log", self._topic.name, waited)
            due = Deadline(max(freshness_s - took.elapsed_s * _MARGIN, freshness_s / 10), longest_pause_s=_PAUSE_S)
            while due.retry():
                pass

    def _advance(self) -> bool:
        """Run one round; return whether there was something new."""
        for attempt in range(_TRIES):
            marks = self._frontier.next()
            if marks == self._frontier.marks:
                return False
            try:
                result = self._round(marks)
                break
            except Exception:
                if attempt == _TRIES - 1 or not self._frontier.is_overtaken(marks):
                    raise
        self._frontier.advance_to(marks)
        self._rows += result.rows
        self._quarantined += result.quarantined
        self._count += 1
        if self._progress is not None:
            self._progress(result.rows + result.quarantined)
        found = self._table.snapshot()
        self._register(found)
        if found is not None:
            self._merge(found)
        return True

    def _round(self, marks: Mapping[int, Mark]) -> RoundResult:
        found = self._table.snapshot()
        first = {number: self._frontier.begin(number, mark) for number, mark in marks.items()}
        last = {number: mark.end for number, mark in marks.items()}
        rows = log_rows(
            self._spark,
            self._path,
            self._topic.name,
            first,
            last,
            RECORD.names,
            maxPartitionBytes=str(self._params.file_bytes),
            failOnDataLoss=str(self._params.fail_on_data_loss).lower(),
        )
        schema = self._schema(found, rows)
        if found is not None:
            self._widen(found, schema)
        work = self._rounds.begin()
        try:
            self._write(rows, schema, work)
        except Exception:
            self._rounds.drop(work)
            raise
        return self._rounds.finish(work, schema, marks)

    # --- columns

    def _schema(self, found: TableSnapshot | None, rows: DataFrame) -> pa.Schema:
        """Return the columns of the table after this round."""
        before = pa.schema([]) if found is None else value_fields(found.schema)
        asked = _given_fields(self._params)
        if self._params.schema == INFERRED:
            asked = parsing.usable(parsing.inferred(self._spark, rows))
            made = evolved(before, asked, strict=False).schema
        else:
            made = before if asked is None else evolved(before, asked).schema
        with_value = not self._params.drop_value if found is None else "value" in found.schema.names
        known = table_schema(made, with_value=with_value)
        # Keep the table's order: a column that was added before headers stays in its place.
        order = [] if found is None else [name for name in found.schema.names if name in known.names]
        return pa.schema([known.field(name) for name in (*order, *(n for n in known.names if n not in order))])

    def _write(self, rows: DataFrame, schema: pa.Schema, work: RoundFiles) -> None:
        """Write the files of a round: one pass, and a second one if there are records for the quarantine."""
        from pyspark.sql import Observation

        fields = value_fields(schema)
        if not len(fields):
            self._put(rows, schema, work.files)
            return
        counts = Observation()
        parsed = parsing.parsed(rows, fields)
        self._put(parsing.good(parsing.observe_bad_rows(parsed, counts), fields), schema, work.files)
        if counts.get[parsing.BAD]:
            write_parquet(parsing.bad(parsed, fields), work.bad_files)

    def _put(self, rows: DataFrame, schema: pa.Schema, path: Path) -> None:
        by = self._params.by
        chosen = rows.select(*(f"`{name}`" for name in schema.names))
        write_parquet(with_times(chosen, by), path, by)

    def _widen(self, found: TableSnapshot, schema: pa.Schema) -> None:
        """Delta: rewrite the files of a column that becomes wider; the other formats read both types."""
        if self._params.format != "delta" or not evolved(found.schema, schema).widened or not found.data:
            return
        work = self._rounds.begin()
        self._put(parquet_rows(self._spark, found.files, schema), schema, work.files)
        self._new += self._rounds.swap(work, found.data, schema, found.marks)
        self._merged += len(found.data)

    # --- small files

    def _merge(self, found: TableSnapshot) -> None:
        """Merge small files, if there are many."""
        least = self._params.merge_from
        if not least:
            return
        for group in files.groups(found.data, self._params.file_bytes, least=max(least, 2)):
            work = self._rounds.begin()
            divided = group[0].divided  # the same for all: the new file belongs to their directory
            levels = [f"{name}={divided[name]}" for name in found.by if name in divided]
            made = work.files.joinpath(*levels, "merged.parquet")
            files.write_together([each.path for each in group], made, found.schema)
            self._new += self._rounds.swap(work, group, found.schema, found.marks)
            self._merged += len(group)
