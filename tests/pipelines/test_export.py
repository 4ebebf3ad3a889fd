"""A topic becomes Parquet or Delta: each record once, after any number of runs and deaths."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from sawlog.errors import InvalidConfig, TopicNotFound
from sawlog.pipelines import export
from sawlog.pipelines.export import ExportParams
from sawlog.storage import FileDirectory, checksummed
from sawlog.store.directory.store import DirectoryStore

from ..looping import for_each
from .conftest import NoSpark, forget_last_commit, moment

FORMATS = [pytest.param("parquet", marks=pytest.mark.slow), "delta"]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def job(spark: Any, data: Path, target: Path) -> Callable[..., export.TableExportReport]:
    """The job on the topic `orders`."""

    def run(progress: Any = None, **params: Any) -> export.TableExportReport:
        given = {"data": str(data), "topic": "orders", "target": str(target), **params}
        return export.run(spark, ExportParams(**given), progress)

    return run


@pytest.fixture
def write(spark: Any, data: Path, target: Path) -> Callable[..., export.TableExportReport]:
    """Run the job."""
    return job(spark, data, target)


@pytest.fixture
def refused(data: Path, target: Path) -> Callable[..., export.TableExportReport]:
    """Run the job, which must refuse before it uses Spark."""
    return job(NoSpark(), data, target)


Write = Callable[..., export.TableExportReport]
Fill = Callable[..., Path]


def rows(target: Path, form: str = "parquet") -> list[dict[str, Any]]:
    """Read the target as a program that knows neither Spark nor sawlog."""
    if form == "delta":
        from deltalake import DeltaTable

        return list(DeltaTable(str(target)).to_pyarrow_table().to_pylist())
    return list(ds.dataset(target, partitioning="hive", format="parquet").to_table().to_pylist())


def places(found: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    return Counter((row["partition"], row["offset"]) for row in found)


def files(target: Path) -> list[Path]:
    return sorted(path for path in target.rglob("*.parquet") if "_sawlog" not in path.parts)


def once(count: int, found: list[dict[str, Any]]) -> None:
    """Return every written record, once."""
    assert len(found) == count
    assert set(places(found).values()) == {1}
    assert {json.loads(row["value"])["n"] for row in found} == set(range(count))


@pytest.mark.slow  # three runs; the quick tier has a second one that repeats a micro-batch
@pytest.mark.parametrize("form", FORMATS)
def test_a_second_run_adds_only_what_is_new(write: Write, target: Path, filled: Fill, form: str) -> None:
    filled(30)
    assert write(format=form).records == 30
    assert write(format=form).records == 0
    filled(5, first=30)
    assert write(format=form).records == 5
    once(35, rows(target, form))


@pytest.mark.parametrize("form", FORMATS)
def test_a_batch_that_spark_repeats_is_there_once(write: Write, target: Path, filled: Fill, form: str) -> None:
    filled(10)
    write(format=form, compact=False)
    assert forget_last_commit(target / "_sawlog" / "checkpoint") == 0
    filled(5, first=10)
    write(format=form)
    once(15, rows(target, form))


@pytest.mark.slow
def test_a_batch_that_was_half_moved_in_is_there_once(write: Write, target: Path, filled: Fill) -> None:
    filled(30)
    write(max_records=10, compact=False, by=("partition",))
    assert forget_last_commit(target / "_sawlog" / "checkpoint") == 2
    with_directory(target, lambda notes: checksummed.store(notes, "done", {"batch": 1}))
    half = [path for path in files(target) if "-0000000002-" in path.name]
    assert len(half) == 2
    half[0].unlink()
    (target / "_sawlog" / "staging").mkdir()
    shutil.copy(half[1], target / "_sawlog" / "staging" / "left.parquet")
    write(max_records=10, by=("partition",))
    once(30, rows(target))


def with_directory(target: Path, act: Callable[[FileDirectory], None]) -> None:
    notes = FileDirectory(target / "_sawlog")
    try:
        act(notes)
    finally:
        notes.close()


def test_records_keep_everything_they_have(write: Write, target: Path, filled: Fill) -> None:
    filled(3, partitions=1)
    write(headers=True)
    found = sorted(rows(target), key=lambda row: row["offset"])
    assert [row["key"] for row in found] == [b"k0", b"k1", b"k2"]
    assert [row["headers"] for row in found] == [[{"key": "n", "value": b"%d" % number}] for number in range(3)]
    assert [int(row["timestamp"].timestamp() * 1000) for row in found] == [moment(number) for number in range(3)]
    assert {row["topic"] for row in found} == {"orders"}


@pytest.mark.slow
def test_directories_are_by_the_columns_that_are_named(write: Write, target: Path, filled: Fill) -> None:
    filled(3000, partitions=1)
    write(by=("date", "hour"))
    found = {path.parent.relative_to(target).as_posix() for path in files(target)}
    assert {"date=2026-01-01/hour=0", "date=2026-01-01/hour=23", "date=2026-01-03/hour=1"} <= found
    assert len(found) == 50


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_small_files_are_put_together(write: Write, target: Path, filled: Fill, form: str) -> None:
    filled(40)
    report = write(format=form, max_records=10, by=())
    merged = 8 if form == "parquet" else 4  # a task for each of two partitions; Delta's writer joins those of a batch
    assert (report.batches, report.merged_files, report.new_files) == (4, merged, 1)
    if form == "parquet":
        assert len(files(target)) == 1
        assert pq.ParquetFile(files(target)[0]).num_row_groups == 1
    once(40, rows(target, form))


@pytest.mark.slow
def test_files_that_are_large_enough_are_left_alone(write: Write, target: Path, filled: Fill) -> None:
    filled(40)
    report = write(max_records=10, by=(), file_bytes=1000)
    assert report.merged_files == 0
    assert len(files(target)) == 8


@pytest.mark.slow
def test_other_files_in_the_target_are_left_alone(write: Write, target: Path, filled: Fill) -> None:
    filled(10)
    write(by=())
    [path] = files(target)
    shutil.copy(path, target / "mine.parquet")
    filled(10, first=10)
    write(by=())
    assert (target / "mine.parquet").exists()


@pytest.mark.slow  # the quick export through the program parses JSON
def test_values_are_taken_apart_and_what_does_not_parse_is_kept(
    write: Write, target: Path, filled: Fill, data: Path
) -> None:
    filled(3)
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store["orders"].append(b"not json", timestamp=moment(3))
        store["orders"].append(b'{"n": "seven"}', timestamp=moment(3))
        store["orders"].append(None, b"k", timestamp=moment(3))
    write(json=True, schema="n int, who string")
    found = rows(target)
    assert sorted(row["value"]["n"] for row in found if row["value"]) == [0, 1, 2]
    assert {row["unparsed"] for row in found if row["value"] is None} == {b"not json", b'{"n": "seven"}', None}


@pytest.mark.slow
def test_a_schema_is_inferred_once_and_kept(write: Write, target: Path, filled: Fill, data: Path) -> None:
    filled(3)
    write(json=True)
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store["orders"].append(b'{"n": 3, "later": true}', timestamp=moment(0))
    write(json=True)
    assert all(set(row["value"]) == {"n", "who"} for row in rows(target))


@pytest.mark.slow  # 8 s; the quick runs end by themselves
def test_it_goes_on_until_it_is_stopped(write: Write, target: Path, filled: Fill) -> None:
    filled(10)

    seen = 0

    def progress(count: int) -> None:
        nonlocal seen
        seen += count
        if seen == 10:
            filled(5, first=10)  # may come in several micro-batches
        elif seen == 15:
            raise KeyboardInterrupt

    report = write(progress, every_s=0.1)
    assert (report.stopped, report.records) == (True, 15)
    once(15, rows(target))


@pytest.mark.slow  # a whole run first; by hand below
def test_a_recreated_topic_is_noticed(write: Write, target: Path, filled: Fill, data: Path) -> None:
    filled(10)
    write()
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store.delete_topic("orders")
    filled(20)
    with pytest.raises(InvalidConfig, match="recreated"):
        write()
    assert len(rows(target)) == 10


OTHERS: list[dict[str, Any]] = [{"format": "delta"}, {"json": True}, {"headers": True}]


@pytest.mark.slow  # a whole run first; by hand below
@pytest.mark.parametrize("other", [{"by": ("hour",)}, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)])
def test_a_target_goes_on_as_it_was_begun(write: Write, filled: Fill, other: dict[str, Any]) -> None:
    filled(10)
    write()
    with pytest.raises(InvalidConfig, match="use that, or export to a new directory"):
        write(**other)


BEGUN = {"topic": "orders", "topic_id": "one", "format": "parquet", "by": ["date"], "json": False, "headers": False}


@for_each(
    ("other", "said"),
    [
        ({"format": "delta"}, "has format='parquet', not 'delta'; use that, or export to a new directory"),
        ({"by": ["hour"]}, "use that, or export to a new directory"),
        ({"json": True}, "use that, or export to a new directory"),
        ({"headers": True}, "use that, or export to a new directory"),
        ({"topic_id": "another"}, "it was recreated or rewritten since"),
    ],
)
def test_what_a_target_was_begun_with_stays(other: dict[str, Any], said: str) -> None:
    export._check_same(BEGUN, dict(BEGUN), "out")
    with pytest.raises(InvalidConfig, match=re.escape(said)):
        export._check_same(BEGUN, {**BEGUN, **other}, "out")


def test_a_directory_of_another_user_is_not_written(refused: Write, target: Path, filled: Fill) -> None:
    filled(10)
    target.mkdir()
    (target / "mine.txt").write_text("precious")
    with pytest.raises(InvalidConfig, match="neither empty"):
        refused()
    assert [path.name for path in target.iterdir()] == ["mine.txt"]


def test_what_cannot_be_is_said(refused: Write, filled: Fill, target: Path) -> None:
    filled(1)
    for wrong in ({"format": "csv"}, {"by": ("value",)}, {"schema": "a int"}, {"max_records": 0}, {"every_s": -1}):
        with pytest.raises(InvalidConfig):
            refused(**wrong)
    with pytest.raises(TopicNotFound):
        refused(topic="nothing")
    assert not any(files(target))


def test_a_schema_that_spark_does_not_understand_is_refused(write: Write, filled: Fill, target: Path) -> None:
    filled(1)
    with pytest.raises(InvalidConfig, match="not a schema"):
        write(json=True, schema="int int int")
    assert not any(files(target))
