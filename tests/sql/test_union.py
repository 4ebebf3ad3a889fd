"""A topic and its table, in each format: SQL, datasets and frames read both as one, every record once."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sawlog import Store, Topic, tables
from sawlog.errors import DataLoss, InvalidConfig
from sawlog.sql import engine
from sawlog.tables.columns import RECORD

from ..tables.test_formats import edit_metadata
from .conftest import COUNT, SCHEMA, Asked, T, order, rows
from .keeping import Keeper

Place = tuple[int, int]


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.slow), "parquet"])
def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> Keeper:
    return Keeper(tmp_path / "lake", request.param)


@pytest.fixture
def plain(tmp_path: Path) -> Keeper:
    """A single format, for tests that do not depend on it."""
    return Keeper(tmp_path / "lake", "parquet")


def places(table: pa.Table) -> Counter[Place]:
    return Counter((row["partition"], row["offset"]) for row in table.select(["partition", "offset"]).to_pylist())


def bad(topic: Topic, number: int) -> None:
    assert topic.append(b"no json %d" % number, b"customer-2", (), T + number).partition == 2


def half_way(store: Store, topic: Topic, keeper: Keeper) -> list[Any]:
    """Move half of the records to the table, some to the quarantine, and trim the log. Return all records."""
    bad(topic, 1)
    keeper.round(topic, until={0: 60, 1: 100})
    everything = rows(topic)
    keeper.round(topic, until={0: 100})
    bad(topic, 2)
    everything = rows(topic)
    topic.trim({0: 80, 1: 100})
    assert len(rows(topic)) < len(everything)
    return everything


def test_sql_reads_the_table_its_quarantine_and_the_log(store: Store, orders: Topic, keeper: Keeper) -> None:
    everything = half_way(store, orders, keeper)
    assert {each.unparsed for each in orders._history().files} == {True, False}  # type: ignore[union-attr]
    found = store.sql("select partition, offset, timestamp, key, value from orders order by all").to_pylist()
    assert [tuple(row.values())[:2] for row in found] == sorted(row[:2] for row in everything)
    assert {(row["partition"], row["offset"]): (row["key"], row["value"]) for row in found} == {
        row[:2]: row[3:] for row in everything
    }
    assert {round(row["timestamp"].timestamp() * 1000) for row in found} == {row[2] for row in everything}
    assert store.sql("select value from orders where decode(value) like 'no json%'").num_rows == 2
    assert store.sql("select headers[1].key as k from orders limit 1").column(0).to_pylist() == ["n"]


def test_arrow_polars_and_pandas_read_the_same(store: Store, orders: Topic, keeper: Keeper) -> None:
    polars = pytest.importorskip("polars")
    everything = half_way(store, orders, keeper)
    expected = Counter(row[:2] for row in everything)
    assert places(orders.arrow()) == expected
    assert places(orders.polars().select("partition", "offset").collect().to_arrow()) == expected
    some = orders.polars().filter((polars.col("offset") < 70) & (polars.col("partition") == 0)).select("offset")
    assert sorted(some.collect().to_series()) == list(range(70))
    assert len(orders.to_pandas(columns=["value"])) == len(everything)
    assert places(orders.arrow({0: 55}, {0: 85, 1: 0, 2: 0})) == Counter((0, at) for at in range(55, 85))
    since, until = (datetime.fromtimestamp((T + n) / 1000, UTC) for n in (40, 60))
    assert places(orders.arrow(since, until)) == Counter(row[:2] for row in everything if T + 40 <= row[2] < T + 60)


def test_values_are_parsed_alike_on_both_sides(store: Store, orders: Topic, keeper: Keeper) -> None:
    everything = half_way(store, orders, keeper)
    query = "select value.id as id, value.status as status from orders where value is not null order by 1"
    found = store.sql(query, schemas={"orders": SCHEMA}).to_pylist()
    assert found == [{"id": n, "status": order(n)["status"]} for n in range(COUNT)]
    wrong = store.sql("select count(*) as n from orders where value is null", schemas={"orders": SCHEMA})
    assert wrong.column("n").to_pylist() == [len(everything) - COUNT]


def test_counts_and_limits_come_from_what_is_known_of_files(
    store: Store, orders: Topic, keeper: Keeper, asked: Asked
) -> None:
    everything = half_way(store, orders, keeper)
    asked.pieces.clear()
    for each in Path(keeper.info.location).parent.rglob("*.parquet"):
        each.rename(each.with_suffix(".away"))  # nothing is read
    question = "select count(*) as n, min(offset) as a, max(offset) as z, min(timestamp) as s, max(timestamp) as t"
    [found] = store.sql(f"{question} from orders").to_pylist()
    times = [row[2] for row in everything]
    assert (found["n"], found["a"], found["z"]) == (len(everything), 0, max(row[1] for row in everything))
    assert [round(found[name].timestamp() * 1000) for name in ("s", "t")] == [min(times), max(times)]
    by = store.sql("select partition, count(*) as n from orders group by partition").to_pylist()
    assert {row["partition"]: row["n"] for row in by} == Counter(row[0] for row in everything)
    with pytest.raises(DataLoss, match="of the table of 'orders' is gone"):
        store.sql("select sum(octet_length(key)) from orders")
    with pytest.raises(DataLoss, match="of the table of 'orders' is gone"):
        orders.arrow()


def test_filters_prune_the_table_and_the_log(store: Store, orders: Topic, plain: Keeper, asked: Asked) -> None:
    half_way(store, orders, plain)
    found = store.sql("explain select count(key) from orders where offset < 30 and partition = 0")
    plan = found.to_pylist()[0]["explain_value"]
    assert "READ_PARQUET" in plan
    assert [plan.count(each) for each in ("Filters:", "partition = 0", "offset < 30", '"offset" < 30')] == [2, 1, 1, 1]
    asked.pieces.clear()
    assert store.sql("select key from orders where offset < 30 and partition = 0").num_rows == 30
    assert asked.pieces == []  # only the table
    for each in tables.snapshot(plain.info).files:
        Path(each).unlink()  # only the log
    assert orders.dataset().count_rows(_at(0) & (_offset() >= 100)) == orders.offsets()[0].next - 100
    late = pa.compute.field("timestamp") >= pa.scalar(T + COUNT, pa.timestamp("ms", "UTC"))
    assert orders.dataset().count_rows(late) == 0


def _at(number: int) -> Any:
    return pa.compute.field("partition") == number


def _offset() -> Any:
    return pa.compute.field("offset")


def test_rows_from_the_recorded_ends_on_do_not_count(store: Store, orders: Topic, plain: Keeper) -> None:
    """The same holds for a quarantine that is ahead of its table."""
    bad(orders, 1)
    everything = Counter(row[:2] for row in rows(orders))
    plain.round(orders, until={0: 60, 1: 100})
    before = tables.snapshot(plain.info)
    plain.round(orders)
    path = Path(plain.info.location) / "_sawlog" / "manifest"
    late = path.read_bytes()
    ahead = Keeper(path.parents[2], "parquet")
    assert places(store.sql("select * from orders")) == everything
    # The previous version of the table, with the files and the quarantine of the next round.
    document = json.loads(late)
    assert before.ends != ahead.ends
    document["marks"] = {str(number): list(mark) for number, mark in before.marks.items()}
    from sawlog.storage import FileDirectory, checksummed

    directory = FileDirectory(path.parent)
    checksummed.store(directory, "manifest", {name: value for name, value in document.items() if name != "crc32c"})
    directory.close()
    assert any(each.beyond for each in orders._history().files)  # type: ignore[union-attr]
    assert places(store.sql("select * from orders")) == everything
    assert places(orders.arrow()) == everything
    assert store.sql("select count(*) from orders").column(0).to_pylist() == [sum(everything.values())]


def test_a_table_without_values_answers_with_its_fields(store: Store, orders: Topic, plain: Keeper) -> None:
    bad(orders, 1)
    without = pa.schema([*(each for each in RECORD if each.name != "value"), pa.field("n", pa.int64())])
    plain.round(orders, schema=without)
    orders.append(json.dumps({"n": COUNT}).encode())
    found = store.sql("select value.n from orders order by 1", schemas={"orders": "n BIGINT"}).column(0).to_pylist()
    assert found == [*range(COUNT + 1), None]
    assert store.sql("select count(key) from orders").column(0).to_pylist() == [COUNT + 1]
    with pytest.raises(InvalidConfig, match="no column value"):
        store.sql("select value from orders")


def test_what_is_neither_in_the_table_nor_in_the_log_is_an_error(store: Store, orders: Topic, plain: Keeper) -> None:
    plain.round(orders, until={0: 60})
    orders.trim({0: 70})
    with pytest.raises(DataLoss, match="records 60 to 69 of partition 0 of 'orders' are neither"):
        store.sql("select key from orders")
    assert orders.arrow({0: 70}).num_rows  # the remaining columns can be queried
    assert orders.arrow(end={0: 60}).num_rows


def test_a_table_that_is_refused_is_not_read(store: Store, orders: Topic, tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "lake", "delta")
    keeper.round(orders)
    edit_metadata(Path(keeper.info.location), {"delta.columnMapping.mode": "name"})
    with pytest.raises(InvalidConfig, match="its columns are mapped to other names"):
        store.sql("select key from orders")
    orders.table = None  # without a table the query reads the log
    assert store.sql("select key from orders").num_rows == COUNT


def test_the_table_of_an_earlier_topic_and_of_a_log_that_lost_records_are_refused(
    store: Store, orders: Topic, plain: Keeper
) -> None:
    plain.round(orders)
    info = orders.table
    with orders.partition(0)._hold():
        orders.partition(0).truncate(50)
    with pytest.raises(DataLoss, match="has lost its records from offset 50 on"):
        store.sql("select key from orders")
    store.delete_topic("orders")
    again = store.create_topic("orders", 3)
    assert store.sql("select key from orders").num_rows == 0
    again.table = info
    with pytest.raises(InvalidConfig, match="made of an earlier topic"):
        store.sql("select key from orders")


def test_a_file_whose_name_is_a_pattern_is_read_by_its_name(store: Store, orders: Topic, tmp_path: Path) -> None:
    Keeper(tmp_path / "la[k]e*", "parquet").round(orders)
    assert store.sql("select key from orders").num_rows == COUNT


def test_a_query_reads_the_files_that_it_began_with(store: Store, orders: Topic, plain: Keeper) -> None:
    plain.round(orders, until={0: 60, 1: 100})
    with engine.reader(store, "select partition, offset from orders", batch_rows=50) as batches:
        first = batches.read_next_batch()
        plain.round(orders)
        orders.trim({0: 60})
        rest = batches.read_all()
    assert places(pa.Table.from_batches([first, *rest.to_batches()])) == Counter(
        (number, at) for number, ends in enumerate(_ends(orders)) for at in range(ends)
    )


def _ends(topic: Topic) -> list[int]:
    return [each.next for each in topic.offsets().values()]
