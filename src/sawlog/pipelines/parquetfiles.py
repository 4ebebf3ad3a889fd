"""Parquet files as Spark's tasks write them, for `export` and `table`: the same compression and the same types."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US


def write(rows: DataFrame, path: Path, by: Sequence[str] = ()) -> None:
    """Write rows as Parquet files into a directory; what is there is replaced."""
    # Otherwise Spark writes the obsolete INT96.
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = rows.write.partitionBy(*by).option("compression", "zstd").mode("overwrite")
    # No empty file `_SUCCESS`: that the files are complete is recorded elsewhere.
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(str(path))


def with_times(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """With the columns `date` and `hour` of the timestamp, if files are divided by them: in UTC, whatever the session's
    time zone is, as Iceberg's `day` and `hour` are."""
    from pyspark.sql import functions as F

    if "date" in by or "hour" in by:
        rows = rows.withColumn("date", F.expr(f"date_from_unix_date(int({_whole(_DAY_US)}))"))
    if "hour" in by:
        rows = rows.withColumn("hour", F.expr(f"int(pmod({_whole(_HOUR_US)}, 24))"))
    return rows


def _whole(unit_us: int) -> str:
    """How many whole units there are from 1970 to the timestamp, also before 1970."""
    return f"(unix_micros(timestamp) - pmod(unix_micros(timestamp), {unit_us})) div {unit_us}"
