"""`export`: a topic to Parquet or Delta, once or continuously, each record exactly once, with small files merged.

The columns are key, value, topic, partition, offset, timestamp (and headers); `by` selects the columns that become
directories, including `date` and `hour`, derived from the timestamp in UTC. With `json`, value becomes a struct with a
schema that is given or inferred from the first records; a value that does not parse is null there, and is kept in
`unparsed`.

Progress is stored in the target itself, in `_sawlog/` (readers ignore names that begin with an underscore): to start
again, remove the target. A topic that was deleted and recreated, or rewritten, has different offsets; the job detects
this, and needs another target.

See targets.py for how a micro-batch becomes visible.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..addresses import check_local
from ..errors import InvalidConfig
from ..spark import parsing
from ..storage import FileDirectory, checksummed
from ..store.directory.store import DirectoryStore
from ..tables.formats import check_package
from . import running
from .ingest import parsed_schema
from .running import CHECKPOINT, STATE_DIRECTORY, Advance
from .targets import DeltaTarget, ParquetTarget, with_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "delta")
_STATE = "export.json"
#: Number of records from which the schema of values is inferred.
_SAMPLE_RECORDS = 10_000
_BY = ("topic", "partition", "date", "hour")


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
            sink = _sink(params, directory, state["id"])
            query = (
                _rows(spark, params, root, state["schema"])
                .writeStream.foreachBatch(sink.take)
                .option("checkpointLocation", f"{directory.path}/{CHECKPOINT}")
                .trigger(**running.trigger(params.every_s))
                .start()
            )
        flow = running.watch(query, progress)
        if params.compact:
            sink.compact()
    counts = flow.records, flow.batches, sink.merged_files, sink.new_files
    return TableExportReport(params.topic, str(target), params.format, *counts, flow.stopped)


def _sink(params: ExportParams, notes: FileDirectory, name: str) -> DeltaTarget | ParquetTarget:
    if params.format == "delta":
        return DeltaTarget(Path(notes.path).parent, name, params.by, params.file_bytes)
    return ParquetTarget(notes, name, params.by, params.file_bytes if params.compact else None)


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
        state["schema"] = parsed_schema(params.schema).json()
    else:
        shape = (
            None
            if not params.json
            else parsed_schema(params.schema).json()
            if params.schema
            else _inferred(spark, params, root)
        )
        state = {"id": uuid.uuid4().hex, **asked, "schema": shape}
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
