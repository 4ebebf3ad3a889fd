"""A topic becomes a table, each record once; the table and the log's tail together are the topic."""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import sawlog.spark
from sawlog import tables
from sawlog.errors import DataLoss, InvalidConfig, TopicNotFound
from sawlog.pipelines import rounds, table
from sawlog.pipelines.running import PipelineFailed
from sawlog.pipelines.table import TableParams, TableReport
from sawlog.store.directory.store import DirectoryStore
from sawlog.tables import FORMATS
from sawlog.tables import columns as _columns

from ..tables.conftest import Lake
from .conftest import forget_last_commit, moment

SCHEMA = "n bigint, who string"
slow = pytest.mark.slow
#: One format runs always, the others with the slow tests.
EACH = ["delta", pytest.param("iceberg", marks=slow), pytest.param("parquet", marks=slow)]

Keep = Callable[..., TableReport]
Fill = Callable[..., Path]


class Died(BaseException):
    """Simulated death of the process."""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def keep(spark: Any, data: Path, lake: Path) -> Keep:
    """Run the job on the topic `orders`."""

    def run(progress: Any = None, **params: Any) -> TableReport:
        given = {"data": str(data), "topic": "orders", "to": str(lake), "merge_from": 0, **params}
        return table.run(spark, TableParams(**given), progress)

    return run


@pytest.fixture
def union(spark: Any, data: Path) -> Callable[..., Any]:
    """Return the rows of table and tail."""
    return lambda **more: sawlog.spark.table(spark, str(data), "orders", **more)


def own(lake: Path, form: str) -> list[dict[str, Any]]:
    """Read the table with the format's own package."""
    return Lake(lake, form).read()


def places(rows: Any) -> Counter[tuple[int, int]]:
    return Counter((row["partition"], row["offset"]) for row in rows)


