"""`ingest`: files into a topic. Each new file in a directory is ingested once, even across failures and restarts.

Text and JSON lines are stored unchanged, byte for byte; key and timestamp are looked up in a JSON line by name. Rows of
CSV and Parquet become JSON objects, unless `value` selects the column to store. The schema is inferred in the first run
and kept, so that a file that differs is detected and not converted: a CSV file whose header or cells do not fit ends
the run with an error that names file, row and reason. A key is the text of its cell: `01234` stays `01234`. The same
holds for every other cell that a number could not reproduce.

Progress is kept in the store, in `pipelines/ingest-<topic>-<source>/`. To resume after a crash, run the job again:
Spark repeats its last micro-batch, and the sink recognises the transactions already stored. Spark assumes that a file
is complete when it sees it: write it elsewhere and move it in.

New files found together are ingested in the order of their paths (`a10` before `a2`), `files` of them per transaction.
Within a partition, and so within a key, records keep the order of the files and of their lines: the store places the
output of the tasks one after the other, so each task gets files, or parts of one, that are consecutive by name.

```
text, json   each line, unchanged; key and timestamp are looked up in the JSON
csv          rows read by csvfile.py; cells become columns according to the schema, and the row a JSON object
parquet      rows as Spark reads them; each becomes a JSON object
```
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa  # at module level: Spark inspects the annotations of the functions it is given

from ..batch.compression import CODECS
from ..errors import InvalidConfig
from ..spark.tables import escape_glob
from ..storage import FileDirectory, checksummed
from ..store.directory.store import DirectoryStore
from ..store.names import check_topic_name, quoted
from . import running
from .csvfile import CsvFile, kinds_of, looks_like, widened
from .running import CHECKPOINT, Advance

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

Form = Literal["auto", "text", "json", "csv", "parquet"]
FORMATS = get_args(Form)
_ENDINGS: dict[str, Form] = {
    ".txt": "text",
    ".log": "text",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
_PACKED = (".gz", ".bz2", ".zst", ".lz4", ".snappy")
_LINES = ("text", "json")
#: CSV rows are passed to Spark in chunks of this many rows or characters.
_ROWS, _CHARACTERS = 4096, 1 << 20
_TASKS_PER_CORE = 4
#: Spark's JSON names of inferred types; a column without any value is text.
_JSON_NAMES = {"boolean": "boolean", "bigint": "long", "double": "double"}
_CELLS = pa.schema([("place", pa.string()), ("cells", pa.list_(pa.string()))])
_KINDS = pa.schema([("kinds", pa.list_(pa.string()))])
_SCHEMA = "schema.json"
#: Document with the number of files per transaction of the current micro-batch.
_BATCH = "batch.json"
_NUMBER_BITS = 20
#: Spark's columns for a file whose content is not requested.
_BINARY = "path string, modificationTime timestamp, length long, content binary"


@dataclass(frozen=True, slots=True)
class IngestParams:
    """Parameters of `ingest`."""

    #: Directory of the store.
    data: str
    #: The topic; created if it is missing.
    topic: str
    #: A directory of files, a pattern (in/*.csv) or one file.
    source: str
    #: `text` and `json` are read line by line; `auto` decides by suffix.
    format: Form = "auto"
    #: Column with the key (JSON: the field, also a.b).
    key: str | None = None
    #: Column with the timestamp: a time, or milliseconds since 1970.
    timestamp: str | None = None
    #: CSV, Parquet: the column to store; the row as JSON if None.
    value: str | None = None
    #: CSV, Parquet: the schema, such as 'id int, name string'; inferred once if None.
    schema: str | None = None
    #: CSV: the first line is a header.
    header: bool = True
    #: Number of partitions, if the topic is created.
    partitions: int = 1
    #: One of Kafka's codecs or `none`; the topic's setting if None.
    compression: str | None = None
    #: Look for new files at this interval in seconds until stopped; run once if None.
    every_s: float | None = None
    #: Maximum number of files per transaction.
    files: int = 1000


@dataclass(frozen=True, slots=True)
class IngestReport:
    """Result of a run. A repeated micro-batch is counted, although it is stored once."""

    topic: str
    source: str
    format: str
    records: int
    without_key: int
    batches: int
    stopped: bool


def check_params(params: IngestParams) -> None:
    """Raise for errors that can be detected without Spark."""
    running.check_choice("format", params.format, FORMATS)
    running.check_interval("every_s", params.every_s)
    running.check_least(params, files=1)
    if params.compression is not None:
        running.check_choice("compression", params.compression, CODECS)
    check_topic_name(params.topic)
    params = _resolved(params)
    if params.format == "text" and (params.key or params.timestamp):
        raise InvalidConfig("lines of text have no columns: key and timestamp are for json, csv and parquet")
    if params.format in _LINES and (params.value or params.schema):
        raise InvalidConfig(f"{params.format} lines are stored unchanged: value and schema are for csv and parquet")


def run(spark: SparkSession, params: IngestParams, progress: Advance | None = None) -> IngestReport:
    """Ingest the new files, once or until stopped."""
    check_params(params)
    params = _resolved(params)
    with DirectoryStore.open(params.data, maintenance_interval_s=None) as store:
        store.create_topic(params.topic, params.partitions, exist_ok=True)
        root = Path(store.path)
    with running.exclusive_directory(place(root, params.topic, params.source)) as directory:
        with running.one_line_errors():
            ingester = _FileIngester(spark, params, str(root), directory)
            names = spark.readStream.format("binaryFile").schema(_BINARY).option("recursiveFileLookup", "true")
            writer = names.load(params.source).select("path").writeStream.foreachBatch(ingester.take)
            writer = writer.option("checkpointLocation", f"{directory.path}/{CHECKPOINT}")
            query = writer.trigger(**running.trigger(params.every_s)).start()
        flow = running.watch(query, look=lambda: ingester.tell(progress))
    counts = ingester.records, ingester.without_key, ingester.transactions
    return IngestReport(params.topic, params.source, params.format, *counts, flow.stopped)


def place(root: Path, topic: str, source: str) -> Path:
    """Return the directory for the progress of a topic and source."""
    return root / "pipelines" / f"ingest-{quoted(topic)}-{hashlib.sha256(source.encode()).hexdigest()[:12]}"


def _resolved(params: IngestParams) -> IngestParams:
    """Return the parameters with the detected format, and with the source as Spark and the checkpoint know it: an
    absolute path."""
    source = params.source
    if "://" not in source:
        source = str(Path(source).absolute())
        if not Path(source).exists() and not glob.has_magic(source):
            raise InvalidConfig(f"no such file or directory: {source}")
    return replace(params, source=source, format=guess_format(source) if params.format == "auto" else params.format)


def guess_format(source: str) -> Form:
    """Guess the format from the suffixes of the files."""
    path = Path(source)
    names = [each.name for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path.name]
    shown = [name for name in names if not name.startswith((".", "_"))]
    endings = [path.with_suffix("").suffix if path.suffix in _PACKED else path.suffix for path in map(Path, shown)]
    found = Counter(_ENDINGS[ending] for ending in endings if ending in _ENDINGS)
    if len(found) != 1:
        what = "no file has a known suffix" if not found else f"there are {' and '.join(sorted(found))}"
        raise InvalidConfig(
            f"cannot detect the format of {source}: {what}; give format as one of {', '.join(FORMATS[1:])}"
        )
    return next(iter(found))


# --- the files


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of CSV and Parquet files; `inferred` types must reproduce the text of each cell."""

    schema: StructType
    inferred: bool = False

    @property
    def names(self) -> list[str]:
        return list(self.schema.fieldNames())


