"""A value matches a schema, or the reason says where it does not."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from sawlog.schemas import parse
from sawlog.schemas.checking import mismatch_reason, read

MATCHING: list[tuple[str, Any, Any]] = [
    ("a INT", 2**31 - 1, 2**31 - 1),
    ("a BIGINT", -(2**63), -(2**63)),
    ("a DOUBLE", 5, 5.0),
    ("a STRING", "ä", "ä"),
    ("a BINARY", "ä", "ä".encode()),
    ("a BOOLEAN", False, False),
    ("a DECIMAL(5, 2)", "123.40", Decimal("123.40")),
    ("a DECIMAL(5, 2)", 1.5, Decimal("1.50")),
    ("a DATE", "2026-11-01", date(2026, 11, 1)),
    ("a TIMESTAMP", "2026-11-01T08:30:00+02:00", datetime(2026, 11, 1, 6, 30, tzinfo=UTC)),
    ("a TIMESTAMP", "2026-11-01 08:30:00", datetime(2026, 11, 1, 8, 30, tzinfo=UTC)),
    ("a ARRAY<INT>", [1, None], [1, None]),
    ("a MAP<STRING, INT>", {"x": 1}, [("x", 1)]),
    ("a STRUCT<b: INT>", {"b": 1, "c": 2}, {"b": 1}),
    ("a INT", None, None),
]


@pytest.mark.parametrize(("schema", "given", "made"), MATCHING)
def test_a_value_that_matches_is_converted(schema: str, given: Any, made: Any) -> None:
    assert read(parse(schema), json.dumps({"a": given}).encode()) == {"a": made}


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ("a INT", b"{", "not JSON"),
        ("a INT", b'{"a": NaN}', "not JSON"),
        ("a INT", b"\xff", "not JSON"),
        ("a INT", b"[" * 100_000, "not JSON"),
        ("a INT", b"[]", "the value should be an object, not a list"),
        ("a INT", b"null", "the value should be an object, not null"),
        ("a INT", b'{"a": "x"}', r"a should be an integer, not a string \(x\)"),
        ("a INT", b'{"a": 1.5}', "a should be an integer, not a number"),
        ("a INT", b'{"a": true}', "a should be an integer, not a boolean"),
        ("a INT", b'{"a": 2147483648}', "too large for int"),
        ("a DOUBLE", b'{"a": "1"}', "a should be a number"),
        ("a DOUBLE", b'{"a": 1' + b"0" * 400 + b"}", "too large for double"),
        ("a STRING", b'{"a": 1}', "a should be a string"),
        ("a STRING", b'{"a": "\\ud800"}', "surrogate"),
        ("a INT NOT NULL", b"{}", "a is missing"),
        ("a INT NOT NULL", b'{"a": null}', "a is null"),
        ("a STRUCT<b: ARRAY<INT>>", b'{"a": {"b": [1, "x"]}}', r"a.b\[1\] should be an integer"),
        ("a DECIMAL(3, 1)", b'{"a": 1.25}', r"fit into decimal\(3, 1\)"),
        ("a DECIMAL(3, 1)", b'{"a": 1000}', r"fit into decimal\(3, 1\)"),
        ("a DATE", b'{"a": "20261101"}', "a date such as"),
        ("a TIMESTAMP", b'{"a": "soon"}', "a time such as"),
    ],
)
def test_a_value_that_does_not_match_is_refused_with_the_place_and_the_reason(
    schema: str, value: bytes, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        read(parse(schema), value)
    assert mismatch_reason(parse(schema), value)


def test_a_tombstone_matches() -> None:
    assert mismatch_reason(parse("a INT NOT NULL"), None) is None


def test_a_missing_field_has_its_default_and_an_earlier_name_counts() -> None:
    schema = parse(
        json.dumps(
            {
                "type": "record",
                "name": "r",
                "fields": [
                    {"name": "a", "type": "int", "default": 7},
                    {"name": "b", "type": "string", "aliases": ["old"]},
                    {"name": "c", "type": {"type": "enum", "name": "e", "symbols": ["X", "Y"], "default": "Y"}},
                ],
            }
        )
    )
    assert read(schema, b'{"old": "x", "c": "Z"}') == {"a": 7, "b": "x", "c": "Y"}
