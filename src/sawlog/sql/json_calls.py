"""Find JSON functions over bytes in a query.

DuckDB casts bytes to JSON as one JSON string, in which `->>` and `json_extract` find nothing: the query succeeds, and
every result is NULL. The search works on DuckDB's syntax tree and reports only calls that certainly read the column of
a topic: in a SELECT over topics, not over subqueries or common table expressions that may give the name another type.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from typing import Any

from .statistics import Ask, objects_in

_FUNCTIONS = {
    *("->", "->>", "from_json", "json", "json_array_length", "json_contains", "json_exists", "json_extract"),
    *("json_extract_path", "json_extract_path_text", "json_extract_string", "json_keys", "json_structure"),
    *("json_transform", "json_type", "json_value"),
}


def json_of_bytes(query: str, byte_columns: Mapping[str, Container[str]], ask: Ask) -> str | None:
    """Return the column of the first JSON function over bytes, as the query names it, or None.

    `byte_columns` are the names of the columns that are bytes, by topic.
    """
    parsed = json.loads(ask("select json_serialize_sql(?)", query))
    known = {topic.lower(): columns for topic, columns in byte_columns.items()}
    for each in objects_in(parsed):
        for replaced in each.get("cte_map", {}).get("map", ()):
            known.pop(replaced["key"].lower(), None)
    for select in objects_in(parsed):
        if select.get("type") == "SELECT_NODE":
            sources = dict(_sources(select["from_table"]))
            for *owner, column in _arguments(select):
                owners = [sources.get(owner[-1].lower(), "")] if owner else list(sources.values())
                if owners and all(column.lower() in known.get(each, ()) for each in owners):
                    return ".".join([*owner, column])
    return None


def _sources(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the alias and the lowercase name of everything in a FROM clause; the name is empty for a subquery."""
    if node["type"] == "JOIN":
        yield from _sources(node["left"])
        yield from _sources(node["right"])
    elif node["type"] != "EMPTY":
        name = str(node.get("table_name", "")).lower()
        yield str(node["alias"]).lower() or name, name


def _arguments(select: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the columns that are the first argument of a JSON function, as lists of table and name."""
    for node in objects_in(select, inside=False):
        if node.get("class") == "FUNCTION" and node["function_name"].lower() in _FUNCTIONS:
            arguments = node.get("children") or [each["expression"] for each in node.get("arguments", ())]
            if arguments and arguments[0]["class"] == "COLUMN_REF":
                yield arguments[0]["column_names"]
