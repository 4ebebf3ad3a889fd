"""JSON Schema, as far as it describes columns: objects with properties, arrays, and the simple types.

`{"type": ["string", "null"]}` is nullable, and so is a property that is not in `required`. `integer` is 64 bits wide.
Constraints on values (`minimum`, `pattern`, …) are not checked. `$ref` works within the document; combinations
(`oneOf`, `anyOf`, `allOf`) are rejected, except with null.
"""

from __future__ import annotations

from typing import Any

from ..errors import InvalidConfig
from .types import MISSING, Field, ListOf, MapOf, Scalar, Schema, Type

_SIMPLE = {"boolean": Scalar("boolean"), "integer": Scalar("long"), "number": Scalar("double")}
_FORMATS = {"date-time": Scalar("timestamp"), "date": Scalar("date")}
#: Maximum nesting of objects: deeper is a mistake, or a schema that contains itself.
_MAX_DEPTH = 32


def parse(document: dict[str, Any]) -> Schema:
    """Convert a JSON Schema whose type is an object with properties."""
    kind, _ = _type(document, document, "the value", 0)
    if not isinstance(kind, Schema):
        raise InvalidConfig('a JSON Schema for values must have the type "object" and properties')
    return kind


def _type(given: Any, document: dict[str, Any], where: str, depth: int) -> tuple[Type, bool]:
    """Return the type, and whether it may be null."""
    if depth > _MAX_DEPTH:
        raise InvalidConfig(f"the JSON Schema of {where} contains itself: no column can have such a type")
    if not isinstance(given, dict):
        raise InvalidConfig(f"the JSON Schema of {where} must be an object, not {given!r}")
    if "$ref" in given:
        return _type(_resolved(given["$ref"], document), document, where, depth + 1)
    for word in ("oneOf", "anyOf"):
        if word in given:
            return _one_or_null(given[word], document, where, depth, word)
    kinds = given.get("type", "object" if "properties" in given else "string" if "enum" in given else None)
    listed = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(listed, list):
        raise InvalidConfig(f"the JSON Schema of {where} has no type")
    others = [each for each in listed if each != "null"]
    if len(others) != 1:
        raise InvalidConfig(f"the JSON Schema of {where} must have one type, besides null, not {listed}")
    return _named(others[0], given, document, where, depth), len(others) < len(listed)


def _one_or_null(options: Any, document: dict[str, Any], where: str, depth: int, word: str) -> tuple[Type, bool]:
    others = [each for each in options if each != {"type": "null"}] if isinstance(options, list) else []
    if len(others) != 1:
        raise InvalidConfig(f"{word} in the JSON Schema of {where} is not supported, except for one type and null")
    return _type(others[0], document, where, depth + 1)[0], True


def _named(kind: str, given: dict[str, Any], document: dict[str, Any], where: str, depth: int) -> Type:
    if kind == "object":
        return _object(given, document, where, depth)
    if kind == "array":
        if "items" not in given:
            raise InvalidConfig(f"the JSON Schema of {where} is an array without items")
        return ListOf(*_type(given["items"], document, where, depth + 1))
    if kind == "string":
        return _text(given)
    if kind not in _SIMPLE:
        raise InvalidConfig(f"the JSON Schema of {where} has an unknown type: {kind!r}")
    return _SIMPLE[kind]


def _text(given: dict[str, Any]) -> Scalar:
    symbols = given.get("enum")
    if isinstance(symbols, list) and symbols and all(isinstance(each, str) for each in symbols):
        return Scalar("enum", symbols=tuple(symbols))
    return _FORMATS.get(str(given.get("format")), Scalar("string"))


def _object(given: dict[str, Any], document: dict[str, Any], where: str, depth: int) -> Type:
    properties = given.get("properties")
    if not isinstance(properties, dict) or not properties:
        values = given.get("additionalProperties")
        if isinstance(values, dict):
            return MapOf(*_type(values, document, where, depth + 1))
        raise InvalidConfig(f"the JSON Schema of {where} is an object without properties")
    required = given.get("required", [])
    fields = []
    for name, each in properties.items():
        kind, nullable = _type(each, document, name, depth + 1)
        default = each.get("default", MISSING) if isinstance(each, dict) else MISSING
        fields.append(Field(name, kind, nullable or (name not in required and default is MISSING), default))
    return Schema(tuple(fields))


def _resolved(reference: Any, document: dict[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise InvalidConfig(f"a $ref must stay within the JSON Schema, not {reference!r}")
    found: Any = document
    for part in filter(None, reference[1:].split("/")):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    if found is None:
        raise InvalidConfig(f"the $ref {reference!r} is not in the JSON Schema")
    return found
