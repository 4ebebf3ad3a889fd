"""JSON of dataclasses, pydantic and msgspec models, and of plain values; Arrow rows."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sawlog import JSON, ArrowRows
from sawlog.errors import InvalidConfig, InvalidRecordType


class Colour(Enum):
    RED = "red"


@dataclass
class Item:
    name: str
    price: Decimal
    parts: list[Item] = field(default_factory=list)


@dataclass
class Everything:
    whole: int
    real: float
    yes: bool
    text: str | None
    items: list[Item]
    by_name: dict[str, int]
    pair: tuple[int, ...]
    names: set[str]
    colour: Colour
    size: Literal["s", "m"]
    at: dt.datetime
    on: dt.date
    lasts: dt.timedelta
    id: UUID
    raw: bytes
    whatever: Any
    nothing: None = None


EXAMPLE = Everything(
    7,
    1.5,
    True,
    None,
    [Item("a", Decimal("1.10"), [Item("b", Decimal(2))])],
    {"x": 1},
    (1, 2),
    {"n"},
    Colour.RED,
    "m",
    dt.datetime(2026, 11, 17, 9, 30, tzinfo=dt.UTC),
    dt.date(2026, 11, 17),
    dt.timedelta(seconds=1.5),
    UUID(int=5),
    b"\x00\xff",
    {"deep": [1, None]},
)


def test_a_dataclass_of_every_supported_type_comes_back_equal() -> None:
    kind = JSON(Everything)
    assert kind.decode(kind.encode(EXAMPLE)) == EXAMPLE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"name": "a"}', "the field 'price' is missing"),
        (b'{"name": 7, "price": "1"}', "name: expected text, got 7"),
        (b'{"name": "a", "price": 1}', "price: expected a decimal number as text, got 1"),
        (b'{"name": "a", "price": "1", "parts": [{}]}', r"parts\[0\]: the field 'name' is missing"),
        (b'{"name": "a", "price": "1", "parts": {}}', "parts: expected a list, got {}"),
        (b'{"name": "a", "price": "one"}', "price: expected a decimal number as text"),
        (b"[]", "expected an object with the fields of Item"),
        (b"{", "Expecting property name"),
        (b'"\xff"', "utf-8"),
        (b"", "Expecting value"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_text_that_does_not_match_says_where_and_why(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        JSON(Item).decode(text)


def test_nothing_is_converted_silently() -> None:
    @dataclass
    class Row:
        whole: int = 0
        real: float = 0.0
        yes: bool = False

    assert JSON(Row).decode(b'{"real": 3, "unknown": 1}') == Row(0, 3.0, False)
    for text in (b'{"whole": true}', b'{"whole": 1.0}', b'{"whole": "1"}', b'{"real": "1"}', b'{"yes": 1}'):
        with pytest.raises(ValueError, match="expected"):
            JSON(Row).decode(text)


def test_a_field_of_an_unknown_type_is_refused_at_once() -> None:
    @dataclass
    class Row:
        what: complex

    with pytest.raises(InvalidConfig, match="complex"):
        JSON(Row)


PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


@settings(max_examples=30)
@given(
    PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=3), st.lists(PLAIN, max_size=2), max_size=2)
)
def test_plain_values_come_back_equal(value: Any) -> None:
    assert JSON().decode(JSON().encode(value)) == value


@given(st.binary(max_size=60))
def test_any_bytes_parse_or_raise_value_error(data: bytes) -> None:
    for kind in (JSON(), JSON(Item), JSON(dict)):
        try:
            kind.decode(data)
        except ValueError:
            pass


def test_models_of_msgspec_and_pydantic_are_taken_as_they_are() -> None:
    msgspec, pydantic = pytest.importorskip("msgspec"), pytest.importorskip("pydantic")
    struct = msgspec.defstruct("Order", [("id", int), ("note", str, "")])
    model = pydantic.create_model("Order", id=(int, ...), note=(str, ""))
    for kind in (struct, model):
        serializer: JSON[Any] = JSON(kind)
        assert serializer.decode(serializer.encode(kind(id=7, note="é"))) == kind(id=7, note="é")
        with pytest.raises(InvalidRecordType):
            serializer.encode({"id": 7})
        with pytest.raises(ValueError, match="id"):
            serializer.decode(b'{"id": "seven"}')


def test_no_package_is_imported_that_the_model_does_not_need() -> None:
    code = """
import sys, dataclasses, sawlog
@dataclasses.dataclass
class Order: id: int
sawlog.JSON(Order).decode(sawlog.JSON(Order).encode(Order(1)))
assert not {"msgspec", "pydantic"} & set(sys.modules), "imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_arrow_rows_come_back_and_another_schema_is_found_out() -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    rows = ArrowRows(schema)
    batch = pa.RecordBatch.from_pylist([{"id": 1, "name": "a"}, {"id": 2, "name": None}], schema=schema)
    stored = rows.encode(batch)
    assert rows.decode(stored).equals(batch)
    other = ArrowRows(pa.schema([("id", pa.int32())]))
    with pytest.raises(ValueError, match="expected rows of"):
        other.decode(stored)
    with pytest.raises(InvalidRecordType):
        other.encode(batch)
    for at in range(0, len(stored), 31):
        broken = stored[:at]
        with pytest.raises((ValueError, OSError)):
            rows.decode(broken)
    with pytest.raises(InvalidConfig):
        ArrowRows("id int")  # type: ignore[arg-type]


@dataclass
class Place:
    at: tuple[int, str]


@dataclass
class Unresolved:
    what: NoSuchType  # type: ignore[name-defined]  # noqa: F821 - that is the point


def test_a_tuple_has_a_type_for_each_of_its_places() -> None:
    places = JSON(Place)
    assert places.decode(places.encode(Place((1, "x")))) == Place((1, "x"))
    for wrong in (b'{"at": [1]}', b'{"at": [1, 2]}', b'{"at": [1, "x", 3]}', b'{"at": 1}'):
        with pytest.raises(ValueError, match="at"):
            places.decode(wrong)


def test_a_type_that_is_not_known_is_named() -> None:
    with pytest.raises(InvalidConfig, match="NoSuchType"):
        JSON(Unresolved)