def _check_columns(params: IngestParams, names: Sequence[str]) -> None:
    """Raise if a requested column is missing."""
    for name in filter(None, (params.key, params.timestamp, params.value)):
        if name not in names:
            raise InvalidConfig(f"no column {name!r} in {params.source}; its columns are {', '.join(names)}")


class _FileIngester:
    """Ingests the files that Spark reports as new, in order of name, and counts the records."""

    def __init__(self, spark: SparkSession, params: IngestParams, root: str, directory: FileDirectory) -> None:
        self._spark, self._params = spark, params
        self._root, self._directory = root, directory
        self._shape = None if params.format in _LINES else _shape(spark, params, directory)
        if self._shape is not None:
            _check_columns(params, self._shape.names)
        self.records = self.without_key = self.transactions = 0
        self._told = 0

    def take(self, names: DataFrame, batch: int) -> None:
        """Ingest one micro-batch, a list of file names. Each transaction is stored once, however often it is
        repeated."""
        with running.one_line_errors():
            paths = sorted(row.path for row in names.collect())
            for version, some in self._transactions(batch, paths):
                self._write(version, some)

    def _transactions(self, batch: int, paths: list[str]) -> Iterator[tuple[int, list[str]]]:
        """Split files into transactions, with the numbers that identify a repetition.

        The number of files per transaction is stored first: a repeated micro-batch must be split in the same way.
        """
        size = self._params.files
        noted = checksummed.load(self._directory, _BATCH) if self._directory.exists(_BATCH) else {}
        if noted.get("batch") == batch:
            size = noted["files"]
        else:
            checksummed.store(self._directory, _BATCH, {"batch": batch, "files": size})
        for number, first in enumerate(range(0, len(paths), size), 1):
            yield (batch << _NUMBER_BITS) + number, paths[first : first + size]

    def _write(self, version: int, paths: list[str]) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        rows = _records(self._spark, self._params, paths, self._shape)
        missing = F.count_if(F.col("key").isNull() if self._params.key is not None else F.lit(False))
        rows = rows.observe(seen, F.count(F.lit(1)).alias("records"), missing.alias("without_key"))
        writer = rows.write.format("sawlog").mode("append").option("path", self._root)
        writer = writer.option("topic", self._params.topic)
        if self._params.compression is not None:
            writer = writer.option("compression", self._params.compression)
        query = json.loads((Path(self._directory.path) / CHECKPOINT / "metadata").read_text())["id"]
        writer.option("txnAppId", query).option("txnVersion", str(version)).save()
        counted = seen.get
        self.records += counted["records"]
        self.without_key += counted["without_key"]
        self.transactions += 1

    def tell(self, progress: Advance | None) -> None:
        """Report the progress since the last call."""
        more, self._told = self.records - self._told, self.records
        if more and progress is not None:
            progress(more)


