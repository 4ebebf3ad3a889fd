"""A cluster of two hosts: network namespaces with addresses of their own, connected by a virtual cable.

The addresses of the loopback interface are those of each host alone, as on real machines: an executor that is told to
connect to 127.0.0.1 does not reach the driver.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

import sawlog
from sawlog.spark.session import prepare_environment

from .jobs.hosts import ROWS
from .test_cluster import PATIENCE_S, begin, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.group("spark")]

#: Of documentation and tests (RFC 2544): no machine has them.
DRIVER, WORKER = "198.18.77.1", "198.18.77.2"
PORT = "7077"


def ip(*arguments: str) -> None:
    """The program of iproute2."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, str]]:
    """The namespace of each address."""
    if shutil.which("ip") is None:
        pytest.skip("needs the program ip: install iproute2")
    here = os.getpid()
    made = {DRIVER: f"sawlog-{here}-a", WORKER: f"sawlog-{here}-b"}
    with ExitStack() as undo:
        try:
            for name in made.values():
                ip("netns", "add", name)
                undo.callback(ip, "netns", "delete", name)
            cables = [f"sl{here % 10**6}{end}" for end in "ab"]
            ip("-n", made[DRIVER], "link", "add", cables[0], "type", "veth", "peer", cables[1], "netns", made[WORKER])
            for (address, name), cable in zip(made.items(), cables, strict=True):
                ip("-n", name, "address", "add", f"{address}/24", "dev", cable)
                ip("-n", name, "link", "set", cable, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except OSError as error:
            pytest.skip(f"network namespaces cannot be created here, which needs root: {error}")
        yield made


def test_a_driver_on_another_host_is_reached_by_executors(hosts: dict[str, str], tmp_path: Path) -> None:
    prepare_environment()
    spark_class = str(Path(pyspark.__path__[0]) / "bin" / "spark-class")
    deploy, url = "org.apache.spark.deploy", f"spark://{WORKER}:{PORT}"
    on = {address: ("ip", "netns", "exec", name) for address, name in hosts.items()}
    with sawlog.open(tmp_path / "data", maintenance_interval_s=None) as store:
        store.create_topic("orders", 2)
    with ExitStack() as undo:
        place = ["--host", WORKER, "--port", PORT, "--webui-port", "0"]
        command = [*on[WORKER], spark_class, f"{deploy}.master.Master", *place]
        _, said = begin(undo, tmp_path, "master", WORKER, *command)
        wait_for(said, "New state: ALIVE")
        place = ["--host", WORKER, "--webui-port", "0", "--cores", "1", "--memory", "1g"]
        place += ["--work-dir", str(tmp_path / "work"), url]
        command = [*on[WORKER], spark_class, f"{deploy}.worker.Worker", *place]
        _, said = begin(undo, tmp_path, "worker", WORKER, *command)
        wait_for(said, "Successfully registered with master")
        command = [*on[DRIVER], sys.executable, "-m", "tests.spark.jobs.hosts", url, str(tmp_path / "data")]
        driver, said = begin(undo, tmp_path, "driver", "127.0.0.1", *command)
        assert driver.wait(PATIENCE_S) == 0, said.read_text()[-6000:]
    found = json.loads([line for line in said.read_text().splitlines() if line.startswith("{")][-1])
    assert found == {"driver": DRIVER, "counted": ROWS}
