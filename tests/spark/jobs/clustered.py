"""Work for a cluster: tasks that stall and are run a second time elsewhere, an executor that dies, a stream.

python -m tests.spark.jobs.clustered MASTER STORE SCRATCH    says one line of JSON: what happened
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sawlog.spark

from .copying import copy

ROWS = 4000
_STALL_S = 60.0


def once(mark: Path) -> bool:
    """Return True for the first caller."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def executor() -> int:
    """The JVM that this task runs under: a worker's grandparent, or its parent."""
    above = os.getppid()
    while True:
        with open(f"/proc/{above}/stat") as status:
            name, fields = status.read().split("(", 1)[1].rsplit(")", 1)
        if name == "java":
            return above
        above = int(fields.split()[1])


def stalling(batches: Any, scratch: str) -> Iterator[Any]:
    """The first attempt at the second half of the rows waits for the second attempt to end, or nearly."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    first = context.partitionId() == 1 and context.attemptNumber() == 0
    yield from batches
    if context.partitionId() == 1:
        (Path(scratch) / f"executor-{executor()}").touch()
    ending = time.monotonic() + _STALL_S
    while first and not (Path(scratch) / "overtaken").exists() and time.monotonic() < ending:
        time.sleep(0.05)
    if context.partitionId() == 1 and not first:
        (Path(scratch) / "overtaken").touch()
        time.sleep(0.5)  # so that both have staged when one of them is told to end


def dying(batches: Any, scratch: str) -> Iterator[Any]:
    """One attempt takes its executor with it."""
    yield from batches
    if once(Path(scratch) / "died"):
        os.kill(executor(), signal.SIGKILL)
        time.sleep(_STALL_S)


def write(frame: Any, path: str, topic: str) -> None:
    frame.write.format("sawlog").mode("append").option("path", path).option("topic", topic).save()


def main(master: str, path: str, scratch: str) -> None:
    """In a process of its own."""
    spark = sawlog.spark.session(
        "clustered",
        master=master,
        cores=2,
        memory="600m",
        spark_executor_memory="600m",
        spark_executor_cores="1",
        spark_speculation="true",
        spark_speculation_interval="100ms",
        spark_speculation_quantile="0.5",
        spark_speculation_multiplier="1.1",
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        spark_executor_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    sawlog.spark.register(spark)
    rows = spark.range(ROWS, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
    write(rows.mapInArrow(lambda batches: stalling(batches, scratch), "value string"), path, "speculative")
    write(rows.mapInArrow(lambda batches: dying(batches, scratch), "value string"), path, "dying")
    read = spark.read.format("sawlog").option("path", path).option("subscribe", "orders").load()
    counted = read.count()
    for _ in range(2):
        copy(spark, path, Path(scratch) / "checkpoint", maxOffsetsPerTrigger=ROWS // 2).awaitTermination()
    sys.stdout.write(json.dumps({"counted": counted}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
