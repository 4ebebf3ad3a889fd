"""`make bench-sql`: SQL over a topic, compared with DuckDB over Parquet of the same data, and with `sawlog read | jq`.

    python benchmarks/sql.py [--quick] [--only PATTERN] [--dir DIRECTORY] [--json FILE] [--list]

Ten million orders (half a million with `--quick`) in four partitions: JSON of about 95 bytes, ten thousand keys, one a
millisecond. The Parquet file has the same columns and the same order, with zstd and DuckDB's size of row groups.

- *limits*: count(*), and with it min and max of offset and time. They come from headers; a bar in milliseconds.
- *time*, *offset*: one percent of the records, by a range.
- *keys*: how many records each key has.
- *table*: the same with 95 % of the records in a table's Parquet file, which has the columns of the other.
- *field*: a number out of the JSON of those records whose JSON has a certain text, with DuckDB's JSON functions on both
  sides; and with a schema, where sawlog reads the fields itself.

Ours is `store.sql` of a store that stays open, so it knows what earlier queries have found out about sealed segments;
rows that say *first* open the store each time. What jq does is measured over a twentieth of the records, because it
takes long, and multiplied, except for the start of the programs; `sawlog read` is part of it. Without jq, Python's json
takes its place.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import command
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench import Bench, Case, working
from rounds import Sample, best_of
from rows import Figure, Row, Unit, at_most, times

import sawlog
from sawlog import Topic
from sawlog.sql import engine
from sawlog.sql.history import History, HistoryFile

PARTITIONS = 4
KEYS = 10_000
BATCH = 100_000
#: The time of the first record, in milliseconds.
BASE = 1_790_000_000_000
SCHEMA = {"orders": "id BIGINT, customer INT, amount DOUBLE, status STRING"}
#: jq gets one record in this many.
JQ_PART = 20
_ROW_GROUP = 122_880


@dataclass(slots=True)
class Orders:
    """The data, twice."""

    path: Path
    parquet: Path
    count: int
    store: sawlog.Store
    connection: duckdb.DuckDBPyConnection

    def close(self) -> None:
        """Close both."""
        self.store.close()
        self.connection.close()

    def ours(self, query: str, **options: Any) -> list[dict[str, Any]]:
        """The answer of sawlog."""
        return _rounded(self.store.sql(query.format(table="orders"), **options).to_pylist())

    def first(self, query: str) -> list[dict[str, Any]]:
        """Run the query in a newly opened store."""
        with sawlog.open(self.path, mode="r") as store:
            return _rounded(store.sql(query.format(table="orders")).to_pylist())

    def theirs(self, query: str) -> list[dict[str, Any]]:
        """The answer of DuckDB."""
        found = self.connection.sql(query.format(table=f"'{self.parquet}'"))
        return _rounded(found.to_arrow_table().to_pylist())


def _rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Round floats, because a sum depends on the order of its terms; replace column names by numbers."""
    return [
        {number: round(value, 3) if isinstance(value, float) else value for number, value in enumerate(row.values())}
        for row in rows
    ]


def _table(first: int, count: int, generator: np.random.Generator) -> pa.Table:
    numbers = np.arange(first, first + count)
    customers = generator.integers(0, KEYS, count)
    amounts = generator.integers(1, 100_000, count) / 100
    values = [
        b'{"id": %d, "customer": %d, "amount": %.2f, "status": "%s", "note": "a few more words"}'
        % (number, customer, amount, b"paid" if number % 7 else b"failed")
        for number, customer, amount in zip(numbers.tolist(), customers.tolist(), amounts.tolist(), strict=True)
    ]
    return pa.table(
        {
            "value": pa.array(values, pa.binary()),
            "key": pa.array([b"customer-%d" % customer for customer in customers.tolist()], pa.binary()),
            "timestamp": pa.array(BASE + numbers, pa.timestamp("ms", tz="UTC")),
        }
    )


