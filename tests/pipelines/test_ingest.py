"""Files become records, each line once, whatever happens between two runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sawlog import Record, Store
from sawlog.errors import DirectoryLocked, InvalidConfig
from sawlog.pipelines import ingest, running
from sawlog.pipelines.ingest import IngestParams

from .conftest import forget_last_commit

Contents = Callable[..., list[Record]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    return made


@pytest.fixture
def take(spark: Any, data: Path, source: Path) -> Callable[..., ingest.IngestReport]:
    """Run it on the source, into the topic `orders`."""

    def run(progress: Any = None, **params: Any) -> ingest.IngestReport:
        given = {"data": str(data), "topic": "orders", "source": str(source), **params}
        return ingest.run(spark, IngestParams(**given), progress)

    return run


Take = Callable[..., ingest.IngestReport]


def test_json_lines_are_stored_as_they_are_with_key_and_time(take: Take, source: Path, contents: Contents) -> None:
    lines = ['{"id": {"no": 7},  "at": 1700000000000}', '{"id": {"no": 8}, "at": "2026-01-01T00:00:00Z"}']
    (source / "a.jsonl").write_text("\n".join([*lines, "", "  ", ""]))
    report = take(key="id.no", timestamp="at")
    assert (report.records, report.without_key, report.format) == (2, 0, "json")
    assert [(r.value, r.key, r.timestamp) for r in contents()] == [
        (lines[0].encode(), b"7", 1_700_000_000_000),
        (lines[1].encode(), b"8", 1_767_225_600_000),
    ]


def test_a_second_run_takes_only_new_files(take: Take, source: Path, contents: Contents) -> None:
    (source / "a.txt").write_text("one\ntwo\n")
    assert take().records == 2
    assert take().records == 0
    (source / "b.txt").write_text("three\n")
    assert take().records == 1
    assert [r.value for r in contents()] == [b"one", b"two", b"three"]


def test_a_run_that_died_before_it_noted_its_end_stores_nothing_twice(
    take: Take, source: Path, data: Path, contents: Contents
) -> None:
    (source / "a.txt").write_text("one\ntwo\n")
    take()
    forget_last_commit(ingest.place(data, "orders", str(source)) / running.CHECKPOINT)
    (source / "b.txt").write_text("three\n")
    take()
    assert [r.value for r in contents()] == [b"one", b"two", b"three"]


def test_lines_without_the_key_are_counted(take: Take, source: Path) -> None:
    (source / "a.json").write_text('{"id": 1}\n{"other": 2}\nnot json\n')
    report = take(key="id")
    assert (report.records, report.without_key) == (3, 2)


def test_records_go_to_the_partition_of_their_key(take: Take, source: Path, data: Path) -> None:
    (source / "a.json").write_text("".join(f'{{"id": "k{number % 9}"}}\n' for number in range(90)))
    take(key="id", partitions=3)
    with Store.open(data) as store:
        orders = store["orders"]
        for record in list(orders.scan()):
            assert orders.place_for(None, record.key) == record.partition
        assert orders.partitions == 3


def test_rows_of_csv_become_json_by_a_schema_that_is_kept(take: Take, source: Path, contents: Contents) -> None:
    (source / "a.csv").write_text("id,price,day\n1,2.5,2026-01-01\n2,,2026-01-02\n")
    take(key="id", timestamp="day")
    assert [json.loads(r.value) for r in contents()] == [
        {"id": 1, "price": 2.5, "day": "2026-01-01"},
        {"id": 2, "price": None, "day": "2026-01-02"},
    ]
    assert [(r.key, r.timestamp) for r in contents()] == [(b"1", 1_767_225_600_000), (b"2", 1_767_312_000_000)]
    (source / "b.csv").write_text("id,price,day\n3,4,2026-01-03\n")
    take(key="id", timestamp="day")
    assert json.loads(contents()[-1].value) == {"id": 3, "price": 4.0, "day": "2026-01-03"}


@pytest.mark.parametrize("text", ["price,id\n1,2\n", "id,price\nx,2\n"], ids=["other header", "no number"])
def test_a_csv_file_that_does_not_fit_is_refused_and_not_bent(
    take: Take, source: Path, contents: Contents, text: str
) -> None:
    (source / "a.csv").write_text("id,price\n1,2\n")
    take()
    (source / "b.csv").write_text(text)
    with pytest.raises(running.PipelineFailed):
        take()
    assert len(contents()) == 1


def test_rows_of_parquet_keep_their_types(take: Take, source: Path, contents: Contents) -> None:
    table = pa.table({"id": [b"\x00\xff"], "n": [7], "tags": [["a", "b"]]})
    pq.write_table(table, source / "a.parquet")
    take(key="id")
    [record] = contents()
    assert record.key == b"\x00\xff"
    assert json.loads(record.value) == {"id": "AP8=", "n": 7, "tags": ["a", "b"]}


def test_one_column_can_be_the_value(take: Take, source: Path, contents: Contents) -> None:
    pq.write_table(pa.table({"k": ["a"], "v": [b"\x00\x01"], "at": [1_700_000_000_123]}), source / "a.parquet")
    take(key="k", value="v", timestamp="at")
    assert [(r.key, r.value, r.timestamp) for r in contents()] == [(b"a", b"\x00\x01", 1_700_000_000_123)]


def test_directories_below_are_taken_too(take: Take, source: Path, contents: Contents) -> None:
    (source / "2026" / "01").mkdir(parents=True)
    (source / "2026" / "01" / "a.log").write_text("deep\n")
    take()
    assert [r.value for r in contents()] == [b"deep"]


def test_one_file_is_a_source(take: Take, source: Path, contents: Contents) -> None:
    (source / "a.txt").write_text("one\n")
    (source / "b.txt").write_text("other\n")
    take(source=str(source / "a.txt"))
    assert [r.value for r in contents()] == [b"one"]


def test_it_goes_on_until_it_is_stopped(take: Take, source: Path, contents: Contents) -> None:
    (source / "a.txt").write_text("one\n")
    seen: list[int] = []

    def progress(count: int) -> None:
        seen.append(count)
        if len(seen) == 2:
            raise KeyboardInterrupt
        (source / "b.txt").write_text("two\n")

    report = take(progress, every_s=0.1)
    assert report.stopped
    assert seen == [1, 1]
    assert [r.value for r in contents()] == [b"one", b"two"]


def test_the_same_job_does_not_run_twice_at_a_time(take: Take, source: Path, data: Path) -> None:
    (source / "a.txt").write_text("one\n")
    Store.open(data).close()
    with running.alone(ingest.place(data, "orders", str(source))), pytest.raises(DirectoryLocked):
        take()


def test_what_cannot_be_is_said_before_spark_is_asked(take: Take, source: Path, data: Path) -> None:
    (source / "a.txt").write_text("one\n")
    for wrong in (
        {"key": "id"},
        {"format": "xml"},
        {"format": "json", "value": "v"},
        {"every_s": 0},
        {"files": 0},
    ):
        with pytest.raises(InvalidConfig):
            take(**wrong)
    (source / "b.csv").write_text("id\n1\n")
    with pytest.raises(InvalidConfig, match="csv and text"):
        take()


def test_a_column_that_is_not_there_is_named(take: Take, source: Path) -> None:
    (source / "b.csv").write_text("id,price\n1,2\n")
    with pytest.raises(InvalidConfig, match=r"no column 'name'.* id, price"):
        take(key="name")


@pytest.mark.parametrize(
    ("name", "form"),
    [("a.txt", "text"), ("a.ndjson.gz", "json"), ("a.csv", "csv"), ("x/y.parquet", "parquet"), ("_c.csv", None)],
)
def test_the_format_is_guessed_by_the_ending(tmp_path: Path, name: str, form: str | None) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"")
    if form is None:
        with pytest.raises(InvalidConfig, match="nothing tells"):
            ingest.guessed(str(tmp_path))
    else:
        assert ingest.guessed(str(tmp_path)) == form
