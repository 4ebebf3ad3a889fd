"""`export`: a topic to Parquet or Delta, once or continuously, each record exactly once, with small files merged.

The columns are key, value, topic, partition, offset, timestamp (and headers); `by` selects the columns that become
directories, including `date` and `hour`, derived from the timestamp in UTC. With `json`, value becomes a struct with a
schema that is given or inferred from the first records; a value that does not parse is null there, and is kept in
`unparsed`.

Progress is stored in the target itself, in `_sawlog/` (readers ignore names that begin with an underscore): to start
again, remove the target. A topic that was deleted and recreated, or rewritten, has different offsets; the job detects
this, and needs another target.

Each micro-batch is stored exactly once, in a Delta table or as plain Parquet files.

**Parquet.** Spark's own sink makes a replayed batch harmless with a list of valid files (`_spark_metadata`), which
other readers do not know and which prevents merging small files. So here the file names contain the batch:

```
out/date=2026-01-31/9f3c01ab-0000000017-00000.parquet    target, batch, number
out/_sawlog/done                                         the last complete batch
out/_sawlog/staging/                                     files being written
out/_sawlog/merge                                        small files being replaced by one
```

A batch is written to staging, moved file by file, then recorded in `done`. After a crash Spark repeats the batch with
the same records: if it is in `done`, nothing happens; if not, the files that were already moved are removed first. So a
reader never misses a record or sees it twice, but it may see only a part of a batch while its files are being moved.
Use Delta for atomic batches.

Small files of one directory are merged into a new file next to them; `merge` lists the files that it replaces, so that
the rest of them can be removed after a crash. A reader that lists the directory at that moment sees those records
twice.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..addresses import check_local
from ..errors import InvalidConfig
from ..spark import parsing
from ..storage import FileDirectory, checksummed
from ..store.directory.store import DirectoryStore
from ..tables.files import SMALL_SHARE, data_files, sync, write_together
from ..tables.formats import check_package
from . import running
from .running import CHECKPOINT, STATE_DIRECTORY, Advance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "delta")
_STATE = "export.json"
#: Number of records from which the schema of values is inferred.
_SAMPLE_RECORDS = 10_000
_BY = ("topic", "partition", "date", "hour")
_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US


@dataclass(frozen=True, slots=True)
class ExportParams:
    """Parameters of `export`."""

    #: Directory of the store.
    data: str
    topic: str
    #: Directory to write to.
    target: str
    format: Literal["parquet", "delta"] = "parquet"
    #: Columns that become directories: topic, partition, date, hour.
    by: tuple[str, ...] = ("date",)
    #: Parse values as JSON.
    json: bool = False
    #: With `json`: the schema, such as 'id int, name string'; inferred once if None.
    schema: str | None = None
    #: Write the headers, too.
    headers: bool = False
    #: Repeat at this interval in seconds until stopped; run once if None.
    every_s: float | None = None
    #: Maximum number of records per micro-batch.
    max_records: int = 500_000
    #: Merge small files.
    compact: bool = True
    #: Merge small files up to this size in bytes.
    file_bytes: int = 128 << 20


@dataclass(frozen=True, slots=True)
class TableExportReport:
    topic: str
    target: str
    format: str
    records: int
    batches: int
    #: Number of small files merged, and of the files they became.
    merged_files: int
    new_files: int
    stopped: bool


def check_params(params: ExportParams) -> None:
    """Raise for errors that can be detected without Spark."""
    running.check_choice("format", params.format, FORMATS)
    if params.schema is not None and not params.json:
        raise InvalidConfig("a schema is for parsing JSON: also give json")
    unknown = [name for name in params.by if name not in _BY]
    if unknown or len(set(params.by)) < len(params.by):
        raise InvalidConfig(f"by must be a selection of {', '.join(_BY)}, not {', '.join(params.by)}")
    running.check_least(params, max_records=1, file_bytes=1)
    running.check_interval("every_s", params.every_s)
    check_local(params.target, "the target of an export")
    running.check_topic(params.data, params.topic)
    running.check_target(Path(params.target).absolute(), "the target of an export")
    if params.format == "delta":
        check_package("delta")


def run(spark: SparkSession, params: ExportParams, progress: Advance | None = None) -> TableExportReport:
    """Write the new records, once or until stopped."""
    check_params(params)
    with DirectoryStore.open(params.data, "r") as store:
        root, topic_id = str(Path(store.path).absolute()), store.topic(params.topic).id
    target = Path(params.target).absolute()
    with running.exclusive_directory(target / STATE_DIRECTORY) as directory:
        with running.one_line_errors():
            state = _state(spark, params, root, topic_id, directory)
            kind = DeltaTarget if params.format == "delta" else ParquetTarget
            sink = kind(directory, state["id"], params.by, params.file_bytes if params.compact else None)
            query = (
                _rows(spark, params, root, state["schema"])
                .writeStream.foreachBatch(sink.take)
                .option("checkpointLocation", f"{directory.path}/{CHECKPOINT}")
                .trigger(**running.trigger(params.every_s))
                .start()
            )
        flow = running.watch(query, progress)
        sink.compact()
    counts = flow.records, flow.batches, sink.merged_files, sink.new_files
    return TableExportReport(params.topic, str(target), params.format, *counts, flow.stopped)


def _state(
    spark: SparkSession, params: ExportParams, root: str, topic_id: str, directory: FileDirectory
) -> dict[str, Any]:
    """Return the decisions of the first run, which later runs must repeat."""
    asked = {
        "topic": params.topic,
        "topic_id": topic_id,
        "format": params.format,
        "by": list(params.by),
        "json": params.json,
        "headers": params.headers,
    }
    if directory.exists(_STATE):
        state = checksummed.load(directory, _STATE)
        _check_same(state, asked, str(Path(directory.path).parent))
        if params.schema is None:
            return state
    else:
        shape = _inferred(spark, params, root) if params.json and params.schema is None else None
        state = {"id": uuid.uuid4().hex, **asked, "schema": shape}
    if params.schema is not None:
        state["schema"] = running.parsed_schema(params.schema).json()
    checksummed.store(directory, _STATE, state)
    return state


def _check_same(state: dict[str, Any], asked: dict[str, Any], target: str) -> None:
    if state["topic"] == asked["topic"] and state["topic_id"] != asked["topic_id"]:
        raise InvalidConfig(
            f"{target} holds an earlier topic {asked['topic']!r}: it was recreated or rewritten since, and its offsets "
            "have changed. Export to a new directory"
        )
    for name, value in asked.items():
        if state[name] != value:
            raise InvalidConfig(
                f"{target} has {name}={state[name]!r}, not {value!r}; use that, or export to a new directory"
            )


def _inferred(spark: SparkSession, params: ExportParams, root: str) -> str:
    rows = spark.read.format("sawlog").option("path", root).option("subscribe", params.topic)
    shape = parsing.inferred(spark, rows.option("columns", "value").load().limit(_SAMPLE_RECORDS))
    if not shape.fields:
        raise InvalidConfig(
            f"no schema can be inferred from {params.topic!r}: it contains no JSON object; give a schema"
        )
    text: str = shape.json()
    return text


def _rows(spark: SparkSession, params: ExportParams, root: str, schema: str | None) -> DataFrame:
    """Return the stream with the columns to write."""
    from pyspark.sql.types import StructType

    names = ["key", "value", "topic", "partition", "offset", "timestamp", *(["headers"] if params.headers else [])]
    rows = (
        spark.readStream.format("sawlog")
        .option("path", root)
        .option("subscribe", params.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", params.max_records)
        .option("columns", ",".join(names))
        .load()
    )
    if schema is not None:
        rows = parsing.as_struct(rows, StructType.fromJson(json.loads(schema)))
    return with_times(rows, params.by)


def write_parquet(rows: DataFrame, path: Path, by: Sequence[str] = ()) -> None:
    """Write rows as Parquet files into a directory, replacing its contents."""
    # Otherwise Spark writes the obsolete INT96.
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = rows.write.partitionBy(*by).option("compression", "zstd").mode("overwrite")
    # No empty file `_SUCCESS`: completeness is recorded elsewhere.
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(str(path))


def with_times(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Add the columns `date` and `hour` of the timestamp, if files are partitioned by them: in UTC, whatever the
    session's time zone, like Iceberg's `day` and `hour`."""
    from pyspark.sql import functions as F

    if "date" in by or "hour" in by:
        rows = rows.withColumn("date", F.expr(f"date_from_unix_date(int({_whole(_DAY_US)}))"))
    if "hour" in by:
        rows = rows.withColumn("hour", F.expr(f"int(pmod({_whole(_HOUR_US)}, 24))"))
    return rows


