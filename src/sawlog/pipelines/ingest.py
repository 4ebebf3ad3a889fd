"""`ingest`: files into a topic. New files of a directory are taken once each, whatever happens in between.

Text and JSON lines are stored as they are, byte for byte; a key and a time are looked up in a JSON line by name. Rows
of CSV and Parquet become JSON objects, unless `value` names the column to store. Their schema is inferred in the first
run, and kept, so that a file that differs is noticed and not bent: a CSV file whose header or cells do not fit ends the
run with an error.

How far it is lies in the store, in `pipelines/ingest-<topic>-<source>/`. A run that died is gone on with by running it
again: Spark repeats its last micro-batch, and the sink recognises it. Spark takes a file as finished when it sees it:
write it elsewhere and move it in. The lines of a file keep their order within a partition; between files there is none,
except with `files` = 1, which takes one after the other, the oldest first.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import InvalidConfig
from ..storage import FileDirectory
from ..topics import documents
from ..topics.names import quoted
from ..topics.store import Store
from . import running
from .arguments import option, run_main
from .running import CHECKPOINT, Progress

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMATS = ("auto", "text", "json", "csv", "parquet")
_LINES = ("text", "json")
_ENDINGS = {
    ".txt": "text",
    ".log": "text",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
_PACKED = (".gz", ".bz2", ".zst", ".lz4", ".snappy")
_SCHEMA = "schema.json"


@dataclass(frozen=True, slots=True)
class IngestParams:
    """What to take in, and where to."""

    data: str = option("the store's directory")
    topic: str = option("the topic; made if it is missing")
    source: str = option("a directory of files, a pattern (in/*.csv) or one file")
    format: Literal["auto", "text", "json", "csv", "parquet"] = option(
        "text, json (lines), csv or parquet; auto: by the files' endings", "auto"
    )
    key: str | None = option("the column (JSON: the field, also a.b) that is the key", None)
    timestamp: str | None = option("the column that is the time: a time, or milliseconds since 1970", None)
    value: str | None = option("csv, parquet: the column to store; else the row as JSON", None)
    schema: str | None = option("csv, parquet: the schema, as 'id int, name string'; else inferred once", None)
    header: bool = option("csv: the first line has the names", True)
    partitions: int = option("for a topic that is made: how many partitions", 1)
    compression: str | None = option("none, gzip, snappy, lz4 or zstd; else what the topic says", None)
    every_s: float | None = option("look for new files every so many seconds, until stopped; else once", None)
    files: int = option("at most so many files in a micro-batch", 1000)


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What was taken in by this run; a micro-batch that it had to repeat counts, though it was placed once."""

    topic: str
    source: str
    format: str
    records: int
    without_key: int
    batches: int
    stopped: bool


def run(spark: SparkSession, params: IngestParams, progress: Progress | None = None) -> IngestReport:
    """Take in what is new, or go on until stopped."""
    _check(params)
    source = _source(params.source)
    form = params.format if params.format != "auto" else guessed(source)
    _check_columns(params, form)
    with Store.open(params.data, upkeep_interval_s=None) as store:
        store.create_topic(params.topic, params.partitions, exist_ok=True)
        root = Path(store.path)
    with running.alone(place(root, params.topic, source)) as directory:
        with running.explained():
            rows = _records(spark, params, source, form, directory)
            writer = rows.writeStream.format("sawlog").option("path", str(root)).option("topic", params.topic)
            if params.compression is not None:
                writer = writer.option("compression", params.compression)
            writer = writer.option("checkpointLocation", f"{directory.path}/{CHECKPOINT}")
            query = writer.trigger(**running.trigger(params.every_s)).start()
        flow = running.watch(query, progress)
    records, keyless = flow.observed.get("records", 0), flow.observed.get("without_key", 0)
    return IngestReport(params.topic, source, form, records, keyless, flow.batches, flow.stopped)


def place(root: Path, topic: str, source: str) -> Path:
    """Where a job of that topic and source keeps how far it is."""
    return root / "pipelines" / f"ingest-{quoted(topic)}-{hashlib.sha256(source.encode()).hexdigest()[:12]}"


def _check(params: IngestParams) -> None:
    if params.format not in FORMATS:
        raise InvalidConfig(f"format is one of {', '.join(FORMATS)}, not {params.format!r}")
    if params.every_s is not None and params.every_s <= 0:
        raise InvalidConfig(f"every_s is a number of seconds above 0, not {params.every_s}")
    if params.files < 1:
        raise InvalidConfig(f"files is at least 1, not {params.files}")


def _check_columns(params: IngestParams, form: str) -> None:
    if form == "text" and (params.key or params.timestamp):
        raise InvalidConfig("lines of text have no columns: key and timestamp are for json, csv and parquet")
    if form in _LINES and (params.value or params.schema):
        raise InvalidConfig(f"{form} lines are stored as they are: value and schema are for csv and parquet")


def _source(source: str) -> str:
    """The source as Spark and the checkpoint know it; the same from wherever it is called."""
    if "://" in source:
        return source
    return str(Path(source).absolute())