def _orders(bench: Bench) -> Orders:
    """Made once, and kept until the end."""
    found: Orders | None = bench._shelf.get(("orders",))
    if found is not None:
        return found
    count = bench.scaled(10_000_000, 500_000)
    path, parquet = bench.path(), bench.path().with_suffix(".parquet")
    generator = np.random.default_rng(7)
    with sawlog.open(path, maintenance_interval_s=None) as store:
        topic = store.create_topic("orders", PARTITIONS, durability="os", segment_bytes=256 << 20)
        for first in range(0, count, BATCH):
            topic.append_arrow(_table(first, min(BATCH, count - first), generator))
        for number in range(PARTITIONS):
            topic.partition(number).seal()
    store = sawlog.open(path, mode="r")
    dataset = store.topic("orders").dataset()
    with pq.ParquetWriter(parquet, dataset.schema, compression="zstd") as writer:
        for batches in _grouped(dataset):
            writer.write_table(pa.Table.from_batches(batches), row_group_size=_ROW_GROUP)
    connection = duckdb.connect()
    connection.execute("set TimeZone = 'UTC'")
    made = bench._shelf["orders",] = Orders(path, parquet, count, store, connection)
    return made


def _grouped(dataset: Any) -> Iterator[list[pa.RecordBatch]]:
    """Batches with about a row group together."""
    group: list[pa.RecordBatch] = []
    for batch in dataset.batches():
        group.append(batch)
        if sum(each.num_rows for each in group) >= _ROW_GROUP:
            yield group
            group = []
    if group:
        yield group


# --- rows


def _compared(
    bench: Bench, what: str, query: str, jq: str | None = None, *, bar: float = 0.3, schema: bool = False
) -> list[Row]:
    """A query against DuckDB over Parquet, and perhaps against jq."""
    orders = _orders(bench)
    wanted = orders.theirs(query)
    ours_query = _with_schema(query) if schema else query
    options: dict[str, Any] = {"schemas": SCHEMA} if schema else {}
    best = best_of(
        [
            working("sawlog", partial(orders.ours, ours_query, **options), wanted),
            working("Parquet", partial(orders.theirs, query), wanted),
        ],
        bench.effort,
    )
    figures = {name: _seconds(sample) for name, sample in best.items()}
    rows = [Row(what, figures["sawlog"], "DuckDB on Parquet", figures["Parquet"], times(bar))]
    if jq is not None:
        rows.append(Row("", figures["sawlog"], _jq_name(), _jq(orders, jq), times(50)))
    return rows


def _with_schema(query: str) -> str:
    return query.replace("(decode(value)->>'$.amount')::double", "value.amount").replace(
        "decode(value)->>'$.status'", "value.status"
    )


def _seconds(sample: Sample) -> Figure:
    return Figure(Unit.SECONDS, sample.wall_s, sample.cpu_s)


def _jq_name() -> str:
    return "sawlog read | jq" if shutil.which("jq") else "sawlog read | Python's json"


