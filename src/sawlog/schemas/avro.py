"""Avro schemas, as JSON: records of primitive and logical types, enums, arrays, maps and nullable unions.

Values are plain JSON, not Avro's JSON encoding: a nullable string is `"x"` or `null`, not `{"string": "x"}`. Names are
resolved within the schema; a record that contains itself is rejected, because no column can have such a type.
"""

from __future__ import annotations

from typing import Any

from ..errors import InvalidConfig
from .types import MISSING, Field, ListOf, MapOf, Scalar, Schema, Type

_PRIMITIVES = {
    "boolean": Scalar("boolean"),
    "int": Scalar("int"),
    "long": Scalar("long"),
    "float": Scalar("float"),
    "double": Scalar("double"),
    "string": Scalar("string"),
    "bytes": Scalar("bytes"),
}
_LOGICAL = {
    ("int", "date"): Scalar("date", notation="days"),
    ("long", "timestamp-millis"): Scalar("timestamp", notation="ms"),
    ("long", "timestamp-micros"): Scalar("timestamp", notation="us"),
}


def parse(document: dict[str, Any]) -> Schema:
    """Convert an Avro record to a schema."""
    return _record(document, {}, "")


def _record(document: dict[str, Any], known: dict[str, Type | None], namespace: str) -> Schema:
    name, namespace = _named(document, namespace)
    _define(known, name, None)
    given = document.get("fields")
    if not isinstance(given, list) or not given:
        raise InvalidConfig(f"the Avro record {name!r} needs a list of fields")
    fields = tuple(_field(each, known, namespace, name) for each in given)
    names = [each.name for each in fields]
    if len(set(names)) != len(names):
        raise InvalidConfig(f"the Avro record {name!r} has two fields of one name")
    known[name] = Schema(fields)
    return Schema(fields)


def _field(given: Any, known: dict[str, Type | None], namespace: str, record: str) -> Field:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str) or "type" not in given:
        raise InvalidConfig(f"a field of the Avro record {record!r} needs a name and a type, not {given!r}")
    kind, nullable = _nullable(given["type"], known, namespace, given["name"])
    aliases = given.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(each, str) for each in aliases):
        raise InvalidConfig(f"the aliases of the Avro field {given['name']!r} must be a list of names")
    return Field(given["name"], kind, nullable, given.get("default", MISSING), tuple(aliases))


def _nullable(given: Any, known: dict[str, Type | None], namespace: str, where: str) -> tuple[Type, bool]:
    """Return the type, and whether it may be null."""
    if not isinstance(given, list):
        return _type(given, known, namespace, where), False
    others = [each for each in given if each != "null"]
    if len(others) != 1:
        raise InvalidConfig(
            f"the Avro union of {where!r} is not supported: one type, or one type and null, can be a column"
        )
    return _type(others[0], known, namespace, where), len(others) < len(given)


def _type(given: Any, known: dict[str, Type | None], namespace: str, where: str) -> Type:
    if isinstance(given, str):
        return _PRIMITIVES.get(given) or _reference(given, known, namespace, where)
    if not isinstance(given, dict):
        raise InvalidConfig(f"the Avro type of {where!r} is not a type: {given!r}")
    kind = given.get("type")
    if kind == "record":
        return _record(given, known, namespace)
    if kind == "array":
        return ListOf(*_nullable(given.get("items"), known, namespace, where))
    if kind == "map":
        return MapOf(*_nullable(given.get("values"), known, namespace, where))
    if kind in ("enum", "fixed"):
        made = _enum(given) if kind == "enum" else _fixed(given)
        _define(known, _named(given, namespace)[0], made)
        return made
    if isinstance(kind, (dict, list)):
        return _type(kind, known, namespace, where)
    return _logical(given, str(kind)) or _type(kind, known, namespace, where)


def _logical(given: dict[str, Any], kind: str) -> Type | None:
    logical = str(given.get("logicalType"))
    if logical == "decimal" and kind == "bytes":
        return _decimal(given)
    return _LOGICAL.get((kind, logical))  # Avro: an unknown logical type is ignored


def _decimal(given: dict[str, Any]) -> Scalar:
    precision, scale = given.get("precision"), given.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not (0 <= scale <= precision and 1 <= precision <= 38):
        raise InvalidConfig(f"an Avro decimal needs a precision from 1 to 38 and a scale up to it, not {given!r}")
    return Scalar("decimal", precision, scale)


def _enum(given: dict[str, Any]) -> Scalar:
    symbols = given.get("symbols")
    if not isinstance(symbols, list) or not symbols or not all(isinstance(each, str) for each in symbols):
        raise InvalidConfig(f"the Avro enum {given.get('name')!r} needs a list of symbols")
    default = given.get("default")
    return Scalar("enum", symbols=tuple(symbols), default_symbol=default if default in symbols else None)


def _fixed(given: dict[str, Any]) -> Scalar:
    return _decimal(given) if given.get("logicalType") == "decimal" else Scalar("bytes")


def _named(given: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Return the full name of a type, and the namespace for the types inside it."""
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidConfig(f"an Avro {given.get('type')} needs a name")
    if "." in name:
        return name, name.rpartition(".")[0]
    space = given.get("namespace", namespace)
    return (f"{space}.{name}" if space else name), str(space)


def _define(known: dict[str, Type | None], name: str, kind: Type | None) -> None:
    if name in known:
        raise InvalidConfig(f"the Avro type {name!r} is defined twice")
    known[name] = kind


def _reference(name: str, known: dict[str, Type | None], namespace: str, where: str) -> Type:
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    full = full if full in known else name
    if full not in known:
        raise InvalidConfig(f"the Avro type {name!r} of {where!r} is not defined")
    found = known[full]
    if found is None:
        raise InvalidConfig(f"the Avro record {name!r} contains itself, in {where!r}: no column can have such a type")
    return found
