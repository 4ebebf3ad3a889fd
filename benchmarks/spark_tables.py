"""Spark over a topic's table and the log's tail, for `make bench-spark`.

- *union*: scan and keyed aggregation over `sawlog.spark.table`, 95 % of the records in a Delta table, 5 % in the log,
  beside Parquet files of the same rows, columns and compression, as Spark writes them.
- *typed*: an aggregation over two fields of JSON values: columns of the table (and 5 % parsed from the tail), beside
  parsing all of them from the log.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from bench import Bench
from rounds import best_of
from rows import Bar, Row, Unit, rate

import sawlog
import sawlog.spark
from sawlog.pipelines import table
from sawlog.pipelines.table import TableParams
from sawlog.tables.columns import RECORD

_HISTORY = 0.95
_PARTITIONS = 4
_JSON = "id bigint, customer string, amount double, status string, items array<string>, placed_at string"


def _fill(store: Path, chunks: Iterator[pa.Table], count: int, first: int) -> int:
    """Append that many chunks."""
    with sawlog.open(store, maintenance_interval_s=None) as opened:
        topic = opened.create_topic("events", _PARTITIONS, exist_ok=True, durability="os", segment_bytes=256 << 20)
        rows = 0
        for number in range(first, first + count):
            chunk = next(chunks)
            topic.partition(number % _PARTITIONS).append_arrow(chunk)
            rows += chunk.num_rows
        return rows


def _prepared(spark: Any, root: Path, chunks: Iterator[pa.Table], count: int, schema: str | None) -> int:
    """A topic of `count` chunks, of which 95 % are in its table; the number of records."""
    history = round(count * _HISTORY)
    rows = _fill(root / "store", chunks, history, 0)
    params = TableParams(str(root / "store"), "events", str(root / "lake"), schema=schema)
    assert table.run(spark, params).records == rows
    return rows + _fill(root / "store", chunks, count - history, history)


def union(data: Callable[[Bench], Any], aggregated: Callable[[Any], int], running: Any, spark_of: Any) -> Any:
    """Scan and aggregation, beside Parquet."""

    def run(bench: Bench) -> list[Row]:
        spark, given, root = spark_of(bench), data(bench), bench.path()
        root.mkdir(parents=True)
        chunks = given.chunk_count
        try:
            count = _prepared(spark, root, given.chunks(), chunks, None)
            log = spark.read.format("sawlog").option("path", str(root / "store")).option("subscribe", "events")
            log = log.option("columns", ",".join(RECORD.names)).load()
            log.write.option("compression", "zstd").parquet(str(root / "parquet"))
            parquet = spark.read.parquet(str(root / "parquet"))
            ours = sawlog.spark.table(spark, str(root / "store"), "events")
            return [
                _compared(bench, running, f"{name}, 95 % in a table, {given.size}", work, ours, parquet, count)
                for name, work in (("scan to noop", _noop), ("keyed aggregation", aggregated))
            ]
        finally:
            shutil.rmtree(root, ignore_errors=True)

    return run


def _noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _compared(bench: Bench, running: Any, what: str, work: Any, ours: Any, theirs: Any, count: int) -> Row:
    wanted = None if work is _noop else count
    best = best_of(
        [running("sawlog", lambda: work(ours), wanted), running("Parquet", lambda: work(theirs), wanted)], bench.effort
    )
    figures = {name: rate(Unit.RECORDS, sample, count) for name, sample in best.items()}
    bar = Bar(ratio=0.9, percent=True)
    return Row(what, figures["sawlog"], "Parquet, zstd", figures["Parquet"], bar, percent=True)


# --- JSON


def _orders(chunk_rows: int) -> Iterator[pa.Table]:
    """Values as a shop would write them: some 190 bytes."""
    random = np.random.default_rng(7)
    line = '{"id": %d, "customer": "c%05d", "amount": %.2f, "status": "%s", "items": ["item-%d", "item-%d"], '
    line += '"placed_at": "%s"}'
    first = 0
    while True:
        customers, amounts = random.integers(0, 20_000, chunk_rows), random.random(chunk_rows) * 500
        states, items = random.integers(0, 3, chunk_rows), random.integers(0, 9999, (chunk_rows, 2))
        values = [
            (
                line
                % (
                    first + number,
                    customers[number],
                    amounts[number],
                    ("placed", "paid", "delivered")[states[number]],
                    items[number, 0],
                    items[number, 1],
                    f"2026-01-{1 + number % 28:02d}T08:00:00Z",
                )
            ).encode()
            for number in range(chunk_rows)
        ]
        times = pa.array(1_767_225_600_000 + first + np.arange(chunk_rows), pa.timestamp("ms", "UTC"))
        keys = pa.array([b"c%05d" % each for each in customers], pa.binary())
        yield pa.table({"key": keys, "value": pa.array(values, pa.binary()), "timestamp": times})
        first += chunk_rows


def typed(running: Any, spark_of: Any) -> Any:
    """Two fields of JSON values, as columns and parsed."""

    def run(bench: Bench) -> list[Row]:
        from pyspark.sql import functions as f

        spark, root, chunk_rows = spark_of(bench), bench.path(), bench.scaled(50_000, 5_000)
        root.mkdir(parents=True)

        def summed(frame: Any) -> int:
            found = frame.groupBy("customer").agg(f.count("*").alias("n"), f.sum("amount")).collect()
            return sum(row.n for row in found)

        try:
            count = _prepared(spark, root, _orders(chunk_rows), 80, _JSON)
            log = spark.read.format("sawlog").option("path", str(root / "store")).option("subscribe", "events")
            log = log.option("columns", "value").load()
            shape = "customer string, amount double"
            parsed = log.select(f.from_json(log.value.cast("string"), shape).alias("order")).select("order.*")
            ours = sawlog.spark.table(spark, str(root / "store"), "events", columns=["customer", "amount"])
            best = best_of(
                [
                    running("sawlog", lambda: summed(ours), count),
                    running("parsed", lambda: summed(parsed), count),
                ],
                bench.effort,
            )
        finally:
            shutil.rmtree(root, ignore_errors=True)
        figures = {name: rate(Unit.RECORDS, sample, count) for name, sample in best.items()}
        what = "sum over two fields of JSON values, 95 % in a table"
        return [Row(what, figures["sawlog"], "parsed from the log", figures["parsed"], Bar(ratio=5))]

    return run
