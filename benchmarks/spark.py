"""`make bench-spark`: Spark over sawlog, beside Spark over Parquet and over JSON lines, all in one session.

    python benchmarks/spark.py [--quick] [--only PATTERN] [--dir DIRECTORY] [--json FILE] [--list]

- *scan*: everything to Spark's noop sink; `count()`; a keyed aggregation; one narrow column. The scan and the
  aggregation also over batches that were made before (see spark_rivals.py): what Spark allows any Python source.
- *table*: a topic of which 95 % are in a table, beside Parquet; typed columns beside parsing (see spark_tables.py).
- *kafka*: the scan beside Spark's own Kafka source and a local broker, if its jars are here.
- *write*: the same rows from Parquet into a topic, into zstd Parquet, and into a Python sink that drops them.
- *micro-batch*: 20 rows from source to sink, beside Spark's rate source to its noop sink.

Data: 2 GB of records with 100-byte values, and with 1 KiB (200 MB with --quick), all seven columns in Parquet and in
JSON lines as well (of the latter a tenth). Each query runs a few times in turn, the best counts: the JVM needs some
runs to warm up. CPU time is that of the JVM and all its Python workers.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import command
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import spark_tables
from bench import Bench, Case
from rounds import Candidate, Sample, Trial, best_of, expect
from rows import Bar, Row, Unit, rate, share
from spark_rivals import broker_with, connector_jars, register_bounds

import sawlog
import sawlog.spark

MB = 1_000_000
_LINES = "key string, value string, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
PARTITIONS = 4
CHUNK = 50_000


class Data:
    """Equal records as a topic, as Parquet and as JSON lines."""

    def __init__(self, bench: Bench, value_bytes: int) -> None:
        size = bench.scaled(2000, 200) * MB
        self.value_bytes = value_bytes
        self.count = size // (value_bytes + 20) // CHUNK * CHUNK
        self.root = bench.path()
        self.store, self.parquet, self.lines = self.root / "store", self.root / "parquet", self.root / "lines"
        for path in (self.root, self.parquet, self.lines):
            path.mkdir(parents=True, exist_ok=True)
        self._fill()

    @property
    def size(self) -> str:
        return "1 KiB" if self.value_bytes == 1024 else f"{self.value_bytes} B"

    @property
    def chunk_count(self) -> int:
        return self.count // CHUNK

    def chunks(self) -> Iterator[pa.Table]:
        random = np.random.default_rng(11)
        letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", np.uint8)
        for first in range(0, self.count, CHUNK):
            text = letters[random.integers(0, len(letters), CHUNK * self.value_bytes, np.uint8)]
            offsets = np.arange(0, (CHUNK + 1) * self.value_bytes, self.value_bytes, np.int32)
            values = pa.Array.from_buffers(pa.binary(), CHUNK, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
            keys = pa.array(np.char.mod("%08d", random.integers(0, 1000, CHUNK)).tolist(), pa.string()).cast(
                pa.binary()
            )
            times = pa.array(1_700_000_000_000 + first + np.arange(CHUNK), pa.timestamp("ms", "UTC"))
            yield pa.table({"key": keys, "value": values, "timestamp": times})

    def _fill(self) -> None:
        writers = [
            pq.ParquetWriter(self.parquet / f"{n}.parquet", _parquet_schema(), compression="none", use_dictionary=False)
            for n in range(PARTITIONS)
        ]
        lines = [(self.lines / f"{n}.json").open("wb") for n in range(PARTITIONS)]
        with sawlog.open(self.store, maintenance_interval_s=None) as store:
            topic = store.create_topic("events", PARTITIONS, durability="os", segment_bytes=256 << 20)
            for number, chunk in enumerate(self.chunks()):
                at = number % PARTITIONS
                placed = topic.partition(at).append_arrow(chunk)
                writers[at].write_table(_with_places(chunk, at, placed.start))
                if number * CHUNK * (self.value_bytes + 20) < 200 * MB:  # text is slow: a tenth of it is enough
                    lines[at].write(b"".join(_lines(chunk, at, placed.start)))
                    self.line_count = (number + 1) * CHUNK
        for each in (*writers, *lines):
            each.close()


def _lines(chunk: pa.Table, partition: int, first: int) -> Iterator[bytes]:
    """Format the rows as JSON lines."""
    line = b'{"key":"%s","value":"%s","topic":"events","partition":%d,"offset":%d,"timestamp":"%s","timestampType":0}\n'
    times = [moment.isoformat().encode() for moment in chunk["timestamp"].to_pylist()]
    columns = zip(chunk["key"].to_pylist(), chunk["value"].to_pylist(), times, strict=True)
    for number, (key, value, moment) in enumerate(columns):
        yield line % (key, value, partition, first + number, moment)


def _parquet_schema() -> pa.Schema:
    return pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestampType", pa.int32()),
        ]
    )


def _with_places(chunk: pa.Table, partition: int, first: int) -> pa.Table:
    """With the columns that reading a topic gives."""
    count = chunk.num_rows
    return pa.table(
        [
            chunk["key"],
            chunk["value"],
            pa.repeat("events", count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            pa.array(np.arange(first, first + count)),
            chunk["timestamp"].cast(pa.timestamp("us", "UTC")),
            pa.repeat(pa.scalar(0, pa.int32()), count),
        ],
        schema=_parquet_schema(),
    )


# --- measuring


def _cpu_s() -> float:
    """Of this process and everything that it started: the JVM and the workers."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _running(name: str, work: Callable[[], object], wanted: object = None) -> Candidate:
    @contextmanager
    def trial() -> Iterator[Trial]:
        found: list[object] = []

        def measure() -> Sample:
            cpu, wall = _cpu_s(), time.perf_counter()
            found.append(work())
            return Sample(time.perf_counter() - wall, _cpu_s() - cpu)

        yield Trial(measure, lambda: None if wanted is None else expect(found, [wanted], name))

    return Candidate(name, trial)


