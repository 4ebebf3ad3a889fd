"""Work for a cluster whose store is a bucket. It needs only the address, and the credentials in the environment.

python -m tests.objects.clustered MASTER URL SCRATCH batch     write with an executor that dies, read, print JSON
python -m tests.objects.clustered MASTER URL SCRATCH stream    copy the present records of `orders` to `copies`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.spark.jobs.clustered import dying, write
from tests.spark.jobs.copying import copy

import sawlog.spark

ROWS = 6000
#: Records of one micro-batch: few, so that there are many micro-batches.
BATCH_ROWS = 500


def session(master: str) -> Any:
    """Start a driver of the cluster, with executors of one core each."""
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    made = sawlog.spark.session(
        "bucket",
        master=master,
        cores=3,
        memory="600m",
        spark_executor_memory="600m",
        spark_executor_cores="1",
        spark_driver_extraJavaOptions=quick,
        spark_executor_extraJavaOptions=quick,
    )
    sawlog.spark.register(made)
    return made


def main(master: str, url: str, scratch: str, what: str) -> None:
    """Run in a process of its own."""
    spark = session(master)
    if what == "stream":
        copy(spark, url, Path(scratch) / "checkpoint", maxOffsetsPerTrigger=BATCH_ROWS).awaitTermination()
    else:
        rows = spark.range(ROWS, numPartitions=6).selectExpr("CAST(id AS STRING) AS value")
        write(rows.mapInArrow(lambda batches: dying(batches, scratch), "value string"), url, "dying")
        found = spark.read.format("sawlog").option("path", url).option("topic", "orders")
        values = found.option("minPartitions", 6).load().selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS n")
        sums = values.selectExpr("count(*)", "count(DISTINCT n)", "sum(n)").collect()[0]
        sys.stdout.write(json.dumps(list(sums)) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
