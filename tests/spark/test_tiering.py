"""A topic of which a part is only in the replica, read by Spark: tasks read that part from object storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sawlog.spark.options import read_options
from sawlog.spark.reading import BatchReader

from ..replicas.test_tiering import Tiered, expected
from .test_streaming import Query


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[Tiered]:
    made = Tiered(tmp_path)
    yield made
    made.store.close()


@pytest.mark.slow  # 12 s; by hand below
def test_spark_reads_it_in_a_batch_and_as_a_stream(tiered: Tiered, spark: Any, tmp_path: Path) -> None:
    reader = spark.read.format("sawlog").option("path", str(tiered.data)).option("subscribe", "orders")
    rows = reader.load().select("offset", "value").orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == expected(0, 200)
    stream = spark.readStream.format("sawlog").option("path", str(tiered.data)).option("subscribe", "orders")
    loaded = stream.option("startingOffsets", "earliest").load().select("offset", "value")
    out = tmp_path / "out"
    for end in (200, 260):
        query = loaded.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start(str(out)).awaitTermination()
        found = spark.read.parquet(str(out)).orderBy("offset").collect()
        assert [bytes(row.value) for row in found] == expected(0, end)
        tiered.append(60)
        tiered.ship()
        assert tiered.tier()


def test_tasks_read_it_in_a_batch_and_as_a_stream(tiered: Tiered) -> None:
    """Spark's part is played by hand."""
    options = read_options({"path": str(tiered.data), "subscribe": "orders"}, streaming=False)
    reader = BatchReader(options, ("offset", "value"))
    rows = [tuple(row.values()) for task in reader.partitions() for b in reader.read(task) for row in b.to_pylist()]
    assert [value for _, value in sorted(rows)] == expected(0, 200)
    query = Query(tiered.data)
    found: list[tuple[Any, ...]] = []
    for end in (200, 260):
        found += query.restart(available_now=True).drain()
        assert [value for *_, value in sorted(found, key=lambda row: row[2])] == expected(0, end)
        tiered.append(60)
        tiered.ship()
        assert tiered.tier()
