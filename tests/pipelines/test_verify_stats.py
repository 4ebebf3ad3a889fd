"""Checking and counting in parallel give the same result as in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sawlog.pipelines import stats, verify
from sawlog.pipelines.stats import StatsParams
from sawlog.pipelines.verify import VerifyParams
from sawlog.store.directory.store import DirectoryStore

from ..cli.conftest import Cli
from .conftest import moment

Fill = Callable[..., Path]


def damage(path: Path, position: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0xFF
    path.write_bytes(raw)


@pytest.mark.slow  # the quick tier reads every segment to find the damaged one
def test_every_segment_is_read(spark: Any, filled: Fill) -> None:
    data = filled(300, partitions=2, segment_bytes=2000)
    report = verify.run(spark, VerifyParams(str(data)))
    with DirectoryStore.open(data, "r") as store:
        logs = [store["orders"].partition(number) for number in range(2)]
        alone = [log.verify() for log in logs]
        names = [segment.name for log in logs for segment in log._segment_set.all]
    assert report.ok
    assert report.records == 300
    assert report.size_bytes == sum(each.size_bytes for each in alone)
    assert sum(each.batches for each in report.segments) == sum(each.batches for each in alone)
    assert [each.segment for each in report.segments] == names
    assert len(names) > 4


def test_damage_is_listed_with_its_place(spark: Any, filled: Fill) -> None:
    data = filled(300, partitions=2, segment_bytes=2000)
    bad = sorted((data / "topics" / "orders" / "partition-1").glob("*.log"))[1]
    damage(bad, 100)
    done: list[int] = []
    report = verify.run(spark, VerifyParams(str(data), "orders"), done.append)
    with DirectoryStore.open(data, "r") as store:
        alone = store["orders"].partition(1).verify()
    assert not report.ok
    [found] = [each for each in report.segments if each.problems]
    assert (found.partition, found.segment) == (1, bad.name)
    assert list(found.problems) == [str(problem) for problem in alone.problems]
    assert sum(done) == report.size_bytes


@pytest.mark.slow  # a job more
def test_a_topic_that_cannot_be_opened_does_not_hide_the_others(spark: Any, filled: Fill, data: Path) -> None:
    filled(10)
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store.create_topic("broken")
    damage(data / "topics" / "broken" / "topic.json", 20)
    report = verify.run(spark, VerifyParams(str(data)))
    assert [(each.topic, each.segment) for each in report.segments if each.problems] == [("broken", "topic.json")]
    assert report.records == 10


@pytest.mark.slow  # three jobs; the quick tier lists the damage
def test_damage_has_an_exit_code(cli: Cli, filled: Fill) -> None:
    data = filled(50)
    assert {row["problems"] == [] for row in cli("pipeline", "verify", "--output", "json").ok().json} == {True}
    damage(data / "topics" / "orders" / "partition-0" / "00000000000000000000.log", 70)
    result = cli("pipeline", "verify")
    assert result.code == 4
    assert "partition-0/00000000000000000000.log at byte 0" in result.err
    assert verify.main(["--data", str(data)]) == 4


def test_everything_is_counted(spark: Any, filled: Fill, data: Path, tmp_path: Path) -> None:
    filled(100, partitions=2)
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store.create_topic("empty")
        store["orders"].append(b"no key", timestamp=moment(100), partition=1)
        records = list(store["orders"].scan())
    report = stats.run(spark, StatsParams(str(data), every_s=600, parquet=str(tmp_path / "report")))
    rows = {(row.topic, row.partition): row for row in report.partitions}
    assert list(rows) == [("empty", 0), ("empty", None), ("orders", 0), ("orders", 1), ("orders", None)]
    whole = rows["orders", None]
    assert (whole.records, whole.keys, whole.without_key) == (101, 5, 1)
    assert whole.bytes == sum(len(record.key or b"") + len(record.value or b"") for record in records)
    assert (whole.oldest, whole.newest) == (moment(0), moment(100))
    assert [rows["orders", n].records for n in (0, 1)] == [sum(r.partition == n for r in records) for n in (0, 1)]
    assert (rows["empty", 0].records, rows["empty", 0].oldest) == (0, None)
    assert sum(rate.records for rate in report.rates if rate.time == moment(0)) == 10
    assert sum(rate.bytes for rate in report.rates) == whole.bytes
    partitions = pq.read_table(tmp_path / "report" / "partitions.parquet").to_pylist()
    assert [(row["topic"], row["partition"], row["records"]) for row in partitions] == [
        (row.topic, row.partition, row.records) for row in report.partitions
    ]
    rates = pq.read_table(tmp_path / "report" / "rates.parquet")
    assert int(rates["time"][0].as_py().timestamp() * 1000) == report.rates[0].time


@pytest.mark.slow
def test_the_step_suits_the_time(spark: Any, filled: Fill) -> None:
    data = filled(100)
    report = stats.run(spark, StatsParams(str(data), "orders"))
    assert report.step_ms == 30_000


@pytest.mark.slow
def test_there_is_a_picture(cli: Cli, filled: Fill, tmp_path: Path) -> None:
    filled(100)
    picture = tmp_path / "orders.svg"
    table = cli("pipeline", "stats", "orders", "--plot", picture).ok()
    assert picture.read_text().count("<g ") == 2
    assert "Records of orders over time" in picture.read_text()
    assert table.lines[0].split()[:3] == ["TOPIC", "PARTITION", "RECORDS"]
    shown = cli("pipeline", "stats", "--no-plot", "--output", "json").ok().json
    assert sum(row["records"] for row in shown["rates"]) == 100
