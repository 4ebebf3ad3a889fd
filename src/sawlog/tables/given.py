"""The schema of a topic's values, as somebody gives it: SQL's DDL, JSON schema, or Avro; as text or as a file.

    id bigint, name string                     DDL
    {"type": "object", "properties": {…}}      JSON schema
    {"type": "record", "fields": […]}          Avro (.avsc)
    @orders.avsc                               a file with one of these; also a name that ends with .avsc, .json or .ddl

What comes out are Arrow fields. From JSON schema and Avro only what a column can have is used: whether a field may be
missing, its limits, patterns and defaults are not checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from ..batch.text import parse_json
from ..errors import InvalidConfig
from . import ddl

_FILES = (".avsc", ".json", ".ddl", ".sql")
_JSON: dict[str, pa.DataType] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_JSON_FORMATS: dict[str, pa.DataType] = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}
_AVRO: dict[str, pa.DataType] = {
    "string": pa.string(),
    "bytes": pa.binary(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_AVRO_LOGICAL: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "uuid": pa.string(),
}


def value_schema(given: str) -> pa.Schema:
    """The fields of values; `InvalidConfig` if that is not a schema."""
    text = _text(given.strip())
    if not text.lstrip().startswith("{"):
        return ddl.parsed(text)
    try:
        found = parse_json(text)
    except ValueError as error:
        raise InvalidConfig(f"the schema is neither DDL nor JSON: {error}") from error
    kind = _from_avro(found, {}) if found.get("type") == "record" else _from_json(found)
    if not pa.types.is_struct(kind) or not kind.num_fields:
        raise InvalidConfig('the schema must have fields: the "properties" of a JSON schema, or an Avro record')
    return pa.schema(list(kind))


def _text(given: str) -> str:
    if not given:
        raise InvalidConfig("the schema is empty")
    named = given.startswith("@")
    path = Path(given.removeprefix("@"))
    if not named and path.suffix.lower() not in _FILES:
        return given
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"the schema cannot be read from {path}: {error}") from error


# --- JSON schema


def _from_json(found: Any) -> pa.DataType:
    if not isinstance(found, dict):
        raise InvalidConfig(f"a JSON schema must be an object, not {found!r}")
    kind = _json_kind(found)
    if kind == "object" or (kind is None and "properties" in found):
        properties = found.get("properties")
        if properties:
            return pa.struct([pa.field(name, _from_json(each)) for name, each in properties.items()])
        more = found.get("additionalProperties")
        return pa.map_(pa.string(), _from_json(more) if isinstance(more, dict) else pa.string())
    if kind == "array":
        return pa.list_(pa.field("element", _from_json(found.get("items", {"type": "string"}))))
    if kind == "string":
        return _JSON_FORMATS.get(found.get("format", ""), pa.string())
    if kind is None and ("enum" in found or "const" in found):
        return pa.string()
    if kind not in _JSON:
        raise InvalidConfig(f"JSON schema: a column cannot be {found!r}; give it a type")
    return _JSON[kind]


def _json_kind(found: dict[str, Any]) -> str | None:
    """The type without null, which every column may be."""
    kind = found.get("type")
    if isinstance(kind, list):
        left = [each for each in kind if each != "null"]
        if len(left) != 1:
            raise InvalidConfig(f"JSON schema: a column has one type, not {' or '.join(map(str, left)) or 'null'}")
        return str(left[0])
    for either in ("anyOf", "oneOf"):
        if kind is None and either in found:
            left = [each for each in found[either] if each.get("type") != "null"]
            if len(left) == 1:
                found.update(left[0])
                return _json_kind({**found, either: []} | left[0])
            raise InvalidConfig(f"JSON schema: {either} with {len(left)} types is not a column")
    return kind


# --- Avro


def _from_avro(found: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    if isinstance(found, list):  # a union
        left = [each for each in found if each != "null"]
        if len(left) != 1:
            raise InvalidConfig(f"Avro: a column is one type or null, not the union {found!r}")
        return _from_avro(left[0], named)
    if isinstance(found, str):
        kind = _AVRO.get(found) or named.get(found)
        if kind is None:
            raise InvalidConfig(f"Avro: unknown type {found!r}")
        return kind
    if not isinstance(found, dict):
        raise InvalidConfig(f"Avro: {found!r} is not a type")
    made = _from_avro_object(found, named)
    if "name" in found:
        named[found["name"]] = made
        if "namespace" in found:
            named[f"{found['namespace']}.{found['name']}"] = made
    return made


def _from_avro_object(found: dict[str, Any], named: dict[str, pa.DataType]) -> pa.DataType:
    kind, logical = found.get("type"), found.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(int(found["precision"]), int(found.get("scale", 0)))
    if logical in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[logical]
    if kind == "record":
        return pa.struct([pa.field(each["name"], _from_avro(each["type"], named)) for each in found["fields"]])
    if kind == "array":
        return pa.list_(pa.field("element", _from_avro(found["items"], named)))
    if kind == "map":
        return pa.map_(pa.string(), _from_avro(found["values"], named))
    return _from_avro(kind, named)
