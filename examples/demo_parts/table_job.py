"""A separate program that keeps the topic `sales` as a table, then times a query over the table and the log.

    python table_job.py STORE LAKE PARQUET

It prints one line of JSON when the table is up to date, and waits for a line of input while newer sales are appended.
Then it copies everything to plain Parquet files, alternates the same query over both, and prints another line.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import sawlog.spark
from sawlog.pipelines import table
from sawlog.pipelines.table import TableParams

try:
    from demo_parts.sales import SCHEMA
except ImportError:  # started as a program: its own folder is on the path, not the parent
    from sales import SCHEMA  # type: ignore[import-not-found, no-redef]

ROUNDS = 3


def main(store: str, lake: str, parquet: str) -> None:
    """Run the job."""
    spark = sawlog.spark.session("sales", cores=2, memory="1g")
    began = time.perf_counter()
    report = table.run(spark, TableParams(store, "sales", lake, schema=SCHEMA))
    _say(records=report.records, quarantined=report.quarantined, seconds=time.perf_counter() - began)
    sys.stdin.readline()

    sawlog.spark.table(spark, store, "sales").write.parquet(parquet)
    both = sawlog.spark.table(spark, store, "sales")
    plain = spark.read.parquet(parquet)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        found, seconds = _asked(both)
        ours.append(seconds)
        same, seconds = _asked(plain)
        theirs.append(seconds)
    _say(sales=found[0], cents=found[1], same=found == same, seconds=min(ours), parquet_seconds=min(theirs))
    spark.stop()


def _asked(frame: Any) -> tuple[tuple[int, int], float]:
    """Return the total sales and revenue, and the time the query took."""
    from pyspark.sql import functions as f

    began = time.perf_counter()
    by = frame.groupBy("product", "customer").agg(
        f.count("*").alias("sales"), f.sum("cents").alias("cents"), f.max("timestamp").alias("last")
    )
    row = by.agg(f.sum("sales"), f.sum("cents"), f.max("last")).collect()[0]
    return (row[0], row[1]), time.perf_counter() - began


def _say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
