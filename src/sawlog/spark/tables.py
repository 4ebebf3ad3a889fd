"""A topic's table and the log's tail as one DataFrame.

```
rows below the table's ends     its Parquet files, through Spark's own vectorised reader
rows from there on              the log, through format("sawlog"), up to its end at this moment
```

Files and ends come from one commit of the table, and log records never change: so no record is lost or doubled,
whatever the table job, retention and compaction do meanwhile. The DataFrame is a snapshot. Its input may be removed
later (files by the table's vacuum, the tail by retention): then reading fails; it never returns less.

Filters of the DataFrame are pushed into the Parquet files. Spark gives a Python source no filters that it could rely
on, so filters do not shorten the reading of the tail; `partitions`, `start`, `end`, `since` and `until` shorten both.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from .. import tables
from ..addresses import is_address
from ..errors import DataLoss, InvalidConfig
from ..sql.history import check_same_log, check_same_topic
from ..store.base import Topic
from ..store.table_info import TableInfo
from ..tables.columns import RECORD, table_schema, value_fields
from ..tables.formats import DataFile, TableSnapshot
from . import parsing
from .options import StoreLocation
from .subscription import open_store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Maximum number of new snapshots taken because the log begins after the table's end: the table job has moved on, and
#: retention after it.
_RETRIES = 10


@dataclass(frozen=True, slots=True)
class _Selection:
    """The requested part of a topic."""

    partitions: frozenset[int] | None
    start: Mapping[int, int]
    end: Mapping[int, int]
    since_us: int | None
    until_us: int | None

    def has(self, file: DataFile) -> bool:
        """Return whether a file may contain requested rows."""
        if file.partitions is not None and self.partitions is not None:
            numbers = range(file.partitions.first, file.partitions.last + 1)
            if not self.partitions.intersection(numbers):
                return False
        number = file.partition
        if number is not None and file.offsets is not None:
            if file.offsets.last < self.start.get(number, 0):
                return False
            if number in self.end and file.offsets.first >= self.end[number]:
                return False
        times = file.times_us
        if times is not None and self.since_us is not None and times.last < self.since_us:
            return False
        return not (times is not None and self.until_us is not None and times.first >= self.until_us)

    def condition(self) -> Column | None:
        """The condition for the requested rows; None for all."""
        from pyspark.sql import functions as F

        found: list[Column] = []
        if self.partitions is not None:
            found.append(F.col("partition").isin(sorted(self.partitions)))
        for number, offset in self.start.items():
            found.append((F.col("partition") != number) | (F.col("offset") >= offset))
        for number, offset in self.end.items():
            found.append((F.col("partition") != number) | (F.col("offset") < offset))
        for moment, is_start in ((self.since_us, True), (self.until_us, False)):
            if moment is not None:
                limit = F.timestamp_micros(F.lit(moment))
                found.append(F.col("timestamp") >= limit if is_start else F.col("timestamp") < limit)
        return reduce(lambda one, other: one & other, found) if found else None


def table(
    spark: SparkSession,
    path: str,
    topic: str,
    *,
    partitions: Sequence[int] | None = None,
    start: Mapping[int, int] | None = None,
    end: Mapping[int, int] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Return a topic's table and the log's tail as one DataFrame, with the table's columns or some of them.

    `start` and `end` are offsets by partition, `since` and `until` times; ends are exclusive. Without a table, the
    DataFrame is the log alone. `columns` restricts the tail as well: it is read without the others.
    """
    wanted = _Selection(
        None if partitions is None else frozenset(partitions),
        dict(start or {}),
        dict(end or {}),
        _microseconds(since),
        _microseconds(until),
    )
    where = path if is_address(path) else str(Path(path).absolute())  # Spark's workers run in another directory
    found, begin, last = _planned(where, topic, wanted)
    schema = table_schema(None) if found is None else found.schema
    parts = [] if found is None else _history(spark, found, wanted)
    condition = wanted.condition()
    needed = _chosen(schema, columns, () if condition is None else ("partition", "offset", "timestamp"))
    parts = [part.select(*_quoted(needed.names)) for part in parts]
    parts.append(_tail(spark, where, topic, needed, wanted, begin, last, value_fields(schema)))
    made = reduce(lambda one, other: one.unionByName(other), parts)
    if condition is not None:
        made = made.where(condition)
    return made if columns is None else made.select(*_quoted(columns))


def _chosen(schema: pa.Schema, columns: Sequence[str] | None, needed: Sequence[str]) -> pa.Schema:
    """Select the columns to read."""
    if columns is None:
        return schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown or not columns:
        said = f"there is no column {unknown[0]!r}" if unknown else "no column was asked for"
        raise InvalidConfig(f"{said}; the columns are {', '.join(schema.names)}")
    return pa.schema([field for field in schema if field.name in {*columns, *needed}])


def _quoted(names: Sequence[str]) -> list[str]:
    return ["`" + name.replace("`", "``") + "`" for name in names]


def quarantined(spark: SparkSession, path: str, topic: str) -> DataFrame:
    """Return the records that are not in the table because their values do not fit its schema, and why."""
    from ..tables.columns import QUARANTINE

    with open_store(StoreLocation(str(path))) as store:
        info = _info(store.topic(topic))
    found = tables.open_table(tables.quarantine_of(info)).snapshot()
    if found is None:
        return spark.createDataFrame([], parsing.spark_schema(QUARANTINE))
    return parquet_rows(spark, found.files, found.schema)