# --- the schema


def _shape(spark: SparkSession, params: IngestParams, directory: FileDirectory) -> Shape:
    """Return the schema: the given one, the one inferred before, or one inferred now and kept for the next run."""
    from pyspark.sql.types import StructType

    if params.schema is not None:
        shape = Shape(running.parsed_schema(params.schema))
    elif directory.exists(_SCHEMA):
        kept = checksummed.load(directory, _SCHEMA)
        return Shape(StructType.fromJson(json.loads(kept["schema"])), kept.get("inferred", False))
    else:
        shape = Shape(_inferred(spark, params), params.format == "csv")
    checksummed.store(directory, _SCHEMA, {"schema": shape.schema.json(), "inferred": shape.inferred})
    return shape


def _inferred(spark: SparkSession, params: IngestParams) -> StructType:
    from pyspark.errors import AnalysisException

    try:
        if params.format != "csv":
            return spark.read.format(params.format).load(params.source).schema
        listed = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(params.source)
        found = _inferred_from_csv(spark, params, sorted(row.path for row in listed.select("path").collect()))
    except AnalysisException as error:
        why = running.failure(error)
        raise InvalidConfig(f"no schema can be inferred from {params.source}, so give one: {why}") from error
    if found is None:
        raise InvalidConfig(f"no schema can be inferred from {params.source}, so give one: there are no rows")
    return found