def _spark(bench: Bench) -> Any:
    jars = {"spark.jars": ",".join(map(str, connector_jars()))} if connector_jars() else {}
    spark = sawlog.spark.session("sawlog-bench", cores=2, memory="4g", **jars)
    register_bounds(spark)
    return spark


def _data(bench: Bench, value_bytes: int) -> Data:
    key = (Data, value_bytes)
    if key not in bench._shelf:
        bench._shelf[key] = Data(bench, value_bytes)
        bench._shelf[key].close = lambda: None
    found: Data = bench._shelf[key]
    return found


def _topic(spark: Any, data: Data, **options: str) -> Any:
    reader = spark.read.format("sawlog").option("path", str(data.store)).option("subscribe", "events")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def _noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _aggregated(frame: Any) -> int:
    from pyspark.sql import functions as f

    found = frame.groupBy("key").agg(f.count("*").alias("n"), f.max("timestamp"), f.sum(f.length("value"))).collect()
    return sum(row.n for row in found)


def _scans(value_bytes: int, noop: Bar, keyed: Bar) -> Callable[[Bench], list[Row]]:
    def run(bench: Bench) -> list[Row]:
        spark, data = _spark(bench), _data(bench, value_bytes)
        rows: list[Row] = []
        topic = _topic(spark, data)
        parquet = spark.read.parquet(str(data.parquet))
        lines = spark.read.schema(_LINES).json(str(data.lines))
        ready = spark.read.format("ready").options(value_bytes=value_bytes, count=data.count, tasks=16).load()
        queries: list[tuple[str, Any, Any, Callable[[Any], object], Bar | None]] = [
            ("scan to noop", topic, parquet, _noop, noop),
            ("keyed aggregation", topic, parquet, _aggregated, keyed),
            ("count()", topic, parquet, lambda frame: frame.count(), None),
            ("one column to noop", _topic(spark, data, columns="key"), parquet.select("key"), _noop, None),
        ]
        for name, ours, theirs, work, bar in queries:
            wanted = None if work is _noop else data.count
            best = best_of(
                [
                    _running("sawlog", lambda work=work, ours=ours: work(ours), wanted),
                    _running("Parquet", lambda work=work, theirs=theirs: work(theirs), wanted),
                ],
                bench.effort,
            )
            figures = {each: rate(Unit.RECORDS, sample, data.count) for each, sample in best.items()}
            what = f"{name}, {data.size}"
            rows.append(Row(what, figures["sawlog"], "Parquet, uncompressed", figures["Parquet"], bar, percent=True))
            if bar is not None:
                bound = best_of([_running("ready", lambda work=work: work(ready))], bench.effort)["ready"]
                rows.append(
                    Row(
                        what,
                        figures["sawlog"],
                        "ready-made batches",
                        rate(Unit.RECORDS, bound, data.count),
                        percent=True,
                    )
                )
            if work is _noop and bar is not None:
                text = best_of([_running("lines", lambda: _noop(lines))], bench.effort)["lines"]
                rows.append(
                    Row(what, figures["sawlog"], "JSON lines", rate(Unit.RECORDS, text, data.line_count), Bar(ratio=3))
                )
        return rows

    return run


def _kafka(bench: Bench) -> list[Row]:
    """A part of the data, read by Spark's Kafka source and by ours, with the same options."""
    if not connector_jars():
        return []
    spark = _spark(bench)
    rows: list[Row] = []
    for value_bytes in (100, 1024):
        data = _data(bench, value_bytes)
        with sawlog.open(data.store, mode="r") as store:
            lengths = {number: each.next for number, each in store.topic("events").offsets().items()}
        part = {str(number): min(length, 500_000) for number, length in lengths.items()}
        path, ends, count = bench.path(), json.dumps({"events": part}), sum(part.values())
        with broker_with(data.store, "events", path) as address:
            kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", "events")
            theirs = kafka.option("startingOffsets", "earliest").option("endingOffsets", ends).load()
            ours = _topic(spark, data, endingOffsets=ends)
            expect(theirs.count(), ours.count(), "records")
            best = best_of(
                [
                    _running("sawlog", lambda ours=ours: _noop(ours)),
                    _running("Kafka", lambda theirs=theirs: _noop(theirs)),
                ],
                bench.effort,
            )
        shutil.rmtree(path, ignore_errors=True)
        figures = {each: rate(Unit.RECORDS, sample, count) for each, sample in best.items()}
        what = f"scan of {count / 1e6:.1f} million records to noop, {data.size}"
        rows.append(Row(what, figures["sawlog"], "Spark's Kafka source", figures["Kafka"], Bar(ratio=2)))
    return rows


