"""A local Spark session with settings suitable for a log: for notebooks, scripts, tests and the pipelines.

Any session works: nothing here is required for `format("sawlog")`. What is set, and why:

- the workers run this Python (`PYSPARK_PYTHON`), so that they find the same packages;
- as many shuffle partitions as cores: Spark's default of two hundred is very slow for small micro-batches;
- four attempts per task (`local[2,4]`), as on a cluster; plain `local[2]` never retries;
- no web page, no console progress bar, UTC;
- unix sockets between the JVM and its workers, and the checkpoint manager that is faster for local files.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(
    name: str = "sawlog",
    *,
    cores: int | None = None,
    memory: str | None = None,
    master: str | None = None,
    **settings: str,
) -> SparkSession:
    """The active session, or a new one; `settings` are Spark's, with underscores for dots."""
    prepare_environment()
    from pyspark.sql import SparkSession

    count = cores or machine_cores()
    builder = SparkSession.builder.appName(name).master(master or f"local[{count},4]")
    for key, value in {
        **_defaults(count, memory),
        **{key.replace("_", "."): value for key, value in settings.items()},
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(os.environ.get("SAWLOG_SPARK_LOG", "ERROR"))
    return spark


def machine_cores() -> int:
    """The number of cores of this machine: an estimate of what Spark has, where Spark cannot be asked."""
    return os.cpu_count() or 2


def _defaults(cores: int, memory: str | None) -> dict[str, str]:
    made = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Between the JVM and its Python workers: faster than TCP, and no other user of the machine can connect.
        "spark.python.unix.domain.socket.enabled": "true",
        # Half the time of a small micro-batch was spent on the two files of its checkpoint. This one also renames
        # them.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
    if memory is not None:
        made["spark.driver.memory"] = memory
    return made


def prepare_environment() -> None:
    """Set what Spark's launcher and its workers read: which Python, which Java."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    home = find_java()
    if home is not None:
        os.environ["JAVA_HOME"] = home
