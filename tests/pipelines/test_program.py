"""The jobs from the command line: `sawlog pipeline …` and spark-submit; and killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import sawlog as package
from sawlog import Record
from sawlog.cli import __main__ as script
from sawlog.pipelines import export, ingest, running
from sawlog.pipelines.export import ExportParams
from sawlog.pipelines.ingest import IngestParams

from ..cli.conftest import Cli

PATIENCE_S = 180.0
Fill = Callable[..., Path]
Contents = Callable[..., list[Record]]


def test_files_go_in_and_out(cli: Cli, tmp_path: Path, contents: Contents) -> None:
    (tmp_path / "in.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    taken = cli("pipeline", "ingest", "orders", tmp_path / "in.jsonl", "--key", "id", "--output", "json").ok().json
    assert (taken["records"], taken["format"]) == (2, "json")
    out = tmp_path / "out"
    written = cli("pipeline", "export", "orders", out, "--by", "topic", "--json", "--output", "json").ok().json
    assert written["records"] == 2
    assert ds.dataset(out, partitioning="hive", format="parquet").count_rows() == 2
    assert sorted(r.key for r in contents()) == [b"1", b"2"]


def test_a_topic_is_repartitioned_by_the_program(cli: Cli, filled: Fill, contents: Contents) -> None:
    filled(10, partitions=1)
    done = cli("pipeline", "repartition", "orders", "-P", 3, "--output", "json").ok().json
    assert (done["records"], done["partitions_before"], done["partitions"]) == (10, 1, 3)
    assert sorted(r.key for r in contents()) == sorted(b"k%d" % (n % 5) for n in range(10))


def test_what_is_missing_or_wrong_has_its_exit_code(cli: Cli, filled: Fill, tmp_path: Path) -> None:
    cli("pipeline", "export", "orders", tmp_path / "out").failed(3)
    filled(5)
    cli("pipeline", "export", "nothing", tmp_path / "out").failed(3)
    cli("pipeline", "export", "orders", tmp_path / "out", "--by", "colour").failed(2)
    cli("pipeline", "ingest", "orders", tmp_path / "missing.csv").failed(2)


@pytest.fixture
def unstarted(data: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The program, where Spark must not be started."""

    def refuse() -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setenv("SAWLOG_DATA", str(data))
    monkeypatch.setattr(running, "session", refuse)
    return Cli(data)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["export", "nothing", "out"], 3, "nothing"),
        (["stats", "nothing"], 3, "nothing"),
        (["verify", "nothing"], 3, "nothing"),
        (["repartition", "nothing", "-P", "2"], 3, "nothing"),
        (["export", "orders", "out", "--by", "colour"], 2, "colour"),
        (["export", "orders", "out", "--format", "delta"], 2, "pip install deltalake"),
        (["ingest", "orders", "missing.csv"], 2, "missing.csv"),
        (["ingest", "bad/name", "."], 2, "bad/name"),
        (["ingest", "orders", "missing-*.csv", "--compression", "rar"], 2, "rar"),
        (["stats", "-d", "nowhere"], 3, "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_can_be_known_is_said_before_spark_is_started(
    unstarted: Cli, filled: Fill, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, said: str
) -> None:
    filled(5)
    monkeypatch.chdir(unstarted.data.parent)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    assert said in unstarted("pipeline", *arguments).failed(code)
    assert not (unstarted.data.parent / "out").exists()


def test_a_missing_spark_is_said_with_what_to_install(
    unstarted: Cli, filled: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(5)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert "pip install '.[spark]'" in unstarted("pipeline", "stats").failed(1)


@pytest.mark.slow
def test_an_error_in_a_file_is_one_line_without_javas_traces(data: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\n1,2\n3\n")
    arguments = [
        "pipeline",
        "ingest",
        "orders",
        tmp_path / "a.csv",
        "-d",
        data,
        "--key",
        "id",
        "--schema",
        "id int, n int",
    ]
    process = started(sys.executable, "-m", "sawlog.cli", *arguments)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    lines = err.decode().splitlines()
    assert lines[-1] == f"sawlog: {tmp_path}/a.csv, row 2, line 3: 1 cells, but 2 columns"
    assert not [line for line in lines if "\tat " in line or "Exception" in line or "Traceback" in line]


def test_the_script_is_where_the_program_says(unstarted: Cli) -> None:
    assert Path(unstarted("pipeline", "script").ok().out.strip()) == Path(script.__file__)


# --- real processes


def started(*command: object) -> subprocess.Popen[bytes]:
    """A process with a Spark of its own, in a group of its own, so that all of it can be killed at once."""
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1]), "PYSPARK_PYTHON": sys.executable}
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    return subprocess.Popen(
        list(map(str, command)),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def kill_when(process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
    """Kill the process, its Java and its workers as soon as it has come so far."""
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not ready():
            assert process.poll() is None, (process.stderr.read() if process.stderr else b"").decode()
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
def test_an_export_that_was_killed_has_every_record_once(spark: Any, filled: Fill, tmp_path: Path, data: Path) -> None:
    filled(2000)
    out = tmp_path / "out"
    params = ExportParams(str(data), "orders", str(out), max_records=50)
    arguments = ["orders", out, "-d", data, "--max-records", 50]
    process = started(sys.executable, "-m", "sawlog.cli", "pipeline", "export", *arguments)
    commits = out / "_sawlog" / "checkpoint" / "commits"
    kill_when(process, lambda: (commits / "2").exists())
    report = export.run(spark, params)
    assert 0 < report.records < 2000
    found = ds.dataset(out, partitioning="hive", format="parquet").to_table(columns=["partition", "offset"])
    places = Counter((row["partition"], row["offset"]) for row in found.to_pylist())
    assert len(places) == 2000
    assert set(places.values()) == {1}


@pytest.mark.slow
def test_an_ingest_that_was_killed_has_every_line_once(
    spark: Any, tmp_path: Path, data: Path, contents: Contents
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(40):
        (source / f"{number:03d}.txt").write_text("".join(f"{number}-{line}\n" for line in range(50)))
    arguments = ["orders", source, "-d", data, "--files", 1]
    process = started(sys.executable, "-m", "sawlog.cli", "pipeline", "ingest", *arguments)
    partition = data / "topics" / "orders" / "partition-0"
    kill_when(process, lambda: sum(file.stat().st_size for file in partition.glob("*.log")) > 1000)  # some of 40 files
    ingest.run(spark, IngestParams(str(data), "orders", str(source), files=1))
    expected = Counter(f"{number}-{line}".encode() for number in range(40) for line in range(50))
    assert Counter(record.value for record in contents()) == expected


@pytest.mark.slow
def test_spark_submit_runs_a_job(filled: Fill, data: Path) -> None:
    filled(100)
    program = Path(sys.executable).parent / "spark-submit"
    options = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    arguments = [*options, script.__file__, "verify", "-d", data, "--output", "json"]
    process = started(program, *arguments)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err.decode()
    assert sum(each["records"] for each in json.loads(out)) == 100
