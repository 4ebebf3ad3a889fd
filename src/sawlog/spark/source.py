"""The readers and writers behind `pyspark_sawlog.DefaultSource`: parse the options, check the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import InvalidConfig
from .options import COLUMNS, ReadOptions, read_options, write_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key: string, value: binary>>",
}

#: Columns that can be written, with their accepted types.
_WRITABLE = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


#: Options that Spark adds for a table in its catalog.
_OF_CATALOG = frozenset({"provider", "owner", "location"})

_NO_TABLE = (
    "a topic cannot be a table of Spark's catalog (CREATE TABLE … USING sawlog, saveAsTable): Spark does not pass the "
    "options of such a table to a Python data source that reads or writes it. Use CREATE TEMPORARY VIEW name "
    "(key BINARY, value BINARY) USING sawlog OPTIONS (path 'STORE', topic 'TOPIC'), for SELECT and INSERT, or df.write "
    "with .save()"
)


def _refuse_table(options: Mapping[str, str]) -> None:
    """Raise for a table of Spark's catalog. Spark 4.3 passes its options when it asks for the columns and none when it
    reads or writes; it creates a table with columns, and the table of saveAsTable, without asking."""
    if {name.lower() for name in options} >= _OF_CATALOG:
        raise InvalidConfig(_NO_TABLE)
    if not options:
        raise InvalidConfig(
            'sawlog needs the path of the store: .option("path", DIRECTORY), .load(DIRECTORY) or .save(DIRECTORY). '
            f"If this is a table, DROP it: {_NO_TABLE}"
        )


def schema(options: Mapping[str, str]) -> str:
    """Return the DDL of the columns that the options select."""
    _refuse_table(options)
    # Streaming-only options are allowed here: Spark asks for the schema before it knows whether this is a stream.
    return ", ".join(f"{name} {_TYPES[name]}" for name in read_options(options, streaming=False).columns)


def _columns(options: ReadOptions, shape: StructType) -> tuple[str, ...]:
    """Return the columns of a schema, which the user may have given: a selection of the known columns, with their
    types."""
    names = tuple(shape.fieldNames())
    for field in shape.fields:
        known = _TYPES.get(field.name)
        if known is None:
            raise InvalidConfig(f"unknown column {field.name}; the columns are {', '.join((*COLUMNS, 'headers'))}")
        if field.dataType.simpleString() != known.replace(": ", ":").replace(", ", ","):
            raise InvalidConfig(
                f"the column {field.name} must be {known}, not {field.dataType.simpleString()}; cast it after reading"
            )
    return names


def reader(options: Mapping[str, str], shape: StructType) -> DataSourceReader:
    from .reading import BatchReader

    _refuse_table(options)
    found = read_options(options, streaming=False)
    return BatchReader(found, _columns(found, shape))


def stream_reader(options: Mapping[str, str], shape: StructType) -> DataSourceStreamReader:
    from .streaming import StreamReader

    found = read_options(options, streaming=True)
    return StreamReader(found, _columns(found, shape))


def _written_columns(shape: StructType) -> tuple[str, ...]:
    """Return the columns to write, after checking their names and types."""
    names = tuple(shape.fieldNames())
    for part in shape.fields:
        kinds = _WRITABLE.get(part.name)
        if kinds is None:
            raise InvalidConfig(
                f"sawlog cannot store a column {part.name}; it accepts {', '.join(_WRITABLE)}. Put the rest into "
                "value, for example with to_json(struct(...)) AS value"
            )
        if part.dataType.simpleString() not in kinds:
            raise InvalidConfig(
                f"the column {part.name} must be {' or '.join(kinds)}, not {part.dataType.simpleString()}; cast it"
            )
    if "value" not in names:
        raise InvalidConfig(f"a column value is required; the columns are {', '.join(names)}")
    return names


def writer(options: Mapping[str, str], shape: StructType, *, overwrite: bool) -> DataSourceWriter:
    from .writing import BatchWriter

    if overwrite:
        raise InvalidConfig('a log can only be appended to: use .mode("append"), not overwrite')
    _refuse_table(options)
    found = write_options(options)
    return BatchWriter(found, _written_columns(shape))


def stream_writer(options: Mapping[str, str], shape: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
    from .writing import StreamWriter

    if overwrite:
        raise InvalidConfig('a log can only be appended to: use .outputMode("append"), not complete')
    found = write_options(options)
    return StreamWriter(found, _written_columns(shape))
