"""The streaming job, as a separate program: parse, join, window, aggregate, exactly once.

    python job.py STORE CHECKPOINT [RECORDS-PER-TRIGGER]

It reads the topics `clicks` and `orders`, looks up every product in the topic `products`, and adds up clicks, orders
and revenue for each minute of event time and category. A window is written to the topic `revenue` once, when no more
events can belong to it. The job stops after processing everything that existed when it started.
"""

from __future__ import annotations

import sys

import sawlog.spark

try:
    from demo_parts.events import WATERMARK
except ImportError:  # started as a program: its own folder is on the path, not the parent
    from events import WATERMARK  # type: ignore[import-not-found, no-redef]


def main(store: str, checkpoint: str, most: str = "20000") -> None:
    """Run the job to its end."""
    spark = sawlog.spark.session(
        "revenue",
        cores=2,
        memory="1g",
        spark_sql_streaming_statefulOperator_checkCorrectness_enabled="false",
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
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
    query = (
        rows.writeStream.format("sawlog")
        .option("path", store)
        .option("topic", "revenue")
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("micro-batches:", len(query.recentProgress), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
