"""`parse`: read a schema from text, written as Avro, as JSON Schema, or as DDL."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from ..batch.text import parse_json
from ..errors import InvalidConfig
from .types import MISSING, Field, ListOf, MapOf, Scalar, Schema, Type

#: Maximum length in characters: a longer text is not a schema but the wrong file.
MAX_TEXT = 1 << 20


@lru_cache(maxsize=256)
def parse(text: str) -> Schema:
    """Parse a schema. Raises `InvalidConfig` with the error.

    Text that begins with a brace is JSON: an Avro schema if its type is "record", else a JSON Schema. Everything else
    is DDL: `id BIGINT NOT NULL, name STRING`.
    """
    if len(text) > MAX_TEXT:
        raise InvalidConfig(f"a schema can have at most {MAX_TEXT:,} characters, not {len(text):,}")
    if not text.lstrip().startswith(("{", "[", '"')):
        return parse_ddl(text)
    try:
        document = parse_json(text)
    except ValueError as error:
        raise InvalidConfig(f"a schema that begins with a brace must be JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidConfig('a schema as JSON must be an object: an Avro record, or a JSON Schema of type "object"')
    return _parse_avro(document) if document.get("type") == "record" else _parse_json_schema(document)


# --- DDL, as Spark and most databases write it: `id BIGINT NOT NULL, tags ARRAY<STRING>, place STRUCT<lat: DOUBLE>`.
#
#     schema  = field ("," field)*
#     field   = name [":"] type ["NOT" "NULL"] ["DEFAULT" literal] ["COMMENT" text]
#     type    = word | DECIMAL "(" precision ["," scale] ")" | ARRAY "<" type ">" | MAP "<" STRING "," type ">"
#             | STRUCT "<" schema ">"
#     name    = word, or anything between backticks or double quotes

_DDL_TYPES = {
    **dict.fromkeys(("boolean", "bool"), Scalar("boolean")),
    **dict.fromkeys(("byte", "tinyint", "short", "smallint", "int", "integer"), Scalar("int")),
    **dict.fromkeys(("long", "bigint"), Scalar("long")),
    **dict.fromkeys(("float", "real"), Scalar("float")),
    "double": Scalar("double"),
    **dict.fromkeys(("string", "varchar", "text", "char"), Scalar("string")),
    **dict.fromkeys(("binary", "bytes", "blob"), Scalar("bytes")),
    "date": Scalar("date"),
    **dict.fromkeys(("timestamp", "timestamp_ltz", "timestamptz"), Scalar("timestamp")),
}
_TOKEN = re.compile(r"""\s*(`(?:[^`]|``)*`|"(?:[^"]|"")*"|'(?:[^']|'')*'|-?\d+(?:\.\d+)?|\w+|[<>(),:])""")
_SPACE = re.compile(r"\s*")
#: Maximum nesting of structs and objects: deeper is a mistake, or a schema that contains itself.
_MAX_DEPTH = 32


def parse_ddl(text: str) -> Schema:
    return _Reader(_ddl_tokens(text)).fields(None, 0)


def _ddl_tokens(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # matches everywhere, possibly the empty string
        if at == len(text):
            return found
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidConfig(f"the schema cannot be read from {text[at : at + 20]!r} on; {_EXAMPLE}")
        found.append(match[1])
        at = match.end()


_EXAMPLE = "write it as `id BIGINT NOT NULL, name STRING`, as an Avro record or as a JSON Schema"


class _Reader:
    """Recursive-descent parser over tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, what: str) -> str:
        token = self._peek()
        if token is None:
            raise InvalidConfig(f"the schema ends where {what} should be; {_EXAMPLE}")
        self._at += 1
        return token

    def _take(self, *words: str) -> bool:
        """Consume these words if they come next; return whether they did."""
        ahead = self._tokens[self._at : self._at + len(words)]
        if tuple(each.lower() for each in ahead) != words:
            return False
        self._at += len(words)
        return True

    def _expect(self, token: str, where: str) -> None:
        found = self._next(f"{token!r}")
        if found != token:
            raise InvalidConfig(f"{where} needs {token!r}, not {found!r}; {_EXAMPLE}")

    def fields(self, end: str | None, depth: int) -> Schema:
        """Parse fields up to a token, or to the end."""
        found: list[Field] = []
        while True:
            found.append(self._field(depth))
            if self._take(","):
                continue
            if self._peek() == end:
                break
            raise InvalidConfig(f"after the field {found[-1].name!r} comes ',', not {self._peek()!r}; {_EXAMPLE}")
        names = [each.name for each in found]
        if len({each.lower() for each in names}) != len(names):
            raise InvalidConfig(f"the schema has two fields of one name: {', '.join(names)}")
        return Schema(tuple(found))

    def _field(self, depth: int) -> Field:
        name = _unquoted(self._next("a name"))
        self._take(":")
        kind = self._type(name, depth)
        nullable, default = True, MISSING
        while True:
            if self._take("not", "null"):
                nullable = False
            elif self._take("default"):
                default = _literal(self._next("a default"), name)
            elif self._take("comment"):
                self._next("a comment")
            else:
                return Field(name, kind, nullable, default)

    def _type(self, where: str, depth: int) -> Type:
        if depth > _MAX_DEPTH:
            raise InvalidConfig(f"the type of {where!r} is nested more than {_MAX_DEPTH} times")
        word = self._next(f"the type of {where!r}").lower()
        if word in ("decimal", "numeric"):
            return self._decimal(where)
        if word in ("array", "map", "struct"):
            self._expect("<", where)
            kind = self._parts(word, where, depth + 1)
            self._expect(">", where)
            return kind
        if word not in _DDL_TYPES:
            raise InvalidConfig(
                f"the type of {where!r} is unknown: {word!r}; use one of {', '.join(sorted(_DDL_TYPES))}"
            )
        if word in ("varchar", "char") and self._take("("):
            self._next("a length")
            self._expect(")", where)
        return _DDL_TYPES[word]

    def _parts(self, word: str, where: str, depth: int) -> Type:
        if word == "struct":
            return self.fields(">", depth)
        if word == "array":
            return ListOf(self._type(where, depth))
        key = self._type(where, depth)
        if not isinstance(key, Scalar) or key.kind != "string":
            raise InvalidConfig(f"the keys of the map {where!r} must be STRING, as in JSON, not {key}")
        self._expect(",", where)
        return MapOf(self._type(where, depth))

    def _decimal(self, where: str) -> Scalar:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number(where)
            scale = self._number(where) if self._take(",") else 0
            self._expect(")", where)
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise InvalidConfig(f"the decimal {where!r} needs a precision from 1 to 38 and a scale up to it")
        return Scalar("decimal", precision, scale)

    def _number(self, where: str) -> int:
        token = self._next("a number")
        if not token.isdecimal() or len(token) > 4:
            raise InvalidConfig(f"the decimal {where!r} needs whole numbers, not {token!r}")
        return int(token)


def _unquoted(token: str) -> str:
    if token[0] in "`\"'" and len(token) > 1:
        return token[1:-1].replace(token[0] * 2, token[0])
    if not re.fullmatch(r"\w+", token):
        raise InvalidConfig(f"{token!r} is not a name; {_EXAMPLE}")
    return token


