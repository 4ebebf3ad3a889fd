"""Topics in Polars and pandas."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import pytest

from sawlog import Topic
from sawlog.errors import MissingPackage

from .conftest import COUNT, SCHEMA, Asked, T, rows


def test_a_lazy_frame_of_polars_reads_only_what_it_selects(orders: Topic, asked: Asked) -> None:
    import polars as pl

    frame = orders.polars()
    found = frame.filter((pl.col("offset") >= 5) & (pl.col("offset") < 7) & (pl.col("partition") == 1)).select("key")
    assert found.collect()["key"].to_list() == [row[3] for row in rows(orders) if row[0] == 1 and row[1] in (5, 6)]
    assert asked.pieces == [(("offset", "key"), 5, 7)]


def test_polars_gets_all_records_and_any_filter(orders: Topic) -> None:
    import polars as pl

    frame = orders.polars(schema=SCHEMA)
    assert frame.collect().height == COUNT
    since = datetime.fromtimestamp((T + 300) / 1000, UTC)
    assert frame.filter(pl.col("timestamp") >= since).collect().height == COUNT - 300
    failed = frame.filter(pl.col("value").struct.field("status") == "failed").select(pl.len()).collect()
    assert failed.item() == len(range(0, COUNT, 7))
    assert frame.head(7).collect().height == 7


def test_pandas_gets_a_data_frame(orders: Topic) -> None:
    frame = orders.to_pandas(columns=["offset", "key"])
    assert list(frame.columns) == ["offset", "key"]
    assert len(frame) == COUNT


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackage, match=r"pip install '\.\[sql\]'"):
        orders.polars()
    with pytest.raises(MissingPackage, match="pip install pandas"):
        orders.to_pandas()