def _info(topic: Topic) -> TableInfo:
    found = topic.table
    if found is None:
        raise InvalidConfig(
            f"the topic {topic.name!r} has no table; `sawlog pipeline table {topic.name} --to LAKE` makes one"
        )
    return found


def _microseconds(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise InvalidConfig(f"the time {moment} has no time zone: give one, such as datetime(…, tzinfo=UTC)")
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)


# --- planning


def _planned(path: str, topic: str, wanted: _Selection) -> tuple[TableSnapshot | None, dict[int, int], dict[int, int]]:
    """Return the table, and the start and end of the tail. Looked up in this order, the log holds everything after the
    table."""
    with open_store(StoreLocation(path)) as store:
        found = store.topic(topic)
        for _ in range(_RETRIES):
            info = found.table
            snapshot = None if info is None else tables.snapshot(info)
            if snapshot is not None:
                check_same_topic(snapshot, found)
            begin, gap = _begin(found, snapshot)
            if gap is None:
                ends = {number: found.partition(number).position()[0] for number in begin}
                if wanted.since_us is not None:  # older records are not read
                    early = {number: found.partition(number).offset_at(wanted.since_us // 1000) for number in begin}
                    begin = {number: max(offset, early[number]) for number, offset in begin.items()}
                return snapshot, begin, {number: max(ends[number], begin[number]) for number in begin}
    raise DataLoss(f"{gap} are neither in the table nor in the log any more: retention was faster than the table's job")


def _begin(topic: Topic, snapshot: TableSnapshot | None) -> tuple[dict[int, int], str | None]:
    """Return the start of the tail in every partition, and the records missing between the table and the log."""
    begin: dict[int, int] = {}
    gap: str | None = None
    for number in range(topic.partitions):
        log = topic.partition(number)
        mark = None if snapshot is None else snapshot.marks.get(number)
        lowest = log.lowest_offset
        begin[number] = lowest if mark is None else mark.end
        if mark is not None:
            check_same_log(topic, number, mark)
            if lowest > mark.end:
                gap = f"records {mark.end} to {lowest - 1} of partition {number} of {topic.name!r}"
    return begin, gap


# --- reading


def _history(spark: SparkSession, found: TableSnapshot, wanted: _Selection) -> list[DataFrame]:
    """Read the table's files. Files known to be below the ends need no condition."""
    from pyspark.sql import functions as F

    files = [each for each in found.data if wanted.has(each)]
    within = [each.path for each in files if each.is_within(found.ends)]
    others = [each.path for each in files if not each.is_within(found.ends)]
    parts = [parquet_rows(spark, within, found.schema)] if within else []
    if others:
        below = [(F.col("partition") == number) & (F.col("offset") < end) for number, end in found.ends.items()]
        either = reduce(lambda one, other: one | other, below, F.lit(False))
        parts.append(parquet_rows(spark, others, found.schema).where(either))
    return parts


def parquet_rows(spark: SparkSession, files: Sequence[str], schema: pa.Schema) -> DataFrame:
    """Read Parquet files with these columns; a column that a file lacks is null."""
    shape = parsing.spark_schema(schema)
    if not files:
        return spark.createDataFrame([], shape)
    return spark.read.schema(shape).parquet(*(escape_glob(path) for path in files))


def escape_glob(path: str) -> str:
    """Escape the glob characters of a path."""
    return "".join(f"\\{each}" if each in "\\[]{}*?" else each for each in path)


def _tail(
    spark: SparkSession,
    path: str,
    topic: str,
    schema: pa.Schema,
    wanted: _Selection,
    begin: Mapping[int, int],
    last: Mapping[int, int],
    fields: pa.Schema,
) -> DataFrame:
    """Read the log from the table's ends on, with columns of the table, whose values have these fields."""
    first = {
        number: min(max(offset, wanted.start.get(number, 0)), last[number])
        for number, offset in begin.items()
        if wanted.partitions is None or number in wanted.partitions
    }
    to = {number: max(min(last[number], wanted.end.get(number, last[number])), first[number]) for number in first}
    record = [name for name in RECORD.names if name in schema.names or (name == "value" and len(fields))]
    if not any(to[number] > first[number] for number in first):
        return spark.createDataFrame([], parsing.spark_schema(schema))
    rows = log_rows(spark, path, topic, first, to, record)
    if len(fields):
        rows = parsing.good(parsing.observe_bad_rows(parsing.parsed(rows, fields), f"sawlog-{uuid.uuid4()}"), fields)
    return rows.select(*_quoted(schema.names))


def log_rows(
    spark: SparkSession,
    path: str,
    topic: str,
    first: Mapping[int, int],
    last: Mapping[int, int],
    columns: Sequence[str],
    **options: str,
) -> DataFrame:
    """Read the records of a topic between offsets, in the given partitions only."""
    reader = (
        spark.read.format("sawlog")
        .option("path", path)
        .option("assign", json.dumps({topic: sorted(first)}))
        .option("startingOffsets", json.dumps({topic: {str(number): first[number] for number in sorted(first)}}))
        .option("endingOffsets", json.dumps({topic: {str(number): last[number] for number in sorted(first)}}))
        .option("columns", ",".join(columns))
    )
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()
