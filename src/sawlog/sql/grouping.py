"""Queries that need only a topic's keys: `select key, count(*), max(timestamp) from orders group by key`.

Such a query is turned into one over a `KeyDataset`, which has a few rows per key instead of one per record:

    count(*)             sum(records)
    count(key)           sum(records) where the key is not null
    min, max(offset)     min(first_offset), max(last_offset)
    min, max(timestamp)  min(oldest), max(newest)
    distinct, count(distinct key), min, max(key)    themselves: it does not matter how often a key is there

As in shortcuts.py, the query is changed as the syntax tree that DuckDB makes of it. It has to be over one topic;
`key` and `partition` may be anywhere, in expressions of a few known kinds; `having`, `order by` and `limit` are as they
were. Any other query is left as it is: it costs a scan.
"""

from __future__ import annotations

import json
from typing import Any

from .keys import SCHEMA
from .shortcuts import COLUMNS, Ask, NotPlain, is_topic

_COUNTING = (
    "select cast(coalesce(sum(records), 0) as bigint), "
    "cast(coalesce(sum(records) filter (where key is not null), 0) as bigint) from keys"
)
#: Columns of a topic whose names mean the same in a `KeyDataset`.
_SHARED = ("key", "partition")
#: Expressions that are made of others and nothing else.
_PLAIN = ("COMPARISON", "CONJUNCTION", "OPERATOR", "BETWEEN", "CAST", "TYPE", "CASE", "CONSTANT")
#: Functions of one row, as opposed to aggregates.
_FUNCTIONS = {
    *("decode", "octet_length", "length", "lower", "upper", "hex", "md5", "hash", "substr", "substring", "left"),
    *("right", "starts_with", "contains", "split_part", "concat", "round", "abs"),
    *("+", "-", "*", "/", "//", "%", "||", "~~"),
}
_NEVER = ("sample", "qualify")


def grouped(query: str, topic: str, table: str, names: list[str], ask: Ask) -> tuple[str, bool] | None:
    """The same query over the `KeyDataset` in `table`, and whether it uses the partition; None if it is another kind of
    query. `names` are those of its columns."""
    parsed = json.loads(ask("select json_serialize_sql(?)", query))
    if parsed.get("error") or len(parsed["statements"]) != 1:
        return None
    counting = json.loads(ask("select json_serialize_sql(?)", _COUNTING))["statements"][0]["node"]["select_list"]
    rewriting = _Rewriting(topic, counting)
    try:
        rewriting.rewrite(parsed["statements"][0]["node"], table, names)
    except (NotPlain, KeyError, TypeError, ValueError):
        return None
    return ask("select json_deserialize_sql(?)", json.dumps(parsed)), "partition" in rewriting.used


class _Rewriting:
    """One query while it is rewritten, in place."""

    def __init__(self, topic: str, counting: list[dict[str, Any]]) -> None:
        self._topic = topic
        self._counting, self._counting_keys = counting
        self._aliases: set[str] = set()
        self._aggregates = 0
        #: Columns that the query uses.
        self.used: set[str] = set()

    def rewrite(self, node: dict[str, Any], table: str, names: list[str]) -> None:
        """Change the query, or raise `NotPlain` if it cannot be done."""
        source, items = node["from_table"], node["select_list"]
        if node["type"] != "SELECT_NODE" or node["cte_map"]["map"] or len(node["group_sets"]) > 1:
            raise NotPlain
        if any(node[name] is not None for name in _NEVER) or not is_topic(source, self._topic):
            raise NotPlain
        if len(items) != len(names):
            raise NotPlain
        node["where_clause"] = self._optional(node["where_clause"])
        if self._aggregates:
            raise NotPlain
        self._aliases = _aliases(items)
        node["group_expressions"] = [self._made(each) for each in node["group_expressions"]]
        node["select_list"] = [{**self._made(each), "alias": name} for each, name in zip(items, names, strict=True)]
        node["having"] = self._optional(node["having"])
        node["modifiers"] = [self._modifier(each) for each in node["modifiers"]]
        distinct = any(each["type"] == "DISTINCT_MODIFIER" for each in node["modifiers"])
        if "key" not in self.used or not (self._aggregates or distinct or node["group_expressions"]):
            raise NotPlain
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
        raise NotPlain

    def _optional(self, node: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if node is None else self._made(node)

    def _made(self, node: dict[str, Any]) -> dict[str, Any]:
        """An expression over the keys that has the same value."""
        if node["class"] == "COLUMN_REF":
            return self._column(node)
        if node["class"] == "FUNCTION":
            return self._function(node)
        if node["class"] not in _PLAIN:
            raise NotPlain
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
            raise NotPlain
        self.used.add(names[0])
        return {**node, "column_names": node["column_names"][-1:]}

    def _function(self, node: dict[str, Any]) -> dict[str, Any]:
        if node["filter"] is not None or node["order_bys"]["orders"] or node["export_state"]:
            raise NotPlain
        if node["schema"] or node["catalog"]:
            raise NotPlain
        name = node["function_name"].lower()
        if name in _FUNCTIONS and not node["distinct"]:
            return {**node, "arguments": self._below(node["arguments"])}
        if name not in ("count_star", "count", "min", "max"):
            raise NotPlain
        self._aggregates += 1
        if name == "count_star":
            return {**self._counting, "alias": node["alias"]}
        [argument] = node["arguments"]
        return self._aggregate(node, name, argument["expression"])

    def _aggregate(self, node: dict[str, Any], name: str, of: dict[str, Any]) -> dict[str, Any]:
        column = of["column_names"][-1].lower() if of["class"] == "COLUMN_REF" else ""
        if column in self._aliases:
            raise NotPlain
        if name == "count" and not node["distinct"]:
            if column not in ("key", "partition", "offset", "timestamp"):
                raise NotPlain
            self.used |= {column} & {"key"}
            return {**(self._counting_keys if column == "key" else self._counting), "alias": node["alias"]}
        if name != "count" and column in ("offset", "timestamp") and len(of["column_names"]) == 1:
            made = {**of, "column_names": [COLUMNS[name, column]]}
        else:
            before = self._aggregates
            made = self._made(of)
            if self._aggregates > before:
                raise NotPlain  # one aggregate inside another: DuckDB says what is wrong with it
        [argument] = node["arguments"]
        return {**node, "arguments": [{**argument, "expression": made}]}


def _aliases(items: list[dict[str, Any]]) -> set[str]:
    """The names that the query gives to columns of its result. One that is also the name of a column would not mean the
    same thing everywhere."""
    found: set[str] = set()
    for item in items:
        alias = item["alias"].lower()
        if item["class"] == "COLUMN_REF" and item["column_names"][-1].lower() == alias:
            continue
        if alias in SCHEMA.names or alias in ("offset", "timestamp", "value", "headers"):
            raise NotPlain
        if alias:
            found.add(alias)
    return found
