"""A part of a topic in a table's Parquet files, the rest in the log: every record once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sawlog import Store, Topic
from sawlog.errors import InvalidConfig
from sawlog.sql import engine
from sawlog.sql.dataset import dataset_of
from sawlog.sql.history import History, HistoryFile

from ..looping import for_each
from .conftest import COUNT, SCHEMA, T


class Materialised:
    """A topic with a table that is registered in the store."""

    def __init__(self, store: Store, topic: Topic, history: History) -> None:
        self._store, self._topic, self._past = store, topic, history

    def __getattr__(self, name: str) -> Any:
        return getattr(self._topic, name)

    def _history(self) -> History:
        return self._past

    # --- the store

    def topics(self) -> list[str]:
        return self._store.topics()

    def topic(self, name: str) -> Any:
        return self


@dataclass
class Case:
    source: Any
    everything: pa.Table


ENDS = {0: 50, 1: 120, 2: 0}


@pytest.fixture(params=["as the log has it", "other widths", "without values"])
def case(request: pytest.FixtureRequest, store: Store, orders: Topic, tmp_path: Path) -> Case:
    """Write the files of a table, then drop their records from the log, except for a few."""
    everything = orders.arrow()
    held = everything.filter(
        ((pc.field("partition") == 0) & (pc.field("offset") < 50))
        | ((pc.field("partition") == 1) & (pc.field("offset") < 120))
    )
    fields: dict[str, str] = {}
    if request.param == "other widths":
        at = held.column("timestamp").cast(pa.timestamp("us", tz="UTC"))
        held = held.set_column(2, "timestamp", at).set_column(0, "partition", held.column(0).cast(pa.int64()))
        held = held.drop_columns(["headers"])
    if request.param == "without values":
        typed = orders.arrow({0: 0, 1: 0}, {**ENDS}, schema=SCHEMA, columns=["value"]).column(0).combine_chunks()
        for name in ("id", "amount", "status"):
            held = held.append_column(f"value_{name}", typed.field(name))
            fields[name] = f"value_{name}"
        held = held.drop_columns(["value"])
    for number, part in enumerate((held.slice(0, 70), held.slice(70))):
        pq.write_table(part, tmp_path / f"{number}.parquet")
    orders.trim({0: 45, 1: 120})
    files = [HistoryFile(str(path)) for path in sorted(tmp_path.glob("*.parquet"))]
    return Case(Materialised(store, orders, History(files, ENDS, held.schema, fields)), everything)


def ordered(table: pa.Table) -> list[tuple[int, int, int, bytes, bytes]]:
    columns = ["partition", "offset", "timestamp", "key", "value"]
    table = table.set_column(
        table.schema.get_field_index("timestamp"), "timestamp", table["timestamp"].cast(pa.timestamp("ms", tz="UTC"))
    )
    return sorted(tuple(row[name] for name in columns) for row in table.select(columns).to_pylist())


def has_values(case: Case) -> bool:
    return bool(case.source._history().has_value)


def test_sql_reads_the_table_and_then_the_log(case: Case) -> None:
    if not has_values(case):
        with pytest.raises(InvalidConfig, match="'orders' has no column value: it was made without values"):
            engine.query(case.source, "select value from orders")
        found = engine.query(case.source, "select partition, offset, key from orders order by all")
        assert (
            found.to_pylist()
            == case.everything.select(["partition", "offset", "key"])
            .sort_by([("partition", "ascending"), ("offset", "ascending")])
            .to_pylist()
        )
        return
    found = engine.query(case.source, "select partition, offset, timestamp, key, value from orders")
    assert ordered(found) == ordered(case.everything)
    assert engine.query(case.source, "select count(*), min(offset) from orders").to_pylist() == [
        {"count_star()": COUNT, 'min("offset")': 0}
    ]


def test_a_dataset_reads_the_table_and_then_the_log(case: Case) -> None:
    dataset = dataset_of(case.source)
    if has_values(case):
        assert ordered(dataset.to_table()) == ordered(case.everything)
    some = (pc.field("offset") >= 40) & (pc.field("offset") < 60) & (pc.field("partition") == 0)
    assert dataset.to_table(["offset"], some).column(0).to_pylist() == list(range(40, 60))
    moment = pa.scalar(T + 30, pa.timestamp("ms", tz="UTC"))
    assert dataset.count_rows(pc.field("timestamp") < moment) == 30
    assert dataset_of(case.source, start={0: 30}, end={0: 55, 1: 0, 2: 0}).count_rows() == 25


def test_values_are_the_same_structs_on_both_sides(case: Case) -> None:
    found = engine.query(case.source, "select value.id from orders order by 1", schemas={"orders": SCHEMA})
    assert found.column(0).to_pylist() == list(range(COUNT))
    rows = dataset_of(case.source, schema=SCHEMA).to_table(["value"]).column(0).to_pylist()
    assert sorted(row["id"] for row in rows) == list(range(COUNT))
    if not has_values(case):
        with pytest.raises(InvalidConfig, match="no field 'more'"):
            dataset_of(case.source, schema="id BIGINT, more INT").to_table(["value"])


def test_a_table_that_holds_nothing_yet_changes_nothing(store: Store, orders: Topic) -> None:
    source: Any = Materialised(store, orders, History([], {}, orders.dataset().schema))
    assert engine.query(source, "select count(value) from orders").column(0).to_pylist() == [COUNT]
    assert dataset_of(source).count_rows() == COUNT


@for_each(
    "query",
    [
        "select key, count(*) from orders group by key",
        "select key, min(offset), max(offset), min(timestamp), max(timestamp), count(key) from orders group by key",
        "select partition, key, count(*) from orders group by all",
        "select count(distinct key), count(*) from orders where partition < 2",
        "select distinct key from orders order by key limit 4",
    ],
)
def test_keys_are_counted_in_both_parts(case: Case, query: str) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        connection.register("orders", case.everything)
        expected = connection.execute(engine.with_offset_quoted(query, duckdb)).fetchall()
    found = engine.query(case.source, query).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == sorted(expected)