def _literal(token: str, where: str) -> Any:
    words: dict[str, Any] = {"null": None, "true": True, "false": False}
    if token.lower() in words:
        return words[token.lower()]
    if token[0] == "'":
        return _unquoted(token)
    try:
        return float(token) if "." in token else int(token)
    except ValueError as error:
        raise InvalidConfig(f"the default of {where!r} is not a literal: {token!r}") from error


# --- JSON Schema, as far as it describes columns: objects with properties, arrays, and the simple types.
#
# `{"type": ["string", "null"]}` is nullable, and so is a property that is not in `required`. `integer` is 64 bits wide.
# Constraints on values (`minimum`, `pattern`, …) are not checked. `$ref` works within the document; combinations
# (`oneOf`, `anyOf`, `allOf`) are rejected, except with null.

_JSON_TYPES = {"boolean": Scalar("boolean"), "integer": Scalar("long"), "number": Scalar("double")}
_JSON_FORMATS = {"date-time": Scalar("timestamp"), "date": Scalar("date")}


def _parse_json_schema(document: dict[str, Any]) -> Schema:
    kind, _ = _json_type(document, document, "the value", 0)
    if not isinstance(kind, Schema):
        raise InvalidConfig('a JSON Schema for values must have the type "object" and properties')
    return kind


