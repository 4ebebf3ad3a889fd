"""Process started by test_spark.py: `python -m ...spark_job ADDRESS DIRECTORY JAR...`; prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(address: str, directory: Path, jars: list[str]) -> dict[str, Any]:
    """Write a topic in batch, read it in several ways, copy it in a stream, and restart the stream."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("connector")
        .config("spark.jars", ",".join(jars))
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )

    def read(topic: str, **options: str) -> Any:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    def rows(topic: str) -> list[list[str]]:
        found = read(topic).selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").collect()
        return sorted(([row[0], row[1]] for row in found), key=lambda row: int(row[1].split()[1]))

    def write(frame: Any, topic: str) -> None:
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", address)
        writer.option("topic", topic).option("includeHeaders", "true").save()

    def numbered(first: int, last: int) -> Any:
        header = f.array(f.struct(f.lit("name").alias("key"), f.lit("value").cast("binary").alias("value")))
        frame = spark.range(first, last)
        return frame.select(
            (f.col("id") % 10).cast("string").alias("key"),
            f.concat(f.lit("value "), f.col("id").cast("string")).alias("value"),
            header.alias("headers"),
        )

    def stream() -> None:
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
        source = source.option("subscribePattern", "spark-i.*").option("startingOffsets", "earliest")
        sink = source.option("maxOffsetsPerTrigger", "300").load().writeStream.format("kafka")
        sink = sink.option("kafka.bootstrap.servers", address).option("topic", "spark-out")
        sink = sink.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True)
        sink.start().awaitTermination(200)

    made: dict[str, Any] = {}
    write(numbered(0, 1000), "spark-in")
    made["batch"] = rows("spark-in")
    first = read("spark-in", includeHeaders="true").select("headers").first()
    made["headers"] = [first[0][0][0], bytes(first[0][0][1]).decode()]
    middle = json.dumps({"spark-in": {"0": 500}})
    made["half"] = read("spark-in", startingOffsets=middle).count()
    made["since"] = read("spark-in", startingTimestamp="1000").count()
    stream()
    made["streamed"] = rows("spark-out")
    write(numbered(1000, 1100), "spark-in")
    stream()
    made["again"] = len(rows("spark-out")) - 1000
    spark.stop()
    return made


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])) + "\n")
