"""A Spark session with settings suitable for a log: for notebooks, scripts, tests and the pipelines.

Any session works: nothing here is required for `format("sawlog")`. What is set, and why:

- the workers run this Python (`PYSPARK_PYTHON`), so that they find the same packages;
- as many shuffle partitions as cores: Spark's default of two hundred is very slow for small micro-batches;
- four attempts per task (`local[2,4]`), as on a cluster; plain `local[2]` never retries;
- no web page, no console progress bar, UTC;
- unix sockets between the JVM and its workers, and the checkpoint manager that is faster for local files;
- the address of the driver: the loopback interface for a local master, so that no other machine can connect. Executors
  on other machines connect to the driver, so for `spark://HOST:PORT` it is the address from which this machine reaches
  HOST. For other masters (YARN, Kubernetes) Spark chooses it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"
#: The first master, of one or more.
_MASTER = re.compile(r"spark://(?P<host>\[[^]]+]|[^:,/]+)(:(?P<port>\d+))?")


def session(
    name: str = "sawlog",
    *,
    cores: int | None = None,
    memory: str | None = None,
    master: str | None = None,
    driver_host: str | None = None,
    **settings: str,
) -> SparkSession:
    """The active session, or a new one; `settings` are Spark's, with underscores for dots.

    `driver_host` is the address at which executors reach the driver, if the one that is chosen is wrong: behind NAT, or
    in a container. `spark_driver_host` and `spark_driver_bindAddress` do the same.
    """
    count = cores or machine_cores()
    given = {key.replace("_", "."): value for key, value in settings.items()}
    chosen = given.get("spark.master") or master or f"local[{count},4]"
    if driver_host is not None:
        given.setdefault("spark.driver.host", driver_host)
    network = {} if "spark.driver.host" in given else driver_address(chosen, os.environ)
    prepare_environment(network.get("spark.driver.host"))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(chosen)
    for key, value in {**_defaults(count, memory), **network, **given}.items():
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


def driver_address(master: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings for the address of the driver; none if Spark should choose it."""
    if master.startswith("local"):
        return {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    found = _MASTER.match(master)
    routed = None if found is None else _address_towards(found["host"].strip("[]"), int(found["port"] or 7077))
    asked = environment.get("SPARK_LOCAL_IP")
    if asked is not None and not _is_loopback(asked):
        return {"spark.driver.host": asked}
    return {} if routed is None else {"spark.driver.host": routed}


def _address_towards(host: str, port: int) -> str | None:
    """The address of this machine from which packets to a host are sent; None if it does not resolve."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, target = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # of a datagram socket: chooses a route, and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def prepare_environment(address: str | None = _LOOPBACK) -> None:
    """Set what Spark's launcher and its workers read: which Python, which Java, and the address of this machine."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if address == _LOOPBACK:
        os.environ.setdefault("SPARK_LOCAL_IP", address)
    elif address is not None:
        os.environ["SPARK_LOCAL_IP"] = address
    elif _is_loopback(os.environ.get("SPARK_LOCAL_IP", "")):
        del os.environ["SPARK_LOCAL_IP"]  # of a local session before
    home = find_java()
    if home is not None:
        os.environ["JAVA_HOME"] = home
