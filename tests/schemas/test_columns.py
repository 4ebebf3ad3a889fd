"""Many values become the same structs as one by one, whatever they are."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sawlog.schemas import Schema, parse
from sawlog.schemas.checking import Mismatch, read
from sawlog.schemas.columns import _plan, arrow_type, decode

PLAIN = parse(
    "a INT, b BIGINT NOT NULL DEFAULT 3, c DOUBLE, d STRING, e BOOLEAN, f STRUCT<g: STRING, h: STRUCT<i: BIGINT>>, "
    "j FLOAT, k BINARY, l BIGINT DEFAULT 5"
)
NESTED = parse("a ARRAY<INT>, b MAP<STRING, DOUBLE>, c DECIMAL(9, 2), d DATE, e TIMESTAMP, f STRUCT<g: ARRAY<STRING>>")
TICKS = parse(
    json.dumps(
        {
            "type": "record",
            "name": "r",
            "fields": [
                {"name": "a", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
                {"name": "b", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
            ],
        }
    )
)

NAMES = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "other", "ä"]
STRINGS = [
    "",
    "x",
    "2026-11-01",
    "2026-11-01T08:30:00Z",
    "12.50",
    "ä",
    "\u2028",
    'quo"te',
    "back\\slash",
    "\n",
    "🪵",
]
NUMBERS = [0, 1, -1, 5, 2**31 - 1, 2**31, -(2**31) - 1, 10**18, 2**63 - 1, 2**63, -(2**63), 10**30, 1_793_520_000_000]
FLOATS = [0.0, -0.0, 0.1, -2.5, 1e300, 1e-7, 123456.789, 1.5e16, 0.30000000000000004, 1e22, 5e-324]
BITS = [b"", b"{", b"}", b'"', b",", b"\\", b"\xff", b"0", b"\n", b"\x00", b":", b"[", b"e", b"null"]


def document(random: Random, depth: int = 0) -> Any:
    """Draw any JSON value."""
    kind = random.randrange(8 if depth < 3 else 6)
    if kind < 2:
        return random.choice(NUMBERS)
    if kind == 2:
        return random.choice([random.choice(FLOATS), round(random.uniform(-1000, 1000), random.randrange(12))])
    if kind == 3:
        return random.choice(STRINGS)
    if kind < 6:
        return random.choice([None, True, False, random.choice(STRINGS)])
    if kind == 6:
        return [document(random, depth + 1) for _ in range(random.randrange(3))]
    return {random.choice(NAMES): document(random, depth + 1) for _ in range(random.randrange(5))}


#: Values by name that mostly match the plain schema: otherwise few would.
FITTING: dict[str, Any] = {"a": 5, "b": 10**12, "c": 2.5, "d": "text", "e": True, "f": {"g": "x", "h": {"i": 7}}}


def text(random: Random) -> bytes | None:
    """Draw the JSON text of an object, possibly with a few bytes changed."""
    fields = {random.choice(NAMES): document(random) for _ in range(random.randrange(4))}
    fields |= {name: value for name, value in FITTING.items() if random.random() < 0.5}
    layout: dict[str, Any] = random.choice([{}, {"indent": 1}, {"separators": (",", ":")}])
    made = bytearray(json.dumps(fields, ensure_ascii=random.random() < 0.5, **layout).encode())
    for _ in range(random.choice([0, 0, 0, 0, 1, 2])):
        at = random.randrange(len(made) + 1)
        made[at : at + random.randrange(3)] = random.choice(BITS)
    return None if random.random() < 0.02 else bytes(made)


def one_by_one(schema: Schema, given_: list[bytes | None]) -> pa.Array:
    found: list[dict[str, Any] | None] = []
    for value in given_:
        try:
            found.append(None if value is None else read(schema, value))
        except Mismatch:
            found.append(None)
    return pa.array(found, arrow_type(schema))


@pytest.mark.parametrize("schema", [PLAIN, NESTED, TICKS], ids=["plain", "nested", "ticks"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=10)
def test_all_at_once_is_the_same_as_one_by_one(schema: Schema, seed: int) -> None:
    random = Random(seed)
    given_ = [text(random) for _ in range(100)]
    made = decode(schema, pa.array(given_, pa.binary()))
    made.validate(full=True)
    for value, fast, slow in zip(given_, made.to_pylist(), one_by_one(schema, given_).to_pylist(), strict=True):
        assert fast == slow, value


def test_the_kernel_reads_plain_schemas_and_python_the_others() -> None:
    assert _plan(PLAIN) is not None
    assert _plan(TICKS) is not None
    assert _plan(NESTED) is None


@pytest.mark.parametrize(
    "value",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": 1} {"a": 2}',
        b'{"a": 1}\n',
        b' \t\r\n{ "a" : 1 } ',
        b'{"a": 01}',
        b'{"a": -}',
        b'{"a": 1.}',
        b'{"c": .5}',
        b'{"c": 1e5}',
        b'{"c": 1e999}',
        b'{"x": ' + b"9" * 300 + b'e22, "d": "z"}',
        b'{"x": ' + b"9" * 300 + b', "d": "z"}',
        b'{"c": -0.0}',
        b'{"c": -0}',
        b'{"c": 123456789012345678}',
        b'{"d": "a\\u00e4\\n"}',
        b'{"d": "a\nb"}',
        b'{"d": "\xc3\xa4"}',
        b'{"d": "\xed\xa0\x80"}',
        b'{"x": "\xff"}',
        b'{"x": [1, 2, {"y": null}], "d": "z"}',
        b'{"x": [1, 2,], "d": "z"}',
        b'{"x": {"y" 1}, "d": "z"}',
        b'{"x": ' + b"[" * 100 + b"]" * 100 + b', "d": "z"}',
        b'{"\\u0061": 1}',
        b'{"f": {"g": "x", "h": {"i": 5}}}',
        b'{"f": {"h": null}}',
        b'{"f": 5}',
        b'{"b": null}',
        b'{"e": tru}',
        b'{"e": truefalse}',
        b"{}",
        b"",
        b"null",
        b"{",
        '{"a": 1}'.encode("utf-16"),
    ],
)
def test_odd_texts_are_read_as_python_reads_them(value: bytes) -> None:
    both: list[bytes | None] = [value, b'{"a": 5}']
    found, expected = decode(PLAIN, pa.array(both)).to_pylist(), one_by_one(PLAIN, both).to_pylist()
    assert repr(found) == repr(expected)  # also the sign of zero


def test_a_slice_of_an_array_is_decoded_from_its_own_rows() -> None:
    array = pa.array([b'{"a": 1}', None, b'{"a": 2}', b"x", b'{"a": 3}'])
    assert [each and each["a"] for each in decode(PLAIN, array.slice(1, 4)).to_pylist()] == [None, 2, None, 3]
    assert len(decode(PLAIN, array.slice(2, 0))) == 0
