"""Files become records, each line once, whatever happens between two runs."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sawlog import Record
from sawlog.cli.formats import Fields, InputRecord, read_input
from sawlog.errors import DirectoryLocked, InvalidConfig
from sawlog.pipelines import ingest, running
from sawlog.pipelines.ingest import IngestParams
from sawlog.store.directory.store import DirectoryStore

from .conftest import NoSpark, forget_last_commit

Contents = Callable[..., list[Record]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    return made


def job(spark: Any, data: Path, source: Path) -> Callable[..., ingest.IngestReport]:
    """The job on the source, into the topic `orders`."""

    def run(progress: Any = None, **params: Any) -> ingest.IngestReport:
        given = {"data": str(data), "topic": "orders", "source": str(source), **params}
        return ingest.run(spark, IngestParams(**given), progress)

    return run


@pytest.fixture
def take(spark: Any, data: Path, source: Path) -> Callable[..., ingest.IngestReport]:
    """Run the job."""
    return job(spark, data, source)


@pytest.fixture
def refused(data: Path, source: Path) -> Callable[..., ingest.IngestReport]:
    """Run the job, which must refuse before it uses Spark."""
    return job(NoSpark(), data, source)


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


@pytest.mark.slow  # three runs; the quick tier has one that died before
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


@pytest.mark.slow  # the quick tier reads JSON with keys
def test_lines_without_the_key_are_counted(take: Take, source: Path) -> None:
    (source / "a.json").write_text('{"id": 1}\n{"other": 2}\nnot json\n')
    report = take(key="id")
    assert (report.records, report.without_key) == (3, 2)


@pytest.mark.slow  # the sink does it, by hand in tests/spark/test_writing.py
def test_records_go_to_the_partition_of_their_key(take: Take, source: Path, data: Path) -> None:
    (source / "a.json").write_text("".join(f'{{"id": "k{number % 9}"}}\n' for number in range(90)))
    take(key="id", partitions=3)
    with DirectoryStore.open(data) as store:
        orders = store["orders"]
        for record in list(orders.scan()):
            assert orders._router.place_for(None, record.key) == record.partition
        assert orders.partitions == 3


def test_rows_of_csv_become_json_by_a_schema_that_is_kept(take: Take, source: Path, contents: Contents) -> None:
    (source / "a.csv").write_text("id,price,day\n1,2.5,2026-01-01\n2,,2026-01-02\n")
    take(key="id", timestamp="day")
    assert [json.loads(r.value) for r in contents()] == [
        {"id": "1", "price": 2.5, "day": "2026-01-01"},
        {"id": "2", "price": None, "day": "2026-01-02"},
    ]
    assert [(r.key, r.timestamp) for r in contents()] == [(b"1", 1_767_225_600_000), (b"2", 1_767_312_000_000)]
    (source / "b.csv").write_text("id,price,day\n3,4,2026-01-03\n")
    take(key="id", timestamp="day")
    assert json.loads(contents()[-1].value) == {"id": "3", "price": 4.0, "day": "2026-01-03"}


@pytest.mark.slow
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


AWKWARD = 'zip,note,n\r\n01234,"say ""hi"", twice",1\r\n00099,"two\nlines",007\r\n"1,5",back\\slash,\r\n'


@pytest.mark.slow  # the quick tier reads CSV once, and test_csvfile.py has the awkward rows
def test_csv_is_read_as_produce_reads_it(take: Take, source: Path, contents: Contents, tmp_path: Path) -> None:
    (source / "a.csv").write_text(AWKWARD, newline="")
    take(key="zip")
    assert [(r.key, json.loads(r.value)) for r in contents()] == [
        (b"01234", {"zip": "01234", "note": 'say "hi", twice', "n": "1"}),
        (b"00099", {"zip": "00099", "note": "two\nlines", "n": "007"}),
        (b"1,5", {"zip": "1,5", "note": "back\\slash", "n": ""}),
    ]
    with (source / "a.csv").open("rb") as stream:
        produced = list(read_input("csv", stream, Fields(key="zip")))
    assert [(r.key, json.loads(r.value)) for r in contents()] == [
        (each.key, json.loads(each.value or b"")) for each in produced if isinstance(each, InputRecord)
    ]


@pytest.mark.slow
def test_a_key_is_the_text_of_its_cell_also_where_the_schema_says_int(
    take: Take, source: Path, contents: Contents
) -> None:
    (source / "a.csv").write_text("id,n\n7,1\n")
    take(key="id", schema="id int, n int")
    (source / "b.csv").write_text("id,n\n01234,02\n")
    take(key="id", schema="id int, n int")
    assert [(r.key, json.loads(r.value)["n"]) for r in contents()] == [(b"7", 1), (b"01234", 2)]


@pytest.mark.slow
def test_a_number_of_a_later_csv_file_never_loses_its_zeros(take: Take, source: Path, contents: Contents) -> None:
    (source / "a.csv").write_text("id,n\n1,5\n")
    take(key="id")
    (source / "b.csv").write_text("id,n\n01,05\n")
    with pytest.raises(running.PipelineFailed, match=r"b\.csv, row 1, line 2: column 'n' was bigint .* '05' here$"):
        take(key="id")
    assert len(contents()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "json", "text", "parquet"])
@pytest.mark.parametrize("files", [1000, 2])
def test_files_are_taken_in_order_of_name(take: Take, source: Path, contents: Contents, form: str, files: int) -> None:
    """Their ages are in the opposite order, and the largest, which Spark would read first, is in the middle."""
    for number in range(5):
        rows = [{"id": "k", "n": number * 1000 + row} for row in range(400 if number == 2 else 3)]
        path = source / f"day {number}+[x].{form}"
        if form == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif form == "csv":
            path.write_text("id,n\n" + "".join(f"k,{row['n']}\n" for row in rows))
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_700_000_000 - number, 1_700_000_000 - number))
    report = take(key=None if form == "text" else "id", files=files, format=form)
    assert (report.records, report.batches) == (412, 1 if files == 1000 else 3)
    found = [json.loads(r.value)["n"] for r in contents()]
    assert found == sorted(found)
    assert len(found) == 412


@pytest.mark.slow  # two runs; a repeated micro-batch is in the quick tier
def test_a_repeated_micro_batch_is_cut_as_it_was_at_first(
    take: Take, source: Path, data: Path, contents: Contents
) -> None:
    for number in range(5):
        (source / f"{number}.txt").write_text(f"{number}\n")
    take(files=2)
    forget_last_commit(ingest.place(data, "orders", str(source)) / running.CHECKPOINT)
    take(files=1)
    assert [r.value for r in contents()] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('id,at\n1,"a\nb"c\n', r"row 1, line 3: .*expected after"),
        ("id,at\n1,2026-01-01\n2,soon\n", r"row 2, line 3: column 'at' is not a time: 'soon'"),
    ],
)
def test_an_error_of_a_job_names_file_row_and_reason_in_one_line(
    take: Take, source: Path, contents: Contents, text: str, complaint: str
) -> None:
    (source / "a.csv").write_text("id,at\n1,2026-01-01\n")
    take(key="id", timestamp="at")
    (source / "b.csv").write_text(text)
    with pytest.raises(running.PipelineFailed) as raised:
        take(key="id", timestamp="at")
    assert re.match(rf"{source}/b\.csv, {complaint}", str(raised.value)), str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(contents()) == 1


@pytest.mark.slow
def test_a_cell_that_is_not_of_the_type_given_is_named(take: Take, source: Path) -> None:
    (source / "a.csv").write_text("id,price\n1,2.5\n2,cheap\n")
    with pytest.raises(running.PipelineFailed, match=r"a\.csv, row 2, line 3: column 'price' is not .*: 'cheap'$"):
        take(schema="id int, price decimal(8,2)")


@pytest.mark.slow
def test_packed_csv_is_read(take: Take, source: Path, contents: Contents) -> None:
    (source / "a.csv.gz").write_bytes(gzip.compress(AWKWARD.encode()))
    take(key="zip")
    assert [r.key for r in contents()] == [b"01234", b"00099", b"1,5"]
    (source / "b.csv.gz").write_bytes(gzip.compress(AWKWARD.encode())[:40])
    with pytest.raises(running.PipelineFailed, match=r"b\.csv\.gz: cannot be read"):
        take(key="zip")


@pytest.mark.slow
def test_csv_without_a_header_has_numbered_columns(take: Take, source: Path, contents: Contents) -> None:
    (source / "a.csv").write_text("01,x\n02,y\n")
    take(key="_c0", header=False)
    assert [(r.key, json.loads(r.value)) for r in contents()] == [
        (b"01", {"_c0": "01", "_c1": "x"}),
        (b"02", {"_c0": "02", "_c1": "y"}),
    ]


@pytest.mark.slow  # the quick tier reads JSON and CSV
def test_rows_of_parquet_keep_their_types(take: Take, source: Path, contents: Contents) -> None:
    table = pa.table({"id": [b"\x00\xff"], "n": [7], "tags": [["a", "b"]]})
    pq.write_table(table, source / "a.parquet")
    take(key="id")
    [record] = contents()
    assert record.key == b"\x00\xff"
    assert json.loads(record.value) == {"id": "AP8=", "n": 7, "tags": ["a", "b"]}


@pytest.mark.slow
def test_one_column_can_be_the_value(take: Take, source: Path, contents: Contents) -> None:
    pq.write_table(pa.table({"k": ["a"], "v": [b"\x00\x01"], "at": [1_700_000_000_123]}), source / "a.parquet")
    take(key="k", value="v", timestamp="at")
    assert [(r.key, r.value, r.timestamp) for r in contents()] == [(b"a", b"\x00\x01", 1_700_000_000_123)]


@pytest.mark.slow
def test_directories_below_are_taken_too(take: Take, source: Path, contents: Contents) -> None:
    (source / "2026" / "01").mkdir(parents=True)
    (source / "2026" / "01" / "a.log").write_text("deep\n")
    take()
    assert [r.value for r in contents()] == [b"deep"]


@pytest.mark.slow
def test_one_file_is_a_source(take: Take, source: Path, contents: Contents) -> None:
    (source / "a.txt").write_text("one\n")
    (source / "b.txt").write_text("other\n")
    take(source=str(source / "a.txt"))
    assert [r.value for r in contents()] == [b"one"]


@pytest.mark.slow  # waits for two micro-batches
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


def test_the_same_job_does_not_run_twice_at_a_time(refused: Take, source: Path, data: Path) -> None:
    (source / "a.txt").write_text("one\n")
    DirectoryStore.open(data).close()
    with running.exclusive_directory(ingest.place(data, "orders", str(source))), pytest.raises(DirectoryLocked):
        refused()


def test_what_cannot_be_is_said_before_spark_is_asked(refused: Take, source: Path, data: Path) -> None:
    (source / "a.txt").write_text("one\n")
    for wrong in (
        {"key": "id"},
        {"format": "xml"},
        {"format": "json", "value": "v"},
        {"every_s": 0},
        {"files": 0},
    ):
        with pytest.raises(InvalidConfig):
            refused(**wrong)
    (source / "b.csv").write_text("id\n1\n")
    with pytest.raises(InvalidConfig, match="csv and text"):
        refused()


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
        with pytest.raises(InvalidConfig, match="no file has a known suffix"):
            ingest.guess_format(str(tmp_path))
    else:
        assert ingest.guess_format(str(tmp_path)) == form
