"""Answer queries over a topic's keys: `select key, count(*), max(timestamp) from orders group by key`.

Such a query is rewritten to one over a `KeyDataset`, which has a few rows per key instead of one per record. The kernel
counts while it walks over the records and builds no column of keys. DuckDB then groups these rows:

| column | type | |
|---|---|---|
| partition | int32 | |
| key | binary | null for the records without a key |
| records | int64 | |
| first_offset, last_offset | int64 | |
| oldest, newest | timestamp[ms, UTC] | |

A key may have any number of rows: threads count separately, and counts that exceed the memory limit are emitted early.

    count(*)             sum(records)
    count(key)           sum(records) where the key is not null
    min, max(offset)     min(first_offset), max(last_offset)
    min, max(timestamp)  min(oldest), max(newest)
    distinct, count(distinct key), min, max(key)    unchanged: duplicates of a key do not matter

As in shortcuts.py, the rewrite works on DuckDB's own syntax tree. The query must be over one topic; `key` and
`partition` may be anywhere, in expressions of a few known kinds; `having`, `order by` and `limit` are kept. Any other
query is left as it is and costs a scan.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..batch.counting import RANGES, KeyCounts
from ..batch.counting import SCHEMA as COUNTS
from ..errors import CorruptBatch
from ..log.batches import Chunk
from .filters import Bounds, fields_of
from .scanning import BATCH_ROWS, PartitionReaders, most_threads
from .shortcuts import COLUMNS, Ask, NeedsRecords, is_topic
from .snapshot import ScanSlice, TopicSnapshot

SCHEMA = pa.schema([pa.field("partition", pa.int32()), *COUNTS])


class KeyDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The keys of a snapshot of a topic, with counts. Thread-safe: any number of concurrent scans."""

    def __init__(self, snapshot: TopicSnapshot, raised: list[BaseException]) -> None:
        # Not `super().__init__`: see `TopicDataset`.
        self._snapshot = snapshot
        self._raised = raised

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def __reduce__(self) -> Any:
        raise TypeError("a topic cannot be pickled: open the store in the other process")

    def scanner(self, columns: Any = None, filter: pc.Expression | None = None, **ignored: Any) -> KeyScanner:
        """The method that DuckDB calls. Ignores options for Arrow's own readers."""
        return KeyScanner(self, list(columns or SCHEMA.names), filter)

    def batches(self, columns: Sequence[str], filter: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:
        """Return the rows that pass the filter, with these columns. An error is also kept, because DuckDB turns it into
        text."""
        filtered = fields_of(filter)
        needed = {*columns, *(SCHEMA.names if filtered is None else filtered)}
        counting = _KeyCountScan(self._snapshot, "partition" in needed, not needed.isdisjoint(RANGES.names))
        try:
            for batch in counting.rows(self._snapshot.pieces(Bounds.of(filter))):
                passed = batch if filter is None else batch.filter(filter)
                if passed.num_rows:
                    yield passed.select(list(columns))
        except GeneratorExit:
            raise
        except BaseException as error:
            self._raised.append(error)
            raise


@dataclass(frozen=True, slots=True)
class KeyScanner:
    """One scan of the keys."""

    dataset: KeyDataset
    columns: Sequence[str]
    filter: pc.Expression | None

    @property
    def projected_schema(self) -> pa.Schema:
        """Schema of the result."""
        return pa.schema([SCHEMA.field(name) for name in self.columns])

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the result as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.dataset.batches(self.columns, self.filter))