def _write(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    spark = _spark(bench)
    for value_bytes in (100, 1024):
        data = _data(bench, value_bytes)
        part = spark.read.parquet(*[str(path) for path in sorted(data.parquet.glob("*.parquet"))[:2]])
        count = part.count()
        source = part.select("key", "value", "timestamp")
        target = bench.path()

        def to_topic(source: Any = source, target: Path = target) -> None:
            writer = source.write.format("sawlog").mode("append").option("path", str(target / "store"))
            writer = writer.option("createStore", "true")
            writer.option("topic", "copy").option("partitions", "4").option("compression", "zstd").save()

        def to_parquet(source: Any = source, target: Path = target) -> None:
            source.write.mode("overwrite").option("compression", "zstd").parquet(str(target / "parquet"))

        def to_nowhere(source: Any = source) -> None:
            source.write.format("nowhere").mode("append").save()

        try:
            best = best_of(
                [
                    _running("sawlog", to_topic),
                    _running("Parquet", to_parquet),
                    _running("nowhere", to_nowhere),
                ],
                bench.effort,
            )
        finally:
            shutil.rmtree(target, ignore_errors=True)
        figures = {each: rate(Unit.RECORDS, sample, count) for each, sample in best.items()}
        what = f"writing with zstd, {data.size}"
        rows.append(Row(what, figures["sawlog"], "Parquet, zstd", figures["Parquet"], share(0.8), percent=True))
        rows.append(Row(what, figures["sawlog"], "a sink that drops all", figures["nowhere"], percent=True))
    return rows


def _micro_batches(bench: Bench) -> list[Row]:
    """The median time of a micro-batch of twenty rows."""
    spark, root = _spark(bench), bench.path()
    root.mkdir(parents=True)
    batches = bench.scaled(30, 8)
    with sawlog.open(root / "store", maintenance_interval_s=None) as store:
        store.create_topic("in", 1).append_many([(b"value %d" % n, b"key") for n in range(20 * batches)])
        store.create_topic("out", 1)

    def ours() -> float:
        frame = spark.readStream.format("sawlog").option("path", str(root / "store")).option("subscribe", "in")
        frame = frame.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "20").load()
        query = (
            frame.select("key", "value")
            .writeStream.format("sawlog")
            .option("path", str(root / "store"))
            .option("topic", "out")
            .option("checkpointLocation", str(root / f"checkpoint-{time.monotonic_ns()}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return _median(query)

    def rates() -> float:
        query = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", "20")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(root / f"checkpoint-{time.monotonic_ns()}"))
            .start()
        )
        while len(query.recentProgress) < batches:
            time.sleep(0.05)
        query.stop()
        return _median(query)

    found: dict[str, list[float]] = {"ours": [], "rate": []}
    for _ in range(bench.effort.fewest_rounds):
        found["ours"].append(ours())
        found["rate"].append(rates())
    shutil.rmtree(root, ignore_errors=True)
    from rows import Figure

    best = {name: Figure(Unit.SECONDS, min(values)) for name, values in found.items()}
    what = "micro-batch of 20 rows, sawlog to sawlog"
    return [Row(what, best["ours"], "rate source to noop", best["rate"], Bar(ratio=0.5, percent=True), percent=True)]


def _median(query: Any) -> float:
    times = [
        progress["durationMs"]["triggerExecution"] for progress in query.recentProgress if progress["numInputRows"]
    ]
    return statistics.median(times[1:]) / 1000


CASES = [
    Case("scan-100", _scans(100, share(0.4), share(0.5))),
    Case("scan-1024", _scans(1024, share(0.7), share(0.8))),
    Case("table-100", spark_tables.union(lambda bench: _data(bench, 100), _aggregated, _running, _spark)),
    Case("table-1024", spark_tables.union(lambda bench: _data(bench, 1024), _aggregated, _running, _spark)),
    Case("table-json", spark_tables.typed(_running, _spark)),
    Case("kafka", _kafka),
    Case("write", _write),
    Case("micro-batch", _micro_batches),
]

if __name__ == "__main__":
    os.environ.setdefault("SAWLOG_SPARK_LOG", "ERROR")
    command.run(CASES, "Measure Spark over sawlog against Spark over Parquet and JSON lines.")
