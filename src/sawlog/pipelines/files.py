"""The records of files, for `ingest`: columns value, key and timestamp, in the order of the file names.

```
text, json   each line, unchanged; key and timestamp are looked up in the JSON
csv          rows read by csvfile.py; cells become columns according to the schema, and the row a JSON object
parquet      rows as Spark reads them; each becomes a JSON object
```

The store places the output of the tasks one after the other. So each task gets files, or parts of one, that are
consecutive by name, and the rows of a key keep the order of the files and of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # at module level: Spark inspects the annotations of the functions it is given

from ..errors import InvalidConfig
from ..spark.tables import escape_glob
from .csvfile import CsvFile, kinds_of, looks_like, widened

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

LINES = ("text", "json")
#: CSV rows are passed to Spark in chunks of this many rows or characters.
_ROWS, _CHARACTERS = 4096, 1 << 20
_TASKS_PER_CORE = 4
#: Spark's JSON names of inferred types; a column without any value is text.
_JSON_NAMES = {"boolean": "boolean", "bigint": "long", "double": "double"}
_CELLS = pa.schema([("place", pa.string()), ("cells", pa.list_(pa.string()))])
_KINDS = pa.schema([("kinds", pa.list_(pa.string()))])


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of CSV and Parquet files; `inferred` types must reproduce the text of each cell."""

    schema: StructType
    inferred: bool = False

    @property
    def names(self) -> list[str]:
        return list(self.schema.fieldNames())


@dataclass(frozen=True, slots=True)
class WantedColumns:
    """The columns of the files that make up a record."""

    form: str
    source: str
    key: str | None = None
    timestamp: str | None = None
    value: str | None = None
    header: bool = True

    def check(self, names: Sequence[str]) -> None:
        """Raise if a requested column is missing."""
        for name in filter(None, (self.key, self.timestamp, self.value)):
            if name not in names:
                raise InvalidConfig(f"no column {name!r} in {self.source}; its columns are {', '.join(names)}")


def records(spark: SparkSession, wanted: WantedColumns, paths: Sequence[str], shape: Shape | None) -> DataFrame:
    """Read the records of files, whose paths are given in order."""
    if wanted.form == "csv":
        assert shape is not None
        return _from_cells(_cells(spark, wanted, paths, shape), wanted, shape)
    reader = spark.read
    if shape is not None:
        reader = reader.schema(shape.schema)
        if Path(wanted.source).is_dir():
            reader = reader.option("basePath", wanted.source)  # directories such as day=7 become columns
    rows = reader.format("parquet" if shape is not None else "text").load([escape_glob(path) for path in paths])
    if wanted.form == "text":
        made = rows.select("value", *_places())
    elif wanted.form == "json":
        made = _from_lines(rows, wanted)
    else:
        made = _from_columns(rows, wanted)
    return made.orderBy("file", "block", "row").drop("file", "block", "row")


def listed(spark: SparkSession, source: str) -> list[str]:
    """Return the files of a source, sorted by name."""
    found = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(source).select("path")
    return sorted(row.path for row in found.collect())


def _places() -> list[Column]:
    """Return the columns that locate a row: ordering by them orders the rows of all files."""
    from pyspark.sql import functions as F

    plain = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
    block = F.col("_metadata.file_block_start").alias("block")
    return [plain.alias("file"), block, F.monotonically_increasing_id().alias("row")]


# --- lines


def _from_lines(rows: DataFrame, wanted: WantedColumns) -> DataFrame:
    from pyspark.sql import functions as F

    columns: list[Column] = [F.col("value")]
    if wanted.key is not None:
        columns.append(F.get_json_object("value", _json_path(wanted.key)).alias("key"))
    if wanted.timestamp is not None:
        text = F.get_json_object("value", _json_path(wanted.timestamp))
        columns.append(_time_of_text(text).alias("timestamp"))
    return rows.where(F.trim("value") != "").select(*columns, *_places())


def _json_path(name: str) -> str:
    return "$" + "".join(f"['{part}']" for part in name.split("."))


# --- CSV


def inferred(spark: SparkSession, wanted: WantedColumns, paths: Sequence[str]) -> StructType | None:
    """Infer the columns of CSV files, with the narrowest lossless types; None if all files are empty."""
    from pyspark.sql.types import StructType

    files = [CsvFile(path, wanted.header) for path in paths]
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
        made = made.add(name, _JSON_NAMES.get("string" if name == wanted.key else kind, "string"))
    return made


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


def _cells(spark: SparkSession, wanted: WantedColumns, paths: Sequence[str], shape: Shape) -> DataFrame:
    """Return the columns place (file, row and line, for messages) and cells."""
    names = shape.names
    kinds = [field.dataType.simpleString() for field in shape.schema.fields] if shape.inferred else []

    def look(files: Iterator[CsvFile]) -> Iterator[pa.RecordBatch]:
        for file in files:
            yield from _batches(file, names, kinds)

    files = [CsvFile(path, wanted.header) for path in paths]
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


def _from_cells(rows: DataFrame, wanted: WantedColumns, shape: Shape) -> DataFrame:
    """Build records from cells. Key and `--value` are the text of their cells, whatever the column's type. An empty key
    is null."""
    from pyspark.sql import functions as F

    wanted.check(shape.names)
    cells = {name: F.get("cells", F.lit(number)) for number, name in enumerate(shape.names)}
    if wanted.value is not None:
        columns = [cells[wanted.value].alias("value")]
    else:
        typed = [_typed(cells[field.name], field.name, field.dataType).alias(field.name) for field in shape.schema]
        columns = [F.to_json(F.struct(*typed), {"ignoreNullFields": "false"}).alias("value")]
    if wanted.key is not None:
        columns.append(F.nullif(cells[wanted.key], F.lit("")).alias("key"))
    if wanted.timestamp is not None:
        text = cells[wanted.timestamp]
        columns.append(_or_complain(text, _time_of_text(text), wanted.timestamp, "a time").alias("timestamp"))
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


def _from_columns(rows: DataFrame, wanted: WantedColumns) -> DataFrame:
    from pyspark.sql import functions as F

    wanted.check(rows.columns)
    if wanted.value is None:
        columns = [F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("value")]
    else:
        columns = [_bytes(rows, wanted.value).alias("value")]
    if wanted.key is not None:
        columns.append(_bytes(rows, wanted.key).alias("key"))
    if wanted.timestamp is not None:
        columns.append(_time(rows, wanted.timestamp).alias("timestamp"))
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
