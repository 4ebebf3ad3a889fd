"""Classes as JSON: the models behind `JSON(Order)`.

`parser_of` builds parsers for dataclasses of the standard library. A field may be str, int, float, bool, None, Any, a
list, tuple, set, frozenset or dict of these (keys: str), another dataclass, an `Enum`, a `Literal`, a union, datetime,
date, time or timedelta (ISO 8601; a timedelta is seconds), UUID, Decimal (text) or bytes (base64). Any other type is
rejected when the serializer is created, not when the first record arrives. Nothing is converted silently: "7" is not an
int, and 7 is not text; only an int is accepted as a float. Unknown fields are ignored, so that a writer can add one
before its readers know it.

`model_of` also accepts pydantic's models and msgspec's structs, which describe their own JSON. Neither package is
required; each is imported only for a class of its own, which the caller has then imported already.

Pure: no I/O, no state. Thread-safe.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin
from uuid import UUID

from ..batch.text import parse_json
from ..errors import InvalidConfig, InvalidRecordType

#: Converts a parsed JSON value to a Python value; the text is its path. Raises `ValueError` if it does not match.
Parse = Callable[[Any, str], Any]


def parser_of(kind: Any, known: dict[Any, Parse] | None = None) -> Parse:
    """Return the parser for values of a type. Raises `InvalidConfig` if the type is not supported."""
    known = {} if known is None else known
    if kind in _PLAIN:
        return _PLAIN[kind]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, known)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _converted(kind, kind.__name__)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _literal(arguments)
    if origin in (Union, types.UnionType):
        return _union([parser_of(each, known) for each in arguments])
    if origin in (list, set, frozenset) and len(arguments) == 1:
        return _many(origin, parser_of(arguments[0], known))
    if origin is tuple and arguments:
        return _tuple(arguments, known)
    if origin is dict and len(arguments) == 2 and arguments[0] is str:
        return _mapping(parser_of(arguments[1], known))
    raise InvalidConfig(
        f"JSON cannot parse values of type {kind!r}: give the field another type, use a pydantic or msgspec model, or "
        "write a serializer with encode and decode"
    )


def _is(kind: type, name: str) -> Parse:
    def parse(value: Any, where: str) -> Any:
        if type(value) is not kind:
            raise _unexpected(name, value, where)
        return value

    return parse


def _float(value: Any, where: str) -> float:
    if type(value) not in (int, float):
        raise _unexpected("a number", value, where)
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"{where}: the number is too large") from error


def _converted(convert: Callable[[Any], Any], name: str, *, text: bool = False) -> Parse:
    """Return a parser that applies `convert`, which raises `ValueError` for invalid values."""

    def parse(value: Any, where: str) -> Any:
        try:
            if text and type(value) is not str:
                raise ValueError
            return convert(value)
        except (ValueError, InvalidOperation, TypeError, OverflowError) as error:
            raise _unexpected(name, value, where) from error

    return parse


def _anything(value: Any, where: str) -> Any:
    return value


def _literal(allowed: tuple[Any, ...]) -> Parse:
    def parse(value: Any, where: str) -> Any:
        if not any(type(value) is type(each) and value == each for each in allowed):
            raise _unexpected(" or ".join(map(repr, allowed)), value, where)
        return value

    return parse


def _union(parsers: list[Parse]) -> Parse:
    def parse(value: Any, where: str) -> Any:
        why: list[str] = []
        for each in parsers:
            try:
                return each(value, where)
            except ValueError as error:
                why.append(str(error))
        raise ValueError("; or ".join(why))

    return parse


def _many(kind: Callable[[Any], Any], parser: Parse) -> Parse:
    def parse(value: Any, where: str) -> Any:
        if type(value) is not list:
            raise _unexpected("a list", value, where)
        return kind([parser(each, f"{where}[{number}]") for number, each in enumerate(value)])

    return parse


def _tuple(arguments: tuple[Any, ...], known: dict[Any, Parse]) -> Parse:
    """Parse any number of one type (`tuple[int, ...]`), or one value per type."""
    if len(arguments) == 2 and arguments[1] is ...:
        return _many(tuple, parser_of(arguments[0], known))
    parsers = [parser_of(each, known) for each in arguments]

    def parse(value: Any, where: str) -> Any:
        if type(value) is not list or len(value) != len(parsers):
            raise _unexpected(f"a list of {len(parsers)}", value, where)
        pairs = zip(parsers, value, strict=True)
        return tuple(parser(each, f"{where}[{number}]") for number, (parser, each) in enumerate(pairs))

    return parse


def _mapping(parser: Parse) -> Parse:
    def parse(value: Any, where: str) -> Any:
        if type(value) is not dict:
            raise _unexpected("an object", value, where)
        return {name: parser(each, f"{where}.{name}") for name, each in value.items()}

    return parse


def _dataclass(kind: Any, known: dict[Any, Parse]) -> Parse:
    if kind in known:
        return known[kind]
    fields: list[tuple[str, Parse, bool]] = []

    def parse(value: Any, where: str) -> Any:
        if type(value) is not dict:
            raise _unexpected(f"an object with the fields of {kind.__name__}", value, where)
        given: dict[str, Any] = {}
        for name, parser, required in fields:
            if name in value:
                given[name] = parser(value[name], f"{where}.{name}" if where else name)
            elif required:
                raise ValueError(f"{where and f'{where}: '}the field {name!r} is missing")
        return kind(**given)

    known[kind] = parse  # before its fields: the type may be recursive
    try:
        hints = typing.get_type_hints(kind)
    except NameError as error:
        raise InvalidConfig(f"a type in {kind.__name__} is not known where the class is defined: {error}") from error
    for field in dataclasses.fields(kind):
        if field.init:
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            fields.append((field.name, parser_of(hints[field.name], known), required))
    return parse


def _unexpected(expected: str, value: Any, where: str) -> ValueError:
    shown = repr(value)
    return ValueError(f"{where or 'the value'}: expected {expected}, got {shown if len(shown) <= 60 else shown[:57]}")


_PLAIN: dict[Any, Parse] = {
    str: _is(str, "text"),
    int: _is(int, "an integer"),
    bool: _is(bool, "true or false"),
    type(None): _is(type(None), "null"),
    float: _float,
    Any: _anything,
    object: _anything,
    list: _is(list, "a list"),
    dict: _is(dict, "an object"),
    datetime: _converted(datetime.fromisoformat, "a time in ISO 8601", text=True),
    date: _converted(date.fromisoformat, "a date in ISO 8601", text=True),
    time: _converted(time.fromisoformat, "a time of day in ISO 8601", text=True),
    timedelta: _converted(lambda seconds: timedelta(seconds=_float(seconds, "")), "seconds"),
    UUID: _converted(UUID, "a UUID", text=True),
    Decimal: _converted(Decimal, "a decimal number as text", text=True),
    bytes: _converted(lambda text: base64.b64decode(text, validate=True), "bytes in base64", text=True),
}


def plain(value: Any) -> Any:
    """For `json.dumps(default=...)`: convert a value that JSON lacks to one that `parser_of` reads back."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init}
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    raise TypeError(f"a {type(value).__name__} cannot be stored as JSON")


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain).encode


