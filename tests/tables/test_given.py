"""Schemas as somebody gives them: DDL, JSON schema and Avro say the same columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sawlog.errors import InvalidConfig
from sawlog.tables import columns
from sawlog.tables.columns import value_schema

COLUMNS = "id bigint, name string, paid boolean, at timestamp, tags array<string>, place struct<lat:double>"
JSON_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": ["string", "null"]},
        "paid": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"lat": {"type": "number"}}},
    },
}
AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "paid", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "place", "type": {"type": "record", "name": "P", "fields": [{"name": "lat", "type": "double"}]}},
    ],
}


@pytest.mark.parametrize("given", [COLUMNS, json.dumps(JSON_SCHEMA), json.dumps(AVRO)], ids=["ddl", "json", "avro"])
def test_the_three_ways_give_the_same_columns(given: str) -> None:
    assert columns.shown_schema(value_schema(given)) == COLUMNS


def test_a_file_is_read_by_its_suffix_or_after_an_at_sign(tmp_path: Path) -> None:
    (tmp_path / "orders.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "orders").write_text("id bigint")
    assert columns.shown_schema(value_schema(str(tmp_path / "orders.avsc"))) == COLUMNS
    assert value_schema(f"@{tmp_path / 'orders'}").names == ["id"]
    with pytest.raises(InvalidConfig, match=r"cannot be read from .*none\.json"):
        value_schema(str(tmp_path / "none.json"))


@pytest.mark.parametrize("given", ["", '{"type": "string"}', '{"type": ', "a int, a int"])
def test_what_cannot_be_columns_is_refused(given: str) -> None:
    with pytest.raises(InvalidConfig):
        value_schema(given)
