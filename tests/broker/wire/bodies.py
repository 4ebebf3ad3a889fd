"""Random messages, drawn from the tables, with the values at which codecs differ."""

from __future__ import annotations

from random import Random
from typing import Any

from sawlog.broker.wire.schema import (
    ARRAY,
    BOOLEAN,
    BYTES,
    FLOAT64,
    RECORDS,
    STRING,
    STRUCT,
    UUID,
    Body,
    Field,
    Fields,
    Kind,
)

BITS = {"b": 8, "h": 16, "H": 16, "i": 32, "q": 64}
TEXTS = ["", "x", "orders", "grüße ✓", "a" * 126, "a" * 127, "a" * 300]
BINARIES = [b"", b"x", bytes(126), bytes(range(256)), b"r" * 20_000]


class Drawing:
    """Draws messages of one version. `modest`: only numbers that every codec can hold as a time or an error."""

    def __init__(self, random: Random, version: int, *, modest: bool = False) -> None:
        self._random = random
        self._version = version
        self._modest = modest

    def body(self, fields: Fields) -> Body:
        return {field.name: self._field(field) for field in fields if field.exists_in(self._version)}

    def _field(self, field: Field) -> Any:
        random = self._random
        if field.tag is not None and random.random() < 0.3:
            return [] if field.kind is ARRAY else field.default
        if field.nullable_in(self._version) and random.random() < 0.25:
            return None
        if field.kind is STRUCT:
            assert isinstance(field.inner, tuple)
            return self.body(field.inner)
        if field.kind is not ARRAY:
            return self._scalar(field.kind, field.name)
        count = random.choice([0, 1, 1, 2, 3])
        if isinstance(field.inner, tuple):
            return [self.body(field.inner) for _ in range(count)]
        return [self._scalar(field.inner, field.name) for _ in range(random.choice([count, 130]))]

    def _scalar(self, kind: Kind, name: str) -> Any:
        random = self._random
        if kind is BOOLEAN:
            return random.random() < 0.5
        if kind is FLOAT64:
            return random.choice([0.0, -1.5, 1e300])
        if kind is UUID:
            return random.choice([bytes(16), random.randbytes(16)])
        if kind is STRING:
            return random.choice(TEXTS)
        if kind in (BYTES, RECORDS):
            return random.choice(BINARIES)
        bits = BITS[kind.code]
        if self._modest and (name.endswith(("error_code", "_ms", "timestamp"))):
            return random.randrange(100)
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        if kind.code.isupper():  # unsigned
            low, high = 0, (1 << bits) - 1
        return random.choice([0, 1, high - 1, low, high, random.randint(low, high)])


def present(fields: Fields, version: int, body: Body) -> Body:
    """Return the fields of `body` that this version has, with records as bytes: what can be compared."""
    return {field.name: _present(field, version, body[field.name]) for field in fields if field.exists_in(version)}


def _present(field: Field, version: int, value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    if value is None or not isinstance(field.inner, tuple) or field.kind not in (ARRAY, STRUCT):
        return value
    if field.kind is ARRAY:
        return [present(field.inner, version, item) for item in value]
    return present(field.inner, version, value)


def names(fields: Fields) -> set[str]:
    return {field.name for field in fields}
