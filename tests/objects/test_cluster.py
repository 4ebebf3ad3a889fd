"""A standalone Spark cluster over a bucket: a master and three workers that share nothing but the bucket.

Workers and drivers are killed in the middle of their work, and every record is stored once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest
from tests.spark.jobs import faults
from tests.spark.test_cluster import begin, free_port, wait_for

from sawlog.spark.session import prepare_environment
from sawlog.store.objects.store import ObjectStore

from . import servers
from .clustered import ROWS

pytestmark = [pytest.mark.slow, pytest.mark.group("spark")]

PATIENCE_S = 400.0


class Cluster:
    """A master with its workers and drivers."""

    def __init__(self, scratch: Path, undo: ExitStack) -> None:
        self._scratch, self._undo = scratch, undo
        self._class = str(Path(pyspark.__path__[0]) / "bin" / "spark-class")
        self._started = 0
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        place = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        _, said = self._begin("master", "127.0.0.1", self._class, "org.apache.spark.deploy.master.Master", *place)
        wait_for(said, "New state: ALIVE")
        self.workers = [self.add_worker() for _ in range(3)]

    def _begin(self, name: str, address: str, *command: str) -> tuple[Any, Path]:
        self._started += 1
        return begin(self._undo, self._scratch, f"{name}-{self._started}", address, *command)

    def add_worker(self) -> Any:
        """Start a worker with its own process group and address."""
        address = f"127.0.0.{self._started + 2}"
        place = ["--host", address, "--webui-port", "0", "--cores", "1", "--memory", "1g"]
        place += ["--work-dir", str(self._scratch / f"work-{self._started}"), self.url]
        made, said = self._begin("worker", address, self._class, "org.apache.spark.deploy.worker.Worker", *place)
        wait_for(said, "Successfully registered with master")
        return made

    def drive(self, store: ObjectStore, what: str) -> tuple[Any, Path]:
        """Start a driver, and return it with its output file."""
        command = [sys.executable, "-m", "tests.objects.clustered", self.url, store.path, str(self._scratch), what]
        return self._begin(f"driver-{what}", "127.0.0.1", *command)


def kill(process: Any) -> None:
    """Kill a process with all its children."""
    for each in faults.processes_of(process.pid):
        os.kill(each, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def store(seaweedfs: servers.Server) -> Iterator[ObjectStore]:
    """Return a replicated bucket, with its credentials in the environment of all started processes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in seaweedfs.variables.items():
            patch.setenv(name, value)
        with ObjectStore.open(seaweedfs.new_url(), maintenance_interval_s=5.0, cache_bytes=0) as made:
            for name in ("dying", "copies"):
                made.create_topic(name, 2)
            orders = made.create_topic("orders", 4)
            for first in range(0, ROWS, 200):
                orders.append_many([(b"%d" % number, b"%d" % number) for number in range(first, first + 200)])
            yield made


@pytest.fixture(scope="module")
def cluster(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    prepare_environment()
    scratch = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as undo:
        patch.setenv("XDG_CACHE_HOME", str(scratch / "cache"))
        yield Cluster(scratch, undo)


def values(store: ObjectStore, name: str) -> list[int]:
    return sorted(int(record.value or b"") for record in store.topic(name).scan())


def wait_until(what: Callable[[], bool], said: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, said.read_text()[-6000:]
        time.sleep(0.2)


def count(store: ObjectStore, name: str) -> int:
    topic = store.topic(name)
    return sum(topic.partition(number).visible_offset for number in range(topic.partitions))


def test_batches_are_exact_after_the_death_of_an_executor(cluster: Cluster, store: ObjectStore) -> None:
    driver, said = cluster.drive(store, "batch")
    assert driver.wait(PATIENCE_S) == 0, said.read_text()[-6000:]
    found = json.loads([line for line in said.read_text().splitlines() if line.startswith("[")][-1])
    assert found == [ROWS, ROWS, ROWS * (ROWS - 1) // 2]
    assert values(store, "dying") == list(range(ROWS))


def test_a_stream_is_exact_after_kills_of_a_worker_and_the_driver(cluster: Cluster, store: ObjectStore) -> None:
    driver, said = cluster.drive(store, "stream")
    wait_until(lambda: count(store, "copies") > 0, said)
    kill(cluster.workers.pop())
    before = count(store, "copies")
    wait_until(lambda: count(store, "copies") > before, said)
    kill(driver)
    cluster.workers.append(cluster.add_worker())
    for _ in range(2):
        driver, said = cluster.drive(store, "stream")
        assert driver.wait(PATIENCE_S) == 0, said.read_text()[-6000:]
    assert values(store, "copies") == list(range(ROWS))
    orders = {record.value: record.key for record in store.topic("orders").scan()}
    assert {record.value: record.key for record in store.topic("copies").scan()} == orders