def _inferred_from_csv(spark: SparkSession, params: IngestParams, paths: Sequence[str]) -> StructType | None:
    """Infer the columns of CSV files, with the narrowest lossless types; None if all files are empty."""
    from pyspark.sql.types import StructType

    files = [CsvFile(path, params.header) for path in paths]
    names = next((found for file in files if (found := file.names()) is not None), None)
    if names is None:
        return None

    def look(files: Iterator[CsvFile]) -> Iterator[pa.RecordBatch]:
        for file in files:
            yield pa.RecordBatch.from_pydict({"kinds": [kinds_of(file, names)]}, schema=_KINDS)

    kinds = [""] * len(names)
    for row in _each_file(spark, files, look, "kinds array<string>").collect():
        kinds = [widened(one, other) for one, other in zip(kinds, row.kinds, strict=True)]
    made = StructType()
    for name, kind in zip(names, kinds, strict=True):
        made = made.add(name, _JSON_NAMES.get("string" if name == params.key else kind, "string"))
    return made


# --- records: columns value, key and timestamp


def _records(spark: SparkSession, params: IngestParams, paths: Sequence[str], shape: Shape | None) -> DataFrame:
    """Read the records of files, whose paths are given in order."""
    if params.format == "csv":
        assert shape is not None
        return _from_cells(_cells(spark, params, paths, shape), params, shape)
    reader = spark.read
    if shape is not None:
        reader = reader.schema(shape.schema)
        if Path(params.source).is_dir():
            reader = reader.option("basePath", params.source)  # directories such as day=7 become columns
    rows = reader.format("parquet" if shape is not None else "text").load([escape_glob(path) for path in paths])
    if params.format == "text":
        made = rows.select("value", *_places())
    elif params.format == "json":
        made = _from_lines(rows, params)
    else:
        made = _from_columns(rows, params)
    return made.orderBy("file", "block", "row").drop("file", "block", "row")


def _places() -> list[Column]:
    """Return the columns that locate a row: ordering by them orders the rows of all files."""
    from pyspark.sql import functions as F

    plain = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
    block = F.col("_metadata.file_block_start").alias("block")
    return [plain.alias("file"), block, F.monotonically_increasing_id().alias("row")]


# --- lines


def _from_lines(rows: DataFrame, params: IngestParams) -> DataFrame:
    from pyspark.sql import functions as F

    columns: list[Column] = [F.col("value")]
    if params.key is not None:
        columns.append(F.get_json_object("value", _json_path(params.key)).alias("key"))
    if params.timestamp is not None:
        text = F.get_json_object("value", _json_path(params.timestamp))
        columns.append(_time_of_text(text).alias("timestamp"))
    return rows.where(F.trim("value") != "").select(*columns, *_places())


def _json_path(name: str) -> str:
    return "$" + "".join(f"['{part}']" for part in name.split("."))


# --- CSV


