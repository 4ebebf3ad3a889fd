"""Names and types of columns: fields beside the record's own, and how they may change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.errors import InvalidConfig
from sawlog.tables import columns
from sawlog.tables.columns import RECORD, check_names, column_of, evolved, field_of, table_schema, value_fields

_NAMES = st.one_of(
    st.sampled_from(["key", "Value", "date", "hour", "value_key", "value_value_OFFSET", "value_x"]), st.text()
)


@given(_NAMES, _NAMES)
def test_every_field_has_its_own_column_and_no_record_column(one: str, other: str) -> None:
    assert field_of(column_of(one)) == one
    assert column_of(one).lower() not in {*RECORD.names, "date", "hour"}
    if one != other:
        assert column_of(one) != column_of(other)


def test_fields_come_after_the_record_and_are_found_again() -> None:
    fields = columns.parsed("id bigint, timestamp string, value_key int")
    made = table_schema(fields)
    assert made.names == [*RECORD.names, "id", "value_timestamp", "value_value_key"]
    assert value_fields(made) == fields
    assert "value" not in table_schema(fields, with_value=False).names


@pytest.mark.parametrize("names", [["a b"], ["a", "A"], [""], ["x=1"]])
def test_fields_that_no_table_can_have_are_refused(names: list[str]) -> None:
    with pytest.raises(InvalidConfig):
        check_names(names)


@pytest.mark.parametrize(
    ("before", "asked", "after"),
    [
        ("a int", "a int, b string", "a int, b string"),
        ("a int, b string", "b string", "a int, b string"),
        (
            "a int, b float, c decimal(10,2)",
            "a bigint, b double, c decimal(12,2)",
            "a bigint, b double, c decimal(12,2)",
        ),
        ("a bigint", "a int", "a bigint"),
        ("Id int", "id bigint", "Id bigint"),
        ("s struct<x:int>", "s struct<y:int,x:bigint>", "s struct<x:bigint,y:int>"),
        ("l array<struct<x:int>>", "l array<struct<x:int,y:date>>", "l array<struct<x:int,y:date>>"),
    ],
)
def test_columns_are_added_and_widened_and_never_removed(before: str, asked: str, after: str) -> None:
    assert columns.shown_schema(evolved(columns.parsed(before), columns.parsed(asked)).schema) == after


@pytest.mark.parametrize(
    ("before", "asked"),
    [
        ("a int", "a string"),
        ("a bigint", "a double"),
        ("a decimal(10,2)", "a decimal(12,4)"),
        ("a int", "a array<int>"),
    ],
)
def test_a_change_of_meaning_is_refused_or_leaves_the_column_as_it_is(before: str, asked: str) -> None:
    with pytest.raises(InvalidConfig, match="cannot become"):
        evolved(columns.parsed(before), columns.parsed(asked))
    assert evolved(columns.parsed(before), columns.parsed(asked), strict=False).schema == columns.parsed(before)