def guessed(source: str) -> str:
    """The format, by the endings of the files."""
    path = Path(source)
    names = [each.name for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path.name]
    shown = [name for name in names if not name.startswith((".", "_"))]
    found = Counter(form for form in map(_by_ending, shown) if form)
    if len(found) != 1:
        what = "nothing tells" if not found else f"there are {' and '.join(sorted(found))}"
        raise InvalidConfig(f"which format has {source}? {what}: give format as one of {', '.join(FORMATS[1:])}")
    return next(iter(found))


def _by_ending(name: str) -> str | None:
    path = Path(name)
    return _ENDINGS.get((path.with_suffix("") if path.suffix in _PACKED else path).suffix)


# --- the rows


def _records(spark: SparkSession, params: IngestParams, source: str, form: str, directory: FileDirectory) -> DataFrame:
    """Columns value, key and timestamp, as the sink takes them."""
    from pyspark.sql import functions as F

    reader = spark.readStream.option("maxFilesPerTrigger", params.files)
    if form in _LINES:
        rows = reader.format("text").option("recursiveFileLookup", "true").load(source)
        made = _from_lines(rows, params) if form == "json" else rows.select("value")
    else:
        shape = _schema(spark, params, source, form, directory)
        rows = _with_options(reader, params, form).schema(shape).format(form).load(source)
        made = _from_columns(rows, params)
    missing = F.count_if(F.col("key").isNull() if params.key is not None else F.lit(False))
    return made.observe("ingest", F.count(F.lit(1)).alias("records"), missing.alias("without_key"))


def _from_lines(rows: DataFrame, params: IngestParams) -> DataFrame:
    from pyspark.sql import functions as F

    columns: list[Column] = [F.col("value")]
    if params.key is not None:
        columns.append(F.get_json_object("value", _json_path(params.key)).alias("key"))
    if params.timestamp is not None:
        text = F.get_json_object("value", _json_path(params.timestamp))
        columns.append(_time_of_text(text).alias("timestamp"))
    return rows.where(F.trim("value") != "").select(*columns)


def _json_path(name: str) -> str:
    return "$" + "".join(f"['{part}']" for part in name.split("."))


def _from_columns(rows: DataFrame, params: IngestParams) -> DataFrame:
    from pyspark.sql import functions as F

    for name in filter(None, (params.key, params.timestamp, params.value)):
        if name not in rows.columns:
            raise InvalidConfig(f"there is no column {name!r} in {params.source}; there are {', '.join(rows.columns)}")
    if params.value is None:
        columns = [F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("value")]
    else:
        columns = [_bytes(rows, params.value).alias("value")]
    if params.key is not None:
        columns.append(_bytes(rows, params.key).alias("key"))
    if params.timestamp is not None:
        columns.append(_time(rows, params.timestamp).alias("timestamp"))
    return rows.select(*columns)


def _kind(rows: DataFrame, name: str) -> str:
    return rows.schema[name].dataType.simpleString()


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(f"`{name.replace('`', '``')}`")


def _bytes(rows: DataFrame, name: str) -> Column:
    return _column(name) if _kind(rows, name) == "binary" else _column(name).cast("string")


def _time(rows: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as F

    kind = _kind(rows, name)
    if kind in ("timestamp", "timestamp_ntz", "date"):
        return _column(name).cast("timestamp")
    if kind in ("int", "bigint", "smallint", "tinyint"):
        return F.timestamp_millis(_column(name).cast("bigint"))
    if kind == "string":
        return _time_of_text(_column(name))
    raise InvalidConfig(f"the column {name!r} is {kind}, which is no time")


def _time_of_text(text: Column) -> Column:
    """Milliseconds since 1970, or an ISO time; null, which is now, if it is neither."""
    from pyspark.sql import functions as F

    return F.coalesce(F.timestamp_millis(text.try_cast("bigint")), text.try_cast("timestamp"))


# --- the schema


def _with_options(reader: Any, params: IngestParams, form: str) -> Any:
    if form != "csv":
        return reader
    strict = {"header": str(params.header).lower(), "enforceSchema": str(not params.header).lower(), "mode": "FAILFAST"}
    return reader.options(**strict).option("recursiveFileLookup", "true")


def _schema(spark: SparkSession, params: IngestParams, source: str, form: str, directory: FileDirectory) -> StructType:
    """The one that is given, or was inferred before, or can be inferred now; kept for the next run."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import StructType

    if params.schema is not None:
        shape = parsed_schema(params.schema)
    elif directory.exists(_SCHEMA):
        return StructType.fromJson(json.loads(documents.load(directory, _SCHEMA)["schema"]))
    else:
        reader = _with_options(spark.read, params, form).option("enforceSchema", "true")
        try:
            shape = reader.option("inferSchema", "true").format(form).load(source).schema
        except AnalysisException as error:
            why = running.failure(error)
            raise InvalidConfig(f"no schema can be inferred from {source}, so give one: {why}") from error
    documents.store(directory, _SCHEMA, {"schema": shape.json()})
    return shape


def parsed_schema(text: str) -> StructType:
    """Columns as DDL."""
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(text)
    except ParseException as error:
        raise InvalidConfig(f"{text!r} is no schema such as 'id int, name string': {running.failure(error)}") from error
    if not isinstance(found, StructType):
        raise InvalidConfig(f"{text!r} is no schema such as 'id int, name string'")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """For `python -m` and `spark-submit`."""
    return run_main(IngestParams, run, arguments, "Files into a topic, each once.")


if __name__ == "__main__":
    raise SystemExit(main())
