"""A topic of which a part is only in the replica, read by Spark: tasks read that part from object storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..replicas.test_tiering import Tiered, expected


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[Tiered]:
    made = Tiered(tmp_path)
    yield made
    made.store.close()


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
