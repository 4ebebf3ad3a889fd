"""`stats`: records, bytes, keys and rates over time, per topic and partition; as a report and as Parquet.

Everything is counted record by record, in parallel; only the number of distinct keys is an estimate (within about 1 %).
A row without a partition is the whole topic. The size is the size on disk, with headers and compression; bytes count
keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..addresses import check_local
from ..errors import InvalidConfig
from ..store.directory.store import DirectoryStore
from ..units import ROUND_STEPS_MS
from . import running
from .running import Advance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_STEPS = 200
#: Maximum error of the number of distinct keys; Spark's default, 5 %, is wrong even for five keys.
_KEYS_ERROR = 0.01


@dataclass(frozen=True, slots=True)
class StatsParams:
    """Parameters of `stats`."""

    #: Directory of the store.
    data: str
    #: Only this topic.
    topic: str | None = None
    #: Step of the rates in seconds; chosen by the time span if None.
    every_s: float | None = None
    #: Directory for partitions.parquet and rates.parquet.
    parquet: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition, or (partition None) a whole topic."""

    topic: str
    partition: int | None
    records: int
    #: Bytes of keys and values.
    bytes: int
    #: Approximate number of distinct keys.
    keys: int
    without_key: int
    #: Milliseconds since 1970; None if there is no record.
    oldest: int | None
    newest: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Rate:
    """The records of one time step."""

    topic: str
    partition: int
    time: int
    step_ms: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StatsReport:
    """All partitions, and their growth over time."""

    partitions: tuple[PartitionStats, ...]
    rates: tuple[Rate, ...]
    step_ms: int


def check_params(params: StatsParams) -> None:
    """Raise for errors that can be detected without Spark."""
    if params.every_s is not None and params.every_s < 0.001:
        raise InvalidConfig(f"every_s must be at least 0.001 (one millisecond), not {params.every_s}")
    if params.parquet is not None:
        check_local(params.parquet, "the directory of the Parquet files")
    running.check_topic(params.data, params.topic)


def run(spark: SparkSession, params: StatsParams, progress: Advance | None = None) -> StatsReport:
    """Count everything in the store now."""
    check_params(params)
    sizes, root = _sizes(params)
    names = sorted({topic for topic, _ in sizes})
    if not names:
        return StatsReport((), (), 0)
    with running.one_line_errors():
        rows = _rows(spark, root, names).cache()
        try:
            partitions = _partitions(rows, sizes)
            if progress is not None:
                progress(sum(each.records for each in partitions if each.partition is None))
            step_ms = _step(params, partitions)
            rates = _rates(rows, step_ms)
        finally:
            rows.unpersist()
    report = StatsReport(partitions, rates, step_ms)
    if params.parquet is not None:
        write_parquet(report, Path(params.parquet))
    return report


def _sizes(params: StatsParams) -> tuple[dict[tuple[str, int], int], str]:
    """Return the size of each partition on disk, and the path of the store."""
    with DirectoryStore.open(params.data, "r") as store:
        topics = list(store) if params.topic is None else [store.topic(params.topic)]
        return {
            (topic.name, number): topic.partition(number).size_bytes
            for topic in topics
            for number in range(topic.partitions)
        }, str(Path(store.path).absolute())


def _rows(spark: SparkSession, root: str, names: list[str]) -> DataFrame:
    """Return the columns to count: small, because they are read twice."""
    rows = spark.read.format("sawlog").option("path", root).option("subscribe", ",".join(names))
    return (
        rows.option("columns", "topic,partition,key,value,timestamp")
        .load()
        .selectExpr(
            "topic",
            "partition",
            "xxhash64(key) as key",
            "key is null as keyless",
            "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) as bytes",
            "unix_millis(timestamp) as time",
        )
    )


def _partitions(rows: DataFrame, sizes: dict[tuple[str, int], int]) -> tuple[PartitionStats, ...]:
    from pyspark.sql import functions as F

    counted = rows.rollup("topic", "partition").agg(
        F.count(F.lit(1)).alias("records"),
        F.sum("bytes").alias("bytes"),
        F.approx_count_distinct(F.when(~F.col("keyless"), F.col("key")), _KEYS_ERROR).alias("keys"),
        F.count_if("keyless").alias("without_key"),
        F.min("time").alias("oldest"),
        F.max("time").alias("newest"),
    )
    nothing = {"records": 0, "bytes": 0, "keys": 0, "without_key": 0, "oldest": None, "newest": None}
    found = {(row["topic"], row["partition"]): {name: row[name] for name in nothing} for row in counted.collect()}
    made = []
    for topic in sorted({name for name, _ in sizes}):
        each = {number: size for (name, number), size in sizes.items() if name == topic}
        for number, size in [*each.items(), (None, sum(each.values()))]:
            made.append(PartitionStats(topic, number, **found.get((topic, number), nothing), size_bytes=size))
    return tuple(made)


def _step(params: StatsParams, partitions: Sequence[PartitionStats]) -> int:
    """Return the requested step, or the finest common one that does not yield too many."""
    if params.every_s is not None:
        return round(params.every_s * 1000)
    oldest = [each.oldest for each in partitions if each.oldest is not None]
    newest = [each.newest for each in partitions if each.newest is not None]
    span = max(newest) - min(oldest) if oldest and newest else 0
    return next((step for step in ROUND_STEPS_MS if span / step <= _MOST_STEPS), ROUND_STEPS_MS[-1])


def _rates(rows: DataFrame, step_ms: int) -> tuple[Rate, ...]:
    from pyspark.sql import functions as F

    begin = F.floor(F.col("time") / step_ms) * step_ms
    counted = rows.groupBy("topic", "partition", begin.alias("time")).agg(
        F.count(F.lit(1)).alias("records"), F.sum("bytes").alias("bytes")
    )
    return tuple(
        Rate(row["topic"], row["partition"], row["time"], step_ms, row["records"], row["bytes"])
        for row in counted.orderBy("topic", "partition", "time").collect()
    )


def write_parquet(report: StatsReport, target: Path) -> None:
    """Write the report as two files; times have a timestamp type there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    moment = pa.timestamp("ms", tz="UTC")
    whole = {"topic": pa.string(), "partition": pa.int32(), "records": pa.int64(), "bytes": pa.int64()}
    partitions = {
        **whole,
        "keys": pa.int64(),
        "without_key": pa.int64(),
        "oldest": moment,
        "newest": moment,
        "size_bytes": pa.int64(),
    }
    rates = {**whole, "time": moment, "step_ms": pa.int64()}
    target.mkdir(parents=True, exist_ok=True)
    for name, rows, columns in (("partitions", report.partitions, partitions), ("rates", report.rates, rates)):
        table = pa.Table.from_pylist([asdict(row) for row in rows], schema=pa.schema(columns))
        pq.write_table(table, target / f"{name}.parquet", compression="zstd")