def _json_type(given: Any, document: dict[str, Any], where: str, depth: int) -> tuple[Type, bool]:
    """Return the type, and whether it may be null."""
    if depth > _MAX_DEPTH:
        raise InvalidConfig(f"the JSON Schema of {where} contains itself: no column can have such a type")
    if not isinstance(given, dict):
        raise InvalidConfig(f"the JSON Schema of {where} must be an object, not {given!r}")
    if "$ref" in given:
        return _json_type(_json_resolved(given["$ref"], document), document, where, depth + 1)
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
    return _json_named(others[0], given, document, where, depth), len(others) < len(listed)


def _one_or_null(options: Any, document: dict[str, Any], where: str, depth: int, word: str) -> tuple[Type, bool]:
    others = [each for each in options if each != {"type": "null"}] if isinstance(options, list) else []
    if len(others) != 1:
        raise InvalidConfig(f"{word} in the JSON Schema of {where} is not supported, except for one type and null")
    return _json_type(others[0], document, where, depth + 1)[0], True


def _json_named(kind: str, given: dict[str, Any], document: dict[str, Any], where: str, depth: int) -> Type:
    if kind == "object":
        return _json_object(given, document, where, depth)
    if kind == "array":
        if "items" not in given:
            raise InvalidConfig(f"the JSON Schema of {where} is an array without items")
        return ListOf(*_json_type(given["items"], document, where, depth + 1))
    if kind == "string":
        return _json_text(given)
    if kind not in _JSON_TYPES:
        raise InvalidConfig(f"the JSON Schema of {where} has an unknown type: {kind!r}")
    return _JSON_TYPES[kind]


def _json_text(given: dict[str, Any]) -> Scalar:
    symbols = given.get("enum")
    if isinstance(symbols, list) and symbols and all(isinstance(each, str) for each in symbols):
        return Scalar("enum", symbols=tuple(symbols))
    return _JSON_FORMATS.get(str(given.get("format")), Scalar("string"))


def _json_object(given: dict[str, Any], document: dict[str, Any], where: str, depth: int) -> Type:
    properties = given.get("properties")
    if not isinstance(properties, dict) or not properties:
        values = given.get("additionalProperties")
        if isinstance(values, dict):
            return MapOf(*_json_type(values, document, where, depth + 1))
        raise InvalidConfig(f"the JSON Schema of {where} is an object without properties")
    required = given.get("required", [])
    fields = []
    for name, each in properties.items():
        kind, nullable = _json_type(each, document, name, depth + 1)
        default = each.get("default", MISSING) if isinstance(each, dict) else MISSING
        fields.append(Field(name, kind, nullable or (name not in required and default is MISSING), default))
    return Schema(tuple(fields))


def _json_resolved(reference: Any, document: dict[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise InvalidConfig(f"a $ref must stay within the JSON Schema, not {reference!r}")
    found: Any = document
    for part in filter(None, reference[1:].split("/")):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    if found is None:
        raise InvalidConfig(f"the $ref {reference!r} is not in the JSON Schema")
    return found


# --- Avro: records of primitive and logical types, enums, arrays, maps and nullable unions.
#
# Values are plain JSON, not Avro's JSON encoding: a nullable string is `"x"` or `null`, not `{"string": "x"}`. Names
# are resolved within the schema; a record that contains itself is rejected, because no column can have such a type.

_AVRO_PRIMITIVES = {
    "boolean": Scalar("boolean"),
    "int": Scalar("int"),
    "long": Scalar("long"),
    "float": Scalar("float"),
    "double": Scalar("double"),
    "string": Scalar("string"),
    "bytes": Scalar("bytes"),
}
_AVRO_LOGICAL = {
    ("int", "date"): Scalar("date", notation="days"),
    ("long", "timestamp-millis"): Scalar("timestamp", notation="ms"),
    ("long", "timestamp-micros"): Scalar("timestamp", notation="us"),
}


def _parse_avro(document: dict[str, Any]) -> Schema:
    return _avro_record(document, {}, "")


def _avro_record(document: dict[str, Any], known: dict[str, Type | None], namespace: str) -> Schema:
    name, namespace = _avro_name(document, namespace)
    _avro_define(known, name, None)
    given = document.get("fields")
    if not isinstance(given, list) or not given:
        raise InvalidConfig(f"the Avro record {name!r} needs a list of fields")
    fields = tuple(_avro_field(each, known, namespace, name) for each in given)
    names = [each.name for each in fields]
    if len(set(names)) != len(names):
        raise InvalidConfig(f"the Avro record {name!r} has two fields of one name")
    known[name] = Schema(fields)
    return Schema(fields)


def _avro_field(given: Any, known: dict[str, Type | None], namespace: str, record: str) -> Field:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str) or "type" not in given:
        raise InvalidConfig(f"a field of the Avro record {record!r} needs a name and a type, not {given!r}")
    kind, nullable = _avro_nullable(given["type"], known, namespace, given["name"])
    aliases = given.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(each, str) for each in aliases):
        raise InvalidConfig(f"the aliases of the Avro field {given['name']!r} must be a list of names")
    return Field(given["name"], kind, nullable, given.get("default", MISSING), tuple(aliases))


