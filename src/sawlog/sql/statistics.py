"""Answer queries that need no record: `select count(*), min("offset"), max(timestamp) from orders`.

DuckDB would read a column of the whole topic, because an Arrow dataset cannot offer statistics. So such a query is
rewritten to one over a table with one row per partition and one per file of the topic's table:

    count(*)          sum(records)
    min, max(offset)  min(first_offset), max(last_offset)
    min, max(timestamp)  min(oldest), max(newest)

The rewrite works on DuckDB's own syntax tree (`json_serialize_sql`); nothing is guessed from text. It handles only a
query over one topic that selects nothing but these aggregates; `partition` may be in `where` and `group by`. Any other
query is left as it is and costs a scan.

The statistics come from batch headers; records are read only where those are not exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..batch.arrow import TIME_TYPE
from ..errors import CorruptBatch, StorageError
from ..log import slices
from ..log.summaries import NEVER, joined
from .history import HistoryFile, HistoryReader
from .snapshot import PartitionSpan, TopicSnapshot

#: Column of the statistics by function and column.
COLUMNS = {
    ("min", "offset"): "first_offset",
    ("max", "offset"): "last_offset",
    ("min", "timestamp"): "oldest",
    ("max", "timestamp"): "newest",
    ("min", "partition"): "partition",
    ("max", "partition"): "partition",
}
_COUNTING = "select cast(coalesce(sum(records), 0) as bigint) from statistics"
#: Clauses that a plain query lacks.
_EMPTY = ("having", "sample", "qualify")

#: Runs a query that returns one string.
Ask = Callable[[str, str], str]


class NeedsRecords(Exception):
    """The query needs records."""


def rewrite_to_statistics(query: str, topic: str, table: str, names: list[str], ask: Ask) -> tuple[str, bool] | None:
    """Rewrite a query over the statistics in `table`, and return whether it needs the smallest timestamps; None if it
    is another kind of query. `names` are the names of its columns."""
    parsed = json.loads(ask("select json_serialize_sql(?)", query))
    if parsed.get("error") or len(parsed["statements"]) != 1:
        return None
    counting = json.loads(ask("select json_serialize_sql(?)", _COUNTING))["statements"][0]["node"]["select_list"][0]
    rewriting = _StatisticsRewriter(topic, counting)
    try:
        rewriting.rewrite(parsed["statements"][0]["node"], table, names)
    except (NeedsRecords, KeyError, TypeError):
        return None
    return ask("select json_deserialize_sql(?)", json.dumps(parsed)), rewriting.with_oldest


class _StatisticsRewriter:
    """One query, rewritten in place."""

    def __init__(self, topic: str, counting: dict[str, Any]) -> None:
        self._topic = topic
        self._counting = counting
        self.with_oldest = False
        self._aggregates = 0

    def rewrite(self, node: dict[str, Any], table: str, names: list[str]) -> None:
        """Rewrite the query. Raises `NeedsRecords` if it needs records."""
        source = node["from_table"]
        if node["type"] != "SELECT_NODE" or node["modifiers"] or node["cte_map"]["map"] or len(node["group_sets"]) > 1:
            raise NeedsRecords
        if any(node[name] is not None for name in _EMPTY) or not is_topic(source, self._topic):
            raise NeedsRecords
        for each in (*node["group_expressions"], node["where_clause"]):
            self._only_partition(each)
        grouped = bool(node["group_expressions"])
        items = node["select_list"]
        if len(items) != len(names):
            raise NeedsRecords
        node["select_list"] = [
            {**self._item(each, grouped), "alias": name} for each, name in zip(items, names, strict=True)
        ]
        if not self._aggregates:
            raise NeedsRecords
        source["table_name"] = table
        if "qualified_name" in source:
            source["qualified_name"] = {"path": [table]}

    def _only_partition(self, node: Any) -> None:
        """Raise `NeedsRecords` unless the partition is the only column, without subqueries or aggregates."""
        for part in _parts(node):
            if part["class"] == "COLUMN_REF" and part["column_names"] != ["partition"]:
                raise NeedsRecords
            if part["class"] not in ("COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "OPERATOR", "BETWEEN"):
                raise NeedsRecords

    def _item(self, node: dict[str, Any], grouped: bool) -> dict[str, Any]:
        """Rewrite a column of the result: an aggregate, or the partition."""
        if node["class"] == "COLUMN_REF" and grouped and node["column_names"] == ["partition"]:
            return node
        if node["class"] != "FUNCTION" or node["filter"] is not None or node["distinct"] or node["order_bys"]["orders"]:
            raise NeedsRecords
        self._aggregates += 1
        name = node["function_name"]
        if name == "count_star":
            return dict(self._counting)
        [column] = [part for part in _parts(node) if part["class"] != "FUNCTION"]
        if column["class"] != "COLUMN_REF" or len(column["column_names"]) != 1:
            raise NeedsRecords
        [of] = column["column_names"]
        if name == "count" and of.lower() in ("offset", "partition", "timestamp"):  # these are never null
            return dict(self._counting)
        if (name, of.lower()) not in COLUMNS:
            raise NeedsRecords
        column["column_names"] = [COLUMNS[name, of.lower()]]
        self.with_oldest |= column["column_names"] == ["oldest"]
        return node


def is_topic(source: dict[str, Any], topic: str) -> bool:
    """Return whether a query reads only from this topic, under its own name."""
    special = ("alias", "sample", "at_clause", "schema_name", "column_name_alias")
    if any(map(source.get, special)) or source["type"] != "BASE_TABLE":
        return False
    return bool(source["table_name"].lower() == topic.lower())


def _parts(node: object) -> list[dict[str, Any]]:
    """Return all expressions of a tree, including its root."""
    return [each for each in objects_in(node) if isinstance(each.get("class"), str)]


def objects_in(node: object, inside: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the objects of a syntax tree; without those of the SELECTs below its root unless `inside`."""
    if isinstance(node, dict):
        yield node
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        if inside or not (isinstance(each, dict) and each.get("type") == "SELECT_NODE"):
            yield from objects_in(each, inside)