def collected(frame: Any) -> Counter[tuple[int, int]]:
    return Counter((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def stored(data: Path) -> Counter[tuple[int, int]]:
    """Return the records of the log."""
    with DirectoryStore.open(data, "r") as store:
        found: Counter[tuple[int, int]] = Counter()
        for number in range(store["orders"].partitions):
            found.update((number, record.offset) for record in store["orders"].partition(number))
        return found


def add(data: Path, *values: bytes | None, key: bytes = b"k0") -> None:
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        for value in values:
            store["orders"].append(value, key, (), moment(99))


# --- the table, and the union


@pytest.mark.parametrize("form", EACH)
def test_a_second_run_adds_only_what_is_new_and_the_union_has_everything(
    keep: Keep, union: Any, filled: Fill, data: Path, lake: Path, form: str
) -> None:
    filled(30)
    assert keep(format=form, schema=SCHEMA).records == 30
    assert keep(format=form).records == 0
    filled(6, first=30)
    assert keep(format=form).records == 6
    rows = own(lake, form)
    assert places(rows) == stored(data)
    assert {row["n"] for row in rows} == {json.loads(row["value"])["n"] for row in rows} == set(range(36))
    assert all(row["headers"] == [{"key": "n", "value": b"%d" % row["n"]}] for row in rows)
    with DirectoryStore.open(data, "r") as store:
        info = store["orders"].table
    assert info is not None
    assert (info.format, info.location) == (form, str(lake / "orders"))
    assert dict(info.columns)["n"] == "bigint"

    filled(4, first=36)  # the tail
    found = union().orderBy("n").collect()
    assert [row.n for row in found] == list(range(40))
    assert places(row.asDict() for row in found) == stored(data)
    assert [row.timestamp.replace(tzinfo=UTC).timestamp() * 1000 for row in found] == [moment(n) for n in range(40)]
    assert found[39].headers[0].value == b"39"


@pytest.mark.parametrize("form", [pytest.param(form, marks=slow) for form in FORMATS])
def test_what_does_not_parse_goes_to_the_quarantine_with_the_reason(
    keep: Keep, spark: Any, union: Any, filled: Fill, data: Path, lake: Path, form: str
) -> None:
    filled(4, partitions=1)
    add(data, b'{"n": "x7"}', b"no json", b"[1]", b"\xff\xfe", None, b'{"n": 5, "more": true}', b'{"n": 1e400}')
    report = keep(format=form, schema=SCHEMA)
    assert (report.records, report.quarantined) == (6, 5)
    bad = {row.offset: row.reason for row in sawlog.spark.quarantined(spark, str(data), "orders").collect()}
    assert bad[4] == "n is not bigint: x7"
    assert bad[5] == "not valid JSON"
    assert bad[6] == "not a JSON object"
    assert set(bad) == {4, 5, 6, 7, 10}
    add(data, b'{"n": "x8"}', b'{"n": 8}')  # in the tail it is left out as well
    assert sorted(collected(union())) == [(0, offset) for offset in (0, 1, 2, 3, 8, 9, 12)]
    both = union()
    assert scan(both, "Project").count("from_json") == 1  # each value of the tail is parsed once
    assert both.union(both).count() == both.join(both, ["partition", "offset"]).count() * 2 == 14
    assert keep(format=form).quarantined == 1
    assert places(own(lake, form)) == collected(union())


@pytest.mark.parametrize("form", [pytest.param(form, marks=slow) for form in FORMATS])
def test_the_schema_grows_with_the_values(
    keep: Keep, union: Any, filled: Fill, data: Path, lake: Path, form: str
) -> None:
    filled(3, partitions=1)
    keep(format=form, schema="n int")
    add(data, b'{"n": 4, "deep": {"a": 1}}')
    keep(format=form, schema="n int, deep struct<a: int>")
    add(data, b'{"n": 8589934592, "deep": {"a": 2, "b": "x"}, "odd name": 1}')
    keep(format=form, schema="n bigint, deep struct<a: int, b: string>")
    add(data, b'{"n": 5, "other": [1, 2], "N": 3, "bad name": 1, "none": {}}', b'{"n": "not a number"}')
    assert keep(format=form, schema="inferred").quarantined == 1
    columns = {field.name: tables.columns.shown(field.type) for field in tables.snapshot(Lake(lake, form).info).schema}
    assert columns["n"] == "bigint"
    assert columns["deep"] == "struct<a:int,b:string>"
    assert columns["other"] == "array<bigint>"
    assert set(columns) == {*_columns.RECORD.names, "n", "deep", "other"}
    add(data, b'{"n": 6, "other": [3]}')
    rows = {row.offset: row for row in union().collect()}
    assert [rows[offset].n for offset in (0, 1, 2, 3, 4, 5, 7)] == [0, 1, 2, 4, 1 << 33, 5, 6]
    assert rows[4].deep.asDict() == {"a": 2, "b": "x"}
    assert rows[3].deep.asDict() == {"a": 1, "b": None}
    assert (rows[0].deep, rows[0].other, rows[5].other, rows[7].other) == (None, None, [1, 2], [3])
    read = {row["offset"]: row for row in own(lake, form)}
    assert read[4]["n"] == 1 << 33
    if form != "parquet":  # whose files are read one by one there
        assert read[0]["deep"] is None
    with pytest.raises(InvalidConfig, match="cannot become"):
        keep(format=form, schema="n string")


@pytest.mark.parametrize("form", [pytest.param(form, marks=slow) for form in FORMATS])
def test_small_files_are_merged_and_a_table_may_be_divided_by_date(
    keep: Keep, union: Any, filled: Fill, data: Path, lake: Path, form: str
) -> None:
    for first in range(0, 30, 10):
        filled(10, first=first)
        keep(format=form, by=("date",))
    before = tables.snapshot(Lake(lake, form).info)
    filled(10, first=30)
    report = keep(format=form, by=("date",), merge_from=2)
    after = tables.snapshot(Lake(lake, form).info)
    assert len(before.files) == 6
    assert (report.merged_files, report.new_files, len(after.files)) == (8, 2, 2)
    assert all(Path(path).exists() for path in before.files)
    assert places(own(lake, form)) == collected(union()) == stored(data)
    with pytest.raises(InvalidConfig, match="partitioned by date"):
        keep(format=form)


@slow
def test_large_rounds_are_split_and_every_commit_is_complete(keep: Keep, filled: Fill, data: Path, lake: Path) -> None:
    filled(50)
    seen: list[int] = []
    report = keep(progress=seen.append, format="parquet", max_records=20)
    assert (report.records, report.rounds, sum(seen)) == (50, 3, 50)
    assert places(own(lake, "parquet")) == stored(data)


@slow
def test_a_continuous_run_follows_the_log_until_it_is_stopped(keep: Keep, filled: Fill, data: Path, lake: Path) -> None:
    filled(10)
    seen: list[int] = []

    def advance(count: int) -> None:
        seen.append(count)
        if len(seen) == 4:
            raise KeyboardInterrupt
        filled(5, first=10 * len(seen))

    report = keep(progress=advance, freshness_s=0.2)
    assert (report.stopped, report.records, seen) == (True, 25, [10, 5, 5, 5])
    assert report.freshness_s is not None
    assert places(own(lake, "delta")) == stored(data)


@slow
def test_a_table_is_divided_in_utc_whatever_the_session_says(
    keep: Keep, spark: Any, filled: Fill, data: Path, lake: Path
) -> None:
    """Iceberg refuses a file that has two of its days."""
    filled(60)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        keep(format="iceberg", by=("date", "hour"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert {path.parent.name for path in (lake / "orders").rglob("*.parquet")} == {"hour=0"}
    assert places(own(lake, "iceberg")) == stored(data)


# --- what is read


def scan(frame: Any, kind: str) -> str:
    """Return the lines of the plan about one side."""
    frame.sparkSession.conf.set("spark.sql.maxMetadataStringLength", 10_000)
    plan: str = frame._jdf.queryExecution().executedPlan().toString()
    return "\n".join(line for line in plan.splitlines() if kind in line)


@pytest.mark.slow  # 6 s; the quick tier reads table and tail as a whole
def test_filters_and_limits_reach_both_sides(keep: Keep, union: Any, filled: Fill, data: Path) -> None:
    filled(40)
    keep(format="parquet")
    filled(10, first=40)
    # A filter of the DataFrame is pushed into the Parquet files.
    filtered = union().where("offset >= 3 and partition = 1 and timestamp >= timestamp'2026-01-01T00:20:00Z'")
    said = scan(filtered, "FileScan parquet")
    assert all(part in said for part in ("GreaterThanOrEqual(offset,3)", "EqualTo(partition,1)", "(timestamp,"))
    assert scan(union(), "FileScan parquet").count("PushedFilters: []") == 1  # the ends need no condition
    # A limit that is given shortens both: here the table is left out, there the tail.
    with DirectoryStore.open(data, "r") as store:
        ends = {number: store["orders"].partition(number).next_offset for number in (0, 1)}
        found = tables.snapshot(store["orders"].table)
    assert "FileScan" not in scan(union(start=found.ends), "Scan")
    assert sum(collected(union(start=found.ends)).values()) == 10
    assert "BatchScan" not in scan(union(end=found.ends), "Scan")
    assert sum(collected(union(end=found.ends)).values()) == 40
    one = union(partitions=[1], start={1: 2})
    assert one.inputFiles() == [f"file://{each.path}" for each in found.data if each.partition == 1]
    assert sorted(collected(one)) == [(1, offset) for offset in range(2, ends[1])]
    since, until = (datetime.fromtimestamp(moment(n) / 1000, UTC) for n in (38, 45))
    assert sorted(json.loads(row.value)["n"] for row in union(since=since, until=until).collect()) == [*range(38, 45)]
    narrow = union(columns=["offset"], partitions=[0])
    assert "BatchScan sawlog[partition" in scan(narrow, "BatchScan")
    assert (narrow.columns, narrow.count()) == (["offset"], ends[0])
    with pytest.raises(InvalidConfig, match="no column 'n'"):
        union(columns=["n"])
    with pytest.raises(InvalidConfig, match="time zone"):
        union(since=datetime(2026, 1, 1))  # noqa: DTZ001  that is the mistake


def test_a_topic_without_a_table_is_read_from_the_log(union: Any, filled: Fill, spark: Any, data: Path) -> None:
    filled(7)
    assert collected(union()) == stored(data)
    with pytest.raises(InvalidConfig, match="has no table"):
        sawlog.spark.quarantined(spark, str(data), "orders")


@slow
def test_rows_beyond_the_recorded_ends_are_not_read_from_the_table(
    keep: Keep, union: Any, filled: Fill, data: Path, lake: Path
) -> None:
    """Another program has appended records to the table that the log contains as well."""
    from deltalake import write_deltalake

    filled(10, partitions=1)
    keep()
    filled(5, partitions=1, first=10)
    rows = union().where("offset >= 8").toArrow()
    write_deltalake(str(lake / "orders"), rows, mode="append")
    found = collected(union())
    assert found == {**stored(data), (0, 8): 2, (0, 9): 2}  # rows of the table below the ends are not checked


@slow
def test_retention_and_trim_below_the_table_lose_nothing(keep: Keep, union: Any, filled: Fill, data: Path) -> None:
    filled(30)
    everything = stored(data)
    keep()
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        found = tables.snapshot(store["orders"].table)
        store["orders"].trim(found.ends)
    assert stored(data) == Counter()
    assert collected(union()) == everything
    filled(4, first=30)
    assert collected(union()) == everything + stored(data)
    keep()
    assert collected(union()) == everything + stored(data)


@slow
def test_records_that_are_gone_before_they_were_in_the_table_are_an_error(
    keep: Keep, union: Any, filled: Fill, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(10, partitions=1)
    keep()
    filled(10, partitions=1, first=10)
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store["orders"].trim({0: 15})
    with pytest.raises(DataLoss, match="records 10 to 14 of partition 0"):
        keep()
    with pytest.raises(DataLoss, match="neither in the table nor in the log"):
        union()
    with caplog.at_level(logging.WARNING, "sawlog.pipelines"):
        assert keep(fail_on_data_loss=False).records == 5
    assert "records 10 to 14" in caplog.text
    assert sorted(collected(union())) == [(0, offset) for offset in (*range(10), *range(15, 20))]


@slow
def test_a_recreated_topic_is_noticed(keep: Keep, union: Any, filled: Fill, data: Path, tmp_path: Path) -> None:
    filled(10)
    keep()
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store.delete_topic("orders")
    filled(5)
    assert collected(union()) == stored(data)
    with pytest.raises(InvalidConfig, match="earlier topic"):
        keep()
    assert keep(to=str(tmp_path / "new")).records == 5
    assert collected(union()) == stored(data)


@slow
def test_the_quarantine_of_a_table_that_is_gone_is_noticed(keep: Keep, filled: Fill, data: Path, lake: Path) -> None:
    """Its records would be in the topic twice."""
    filled(10)
    add(data, b"no json")
    keep(schema=SCHEMA)
    shutil.rmtree(lake / "orders")
    with pytest.raises(InvalidConfig, match="the quarantine of a table that is gone"):
        keep(schema=SCHEMA)
    shutil.rmtree(lake / "orders_quarantine")
    assert (keep(schema=SCHEMA).records, keep(schema=SCHEMA).quarantined) == (10, 0)
    with DirectoryStore.open(data, "r") as store:
        assert store.sql("select key from orders").num_rows == 11


@slow
def test_a_new_table_becomes_the_topics_when_it_has_caught_up(
    keep: Keep, filled: Fill, data: Path, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def location() -> str:
        with DirectoryStore.open(data, "r") as store:
            found = store["orders"].table
        return "" if found is None else found.location

    filled(10)
    keep()
    assert location() == str(lake / "orders")
    other = {"to": str(tmp_path / "new"), "format": "parquet", "max_records": 6}
    steps = 0

    def die(at: str) -> None:
        nonlocal steps
        steps += at == "forgotten"
        if steps:
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(rounds, "reached", die)
        with pytest.raises(Died):
            keep(**other)
    assert location() == str(lake / "orders")
    keep(**other)
    assert location() == str(tmp_path / "new" / "orders")
    filled(1, first=10)
    keep()  # the old one is kept up to date as well
    assert location() == str(tmp_path / "new" / "orders")


@slow
def test_a_log_that_has_lost_records_of_the_table_is_noticed(keep: Keep, union: Any, filled: Fill, data: Path) -> None:
    filled(10, partitions=1)
    keep()
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        log = store["orders"].partition(0)
        with log._hold():
            log.truncate(6)
    filled(8, partitions=1)
    with pytest.raises(DataLoss, match="has lost its records from offset 6 on"):
        keep()
    with pytest.raises(DataLoss, match="make a new table"):
        union()


@slow
def test_aborted_and_open_transactions_are_left_out(keep: Keep, union: Any, filled: Fill, data: Path) -> None:
    filled(5, partitions=1)
    with DirectoryStore.open(data, maintenance_interval_s=None) as store, store.transaction() as transaction:
        transaction.append("orders", b'{"n": 100}', key=b"k0")
    keep()
    assert collected(union()) == stored(data)


def test_wrong_parameters_are_refused_before_spark_is_started(data: Path, filled: Fill, tmp_path: Path) -> None:
    filled(1)
    (tmp_path / "other" / "orders").mkdir(parents=True)
    (tmp_path / "other" / "orders" / "file").touch()
    good = TableParams(str(data), "orders", str(tmp_path / "lake"))
    for wrong, why in (
        ({"format": "hudi"}, "one of delta"),
        ({"by": ("hour",)}, "date,hour"),
        ({"drop_value": True}, "needs a schema"),
        ({"catalog": "prod"}, "iceberg"),
        ({"max_records": 0}, "at least 1"),
        ({"freshness_s": 0.0}, "above 0"),
        ({"schema": "n integr"}, "integr"),
        ({"schema": "`a b` int"}, "cannot be a column"),
        ({"to": str(tmp_path / "other")}, "neither empty nor"),
    ):
        with pytest.raises(InvalidConfig, match=why):
            table.check_params(TableParams(**{**{name: getattr(good, name) for name in good.__slots__}, **wrong}))
    with pytest.raises(TopicNotFound):
        table.check_params(TableParams(str(data), "other", str(tmp_path / "lake")))


# --- streams


def stream(spark: Any, data: Path, checkpoint: Path, **options: Any) -> dict[int, list[tuple[int, int]]]:
    """Run a query until it has caught up and return its micro-batches."""
    reader = spark.readStream.format("sawlog").option("path", str(data)).option("subscribe", "orders")
    for name, value in {"startingTable": "true", "includeHeaders": "true", **options}.items():
        reader = reader.option(name, value)
    seen: dict[int, list[tuple[int, int]]] = {}

    def take(rows: Any, batch: int) -> None:
        seen[batch] = sorted((row.partition, row.offset) for row in rows.collect() if row.value is not None)

    query = (
        reader.load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return seen


def flat(batches: dict[int, list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return sorted(place for places in batches.values() for place in places)


@slow
def test_a_stream_begins_with_the_table_and_goes_on_with_the_log(
    keep: Keep, spark: Any, filled: Fill, data: Path, tmp_path: Path
) -> None:
    filled(30)
    add(data, b"bad")
    keep(schema=SCHEMA)
    filled(10, first=31)
    everything = sorted(stored(data))
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store["orders"].trim(tables.snapshot(store["orders"].table).ends)
    first = stream(spark, data, tmp_path / "checkpoint", maxOffsetsPerTrigger=25)
    assert flat(first) == everything
    # A micro-batch that Spark repeats has the same records, although they are in the table now and not in the log.
    keep()
    again = forget_last_commit(tmp_path / "checkpoint")
    with DirectoryStore.open(data, maintenance_interval_s=None) as store:
        store["orders"].trim(tables.snapshot(store["orders"].table).ends)
    filled(5, first=50)
    second = stream(spark, data, tmp_path / "checkpoint", maxOffsetsPerTrigger=25)
    assert second.pop(again) == first[again]
    assert flat(second) == sorted(stored(data))


def test_a_stream_cannot_begin_at_two_places() -> None:
    from sawlog.spark.options import read_options

    with pytest.raises(InvalidConfig, match="contradict"):
        read_options(
            {"path": "x", "subscribe": "a", "startingtable": "true", "startingoffsets": "latest"}, streaming=True
        )


@slow
def test_a_table_without_values_is_read_but_cannot_begin_a_stream(
    keep: Keep, union: Any, filled: Fill, data: Path
) -> None:
    from sawlog.spark.options import read_options
    from sawlog.spark.streaming import StreamReader

    filled(3)
    keep(schema=SCHEMA, drop_value=True)
    options = read_options({"path": str(data), "subscribe": "orders", "startingtable": "true"}, streaming=True)
    assert union().columns == ["key", "partition", "offset", "timestamp", "headers", "n", "who"]
    filled(2, first=3)
    assert sorted(row.n for row in union().collect()) == [*range(5)]
    with pytest.raises(InvalidConfig, match="no column value"):
        StreamReader(options, ("offset",)).initialOffset()


# --- deaths


@slow
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("step", ["begun", "written", "ready", "quarantined", "committed", "forgotten"])
def test_a_run_that_dies_at_any_step_is_continued_by_the_next(
    keep: Keep, union: Any, spark: Any, filled: Fill, data: Path, monkeypatch: pytest.MonkeyPatch, form: str, step: str
) -> None:
    """The next run has another schema: files that were ready under the old schema are committed with it."""
    filled(20)
    add(data, b"bad 1")
    keep(format=form, schema=SCHEMA)
    filled(10, first=20)
    add(data, b"bad 2")

    def die(at: str) -> None:
        if at == step:
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(rounds, "reached", die)
        with pytest.raises(Died):
            keep(format=form)
    filled(10, first=30)
    add(data, b'{"n": 1}')
    seen = collected(union()) + collected(sawlog.spark.quarantined(spark, str(data), "orders"))
    assert set(seen.values()) == {1}  # nothing twice, before it is continued
    keep(format=form, schema=f"{SCHEMA}, late string")
    seen = collected(union()) + collected(sawlog.spark.quarantined(spark, str(data), "orders"))
    assert seen == stored(data)


@slow
def test_a_table_whose_files_were_removed_is_built_again(
    keep: Keep, union: Any, filled: Fill, data: Path, lake: Path
) -> None:
    filled(10)
    keep()
    shutil.rmtree(lake / "orders")
    with pytest.raises(InvalidConfig, match="any more"):
        union()
    assert keep().records == 10
    assert collected(union()) == stored(data)


@slow
def test_a_failing_task_is_one_line_and_leaves_nothing(keep: Keep, filled: Fill, data: Path, lake: Path) -> None:
    filled(10, partitions=1)
    [segment] = (data / "topics" / "orders" / "partition-0").glob("*.log")
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 2] ^= 1
    segment.write_bytes(raw)
    with pytest.raises(PipelineFailed, match=r"^[^\n]+$"):
        keep()
    assert tables.open_table(Lake(lake, "delta").info).snapshot() is None
