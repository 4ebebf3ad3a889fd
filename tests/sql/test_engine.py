"""SQL over topics: supported queries, their results, and rejected statements."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sawlog
from sawlog import Store, Topic
from sawlog.errors import CorruptBatch, LogClosed, MissingPackage, QueryFailed
from sawlog.log import slices
from sawlog.sql import engine, statistics

from ..looping import for_each
from .conftest import COUNT, SCHEMA, Asked, T, rows


def values(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize("query", ["select value.amount from orders", "select value['amount'] from orders"])
def test_a_field_without_a_schema_names_the_setting(store: Store, query: str) -> None:
    store.create_topic("plain").append(b'{"amount": 1}')
    with pytest.raises(QueryFailed, match=r"without a schema .* sawlog\.schema.*--schema"):
        store.sql(query.replace("orders", "plain"))


@for_each(
    "query",
    [
        "select value->>'id' from orders",
        "select json_extract_string(o.value, '$.id') from orders o join orders p using (partition, \"offset\")",
        "select count(*) from orders where VALUE->>'$.id' = '1'",
        "select (select json(value) from Orders limit 1)",
        "select 1 union all from orders select value->>'id'",
        "select key->>'id' from orders",
    ],
)
def test_json_functions_over_bytes_are_refused_instead_of_finding_nothing(shared: Store, query: str) -> None:
    with pytest.raises(QueryFailed, match=r"find nothing in \S+, which is bytes: write decode\("):
        shared.sql(query)


@for_each(
    "query",
    [
        "select decode(value)->>'id' from orders",
        "select value->>'id' from (select decode(value) as value from orders)",
        "with plain as (select decode(value) as value from orders) select p.value->>'id' from plain p",
        "with orders as (select '{\"id\": 1}' as value) select value->>'id' from orders",
        "select json_object('key', key) from orders",
    ],
)
def test_json_functions_over_text_find_their_fields(shared: Store, query: str) -> None:
    found = values(shared.sql(query))
    assert found
    assert all(row[0] for row in found)


def test_json_functions_work_on_values_with_a_schema(shared: Store) -> None:
    found = shared.sql("select sum((value->>'id')::int) from orders", schemas={"orders": SCHEMA})
    assert values(found) == [(sum(range(COUNT)),)]


def test_a_field_given_as_a_column_is_suggested_as_a_field(store: Store) -> None:
    store.create_topic("plain")
    with pytest.raises(QueryFailed, match=r"a field of the value is value\.amount"):
        store.sql("select amount from plain")


def test_a_query_over_a_topic_is_a_table(shared: Store) -> None:
    found = shared.sql("select key, count(*) as n from orders group by key order by key")
    assert isinstance(found, pa.Table)
    assert values(found) == sorted(Counter(row[3] for row in rows(shared.topic("orders"))).items())


def test_a_filter_and_a_projection_reach_the_topic(shared: Store, asked: Asked) -> None:
    found = shared.sql('select decode(key) from orders where "offset" between 5 and 6 and partition = 1')
    assert found.num_rows == 2
    assert asked.pieces == [(("offset", "key"), 5, 7)]


@for_each(
    "query",
    [
        "select max(offset) from orders where offset > 5",
        "select offset, key from orders order by offset desc limit 3 offset 2",
        "select o.offset from orders o where Offset in (1, 2)",
        "select 'offset -- offset' as text, offset -- and offset\nfrom orders",
        "explain select offset from orders",
        "select 'ä€🪵', offset from orders",
        "from orders select count(*) where offset < 5;",
        "with o as (from orders) select count(*) from o",
        "describe orders",
        "summarize select partition from orders",
    ],
)
def test_queries_people_type_are_understood(shared: Store, query: str) -> None:
    assert shared.sql(query).num_rows > 0


@for_each(
    ("query", "reason"),
    [
        ("", "there is no query"),
        ("select 1; select 2", "one query at a time"),
        ("selec 1", "syntax error"),
        ("select nope from orders", "nope"),
        ("select * from missing", "missing"),
        ("select * from my.topic", "needs quotes"),
        ("copy orders to 'x.csv'", "not COPY"),
        ("explain analyze copy orders to 'x.csv'", "not COPY"),
        ("create table x as from orders", "not CREATE"),
        ("insert into orders values (1)", "not INSERT"),
        ("set threads = 1", "not SET"),
        ("attach 'x.db'", "not ATTACH"),
        ("install httpfs", "not LOAD"),
        ("select cast('x' as integer)", "Could not convert"),
    ],
)
def test_what_is_not_a_query_is_refused_with_the_reason(
    shared: Store, query: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QueryFailed, match=reason):
        shared.sql(query)
    assert not (tmp_path / "x.csv").exists()


def test_names_with_dots_and_dashes_are_quoted_and_case_does_not_matter(store: Store) -> None:
    store.create_topic("My.topic-1").append(b"x")
    assert values(store.sql('select decode(value) from "My.topic-1"')) == [("x",)]
    assert values(store.sql('select decode(value) from "my.TOPIC-1"')) == [("x",)]


def test_topics_are_joined_with_each_other_and_with_files(store: Store, orders: Topic, tmp_path: Path) -> None:
    pq.write_table(pa.table({"customer": ["customer-1"], "name": ["Ada"]}), tmp_path / "people.parquet")
    (tmp_path / "cities.csv").write_text("customer,city\ncustomer-1,Bath\n")
    query = f"""
        select name, city, count(*) from orders o
        join '{tmp_path}/people.parquet' p on decode(o.key) = p.customer join '{tmp_path}/cities.csv' c using (customer)
        where exists (from orders b where b.offset = o.offset) group by all
    """
    assert values(store.sql(query)) == [("Ada", "Bath", COUNT // 10)]


def test_variables_of_the_program_are_no_tables(store: Store) -> None:
    secret = pa.table({"a": [1]})
    with pytest.raises(QueryFailed, match="secret"):
        store.sql("select * from secret")
    assert secret.num_rows == 1


def test_parameters_are_values_and_not_text(shared: Store) -> None:
    key = b"customer-7"
    assert values(shared.sql("select count(*) from orders where key = ?", [key])) == [(COUNT // 10,)]
    assert values(shared.sql("select count(*) from orders where key = $key", {"key": key})) == [(COUNT // 10,)]
    assert values(shared.sql("select count(*) from orders where decode(key) = ?", ["' or true --"])) == [(0,)]


def test_fields_of_values_are_columns_with_a_schema(store: Store, orders: Topic) -> None:
    query = "select value.status, sum(value.amount) from orders group by all order by 1"
    expected = [("failed", sum(n * 1.5 for n in range(0, COUNT, 7)))]
    assert values(store.sql(query, schemas={"orders": SCHEMA}))[:1] == expected
    store.alter_topic("orders", sawlog_schema=SCHEMA)
    assert values(store.sql(query))[:1] == expected
    assert values(store.sql("select decode(value)->>'$.id' from orders limit 1", schemas={"orders": None}))[0][
        0
    ].isdigit()


def test_the_reader_streams_batches_and_ends_by_itself(shared: Store) -> None:
    with shared.sql_reader("select partition, offset from orders") as batches:
        assert isinstance(batches, pa.RecordBatchReader)
        assert batches.schema.names == ["partition", "offset"]
        assert sum(batch.num_rows for batch in batches) == COUNT


@pytest.mark.costly  # an interpreter that imports DuckDB
def test_a_reader_that_is_left_alone_does_not_keep_a_process_from_ending(store: Store, orders: Topic) -> None:
    code = f"""
