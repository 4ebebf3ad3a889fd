"""Topics in SQL: temporary views, and tables of Spark's catalog, which are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_sawlog import DefaultSource
from sawlog import Store
from sawlog.errors import InvalidConfig

#: Options that Spark 4.3 passes for `CREATE TABLE t USING sawlog OPTIONS (path '/d', subscribe 'a')`.
CATALOG = {
    "location": "file:/d",
    "subscribe": "a",
    "option.subscribe": "a",
    "owner": "root",
    "path": "file:/d",
    "provider": "sawlog",
}


def test_the_options_of_a_catalog_table_are_recognised() -> None:
    with pytest.raises(InvalidConfig, match=r"cannot be a table of Spark's catalog.*TEMPORARY VIEW"):
        DefaultSource(CATALOG).schema()


def test_a_table_that_is_used_without_options_is_explained() -> None:
    """Spark creates a table with columns without asking, and then passes no options."""
    shape: Any = None
    for use in (lambda: DefaultSource({}).reader(shape), lambda: DefaultSource({}).writer(shape, overwrite=False)):
        with pytest.raises(
            InvalidConfig, match=r'option\("path", DIRECTORY\).*If this is a table, DROP it.*TEMPORARY VIEW'
        ):
            use()


@pytest.fixture
def sql(spark: Any) -> Iterator[Any]:
    """Return a function that runs a statement. Tables are dropped at the end."""
    yield lambda statement: spark.sql(statement).collect()
    for name in ("made", "told"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    for name in ("orders", "copies"):
        spark.catalog.dropTempView(name)


@pytest.mark.slow  # by hand above, with what Spark passes
def test_a_table_is_refused_when_it_is_created_or_used(sql: Any, store: Store, data: Path) -> None:
    store.create_topic("orders").append(b"1")
    with pytest.raises(Exception, match="cannot be a table of Spark's catalog"):
        sql(f"CREATE TABLE made USING sawlog OPTIONS (path '{data}', subscribe 'orders')")
    sql(f"CREATE TABLE told (key binary, value binary) USING sawlog OPTIONS (path '{data}', topic 'orders')")
    for statement in ("SELECT count(*) FROM told", "INSERT INTO told SELECT CAST('k' AS BINARY), CAST('v' AS BINARY)"):
        with pytest.raises(Exception, match="If this is a table, DROP it"):
            sql(statement)
    assert [record.value for record in store["orders"].scan()] == [b"1"]


def test_a_temporary_view_is_read_and_inserted_into(sql: Any, store: Store, data: Path) -> None:
    for name in ("orders", "copies"):
        store.create_topic(name, 1)
    store["orders"].append_many([b"1", b"2"])
    sql(f"CREATE TEMPORARY VIEW orders USING sawlog OPTIONS (path '{data}', topic 'orders')")
    columns = "key binary, value binary"
    sql(f"CREATE TEMPORARY VIEW copies ({columns}) USING sawlog OPTIONS (path '{data}', topic 'copies')")
    assert sql("SELECT count(*) FROM orders")[0][0] == 2
    sql("INSERT INTO copies SELECT key, value FROM orders")
    assert sorted(record.value or b"" for record in store["copies"].scan()) == [b"1", b"2"]
