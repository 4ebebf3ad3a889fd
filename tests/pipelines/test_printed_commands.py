"""Run the examples of the pipelines' help, of the README and of docs/spark.md with Spark, unchanged.

Except that endless ones end: `--every` is left out, and a streaming query is stopped when it has read everything.
Paths are made absolute, because the Spark of these tests was not started in the directory of a test.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import sawlog as package
from sawlog.cli import __main__ as script
from sawlog.store.directory.store import DirectoryStore

from ..cli.conftest import Cli
from ..cli.test_reference import ALL

ROOT = Path(__file__).resolve().parents[2]
ORDER = {"customer": {"id": "7"}, "placed_at": "2026-11-01T08:00:00Z"}


def examples() -> list[tuple[str, str]]:
    """(command, line of its examples), of all pipelines."""
    found = []
    for path, each in ALL.items():
        if path[0] == "pipeline":
            _, _, text = (each.help or "").partition("Examples:")
            found += [(path[1], line) for line in filter(None, map(str.strip, text.splitlines()))]
    return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the store and the files that are named."""
    monkeypatch.chdir(tmp_path)
    with DirectoryStore.open("data", maintenance_interval_s=None) as store:
        orders = store.create_topic("orders", partitions=4, durability="os")
        for number in range(20):
            orders.append(json.dumps({**ORDER, "n": number}).encode(), key=b"%d" % (number % 5))
        store.create_topic("prices", cleanup_policy="compact").append(b"7", key=b"ACME")
    for folder, name, text in [
        ("incoming", "a.ndjson", json.dumps(ORDER)),
        ("prices", "a.csv", "symbol,price\nACME,7"),
        ("app", "app.log", "started"),
    ]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text + "\n")
    (tmp_path / "orders.avsc").write_text('{"type": "record", "name": "O", "fields": [{"name": "n", "type": "long"}]}')
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("name", "line"), [each for each in examples() if each[1].startswith("sawlog ")])
def test_an_example_of_the_help_runs_as_printed(name: str, line: str, place: Path, cli: Cli) -> None:
    line = line.replace("/var/log/app", str(place / "app")).replace(" -d data", f" -d {place / 'data'}")
    if name in ("ingest", "export", "table"):
        line = re.sub(" --(every|freshness) [^ ]+", "", line)
    cli(*shlex.split(line)[1:]).ok()


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for _, line in examples() if not line.startswith("sawlog ")])
def test_an_example_with_spark_submit_runs(line: str, place: Path) -> None:
    """With the path that `sawlog pipeline script` prints."""
    line = line.replace("$(sawlog pipeline script)", shlex.quote(script.__file__))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(package.__file__).parents[1]),
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "SOURCE" in done.stdout


def ended(spark: Any) -> None:
    """Wait until all running queries have read everything, then stop them."""
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()


@pytest.mark.slow
def test_the_readme_copies_a_topic_with_spark_once(place: Path, spark: Any) -> None:
    [block] = re.findall(
        r"^```python\n(import sawlog\.spark.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    shared = block.replace("spark.stop()\n", "")  # other tests use the session, too
    for _ in range(2):
        exec(re.sub('"(data|checkpoint)"', f'"{place}/\\1"', shared), {})
        with DirectoryStore.open("data", "r") as store:
            assert len(list(store["copy"].scan())) == 20


@pytest.mark.slow
def test_python_of_the_page_on_spark_runs(place: Path, spark: Any) -> None:
    text = (
        (ROOT / "docs" / "spark.md")
        .read_text()
        .replace('"/data/', f'"{place}/')
        .replace(f"{place}/store", f"{place}/data")
    )
    setup, streaming, batch, delta = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(setup, names)
    with DirectoryStore.open("data", maintenance_interval_s=None) as store:
        store.create_topic("totals", partitions=2)
    source = spark.readStream.format("sawlog").option("path", str(place / "data")).option("subscribe", "orders")
    names["totals"] = source.option("startingOffsets", "earliest").load().selectExpr("key AS customer", "offset")
    exec(streaming, names)
    ended(spark)
    exec(batch, names)
    frame = spark.createDataFrame([("7", "sum")], "key string, value string")
    for _ in range(2):  # the second one is the same micro-batch once more
        names["store"](frame, 0)
    with DirectoryStore.open("data", "r") as store:
        assert len(list(store["totals"].scan())) == 21
    deltalake = pytest.importorskip("deltalake")
    exec(delta, names)
    ended(spark)
    for number in (0, 7, 7):  # repeated micro-batches are skipped
        names["append"](spark.createDataFrame([("{}", datetime.now(UTC))], "value string, timestamp timestamp"), number)
    assert deltalake.DeltaTable(f"{place}/lake/orders").to_pyarrow_table().num_rows == 21


def test_the_two_lines_that_change_for_a_kafka_job_read_the_topic(place: Path, spark: Any) -> None:
    diff, _ = re.findall(r"^```diff\n(.*?)^```", (ROOT / "docs" / "spark.md").read_text(), re.DOTALL | re.MULTILINE)
    kept = "".join(line[2:].strip() for line in diff.splitlines() if not line.startswith("-"))
    names: dict[str, Any] = {"spark": spark}
    exec(kept.replace("/data/store", str(place / "data")), names)
    assert names["events"].isStreaming
    assert "timestampType" in names["events"].columns
