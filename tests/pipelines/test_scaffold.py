"""The created project runs under spark-pipelines, and each run processes only new records."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import sawlog as package
from sawlog import Record
from sawlog.errors import InvalidConfig, TopicNotFound
from sawlog.pipelines import scaffold
from sawlog.pipelines.scaffold import ScaffoldParams

PATIENCE_S = 400.0
Fill = Callable[..., Path]
Contents = Callable[..., list[Record]]


def test_a_project_is_laid_out(filled: Fill, tmp_path: Path) -> None:
    data = filled(1)
    report = scaffold.run(ScaffoldParams(str(tmp_path / "my project"), str(data), "orders", to="loud-orders"))
    root = Path(report.target)
    assert sorted(report.files) == ["README.md", "run", "spark-pipeline.yml", "transformations/orders.py"]
    code = (root / "transformations" / "orders.py").read_text()
    compile(code, "orders.py", "exec")
    assert repr(str(data)) in code
    assert "loud_orders_sink" in code
    assert os.access(root / "run", os.X_OK)
    assert f"storage: {(root / 'storage').as_uri()}" in (root / "spark-pipeline.yml").read_text()


def test_nothing_is_overwritten(filled: Fill, tmp_path: Path) -> None:
    data = filled(1)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "mine.txt").write_text("precious")
    with pytest.raises(InvalidConfig, match="not empty"):
        scaffold.run(ScaffoldParams(str(tmp_path / "project"), str(data), "orders"))
    with pytest.raises(InvalidConfig, match="would never end"):
        scaffold.run(ScaffoldParams(str(tmp_path / "other"), str(data), "orders", to="orders"))
    with pytest.raises(TopicNotFound):
        scaffold.run(ScaffoldParams(str(tmp_path / "other"), str(data), "nothing"))


@pytest.mark.parametrize(
    ("name", "made"), [("orders", "orders"), ("web.clicks-EU", "web_clicks_eu"), ("2026", "t_2026"), ("---", "topic")]
)
def test_a_topic_becomes_a_table_name(name: str, made: str) -> None:
    assert scaffold.identifier(name) == made


@pytest.mark.slow
def test_the_second_run_takes_only_the_new_records(filled: Fill, tmp_path: Path, contents: Contents) -> None:
    data = filled(20)
    project = Path(scaffold.run(ScaffoldParams(str(tmp_path / "project"), str(data), "orders", to="loud")).target)
    run_project(project)
    assert counted(project) == (20, 20)
    assert len(contents("loud")) == 20
    first = set((project / "spark-warehouse" / "orders").glob("*.parquet"))
    filled(7, first=20)
    run_project(project)
    assert counted(project) == (27, 27)
    assert sorted(record.value for record in contents("loud")) == sorted(
        record.value.upper() for record in contents("orders") if record.value is not None
    )
    new = set((project / "spark-warehouse" / "orders").glob("*.parquet")) - first
    assert first
    assert sum(ds.dataset(path, format="parquet").count_rows() for path in new) == 7


def counted(project: Path) -> tuple[int, int]:
    """Return the number of records in the table, and the number that the view counted."""
    warehouse = project / "spark-warehouse"
    by_key: Any = ds.dataset(warehouse / "orders_by_key", format="parquet").to_table()
    return ds.dataset(warehouse / "orders", format="parquet").count_rows(), sum(by_key["records"].to_pylist())


def run_project(project: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1]), "PYSPARK_PYTHON": sys.executable}
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_REMOTE"):
        environment.pop(name, None)
    done = subprocess.run(
        [str(project / "run")], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    assert "Run is COMPLETED" in done.stdout + done.stderr
