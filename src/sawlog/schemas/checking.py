"""Match one value against a schema: return it as Python objects, or say why it does not match.

This module defines matching. `columns.py` decodes many values faster and falls back to this module for every value
outside its fast path.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

from ..batch.text import parse_json
from .types import Field, ListOf, MapOf, Scalar, Schema, Type

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMES = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
#: Maximum number of characters of a bad value in a message.
_SHOWN = 40


class Mismatch(ValueError):
    """A value does not match; the message says where and why."""


def mismatch_reason(schema: Schema, value: bytes | None) -> str | None:
    """Return why a record's value does not match; None if it does. A null value (a tombstone) matches."""
    if value is None:
        return None
    try:
        read(schema, value)
    except Mismatch as error:
        return str(error)
    return None


def read(schema: Schema, value: bytes) -> dict[str, Any]:
    """Return the fields of one value, converted and with defaults. Raises `Mismatch` if it does not match."""
    try:
        document = parse_json(value)
    except (ValueError, UnicodeDecodeError) as error:
        raise Mismatch(f"not JSON: {error}") from None
    return _struct(schema, document, "")


def _struct(schema: Schema, document: Any, where: str) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise _unexpected(where, "an object", document)
    return {field.name: _field(field, document, f"{where}.{field.name}" if where else field.name) for field in schema}


def _field(field: Field, document: dict[str, Any], where: str) -> Any:
    for name in (field.name, *field.aliases):
        if name in document:
            return _nullable(field.type, field.nullable, document[name], where)
    if field.has_default:
        return _nullable(field.type, True, field.default, where)
    if not field.nullable:
        raise Mismatch(f"{where} is missing")
    return None


def _nullable(kind: Type, nullable: bool, value: Any, where: str) -> Any:
    if value is None:
        if not nullable:
            raise Mismatch(f"{where} is null")
        return None
    if isinstance(kind, Schema):
        return _struct(kind, value, where)
    if isinstance(kind, ListOf):
        if not isinstance(value, list):
            raise _unexpected(where, "a list", value)
        return [_nullable(kind.element, kind.nullable, each, f"{where}[{at}]") for at, each in enumerate(value)]
    if isinstance(kind, MapOf):
        if not isinstance(value, dict):
            raise _unexpected(where, "an object", value)
        return [(key, _nullable(kind.value, kind.nullable, each, f"{where}.{key}")) for key, each in value.items()]
    return _SCALARS[kind.kind](kind, value, where)


def _unexpected(where: str, wanted: str, value: Any) -> Mismatch:
    text = value if isinstance(value, str) else repr(value)
    shown = "" if isinstance(value, (dict, list)) or value is None else f" ({text[:_SHOWN]})"
    return Mismatch(
        f"{where or 'the value'} should be {wanted}, not {_NAMES.get(type(value), 'something else')}{shown}"
    )


def _boolean(kind: Scalar, value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _unexpected(where, "a boolean", value)
    return value


def _whole(kind: Scalar, value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unexpected(where, "an integer", value)
    bits = 31 if kind.kind == "int" else 63
    if not -(2**bits) <= value < 2**bits:
        raise Mismatch(f"{where} is too large for {kind.kind}: {str(value)[:_SHOWN]}")
    return value


def _number(kind: Scalar, value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _unexpected(where, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise Mismatch(f"{where} is too large for {kind.kind}") from None


def _string(kind: Scalar, value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _unexpected(where, "a string", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Mismatch(f"{where} has half of a surrogate pair, which is not text") from None
    return value


def _bytes(kind: Scalar, value: Any, where: str) -> bytes:
    return _string(kind, value, where).encode()


def _enum(kind: Scalar, value: Any, where: str) -> str:
    text = _string(kind, value, where)
    if text in kind.symbols:
        return text
    if kind.default_symbol is not None:
        return kind.default_symbol
    raise Mismatch(f"{where} should be one of {', '.join(kind.symbols)}, not {text[:_SHOWN]!r}")


def _decimal(kind: Scalar, value: Any, where: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise _unexpected(where, "a number", value)
    try:
        with localcontext(prec=200):
            number = Decimal(str(value))
            made = number.quantize(Decimal(1).scaleb(-kind.scale)) if number.is_finite() else None
    except InvalidOperation:
        made = None
    if made is None or made != number or len(made.as_tuple().digits) > max(kind.precision, kind.scale):
        raise Mismatch(f"{where} should fit into {kind}, not {str(value)[:_SHOWN]}")
    return made


def _date(kind: Scalar, value: Any, where: str) -> date:
    try:
        if kind.notation == "days":
            return (_EPOCH + timedelta(days=_whole(Scalar("int"), value, where))).date()
        text = _string(kind, value, where)
        if len(text) == 10:  # Python accepts more forms than JSON Schema and SQL
            return date.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        if isinstance(error, Mismatch):
            raise
    raise _unexpected(where, "a date such as 2026-11-01", value)


def _timestamp(kind: Scalar, value: Any, where: str) -> datetime:
    try:
        if kind.notation in ("ms", "us"):
            ticks = _whole(Scalar("long"), value, where)
            return _EPOCH + timedelta(microseconds=ticks * 1000 if kind.notation == "ms" else ticks)
        text = _string(kind, value, where)
        found = datetime.fromisoformat(text)
        if len(text) >= 10 and text[4] == "-":  # Python accepts more forms than JSON Schema and SQL
            return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        if isinstance(error, Mismatch):
            raise
    raise _unexpected(where, "a time such as 2026-11-01T08:30:00Z", value)


_SCALARS: dict[str, Callable[[Scalar, Any, str], Any]] = {
    "boolean": _boolean,
    "int": _whole,
    "long": _whole,
    "float": _number,
    "double": _number,
    "string": _string,
    "bytes": _bytes,
    "enum": _enum,
    "decimal": _decimal,
    "date": _date,
    "timestamp": _timestamp,
}
