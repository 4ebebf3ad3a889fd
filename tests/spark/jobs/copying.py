"""A streaming query that copies one topic to another, so that duplicates and gaps can be counted.

python -m tests.spark.jobs.copying STORE CHECKPOINT [NAME=VALUE...]   copies `orders` to `copies`, everything that is
                                                                      available now; says "ready" when the query starts,
                                                                      and "done". NAME is an option of either end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import sawlog.spark

from . import faults

_OF_THE_SINK = {"compression", "batchBytes", "lockTimeout", "partitions"}


def copy(
    spark: Any,
    path: Path | str,
    checkpoint: Path | str,
    *,
    source: str = "orders",
    target: str = "copies",
    trigger: dict[str, Any] | None = None,
    **options: object,
) -> Any:
    """Start the query. With an option `fault` (see faults.py) something happens to it."""
    kind = faults.NAME if "fault" in options else "sawlog"
    reading = spark.readStream.format(kind).option("path", str(path)).option("subscribe", source)
    reading = reading.option("startingOffsets", "earliest")
    for name, value in options.items():
        if name not in _OF_THE_SINK:
            reading = reading.option(name, str(value))
    writing = reading.load().select("key", "value", "timestamp").writeStream.format(kind)
    for name, value in options.items():
        if name in _OF_THE_SINK or name in faults.OPTIONS:
            writing = writing.option(name, str(value))
    writing = writing.option("path", str(path)).option("topic", target).option("checkpointLocation", str(checkpoint))
    return writing.trigger(**(trigger or {"availableNow": True})).start()


def main(path: str, checkpoint: str, *given: str) -> None:
    """In a process of its own."""
    spark = sawlog.spark.session(
        "copying",
        cores=2,
        memory="1g",
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    sawlog.spark.register(spark)
    faults.register(spark)
    options = dict(each.split("=", 1) for each in given)
    query = copy(spark, path, checkpoint, **options)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    query.awaitTermination()
    sys.stdout.write("done\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
