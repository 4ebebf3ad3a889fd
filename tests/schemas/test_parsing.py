"""Avro, JSON Schema and DDL describe the same schemas, and errors name the problem."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.errors import InvalidConfig
from sawlog.schemas import Schema, parse
from sawlog.schemas.types import Field, ListOf, MapOf, Scalar

AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "other", "type": "Colour"},
        {
            "name": "place",
            "type": {"type": "record", "name": "Place", "fields": [{"name": "lat", "type": "double"}]},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}


def test_an_avro_record_becomes_fields_with_types_nulls_and_defaults() -> None:
    found = parse(json.dumps(AVRO))
    colour = Scalar("enum", symbols=("RED", "BLUE"))
    assert found.fields == (
        Field("id", Scalar("long"), nullable=False),
        Field("name", Scalar("string"), nullable=True, default=None),
        Field("tags", ListOf(Scalar("string"), nullable=False), nullable=False),
        Field("counts", MapOf(Scalar("int"), nullable=False), nullable=False),
        Field("colour", colour, nullable=False),
        Field("other", colour, nullable=False),
        Field("place", Schema((Field("lat", Scalar("double"), nullable=False),)), nullable=False),
        Field("at", Scalar("timestamp", notation="ms"), nullable=False),
        Field("day", Scalar("date", notation="days"), nullable=False),
        Field("price", Scalar("decimal", 9, 2), nullable=False),
    )


def test_a_json_schema_becomes_fields_and_what_is_not_required_is_nullable() -> None:
    found = parse(
        json.dumps(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "required": ["id", "place"],
                "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}}},
                "properties": {
                    "id": {"type": "integer"},
                    "name": {"type": ["string", "null"]},
                    "at": {"type": "string", "format": "date-time"},
                    "place": {"$ref": "#/$defs/place"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                    "level": {"type": "string", "enum": ["low", "high"], "default": "low"},
                },
            }
        )
    )
    assert found.fields == (
        Field("id", Scalar("long"), nullable=False),
        Field("name", Scalar("string")),
        Field("at", Scalar("timestamp")),
        Field("place", Schema((Field("lat", Scalar("double")),)), nullable=False),
        Field("tags", ListOf(Scalar("string"), nullable=False)),
        Field("maybe", Scalar("boolean")),
        Field("level", Scalar("enum", symbols=("low", "high")), nullable=False, default="low"),
    )


def test_ddl_becomes_fields_as_spark_would_read_it() -> None:
    found = parse(
        "id BIGINT NOT NULL, `the name` STRING DEFAULT 'it''s' COMMENT 'x', tags ARRAY<STRING>, "
        "m MAP<STRING, INT>, place STRUCT<lat: DOUBLE, lon: DOUBLE>, price DECIMAL(9, 2), ok BOOLEAN, at TIMESTAMP, "
        "d DATE"
    )
    assert found.fields == (
        Field("id", Scalar("long"), nullable=False),
        Field("the name", Scalar("string"), default="it's"),
        Field("tags", ListOf(Scalar("string"))),
        Field("m", MapOf(Scalar("int"))),
        Field("place", Schema((Field("lat", Scalar("double")), Field("lon", Scalar("double"))))),
        Field("price", Scalar("decimal", 9, 2)),
        Field("ok", Scalar("boolean")),
        Field("at", Scalar("timestamp")),
        Field("d", Scalar("date")),
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "ends where a name should be"),
        ("id", "ends where the type of 'id' should be"),
        ("id WHAT", "unknown: 'what'"),
        ("id INT id2 INT", "comes ','"),
        ("a INT, A STRING", "two fields of one name"),
        ("m MAP<INT, INT>", "must be STRING"),
        ("d DECIMAL(99)", "precision from 1 to 38"),
        ("a INT ; drop", "cannot be read from ';"),
        ("{", "must be JSON"),
        ("[1]", "must be an object"),
        ('{"type": "record", "name": "a"}', "needs a list of fields"),
        ('{"type": "record", "name": "a", "fields": [{"name": "b"}]}', "needs a name and a type"),
        ('{"type": "record", "name": "a", "fields": [{"name": "b", "type": "nope"}]}', "is not defined"),
        ('{"type": "record", "name": "a", "fields": [{"name": "b", "type": "a"}]}', "contains itself"),
        ('{"type": "record", "name": "a", "fields": [{"name": "b", "type": ["int", "string"]}]}', "union"),
        ('{"type": "object"}', "without properties"),
        ('{"type": "string"}', 'must have the type "object"'),
        ('{"properties": {"a": {}}}', "has no type"),
        ('{"properties": {"a": {"type": "thing"}}}', "unknown type"),
        ('{"properties": {"a": {"$ref": "http://x"}}}', "must stay within"),
        ('{"properties": {"a": {"$ref": "#/b"}}}', "is not in the JSON Schema"),
        ('{"properties": {"a": {"$ref": "#"}}}', "contains itself"),
        ('{"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}}', "not supported"),
    ],
)
def test_what_is_not_a_schema_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        parse(text)


@given(st.text(alphabet="abINT<>(),:`'\"-0 \n{}[]", max_size=40))
def test_whatever_the_text_is_it_is_a_schema_or_refused(text: str) -> None:
    try:
        assert parse(text).fields
    except InvalidConfig:
        pass