class _KeyCounter:
    """Counts of one thread: one partition at a time, if the query distinguishes them."""

    def __init__(self, with_partition: bool, with_ranges: bool) -> None:
        self._counts = KeyCounts(ranges=with_ranges)
        self._with_partition = with_partition
        self._partition = -1
        self._rows: list[pa.RecordBatch] = []

    def turn_to(self, partition: int) -> None:
        """Attribute the following records to this partition."""
        if self._with_partition and partition != self._partition:
            self.flush()
        self._partition = partition

    def add_chunk(self, chunk: Chunk, start: int, end: int, max_bytes: int) -> None:
        """Count the records of validated batches."""
        self._counts.add(chunk.view, chunk.rows, start, end, max_bytes)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Count records that the kernel could not count in place."""
        if self._counts.is_spoiled:  # records counted before the failure would count twice
            raise CorruptBatch("the records of a batch do not parse, although its checksum is right")
        self._counts.add_rows(batch)

    @property
    def has_rows(self) -> bool:
        """Rows are available before counting ends."""
        return bool(self._rows or self._counts.rows)

    def flush(self) -> None:
        """Turn all counts into rows."""
        self._counts.flush()
        self._rows += self._placed()

    def take(self) -> list[pa.RecordBatch]:
        """Return the rows and forget them."""
        rows, self._rows = [*self._rows, *self._placed()], []
        return rows

    def _placed(self) -> list[pa.RecordBatch]:
        rows = self._counts.take()
        if not self._with_partition:
            return rows
        number = pa.scalar(self._partition, pa.int32())
        return [each.add_column(0, SCHEMA.field(0), pa.repeat(number, each.num_rows)) for each in rows]


class _KeyCountScan:
    """A running scan: several threads, each of which takes the next piece when it has finished one."""

    def __init__(self, snapshot: TopicSnapshot, with_partition: bool, with_ranges: bool) -> None:
        self._snapshot = snapshot
        self._wanted = with_partition, with_ranges
        self._columns = ["key", "offset", "timestamp"] if with_ranges else ["key"]
        self._idle: list[_KeyCounter] = []
        self._lock = threading.Lock()
        self._ended = False
        self._pieces: Iterator[ScanSlice] = iter(())

    def rows(self, pieces: Iterator[ScanSlice]) -> Iterator[pa.RecordBatch]:
        """Return the rows of all pieces."""
        first = [piece for piece in (next(pieces, None), next(pieces, None)) if piece is not None]
        self._pieces = chain(first, pieces)
        threads = most_threads() if len(first) > 1 else 1
        with ExitStack() as last:
            opened = PartitionReaders(self._snapshot, last)
            if threads == 1:
                while not self._ended:
                    yield from self._work(opened)
            else:
                yield from self._in_threads(opened, threads)
        for counter in self._idle:
            counter.flush()
            yield from counter.take()

    def _in_threads(self, opened: PartitionReaders, threads: int) -> Iterator[pa.RecordBatch]:
        pool = ThreadPoolExecutor(threads, thread_name_prefix="sawlog-sql")
        try:
            flying: deque[Future[list[pa.RecordBatch]]] = deque(pool.submit(self._work, opened) for _ in range(threads))
            while flying:
                yield from flying.popleft().result()
                if not self._ended:
                    flying.append(pool.submit(self._work, opened))
        finally:
            self._ended = True
            pool.shutdown(wait=True, cancel_futures=True)

    def _work(self, opened: PartitionReaders) -> list[pa.RecordBatch]:
        """Count pieces until there are rows to emit, or no more pieces."""
        counter = self._counter()
        while not counter.has_rows and (piece := self._next()) is not None:
            counter.turn_to(piece.partition)
            opened[piece.partition].fold(piece.part, counter, columns=self._columns, batch_rows=BATCH_ROWS)
        rows = counter.take()
        with self._lock:
            self._idle.append(counter)
        return rows

    def _counter(self) -> _KeyCounter:
        with self._lock:
            return self._idle.pop() if self._idle else _KeyCounter(*self._wanted)

    def _next(self) -> ScanSlice | None:
        with self._lock:
            piece = None if self._ended else next(self._pieces, None)
            self._ended = piece is None
            return piece


_COUNTING = (
    "select cast(coalesce(sum(records), 0) as bigint), "
    "cast(coalesce(sum(records) filter (where key is not null), 0) as bigint) from keys"
)
#: Columns that mean the same in a topic and in a `KeyDataset`.
_SHARED = ("key", "partition")
#: Expression classes that only combine other expressions.
_PLAIN = ("COMPARISON", "CONJUNCTION", "OPERATOR", "BETWEEN", "CAST", "TYPE", "CASE", "CONSTANT")
#: Scalar functions, as opposed to aggregates.
_FUNCTIONS = {
    *("decode", "octet_length", "length", "lower", "upper", "hex", "md5", "hash", "substr", "substring", "left"),
    *("right", "starts_with", "contains", "split_part", "concat", "round", "abs"),
    *("+", "-", "*", "/", "//", "%", "||", "~~"),
}
_NEVER = ("sample", "qualify")


def grouped(query: str, topic: str, table: str, names: list[str], ask: Ask) -> tuple[str, bool] | None:
    """Rewrite a query over the `KeyDataset` in `table`, and return whether it uses the partition; None if it is another
    kind of query. `names` are the names of its columns."""
    parsed = json.loads(ask("select json_serialize_sql(?)", query))
    if parsed.get("error") or len(parsed["statements"]) != 1:
        return None
    counting = json.loads(ask("select json_serialize_sql(?)", _COUNTING))["statements"][0]["node"]["select_list"]
    rewriting = _KeysRewriter(topic, counting)
    try:
        rewriting.rewrite(parsed["statements"][0]["node"], table, names)
    except (NeedsRecords, KeyError, TypeError, ValueError):
        return None
    return ask("select json_deserialize_sql(?)", json.dumps(parsed)), "partition" in rewriting.used


class _KeysRewriter:
    """One query, rewritten in place."""

    def __init__(self, topic: str, counting: list[dict[str, Any]]) -> None:
        self._topic = topic
        self._counting, self._counting_keys = counting
        self._aliases: set[str] = set()
        self._aggregates = 0
        #: Columns that the query uses.
        self.used: set[str] = set()

    def rewrite(self, node: dict[str, Any], table: str, names: list[str]) -> None:
        """Rewrite the query. Raises `NeedsRecords` if it needs records."""
        source, items = node["from_table"], node["select_list"]
        if node["type"] != "SELECT_NODE" or node["cte_map"]["map"] or len(node["group_sets"]) > 1:
            raise NeedsRecords
        if any(node[name] is not None for name in _NEVER) or not is_topic(source, self._topic):
            raise NeedsRecords
        if len(items) != len(names):
            raise NeedsRecords
        node["where_clause"] = self._optional(node["where_clause"])
        if self._aggregates:
            raise NeedsRecords
        self._aliases = _aliases(items)
        node["group_expressions"] = [self._made(each) for each in node["group_expressions"]]
        node["select_list"] = [{**self._made(each), "alias": name} for each, name in zip(items, names, strict=True)]
        node["having"] = self._optional(node["having"])
        node["modifiers"] = [self._modifier(each) for each in node["modifiers"]]
        distinct = any(each["type"] == "DISTINCT_MODIFIER" for each in node["modifiers"])
        if "key" not in self.used or not (self._aggregates or distinct or node["group_expressions"]):
            raise NeedsRecords
        source["table_name"] = table
        if "qualified_name" in source:
            source["qualified_name"] = {"path": [table]}

    def _modifier(self, node: dict[str, Any]) -> dict[str, Any]:
        if node["type"] == "ORDER_MODIFIER":
            orders = [{**each, "expression": self._made(each["expression"])} for each in node["orders"]]
            return {**node, "orders": orders}
        if node["type"] == "LIMIT_MODIFIER":
            return {**node, "limit": self._optional(node["limit"]), "offset": self._optional(node["offset"])}
        if node["type"] == "DISTINCT_MODIFIER" and not node["distinct_on_targets"]:
            return node
        raise NeedsRecords

    def _optional(self, node: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if node is None else self._made(node)

    def _made(self, node: dict[str, Any]) -> dict[str, Any]:
        """Return an equivalent expression over the keys."""
        if node["class"] == "COLUMN_REF":
            return self._column(node)
        if node["class"] == "FUNCTION":
            return self._function(node)
        if node["class"] not in _PLAIN:
            raise NeedsRecords
        return {name: self._below(value) for name, value in node.items()}

    def _below(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._below(each) for each in value]
        if not isinstance(value, dict):
            return value
        if isinstance(value.get("class"), str):
            return self._made(value)
        return {name: self._below(each) for name, each in value.items()}

    def _column(self, node: dict[str, Any]) -> dict[str, Any]:
        names = [name.lower() for name in node["column_names"]]
        if len(names) == 2 and names[0] == self._topic.lower():
            names = names[1:]
        if len(names) != 1 or names[0] not in (*_SHARED, *self._aliases):
            raise NeedsRecords
        self.used.add(names[0])
        return {**node, "column_names": node["column_names"][-1:]}

    def _function(self, node: dict[str, Any]) -> dict[str, Any]:
        if node["filter"] is not None or node["order_bys"]["orders"] or node["export_state"]:
            raise NeedsRecords
        if node["schema"] or node["catalog"]:
            raise NeedsRecords
        name = node["function_name"].lower()
        if name in _FUNCTIONS and not node["distinct"]:
            return {**node, "arguments": self._below(node["arguments"])}
        if name not in ("count_star", "count", "min", "max"):
            raise NeedsRecords
        self._aggregates += 1
        if name == "count_star":
            return {**self._counting, "alias": node["alias"]}
        [argument] = node["arguments"]
        return self._aggregate(node, name, argument["expression"])

    def _aggregate(self, node: dict[str, Any], name: str, of: dict[str, Any]) -> dict[str, Any]:
        column = of["column_names"][-1].lower() if of["class"] == "COLUMN_REF" else ""
        if column in self._aliases:
            raise NeedsRecords
        if name == "count" and not node["distinct"]:
            if column not in ("key", "partition", "offset", "timestamp"):
                raise NeedsRecords
            self.used |= {column} & {"key"}
            return {**(self._counting_keys if column == "key" else self._counting), "alias": node["alias"]}
        if name != "count" and column in ("offset", "timestamp") and len(of["column_names"]) == 1:
            made = {**of, "column_names": [COLUMNS[name, column]]}
        else:
            before = self._aggregates
            made = self._made(of)
            if self._aggregates > before:
                raise NeedsRecords  # a nested aggregate: DuckDB reports the error
        [argument] = node["arguments"]
        return {**node, "arguments": [{**argument, "expression": made}]}


def _aliases(items: list[dict[str, Any]]) -> set[str]:
    """Return the column aliases of the query. An alias that is also the name of a column would be ambiguous."""
    found: set[str] = set()
    for item in items:
        alias = item["alias"].lower()
        if item["class"] == "COLUMN_REF" and item["column_names"][-1].lower() == alias:
            continue
        if alias in SCHEMA.names or alias in ("offset", "timestamp", "value", "headers"):
            raise NeedsRecords
        if alias:
            found.add(alias)
    return found
