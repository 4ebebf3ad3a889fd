"""Avro's rules: a later schema can read what an earlier one describes, or it says why not."""

from __future__ import annotations

import json

import pytest

from sawlog.schemas import parse
from sawlog.schemas.types import incompatibilities


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("a INT", "a INT, b STRING"),
        ("a INT, b STRING", "a INT"),
        ("a INT", "a BIGINT"),
        ("a INT", "a DOUBLE"),
        ("a FLOAT", "a DOUBLE"),
        ("a STRING", "a BINARY"),
        ("a INT NOT NULL", "a INT"),
        ("a INT", "a INT, b INT NOT NULL DEFAULT 0"),
        ("a STRUCT<b: INT>", "a STRUCT<b: BIGINT, c: INT>"),
        ("a ARRAY<INT>", "a ARRAY<BIGINT>"),
        ("a DECIMAL(5, 2)", "a DECIMAL(9, 2)"),
    ],
)
def test_what_can_still_be_read_is_compatible(earlier: str, later: str) -> None:
    assert list(incompatibilities(parse(earlier), parse(later))) == []


@pytest.mark.parametrize(
    ("earlier", "later", "reason"),
    [
        ("a BIGINT", "a INT", "'a' was long and cannot become int"),
        ("a DOUBLE", "a FLOAT", "cannot become float"),
        ("a INT", "a STRING", "cannot become string"),
        ("a INT", "a INT NOT NULL", "can no longer be null"),
        ("a INT", "a INT, b INT NOT NULL", "'b' has no default"),
        ("a STRUCT<b: INT>", "a STRUCT<b: STRING>", "'a.b'"),
        ("a ARRAY<BIGINT>", "a ARRAY<INT>", "cannot become int"),
        ("a INT", "a ARRAY<INT>", "was a int and cannot become a list"),
        ("a MAP<STRING, BIGINT>", "a MAP<STRING, INT>", "cannot become int"),
        ("a DECIMAL(5, 2)", "a DECIMAL(9, 3)", "its scale stays"),
    ],
)
def test_what_could_no_longer_be_read_is_named(earlier: str, later: str, reason: str) -> None:
    assert any(reason in each for each in incompatibilities(parse(earlier), parse(later)))


def enum(*symbols: str, default: str | None = None) -> str:
    kind = {"type": "enum", "name": "e", "symbols": list(symbols), **({"default": default} if default else {})}
    return json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]})


def test_an_enum_keeps_its_symbols_or_has_a_default() -> None:
    assert not list(incompatibilities(parse(enum("A")), parse(enum("A", "B"))))
    assert list(incompatibilities(parse(enum("A", "B")), parse(enum("A"))))
    assert not list(incompatibilities(parse(enum("A", "B")), parse(enum("A", default="A"))))


def test_a_renamed_field_is_the_same_if_it_lists_its_earlier_name() -> None:
    def record(name: str, *aliases: str) -> str:
        field = {"name": name, "type": "int", "aliases": list(aliases)}
        return json.dumps({"type": "record", "name": "r", "fields": [field]})

    assert not list(incompatibilities(parse(record("a")), parse(record("b", "a"))))
    assert list(incompatibilities(parse(record("a")), parse(record("b"))))
