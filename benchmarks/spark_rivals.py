"""Comparisons for Spark over sawlog, apart from files: Spark's Kafka source, and a source and a sink that do nothing.

- *ready-made*: a Python source whose tasks hold one Arrow batch and send it again and again. No file, no checksum, no
  decoding: the rest is Spark's own cost for the rows of a Python source, the lower bound for any of them.
- *nowhere*: a Python sink that drops its Arrow batches: Spark's own cost of passing rows to one.
- *Kafka*: a broker of one node on this machine with the same segments (exported), read by Spark's own connector. Its
  jars and the broker's: `python tools/fetch_kafka.py --connector`.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sawlog
from sawlog import interop

ROOT = Path(__file__).resolve().parent.parent
_TOOL = runpy.run_path(str(ROOT / "tools" / "fetch_kafka.py"))
SHAPE = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
_READY_BYTES = 2 << 20


def connector_jars() -> list[Path]:
    """Spark's Kafka source, if the broker's jars are here, too."""
    found: list[Path] = _TOOL["connector_jars"]()
    return found if any(_TOOL["jars_directory"]().glob("kafka_*.jar")) else []


@contextmanager
def broker_with(store: Path, topic: str, path: Path) -> Iterator[str]:
    """A broker that has the topic; its address."""
    sys.path.insert(0, str(ROOT))
    try:
        from tests.interop.brokers import Broker
    finally:
        sys.path.remove(str(ROOT))
    path.mkdir(parents=True)
    broker = Broker(path)
    with sawlog.open(store, mode="r") as opened:
        given = opened.topic(topic)
        with broker.running():
            broker.do({"do": "create", "topic": topic, "partitions": given.partitions})
        interop.export_topic(given, broker.logs, format="kafka")
    with broker.running():
        broker.do({"do": "produce", "topic": "warm", "records": []})  # returns when the broker answers
        yield broker.address


def register_bounds(spark: Any) -> None:
    """Make `format("ready")` and `format("nowhere")` known. Defined in here, so that they travel to the workers as they
    are."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        InputPartition,
        WriterCommitMessage,
    )

    class Reader(DataSourceReader):
        def __init__(self, value_bytes: int, count: int, tasks: int) -> None:
            self.value_bytes, self.count, self.tasks = value_bytes, count, tasks

        def partitions(self) -> list[Any]:
            return [InputPartition(number) for number in range(self.tasks)]

        def read(self, partition: Any) -> Iterator[Any]:
            import numpy as np
            import pyarrow as pa

            rows = _READY_BYTES // (self.value_bytes + 20)
            numbers = np.arange(rows)
            batch = pa.RecordBatch.from_arrays(
                [
                    pa.array([b"%08d" % (number % 1000) for number in range(rows)], pa.binary()),
                    pa.array([b"x" * self.value_bytes] * rows, pa.binary()),
                    pa.repeat("events", rows),
                    pa.repeat(pa.scalar(0, pa.int32()), rows),
                    pa.array(numbers),
                    pa.array(numbers, pa.timestamp("us", "UTC")),
                    pa.repeat(pa.scalar(0, pa.int32()), rows),
                ],
                names=["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"],
            )
            left = self.count // self.tasks
            while left > 0:
                yield batch.slice(0, min(left, rows))
                left -= rows

    class Ready(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> str:
            return SHAPE

        def reader(self, schema: Any) -> Reader:
            return Reader(*(int(self.options[name]) for name in ("value_bytes", "count", "tasks")))

    class Dropper(DataSourceArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Nowhere(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nowhere"

        def writer(self, schema: Any, overwrite: bool) -> Dropper:
            return Dropper()

    spark.dataSource.register(Ready)
    spark.dataSource.register(Nowhere)
