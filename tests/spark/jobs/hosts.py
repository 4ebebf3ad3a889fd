"""A driver whose executors are on another host: writes a topic, and reads it.

python -m tests.spark.jobs.hosts MASTER STORE    says one line of JSON: the address of the driver, the number of records
"""

from __future__ import annotations

import json
import sys

import sawlog.spark

ROWS = 1000


def main(master: str, path: str) -> None:
    """In a process of its own."""
    spark = sawlog.spark.session(
        "hosts",
        master=master,
        cores=1,
        memory="600m",
        spark_executor_memory="600m",
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        spark_executor_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    sawlog.spark.register(spark)
    rows = spark.range(ROWS, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("sawlog").mode("append").option("path", path).option("topic", "orders").save()
    counted = spark.read.format("sawlog").option("path", path).option("subscribe", "orders").load().count()
    driver = spark.sparkContext.getConf().get("spark.driver.host")
    sys.stdout.write(json.dumps({"driver": driver, "counted": counted}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