@dataclass(frozen=True, slots=True)
class Model:
    """Conversion between values of one class and JSON."""

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def model_of(kind: type | None) -> Model:
    """Return the model for a class; None: everything that JSON can express. Raises `InvalidConfig` if the class has no
    JSON form."""
    if kind is None:
        return Model("JSON", lambda value: _encode(value).encode(), parse_json)
    if not isinstance(kind, type):
        raise InvalidConfig(f"JSON expects a class, such as a dataclass, not {kind!r}")
    if hasattr(kind, "__struct_config__"):
        import msgspec

        return _checked(kind, msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode)
    if hasattr(kind, "__pydantic_validator__"):
        import pydantic

        adapter: Any = pydantic.TypeAdapter(kind)
        return _checked(kind, adapter.dump_json, adapter.validate_json)
    if dataclasses.is_dataclass(kind) or kind in (dict, list, str, int, float, bool):
        parser = parser_of(kind)
        return _checked(kind, lambda value: _encode(value).encode(), lambda data: parser(parse_json(data), ""))
    raise InvalidConfig(
        f"JSON expects a dataclass, a pydantic or msgspec model, dict or list, not {kind.__name__}; without a class, "
        "JSON() takes what json.dumps takes"
    )


def _checked(kind: type, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> Model:
    def checked(value: Any) -> bytes:
        if not isinstance(value, kind):
            raise InvalidRecordType(f"expected {kind.__name__}, not {type(value).__name__}")
        return encode(value)

    return Model(kind.__name__, checked, decode)