def _jq(orders: Orders, program: str) -> Figure:
    """Time `sawlog read | jq` for all records, extrapolated from a part of them."""
    start, part = (_reading(orders, program, count) for count in (0, orders.count // JQ_PART // PARTITIONS))
    return Figure(Unit.SECONDS, start + max(part - start, 0.0) * JQ_PART)


def _reading(orders: Orders, program: str, count: int) -> float:
    """Time it for `count` records of each partition, in seconds."""
    reader = [sys.executable, "-m", "sawlog.cli", "read", "orders", "-d", str(orders.path), "-o", f":{count}"]
    filter_ = ["jq", "-c", program] if shutil.which("jq") else [sys.executable, "-c", _PYTHON]
    began = time.perf_counter()
    with subprocess.Popen([*reader, "--output", "ndjson"], stdout=subprocess.PIPE) as reading:
        subprocess.run(filter_, stdin=reading.stdout, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


_PYTHON = "import json, sys\nfor line in sys.stdin: json.loads(json.loads(line)['value'])"


def _limits(bench: Bench) -> list[Row]:
    orders = _orders(bench)
    rows = []
    for what, query in (
        ("count(*)", "select count(*) from {table}"),
        (
            "count(*), min and max of offset and time",
            'select count(*), min("offset"), max("offset"), min(timestamp), max(timestamp) from {table}',
        ),
    ):
        wanted = orders.theirs(query)
        best = best_of(
            [
                working("sawlog", partial(orders.ours, query), wanted),
                working("first", partial(orders.first, query), wanted),
                working("Parquet", partial(orders.theirs, query), wanted),
            ],
            bench.effort,
        )
        figures = {name: _seconds(sample) for name, sample in best.items()}
        rows.append(Row(what, figures["sawlog"], "DuckDB on Parquet", figures["Parquet"], at_most(Unit.SECONDS, 0.1)))
        rows.append(Row(f"first {what}", figures["first"], "DuckDB on Parquet", figures["Parquet"]))
    return rows


def _moment(orders: Orders, part: float) -> str:
    return f"make_timestamptz({(BASE + int(orders.count * part)) * 1000})"


def _time(bench: Bench) -> list[Row]:
    orders = _orders(bench)
    low, high = _moment(orders, 0.5), _moment(orders, 0.51)
    query = f"select count(*), sum(octet_length(value)) from {{table}} where timestamp >= {low} and timestamp < {high}"
    since = f'"{time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime((BASE + orders.count // 2) / 1000))}"'
    wanted = orders.theirs(query)
    first = best_of([working("first", partial(orders.first, query), wanted)], bench.effort)["first"]
    rows = _compared(bench, "filter on time, 1 %", query, f"select(.timestamp >= {since})")
    return [*rows, Row("first filter on time, 1 %", _seconds(first), "DuckDB on Parquet", rows[0].rival)]


def _offset(bench: Bench) -> list[Row]:
    count = _orders(bench).count // PARTITIONS
    low, high = count // 2, count // 2 + count // 100
    query = f'select count(*), max(timestamp) from {{table}} where "offset" between {low} and {high}'
    return _compared(bench, "filter on offset, 1 %", query, f"select(.offset >= {low} and .offset <= {high})")


_BY_KEY = "select key, count(*) from {table} group by key order by 2 desc, 1 limit 10"
_LENGTHS = "select key, sum(octet_length(value)) from {table} group by key order by 2 desc, 1 limit 10"


def _keys(bench: Bench) -> list[Row]:
    return [
        *_compared(bench, f"group by key, {KEYS:,} keys", _BY_KEY, ".key", bar=0.1),
        *_compared(bench, "sum of lengths by key", _LENGTHS),
    ]


@dataclass(frozen=True, slots=True)
class _WithTable:
    """The orders, of which a part is in a table, as a store and as its only topic."""

    given: Topic
    past: History

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)

    def topics(self) -> list[str]:
        """Its name."""
        return ["orders"]

    def topic(self, name: str) -> _WithTable:
        """Itself."""
        return self

    def _history(self) -> History:
        """The history in the table."""
        return self.past


def _table_of(bench: Bench) -> list[Row]:
    orders = _orders(bench)
    topic, file = orders.store.topic("orders"), bench.path().with_suffix(".parquet")
    ends = {number: round(each.next * 0.95) for number, each in topic.offsets().items()}
    with pq.ParquetWriter(file, topic.dataset().schema, compression="zstd") as writer:
        for batches in _grouped(topic.dataset(end=ends)):
            writer.write_table(pa.Table.from_batches(batches), row_group_size=_ROW_GROUP)
    source = _WithTable(topic, History([HistoryFile(str(file))], ends, pq.read_schema(file)))
    rows = []
    for what, query in (
        (f"group by key, {KEYS:,} keys, 95 % in a table", _BY_KEY),
        ("sum of lengths by key, 95 % in a table", _LENGTHS),
    ):
        wanted = orders.theirs(query)
        ask = partial(engine.query, source, query.format(table="orders"))
        best = best_of(
            [
                working("sawlog", lambda ask=ask: _rounded(ask().to_pylist()), wanted),
                working("Parquet", partial(orders.theirs, query), wanted),
            ],
            bench.effort,
        )
        figures = {name: _seconds(sample) for name, sample in best.items()}
        rows.append(Row(what, figures["sawlog"], "DuckDB on Parquet", figures["Parquet"], times(0.9)))
    return rows


def _field(bench: Bench) -> list[Row]:
    query = "select sum((decode(value)->>'$.amount')::double) from {table} where decode(value)->>'$.status' = 'failed'"
    program = '.value | fromjson | select(.status == "failed") | .amount'
    return [
        *_compared(bench, "field of JSON, DuckDB's functions", query),
        *_compared(bench, "field of JSON, with a schema", query, program, schema=True),
    ]


CASES = [
    Case("limits", _limits),
    Case("time", _time),
    Case("offset", _offset),
    Case("keys", _keys),
    Case("table", _table_of),
    Case("field", _field),
]

if __name__ == "__main__":
    command.run(CASES, "Measure SQL over topics against DuckDB over Parquet, and against jq.")
