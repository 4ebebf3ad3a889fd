"""Parquet files as Spark's tasks write them, for `export` and `table`: the same compression and the same types."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write(rows: DataFrame, path: Path, by: Sequence[str] = ()) -> None:
    """Write rows as Parquet files into a directory; what is there is replaced."""
    # Otherwise Spark writes the obsolete INT96.
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = rows.write.partitionBy(*by).option("compression", "zstd").mode("overwrite")
    # No empty file `_SUCCESS`: that the files are complete is recorded elsewhere.
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(str(path))


def with_times(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """With the columns `date` and `hour` of the timestamp, if files are divided by them; in the session's time zone."""
    from pyspark.sql import functions as F

    if "date" in by or "hour" in by:
        rows = rows.withColumn("date", F.to_date("timestamp"))
    if "hour" in by:
        rows = rows.withColumn("hour", F.hour("timestamp"))
    return rows
