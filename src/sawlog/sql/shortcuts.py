"""Answer queries that need no record: `select count(*), min("offset"), max(timestamp) from orders`.

DuckDB would read a column of the whole topic, because an Arrow dataset cannot offer statistics. So such a query is
rewritten to one over the table of `statistics.py`, with one row per partition:

    count(*)          sum(records)
    min, max(offset)  min(first_offset), max(last_offset)
    min, max(timestamp)  min(oldest), max(newest)

The rewrite works on DuckDB's own syntax tree (`json_serialize_sql`); nothing is guessed from text. It handles only a
query over one topic that selects nothing but these aggregates; `partition` may be in `where` and `group by`. Any other
query is left as it is and costs a scan.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

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


def _parts(node: Any) -> list[dict[str, Any]]:
    """Return all expressions of a tree, including its root."""
    found: list[dict[str, Any]] = []
    if isinstance(node, dict):
        if isinstance(node.get("class"), str):
            found.append(node)
        for value in node.values():
            found += _parts(value)
    elif isinstance(node, list):
        for value in node:
            found += _parts(value)
    return found