def _whole(unit_us: int) -> str:
    """Return SQL for the number of whole units from 1970 to the timestamp, also before 1970."""
    return f"(unix_micros(timestamp) - pmod(unix_micros(timestamp), {unit_us})) div {unit_us}"


# --- targets

_DONE, _STAGING, _MERGE = "done", "staging", "merge"
#: A running query merges files once per this many micro-batches.
_COMPACT_EVERY = 32


class ParquetTarget:
    """A directory of Parquet files as the target of `export`. One query writes to it at a time."""

    def __init__(self, notes: FileDirectory, name: str, by: Sequence[str], file_bytes: int | None) -> None:
        self._notes, self._label, self._by = notes, name[:8], tuple(by)
        self._file_bytes = file_bytes
        self._root = Path(notes.path).parent
        self._staging = Path(notes.path) / _STAGING
        self.merged_files = self.new_files = 0
        shutil.rmtree(self._staging, ignore_errors=True)
        self._finish_merge()

    def take(self, rows: DataFrame, batch: int) -> None:
        """Write a micro-batch, unless it is already stored."""
        done = checksummed.load(self._notes, _DONE) if self._notes.exists(_DONE) else {"batch": -1}
        if batch <= checksummed.field(done, "batch", int, _DONE):
            return
        for path in data_files(self._root, f"{self._label}-{batch:010d}-*.parquet"):
            path.unlink()  # moved by an attempt that crashed
        write_parquet(rows, self._staging, self._by)
        touched = {self._move_in(path, batch, number) for number, path in enumerate(data_files(self._staging))}
        for directory in touched:
            sync(directory)
        checksummed.store(self._notes, _DONE, {"batch": batch})
        shutil.rmtree(self._staging)
        if self._file_bytes is not None and batch % _COMPACT_EVERY == _COMPACT_EVERY - 1:
            self.compact()

    def _move_in(self, path: Path, batch: int, number: int) -> Path:
        directory = self._root / path.parent.relative_to(self._staging)
        if not directory.is_dir():
            directory.mkdir(parents=True)
            for parent in [directory.parent, *directory.parent.parents]:
                sync(parent)
                if parent == self._root:
                    break
        sync(path)
        path.rename(directory / f"{self._label}-{batch:010d}-{number:05d}.parquet")
        return directory

    # --- small files

    def compact(self) -> None:
        """Merge small files of each directory."""
        if self._file_bytes is None:
            return
        for directory in sorted({path.parent for path in data_files(self._root, f"{self._label}-*.parquet")}):
            for group in self._groups(directory, self._file_bytes):
                self._merge(directory, group)

    def _groups(self, directory: Path, most: int) -> Iterator[list[Path]]:
        """Yield groups of small files, in the order of their records, each enough for a full file."""
        group: list[Path] = []
        size_bytes = 0
        for path in sorted(directory.glob(f"{self._label}-*.parquet")):
            size = path.stat().st_size
            if size * SMALL_SHARE >= most:
                continue
            if group and (size_bytes + size > most or not _same_shape(group[0], path)):
                if len(group) > 1:
                    yield group
                group, size_bytes = [], 0
            group.append(path)
            size_bytes += size
        if len(group) > 1:
            yield group

    def _merge(self, directory: Path, group: list[Path]) -> None:
        self._staging.mkdir(exist_ok=True)
        made = self._staging / "merged.parquet"
        write_together(group, made)
        sync(made)
        last = group[-1].name.split("-")[1]
        name = f"{self._label}-{last}-merged-{uuid.uuid4().hex[:8]}.parquet"
        where = str(directory.relative_to(self._root))
        checksummed.store(
            self._notes, _MERGE, {"directory": where, "made": name, "replaced": [path.name for path in group]}
        )
        made.rename(directory / name)
        sync(directory)
        self._finish_merge()
        self.merged_files += len(group)
        self.new_files += 1

    def _finish_merge(self) -> None:
        """Remove the files that a merged file replaces, if it exists."""
        if not self._notes.exists(_MERGE):
            return
        merge = checksummed.load(self._notes, _MERGE)
        directory = self._root / merge["directory"]
        if (directory / merge["made"]).exists():
            for name in merge["replaced"]:
                (directory / name).unlink(missing_ok=True)
            sync(directory)
        self._notes.remove(_MERGE)
        self._notes.sync()