def _avro_nullable(given: Any, known: dict[str, Type | None], namespace: str, where: str) -> tuple[Type, bool]:
    """Return the type, and whether it may be null."""
    if not isinstance(given, list):
        return _avro_type(given, known, namespace, where), False
    others = [each for each in given if each != "null"]
    if len(others) != 1:
        raise InvalidConfig(
            f"the Avro union of {where!r} is not supported: one type, or one type and null, can be a column"
        )
    return _avro_type(others[0], known, namespace, where), len(others) < len(given)


def _avro_type(given: Any, known: dict[str, Type | None], namespace: str, where: str) -> Type:
    if isinstance(given, str):
        return _AVRO_PRIMITIVES.get(given) or _avro_reference(given, known, namespace, where)
    if not isinstance(given, dict):
        raise InvalidConfig(f"the Avro type of {where!r} is not a type: {given!r}")
    kind = given.get("type")
    if kind == "record":
        return _avro_record(given, known, namespace)
    if kind == "array":
        return ListOf(*_avro_nullable(given.get("items"), known, namespace, where))
    if kind == "map":
        return MapOf(*_avro_nullable(given.get("values"), known, namespace, where))
    if kind in ("enum", "fixed"):
        made = _avro_enum(given) if kind == "enum" else _avro_fixed(given)
        _avro_define(known, _avro_name(given, namespace)[0], made)
        return made
    if isinstance(kind, (dict, list)):
        return _avro_type(kind, known, namespace, where)
    return _avro_logical(given, str(kind)) or _avro_type(kind, known, namespace, where)


def _avro_logical(given: dict[str, Any], kind: str) -> Type | None:
    logical = str(given.get("logicalType"))
    if logical == "decimal" and kind == "bytes":
        return _avro_decimal(given)
    return _AVRO_LOGICAL.get((kind, logical))  # Avro: an unknown logical type is ignored


def _avro_decimal(given: dict[str, Any]) -> Scalar:
    precision, scale = given.get("precision"), given.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not (0 <= scale <= precision and 1 <= precision <= 38):
        raise InvalidConfig(f"an Avro decimal needs a precision from 1 to 38 and a scale up to it, not {given!r}")
    return Scalar("decimal", precision, scale)


def _avro_enum(given: dict[str, Any]) -> Scalar:
    symbols = given.get("symbols")
    if not isinstance(symbols, list) or not symbols or not all(isinstance(each, str) for each in symbols):
        raise InvalidConfig(f"the Avro enum {given.get('name')!r} needs a list of symbols")
    default = given.get("default")
    return Scalar("enum", symbols=tuple(symbols), default_symbol=default if default in symbols else None)


def _avro_fixed(given: dict[str, Any]) -> Scalar:
    return _avro_decimal(given) if given.get("logicalType") == "decimal" else Scalar("bytes")


def _avro_name(given: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Return the full name of a type, and the namespace for the types inside it."""
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidConfig(f"an Avro {given.get('type')} needs a name")
    if "." in name:
        return name, name.rpartition(".")[0]
    space = given.get("namespace", namespace)
    return (f"{space}.{name}" if space else name), str(space)


def _avro_define(known: dict[str, Type | None], name: str, kind: Type | None) -> None:
    if name in known:
        raise InvalidConfig(f"the Avro type {name!r} is defined twice")
    known[name] = kind


def _avro_reference(name: str, known: dict[str, Type | None], namespace: str, where: str) -> Type:
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    full = full if full in known else name
    if full not in known:
        raise InvalidConfig(f"the Avro type {name!r} of {where!r} is not defined")
    found = known[full]
    if found is None:
        raise InvalidConfig(f"the Avro record {name!r} contains itself, in {where!r}: no column can have such a type")
    return found