def _each_file(
    spark: SparkSession,
    files: Sequence[CsvFile],
    look: Callable[[Iterator[CsvFile]], Iterator[pa.RecordBatch]],
    shape: str,
) -> DataFrame:
    """Apply `look` to files in tasks, each with consecutive files."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from look(files[number] for number in batch.column(0).to_pylist())

    count = max(min(len(files), spark.sparkContext.defaultParallelism * _TASKS_PER_CORE), 1)
    return spark.range(0, len(files), 1, count).mapInArrow(task, shape)


def _cells(spark: SparkSession, params: IngestParams, paths: Sequence[str], shape: Shape) -> DataFrame:
    """Return the columns place (file, row and line, for messages) and cells."""
    names = shape.names
    kinds = [field.dataType.simpleString() for field in shape.schema.fields] if shape.inferred else []

    def look(files: Iterator[CsvFile]) -> Iterator[pa.RecordBatch]:
        for file in files:
            yield from _batches(file, names, kinds)

    files = [CsvFile(path, params.header) for path in paths]
    return _each_file(spark, files, look, "place string, cells array<string>")


def _batches(file: CsvFile, names: Sequence[str], kinds: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file as Arrow batches of limited size. Raises `BadRow` where a cell is not of its inferred
    type."""
    looks = [(column, looks_like(kind), kind) for column, kind in enumerate(kinds)]
    places: list[str] = []
    cells: list[list[str]] = []
    characters = 0
    for number, row in file.rows(names):
        for column, fits, kind in looks:
            if row.cells[column] and not fits(row.cells[column]):
                reason = f"column {names[column]!r} was {kind} in the first run, but is {row.cells[column]!r} here"
                raise file.bad(number, row.line, reason)
        places.append(f"{file.name}, row {number}, line {row.line}")
        cells.append(row.cells)
        characters += sum(map(len, row.cells))
        if len(cells) >= _ROWS or characters >= _CHARACTERS:
            yield pa.RecordBatch.from_pydict({"place": places, "cells": cells}, schema=_CELLS)
            places, cells, characters = [], [], 0
    if cells:
        yield pa.RecordBatch.from_pydict({"place": places, "cells": cells}, schema=_CELLS)


def _from_cells(rows: DataFrame, params: IngestParams, shape: Shape) -> DataFrame:
    """Build records from cells. Key and `--value` are the text of their cells, whatever the column's type. An empty key
    is null."""
    from pyspark.sql import functions as F

    _check_columns(params, shape.names)
    cells = {name: F.get("cells", F.lit(number)) for number, name in enumerate(shape.names)}
    if params.value is not None:
        columns = [cells[params.value].alias("value")]
    else:
        typed = [_typed(cells[field.name], field.name, field.dataType).alias(field.name) for field in shape.schema]
        columns = [F.to_json(F.struct(*typed), {"ignoreNullFields": "false"}).alias("value")]
    if params.key is not None:
        columns.append(F.nullif(cells[params.key], F.lit("")).alias("key"))
    if params.timestamp is not None:
        text = cells[params.timestamp]
        columns.append(_or_complain(text, _time_of_text(text), params.timestamp, "a time").alias("timestamp"))
    return rows.select(*columns)


def _typed(cell: Column, name: str, kind: Any) -> Column:
    if kind.simpleString() == "string":
        return cell
    return _or_complain(cell, cell.try_cast(kind), name, kind.simpleString())


def _or_complain(cell: Column, found: Column, name: str, what: str) -> Column:
    """Return the converted cell; null for an empty one. Raises an error with its place if it cannot be converted."""
    from pyspark.sql import functions as F

    why = F.concat(F.col("place"), F.lit(f": column {name!r} is not {what}: '"), F.substring(cell, 1, 80), F.lit("'"))
    wrong = (cell != "") & found.isNull()
    kind = "timestamp" if what == "a time" else what
    return F.when(wrong, F.raise_error(why).cast("string").try_cast(kind)).otherwise(found)


# --- columns


def _from_columns(rows: DataFrame, params: IngestParams) -> DataFrame:
    from pyspark.sql import functions as F

    _check_columns(params, rows.columns)
    if params.value is None:
        columns = [F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("value")]
    else:
        columns = [_bytes(rows, params.value).alias("value")]
    if params.key is not None:
        columns.append(_bytes(rows, params.key).alias("key"))
    if params.timestamp is not None:
        columns.append(_time(rows, params.timestamp).alias("timestamp"))
    return rows.select(*columns, *_places())


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
    raise InvalidConfig(f"the column {name!r} is {kind}, which is not a time")


def _time_of_text(text: Column) -> Column:
    """Parse milliseconds since 1970 or an ISO time; null for other text."""
    from pyspark.sql import functions as F

    return F.coalesce(F.timestamp_millis(text.try_cast("bigint")), text.try_cast("timestamp"))