def _same_shape(one: Path, other: Path) -> bool:
    import pyarrow.parquet as pq

    return bool(pq.read_schema(one).remove_metadata().equals(pq.read_schema(other).remove_metadata()))


class DeltaTarget:
    """A Delta table as the target of `export`, through the `deltalake` package: no jar, and no Spark to read it. One
    query writes to it at a time.

    Delta's log records the last batch of every application in the same commit that adds the batch's files (`txn`), so a
    replayed batch is recognised, and a reader sees a batch completely or not at all. A micro-batch passes through the
    driver's memory; `max_records` limits it. Files that `compact` has merged remain for readers of older versions until
    the table is vacuumed.
    """

    def __init__(self, notes: FileDirectory, name: str, by: Sequence[str], file_bytes: int | None) -> None:
        check_package("delta")
        import deltalake

        self._deltalake = deltalake
        self._root, self._name, self._by = str(Path(notes.path).parent), f"sawlog-{name}", list(by)
        self._file_bytes = file_bytes
        self.merged_files = self.new_files = 0

    def take(self, rows: DataFrame, batch: int) -> None:
        """Commit a micro-batch, unless it is already committed."""
        delta = self._deltalake
        if self._exists():
            last = delta.DeltaTable(self._root).transaction_version(self._name)
            if last is not None and last >= batch:
                return
        noted = delta.CommitProperties(app_transactions=[delta.Transaction(self._name, batch)])
        delta.write_deltalake(
            self._root, rows.toArrow(), mode="append", partition_by=self._by or None, commit_properties=noted
        )

    def _exists(self) -> bool:
        return bool(self._deltalake.DeltaTable.is_deltatable(self._root))

    def compact(self) -> None:
        """Merge small files."""
        if self._file_bytes is None or not self._exists():
            return
        done = self._deltalake.DeltaTable(self._root).optimize.compact(target_size=self._file_bytes)
        self.merged_files += done["numFilesRemoved"]
        self.new_files += done["numFilesAdded"]
