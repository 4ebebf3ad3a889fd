"""A standalone cluster: a master and two workers in processes of their own, and a driver that uses them.

Each worker has a loopback address of its own, because Spark runs a speculative attempt on another host only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest
from tests.processes.launch import ROOT

import sawlog
from sawlog import Store
from sawlog.spark.session import prepare_environment

from .jobs import faults
from .jobs.clustered import ROWS
from .test_writing import left

pytestmark = [pytest.mark.slow, pytest.mark.group("spark")]

PATIENCE_S = 300.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def begin(undo: ExitStack, scratch: Path, name: str, address: str, *command: str) -> tuple[Any, Path]:
    """A process that ends with the test, together with all that it starts; and where it writes to."""
    path = os.pathsep.join([str(Path(sawlog.__file__).parents[1]), str(ROOT)])
    said = scratch / f"{name}.txt"
    output = undo.enter_context(said.open("w"))
    made = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": address, "SPARK_HOME": pyspark.__path__[0]},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )

    def end() -> None:
        for process in faults.processes_of(made.pid):
            os.kill(process, signal.SIGKILL)
        made.wait()

    undo.callback(end)
    return made, said


def wait_for(said: Path, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while what not in said.read_text():
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master and two workers with one core each."""
    prepare_environment()
    scratch = tmp_path_factory.mktemp("cluster")
    spark_class = str(Path(pyspark.__path__[0]) / "bin" / "spark-class")
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as undo:
        deploy = "org.apache.spark.deploy"
        place = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        _, said = begin(undo, scratch, "master", "127.0.0.1", spark_class, f"{deploy}.master.Master", *place)
        wait_for(said, "New state: ALIVE")
        for number in (2, 3):
            address = f"127.0.0.{number}"
            place = ["--host", address, "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            place += ["--work-dir", str(scratch / f"work-{number}"), url]
            name = f"worker-{number}"
            _, worker_said = begin(undo, scratch, name, address, spark_class, f"{deploy}.worker.Worker", *place)
            wait_for(worker_said, "Successfully registered with master")
        yield url


@pytest.fixture(scope="module")
def result(master: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Path, dict[str, Any]]]:
    """The store after the job, its scratch directory, and the job's report."""
    scratch = tmp_path_factory.mktemp("scratch")
    with sawlog.open(scratch / "data", maintenance_interval_s=None) as store, ExitStack() as undo:
        for name in ("speculative", "dying", "copies"):
            store.create_topic(name, 2)
        store.create_topic("orders", 4).append_many([b"%d" % number for number in range(ROWS)])
        command = [sys.executable, "-m", "tests.spark.jobs.clustered", master, str(scratch / "data"), str(scratch)]
        driver, said = begin(undo, scratch, "driver", "127.0.0.1", *command)
        assert driver.wait(PATIENCE_S) == 0, said.read_text()[-6000:]
        found = json.loads([line for line in said.read_text().splitlines() if line.startswith("{")][-1])
        yield store, scratch, found


Result = tuple[Store, Path, dict[str, Any]]


def values(store: Store, name: str) -> list[int]:
    return sorted(int(record.value or b"") for record in store[name].scan())


def test_a_task_that_ran_twice_at_once_has_written_once(result: Result) -> None:
    store, scratch, _ = result
    assert (scratch / "overtaken").exists()
    assert len(list(scratch.glob("executor-*"))) == 2
    assert values(store, "speculative") == list(range(ROWS))


def test_an_executor_that_dies_with_what_it_staged_changes_nothing(result: Result) -> None:
    store, scratch, _ = result
    assert (scratch / "died").exists()
    assert values(store, "dying") == list(range(ROWS))


def test_a_batch_is_read_on_all_workers(result: Result) -> None:
    assert result[2]["counted"] == ROWS


def test_a_stream_through_the_cluster_is_exact(result: Result) -> None:
    assert values(result[0], "copies") == list(range(ROWS))


def test_no_commit_is_left_to_be_completed(result: Result) -> None:
    """Attempts that were told to end after their job was done may have left files: their time runs out."""
    _, scratch, _ = result
    assert not [name for name in left(scratch / "data") if ".intent" in name or ".applied" in name]
