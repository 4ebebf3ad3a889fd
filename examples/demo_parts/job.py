"""The Spark jobs, as a separate program: a stream with a join and windows, and a topic as a Delta table.

    python job.py STORE OUTPUT RECORDS-PER-TRIGGER

It starts Spark, then runs the steps that it reads from stdin, and prints one line of JSON for each:

    stream   read the topics `clicks` and `orders`, look up every product in the topic `products`, and add up clicks,
             orders and revenue for each minute of event time and category. A window is written to the topic `revenue`
             once, when no more events can belong to it. Stops after everything that existed when it started.
    table    make a Delta table of the topic `sales`
    query    copy table and log to plain Parquet files, and alternate the same query over both
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import sawlog.spark
from sawlog.pipelines import table
from sawlog.pipelines.table import TableParams

try:
    from demo_parts.events import WATERMARK
    from demo_parts.sales import SCHEMA
except ImportError:  # started as a program: its own folder is on the path, not the parent
    from events import WATERMARK  # type: ignore[import-not-found, no-redef]
    from sales import SCHEMA  # type: ignore[import-not-found, no-redef]

ROUNDS = 3


def main(store: str, output: str, most: str) -> None:
    """Run the steps that stdin names."""
    place = Path(output)
    spark = sawlog.spark.session(
        "demo",
        cores=2,
        memory="1g",
        spark_local_dir=str(place / "spark"),
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        spark_sql_streaming_statefulOperator_checkCorrectness_enabled="false",
    )
    for line in sys.stdin:
        began = time.perf_counter()
        if line == "stream\n":
            found = stream(spark, store, str(place / "checkpoint"), most)
        elif line == "table\n":
            report = table.run(spark, TableParams(store, "sales", str(place / "lake"), schema=SCHEMA))
            found = {"records": report.records, "quarantined": report.quarantined}
        else:
            found = query(spark, store, str(place / "parquet"))
        print(json.dumps({"took": time.perf_counter() - began, **found}), flush=True)
    spark.stop()


def stream(spark: Any, store: str, checkpoint: str, most: str) -> dict[str, Any]:
    """Run the stream to its end."""
    from pyspark.sql import functions as f

    source = spark.readStream.format("sawlog").option("path", store).option("startingOffsets", "earliest")
    source = source.option("maxOffsetsPerTrigger", most).option("groupId", "revenue-job")
    events = source.option("subscribe", "clicks,orders").option("columns", "topic,value").load()
    shape = "product string, customer string, time_ms bigint, quantity int, end boolean"
    parsed = events.select("topic", f.from_json(f.col("value").cast("string"), shape).alias("event")).select(
        "topic", "event.*"
    )

    catalogue = spark.read.format("sawlog").option("path", store).option("subscribe", "products").load()
    looked_up = f.from_json(f.col("value").cast("string"), "category string, price_cents bigint")
    prices = catalogue.select(f.col("key").cast("string").alias("product"), looked_up.alias("p")).select(
        "product", "p.*"
    )

    revenue = (
        parsed.withColumn("time", f.timestamp_millis("time_ms"))
        .withWatermark("time", WATERMARK)
        .join(f.broadcast(prices), "product")
        .groupBy(f.window("time", "1 minute"), "category")
        .agg(
            f.sum(f.when(f.col("topic") == "clicks", 1).otherwise(0)).alias("clicks"),
            f.sum(f.when(f.col("topic") == "orders", 1).otherwise(0)).alias("orders"),
            f.coalesce(f.sum(f.col("quantity") * f.col("price_cents")), f.lit(0)).alias("cents"),
        )
    )
    rows = revenue.select(
        f.col("category").alias("key"),
        f.to_json(
            f.struct(f.unix_millis(f.col("window.start")).alias("minute_ms"), "category", "clicks", "orders", "cents")
        ).alias("value"),
    )
    running = (
        rows.writeStream.format("sawlog")
        .option("path", store)
        .option("topic", "revenue")
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    return {"micro_batches": len(running.recentProgress)}


def query(spark: Any, store: str, parquet: str) -> dict[str, Any]:
    """Copy everything to Parquet files, then time the same query over both."""
    sawlog.spark.table(spark, store, "sales").write.parquet(parquet)
    both = sawlog.spark.table(spark, store, "sales")
    plain = spark.read.parquet(parquet)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        found, seconds = _asked(both)
        ours.append(seconds)
        same, seconds = _asked(plain)
        theirs.append(seconds)
    return {
        "sales": found[0], "cents": found[1], "same": found == same, "seconds": min(ours),
        "parquet_seconds": min(theirs),
    }  # fmt: skip


def _asked(frame: Any) -> tuple[tuple[int, int], float]:
    """Return the total sales and revenue, and the time the query took."""
    from pyspark.sql import functions as f

    began = time.perf_counter()
    by = frame.groupBy("product", "customer").agg(
        f.count("*").alias("sales"), f.sum("cents").alias("cents"), f.max("timestamp").alias("last")
    )
    row = by.agg(f.sum("sales"), f.sum("cents"), f.max("last")).collect()[0]
    return (row[0], row[1]), time.perf_counter() - began


if __name__ == "__main__":
    main(*sys.argv[1:])