# --- the table of statistics

SCHEMA = pa.schema(
    {
        "partition": pa.int32(),
        "records": pa.int64(),
        "first_offset": pa.int64(),
        "last_offset": pa.int64(),
        "oldest": TIME_TYPE,
        "newest": TIME_TYPE,
    }
)


@dataclass(slots=True)
class _Counted:
    """Statistics so far, meaningful once a record is included. The fields are columns of `SCHEMA`."""

    partition: int
    records: int = 0
    first_offset: int = 2**63 - 1
    last_offset: int = -1
    oldest: int | None = 2**63 - 1
    newest: int = -(2**63)

    def add(self, records: int, first: int, last: int, oldest: int, newest: int) -> None:
        if records:
            self.records += records
            self.first_offset, self.last_offset = min(self.first_offset, first), max(self.last_offset, last)
            self.oldest = None if self.oldest is None else min(self.oldest, oldest)
            self.newest = max(self.newest, newest)


def is_known(past: HistoryReader | None) -> bool:
    """Return whether the table has exact statistics for each of its files, so that none has to be read."""
    if past is None:
        return True
    return past.is_whole and all(_is_counted(each) for each in past.history.files)


def _is_counted(file: HistoryFile) -> bool:
    known = not any(each.is_everything for each in (file.bounds.partition, file.bounds.offset, file.bounds.time_ms))
    one = file.bounds.partition.low == file.bounds.partition.high
    return file.rows is not None and not file.beyond and known and one


def table(snapshot: TopicSnapshot, past: HistoryReader | None = None, *, with_oldest: bool) -> pa.Table:
    """Return a row for each partition that has records and for each file of its table; `oldest` is null unless
    requested."""
    rows = [_of_file(each) for each in ([] if past is None else past.history.files) if each.rows]
    rows += [each for span in snapshot.spans if (each := _count(span, snapshot, with_oldest)).records]
    return pa.Table.from_pylist([asdict(each) for each in rows], schema=SCHEMA)


def _of_file(file: HistoryFile) -> _Counted:
    at, times = file.bounds.offset, file.bounds.time_ms
    return _Counted(file.bounds.partition.low, file.rows or 0, at.low, at.high, times.low, times.high)


def _count(span: PartitionSpan, snapshot: TopicSnapshot, with_oldest: bool) -> _Counted:
    oldest = NEVER if with_oldest else None
    if span.start >= span.end:
        return _Counted(span.partition)
    try:
        found = _Counted(span.partition, oldest=oldest)
        exact = _from_blocks(span, snapshot, found, with_oldest)
        # A range truncated meanwhile may have been counted with its new records.
        unchanged = exact and slices.proven_end(span.log, span.epoch, span.end) >= span.end
        if unchanged and span.log.lowest_offset <= span.start:
            return found
    except (CorruptBatch, StorageError):
        pass  # damaged, or being replaced: reading reports it
    found = _Counted(span.partition, oldest=oldest)
    _by_reading(span, snapshot, span.start, span.end, found)
    return found


def _from_blocks(span: PartitionSpan, snapshot: TopicSnapshot, counted: _Counted, with_oldest: bool) -> bool:
    """Count by blocks; return False if they are not exact. Records are read where a block is only partly in the span or
    may have aborted records, and in the first and last block if they have gaps: their first and last offsets may not
    exist."""
    known = snapshot.topic._blocks(span.partition, span.start, span.end, with_oldest=with_oldest, exact=True)
    if known is None:
        return False
    found = list(known)
    if not found:
        return True
    blocks = joined(found)
    filled = blocks.within(span.start, span.end) & (blocks.count > 0)
    usable = filled & (blocks.first >= span.start) & (blocks.last < span.end)
    if snapshot.isolation == "committed":
        usable &= ~blocks.special
    for at in np.flatnonzero(filled)[[0, -1]] if filled.any() else ():
        usable[at] &= blocks.count[at] == blocks.last[at] - blocks.first[at] + 1
    for at in np.flatnonzero(filled & ~usable).tolist():
        first, end = int(blocks.first[at]), int(blocks.last[at]) + 1
        _by_reading(span, snapshot, max(first, span.start), min(end, span.end), counted)
    numbers = np.flatnonzero(usable)
    if len(numbers):
        counted.add(
            int(blocks.count[numbers].sum()),
            int(blocks.first[numbers[0]]),
            int(blocks.last[numbers[-1]]),
            NEVER if blocks.oldest is None else int(blocks.oldest[numbers].min()),
            int(blocks.newest[numbers].max()),
        )
    return True


def _by_reading(span: PartitionSpan, snapshot: TopicSnapshot, start: int, end: int, counted: _Counted) -> None:
    with closing(snapshot.topic._slices(span.partition)) as opened:
        for part in snapshot.plan(span, start, end):
            for batch in opened.read(part, columns=["offset", "timestamp"], batch_rows=1 << 20):
                offsets, times = batch.column(0).to_numpy(), batch.column(1).cast(pa.int64()).to_numpy()
                if len(offsets):
                    counted.add(len(offsets), int(offsets[0]), int(offsets[-1]), int(times.min()), int(times.max()))