import sawlog
store = sawlog.open({store.path!r}, mode="r")
batches = store.sql_reader("select * from orders")
batches.read_next_batch()
"""
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_query_sees_what_was_there_when_it_began(store: Store, orders: Topic) -> None:
    with store.sql_reader("select offset from orders") as batches:
        first = batches.read_next_batch().num_rows
        orders.append_many([b"later"] * 20)
        assert first + sum(batch.num_rows for batch in batches) == COUNT


@for_each(
    "query",
    [
        "select count(*) from orders",
        "select count(*) as n, min(offset), max(offset), min(timestamp), max(timestamp) from orders",
        "select partition, count(*), max(timestamp) from orders group by partition",
        "select count(offset) from orders where partition in (1, 2)",
        "select count(*), min(partition) from orders where partition > 7",
        "select max(timestamp) from ORDERS where partition = 1",
    ],
)
def test_counts_and_limits_need_no_record(shared: Store, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(engine._Session, "_rewritten", lambda self, text, name, dataset: None)
        expected = shared.sql(query)
    assert expected.num_rows
    with monkeypatch.context() as unreadable:
        unreadable.setattr(slices, "read", lambda *_, **__: pytest.fail("a record was read"))
        found = shared.sql(query)
    assert found.schema == expected.schema
    assert sorted(values(found)) == sorted(values(expected))


@for_each(
    "query",
    [
        "select count(key) from orders",
        "select count(distinct offset) from orders",
        "select count(*) filter (offset > 5) from orders",
        "select count(*) from orders where offset > 5",
        "select count(*) + 1 from orders",
        "select count(*) from orders o join orders using (offset)",
        "select count(*) from (from orders limit 5)",
        "select count(*) from orders having count(*) > 5",
        "select sum(offset) from orders",
        "select max(decode(key)) from orders",
        "select max(offset, 3) from orders",
        "select partition from orders group by partition",
        "select offset % 2, count(*) from orders group by 1",
        "select count(*) over () from orders",
    ],
)
def test_any_other_query_reads_records_and_gets_the_same(
    shared: Store, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "table", lambda *_, **__: pytest.fail("not a query for statistics"))
    found = values(shared.sql(query))
    table = shared.topic("orders").arrow()
    import duckdb

    with duckdb.connect() as connection:
        connection.register("orders", table)
        quoted = engine.with_offset_quoted(query, duckdb)
        assert sorted(found) == sorted(connection.execute(quoted).fetchall())


def test_statistics_count_what_is_committed_and_not_trimmed(store: Store) -> None:
    from ..log.transactional import batch

    topic = store.create_topic("t", durability="os")
    log = topic.partition(0)
    topic.append_many([(b"%d" % n, None, (), T + (n ^ 1)) for n in range(5)])
    log.append_batches(batch([b"gone"], 1, sequence=0, timestamp=T - 50))
    log.append_marker(1, 0, commit=False)
    log.append_batches(batch([b"kept"], 2, sequence=0, timestamp=T + 99))
    log.append_marker(2, 0, commit=True)
    topic.trim({0: 2})
    query = "select count(*), min(offset), max(offset), epoch_ms(min(timestamp)), epoch_ms(max(timestamp)) from t"
    assert values(store.sql(query)) == [(4, 2, 7, T + 2, T + 99)]
    limits = "select count(*), min(offset), max(offset) from t"
    assert values(store.sql(limits)) == [(4, 2, 7)]
    assert values(store.sql(limits, isolation="uncommitted")) == [(5, 2, 7)]


@pytest.mark.parametrize("before", ["select min(timestamp) from t", "select * from t where timestamp < '2030-01-01'"])
def test_statistics_of_older_segments_may_know_more_than_those_of_newer_ones(store: Store, before: str) -> None:
    topic = store.create_topic("t")
    for _ in range(3):
        topic.append(b"v")
        topic.partition(0).seal()
        store.sql(before)
        topic.append(b"v")
        topic.partition(0).seal()
    assert store.sql("select count(*), max(offset) from t").to_pylist() == [{"count_star()": 6, 'max("offset")': 5}]
    assert store.sql("select partition, count(*) as n from t group by partition").to_pylist() == [
        {"partition": 0, "n": 6}
    ]


def test_statistics_of_a_compacted_topic_count_what_is_left(store: Store) -> None:
    topic = store.create_topic("t", cleanup_policy="compact", durability="os")
    for number in range(30):
        topic.append(b"%d" % number, key=b"%d" % (number % 3))
    topic.partition(0).seal()
    topic.append(b"x", key=b"0")
    topic.partition(0).compact()
    left = [record.offset for record in topic.scan()]
    assert len(left) < 31
    assert values(store.sql("select count(*), min(offset), max(offset) from t")) == [(len(left), left[0], left[-1])]


def test_damage_is_reported_as_such(store: Store, orders: Topic) -> None:
    path = Path(orders.partition(0).path)
    store.close()
    segment = sorted(path.glob("*.log"))[1]
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)
    with sawlog.open(path.parents[2], mode="r") as again, pytest.raises(CorruptBatch) as raised:
        again.sql("select sum(octet_length(value)) from orders")
    assert raised.value.path == str(segment)


def test_a_closed_store_and_a_missing_package_say_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingPackage, match=r"pip install '\.\[sql\]'"):
        store.sql("select 1")
    store.close()
    with pytest.raises(LogClosed):
        store.sql("select 1")


def test_show_tables_lists_the_topics(store: Store, orders: Topic) -> None:
    store.create_topic("other.one")
    assert values(store.sql("show tables")) == [("orders",), ("other.one",)]
    assert {row[0] for row in values(store.sql("describe orders"))} == {
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
    }


def test_queries_leave_nothing_behind(shared: Store) -> None:
    for _ in range(3):
        with pytest.raises(QueryFailed):
            shared.sql("select nope from orders")
        shared.sql("select count(key) from orders")
    gc.collect()
    import threading

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sawlog-sql")]


def test_json_without_a_schema_is_taken_apart_by_duckdb(shared: Store) -> None:
    query = "select sum((decode(value)->>'$.id')::int) from orders where decode(value)->>'$.status' = 'failed'"
    expected = sum(
        each["id"] for row in rows(shared.topic("orders")) if (each := json.loads(row[4] or b""))["status"] == "failed"
    )
    assert values(shared.sql(query))[0][0] == expected
