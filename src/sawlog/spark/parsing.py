"""Parse JSON values into columns with a schema; give the reason where a value does not fit.

The job that maintains a table and the union that reads it use the same expressions: a record is in the table exactly if
it would be a row of the tail.

A value fits if it is a JSON object whose fields have the types of the schema. Fields may be missing, and additional
fields are allowed. A record without a value (a tombstone, in compacted topics) fits: its fields are null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ..tables.columns import TIMES, column_of, fault_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

#: The name of the metric that `observe_bad_rows` observes.
BAD = "bad"
_PARSED, _CORRUPT = "_sawlog_parsed", "_corrupt_record"
#: Maximum number of characters of a value quoted in a reason.
_SHOWN = 80


def spark_schema(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema to Spark's."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Convert a Spark schema to Arrow's."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def parsed(rows: DataFrame, fields: pa.Schema) -> DataFrame:
    """Add a column for `good` and `bad`: the value, parsed with these fields."""
    return _parsed(rows, spark_schema(fields))


def as_struct(rows: DataFrame, shape: StructType) -> DataFrame:
    """Replace the value by a struct, and add a column `unparsed` with the values that do not fit."""
    from pyspark.sql import functions as F

    rows = _parsed(rows, shape).withColumn("unparsed", F.when(is_bad(), F.col("value")))
    fitting = F.when(F.col("unparsed").isNull(), F.col(_PARSED).dropFields(_CORRUPT))
    return rows.withColumn("value", fitting).drop(_PARSED)


def _parsed(rows: DataFrame, shape: StructType) -> DataFrame:
    from pyspark.sql import functions as F

    shape = shape.add(_CORRUPT, "string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    return rows.withColumn(_PARSED, F.from_json(F.col("value").cast("string"), shape, options))


def observe_bad_rows(rows: DataFrame, counts: Observation | str) -> DataFrame:
    """Observe the number of bad rows. Also an optimisation barrier: Spark pushes neither conditions nor columns below
    it. Without the barrier it would parse each value three times: twice in `is_bad`, and once for the fields."""
    from pyspark.sql import functions as F

    return rows.observe(counts, F.count_if(is_bad()).alias(BAD))


def is_bad() -> Column:
    """Condition: the parsed value does not fit."""
    from pyspark.sql import functions as F

    whole = F.col(_PARSED)
    return F.col("value").isNotNull() & (whole.isNull() | whole[_CORRUPT].isNotNull())


def good(rows: DataFrame, fields: pa.Schema) -> DataFrame:
    """Return the rows whose value fits, with its fields as columns after those of the record."""
    from pyspark.sql import functions as F

    kept = [name for name in rows.columns if name != _PARSED]
    typed = [F.col(_PARSED)[field.name].alias(column_of(field.name)) for field in fields]
    return rows.where(~is_bad()).select(*kept, *typed)


def bad(rows: DataFrame, fields: pa.Schema) -> DataFrame:
    """Return the rows whose value does not fit, with the reason."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    text = F.col("value").cast("string")
    loose = StructType()
    for field in fields:
        loose = loose.add(field.name, StringType())
    as_text = F.from_json(text, loose, {"mode": "PERMISSIVE"})
    wrong = [
        F.when(
            F.col("_texts")[field.name].isNotNull() & F.col(_PARSED)[field.name].isNull(),
            F.concat(
                F.lit(f"{field.name} is not {shown.dataType.simpleString()}: "),
                F.substring(F.col("_texts")[field.name], 1, _SHOWN),
            ),
        )
        for field, shown in zip(fields, spark_schema(fields), strict=True)
    ]
    reason = (
        F.when(~F.is_valid_utf8(F.col("value").cast("string")), "not UTF-8")
        .when(F.try_parse_json(text).isNull(), "not valid JSON")
        .when(~F.ltrim(text).startswith("{"), "not a JSON object")
        .when(F.concat_ws("", *wrong) != "", F.concat_ws("; ", *wrong))
        .otherwise("a field has another type than in the schema")
    )
    kept = [name for name in rows.columns if name != _PARSED]
    return rows.where(is_bad()).withColumn("_texts", as_text).select(*kept, reason.alias("reason"))


def inferred(spark: SparkSession, rows: DataFrame) -> StructType:
    """Infer the fields of the JSON objects among these values. Of fields that differ only in case, the first wins."""
    from pyspark.sql.types import StructType

    texts = rows.where("value is not null").selectExpr("cast(value as string) as value")
    before = spark.conf.get("spark.sql.caseSensitive") or "false"
    spark.conf.set("spark.sql.caseSensitive", "true")  # otherwise two such fields raise an error and stop the job
    try:
        found = spark.read.json(texts).schema
    finally:
        spark.conf.set("spark.sql.caseSensitive", before)
    by_name = {field.name.lower(): field for field in reversed(found.fields) if field.name != _CORRUPT}
    return StructType([field for field in found.fields if by_name.get(field.name.lower()) is field])


def usable(found: StructType) -> pa.Schema:
    """Select the inferred fields that can be columns of a table. The others remain in the value."""
    seen = set(TIMES)
    made: list[pa.Field] = []
    for field in arrow_schema(found):
        kind = _usable_type(field.type)
        name = column_of(field.name).lower()
        if kind is not None and not fault_of(field.name) and name not in seen:
            seen.add(name)
            made.append(pa.field(field.name, kind))
    return pa.schema(made)


def _usable_type(kind: pa.DataType) -> pa.DataType | None:
    """Remove the parts that Parquet or Delta cannot store: structs without fields, names with special characters."""
    if pa.types.is_struct(kind):
        fields = [(each.name, _usable_type(each.type)) for each in kind if not fault_of(each.name)]
        kept = [pa.field(name, inner) for name, inner in fields if inner is not None]
        return pa.struct(kept) if kept else None
    if pa.types.is_list(kind):
        inner = _usable_type(kind.value_type)
        return None if inner is None else pa.list_(pa.field("element", inner))
    return kind
